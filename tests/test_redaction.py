"""Secrets in texts of servers: every encoding, and every edge at which such a text enters an error or a log line."""

import asyncio
import base64
import dataclasses
import json
import logging
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import (
    ConfigError,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PublishError,
    TlsConfig,
    sync,
)
from nsq_ha.base import redaction, unexpected
from nsq_ha.devcluster.nsqd.pulls import AnswerWriter
from nsq_ha.engine.answers import decode_lookup
from nsq_ha.engine.body import Body
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.errors import (
    AuthError,
    ConnectionLostError,
    LookupUnavailableError,
    NsqError,
    PublishFailedError,
    RemoteProtocolError,
    ServerError,
    server_error,
)
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Command, Identity, SubAdvanced
from nsq_ha.protocol.commands import Auth, Identify
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.refusals import read_error
from nsq_ha.protocol.server.answers import encode_identity
from nsq_ha.spark.connection import BlockingConnection
from nsq_ha.spark.options import ConnectionOptions, ReadOptions
from nsq_ha.spark.pull.calls import Answers
from tests.engine.lookups.loopback import Fake
from tests.spark.test_pull import source
from tests.support.inside import forget_secrets
from tests.support.nsqd import LIMIT, FakeNsqd, Peer, Publish, Subscribe, error, message_data, response
from tests.support.recorder import Recorder
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

SECRET: Final = 'öpen "sesame"\t4711/x+y<&>'
DATA: Final = SECRET.encode()
FORMS: Final[dict[str, str]] = {
    "as it is": SECRET,
    "upper case": SECRET.upper(),
    "escaped": SECRET.encode("unicode_escape").decode(),
    "escaped bytes": repr(DATA)[2:-1],
    "JSON": json.dumps(SECRET)[1:-1],
    "JSON in UTF-8": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "JSON of Go": json.dumps(SECRET, ensure_ascii=False)[1:-1]
    .replace("<", r"\u003c")
    .replace(">", r"\u003e")
    .replace("&", r"\u0026"),
    "percent": quote(SECRET, safe=""),
    "base64": base64.b64encode(DATA).decode(),
    "base64 of URLs": base64.urlsafe_b64encode(DATA).decode(),
    "hexadecimal": DATA.hex(),
    "hexadecimal, upper case": DATA.hex().upper(),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def assert_hidden(*texts: object) -> None:
    """No text may show the secret in any form; of an error all that a log could show is looked at."""
    shown = [
        "".join(traceback.format_exception(each)) + repr(each) + repr(vars(each))
        if isinstance(each, BaseException)
        else str(each)
        for each in texts
    ]
    for text in shown:
        for name, form in FORMS.items():
            assert form.lower() not in text.lower(), f"{name}: {text}"
        assert "sesame" not in text.lower()
        assert redaction.REDACTED in text, f"the place where the secret was is not marked: {text}"


# ------------------------------------------------------------ the rule


def test_without_a_secret_nothing_changes() -> None:
    for nothing in (None, ""):
        redaction.conceal(nothing)
    assert redaction.redact(f"it is {SECRET}") == f"it is {SECRET}"
    assert redaction.excerpt(b"abc", 2) == "b'ab'"
    failed = ValueError(SECRET)
    assert redaction.harmless(failed) is failed


@pytest.mark.parametrize("secret", ["x", " ", "       ", "abc", " e "])
def test_what_is_too_short_to_be_a_secret_garbles_no_text(secret: str) -> None:
    redaction.conceal(secret)
    text = "publish to orders-3 not sent: xyz abc"
    assert (redaction.redact(text), redaction.excerpt(text.encode())) == (text, repr(text.encode()))


@every_form
def test_every_form_is_replaced(form: str) -> None:
    redaction.conceal(SECRET)
    assert redaction.redact(f"it is {form}!").strip("=") in {"it is ***!", "it is ***=!", "it is ***==!"}


def test_several_secrets_of_which_one_holds_another() -> None:
    for secret in ("4711", "open 4711 sesame", "4711"):
        redaction.conceal(secret)
    assert redaction.redact("4711, open 4711 sesame") == "***, ***"


def test_what_is_cut_off_leaves_no_part_of_a_secret() -> None:
    redaction.conceal(SECRET)
    data = b"x" * 60 + DATA
    assert redaction.excerpt(data) == repr(b"x" * 60 + b"***")
    assert redaction.excerpt(b"\xff" + DATA) == r"b'\xff***'"


@pytest.mark.parametrize("code", ["E_PUB_FAILED", "E_ODD", "too much client connections"])
@pytest.mark.parametrize("shown", [1, 2, 8])
def test_what_is_cut_off_an_error_frame_leaves_no_part_of_a_secret(code: str, shown: int) -> None:
    """The first 4096 bytes were searched, so the beginning of a secret at their end remained."""
    redaction.conceal("sesame-4711")
    failed = read_error(f"{code} ".ljust(4096 - shown, ".").encode() + b"sesame-4711")
    assert str(failed).rstrip("*").endswith(".")


def test_what_is_cut_off_other_texts_leaves_no_part_of_a_secret() -> None:
    """An nsqd knows the secret, and may write it into its address or into an error of its port for copying."""
    redaction.conceal("sesame-4711")
    peer = {"broadcast_address": "/" * 95 + "sesame-4711", "tcp_port": 4150}
    answer = json.dumps({"partitions": {"0": peer}, "meta": {"partition_num": 1}}).encode()
    assert f"{'/' * 95}***:4150'" in decode_lookup(Body(200, answer), "x").note
    refused = source(AnswerWriter().refuse(1, "x" * 195 + "sesame-4711\nmore"))
    assert Answers(refused).read() == (1, "x" * 195 + "***")


@pytest.mark.parametrize("count", [1, 3000])
def test_where_a_long_text_is_not_searched_it_is_not_shown(count: int) -> None:
    redaction.conceal(SECRET)
    filler = "x" * (redaction.MOST_READ - 8) if count == 1 else ""
    for text in (filler + SECRET * count, (filler + SECRET * count).encode()):
        assert set(redaction.beginning(text, sys.maxsize)) == ({"x"} if count == 1 else {"*"})


def test_a_cause_that_shows_a_secret_is_dropped() -> None:
    redaction.conceal(SECRET)
    good, bad = ValueError("good"), ValueError(SECRET)
    assert redaction.harmless(good) is good
    assert redaction.harmless(bad) is None
    good.__cause__ = bad
    assert redaction.harmless(good) is None


def test_the_oldest_secrets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_SECRETS", 2)
    for number in range(3):
        redaction.conceal(f"secret-{number}")
    assert redaction.redact("secret-0 secret-1 secret-2") == "secret-0 *** ***"
    redaction.conceal("secret-1")
    redaction.conceal("secret-3")
    assert redaction.redact("secret-1 secret-2 secret-3") == "*** secret-2 ***"


def test_a_text_that_was_harmless_is_looked_at_again_for_a_new_secret() -> None:
    redaction.conceal("first")
    assert redaction.redact("the second one") == "the second one"
    redaction.conceal("second")
    assert redaction.redact("the second one") == "the *** one"


@pytest.mark.parametrize("secret", ["Straße", "İstanbul", "\u017fecret"])
def test_letters_with_several_cases_are_found(secret: str) -> None:
    redaction.conceal(secret)
    assert redaction.redact(f"it is {secret}") == "it is ***"


PARTS: Final = [DATA, DATA[:-1], DATA[1:], quote(SECRET, safe="").encode(), b"x", b"\xff"]


@given(st.lists(st.sampled_from(PARTS), min_size=30, max_size=60))
def test_an_excerpt_is_that_of_all_data(parts: list[bytes]) -> None:
    redaction.conceal(SECRET)
    data = b"".join(30 * parts)
    whole = redaction.redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    assert redaction.excerpt(data, 9) == repr(whole[:9])


@pytest.mark.parametrize(
    "make", [lambda: ConsumerConfig(auth_secret=SECRET), lambda: ConnectionOptions(auth_secret=SECRET)]
)
def test_options_conceal_it(make: Callable[[], object]) -> None:
    assert SECRET not in repr(make())
    assert redaction.redact(SECRET) == "***"


WRONG: Final[tuple[Callable[[], object], ...]] = (
    lambda: Producer(lookupd="a:1", auth_secret=SECRET, publish_timeout=-1.0),
    lambda: Producer(lookupd="a:1", auth_secret=SECRET, no_such_option=1),  # type: ignore[call-arg]
    lambda: Producer(auth_secret=SECRET),
    lambda: ProducerConfig(lookupd=("a:1",), auth_secret=SECRET, close_timeout=-1.0),
    lambda: ConsumerConfig(lookupd=("a:1",), auth_secret=SECRET * 10_000),
    lambda: sync.Producer(lookupd="a:1", auth_secret=SECRET, publish_timeout=-1.0),
    lambda: TlsConfig(None, "cert.pem", None, SECRET, minimum_version="1.1"),  # type: ignore[arg-type]
    lambda: TlsConfig(key_password=SECRET),
)


@pytest.mark.parametrize("make", WRONG)
def test_no_local_of_an_error_about_options_shows_it(make: Callable[[], object]) -> None:
    """Programs that report errors send the locals of each frame along."""
    with pytest.raises(ConfigError) as raised:
        make()
    ours = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__) if frame.f_code.co_filename != __file__]
    assert ours
    escaped = repr(SECRET)[1:-1]
    assert [frame for frame in ours if escaped in repr(list(frame.f_locals.values()))] == []


def test_options_as_a_dict_do_not_show_it() -> None:
    config = ProducerConfig(lookupd=("a:1",), auth_secret=SECRET)
    assert repr(SECRET)[1:-1] not in repr(dataclasses.asdict(config))
    assert config.auth_secret == SECRET
    assert pickle.loads(pickle.dumps(config)) == config == dataclasses.replace(config)  # noqa: S301 - our own
    tls = TlsConfig(cert_file="cert.pem", key_password=SECRET)
    assert repr(SECRET)[1:-1] not in repr(dataclasses.asdict(tls))


def test_a_task_of_spark_conceals_it_before_it_asks_anybody() -> None:
    data = pickle.dumps(ReadOptions(connection=ConnectionOptions(auth_secret=SECRET)))
    forget_secrets()
    assert pickle.loads(data).connection == ConnectionOptions(auth_secret=SECRET)  # noqa: S301 - our own
    forget_secrets()
    pickle.loads(data)  # noqa: S301
    assert redaction.redact(SECRET) == "***"


def test_a_client_conceals_it_before_it_asks_anybody() -> None:
    """Options of another process had hidden it there, and here only when it was sent."""
    data = pickle.dumps(ProducerConfig(lookupd=("127.0.0.1:1",), auth_secret=SECRET))
    forget_secrets()
    Producer(config=pickle.loads(data))  # noqa: S301 - our own
    assert redaction.redact(SECRET) == "***"


# ------------------------------------------------------------ errors


@every_form
@pytest.mark.parametrize("frame", ["E_PUB_FAILED {}", "E_ODD {}", "{} is wrong", "too much client connections {}"])
def test_no_error_frame_shows_it(frame: str, form: str) -> None:
    redaction.conceal(SECRET)
    shown = server_error(frame.format(form).encode())
    assert_hidden(shown)


def test_a_known_code_stays_though_a_secret_is_part_of_it() -> None:
    redaction.conceal("FAILED")
    shown = server_error(b"E_PUB_FAILED PUB failed")
    assert type(shown) is PublishFailedError
    assert (shown.code, shown.detail) == ("E_PUB_FAILED", "PUB ***")


def test_no_error_of_ours_shows_it() -> None:
    redaction.conceal(SECRET)
    publish = PublishError(SECRET, topic="t", partition=None, attempts=1, maybe_stored=True)
    unavailable = LookupUnavailableError("none", (("http://l", f"said {SECRET}"),))
    assert unavailable.causes == (("http://l", "said ***"),)
    assert_hidden(publish, unavailable, RemoteProtocolError(SECRET), ConnectionLostError(SECRET))


# ------------------------------------------------------------ what nsqd sends


ECHOES: Final[dict[str, bytes]] = {
    "a known error": error(b"E_INVALID it was " + DATA),
    "an unknown error": error(b"E_ODD " + DATA),
    "an error that is one": error(DATA),
    "a response": response(DATA),
    "a response that is cut": response(b"x" * 60 + DATA),
    "an error frame of a damaged type": error(b"\x00\x01" + DATA),
    "a frame of an unknown type": (4 + len(DATA)).to_bytes(4, "big") + (7).to_bytes(4, "big") + DATA,
}
every_echo = pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)


class Echoing:
    """A script that asks for AUTH, and answers the first command of a kind with ``echo``."""

    def __init__(self, kind: type[Command] | tuple[type[Command], ...], echo: bytes) -> None:
        self._kind = kind
        self._echo = echo
        self.echoed = 0

    def __call__(self, peer: Peer, command: Command) -> bool:
        if isinstance(command, self._kind):
            self.echoed += 1
            peer.write(self._echo)
            return True
        return False


def demanding() -> Identity:
    return Identity(version="fake", auth_required=True)


@every_echo
async def test_no_answer_to_a_publish_shows_it(echo: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with Stage(identity=demanding()) as stage, stage.producer(auth_secret=SECRET) as producer:
        stage.nsqd.script = Echoing(Publish, echo)
        await producer.wait_ready(TOPIC, timeout=LIMIT)  # what follows has a short limit
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", partition=0, timeout=1.0)
    _assert_nowhere(caplog.text, caught.value)


@every_echo
async def test_no_answer_to_a_subscription_shows_it(echo: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with Stage(identity=demanding()) as stage:
        stage.nsqd.script = script = Echoing(Subscribe, echo)
        async with stage.consumer(auth_secret=SECRET, start_timeout=0.0) as consumer:
            await stage.nsqd.until(lambda: script.echoed and not stage.nsqd.peers[0].is_open)
            with pytest.raises((NsqError, TimeoutError)) as caught:  # what is refused for good is raised
                await asyncio.wait_for(anext(consumer), 0.1)
    _assert_nowhere(caplog.text, caught.value)


@every_echo
async def test_nothing_that_comes_later_shows_it(echo: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with Stage(identity=demanding()) as stage, stage.consumer(auth_secret=SECRET):
        peer = await stage.nsqd.subscriber()
        peer.write(echo + encode_frame(FrameType.MESSAGE, message_data(b"x", DATA[:16]))[:-1] + b"xx")
        peer.close()
        await stage.nsqd.subscriber(1)
    _assert_nowhere(caplog.text)


def _assert_nowhere(*texts: str | BaseException) -> None:
    """As assert_hidden; where nothing was quoted at all, nothing need be marked."""
    for each in texts:
        text = "".join(traceback.format_exception(each)) + repr(each) if isinstance(each, BaseException) else each
        assert text
        assert "sesame" not in text.lower()
        for name, form in FORMS.items():
            assert form.lower() not in text.lower(), f"{name}: {text}"


async def test_no_local_of_a_failed_publish_shows_what_a_function_returned() -> None:
    refusing = Echoing(Auth, error(b"E_AUTH_FAILED AUTH failed"))
    async with Stage(identity=demanding()) as stage, stage.producer(auth_secret=lambda: SECRET) as producer:
        stage.nsqd.script = refusing
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", timeout=LIMIT)
    assert isinstance(caught.value.__cause__, AuthError)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__cause__.__traceback__)]
    escaped = repr(SECRET)[1:-1]
    assert [frame for frame in frames if escaped in repr(list(frame.f_locals.values()))] == []


async def test_a_damaged_message_with_the_secret_as_its_id_does_not_show_it(caplog: pytest.LogCaptureFixture) -> None:
    secret = "sesame 16 bytes!"
    async with Stage(identity=demanding()) as stage, stage.consumer(auth_secret=secret):
        peer = await stage.nsqd.subscriber()
        peer.write(encode_frame(FrameType.MESSAGE, message_data(b"", secret.encode())[:-4]))
        await eventually(lambda: "cannot be decoded" in caplog.text)
    assert "sesame" not in caplog.text


async def test_an_answer_to_identify_does_not_show_it(nsqd: FakeNsqd) -> None:
    answer = encode_identity(Identity(version="fake"))[:-1] + b',"max_rdy_count":"' + DATA + b'"}'
    nsqd.script = Echoing(Identify, response(answer))
    config = ConsumerConfig(auth_secret=SECRET)
    with pytest.raises(NsqError) as caught:
        await _opened(nsqd, config)
    _assert_nowhere(caught.value)


async def _opened(nsqd: FakeNsqd, config: ConsumerConfig) -> None:
    connection = await Connection.open(config, nsqd.node, Recorder().callbacks)
    await connection.aclose(LIMIT)


@pytest.fixture
async def nsqd() -> Any:  # noqa: ANN401 - an async generator's fixture
    async with FakeNsqd() as nsqd:
        yield nsqd


@every_echo
async def test_spark_does_not_show_it(nsqd: FakeNsqd, echo: bytes) -> None:
    nsqd.identity = demanding()
    nsqd.script = Echoing(Subscribe, echo)

    def talk() -> None:
        link = BlockingConnection(Node("127.0.0.1", nsqd.port, 1), ConnectionOptions(auth_secret=SECRET))
        try:
            link.open()
            forget_secrets()
            link.close()
            link.open()  # the secret of options that were unpickled is concealed when it is sent
            link.request(SubAdvanced(TOPIC, "ch", 0, None), time.monotonic() + LIMIT)
        finally:
            link.close()

    with pytest.raises(NsqError) as caught:
        await asyncio.to_thread(talk)
    _assert_nowhere(caught.value)
    if isinstance(caught.value, ServerError):
        assert_hidden(caught.value)


# ------------------------------------------------------------ what nsqlookupd sends


BODIES: Final[dict[str, Any]] = {
    "a refusal": {"message": f"no {SECRET}"},
    "a refusal that is cut": {"message": "x" * 115 + SECRET},
    "another shape": {"meta": SECRET},
    "a key": {SECRET: {}},
}


@pytest.mark.parametrize("code", [200, 404, 500])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_no_http_answer_shows_it(body: object, code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    redaction.conceal(SECRET)
    fake = await Fake().start()
    try:
        fake.answer("/lookup", body, code)
        async with LookupClient(fake.url) as client:
            try:
                answer = await client.lookup(TOPIC)
            except NsqError as failed:
                _assert_nowhere(failed)
            else:
                assert not answer.partitions
    finally:
        await fake.stop()
    _assert_nowhere(caplog.text + "logged")


@pytest.mark.parametrize("line", [b"HTTP/1.1 " + DATA, DATA, b"HTTP/1.1 200 OK\r\n" + DATA])
async def test_no_answer_that_is_not_http_shows_it(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(line + b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        redaction.conceal(SECRET)
        async with LookupClient(url) as client:
            with pytest.raises(LookupUnavailableError) as caught:
                await client.lookup(TOPIC)
        async with Producer(lookupd=url, auth_secret=SECRET) as producer:
            with pytest.raises(PublishError) as refused:
                await producer.publish(TOPIC, b"x", timeout=0.5)
    _assert_nowhere(caught.value, refused.value, caplog.text)


# ------------------------------------------------------------ what nobody foresaw


def raised(text: str) -> BaseException:
    try:
        int(text)
    except ValueError as error:
        failed = RuntimeError("odd")
        failed.__cause__ = error
        return failed
    raise AssertionError(text)


def test_no_unforeseen_error_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    redaction.conceal(SECRET)
    for _ in range(2):
        unexpected.report_unexpected(logging.getLogger("nsq_ha.x"), "orders-0", raised(SECRET))
        unexpected.report_unexpected(logging.getLogger("nsq_ha.x"), "orders-1", ValueError(SECRET))
    assert "Traceback" in caplog.text
    assert_hidden(caplog.text)
