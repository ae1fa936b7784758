"""The limits of the nsqds, which the real ones take from flags."""

import json
import struct
from collections.abc import Callable, Iterator

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.wire import Wire, connect, identify, message_id
from tests.support import web

MSG, BODY = 3_000, 10_000


@pytest.fixture(params=[False, True], ids=["partitioned", "plain"])
def is_plain(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def cluster(is_plain: bool) -> Iterator[DevCluster]:
    with DevCluster(
        plain=is_plain,
        nsqds=1,
        nsqlookupds=1,
        time_scale=0.02,
        max_msg_size=MSG,
        max_body_size=BODY,
        max_msg_timeout=7200.0,
        max_req_timeout=1.5,
        max_heartbeat_interval=300.0,
        max_rdy_count=7,
    ) as cluster:
        cluster.create_topic("t", replicas=1)
        yield cluster


@pytest.fixture
def dial(cluster: DevCluster) -> Iterator[Callable[[bytes], Wire]]:
    opened: list[Wire] = []

    def open_one(start: bytes = b"") -> Wire:
        opened.append(connect(cluster.nsqds["nsqd-0"], start))
        return opened[-1]

    yield open_one
    for wire in opened:
        wire.close()


def sized(command: bytes, size: int) -> bytes:
    return command + struct.pack(">i", size) + bytes(size)


def batch(partition: bytes, *sizes: int) -> bytes:
    messages = b"".join(sized(b"", size) for size in sizes)
    return b"MPUB t" + partition + struct.pack(">ii", 4 + len(messages), len(sizes)) + messages


def test_messages_and_batches(dial: Callable[[bytes], Wire], is_plain: bool) -> None:
    partition = b"\n" if is_plain else b" 0\n"
    command = "PUB " if is_plain else ""
    wire = dial(sized(b"PUB t" + partition, MSG) + batch(partition, MSG, MSG, MSG))
    assert (wire.answer(), wire.answer()) == (b"OK", b"OK")
    wire.send(sized(b"PUB t" + partition, MSG + 1))
    assert wire.answer() == f"E_BAD_MESSAGE {command}message too big {MSG + 1} > {MSG}".encode()
    wire = dial(batch(partition, MSG, MSG + 1))
    assert wire.answer() == f"E_BAD_MESSAGE MPUB message too big {MSG + 1} > {MSG}".encode()
    wire = dial(batch(partition, MSG, MSG, MSG, MSG))
    total = 4 + 4 * (MSG + 4)
    assert wire.answer() == f"E_BAD_BODY {'MPUB ' if is_plain else ''}body too big {total} > {BODY}".encode()


def test_http_has_the_same_limits(cluster: DevCluster) -> None:
    url = cluster.http_address("nsqd-0")
    where = {"topic": "t", "partition": "0", "channel": "ch"}
    assert web.post(f"{url}/pub", params=where, content=b"x" * MSG).status_code == 200
    accept = {"accept": "application/vnd.nsq; version=1.0"}
    found = web.post(f"{url}/pub", params=where, content=b"x" * (MSG + 1), headers=accept)
    assert (found.status_code, found.json()["message"]) == (413, "MSG_TOO_BIG")
    found = web.post(f"{url}/mpub", params=where, content=b"x\n" * BODY, headers=accept)
    assert (found.status_code, found.json()["message"]) == (413, "BODY_TOO_BIG")
    counted = {**where, "binary": "true"}
    for size, answer in ((MSG, "OK"), (MSG + 1, '{"message":"BAD_MESSAGE"}')):
        content = struct.pack(">i", 1) + sized(b"", size)
        assert web.post(f"{url}/mpub", params=counted, content=content, headers=accept).text == answer


def test_times(dial: Callable[[bytes], Wire]) -> None:
    wire = dial(identify(feature_negotiation=True, msg_timeout=7_200_000, heartbeat_interval=300_000))
    agreed = json.loads(wire.answer())
    assert (agreed["msg_timeout"], agreed["max_msg_timeout"], agreed["max_rdy_count"]) == (7_200_000, 7_200_000, 7)
    wire = dial(identify(msg_timeout=7_200_001))
    assert wire.answer() == b"E_BAD_BODY IDENTIFY msg timeout (7200001) is invalid"
    wire = dial(identify(heartbeat_interval=300_001))
    assert wire.answer() == b"E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid"


def test_ready_counts(dial: Callable[[bytes], Wire]) -> None:
    wire = dial(b"SUB t ch\nRDY 7\nRDY 8\n")
    assert (wire.answer(), wire.answer()) == (b"OK", b"E_INVALID RDY count 8 out of range 0-7")


@pytest.mark.real_time
def test_a_requeue_is_shortened(dial: Callable[[bytes], Wire], is_plain: bool) -> None:
    partition = b"\n" if is_plain else b" 0\n"
    wire = dial(b"SUB t ch\nRDY 1\n")
    assert wire.answer() == b"OK"
    assert dial(sized(b"PUB t" + partition, 10)).answer() == b"OK"
    first = message_id(wire.message())
    wire.send(b"REQ " + first + b" 3600000\n")
    assert message_id(wire.message(limit=30.0)) == first


def test_a_deferred_message_is_refused(dial: Callable[[bytes], Wire], is_plain: bool) -> None:
    if is_plain:
        assert dial(sized(b"DPUB t 1500\n", 1)).answer() == b"OK"
        assert dial(sized(b"DPUB t 1501\n", 1)).answer() == b"E_INVALID DPUB timeout 1501 out of range 0-1500"


def test_a_limit_of_nothing_is_refused() -> None:
    for limit in ({"max_msg_size": 0}, {"max_req_timeout": -1.0}, {"max_msg_timeout": 0.0001}):
        with pytest.raises(ValueError, match=r"^a limit of the nsqds \(max_\.\.\.\) must be above 0$"):
            DevCluster(**limit)
