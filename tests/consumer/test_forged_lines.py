"""Whatever text a server sends, and wherever it stands: no log line and no error holds a control character."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from nsq_ha import NsqError
from nsq_ha.protocol import Command, Identity, Layout, Ready
from nsq_ha.protocol.commands import Auth, Identify
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_identity
from tests.engine.lookups.loopback import Fake, list_body, lookup_body
from tests.support.nsqd import Peer, Publish, Script, Subscribe, error, instead, message_data, message_id, response
from tests.support.stage import TOPIC, Stage

FORGED: Final = "ERROR forged"
HOSTILE: Final = f"x\n\x1b[2J\u202e{FORGED}\r\x9b\0"
REFUSALS: Final = (
    {"message": HOSTILE},
    {"message": f"E_FAILED_ON_NOT_LEADER {HOSTILE}"},
    {"status_code": 500, "status_txt": HOSTILE, "data": None},
    HOSTILE,
)
LIMITS: Final[dict[str, Any]] = {"connect_timeout": 0.3, "lookup_timeout": 0.3}


def forged(answer: Any) -> Iterator[Any]:  # noqa: ANN401 - any JSON value
    """Yield copies of an answer, in each of which one value or name is hostile."""
    for key in answer if isinstance(answer, dict) else range(len(answer)):
        wanted = [HOSTILE, *(forged(answer[key]) if isinstance(answer[key], dict | list) else ())]
        for value in wanted:
            changed = answer.copy()
            changed[key] = value
            yield changed
        if isinstance(answer, dict):
            yield {HOSTILE if name == key else name: value for name, value in answer.items()}


class Said(logging.Handler):
    """What the library logs and raises.

    Attributes:
        lines: One for each line of the log, each error, and each error of a traceback.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        self.lines.append(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            self.took(record.exc_info[1])

    def took(self, caught: BaseException) -> None:
        """Take an error and its causes."""
        at: BaseException | None = caught
        while at is not None:
            self.lines.append(str(at))
            at = at.__cause__

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Take the error that ends the block."""
        try:
            yield
        except NsqError as caught:
            self.took(caught)

    def check(self) -> int:
        """Check all; return how many of them quote what is hostile."""
        assert [line for line in self.lines if not line.isprintable()] == []
        return sum(FORGED in line for line in self.lines)


@pytest.fixture
def said() -> Iterator[Said]:
    said = Said()
    logging.getLogger("nsq_ha").addHandler(said)
    yield said
    logging.getLogger("nsq_ha").removeHandler(said)


async def use(stage: Stage, said: Said, **options: Any) -> None:  # noqa: ANN401 - options of both clients
    """Publish to both partitions, consume a moment, and read what comes."""
    async with stage.producer(publish_timeout=0.5, **LIMITS, **options) as producer:
        for partition in range(2):
            with said.errors():
                await producer.publish(TOPIC, b"x", partition=partition, trace_id=7)
    with said.errors():
        async with stage.consumer(start_timeout=0.5, close_timeout=0.5, **LIMITS, **options) as consumer:
            with contextlib.suppress(TimeoutError):
                message = await asyncio.wait_for(anext(consumer), 0.5)
                said.lines.append(repr(message))
                with said.errors():
                    assert message.headers
                with said.errors():
                    message.json(int)


@pytest.fixture
async def nsqds_http(stage: Stage) -> AsyncIterator[Fake]:
    http = await Fake().start()
    yield http
    await http.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ["/lookup", "/listlookup", "/channels", "/stats", "/channel/create"])
async def test_answers_of_http(stage: Stage, nsqds_http: Fake, said: Said, path: str) -> None:
    lookup: Any = lookup_body(dict.fromkeys(range(2), stage.nsqd.port)) | {"channels": ["billing"]}
    for nsqd in lookup["partitions"].values():
        nsqd["http_port"] = nsqds_http.port
    old = {"topic_name": TOPIC, "topic_partition": "0", "message_count": 5, "is_leader": True}
    answers: dict[str, tuple[Fake, Any]] = {
        "/lookup": (stage.lookupd, lookup),
        "/listlookup": (stage.lookupd, list_body(stage.lookupd.url, stage.lookupd.url)),
        "/channels": (stage.lookupd, {"channels": ["other"]}),
        "/stats": (
            nsqds_http,
            {
                "topics": [
                    old | {"channels": [{"channel_name": "billing"}]},
                    old | {"topic_partition": "1", "message_count": 0},
                ]
            },
        ),
        "/channel/create": (nsqds_http, {"message": "OK"}),
    }
    for name, (fake, answer) in answers.items():
        fake.answer(name, answer)
    fake, sound = answers[path]
    variants = [(variant, 200) for variant in forged(sound)]
    variants += [(refusal, status) for refusal in REFUSALS for status in (400, 500)]
    for variant, status in variants:
        fake.answer(path, variant, status)
        await use(stage, said)
    quoted = said.check()
    assert quoted or path == "/channels", "its names are compared only, and its refusals lead to another question"


def odd_message(peer: Peer, command: Command) -> bool:
    if isinstance(command, Ready) and command.count:
        ext = b'{"\\n\\u001b": "x", "a'
        peer.message(b"\n\x1b[2J", message_id(2), layout=Layout.EXT_DETAIL, ext=ext)
    return False


TEXT: Final = HOSTILE.encode()
FRAMES: Final[dict[str, Script]] = {
    "an error to IDENTIFY": instead(Identify, error(HOSTILE)),
    "an answer to IDENTIFY": instead(Identify, response(TEXT)),
    "a version": instead(Identify, response(encode_identity(Identity(version=HOSTILE, desired_tag=HOSTILE)))),
    "an error to AUTH": instead(Auth, error(f"E_AUTH_FAILED {HOSTILE}")),
    "an answer to AUTH": instead(Auth, response(TEXT)),
    "a code": instead(Publish, error(HOSTILE)),
    "a detail": instead(Publish, error(f"E_FAILED_ON_NOT_WRITABLE {HOSTILE}")),
    "a final refusal": instead(Publish, error(f"E_BAD_MESSAGE {HOSTILE}")),
    "an answer": instead(Publish, response(TEXT)),
    "an unknown type": instead(Publish, encode_frame(7, TEXT)),  # type: ignore[arg-type]
    "a refused subscription": instead(Subscribe, error(f"E_SUB_ORDER_IS_MUST {HOSTILE}")),
    "a failed subscription": instead(Subscribe, error(f"E_FAILED_ON_NOT_LEADER {HOSTILE}")),
    "an answer to a subscription": instead(Subscribe, response(TEXT)),
    "a message for a publisher": instead(Publish, encode_frame(FrameType.MESSAGE, message_data(TEXT))),
    "another server": lambda peer, _: peer.write(b"HTTP/1.1 400 " + TEXT),
}


@pytest.mark.parametrize("frame", FRAMES)
async def test_frames(stage: Stage, said: Said, frame: str) -> None:
    stage.lead(dict.fromkeys(range(2), stage.nsqd))
    stage.nsqd.script = FRAMES[frame]
    stage.nsqd.identity = Identity(auth_required="AUTH" in frame)
    await use(stage, said, auth_secret="not-a-word-of-these")
    said.check()


async def test_headers_and_bodies(stage: Stage, said: Said) -> None:
    stage.lead(dict.fromkeys(range(2), stage.nsqd), extended=True)
    stage.nsqd.script = odd_message
    await use(stage, said)
    said.check()
    assert any("is not JSON" in line for line in said.lines)


def test_what_is_forged_is_noticed(said: Said) -> None:
    logging.getLogger("nsq_ha.consumer").warning("all is well: %s", HOSTILE)
    with pytest.raises(AssertionError):
        said.check()
