"""AUTH of the embedded cluster: answers on the wire, the end of permissions, clients with and without a secret."""

import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from nsq_ha.devcluster import AuthGrant, AuthRule, DevCluster
from nsq_ha.devcluster.auth import Credentials
from tests.devcluster.wire import Wire, connect, identify
from tests.support import web
from tests.support.certificates import server_context

SECRET = "sesame & sons"
_channels = (f"ch{number}" for number in itertools.count())

GRANTS = {
    SECRET: AuthGrant(identity="orders-service", identity_url="https://auth.example/?a=<7>&b"),
    "narrow sesame": AuthGrant(
        authorizations=(
            AuthRule(topic="^orders$", channels=("^mine$",), permissions=("subscribe",)),
            AuthRule(topic="^orders$", permissions=("publish",)),
        )
    ),
    "sesame for mine": AuthGrant(authorizations=(AuthRule(channels=("^mine$",)),)),
    "empty sesame": AuthGrant(authorizations=()),
}


@pytest.fixture(scope="module", params=[False, True], ids=["partitioned", "plain"])
def is_plain(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def cluster(is_plain: bool) -> Iterator[DevCluster]:
    tls = server_context()
    with DevCluster(plain=is_plain, nsqds=1, nsqlookupds=1, time_scale=0.02, auth=GRANTS, tls=tls) as made:
        for topic in ("orders", "refunds"):
            made.create_topic(topic, replicas=1)
        yield made


def auth(secret: str) -> bytes:
    body = secret.encode()
    return b"AUTH\n" + struct.pack(">i", len(body)) + body


def sized(line: str, body: bytes = b"x") -> bytes:
    return f"{line}\n".encode() + struct.pack(">i", len(body)) + body


def dial(cluster: DevCluster, *commands: bytes) -> Wire:
    return connect(cluster.nsqds["nsqd-0"], *commands)


def refusal(cluster: DevCluster, secret: str | None, command: bytes) -> bytes:
    """Return the server's answer to a command, and see that it closes."""
    with dial(cluster, *([] if secret is None else [auth(secret)]), command) as wire:
        if secret is not None:
            assert b'"permission_count"' in wire.answer()
        answer = wire.answer()
        assert wire.ends()
        return answer


def test_nsqd_asks_for_auth_and_answers_it(cluster: DevCluster) -> None:
    with dial(cluster, identify(), auth(SECRET), sized("PUB orders")) as wire:
        assert json.loads(wire.answer())["auth_required"] is True
        assert wire.answer() == (
            b'{"identity":"orders-service","identity_url":"https://auth.example/?a=\\u003c7\\u003e\\u0026b",'
            b'"permission_count":1}'
        )
        assert wire.answer() == b"OK"


@pytest.mark.parametrize(
    ("secret", "refused"),
    [("wrong", b"E_AUTH_FAILED AUTH failed"), ("empty sesame", b"E_UNAUTHORIZED AUTH no authorizations found")],
)
def test_a_secret_is_refused(cluster: DevCluster, secret: str, refused: bytes) -> None:
    with dial(cluster, auth(secret)) as wire:
        assert wire.answer().lower() == refused.lower()
        assert wire.ends()


def test_auth_comes_once(cluster: DevCluster) -> None:
    assert refusal(cluster, SECRET, auth(SECRET)).lower() == b"e_invalid auth already set"
    with dial(cluster, auth(SECRET), f"SUB orders {next(_channels)}\n".encode(), auth(SECRET)) as wire:
        assert (wire.answer()[:1], wire.answer()) == (b"{", b"OK")
        assert wire.answer() == b"E_INVALID cannot AUTH in current state"
        assert wire.ends()


def test_publishing_and_subscribing_wait_for_auth(cluster: DevCluster) -> None:
    assert refusal(cluster, None, sized("PUB orders")) == b"E_AUTH_FIRST AUTH required before PUB"
    assert refusal(cluster, None, b"SUB orders ch\n") == b"E_AUTH_FIRST AUTH required before SUB"


@pytest.mark.parametrize(
    ("secret", "command", "refused"),
    [
        ("narrow sesame", sized("PUB refunds"), b'PUB on "refunds" ""'),
        ("narrow sesame", b"SUB orders other\n", b'SUB on "orders" "other"'),
        ("narrow sesame", b"SUB refunds mine\n", b'SUB on "refunds" "mine"'),
        ("sesame for mine", sized("PUB orders"), b'PUB on "orders" ""'),  # no channel matches the empty text
    ],
)
def test_what_is_not_allowed_is_refused(cluster: DevCluster, secret: str, command: bytes, refused: bytes) -> None:
    assert refusal(cluster, secret, command) == b"E_UNAUTHORIZED AUTH failed for " + refused


def test_what_is_allowed_works(cluster: DevCluster) -> None:
    with dial(cluster, auth("narrow sesame"), sized("PUB orders"), b"SUB orders mine\n") as wire:
        assert (wire.answer()[:1], wire.answer(), wire.answer()) == (b"{", b"OK", b"OK")


def test_the_kinds_call_publishes_and_topics_differently(cluster: DevCluster, is_plain: bool) -> None:
    batch = struct.pack(">ii", 1, 1) + b"x"
    refused = refusal(cluster, "narrow sesame", sized("MPUB refunds", batch))
    word = "MPUB" if is_plain else "PUB"
    assert refused == f'E_UNAUTHORIZED AUTH failed for {word} on "refunds" ""'.encode()
    if is_plain:
        assert refusal(cluster, "narrow sesame", sized("DPUB refunds 5")).startswith(
            b"E_UNAUTHORIZED AUTH failed for D"
        )
        # Nothing is made for who may not use it.
        assert refusal(cluster, "narrow sesame", b"SUB not_there mine\n").startswith(b"E_UNAUTHORIZED")
        assert "not_there" not in web.get(f"{cluster.lookupd[0]}/topics").text
        return
    # A publish learns first that the topic is not there, a subscription that it is not allowed.
    assert refusal(cluster, "narrow sesame", sized("PUB not_there 0")) == b"E_TOPIC_NOT_EXIST "
    assert refusal(cluster, "narrow sesame", b"SUB not_there mine 0\n").startswith(b"E_UNAUTHORIZED")


def test_stats_name_the_client(cluster: DevCluster) -> None:
    channel = next(_channels)
    with dial(cluster, auth(SECRET), f"SUB orders {channel}\n".encode()) as wire:
        assert (wire.answer()[:1], wire.answer()) == (b"{", b"OK")
        stats = web.get(
            cluster.http_address("nsqd-0") + "/stats",
            params={"format": "json", "topic": "orders"},
            headers={"Accept": "application/vnd.nsq; version=1.0"},
        )
        [found] = [each for each in stats.json()["topics"][0]["channels"] if each["channel_name"] == channel]
        [client] = found["clients"]
    assert (client["authed"], client["auth_identity"]) == (True, "orders-service")
    assert client["auth_identity_url"] == "https://auth.example/?a=<7>&b"
    assert "sesame" not in stats.text


# ------------------------------------------------------------ time


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_permissions_hold_for_their_ttl() -> None:
    clock, table = Clock(), {b"s": AuthGrant(ttl=10.0)}
    credentials = Credentials(table, clock, capital=True)
    assert credentials.authenticate(b"s") is None
    narrow = AuthGrant(authorizations=(AuthRule(topic="^other$"),), ttl=5.0)
    table[b"s"] = narrow
    clock.now += 9.9
    assert credentials.refusal("PUB", "orders") is None
    clock.now += 0.1  # now the table is asked again
    assert credentials.refusal("PUB", "orders") == b'E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'
    assert credentials.refusal("SUB", "other", "ch") is None
    del table[b"s"]
    clock.now += 4.9
    assert credentials.refusal("SUB", "other", "ch") is None
    clock.now += 0.2
    assert credentials.refusal("SUB", "other", "ch") == b"E_AUTH_FAILED AUTH failed"
    table[b"s"] = AuthGrant(authorizations=())
    assert credentials.refusal("SUB", "other", "ch") == b'E_UNAUTHORIZED AUTH failed for SUB on "other" "ch"'
    assert credentials.refusal("SUB", "other", "ch") == b"E_AUTH_FIRST AUTH required before SUB"


# ------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topic": "("}, r"^the regular expression '\(' of an AuthRule is refused: "),
        ({"channels": ("a", "*")}, r"^the regular expression '\*' of an AuthRule is refused: "),
        ({"permissions": ("delete",)}, "^unknown permission 'delete': use 'publish' or 'subscribe'$"),
    ],
)
def test_wrong_rules_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        AuthRule(**fields)


def test_wrong_grants_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^ttl must be above 0 seconds, not 0"):
        AuthGrant(ttl=0.0)
    with pytest.raises(ValueError, match=r"^a secret of AUTH must not be empty"):
        DevCluster(auth={"": AuthGrant()})
    with DevCluster(plain=True, nsqds=1, nsqlookupds=1) as made, pytest.raises(ValueError, match=r"has no AUTH"):
        made.set_auth("s", AuthGrant())
