"""A partition that cannot be read: how often it is tried, and what is logged."""

import logging

import pytest

from nsq_ha import TlsConfig
from nsq_ha.consumer import subscriptions
from nsq_ha.policy import timing
from nsq_ha.protocol import Command
from tests.engine.lookups.loopback import lookup_body, peer
from tests.support.certificates import CA_FILE, server_context
from tests.support.inside import partitions_of
from tests.support.nsqd import OK, Peer, Subscribe
from tests.support.stage import Stage
from tests.support.waiting import eventually

SOON = 0.2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warn after a fraction of the real five seconds."""
    monkeypatch.setattr(timing, "FIRST_WARNING", SOON)
    monkeypatch.setattr(subscriptions, "SETTLED", 0.5)


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    found = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    return [line for line in found if text in line]


def accept_and_close(peer: Peer, command: Command) -> bool:
    """Answer a subscription with OK, and close."""
    if isinstance(command, Subscribe):
        peer.write(OK)
        peer.close()
        return True
    return False


async def test_a_node_that_accepts_and_then_closes_is_named_in_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.nsqd.script = accept_and_close
    async with stage.consumer(lookup_interval=0.1):
        await eventually(lambda: warnings(caplog, "still trying"))
        subscribed = len(stage.nsqd.peers)
        (line,) = warnings(caplog, "still trying")
        assert line.startswith(
            f"orders-0 at nsqd {stage.nsqd.node.address}: connection to {stage.nsqd.node.address} lost: "
        )
        assert f"{subscribed - 1} failures" in line or f"{subscribed} failures" in line
        assert warnings(caplog, "reading again") == []
        stage.nsqd.script = None
        await eventually(lambda: warnings(caplog, "reading again"))
        (line,) = warnings(caplog, "reading again")
        assert line.startswith(f"orders-0 at nsqd {stage.nsqd.node.address}: reading again after ")


async def test_its_back_off_grows_though_each_subscription_is_accepted(stage: Stage) -> None:
    """Each accepted SUB used to reset the counter: 22 reconnects a second."""

    stage.nsqd.script = accept_and_close
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await stage.nsqd.peer(4)
        await eventually(lambda: partitions_of(consumer)[0].failures >= 5)


async def test_a_frame_that_is_too_large_names_the_option(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    def too_large(peer: Peer, command: Command) -> bool:
        if isinstance(command, Subscribe):
            peer.write(OK)
            peer.message(b"x" * 5000)
            return True
        return False

    stage.nsqd.script = too_large
    async with stage.consumer(max_frame_bytes=4096):
        await eventually(lambda: warnings(caplog, "still trying"))
        assert "more than max_frame_bytes=4096: raise it" in warnings(caplog, "still trying")[0]


async def test_a_partition_without_a_leader_is_warned_about_and_its_end_is_reported(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.consumer(lookup_interval=0.1) as consumer:
        peer = await stage.nsqd.subscriber()
        stage.lead({}, 1)
        stage.nsqd.accepts = False
        peer.close()
        await eventually(lambda: len(warnings(caplog, "still trying")) == 2)
        assert warnings(caplog, "still trying")[0].startswith("orders-0 ")
        stage.nsqd.accepts = True
        stage.lead({0: stage.nsqd})
        await eventually(lambda: warnings(caplog, "reading again"))
        assert len(warnings(caplog, "reading again")) == 1
        assert partitions_of(consumer)[0].trouble is None


async def test_one_closed_connection_is_no_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.close()
        await stage.nsqd.subscriber(1)
        await eventually(lambda: partitions_of(consumer)[0].outage.began_at is None)
    assert warnings(caplog, "orders-0") == []


async def test_the_channel_of_a_topic_that_is_gone_is_forgotten(stage: Stage) -> None:
    """The channel of a topic of the same name is a new one, which the replicas do not know."""
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await stage.nsqd.subscriber()
        partition = partitions_of(consumer)[0]
        await eventually(lambda: partition.is_started)
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=500)
        await eventually(lambda: not partition.is_started)


async def test_a_topic_that_is_not_there_is_warned_about_until_it_is(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """There used to be only one line, at the start."""
    stage.lookupd.answer("/lookup", lookup_body({}))
    async with stage.consumer(start_timeout=0.05, lookup_interval=0.1):
        await eventually(lambda: len(warnings(caplog, "still looking")) == 2)
        assert "orders/ch: nothing to read" in warnings(caplog, "still looking")[0]
        assert "there is no topic 'orders'" in warnings(caplog, "still looking")[0]
        stage.lead({0: stage.nsqd})
        await stage.nsqd.subscriber()
        await eventually(lambda: warnings(caplog, "found the topic"))


async def test_a_topic_that_is_not_there_is_one_warning_at_a_time_and_says_what_to_do(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There used to be two at once, and neither said so."""
    stage.lookupd.answer("/lookup", lookup_body({}))
    async with stage.consumer(start_timeout=2 * SOON, lookup_interval=0.1):
        assert warnings(caplog, "not all partitions") == []
        assert warnings(caplog, "nothing to read")
    monkeypatch.setattr(timing, "FIRST_WARNING", 60.0)
    async with stage.consumer(start_timeout=1.0, lookup_interval=0.1):
        (line,) = warnings(caplog, "not all partitions")
        assert "there is no topic 'orders': create it (nsq-ha topic create orders)" in line


async def test_an_address_that_no_client_can_use_is_named(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The warning used to be "has no leader now", although nsqlookupd named one."""
    body = lookup_body({0: stage.nsqd.port})
    body["partitions"] = {"0": peer(stage.nsqd.port) | {"broadcast_address": "nsqd-0..svc"}}
    stage.lookupd.answer("/lookup", body)
    async with stage.consumer(start_timeout=0.05):
        await eventually(lambda: warnings(caplog, "still trying"))
    for line in (warnings(caplog, "not all partitions")[0], warnings(caplog, "still trying")[0]):
        assert f"'nsqd-0..svc:{stage.nsqd.port}', which is not valid: set nsqd's -broadcast-address" in line


async def test_a_leader_that_does_not_answer_is_named_when_the_start_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``start_timeout`` up to ``connect_timeout``, the warning was "no partition has a leader yet"."""
    stage.nsqd.script = lambda _peer, _command: True
    async with stage.consumer(start_timeout=0.3, connect_timeout=5.0, close_timeout=0.1):
        (line,) = warnings(caplog, "not all partitions")
        assert f"partition 0: nsqd {stage.nsqd.node.address} has not answered yet" in line


@pytest.mark.parametrize("tls", [False, True])
async def test_an_orderly_close_is_no_trouble(stage: Stage, caplog: pytest.LogCaptureFixture, *, tls: bool) -> None:
    """It was logged as "connection lost: closed by the peer"."""
    caplog.set_level(logging.DEBUG)
    stage.nsqd.tls = server_context() if tls else None
    options = {"tls": TlsConfig(ca_file=CA_FILE, server_name="localhost")} if tls else {}
    async with stage.consumer(**options) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        (await anext(consumer)).finish()
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    lines = [record for record in caplog.records if record.name.startswith("nsq_ha")]
    assert [record.getMessage() for record in lines if "lost" in record.getMessage()] == []
    (line,) = [record for record in lines if record.getMessage().endswith("connection ended: closed by this client")]
    assert line.levelno == logging.DEBUG
    assert not [record for record in lines if record.getMessage().startswith("orders-0 at nsqd")]
