"""Which cases of a test `make test` leaves to `make test-full`."""

import pytest


def is_slow(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("slow") is not None


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["a", "b"])
def test_the_first_ones_remain(request: pytest.FixtureRequest, case: str) -> None:
    assert is_slow(request) is (case == "b")


@pytest.mark.few("b")
@pytest.mark.parametrize("case", ["a", "b"])
def test_those_that_are_named_remain(request: pytest.FixtureRequest, case: str) -> None:
    assert is_slow(request) is (case == "a")


@pytest.mark.few("renamed")
@pytest.mark.parametrize("case", ["a", "b"])
def test_a_name_that_no_case_has_leaves_none_out(request: pytest.FixtureRequest, case: str) -> None:
    assert not is_slow(request), case


@pytest.mark.few(every=2)
@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_each_second_one_remains(request: pytest.FixtureRequest, case: str) -> None:
    assert is_slow(request) is (case == "b")
