from hypothesis import given
from hypothesis import strategies as st

from examples.flights.delays import Delays, by_carrier, differing, most_flights_first, total
from examples.flights.flights import Flight

COLUMNS = ("carrier", "dep_delay", "arr_delay")


def flight(*values: str) -> Flight:
    return Flight("N1", COLUMNS, values)


FLIGHTS = [
    flight("UA", "0", "16"),
    flight("UA", "4", "15"),
    flight("UA", "NA", "NA"),
    flight("B6", "-3", "NA"),
    flight("NA", "1", "-2"),
]
SUMS = {"UA": Delays(3, 2, 4, 2, 31, 1), "B6": Delays(1, 1, -3, 0, 0, 0), "?": Delays(1, 1, 1, 1, -2, 0)}


def test_only_what_departed_and_arrived_counts_and_late_is_over_15_minutes() -> None:

    assert by_carrier(FLIGHTS) == SUMS
    assert total(SUMS) == Delays(5, 4, 2, 3, 29, 1)
    assert [name for name, _ in most_flights_first(SUMS)] == ["UA", "?", "B6"]


@given(st.permutations(FLIGHTS), st.integers(0, len(FLIGHTS)))
def test_sums_depend_neither_on_the_order_nor_on_the_parts(flights: list[Flight], cut: int) -> None:
    first, second = by_carrier(flights[:cut]), by_carrier(flights[cut:])
    joined = {name: first.get(name, Delays()) + second.get(name, Delays()) for name in first | second}
    assert joined == SUMS


def test_every_carrier_that_differs_anywhere_is_named() -> None:
    assert differing([SUMS, SUMS, dict(SUMS)]) == []
    more = SUMS | {"AA": Delays(1), "UA": SUMS["UA"] + Delays(late=1)}
    less = {name: sums for name, sums in SUMS.items() if name != "B6"}
    assert differing([SUMS, more, less]) == ["AA", "B6", "UA"]
