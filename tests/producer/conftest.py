import pytest

from tests.support.clients import nothing_is_left, pytest_asyncio_loop_factories, stage, watched
from tests.support.nsqd import Holding
from tests.support.stage import Stage

__all__ = ["nothing_is_left", "pytest_asyncio_loop_factories", "stage", "watched"]


@pytest.fixture
def holding(stage: Stage) -> Holding:
    """Partition 0 is led by a node that answers no publish, partition 1 by a sound one."""
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    holding = Holding()
    stage.nsqds[0].script = holding
    return holding
