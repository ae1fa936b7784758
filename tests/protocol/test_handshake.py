"""The steps of a handshake, and what ends it."""

import base64
import contextlib
import itertools
import json
from collections.abc import Iterable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import AuthError, ConnectError, NsqError, RemoteProtocolError, ServerError
from nsq_ha.options.types import Compression
from nsq_ha.protocol import ClientProtocol, Identity, Offer
from nsq_ha.protocol.commands import Auth
from nsq_ha.protocol.compression import Codec, DeflateCodec, SnappyCodec
from nsq_ha.protocol.encoding import NOP
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.handshake import Advice, GetSecret, Handshake, Receive, Send, StartCodec
from nsq_ha.protocol.server.answers import encode_identity
from nsq_ha.protocol.state import ConnectionState
from tests.protocol.fakes import HEARTBEAT_FRAME, LARGEST, OK_FRAME, error, response

SECRET = "open sesame: 4711/+ä"
WELCOME = response(b'{"identity":"me","identity_url":"","permission_count":1}')
TLS = Offer(tls=True)
EVERYTHING = Offer(tls=True, compression=Compression.SNAPPY)


def agreed(**fields: object) -> bytes:
    return response(encode_identity(Identity(**fields)))  # type: ignore[arg-type]


def started(offer: Offer | None = None, secret: str | None = None, advice: Advice | None = None) -> Handshake:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    return Handshake(protocol, offer or Offer(), address="nsqd:4150", secret=secret, advice=advice)


class Run:
    """Runs a handshake against a script.

    Attributes:
        sent: What was sent, as it is on the wire below TLS.
        steps: The names of the steps but for reading.
    """

    def __init__(self, handshake: Handshake, reads: Iterable[bytes]) -> None:
        self.sent: list[bytes] = []
        self.steps: list[str] = []
        self.handshake = handshake
        self._reads = iter(reads)
        self._codec: Codec | None = None

    def all(self) -> Identity:
        for step in self.handshake:
            if isinstance(step, Receive):
                self._feed(next(self._reads))
                continue
            self.steps.append(type(step).__name__)
            if isinstance(step, Send):
                self.sent.append(step.data if self._codec is None else self._codec.compress(step.data))
            elif isinstance(step, StartCodec):
                self._codec = step.codec
                self._feed(step.trailing)
        assert next(self._reads, None) is None
        return self.handshake.identity

    def _feed(self, data: bytes) -> None:
        self.handshake.feed(data if self._codec is None else b"".join(self._codec.pieces(data)))


def refused(handshake: Handshake, *reads: bytes) -> NsqError:
    """Return what ends the handshake."""
    with pytest.raises(NsqError) as caught:
        Run(handshake, reads).all()
    return caught.value


# ------------------------------------------------------------ what is sent, and when


def test_a_server_that_negotiates_nothing_is_too_old() -> None:
    with pytest.raises(ConnectError, match=r"nsqd:4150 has version 0\.2\.19.* needs 0\.2\.23 or newer"):
        Run(started(), [OK_FRAME]).all()


def test_the_layers_come_in_order_and_auth_goes_through_them() -> None:
    codec = SnappyCodec()
    run = Run(
        started(EVERYTHING, SECRET),
        [
            agreed(tls_v1=True, snappy=True, auth_required=True),
            OK_FRAME,
            codec.compress(OK_FRAME),
            codec.compress(WELCOME),
        ],
    )
    run.all()
    assert run.steps == ["Send", "StartTls", "StartCodec", "Send"]
    assert b"".join(codec.pieces(run.sent[1])) == Auth(SECRET.encode()).encode()


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_secret_is_asked_for_only_if_the_server_requires_it(secret: str | None) -> None:
    asked = 0
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    handshake = Handshake(protocol, Offer(), address="nsqd:4150", asks=True)
    reads = iter([agreed(auth_required=True), WELCOME])
    sent = []
    expected = contextlib.nullcontext() if secret else pytest.raises(AuthError, match="requires AUTH: set auth_secret")
    with expected:
        for step in handshake:
            if isinstance(step, GetSecret):
                asked += 1
                handshake.secret = secret
            elif isinstance(step, Send):
                sent.append(step.data)
            else:
                handshake.feed(next(reads))
    assert asked == 1
    assert sent[1:] == ([Auth(SECRET.encode()).encode()] if secret else [])
    run = Run(Handshake(ClientProtocol(max_frame_bytes=LARGEST), Offer(), address="nsqd:4150", asks=True), [agreed()])
    run.all()
    assert run.steps == ["Send"]


def test_the_level_of_deflate_is_what_was_offered() -> None:
    offer = Offer(compression=Compression.DEFLATE, deflate_level=1)
    codec = DeflateCodec()
    handshake = started(offer)
    levels = []
    for step in handshake:
        if isinstance(step, StartCodec):
            levels.append(step.codec.compress(bytes(range(256)) * 20))
            handshake.feed(OK_FRAME)
        elif isinstance(step, Receive):
            handshake.feed(agreed(deflate=True))
    assert levels == [DeflateCodec(1).compress(bytes(range(256)) * 20)]
    assert levels != [codec.compress(bytes(range(256)) * 20)]


def test_what_follows_the_answer_to_identify_belongs_to_the_compression() -> None:
    codec = SnappyCodec()
    offer = Offer(compression=Compression.SNAPPY)
    assert Run(started(offer), [agreed(snappy=True) + codec.compress(OK_FRAME)]).all().snappy


def test_what_follows_the_last_layer_is_read() -> None:
    handshake = started()
    run = Run(handshake, [agreed() + OK_FRAME])
    with pytest.raises(RemoteProtocolError, match="answers no request"):
        run.all()


@given(st.data())
def test_the_steps_do_not_depend_on_how_the_stream_was_cut(data: st.DataObject) -> None:
    answers = [HEARTBEAT_FRAME + agreed(auth_required=True), HEARTBEAT_FRAME + WELCOME]
    reads: list[bytes] = []
    for answer in answers:
        cuts = data.draw(st.lists(st.integers(1, len(answer) - 1), unique=True).map(sorted))
        reads += [answer[a:b] for a, b in itertools.pairwise([0, *cuts, len(answer)])]
    run = Run(started(secret=SECRET), reads)
    run.all()
    assert run.steps == ["Send", "Send", "Send"]
    assert run.sent[1:] == [Auth(SECRET.encode()).encode(), NOP]


# ------------------------------------------------------------ heartbeats


def test_a_heartbeat_is_answered_at_the_end() -> None:
    run = Run(started(), [HEARTBEAT_FRAME + agreed()])
    run.all()
    assert run.sent[1:] == [NOP]
    run = Run(started(), [agreed() + HEARTBEAT_FRAME * 2])
    run.all()
    assert run.sent[1:] == [NOP]


def test_no_heartbeat_is_answered_where_a_layer_may_begin() -> None:
    # In plain text behind IDENTIFY, the server would take a NOP for the beginning of TLS.
    run = Run(started(TLS), [HEARTBEAT_FRAME, agreed(tls_v1=True), HEARTBEAT_FRAME, OK_FRAME])
    run.all()
    assert run.steps == ["Send", "StartTls", "Send"]
    assert run.sent[1:] == [NOP]


# ------------------------------------------------------------ what ends it


@pytest.mark.parametrize("injected", [b"\x16", OK_FRAME, HEARTBEAT_FRAME, b"\0\0\0\6"])
def test_bytes_before_tls_end_it(injected: bytes) -> None:
    handshake = started(TLS)
    reason = refused(handshake, agreed(tls_v1=True) + injected)
    assert isinstance(reason, RemoteProtocolError)
    assert "before TLS began" in str(reason)
    assert str(reason).endswith(": someone between this client and nsqd may have injected them")
    assert handshake._protocol.state is ConnectionState.CLOSED


def test_a_server_without_tls() -> None:
    assert str(refused(started(TLS), agreed())) == (
        "nsqd:4150 does not offer TLS: start nsqd with a certificate, or give tls=None"
    )
    reason = refused(started(EVERYTHING, advice=Advice(no_tls="set tls=false")), agreed(snappy=True))
    assert isinstance(reason, ConnectError)
    assert str(reason) == "nsqd:4150 does not offer TLS: set tls=false"


def test_a_refusal_of_identify_names_the_option() -> None:
    reason = refused(started(), error(b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"))
    assert isinstance(reason, ServerError)
    assert "option heartbeat_interval" in str(reason)
    assert str(refused(started(), error(b"E_BAD_BODY something else"))) == "E_BAD_BODY something else"


@pytest.mark.parametrize("reads", [(error(b"E_INVALID no TLS"),), (HEARTBEAT_FRAME, error(b"E_INVALID no TLS"))])
def test_a_refusal_of_a_layer(reads: tuple[bytes, ...]) -> None:
    assert str(refused(started(TLS), agreed(tls_v1=True), *reads)) == "E_INVALID no TLS"


# ------------------------------------------------------------ AUTH


def test_auth_without_a_secret() -> None:
    reason = refused(started(), agreed(auth_required=True))
    assert isinstance(reason, AuthError)
    assert str(reason) == "E_AUTH_FIRST nsqd:4150 requires AUTH: set auth_secret"
    advice = Advice(no_secret="give option 'authSecret'")
    assert "option 'authSecret'" in str(refused(started(advice=advice), agreed(auth_required=True)))


FORMS = [
    SECRET,
    repr(SECRET)[1:-1],
    json.dumps(SECRET)[1:-1],
    quote(SECRET, safe=""),
    base64.b64encode(SECRET.encode()).decode(),
    SECRET.encode().hex().upper(),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", FrameType)
@pytest.mark.parametrize("text", ["{}", "E_AUTH_FAILED AUTH failed for {}"])
def test_no_answer_to_auth_shows_the_secret(form: str, kind: FrameType, text: str) -> None:
    answer = encode_frame(kind, text.format(form).encode())
    shown = refused(started(secret=SECRET), agreed(auth_required=True), answer)
    assert not [each for each in FORMS if each.lower() in f"{shown} {shown!r} {shown.__cause__!r}".lower()]


def test_no_step_shows_the_secret() -> None:
    run = Run(started(secret=SECRET), [agreed(auth_required=True), WELCOME])
    run.all()
    assert SECRET.encode() in run.sent[1]
    assert "4711" not in repr(Send(run.sent[1])) + repr(run.handshake)
    assert Send(run.sent[1]).__rich_repr__() == []  # rich would else show the fields
