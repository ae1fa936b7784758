"""TLS records that hold no data, of which a peer may send as many as it likes."""

import asyncio
from typing import Final

import pytest

from nsq_ha import ClientConfig, TlsConfig
from nsq_ha.engine import tls_records
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.engine.tls_records import TlsRecords
from nsq_ha.errors import NsqError, RemoteProtocolError
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import FakeNsqd, message_id
from tests.support.recorder import subscribed

MOST: Final = 64 * 1024


class Tls(asyncio.BufferedProtocol):
    """Decrypts whatever it gets to ``holds`` bytes."""

    def __init__(self, stream: TcpStream) -> None:
        self.stream = stream
        self.holds = 0
        self.updated = 0

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(256 * 1024)

    def buffer_updated(self, nbytes: int) -> None:
        self.updated += nbytes
        if self.holds:
            self.stream.buffer_updated(self.holds)


class Aborts(TcpStream):
    """Knows why it was aborted."""

    reason: NsqError | None = None
    held = False

    @property
    def is_held(self) -> bool:
        return self.held

    def abort(self, reason: NsqError | None = None) -> None:
        self.reason = self.reason or reason


@pytest.fixture
async def stream() -> Aborts:
    return Aborts(lambda _: None, lambda _: None)


async def test_little_is_decrypted_in_one_turn(stream: Aborts) -> None:
    assert len(TlsRecords(Tls(stream), stream).get_buffer(-1)) == tls_records.READ_BYTES < MOST


async def test_records_without_data_end_the_connection(stream: Aborts) -> None:
    records = TlsRecords(tls := Tls(stream), stream)
    records.buffer_updated(MOST)
    assert stream.reason is None
    records.buffer_updated(1)
    assert isinstance(stream.reason, RemoteProtocolError)
    assert "TLS records that hold no data" in str(stream.reason)
    assert tls.updated == MOST + 1


@pytest.mark.parametrize(("size", "holds", "is_fine"), [(32, 10, True), (90, 10, True), (32, 2, True), (32, 1, False)])
async def test_the_smallest_frames_pay_for_their_records(
    stream: Aborts, size: int, holds: int, *, is_fine: bool
) -> None:
    """A block cipher of TLS 1.2 takes 90 bytes for a frame of 10."""
    records = TlsRecords(tls := Tls(stream), stream)
    tls.holds = holds
    for _ in range(MOST):
        records.buffer_updated(size)
    assert (stream.reason is None) == is_fine


async def test_data_pays_for_no_more_than_at_the_beginning(stream: Aborts) -> None:
    records = TlsRecords(tls := Tls(stream), stream)
    tls.holds = 200_000
    records.buffer_updated(210_000)
    tls.holds = 0
    records.buffer_updated(MOST)
    assert stream.reason is None
    records.buffer_updated(1)
    assert stream.reason is not None


async def test_what_is_decrypted_later_is_not_counted(stream: Aborts) -> None:
    records = TlsRecords(Tls(stream), stream)
    stream.held = True
    records.buffer_updated(10 * MOST)
    assert stream.reason is None


async def test_a_real_connection_reads_through_it(nsqd: FakeNsqd) -> None:
    nsqd.tls = server_context()
    async with subscribed(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE))) as link:
        raw = link.connection._stream
        assert raw is not None
        for number in range(2, 300):
            link.peer.message(b"x" * 10_000, message_id(number))
        await link.recorder.until(lambda: len(link.recorder.messages) == 298)
        assert raw.read_bytes > 298 * 10_000
