"""The table of a connection's life."""

import pytest

from nsq_ha.errors import LocalProtocolError, RemoteProtocolError
from nsq_ha.protocol.state import ANSWERED, CONSUMING, SENDS, UPGRADES, ConnectionState, after_sending, check_arrival


@pytest.mark.parametrize("state", ConnectionState)
def test_every_pair_is_decided(state: ConnectionState) -> None:
    for command, sending in SENDS.items():
        if state in sending.allowed:
            assert after_sending(state, sending, "x") is (sending.after or state)
            continue
        # Users see this: it says what happened in words of the protocol.
        with pytest.raises(LocalProtocolError, match=f"^{command.word.decode()} cannot be sent {state.value}$"):
            after_sending(state, sending, command.word.decode())


@pytest.mark.parametrize("state", ConnectionState)
def test_messages_arrive_only_after_a_subscription(state: ConnectionState) -> None:
    if state in CONSUMING:
        check_arrival(state, CONSUMING, "a message")
        return
    with pytest.raises(RemoteProtocolError, match=f"^nsqd sent a message {state.value}$"):
        check_arrival(state, CONSUMING, "a message")


def test_closed_is_final() -> None:
    assert not [command for command, sending in SENDS.items() if ConnectionState.CLOSED in sending.allowed]


def test_every_state_can_be_reached() -> None:
    reached = {ConnectionState.NEW, ConnectionState.CLOSED}  # by a refusal
    sendings = (*SENDS.values(), UPGRADES)
    for _ in ConnectionState:
        for sending in sendings:
            if reached & {*sending.allowed} and sending.after is not None:
                reached.add(sending.after)
                assert sending.request is not None
                reached.add(ANSWERED.get(sending.request, sending.after))
    assert reached == set(ConnectionState)
