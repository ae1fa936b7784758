"""Publishes that nsqd refuses for lack of permission, and an auth server that is away."""

import asyncio
import itertools
import logging
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


class AuthServerAway:
    """An nsqd whose auth server does not answer while ``is_away``: it refuses AUTH, and publishes as it asks again."""

    def __init__(self, stage: Stage, refusal: str = "E_AUTH_FAILED AUTH failed") -> None:
        self.is_away = False
        self._refusal = refusal
        stage.nsqd.identity = Identity(auth_required=True)
        stage.nsqd.script = self

    def __call__(self, peer: Peer, command: Command) -> bool:
        if not self.is_away or not isinstance(command, Auth | Pub | Mpub):
            return False
        peer.write(error(self._refusal))
        peer.close()
        return True


@pytest.mark.parametrize("refusal", ["E_AUTH_FAILED AUTH failed", "E_UNAUTHORIZED AUTH no authorizations found"])
async def test_an_auth_server_that_is_away_delays_publishes_within_their_limit(
    stage: Stage, caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    nsqd = AuthServerAway(stage, refusal)
    async with stage.producer(auth_secret="hush") as producer:
        await producer.publish(TOPIC, b"x", key="k")
        nsqd.is_away = True
        publishing = asyncio.create_task(producer.publish(TOPIC, b"y", key="k", timeout=20))
        await asyncio.sleep(8)
        assert not publishing.done()
        assert not producer.health().is_healthy
        nsqd.is_away = False
        assert (await publishing).attempts == 2
        with_warning = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert refusal.split(maxsplit=1)[0] in with_warning[0].getMessage()


async def test_a_publish_fails_at_its_limit_while_the_auth_server_is_away(stage: Stage) -> None:
    nsqd = AuthServerAway(stage)
    clock = asyncio.get_running_loop().time
    async with stage.producer(auth_secret="hush") as producer:
        await producer.publish(TOPIC, b"x", key="k")
        nsqd.is_away = True
        began = clock()
        with pytest.raises(PublishError, match=r"E_AUTH_FAILED.* auth server does not answer") as caught:
            await producer.publish(TOPIC, b"y", key="k", timeout=20)
        assert clock() - began == pytest.approx(20, abs=0.1)
    assert type(caught.value.__cause__) is AuthError
    assert not caught.value.maybe_stored


async def test_a_first_refusal_of_the_secret_fails_a_publish_at_once(stage: Stage) -> None:
    AuthServerAway(stage).is_away = True
    clock = asyncio.get_running_loop().time
    began = clock()
    async with stage.producer(auth_secret="hush") as producer:
        with pytest.raises(PublishError, match="E_AUTH_FAILED"):
            await producer.publish(TOPIC, b"x", key="k", timeout=20)
    assert clock() - began < 1


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
