"""All cases of the kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from integration.floods import answers, compressed, frames, identify, known, lookups, messages

if TYPE_CHECKING:
    from integration.floods.case import Case

CASES: Final[tuple[Case, ...]] = (
    *frames.CASES,
    *answers.CASES,
    *known.CASES,
    *identify.CASES,
    *messages.CASES,
    *compressed.CASES,
    *lookups.CASES,
)
