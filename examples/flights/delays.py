"""Sum the delays of flights by carrier, and compare such sums.

All sums are whole minutes, so they are exact and do not depend on the order in which
flights are added: the same flights give the same sums wherever they are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from examples.flights.flights import Flight

LATE_MINUTES: Final = 15
"""A flight is late if it arrives more than this many minutes after its time."""
NO_CARRIER: Final = "?"
"""Stands for the carrier of flights that name none."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Sums over some flights. Delays are in minutes, negative if early.

    Attributes:
        flights: Number of flights.
        departed: Number of flights with a departure delay; the others were cancelled.
        dep_minutes: Sum of their departure delays.
        arrived: Number of flights with an arrival delay; the others were cancelled or diverted.
        arr_minutes: Sum of their arrival delays.
        late: Number of flights that arrived more than :data:`LATE_MINUTES` late.
    """

    flights: int = 0
    departed: int = 0
    dep_minutes: int = 0
    arrived: int = 0
    arr_minutes: int = 0
    late: int = 0

    def __add__(self, other: Delays) -> Delays:
        """Return the sums over the flights of both."""
        return Delays(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def mean_dep_delay(self) -> float | None:
        """Mean departure delay. None if no flight departed."""
        return self.dep_minutes / self.departed if self.departed else None

    @property
    def mean_arr_delay(self) -> float | None:
        """Mean arrival delay. None if no flight arrived."""
        return self.arr_minutes / self.arrived if self.arrived else None

    @property
    def late_share(self) -> float | None:
        """Share of the arrived flights that were late, 0..1. None if no flight arrived."""
        return self.late / self.arrived if self.arrived else None

    def as_dict(self) -> dict[str, int | float | None]:
        """Return the means for JSON, rounded."""
        means = {"mean_dep_delay": (self.mean_dep_delay, 2), "mean_arr_delay": (self.mean_arr_delay, 2)}
        rounded = (means | {"late_share": (self.late_share, 4)}).items()
        return {
            "flights": self.flights,
            "arrived": self.arrived,
            **{name: None if value is None else round(value, digits) for name, (value, digits) in rounded},
        }


ByCarrier = Mapping[str, Delays]
"""Sums by the carrier's two-letter code."""


def by_carrier(flights: Iterable[Flight]) -> dict[str, Delays]:
    """Return the sums over flights of the data file."""
    sums: dict[str, Delays] = {}
    for flight in flights:
        row = flight.fields()
        carrier, departed, arrived = row.get("carrier"), row.get("dep_delay"), row.get("arr_delay")
        name = carrier if isinstance(carrier, str) else NO_CARRIER
        sums[name] = sums.get(name, Delays()) + Delays(
            1,
            *((1, departed) if isinstance(departed, int) else (0, 0)),
            *((1, arrived, int(arrived > LATE_MINUTES)) if isinstance(arrived, int) else (0, 0, 0)),
        )
    return sums


def total(sums: ByCarrier) -> Delays:
    """Return the sums over all carriers."""
    return sum(sums.values(), Delays())


def differing(results: Iterable[ByCarrier]) -> list[str]:
    """Return the carriers whose sums are not the same in all results, sorted."""
    compared = list(results)
    names = {name for sums in compared for name in sums}
    return sorted(name for name in names if len({sums.get(name, Delays()) for sums in compared}) > 1)


def most_flights_first(sums: ByCarrier) -> list[tuple[str, Delays]]:
    """Return the carriers with their sums, most flights first, then by name."""
    return sorted(sums.items(), key=lambda entry: (-entry[1].flights, entry[0]))
