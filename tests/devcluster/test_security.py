"""TLS that is required or that fails, what stands before it, and whom the HTTP answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import Probe, until
from tests.devcluster.wire import Closed, Wire, connect, identify, pub
from tests.support import web
from tests.support.certificates import server_context

DEADLINE = 0.6
LONGER = (4 * DEADLINE, 16 * DEADLINE)


@contextmanager
def cluster_with(
    *, tls_required: bool = False, tls_write_deadline: float | None = None, allowed_hosts: tuple[str, ...] = ()
) -> Iterator[Probe]:
    with DevCluster(
        nsqds=1,
        nsqlookupds=1,
        time_scale=0.02,
        tls=server_context(),
        tls_required=tls_required,
        tls_write_deadline=tls_write_deadline,
        allowed_hosts=allowed_hosts,
    ) as cluster:
        cluster.create_topic("orders", 1, 1, sync_every=0)
        seen = Probe(cluster, "orders")
        try:
            yield seen
        finally:
            seen.http.close()


def secured(seen: Probe, *commands: bytes) -> Wire:
    wire = connect(seen.cluster.nsqds["nsqd-0"], identify(tls_v1=True))
    try:
        assert b'"tls_v1":true' in wire.answer()
        wire.secure()
        wire.send(b"".join(commands))
        assert wire.answer() == b"OK"
    except BaseException:
        wire.close()
        raise
    return wire


def with_time_before(check: Callable[[float], None]) -> None:
    """Check with a short deadline, and with longer ones if it passed too early, on a busy machine."""
    for deadline in (DEADLINE, *LONGER[:-1]):
        with suppress(Closed, TimeoutError):
            check(deadline)
            return
    check(LONGER[-1])


def held(seen: Probe) -> int:
    """Messages in flight on the one channel."""
    answered = seen.http.get(
        seen.cluster.http_address("nsqd-0") + "/stats", params={"format": "json", "topic": "orders"}
    )
    (channel,) = answered.json()["topics"][0]["channels"]
    count: int = channel["in_flight_count"]
    return count


# ------------------------------------------------------------ writes that fail


def test_after_the_deadline_messages_are_lost_and_the_connection_stays() -> None:
    with_time_before(messages_are_lost)


def messages_are_lost(deadline: float) -> None:
    with cluster_with(tls_write_deadline=deadline) as seen:
        with secured(seen, b"SUB orders billing 0\nRDY 5\n") as wire:
            assert wire.answer() == b"OK"
            assert seen.publish("nsqd-0", b"early") == b"OK"
            assert wire.message().endswith(b"early")
            assert wire.is_quiet(deadline)
            assert seen.publish("nsqd-0", b"lost") == b"OK"
            until(lambda: held(seen) == 2)
            assert wire.is_quiet(0.2)  # longer than nsqd gathers messages before it writes them
            # nsqd noticed: it takes nothing more for this client, but keeps what it believes delivered.
            assert seen.publish("nsqd-0", b"kept back") == b"OK"
            assert wire.is_quiet(0.1)
            assert held(seen) == 2
            wire.send(b"RDY 10\n")
            assert wire.is_quiet(0.1)
            assert held(seen) == 2
        until(lambda: held(seen) == 0)


def test_after_the_deadline_a_publish_is_stored_and_ends_without_an_answer() -> None:
    with_time_before(a_publish_ends_without_an_answer)


def a_publish_ends_without_an_answer(deadline: float) -> None:
    with cluster_with(tls_write_deadline=deadline) as seen, secured(seen, pub("orders", b"early")) as wire:
        assert wire.answer() == b"OK"
        assert wire.is_quiet(deadline)
        wire.send(pub("orders", b"unanswered"))
        assert wire.ends()
        assert seen.stored() == [b"early", b"unanswered"]


# ------------------------------------------------------------ before and inside


def test_commands_right_behind_the_handshake_are_done() -> None:
    with cluster_with() as seen, secured(seen, pub("orders", b"at once")) as wire:
        assert wire.answer() == b"OK"


def test_required_tls_refuses_all_but_identify() -> None:
    with cluster_with(tls_required=True) as seen:
        address = seen.cluster.nsqds["nsqd-0"]
        for command, word in ((pub("orders", b"x"), "PUB"), (b"SUB orders billing 0\n", "SUB"), (b"NO\n", "NO")):
            with connect(address, command) as wire:
                assert wire.answer() == f"E_INVALID cannot {word} in current state (TLS required)".encode()
                assert wire.ends()
        with connect(address, identify(), b"NOP\n") as wire:
            assert wire.answer().startswith(b"{")
            assert wire.answer() == b"E_INVALID cannot NOP in current state (TLS required)"
        with Wire(address, b"HTTP") as wire:
            assert wire.answer() == b"E_BAD_PROTOCOL"
        with secured(seen, pub("orders", b"x")) as wire:
            assert wire.answer() == b"OK"
        answer = seen.http.get(seen.cluster.http_address("nsqd-0") + "/ping")
        assert (answer.status_code, answer.text) == (403, '{"message": "TLS_REQUIRED"}')
        assert seen.lookup("w") == {0: "nsqd-0"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tls_required": True}, "tls_required=True needs tls="), ({"tls_write_deadline": 0.0}, "must be above 0")],
)
def test_options_that_make_no_sense(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DevCluster(**options)  # type: ignore[arg-type]  # one of each kind


# ------------------------------------------------------------ HTTP


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[Probe]:
    with cluster_with(allowed_hosts=("build-7",)) as seen:
        yield seen


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4151", "127.0.0.1.evil.example", "[bad"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_for_a_foreign_host_is_refused(open_cluster: Probe, host: str, method: str) -> None:
    cluster = open_cluster.cluster
    for url in (cluster.http_address("nsqd-0") + "/ping", cluster.lookupd[0] + "/ping"):
        assert open_cluster.http.request(method, url, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:4151", "build-7:80"])
def test_names_of_the_loopback_are_allowed(open_cluster: Probe, host: str) -> None:
    url = open_cluster.cluster.http_address("nsqd-0") + "/ping"
    assert open_cluster.http.get(url, headers={"Host": host}).text == "OK"


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://evil.example", 403), ("null", 403), ("http://[", 403), ("http://localhost:3000", 200)],
)
def test_a_page_of_another_site_changes_nothing(open_cluster: Probe, origin: str, status: int) -> None:
    url = open_cluster.cluster.http_address("nsqd-0") + "/pub"
    where: dict[str, str | int] = {"topic": "orders", "partition": 0}
    answer = open_cluster.http.post(url, params=where, content=b"x", headers={"Origin": origin})
    assert answer.status_code == status
    assert open_cluster.http.get(url.replace("/pub", "/ping"), headers={"Origin": origin}).status_code == 200


def test_all_hosts_can_be_allowed() -> None:
    with cluster_with(allowed_hosts=("*",)) as seen:
        url = seen.cluster.http_address("nsqd-0") + "/ping"
        assert web.get(url, headers={"Host": "evil.example"}).text == "OK"
