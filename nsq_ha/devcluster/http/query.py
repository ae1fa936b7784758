"""Topic, partition and channel of an HTTP request to nsqd.

Source: youzan/nsq ``internal/http_api/topic_channel_args.go``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.http.answers import HttpError
from nsq_ha.names import is_valid_name

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.replica import Replica

NOT_EXIST = "E_TOPIC_NOT_EXIST"
NOT_LEADER = "E_FAILED_ON_NOT_LEADER"


def replica_of(node: Nsqd, request: Request) -> Replica:
    """The replica that ``topic`` and ``partition`` name; without a partition some that the node leads.

    Raises:
        HttpError: There is none.
    """
    topic = request.query_params.get("topic")
    if not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    text = request.query_params.get("partition") or "-1"
    try:
        number: int | None = int(text)
    except ValueError:
        raise HttpError(400, "INVALID_ARG_TOPIC_PARTITION") from None
    if number == -1:
        number = node.led_partition(topic)
    replica = None if number is None else node.replicas.get((topic, number))
    if replica is None:
        raise HttpError(404, NOT_EXIST)
    return replica


def channel_name_of(request: Request) -> str:
    """The ``channel`` argument.

    Raises:
        HttpError: It is missing or no legal name.
    """
    name = request.query_params.get("channel")
    if not name:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return name


def led_channel_of(node: Nsqd, request: Request) -> Channel:
    """The live channel that a request names.

    Raises:
        HttpError: There is none, or this node does not lead its partition.
    """
    replica, name = replica_of(node, request), channel_name_of(request)
    if name not in replica.cursors:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    if not replica.leads:
        raise HttpError(400, NOT_LEADER)
    return replica.channel(name)
