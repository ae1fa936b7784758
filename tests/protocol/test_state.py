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


def test_closed_is_final() -> None:
    leaving = {event for (state, event) in TRANSITIONS if state is ConnectionState.CLOSED}
    assert not leaving


def test_every_state_can_be_reached() -> None:
    reached = {ConnectionState.NEW}
    while more := {after for (before, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(ConnectionState)
