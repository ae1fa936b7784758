"""The table of a connection's life."""

from __future__ import annotations

import pytest

from nsq_ha.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from nsq_ha.protocol.state import TRANSITIONS, ConnectionState, Input, advance


@pytest.mark.parametrize("state", ConnectionState)
def test_every_pair_is_decided(state: ConnectionState) -> None:
    for event in Input:
        if (state, event) in TRANSITIONS:
            assert advance(state, event) is TRANSITIONS[state, event]
            continue
        at_fault = RemoteProtocolError if event.name.startswith("RECV_") else LocalProtocolError
        with pytest.raises(ProtocolError) as raised:
            advance(state, event)
        assert type(raised.value) is at_fault
        # Users see this: it says what happened in words of the protocol.
        assert event.name not in str(raised.value)
        assert "sent" in str(raised.value)


def test_the_errors_text_says_what_the_peer_did() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^nsqd sent a message on a connection that is not subscribed$"):
        advance(ConnectionState.READY, Input.RECV_MESSAGE)
    with pytest.raises(LocalProtocolError, match=r"^RDY cannot be sent before SUB was answered$"):
        advance(ConnectionState.SUBSCRIBING, Input.SEND_READY)


def test_an_input_is_the_peers_or_ours() -> None:
    assert all(event.name.startswith(("SEND_", "RECV_")) for event in Input)


def test_closed_is_final() -> None:
    leaving = {event for (state, event) in TRANSITIONS if state is ConnectionState.CLOSED}
    assert leaving == {Input.RECV_EOF}
    assert advance(ConnectionState.CLOSED, Input.RECV_EOF) is ConnectionState.CLOSED


def test_every_state_can_be_reached_and_left() -> None:
    reached = {ConnectionState.NEW}
    while more := {after for (before, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(ConnectionState)
    assert all(TRANSITIONS[state, Input.RECV_EOF] is ConnectionState.CLOSED for state in ConnectionState)


def test_the_way_of_a_consumer() -> None:
    state = ConnectionState.NEW
    for event in (
        Input.SEND_IDENTIFY,
        Input.RECV_IDENTITY,
        Input.SEND_UPGRADE,
        Input.RECV_UPGRADED,
        Input.SEND_AUTH,
        Input.RECV_AUTHORIZED,
        Input.SEND_SUBSCRIBE,
        Input.RECV_SUBSCRIBED,
        Input.SEND_READY,
        Input.RECV_MESSAGE,
        Input.SEND_ANSWER,
        Input.SEND_PUBLISH,
        Input.RECV_PUBLISHED,
        Input.SEND_CLOSE,
        Input.RECV_CLOSE_WAIT,
        Input.SEND_ANSWER,
    ):
        state = advance(state, event)
    assert state is ConnectionState.DRAINING


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (ConnectionState.NEW, Input.SEND_PUBLISH),
        (ConnectionState.IDENTIFYING, Input.SEND_PUBLISH),
        (ConnectionState.READY, Input.SEND_ANSWER),
        (ConnectionState.READY, Input.SEND_READY),
        (ConnectionState.READY, Input.SEND_CLOSE),
        (ConnectionState.SUBSCRIBED, Input.SEND_SUBSCRIBE),
        (ConnectionState.SUBSCRIBED, Input.SEND_IDENTIFY),
        (ConnectionState.DRAINING, Input.SEND_CLOSE),
    ],
)
def test_what_the_server_would_close_for_is_not_sent(state: ConnectionState, event: Input) -> None:
    with pytest.raises(LocalProtocolError):
        advance(state, event)
