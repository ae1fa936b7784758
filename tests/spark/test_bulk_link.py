"""The connection to the port for copying, with a scripted server."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from nsq_ha.devcluster.nsqd.pulls import AnswerWriter, CallReader, StoredEntry
from nsq_ha.errors import ConnectionLostError, NsqError, RemoteProtocolError
from nsq_ha.policy.topology import Node
from nsq_ha.spark.pull.calls import Pull, Pulled
from nsq_ha.spark.pull.gob import encode_uint
from nsq_ha.spark.read.bulk.reader import LARGEST, BulkLink, copy_port
from tests.support.spark_rows import entries

PULL = Pull("flights", 0, 0, 1)
ENTRY = StoredEntry(2, 2, 0, 0, 1, bytes(70_000))


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Serve one connection; what ``serve`` raises fails the test."""
    problems: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def run() -> None:
            try:
                with listening.accept()[0] as connection:
                    connection.settimeout(10)
                    serve(connection)
            except BaseException as error:  # noqa: BLE001 - raised again below
                problems.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            thread.join()
    assert not problems


def node(port: int) -> Node:
    return Node("127.0.0.1", 4150, 4151, f"127.0.0.1:{port}:4150:7")


def calls(connection: socket.socket, count: int) -> list[Pull | None]:
    reader = CallReader()
    found: list[Pull | None] = []
    while len(found) < count:
        found += [call.pull for call in reader.feed(connection.recv(65536))]
    return found


def linked(address: tuple[str, int]) -> BulkLink:
    return BulkLink(node(address[1]), address)


@contextmanager
def opened(address: tuple[str, int]) -> Iterator[BulkLink]:
    with closing(linked(address)) as link:
        link.connect()
        yield link


@pytest.mark.parametrize("size", [7, 1000, 10**6])
def test_requests_go_out_and_answers_come_in_pieces_of_any_size(size: int) -> None:
    asked: list[Pull | None] = []

    def serve(connection: socket.socket) -> None:
        writer = AnswerWriter()
        asked.extend(calls(connection, 3))
        stream = writer.answer(1, [ENTRY]) + writer.refuse(2, "no") + writer.answer(3, [])
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        for part in [*parts[:200], b"".join(parts[200:])]:
            connection.sendall(part)

    with server(serve) as address, opened(address) as link:
        for number in range(3):
            link.ask(Pull("flights", 0, number, 1))
        first = link.answer(10)
        assert isinstance(first, Pulled)
        assert [len(data) for _, data in entries(first)] == [70_000]
        assert link.answer(10) == "no"
        assert isinstance(link.answer(10), Pulled)
        assert link.answered == 3
    assert asked == [Pull("flights", 0, number, 1) for number in range(3)]


@pytest.mark.parametrize(
    ("stream", "error", "problem"),
    [
        (b"", ConnectionLostError, "closed the connection"),
        (b"\xfe", ConnectionLostError, "closed the connection"),
        (b"\x05ab", ConnectionLostError, "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n" * 20, RemoteProtocolError, "the gob data has"),
        (encode_uint(LARGEST + 1), RemoteProtocolError, f"a message of {LARGEST + 1} bytes"),
        (b"\x80" + bytes(200), RemoteProtocolError, "a number of 128 bytes"),
        (AnswerWriter().refuse(2, "no"), RemoteProtocolError, "answer 2 instead of 1"),
    ],
)
def test_what_is_no_answer_ends_the_connection(stream: bytes, error: type[NsqError], problem: str) -> None:
    def serve(connection: socket.socket) -> None:
        calls(connection, 1)
        connection.sendall(stream)

    with server(serve) as address, opened(address) as link:
        link.ask(PULL)
        with pytest.raises(error, match=problem):
            link.answer(10)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("10.0.0.1:4250:4150:7", ("10.0.0.1", 4250)),
        ("fe80::1:4250:4150:7", ("fe80::1", 4250)),
        ("", None),
        ("10.0.0.1:4250:4150", None),
        ("10.0.0.1:x:4150:7", None),
        ("10.0.0.1:0:4150:7", None),
        ("10.0.0.1:65536:4150:7", None),
        ("10.0.0.1:99999999999999999999:4150:7", None),
    ],
)
def test_the_port_is_the_second_part_of_the_name(name: str, address: tuple[str, int] | None) -> None:
    assert copy_port(Node("10.0.0.1", 4150, 4151, name)) == address
