"""Commands as values: their lines, and that the server reads what was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import StartFrom
from nsq_ha.errors import ConfigError
from nsq_ha.protocol import Close, Command, Finish, Mpub, Pub, Ready, Requeue, Sub, SubAdvanced, SubOrdered, Touch
from nsq_ha.protocol.commands import Auth, Identify, MpubExt, MpubTrace, Nop, PubExt, PubTrace
from nsq_ha.protocol.encoding import MAX_BODY_BYTES, MAX_DELAY_MS, MAX_TRACE_ID
from nsq_ha.protocol.server.decoder import CommandDecoder, PublishHeader, decode_commands
from nsq_ha.protocol.server.stream import Limits
from tests.protocol.fakes import ID

names = st.text("aZ9._-", min_size=1, max_size=54) | st.just("x" * 54 + "#ephemeral")
partitions = st.none() | st.integers(0, 1023)
bodies = st.binary(min_size=1, max_size=60)
ids = st.binary(min_size=16, max_size=16) | st.lists(st.sampled_from(b"\n\r \0\xff"), min_size=16, max_size=16).map(
    bytes
)
# A message's internal id is 1..2**63-1; FIN refuses others.
message_ids = ids.map(lambda given: bytes((given[0] & 0x7F,)) + given[1:7] + bytes((given[7] | 1,)) + given[8:])
headers = st.sampled_from([b"{}", b'{"a":1}', b"[]", b'{"##trace_id":"7"}', b'{"k":"\\n"}'])
starts = st.sampled_from([StartFrom.beginning(), StartFrom.end(), StartFrom.timestamp(5), StartFrom.count(2)]).map(str)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Identify, bodies),
    st.builds(Auth, bodies),
    st.builds(Sub, names, names, partitions),
    st.builds(SubOrdered, names, names, partitions),
    st.builds(SubAdvanced, names, names, partitions),
    # A server ignores the partition that stands before a start position.
    st.builds(SubAdvanced, names, names, st.none(), starts),
    st.builds(Ready, st.integers(0, 2500)),
    st.builds(Finish, message_ids),
    st.builds(Requeue, ids, st.integers(0, MAX_DELAY_MS)),
    st.builds(Touch, ids),
    st.just(Close()),
    st.just(Nop()),
    st.builds(Pub, names, partitions, bodies),
    st.builds(PubTrace, names, partitions, st.integers(0, MAX_TRACE_ID), bodies),
    st.builds(PubExt, names, partitions, headers, bodies),
    st.builds(Mpub, names, partitions, st.lists(bodies, min_size=1, max_size=4).map(tuple)),
    st.builds(
        MpubTrace,
        names,
        partitions,
        st.lists(st.tuples(st.integers(0, MAX_TRACE_ID), bodies), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(
        MpubExt,
        names,
        partitions,
        st.lists(st.tuples(headers | st.just(b""), bodies), min_size=1, max_size=4).map(tuple),
    ),
)


@given(st.lists(commands, max_size=6))
def test_what_is_encoded_decodes_to_itself(sent: list[Command]) -> None:
    assert decode_commands(b"".join(command.encode() for command in sent)) == sent


@given(st.lists(commands, max_size=4), st.data())
def test_commands_do_not_depend_on_how_the_stream_was_cut(sent: list[Command], data: st.DataObject) -> None:
    stream = b"".join(command.encode() for command in sent)
    decoder = CommandDecoder(Limits(), magic=False)
    read: list[Command] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:size])
        stream = stream[size:]
        while (event := decoder.next_event()) is not None:
            if isinstance(event, PublishHeader):
                decoder.accept(extended=True)
            elif isinstance(event, Command):
                read.append(event)
    assert read == sent


def test_lines_of_subscriptions() -> None:
    assert Sub("t", "c", 0).encode() == b"SUB t c 0\n"
    assert Sub("t", "c#ephemeral", None).encode() == b"SUB t c#ephemeral\n"
    assert SubOrdered("t", "c", 3).encode() == b"SUB_ORDERED t c 3\n"
    assert SubAdvanced("t", "c", 3).encode() == b"SUB_ADVANCED t c 3\n"
    assert SubAdvanced("t", "c", 3, "virtual_queue:0").encode() == b"SUB_ADVANCED t c 3 virtual_queue:0\n"
    assert SubAdvanced("t", "c", None, "special:-1").encode() == b"SUB_ADVANCED t c -1 special:-1\n"


def test_lines_of_the_rest() -> None:
    assert Close().encode() == b"CLS\n"
    assert Nop().encode() == b"NOP\n"
    assert Identify(b"{}").encode() == b"IDENTIFY\n\0\0\0\2{}"
    assert Auth(b"secret").encode() == b"AUTH\n\0\0\0\6secret"


def test_a_secret_is_never_shown() -> None:
    assert "hunter2" not in repr(Auth(b"hunter2"))


@pytest.mark.parametrize(
    "command",
    [
        Sub("a b", "c", 0),
        Sub("t", "c\nNOP", 0),
        Sub("t", "c", -1),
        SubAdvanced("t", "c", 0, "timestamp"),
        SubAdvanced("t", "c", 0, "timestamp:x"),
        SubAdvanced("t", "c", 0, "timestamp:"),
        SubAdvanced("t", "c", 0, "timestamp:-5"),
        SubAdvanced("t", "c", 0, "timestamp:1\nNOP"),
        SubAdvanced("t", "c", 0, "count:1"),
        SubAdvanced("t", "c", 0, "special:0"),
        SubAdvanced("t", "c", 0, "timestamp:²"),
        SubAdvanced("t", "c d", 0, "timestamp:1"),
        Identify(b""),
        Identify(bytes(MAX_BODY_BYTES + 1)),
        Auth(b""),
        Finish(b"short"),
        Touch(ID + b"x"),
        Requeue(ID, -1),
        Ready(-1),
        Pub("t", 0, b""),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_is_not_legal_is_refused_before_it_is_sent(command: Command) -> None:
    with pytest.raises(ConfigError):
        command.encode()


def test_auth_does_not_show_its_secret() -> None:
    assert repr(Auth(b"4711")) == "Auth(secret=...)"
    assert Auth(b"4711").__rich_repr__() == []  # rich would else show the fields
