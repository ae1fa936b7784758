"""Answers out of place."""

from typing import Final

from integration.floods.case import CONSUMER, PRODUCER, Case, Moment, Then
from integration.floods.frames import message
from nsq_ha.protocol import Layout
from tests.support.nsqd import OK, error, response

_MIB: Final = 1024 * 1024
_FINAL: Final = {"AUTH asked for", "an error", "an error that is not UTF-8", "an error of 1 MiB", "a fatal error"}

_HELLO: Final = {
    "an empty response": response(b""),
    "an empty error": error(b""),
    "an error": error("E_BAD_BODY IDENTIFY no"),
    "a message": message(Layout.PLAIN),
    "an array": response(b"[]"),
    "OK twice": OK + OK,
    "JSON that is cut": response(b'{"max_rdy_count":25'),
    "JSON of wrong types": response(b'{"max_rdy_count":"many","tls_v1":7,"version":[],"msg_timeout":{}}'),
    "max_rdy_count huge": response(b'{"max_rdy_count":1e300}'),
    "msg_timeout 0": response(b'{"msg_timeout":0,"max_msg_timeout":0}'),
    "TLS not asked for": response(b'{"tls_v1":true}'),
    "two compressions": response(b'{"deflate":true,"snappy":true}'),
    "AUTH asked for": response(b'{"auth_required":true}'),
}
_ANSWERS: Final = {
    "an empty response": response(b""),
    "KO": response(b"KO"),
    "OK with a tail": response(b"OK and more"),
    "OK with 28 bytes": response(b"OK" + bytes(28)),
    "two answers": OK + OK + OK,
    "CLOSE_WAIT not asked for": response(b"CLOSE_WAIT"),
    "an empty error": error(b""),
    "an error that is not UTF-8": error(b"E_INVALID \xff\xfe\x00"),
    "an error of 1 MiB": error(b"E_INVALID " + b"x" * _MIB),
    "an unknown error": error("E_WHATEVER"),
    "a fatal error": error("E_INVALID"),
    "no leader": error("E_FAILED_ON_NOT_LEADER"),
    "not writable": error("E_FAILED_ON_NOT_WRITABLE"),
    "no such topic": error("E_TOPIC_NOT_EXIST"),
}

CASES: Final = (
    *(
        Case(group="answers", name=f"{name} to IDENTIFY", data=data, moment=Moment.HELLO, ends=name in _FINAL)
        for name, data in _HELLO.items()
    ),
    *(
        Case(
            group="answers",
            name=f"{name} to {command}",
            data=data,
            moment=Moment.ANSWER,
            clients=clients,
            ends=name in _FINAL and clients is CONSUMER,
        )
        for command, clients in (("SUB", CONSUMER), ("PUB", PRODUCER))
        for name, data in _ANSWERS.items()
    ),
    Case(group="answers", name="a message to a producer", data=message(Layout.PLAIN), clients=PRODUCER),
    Case(
        group="answers",
        name="refused and closed",
        data=error("E_INVALID"),
        moment=Moment.ANSWER,
        then=Then.CLOSE,
        ends=True,
        # As upstream nsqds do. Each reconnect follows a refused publish, so that others need not wait: four a second
        # for each of two partitions.
        reconnects=8.0,
    ),
)
