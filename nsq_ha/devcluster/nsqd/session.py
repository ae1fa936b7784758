"""Execute the commands of one connection, in the order and with the answers of the partitioned nsqd.

``any_session`` has what both kinds of server do, ``pub`` the publishes, ``sub`` the subscription and its messages.

Source: server protocol 3-7; youzan/nsq ``nsqdserver/protocol_v2.go``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.auth import HA_TEXTS
from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.nsqd.any_session import AnySession
from nsq_ha.devcluster.nsqd.connection import HA_MANNER
from nsq_ha.devcluster.nsqd.pub import PubCommands
from nsq_ha.devcluster.nsqd.sub import subscribe
from nsq_ha.protocol import commands
from nsq_ha.protocol.identify import encode_identity
from nsq_ha.protocol.server.decoder import CommandDecoder, PublishHeader
from nsq_ha.protocol.server.identify import read_identify

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.storage.replicas import StorageNode
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.server.command_lines import Malformed
    from nsq_ha.protocol.server.identify import SessionSettings

_IN_CLUSTER: Final = b"E_CREATE_TOPIC_FAILED CREATE_TOPIC is not allowed here while cluster feature enabled."


class Session(AnySession):
    """Executes the commands of one connection of a partitioned nsqd.

    Args:
        node: The nsqd.
        connections: The open connections of the node.
        client_id: Number of the connection on its node.
    """

    auth_texts = HA_TEXTS

    def __init__(self, node: StorageNode, connections: set[Connection], client_id: int) -> None:
        self._commands = CommandDecoder(node.host.limits)
        super().__init__(node, connections, client_id, self._commands, HA_MANNER)
        self._node = node
        self._pub = PubCommands(self.connection, node, self.credentials)
        self._handlers |= {
            PublishHeader: self._publish_header,
            commands.Sub: self._subscribe,
            commands.SubAdvanced: self._subscribe,
            commands.SubOrdered: self._subscribe,
            commands.InternalCreateTopic: self._create_topic,
            commands.Pub: self._pub.pub,
            commands.PubTrace: self._pub.pub_trace,
            commands.PubExt: self._pub.pub_ext,
            commands.Mpub: self._pub.mpub,
            commands.MpubTrace: self._pub.mpub_trace,
            commands.MpubExt: self._pub.mpub_ext,
        }

    def _deliver(self) -> None:
        self._pub.deliver()

    def _read_identify(self, body: bytes) -> SessionSettings | Malformed:
        return read_identify(body, self.connection.settings, self._limits)

    def _agree(self, settings: SessionSettings) -> tuple[Identity, bytes]:
        tls, auth = self._security.tls is not None, self._node.host.auth is not None
        identity = settings.identity(VERSION, tls=tls, auth=auth, limits=self._limits)
        return identity, encode_identity(identity)

    def _publish_header(self, header: PublishHeader) -> None:
        extended = self._pub.target(header)
        if extended is not None:
            self._commands.accept(extended=extended)

    def _subscribe(self, command: commands.Sub) -> None:
        if not self._is_forbidden(command.word):
            subscribe(self.connection, self._node, command, self.credentials, self._subscribed)

    def _create_topic(self, command: commands.InternalCreateTopic) -> None:
        if not self._is_unauthorized("CREATE_TOPIC", command.topic):
            self.connection.refuse(_IN_CLUSTER)
