"""The handshake of a client's connection, as steps: IDENTIFY, TLS, compression, AUTH.

This module decides what is sent in which order, and has the rules that protect the client from bad answers:

- If the client requires TLS, the connection uses TLS or is refused.
- A layer that was not offered is refused.
- Bytes between the answer to IDENTIFY and the start of TLS are refused: they may have been injected.
- The secret is sent only if the server requires it, and after all layers.
- Nothing is sent while a layer may be about to change, not even the answer to a heartbeat.

It does no I/O: the caller executes each step and feeds the data that it reads. With a blocking socket::

    handshake = Handshake(protocol, offer, address="127.0.0.1:4150", secret="...")
    codec, pieces = None, iter(())
    for step in handshake:
        if isinstance(step, Send):
            connection.sendall(codec.compress(step.data) if codec else step.data)
        elif isinstance(step, StartTls):
            connection = context.wrap_socket(connection, server_hostname=host)
        elif isinstance(step, StartCodec):
            codec, pieces = step.codec, step.codec.pieces(step.trailing)
        elif isinstance(step, GetSecret):  # only with asks=True
            handshake.secret = ask_for_it()
        elif (piece := next(pieces, None)) is not None:
            handshake.feed(piece)
        else:
            data = connection.recv(65536)  # b"": the server closed the connection, so give up
            if codec is None:
                handshake.feed(data)
            else:
                pieces = codec.pieces(data)
    identity = handshake.identity

Pass remaining pieces and all later reads to ``protocol.receive``.

Source: server protocol 3, 4.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from nsq_ha.base.redaction import conceal
from nsq_ha.errors import AuthError, ConnectError, ServerError
from nsq_ha.protocol.client import ClientProtocol
from nsq_ha.protocol.commands import Auth, Command
from nsq_ha.protocol.compression import Codec, DeflateCodec, SnappyCodec
from nsq_ha.protocol.encoding import NOP
from nsq_ha.protocol.identify import (
    OLDEST,
    Identity,
    Offer,
    Upgrade,
    decode_identity,
    upgrades,
)


class Send(msgspec.Struct, frozen=True):
    """Send bytes through all started layers.

    Attributes:
        data: The bytes; never shown, since they may contain the secret.
    """

    data: bytes

    def __repr__(self) -> str:
        return "Send()"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show nothing."""
        return []


class Receive(msgspec.Struct, frozen=True):
    """Read at least one byte through all started layers, and pass it to :meth:`Handshake.feed`."""


class StartTls(msgspec.Struct, frozen=True):
    """Start TLS and complete its handshake; everything after it is inside TLS."""


class StartCodec(msgspec.Struct, frozen=True):
    """Start compression in both directions, inside TLS if that was started.

    Attributes:
        codec: Compresses sent data and decompresses received data.
        trailing: Compressed bytes that were already read: decompress them before further reads.
    """

    codec: Codec
    trailing: bytes


class GetSecret(msgspec.Struct, frozen=True):
    """Set :attr:`Handshake.secret`, since the server requires AUTH. Only with ``asks=True``."""


Step = Send | Receive | StartTls | StartCodec | GetSecret
"""What to do next."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice in error texts, with the client's names of options.

    Attributes:
        no_tls: If the server does not offer TLS.
        no_secret: If the server requires AUTH.
    """

    no_tls: str = "start nsqd with a certificate, or give tls=None"
    no_secret: str = "set auth_secret"  # noqa: S105 - a text


class Handshake:
    """One connection's handshake. Iterate over it and execute each step.

    Iterating raises:

    - :class:`ConnectError`: The client requires TLS, but the server does not offer it; or it is older than ``OLDEST``.
    - :class:`AuthError`: AUTH is required and no secret is given.
    - :class:`ServerError`: The server refused IDENTIFY, a layer or AUTH.
    - :class:`RemoteProtocolError`: The server broke a rule.

    Drop the connection in each case.

    Args:
        protocol: A new protocol for the connection.
        offer: The client's offer.
        address: The server's address, for errors.
        secret: For AUTH. None if there is none.
        asks: Ask for the secret by a step if the server requires AUTH.
        advice: The advice in error texts. None uses the names of the client's options.

    Attributes:
        identity: The server's answer to IDENTIFY, as soon as it is known.
        secret: The secret for AUTH.
    """

    def __init__(
        self,
        protocol: ClientProtocol,
        offer: Offer,
        *,
        address: str,
        secret: str | None = None,
        asks: bool = False,
        advice: Advice | None = None,
    ) -> None:
        self.identity: Identity = Identity()
        self._protocol = protocol
        self._offer = offer
        self._address = address
        self.secret: str | None = secret
        self._asks = asks
        self._advice = advice or Advice()
        self._answers: list[bytes | ServerError] = []
        self._owes_nop = False

    def feed(self, data: bytes | memoryview) -> None:
        """Add data that was read and decompressed; the caller may reuse the buffer afterwards.

        Raises:
            RemoteProtocolError: The server broke a rule.
        """
        received = self._protocol.receive(data)
        self._owes_nop |= received.heartbeats > 0
        self._answers += received.answers

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps; :class:`Receive` only when all fed data is used up."""
        self.identity = decode_identity((yield from self._request(self._offer.command())))
        if self.identity.is_too_old:
            version = self.identity.version
            raise ConnectError(f"nsqd {self._address} has version {version}, but this library needs {OLDEST} or newer")
        layers = upgrades(self.identity, self._offer)
        if self._offer.tls and "tls" not in layers:
            raise ConnectError(f"{self._address} does not offer TLS: {self._advice.no_tls}")
        for layer in layers:
            yield from self._upgrade(layer)
        self.feed(self._protocol.take_trailing())
        if self.identity.auth_required:
            yield from self._authenticate()
        if self._owes_nop:
            yield Send(NOP)

    def _upgrade(self, layer: Upgrade) -> Generator[Step, None, None]:
        trailing = self._protocol.expect_upgrade(layer)
        if layer == "tls":
            yield StartTls()
        else:
            codec = SnappyCodec() if layer == "snappy" else DeflateCodec(self._offer.deflate_level)
            yield StartCodec(codec, trailing)
        yield from self._answer()

    def _authenticate(self) -> Generator[Step, None, None]:
        if self._asks:
            yield GetSecret()
        secret = self.secret
        if secret is None:
            raise AuthError("E_AUTH_FIRST", f"{self._address} requires AUTH: {self._advice.no_secret}")
        conceal(secret)  # a config created in another process has not done this here
        yield from self._request(Auth(secret.encode()))

    def _request(self, command: Command) -> Generator[Step, None, bytes]:
        yield Send(self._protocol.send(command))
        return (yield from self._answer())

    def _answer(self) -> Generator[Step, None, bytes]:
        """Read up to the answer to the only outstanding request."""
        while not self._answers:
            yield Receive()
        answer = self._answers.pop()
        if isinstance(answer, ServerError):
            raise answer
        return answer
