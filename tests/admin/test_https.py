"""Calls at nsqds that refuse plain HTTP, as with -tls-required: they go to its HTTPS."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from nsq_ha import TlsConfig
from nsq_ha.admin import AdminClient
from nsq_ha.errors import ConfigError, TlsRequiredError
from tests.admin.conftest import quicken
from tests.admin.scripted import Plain, Scripted, part
from tests.engine.lookups.loopback import Fake
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import LIMIT
from tests.support.ports import fixed_ports
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_time

TLS = TlsConfig(ca_file=CA_FILE)
CHANNEL = {"topics": [part(0, "billing")]}


@pytest.fixture
async def nsqd() -> AsyncIterator[tuple[Fake, Fake]]:
    """Return the two HTTP servers of one nsqd: the first refuses, the second answers, at the next port."""
    refusing, answering = Fake(), Fake(server_context())
    refusing.port = fixed_ports(2)
    answering.port = refusing.port + 1
    for fake in (refusing, answering):
        await fake.start()
    for path in ("/stats", "/channel/create", "/channel/pause", "/coordinator/stats"):
        refusing.answer(path, {"message": "TLS_REQUIRED"}, 403)
        answering.answer(path, b"")
    answering.answer("/stats", CHANNEL)
    answering.answer("/coordinator/stats", {})
    yield refusing, answering
    for fake in (refusing, answering):
        await fake.stop()


@pytest.fixture
async def cluster(
    nsqd: tuple[Fake, Fake], serve: Callable[[], Awaitable[Fake]], monkeypatch: pytest.MonkeyPatch
) -> Scripted:
    quicken(monkeypatch)
    scripted = Scripted(await serve(), await serve(), nsqd[0])
    scripted.lookups(scripted.body(4150))
    scripted.has_channels("billing")
    return scripted


async def test_calls_go_to_https_where_nsqd_refuses_plain_http(cluster: Scripted, nsqd: tuple[Fake, Fake]) -> None:
    refusing, answering = nsqd
    async with AdminClient(cluster.follower.url, tls=TLS) as admin:
        described = await admin.describe("orders")
        await admin.create_channel("orders", "billing")
        (found,) = (await admin.stats("orders")).nodes
    assert (described.channels, described.partitions[0].error) == (("billing",), "")
    assert found.partitions[0].channels[0].name == "billing"
    assert answering.queries("/channel/create") == [{"topic": "orders", "channel": "billing", "partition": "0"}]
    assert len(refusing.requests) <= 2  # describe() asks twice at once; later calls know it


async def test_a_plain_nsqd_says_at_which_port(serve: Callable[[], Awaitable[Fake]], nsqd: tuple[Fake, Fake]) -> None:
    refusing, (_, answering) = await serve(), nsqd
    cluster = Plain([await serve()], [refusing])
    cluster.lookupds[0].answer("/lookup", {"channels": ["billing"], "producers": [cluster.peer(refusing)]})
    refusing.answer("/stats", {"message": "TLS_REQUIRED", "https_port": answering.port}, 403)
    answering.answer("/stats", {"topics": [part(None, "billing")]})
    async with AdminClient(cluster.lookupds[0].url, tls=TLS) as admin:
        assert (await admin.describe("orders")).channels == ("billing",)


@asynccontextmanager
async def refused(cluster: Scripted, text: str, **options: TlsConfig | float) -> AsyncIterator[AdminClient]:
    """Want that the calls say this, whether they raise or not."""
    async with AdminClient(cluster.follower.url, **options) as admin:  # type: ignore[arg-type]
        with pytest.raises(TlsRequiredError, match=text):
            await admin.create_channel("orders", "billing")
        (partition,) = (await admin.describe("orders")).partitions
        assert partition.stats is None
        with pytest.raises(TlsRequiredError, match=text):
            raise TlsRequiredError("", partition.error)
        yield admin


async def test_an_nsqd_without_https_says_what_to_set(cluster: Scripted, nsqd: tuple[Fake, Fake]) -> None:
    await nsqd[1].stop()
    text = (
        rf"^nsqd {nsqd[0].url} refuses plain HTTP because it runs with -tls-required, and its HTTPS cannot be used:"
        rf" {nsqd[1].url}: cannot connect: Connection refused\. Give tls= with what this nsqd's HTTPS needs, let it"
        r" listen there \(-https-address\), or let it accept plain HTTP \(-tls-required=tcp-https\)"
    )
    async with refused(cluster, text, tls=TLS):
        pass


async def test_a_certificate_that_is_not_trusted_says_what_to_set(cluster: Scripted) -> None:
    async with refused(cluster, r"for a certificate of your own, give tls=TlsConfig\(ca_file=\.\.\.\)"):
        pass


async def test_plain_http_is_asked_again_when_https_is_gone(cluster: Scripted, nsqd: tuple[Fake, Fake]) -> None:
    """nsqd was started again without -tls-required."""
    refusing, answering = nsqd
    async with AdminClient(cluster.follower.url, tls=TLS) as admin:
        assert (await admin.describe("orders")).channels == ("billing",)
        await answering.stop()
        assert "cannot connect" in (await admin.describe("orders")).partitions[0].error
        refusing.answer("/stats", CHANNEL)
        assert (await admin.describe("orders")).channels == ("billing",)
    with pytest.raises(ConfigError, match="tls must be a TlsConfig"):
        AdminClient(cluster.follower.url, tls="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"tls: ca_file 'missing\.pem' cannot be used"):
        AdminClient(cluster.follower.url, tls=TlsConfig(ca_file="missing.pem"))


async def test_https_that_worked_before_is_waited_for(cluster: Scripted, nsqd: tuple[Fake, Fake]) -> None:
    """nsqd is being restarted: that is no lack of HTTPS."""
    refusing, answering = nsqd
    async with AdminClient(cluster.follower.url, tls=TLS) as admin:
        await admin.describe("orders")
        for fake in nsqd:
            await fake.stop()
        calling = asyncio.create_task(admin.create_channel("orders", "billing", timeout=LIMIT))
        await eventually(lambda: cluster.follower.count("/lookup") > 3)
        for fake in (answering, refusing):
            await fake.start()
        await calling
    assert answering.count("/channel/create") == 1
