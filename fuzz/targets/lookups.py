"""What nsqlookupd and nsqd answer over HTTP."""

from collections.abc import Callable, Iterator
from typing import Final

from fuzz import seeds
from fuzz.target import Target
from nsq_ha.admin.description import Stats
from nsq_ha.engine import answers
from nsq_ha.engine.body import Body, decode_json, unwrap
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.options.checks import MAX_PARTITION_ID, is_port, is_valid_name
from nsq_ha.policy.topology import LookupAnswer, Node

_STATUS: Final = (200, 404, 500, 403, 400)


def _node(node: Node) -> None:
    assert is_port(node.tcp_port)
    assert node.http_port == 0 or is_port(node.http_port)
    assert answers.is_host(node.host)


def _lookup(body: Body) -> None:
    answer: LookupAnswer = answers.decode_lookup(body, "http://127.0.0.1:4161")
    for partition, node in answer.partitions.items():
        assert 0 <= partition <= MAX_PARTITION_ID
        _node(node)
    for node in answer.nodes or ():
        _node(node)
    assert answer.meta is None or 1 <= answer.meta.partition_num <= MAX_PARTITION_ID + 1
    assert all(map(is_valid_name, answer.channels))
    assert len(answer.note) < 1000


def _listed(body: Body) -> None:
    assert all(url.startswith("https://") for url in answers.decode_lookupd_list(body, "https").nodes)


def _nodes(body: Body) -> None:
    for info in answers.decode_nodes(body):
        _node(info.node)
        assert all(map(is_valid_name, (*info.topics, *info.partitions)))
        assert all(0 <= each <= MAX_PARTITION_ID for numbers in info.partitions.values() for each in numbers)


def _topics(body: Body) -> None:
    assert all(is_valid_name(topic.name) for topic in answers.decode_topics(body))


def _channels(body: Body) -> None:
    assert all(map(is_valid_name, answers.decode_channels(body)))


def _stats(body: Body) -> None:
    decode_json(body.data, Stats)


_READERS: Final[tuple[Callable[[Body], None], ...]] = (_lookup, _listed, _nodes, _topics, _channels, _stats)


def run_lookups(data: bytes) -> None:
    """An answer of each kind; what is read is valid, and the text of an error is short and printable."""
    how, content = data[:1].ljust(1, b"\0")[0], data[1:]
    body = unwrap(_STATUS[how % len(_STATUS)], content)
    assert body.message.isprintable()
    assert len(body.message) <= 130
    for read in _READERS:
        try:
            read(body)
        except RemoteProtocolError as error:
            assert len(str(error)) < 1000


def seeds_of_lookups() -> Iterator[bytes]:
    """Yield the recorded answers."""
    for status, _, body in seeds.http_answers():
        if len(body) <= 4000:
            yield bytes((_STATUS.index(status) if status in _STATUS else 4,)) + body
            if b'"1":' in body:
                yield b"\0" + body.replace(b'"1":', b'"1024":').replace(b"4150", b"65536")
    for special in (b"{", b"null", b"[" * 3000, b'{"a":' + b"[" * 3000, b'"\xff"', b'{"status_code":1e9}'):
        yield b"\0" + special


TARGETS: Final = (Target("lookups", "answers of nsqlookupd, and of nsqd's HTTP", run_lookups, seeds_of_lookups),)
