import importlib.util
import itertools
import json
import zipfile
from pathlib import Path

import pytest

from examples.flights import flights
from nsq_ha.errors import ConfigError

ROOT = Path(__file__).parents[2]

COLUMNS = "year,month,day,dep_delay,carrier,flight,tailnum,hour,minute,time_hour"


@pytest.fixture(scope="module")
def january() -> list[flights.Flight]:
    return flights.read([1])


def zipped(folder: Path, *rows: str) -> Path:
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join([COLUMNS, *rows]) + "\n")
    return path


def test_january_is_whole(january: list[flights.Flight]) -> None:
    assert len(january) == 27_004
    assert {flight.fields()["month"] for flight in january} == {1}
    assert january[0].key == "N14228"


def test_flights_are_in_order_of_scheduled_departure(january: list[flights.Flight]) -> None:
    def departure(flight: flights.Flight) -> tuple[object, ...]:
        fields = flight.fields()
        return fields["day"], fields["hour"], fields["minute"]

    departures = [departure(flight) for flight in january]
    assert all(one <= other for one, other in itertools.pairwise(departures))


def test_a_flight_without_tail_number_goes_by_carrier_and_number(tmp_path: Path) -> None:
    path = zipped(
        tmp_path,
        "2013,1,2,NA,AA,133,NA,15,45,2013-01-02T20:00:00Z",
        "2013,1,1,-4,UA,1545,N14228,5,15,2013-01-01T10:00:00Z",
        "2013,2,1,0,UA,1,N1,5,15,2013-02-01T10:00:00Z",
    )
    first, second = flights.read([1], path)
    assert (first.key, second.key) == ("N14228", "AA133")
    assert json.loads(second.body({"run": "r", "number": 7})) == {
        "run": "r",
        "number": 7,
        "year": 2013,
        "month": 1,
        "day": 2,
        "dep_delay": None,
        "carrier": "AA",
        "flight": 133,
        "tailnum": None,
        "hour": 15,
        "minute": 45,
        "time_hour": "2013-01-02T20:00:00Z",
    }
    assert first.fields()["dep_delay"] == -4


def test_the_notice_names_the_data() -> None:
    notice = (ROOT / "NOTICE").read_text("utf-8")
    assert str(flights.JANUARY.relative_to(ROOT)) in notice
    assert "CC0" in notice


def test_other_months_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        FileNotFoundError, match="only January comes with nsq_ha; for the other months: pip install nyc"
    ):
        flights.read([1, 2])


@pytest.mark.parametrize(
    ("text", "months"),
    [("1", (1,)), ("1-3", (1, 2, 3)), ("6-8, 1", (1, 6, 7, 8)), ("1-12", tuple(range(1, 13))), ("2,2-3", (2, 3))],
)
def test_months_as_people_write_them(text: str, months: tuple[int, ...]) -> None:
    assert flights.months_of(text) == months


@pytest.mark.parametrize("text", ["", "0", "13", "3-1", "1-", "-3", "a", "1,,2", "1-2-3", "01", "1-99999999999", "²"])
def test_other_months_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        flights.months_of(text)
