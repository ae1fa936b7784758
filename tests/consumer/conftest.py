import pytest

from tests.support.clients import nothing_is_left, pytest_asyncio_loop_factories, stage, watched

__all__ = ["nothing_is_left", "pytest_asyncio_loop_factories", "stage", "watched"]


@pytest.fixture
def any_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow ``max_in_flight`` waiting messages before any was handled."""
    monkeypatch.setattr("nsq_ha.policy.handling_speed.FIRST_WAITING", 1_000_000)
