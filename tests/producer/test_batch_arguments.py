"""What is no batch, and what is no time limit, is refused before anything is sent."""

import pytest

from nsq_ha.errors import ConfigError
from tests.support.stage import TOPIC, Stage


@pytest.mark.parametrize("messages", [None, 3, b"body", "body", {b"body": 1}])
async def test_what_is_no_batch_is_refused(stage: Stage, messages: object) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="messages must be a list"):
            await producer.publish_many(TOPIC, messages)  # type: ignore[arg-type]
    assert stage.nsqd.commands == []


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), 10**400, "5", True])
async def test_what_is_no_time_limit_is_refused(stage: Stage, timeout: object) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            await producer.publish(TOPIC, b"x", timeout=timeout)  # type: ignore[arg-type]
    assert stage.nsqd.commands == []
