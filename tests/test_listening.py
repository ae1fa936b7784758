"""The servers that nsq_ha starts listen on the loopback only, unless another address is asked for."""

import asyncio
import socket
import sys
from urllib.parse import urlsplit

import pytest

from nsq_ha import prometheus
from nsq_ha.admin import AdminClient
from nsq_ha.dashboard import DashboardOptions, serve
from nsq_ha.devcluster import DevCluster
from tests.support.nsqd import LIMIT

ELSEWHERE = "127.0.0.2"
"""Another address of a machine with Linux: what listens on all addresses accepts it."""


def listens_here_only(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), LIMIT):
        pass
    try:
        with socket.create_connection((ELSEWHERE, port), LIMIT):
            return False
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of the machine")
def test_what_listens_everywhere_is_noticed() -> None:
    with socket.create_server(("", 0)) as server:
        assert not listens_here_only(server.getsockname()[1])


@pytest.mark.parametrize("is_plain", [False, True])
def test_the_embedded_cluster(is_plain: bool) -> None:
    with DevCluster(nsqlookupds=1, nsqds=1, plain=is_plain) as cluster:
        urls = [*cluster.lookupd, cluster.http_address("nsqd-0"), *(f"//{each}" for each in cluster.nsqds.values())]
        ports = {urlsplit(url).port for url in urls}
        assert len(ports) == 3
        assert all(port and listens_here_only(port) for port in ports)


def test_the_metrics() -> None:
    with prometheus.serve(0) as server:
        assert listens_here_only(urlsplit(server.url).port or 0)


async def test_the_dashboard() -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with AdminClient("127.0.0.1:1") as admin:
        serving = asyncio.create_task(serve(admin, DashboardOptions(port=0), started=started.set_result))
        port = urlsplit(await asyncio.wait_for(started, LIMIT)).port
        assert await asyncio.to_thread(listens_here_only, port or 0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
