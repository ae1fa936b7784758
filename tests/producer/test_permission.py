"""Publishes that nsqd refuses for lack of permission: one new connection, then the refusal is reported."""

import itertools
from collections.abc import Callable

import pytest

from nsq_ha import PublishError
from nsq_ha.errors import AuthError
from nsq_ha.protocol import Command, Identity, Mpub, Pub
from nsq_ha.protocol.commands import Auth
from tests.support.nsqd import Peer, Refusing, error
from tests.support.stage import TOPIC, Stage

REFUSAL = 'E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'


def secrets_sent(stage: Stage) -> list[bytes]:
    return [command.secret for peer in stage.nsqd.peers for command in peer.commands if isinstance(command, Auth)]


class Permitting:
    """An nsqd that refuses publishes over connections with another secret than the valid ones."""

    def __init__(self, stage: Stage, *valid: bytes, refusal: str = REFUSAL) -> None:
        self.valid = set(valid)
        self._refusal = refusal
        stage.nsqd.identity = Identity(auth_required=True)
        stage.nsqd.script = self

    def __call__(self, peer: Peer, command: Command) -> bool:
        secrets = [each.secret for each in peer.commands if isinstance(each, Auth)]
        if not isinstance(command, Pub | Mpub) or secrets[0] in self.valid:
            return False
        peer.write(error(self._refusal))
        peer.close()
        return True


def numbered() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"secret-{next(numbers)}"


@pytest.mark.parametrize("refusal", [REFUSAL, "E_AUTH_FAILED AUTH failed"])
async def test_a_replaced_secret_is_sent_over_one_new_connection(stage: Stage, refusal: str) -> None:
    nsqd = Permitting(stage, b"secret-1", refusal=refusal)
    async with stage.producer(auth_secret=numbered()) as producer:
        assert (await producer.publish(TOPIC, b"x", key="k")).attempts == 1
        for number in (2, 3):  # the next change is survived, too
            nsqd.valid = {b"secret-%d" % number}
            assert (await producer.publish(TOPIC, b"y", key="k")).attempts == 2
    assert secrets_sent(stage) == [b"secret-1", b"secret-2", b"secret-3"]


async def test_a_batch_is_sent_again_too(stage: Stage) -> None:
    nsqd = Permitting(stage, b"secret-1")
    async with stage.producer(auth_secret=numbered()) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        nsqd.valid = {b"secret-2"}
        outcomes = await producer.publish_many(TOPIC, [b"x", b"y"])
    assert [getattr(outcome, "attempts", outcome) for outcome in outcomes] == [2, 2]


async def test_a_permission_that_was_granted_since_is_found_with_the_same_secret(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Pub) and command.body == b"y" and peer is stage.nsqd.peers[0]:
            peer.write(error(REFUSAL))
            peer.close()
            return True
        return False

    stage.nsqd.identity = Identity(auth_required=True)
    stage.nsqd.script = script
    async with stage.producer(auth_secret="hush") as producer:
        assert (await producer.publish(TOPIC, b"x", key="k")).attempts == 1
        assert (await producer.publish(TOPIC, b"y", key="k")).attempts == 2


async def test_a_refusal_that_stays_is_reported_after_one_new_connection(stage: Stage) -> None:
    nsqd = Permitting(stage, b"secret-1")
    async with stage.producer(auth_secret=numbered()) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        nsqd.valid = set()
        for attempts in (2, 1):  # the next one finds a new connection in any case
            with pytest.raises(PublishError, match="E_UNAUTHORIZED AUTH failed for PUB") as caught:
                await producer.publish(TOPIC, b"y", key="k")
            assert type(caught.value.__cause__) is AuthError
            assert (caught.value.attempts, caught.value.maybe_stored) == (attempts, False)
        assert len(secrets_sent(stage)) == 3
        nsqd.valid = {b"secret-4"}
        assert (await producer.publish(TOPIC, b"z", key="k")).attempts == 1


async def test_a_refused_auth_ends_the_renewal(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Pub | Auth) and len(peer.nsqd.commands) > 3:
            peer.write(error("E_AUTH_FAILED AUTH failed"))
            peer.close()
            return True
        return False

    stage.nsqd.identity = Identity(auth_required=True)
    stage.nsqd.script = script
    async with stage.producer(auth_secret="hush") as producer:
        await producer.publish(TOPIC, b"x", key="k")
        with pytest.raises(PublishError, match="E_AUTH_FAILED") as caught:
            await producer.publish(TOPIC, b"y", key="k")
    assert type(caught.value.__cause__) is AuthError
    assert not caught.value.maybe_stored


@pytest.mark.parametrize("options", [{}, {"auth_secret": "hush", "on_unreachable": "fail"}])
async def test_without_a_secret_or_retries_the_refusal_is_reported_at_once(
    stage: Stage, options: dict[str, str]
) -> None:
    nsqd = Permitting(stage, b"hush")
    if not options:
        stage.nsqd.identity = Identity()
        stage.nsqd.script = Refusing(Pub, REFUSAL)
    async with stage.producer(**options) as producer:
        if options:
            await producer.publish(TOPIC, b"x", key="k")
            nsqd.valid = set()
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"y", key="k")
    assert caught.value.attempts == 1


async def test_a_function_that_fails_delays_a_publish_and_ends_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([RuntimeError("hush"), RuntimeError("hush")])

    def secret() -> str:
        if (failure := next(failures, None)) is not None:
            raise failure
        return "hush"

    stage.nsqd.identity = Identity(auth_required=True)
    async with stage.producer(auth_secret=secret) as producer:
        assert (await producer.publish(TOPIC, b"x", key="k")).attempts == 1
    assert secrets_sent(stage) == [b"hush"]
    assert "unexpected" not in caplog.text
    assert "hush" not in caplog.text
