"""What a client sends: command lines, bodies and IDENTIFY, as both kinds of nsqd read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from fuzz import seeds
from fuzz.target import Target, pieces
from nsq_ha.errors import ConfigError, RemoteProtocolError
from nsq_ha.protocol import commands
from nsq_ha.protocol.encoding import encode_dpub
from nsq_ha.protocol.ext_filter import Filter
from nsq_ha.protocol.identify import decode_identity
from nsq_ha.protocol.server.answers import encode_identity, encode_plain_identity
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.decoder import CommandDecoder, PublishHeader
from nsq_ha.protocol.server.identify import SessionSettings, read_identify, read_plain_identify
from nsq_ha.protocol.server.plain_decoder import DeferredPub, PlainDecoder


def _read(stream: Iterable[bytes], *, magic: bool, extended: bool) -> list[object]:
    decoder, found = CommandDecoder(magic=magic), list[object]()
    for piece in stream:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not None:
            found.append(event)
            if isinstance(event, PublishHeader):
                decoder.accept(extended=extended)
            if isinstance(event, Malformed) and event.fatal:
                return found
    return found


def _read_plain(stream: Iterable[bytes], *, magic: bool) -> list[object]:
    decoder, found = PlainDecoder(magic=magic), list[object]()
    for piece in stream:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not None:
            found.append(event)
            if isinstance(event, Malformed) and event.fatal:
                return found
    return found


def run_commands(data: bytes) -> None:
    """Both decoders; each command that the client can send is encoded and read again."""
    how, cut, stream = *data[:2].ljust(2, b"\1"), data[2:]
    magic, extended = bool(how & 1), bool(how & 2)
    events = _read([stream], magic=magic, extended=extended)
    assert _read(pieces(stream, cut), magic=magic, extended=extended) == events
    plain = _read_plain([stream], magic=magic)
    assert _read_plain(pieces(stream, cut), magic=magic) == plain
    for event in events:
        if isinstance(event, commands.Command):
            _again(event)
    for event in plain:
        _again_plain(event)


def _again(command: commands.Command) -> None:
    try:
        encoded = command.encode()
    except ConfigError:
        return  # a server reads names and ids that it refuses later
    read = _read([encoded], magic=False, extended=True)
    if isinstance(command, commands.SubAdvanced) and command.start is not None:
        kind, number = command.start.split(":")
        command = replace(command, start=f"{kind}:{int(number)}")  # as it is written
    assert read[-1] == command, read
    if isinstance(command, commands.Identify):
        _identified(command.body)


def _again_plain(event: object) -> None:
    try:
        if isinstance(event, DeferredPub):
            assert _read_plain([encode_dpub(event.topic, event.delay_ms, event.body)], magic=False) == [event]
        elif isinstance(event, commands.Command):
            assert _read_plain([event.encode()], magic=False)[-1] == event
    except ConfigError:
        return


def _identified(body: bytes) -> None:
    """What a server agrees to is an answer that the client reads as it was meant."""
    for settings, encode in (
        (read_identify(body), encode_identity),
        (read_plain_identify(body), encode_plain_identity),
    ):
        if isinstance(settings, Malformed):
            continue
        _filtered(settings)
        plain = encode is encode_plain_identity
        identity = (settings.plain_identity if plain else settings.identity)("1.3", tls=True, auth=False)
        try:
            assert decode_identity(encode(identity)) == identity
        except RemoteProtocolError:
            assert settings.snappy
            assert settings.deflate


def _filtered(settings: SessionSettings) -> None:
    if settings.ext_filter is None:
        return
    try:
        rule = Filter(settings.ext_filter)
    except ValueError:
        return
    for header in (None, b"{}", b'{"type":"paid"}'):
        assert rule.passes(header) in (True, False)


def seeds_of_commands() -> Iterator[bytes]:
    """Yield what clients sent."""
    for number, stream in enumerate(seeds.streams("c2s")):
        yield bytes((2 | stream.startswith(b"  V2"), number % 5)) + stream
    deep = b'{"a":' + b"[" * 3000
    yield b"\2\1IDENTIFY\n" + len(deep).to_bytes(4, "big") + deep


TARGETS: Final = (
    Target("commands", "what a client sends, as both kinds of nsqd read it", run_commands, seeds_of_commands, 2),
)
