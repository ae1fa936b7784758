"""Every recorded exchange of nsqd's TCP protocol, against both sides of ours."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nsq_ha.errors import SERVER_ERRORS, ConfigError, LocalProtocolError, ServerError
from nsq_ha.protocol import (
    ClientProtocol,
    Command,
    Layout,
    Received,
    Sub,
    SubAdvanced,
    SubOrdered,
    Traced,
    decode_traced,
    layout_for,
)
from nsq_ha.protocol import commands as commands_module
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.compression import Codec, DeflateCodec, SnappyCodec
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.frames import HEARTBEAT, Frame, FrameDecoder, FrameType, encode_frame
from nsq_ha.protocol.identify import Upgrade, decode_identity, upgrades
from nsq_ha.protocol.server.answers import encode_identity, encode_traced
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.decoder import CommandDecoder, decode_commands
from nsq_ha.protocol.server.identify import SessionSettings, read_identify
from tests.golden import TCP_FILES, Conversation, Step, conversations
from tests.protocol.fakes import OK_FRAME, SOURCE, decode_message, identified, seen, subscribed
from tests.support.message_frames import encode_message

ALL = list(conversations(*TCP_FILES))


def by_file(test: Callable[[Conversation], None]) -> Callable[[str], None]:
    """Have a test look at the conversations of a file: one for each of them would be a thousand tests."""

    @pytest.mark.parametrize("file", TCP_FILES)
    def of_file(file: str) -> None:
        for conversation in ALL:
            if conversation.name.startswith(f"{file}/"):
                try:
                    test(conversation)
                except Exception as error:
                    error.add_note(conversation.name)
                    raise

    return of_file


LENIENT = {
    # What the server takes though it says more, or less, than a client should; ours are written out in full.
    "consume/rdy_no_count": "RDY without a count is RDY 1",
    "consume/rdy_empty": "RDY with an empty count is RDY 0",
    "consume_offset/partition_word_not_parsed": "the partition before a start position is not read",
    "consume_offset/no_offset_new_channel": "a trailing blank is an empty start position",
    "handshake/nop_crlf": "a carriage return is dropped",
    "publish/mpub_body_size_not_used": "the outer size is not used",
    "publish/pub_extra_param": "a fourth word hides the partition",
    "publish/pub_partition_minus_1": "-1 is no partition",
}


def from_the_start(conversation: Conversation) -> bool:
    """Tell whether the recording has the beginning of the connection."""
    return conversation.steps[0].fields.get("cmd") == "MAGIC"


def layout_of(fields: dict[str, Any]) -> Layout:
    return layout_for(detail="detail" in fields["layout"], ext="ext" in fields["layout"])


def test_there_is_something_to_replay() -> None:
    assert len(ALL) > 240
    assert sum("frame" in step.fields for conversation in ALL for step in conversation.steps) > 500


@by_file
def test_frames_decode_to_what_was_recorded_and_back_to_their_bytes(conversation: Conversation) -> None:
    for step in conversation.steps:
        if "frame" in step.fields:
            check_frame(step)


def check_frame(step: Step) -> None:
    [frame] = FrameDecoder(max_frame_bytes=2**20).feed(step.data)
    assert frame.kind is FrameType[step.fields["frame"].upper()]
    assert encode_frame(*frame) == step.data
    if "text" in step.fields:
        assert frame.data == step.fields["text"].encode()
    if frame.kind is FrameType.MESSAGE:
        check_message(frame, step.fields["fields"])
    elif frame.kind is FrameType.ERROR:
        assert frame.data.split(b" ")[0].decode() in SERVER_ERRORS
    elif "fields" in step.fields:
        check_traced(frame, step.fields["fields"])
    elif frame.data.startswith(b"{"):
        check_json(frame)


def check_json(frame: Frame) -> None:
    recorded = json.loads(frame.data)
    if "permission_count" in recorded:
        return
    identity = decode_identity(frame.data)
    assert recorded == {name: getattr(identity, name) for name in recorded}
    assert encode_identity(identity) == frame.data


def check_message(frame: Frame, fields: dict[str, Any]) -> None:
    layout = layout_of(fields)
    message = decode_message(frame.data, layout, SOURCE)
    assert message.id.hex() == fields["id_hex"]
    assert message.body.hex() == fields["body_hex"]
    assert (message.timestamp_ns, message.attempts) == (fields["timestamp_ns"], fields["attempts"])
    assert (message.internal_id, message.trace_id) == (fields["internal_id"], fields["trace_id"])
    assert (message.offset, message.raw_size) == (fields.get("offset"), fields.get("raw_size"))
    recorded = fields.get("ext_json")
    assert message.ext == (None if recorded is None else recorded.encode())
    assert encode_message(message, layout, ext_version=fields.get("ext_ver") or 4) == frame.data


def check_traced(frame: Frame, fields: dict[str, Any]) -> None:
    traced = decode_traced(frame.data)
    assert traced == Traced(fields["internal_id"], fields["trace_id"], fields["offset"], fields["raw_size"])
    assert encode_traced(traced) == frame.data


# ---------------------------------------------------------------- what clients wrote


def expected_words(command: Command) -> list[str]:
    """Return the words of a command line, told from the values alone."""
    words = [getattr(command, name, None) for name in ("topic", "channel", "partition", "count", "message_id")]
    words += [getattr(command, name, None) for name in ("delay_ms", "start", "extended")]
    return [
        f"hex:{word.hex()}" if isinstance(word, bytes) else str(word).lower() if isinstance(word, bool) else str(word)
        for word in words
        if word is not None
    ]


def as_written(command: Command | Malformed, step: Step) -> Command:
    """Put back the partition that the server ignores when a start position follows it."""
    assert isinstance(command, Command)
    if isinstance(command, SubAdvanced) and command.start is not None:
        word = step.fields["args"][2]
        return msgspec.structs.replace(command, partition=int(word) if word.isdecimal() else None)
    return command


@by_file
def test_what_is_legal_to_send_equals_the_recorded_bytes(conversation: Conversation) -> None:
    same = True
    for step in conversation.steps:
        if step.direction != "c2s" or step.fields["cmd"] == "MAGIC":
            continue
        commands = decode_commands(step.data)
        if not commands or any(isinstance(command, Malformed) for command in commands):
            continue
        try:
            encoded = b"".join(as_written(command, step).encode() for command in commands)
        except ConfigError:
            continue  # refused before it is sent
        if conversation.name in LENIENT:
            same = same and encoded == step.data
            continue
        assert encoded == step.data
        if len(commands) == 1 and isinstance(commands[0], Command):
            assert commands[0].word.decode() == step.fields["cmd"]
            assert expected_words(as_written(commands[0], step)) == step.fields.get("args", [])
    assert same is (conversation.name not in LENIENT)


def test_every_legal_kind_of_command_is_among_the_recorded_ones() -> None:
    kinds = {
        type(command)
        for conversation in ALL
        for step in conversation.steps
        if step.direction == "c2s"
        for command in decode_commands(step.data)
    }
    written = {
        value for value in vars(commands_module).values() if isinstance(value, type) and issubclass(value, Command)
    }
    assert kinds - {Malformed} == written - {Command, commands_module.Publish}


# ---------------------------------------------------------------- what the server judged

OF_THE_SERVER = (
    # Answers that depend on what a server holds, not on the bytes of the command.
    "E_AUTH_DISABLED",
    "E_AUTH_FAILED",
    "E_AUTH_FIRST",
    "E_CREATE_TOPIC_FAILED",
    "E_FAILED_ON_NOT_LEADER",
    "E_FAILED_ON_NOT_WRITABLE",
    "E_FIN_FAILED",
    "E_IDENTIFY_FAILED cannot enable both",
    "E_INVALID AUTH Already set",
    "E_INVALID Invalid timestamp",
    "E_INVALID Not supported while coordinator disabled",
    "E_INVALID cannot ",
    "E_INVALID not supported offset type",
    "E_INVALID order consume is not allowed",
    "E_REQ_FAILED",
    "E_SUB_",
    "E_TOPIC_NOT_EXIST",
    "E_TOUCH_FAILED",
    "E_UNAUTHORIZED",
    "E_BAD_PARTITION topic partition is not valid for multi partition",
    "E_EXT_NOT_SUPPORT",
)


def malformed_in(decoder: CommandDecoder, data: bytes) -> list[Malformed]:
    """Feed ``data`` as a server would whose topics are all there and extended."""
    decoder.feed(data)
    found: list[Malformed] = []
    while (event := decoder.next_event()) is not None:
        if isinstance(event, Identify):
            settings = read_identify(event.body)
            found += [settings] if isinstance(settings, Malformed) else []
        elif isinstance(event, Malformed):
            found.append(event)
        elif not isinstance(event, Command):
            decoder.accept(extended=True)
    return found


@by_file
def test_what_is_wrong_in_itself_gets_the_recorded_answer(conversation: Conversation) -> None:
    decoder = CommandDecoder(magic=from_the_start(conversation))
    expected: list[Malformed] = []
    for number, step in enumerate(conversation.steps):
        if step.fields.get("cmd") == "INTERNAL_CREATE_TOPIC":
            continue  # no command of clients: it made the recording's topics
        if step.direction == "c2s":
            expected += malformed_in(decoder, step.data)
        elif step.fields.get("frame") == "error":
            text = step.data[8:].decode("latin-1")
            if text.startswith(OF_THE_SERVER):
                return  # what follows depends on the server too
            answer = expected.pop(0)
            assert answer.data == step.data[8:]
            # A few recordings end at a fatal error, before the close.
            [following] = [later.fields.get("event") for later in conversation.steps[number + 1 :][:1]] or [None]
            assert answer.fatal or following != "closed_by_server"
            assert not answer.fatal or following in ("closed_by_server", None)
    assert not expected


def test_introductions_hold_what_the_server_answered() -> None:
    """The answer echoes intervals and buffers, so the reading of IDENTIFY can be checked against it."""
    compared = 0
    for conversation in ALL:
        settings: SessionSettings | Malformed = SessionSettings()
        for step, answer in zip(conversation.steps, conversation.steps[1:], strict=False):
            commands = decode_commands(step.data) if step.direction == "c2s" else []
            if not commands or not isinstance(commands[0], Identify) or not answer.data[8:].startswith(b"{"):
                continue
            before = settings if isinstance(settings, SessionSettings) else None
            settings = read_identify(commands[0].body, before)
            assert isinstance(settings, SessionSettings)
            identity = decode_identity(answer.data[8:])
            for name in ("msg_timeout", "sample_rate", "output_buffer_size", "output_buffer_timeout", "desired_tag"):
                assert getattr(settings, name) == getattr(identity, name), name
            compared += 1
    assert compared > 150


# ---------------------------------------------------------------- our client in the same conversation


class Replay:
    """Our client, told what the recorded one was told."""

    def __init__(self, conversation: Conversation) -> None:
        self.protocol = ClientProtocol(max_frame_bytes=2**20)
        self.extended = False
        self.wire: Codec | None = None
        self.found: list[Received] = []
        self.identifying = False
        self.layers: list[Upgrade] | None = None
        self.last_word = b""
        if not from_the_start(conversation):
            self.protocol = subscribed(Layout.DETAIL)
        elif not any(step.fields.get("cmd") == "IDENTIFY" for step in conversation.steps[:2]):
            # The recorded client left IDENTIFY out, ours never does.
            self.protocol = identified()

    def write(self, step: Step) -> bool:
        """Write what the recorded client wrote; False when ours refuses to."""
        if step.fields["cmd"] == "MAGIC":
            return step.data == MAGIC
        for command in decode_commands(step.data):
            if isinstance(command, Malformed):
                return False
            self.last_word = command.word
            if isinstance(command, Identify):
                self.identifying = True
                self.extended = b'"extend_support":true' in command.body
            try:
                if isinstance(command, Sub):
                    detail = isinstance(command, SubOrdered | SubAdvanced)
                    self.protocol.subscribe_to(SOURCE, layout_for(detail=detail, ext=self.extended))
                self.protocol.send(command)
            except (ConfigError, LocalProtocolError):
                return False
        return True

    def read(self, step: Step) -> Received:
        data = step.data if self.wire is None else b"".join(self.wire.pieces(step.data))
        received = self.protocol.receive(data)
        self.found.append(received)
        for answer in received.answers:
            if not isinstance(answer, bytes):
                self.layers = None
            elif self.identifying:
                self.layers = list(upgrades(decode_identity(answer)))
                self.identifying = False
                self.next_layer()
            elif self.layers is not None:
                self.next_layer()
        return received

    def next_layer(self) -> None:
        if not self.layers:
            assert self.protocol.take_trailing() == b""
            self.layers = None
            return
        codecs: dict[str, Codec | None] = {"tls": None, "snappy": SnappyCodec(), "deflate": DeflateCodec()}
        layer = self.layers.pop(0)
        self.wire = codecs[layer]
        assert self.protocol.expect_upgrade(layer) == b""


@by_file
def test_our_client_reads_the_recorded_conversation(conversation: Conversation) -> None:
    replay = Replay(conversation)
    for step in conversation.steps:
        if (step.direction == "c2s" and not replay.write(step)) or "TLS required" in step.fields.get("text", ""):
            return  # ours does not send this; what follows is about it
        if step.direction != "s2c":
            continue
        received = replay.read(step)
        kind = step.fields.get("frame", "response")
        if kind == "message":
            [message] = received.messages
            assert seen(message) == seen(decode_message(step.data[8:], layout_of(step.fields["fields"]), SOURCE))
        elif kind == "error":
            refusals: list[bytes | ServerError] = [*received.answers, *received.refusals]
            assert len(refusals) == 1
            refused = refusals[0]
            assert isinstance(refused, ServerError)
            assert refused.code == step.data[8:].split(b" ")[0].decode()
            if replay.last_word == b"MPUB_EXT":
                return  # a client closes here: the server reads the rest of the batch as commands
        elif step.data[8:] == HEARTBEAT:
            assert received.heartbeats == 1
        else:
            assert len(received.answers) == 1
    assert replay.protocol.awaiting == 0


def test_the_recorded_magic_is_ours() -> None:
    first = {step.data for conversation in ALL for step in conversation.steps if step.fields.get("cmd") == "MAGIC"}
    first.remove(b"  V1")
    assert first == {MAGIC}


def test_our_compressed_bytes_are_what_the_recorded_ones_decode_to() -> None:
    compared = 0
    for conversation in conversations("upgrade"):
        for step in conversation.steps:
            if not step.fields.get("raw"):
                continue
            make: Callable[[], Codec] = DeflateCodec
            if "snappy" in conversation.name:
                make = SnappyCodec
            plain = bytes.fromhex(step.fields["inflated_hex"]) if "inflated_hex" in step.fields else OK_FRAME
            assert b"".join(make().pieces(step.data)) == plain
            assert b"".join(make().pieces(make().compress(plain))) == plain
            compared += 1
    assert compared == 6
