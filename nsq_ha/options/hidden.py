"""Keep secrets out of what programs print of options: their ``repr``, ``dataclasses.asdict``, locals of tracebacks.

The invariant: no frame of ours that checks options holds a secret whose ``repr`` shows it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from nsq_ha.base.redaction import REDACTED

T = TypeVar("T")

SECRETS: Final = ("auth_secret", "key_password")
"""Options whose texts are secret."""


class HiddenText(str):
    """A text whose ``repr`` does not show it; in all else it is that text."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Show nothing."""
        return REDACTED


def hide(options: Mapping[str, object]) -> None:
    """Replace the secrets among options, in place: the frames of callers hold the same dict."""
    kept = cast("dict[str, object]", options)
    for name in SECRETS:
        if isinstance(options.get(name), str):
            kept[name] = HiddenText(kept[name])


def hides_secrets(cls: type[T]) -> type[T]:
    """Let a dataclass take its secrets as hidden texts."""
    names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]  # a dataclass
    init: Any = cls.__init__

    @functools.wraps(init)
    def __init__(self: T, *args: object, **options: object) -> None:  # noqa: N807 - it takes the place of that
        hide(options)
        given = dict(zip(names, args, strict=False))
        hide(given)
        args = (*given.values(), *args[len(given) :])
        init(self, *args, **options)

    cls.__init__ = __init__  # type: ignore[method-assign, assignment]  # of the same arguments
    return cls
