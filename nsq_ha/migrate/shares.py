"""Know the current cluster's share of each topic, from a number, a table, a function or a file.

The invariant: once a share was good, a function that fails or a broken file changes nothing and is reported once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tomllib
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nsq_ha.checks import MAX_SECONDS, check_topic, is_number, shown
from nsq_ha.errors import ConfigError
from nsq_ha.policy.migration import check_share
from nsq_ha.threads import is_async

Share = float | Mapping[str, float] | Callable[[str], float] | str | Path
"""Percent of each topic that goes to the current cluster: a number, a table by topic, a function of the topic's name,
or the path of a file with such a table."""

OTHERS: Final = "*"
"""Key of the share of all topics that a table does not name."""

log: logging.Logger = logging.getLogger("nsq_ha.migrate")


class _Known(NamedTuple):
    """A share that a function returned, and when."""

    share: float
    at: float


class Shares:
    """The current shares.

    Args:
        share: What the application gave.
        interval: Seconds between two looks at a file, and between two calls of a function for one topic.

    Raises:
        ConfigError: ``share`` is not valid.
    """

    def __init__(self, share: Share, interval: float) -> None:
        if not is_number(interval) or not 0 < interval <= MAX_SECONDS:
            raise ConfigError(f"refresh_interval must be a number of seconds, 0..{MAX_SECONDS}, not {shown(interval)}")
        self._interval = float(interval)
        self._table: dict[str, float] = {}
        self._function: Callable[[str], float] | None = None
        self._file: Path | None = None
        self._known: dict[str, _Known] = {}
        self._seen: tuple[int, ...] | str | None = None
        self._is_failing = False
        self._loop: AbstractEventLoop | None = None
        if isinstance(share, str | Path):
            self._file = Path(share)
            if self._file.suffix not in (".toml", ".json"):
                raise ConfigError(f"share={str(share)!r}: name a file that ends in .toml or .json")
        elif callable(share):
            if is_async(share):
                raise ConfigError("share= must be a plain function that returns at once, not a coroutine function")
            self._function = share
        elif isinstance(share, Mapping):
            self._table = _checked(share, "share=")
        else:
            self._table = {OTHERS: check_share(share)}

    @property
    def is_watched(self) -> bool:
        """Whether :meth:`watch` must run: the shares are in a file."""
        return self._file is not None

    async def open(self) -> None:
        """Read the file, if there is one.

        Raises:
            ConfigError: It cannot be read or used; the text names it.
        """
        self._loop = asyncio.get_running_loop()
        if self._file is not None:
            self._seen = await asyncio.to_thread(_version, self._file)
            self._table = await asyncio.to_thread(_read, self._file)

    async def watch(self) -> None:
        """Read the file again whenever it changes, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(self._interval)
            version = await asyncio.to_thread(_version, self._file)
            if version == self._seen:
                continue
            self._seen = version
            try:
                table = await asyncio.to_thread(_read, self._file)
            except ConfigError as error:
                log.warning("the shares stay as they were: %s", error)
                continue
            self._changed(table)

    def of(self, topic: str) -> float:
        """Return the share of a topic, in percent.

        Raises:
            ConfigError: The function failed for a topic that it never gave a share for.
        """
        if self._function is not None:
            return self._called(self._function, topic)
        table = self._table
        return table[topic] if topic in table else table.get(OTHERS, 0.0)

    def set(self, share: float, topic: str | None) -> None:
        """Change the share of one topic, or of all that have none of their own.

        Raises:
            ConfigError: The share is not 0..100, the topic is not legal, or a function or a file gives the shares.
        """
        checked = check_share(share)
        if self._function is not None:
            raise ConfigError("a function gives the shares (share=): let it return another one")
        if self._file is not None:
            raise ConfigError(f"the shares are in {self._file}: change the file")
        self._changed({**self._table, OTHERS if topic is None else check_topic(topic): checked})

    def _called(self, function: Callable[[str], float], topic: str) -> float:
        now = self._loop.time() if self._loop is not None else 0.0
        known = self._known.get(topic)
        if known is not None and now - known.at < self._interval:
            return known.share
        try:
            share = check_share(function(topic), f"the result of share({topic!r})")
        except Exception as error:  # the application's function may raise anything
            if known is None:
                raise ConfigError(f"share= gave no share for topic {topic!r}: {error}") from error
            if not self._is_failing:
                log.warning("%s: the share stays at %g %%, since share= failed: %s", topic, known.share, error)
            self._is_failing = True
            share = known.share
        else:
            self._is_failing = False
            if known is not None and share != known.share:
                log.info("%s: share of the current cluster: %g %%, was %g %%", topic, share, known.share)
        self._known[topic] = _Known(share, now)
        return share

    def _changed(self, table: dict[str, float]) -> None:
        before, self._table = self._table, table
        for topic in sorted({*before, *table}):
            old, new = (shares.get(topic, shares.get(OTHERS, 0.0)) for shares in (before, table))
            if old != new:
                log.info("%s: share of the current cluster: %g %%, was %g %%", topic, new, old)


def _version(file: Path) -> tuple[int, ...] | str:
    """Return what changes when the file does. If it cannot be looked at, the reason."""
    try:
        found = file.stat()
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(file: Path) -> dict[str, float]:
    try:
        text = file.read_text("utf-8")
        content: object = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the file of the shares, {file}, cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the file of the shares, {file}, must have a table of topics and percents")
    return _checked(content, str(file))


def _checked(table: Mapping[str, object], where: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for topic, share in table.items():
        name = OTHERS if topic == OTHERS else _legal(topic, where)
        found[name] = check_share(share, f"{where}: the share of {topic!r}")
    return found


def _legal(topic: object, where: str) -> str:
    try:
        return check_topic(topic)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
