"""Who may see the dashboard, and who may change the cluster with it."""

import dataclasses
import time
from unittest.mock import call, create_autospec

import httpx
import pytest
from starlette.requests import HTTPConnection

from nsq_ha.admin import AdminClient
from nsq_ha.base.redaction import redact
from nsq_ha.dashboard import DashboardOptions, serve
from nsq_ha.dashboard.actions import ACTIONS, LIMIT, LONG, ActionTarget, refusal, run, target_of
from nsq_ha.dashboard.app import Dashboard
from nsq_ha.dashboard.guard import LIFETIME, MAX_SESSIONS, Guard, cookie_of, session_of
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.errors import ConfigError, NsqError
from tests.dashboard.conftest import channel, node, partition, reading
from tests.support.turns import TURN

TOKEN = "correct horse battery"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:4171", True),
        ("LOCALHOST", True),
        ("127.0.0.1:80", True),
        ("[::1]:4171", True),
        ("10.1.2.3", True),
        ("ops.example:4171", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("user@localhost", False),
        ("localhost/x", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_our_hosts_are_ours(host: str, *, expected: bool) -> None:
    assert Guard(None, hosts=("ops.example",)).is_ours(host) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ({"host": "localhost:1", "origin": "https://LOCALHOST:1"}, True),
        ({"host": "localhost:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, False),
        ({"host": "localhost:1", "origin": "http://evil.example"}, False),
        ({"host": "localhost:1", "origin": "null"}, False),
        ({"host": "localhost:1", "origin": "http://["}, False),
        ({"host": "localhost:1", "origin": "http://localhost:1", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost:1", "sec-fetch-site": "same-site"}, False),
        ({"host": "localhost:1"}, False),
    ],
)
def test_only_our_origin_is_ours(headers: dict[str, str], *, expected: bool) -> None:
    assert Guard(None).is_same_origin(headers) is expected


def test_sessions_end_and_are_bounded() -> None:
    now = 0.0
    guard = Guard(TOKEN, clock=lambda: now)
    assert guard.sign_in("wrong") is None
    assert guard.sign_in("wrong \u00e9\udc80".encode("utf-8", "replace").decode()) is None
    first = guard.sign_in(TOKEN)
    session = guard.session(first)
    assert session is not None
    assert guard.has_key(session, session.key)
    assert not guard.has_key(session, "")
    assert guard.session(None) is guard.session("x") is None
    *_, last = [guard.sign_in(TOKEN) for _ in range(MAX_SESSIONS)]
    assert guard.session(first) is None
    guard.sign_out(last)
    assert guard.session(last) is None
    again = guard.sign_in(TOKEN)
    now = LIFETIME
    assert guard.session(again) is None


@pytest.mark.parametrize("value", ['"' + '\\"' * 15_000 + '"', ";=" * 15_000])
def test_no_cookie_takes_time(value: str) -> None:
    """Whoever may connect may send it."""
    cookie = f"a={value}; nsq_ha_dashboard=s"
    request = HTTPConnection({"type": "http", "headers": [(b"host", b"localhost"), (b"cookie", cookie.encode())]})
    began = time.thread_time()
    assert session_of(request) == "s"
    assert time.thread_time() - began < TURN


def test_dashboards_on_other_ports_have_other_cookies() -> None:
    """A browser sends a cookie to every port of a host, so one dashboard signed the other out."""

    def request(host: str, cookie: str = "") -> HTTPConnection:
        return HTTPConnection({"type": "http", "headers": [(b"host", host.encode()), (b"cookie", cookie.encode())]})

    one, other = request("localhost:4180"), request("localhost:4181")
    assert cookie_of(one) == "nsq_ha_dashboard_4180"
    assert len({cookie_of(each) for each in (one, other, request("localhost"))}) == 3
    for host in ("localhost", "[::1]", "a:" + "9" * 20, "a:4\u00b2", "a:=;"):
        assert cookie_of(request(host)) == "nsq_ha_dashboard"
    assert cookie_of(request("[::1]:80")) == "nsq_ha_dashboard_80"
    both = f"{cookie_of(one)}=a; {cookie_of(other)}=b"
    assert [session_of(request(f"localhost:{port}", both)) for port in (4180, 4181, 4182)] == ["a", "b", None]


def test_tokens() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        Guard("short")
    assert Guard(None).sign_in("") is None
    Guard(TOKEN)
    assert TOKEN not in redact(f"text {TOKEN}")
    assert TOKEN not in repr(DashboardOptions(token=TOKEN))


@pytest.mark.parametrize("options", [DashboardOptions(may_change=True), DashboardOptions(host="10.0.0.1")])
async def test_what_needs_a_token_does_not_start_without(options: DashboardOptions) -> None:
    async with AdminClient("127.0.0.1:1") as admin:
        with pytest.raises(ConfigError, match="token"):
            await serve(admin, options)


@pytest.mark.parametrize("path", ["/sign-in/", "/sign-in-x", "/static/a/b", "/static/", "/"])
async def test_a_private_dashboard_shows_nothing_beside_its_sign_in(path: str) -> None:
    """A path that only begins like that of signing in had a page with the banner, which has the servers' errors."""
    async with AdminClient("127.0.0.1:1") as admin:
        app = Dashboard(admin, DashboardOptions(host="10.0.0.1", token=TOKEN)).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert [(await client.get(free)).status_code for free in ("/sign-in", "/static/icon.svg")] == [200, 200]
            answer = await client.get(path)
    assert answer.status_code in (303, 404)
    assert "banner" not in answer.text


def test_targets() -> None:
    assert target_of(ACTIONS["pause"], {"topic": "a", "channel": "c"}) == ActionTarget("a", "c")
    assert target_of(ACTIONS["move-leader"], {"topic": "a", "partition": "3", "to": " n:1 "}).to == "n:1"
    assert ActionTarget("a", "c").subject == "a/c"
    assert ActionTarget("a", partition=3).subject == "a-3"
    for name, fields in (
        ("pause", {"topic": "a"}),
        ("pause", {"topic": "a b", "channel": "c"}),
        ("move-leader", {"topic": "a"}),
        ("move-leader", {"topic": "a", "partition": "-1"}),
    ):
        with pytest.raises(NsqError):
            target_of(ACTIONS[name], fields)


FORM = {"topic": "a", "channel": "c", "partition": "3", "nsqd": "n:1"}


@pytest.mark.parametrize(
    ("name", "to", "expected"),
    [
        ("pause", "", call.pause_channel("a", "c", timeout=LIMIT)),
        ("unpause", "", call.unpause_channel("a", "c", timeout=LIMIT)),
        ("skip", "", call.skip_channel("a", "c", timeout=LIMIT)),
        ("unskip", "", call.unskip_channel("a", "c", timeout=LIMIT)),
        ("empty", "", call.empty_channel("a", "c", timeout=LIMIT)),
        ("reset", "", call.reset_channel("a", "c", timeout=LIMIT)),
        ("create-channel", "", call.create_channel("a", "c", timeout=LIMIT)),
        ("delete-channel", "", call.delete_channel("a", "c", timeout=LIMIT)),
        ("move-leader", "", call.move_leader("a", 3, None, timeout=LIMIT)),
        ("move-leader", "n:2", call.move_leader("a", 3, "n:2", timeout=LIMIT)),
        ("create-topic", "2", call.create_topic("a", 2, timeout=LONG)),
        ("expand", "4", call.expand("a", 4, timeout=LONG)),
        ("delete-topic", "", call.delete_topic("a", timeout=LIMIT)),
        ("pause-topic", "", call.pause_topic("a", timeout=LIMIT)),
        ("unpause-topic", "", call.unpause_topic("a", timeout=LIMIT)),
        ("empty-topic", "", call.empty_topic("a", timeout=LIMIT)),
        ("tombstone", "", call.tombstone_node("a", "n:1", timeout=LIMIT)),
        ("restore", "", call.restore_node("a", "n:1", timeout=LIMIT)),
    ],
)
async def test_an_action_calls_the_method_of_its_name(name: str, to: str, expected: object) -> None:
    admin = create_autospec(AdminClient, instance=True)
    await run(admin, name, target_of(ACTIONS[name], FORM | {"to": to}))
    assert admin.method_calls == [expected]


@pytest.mark.parametrize("number", ["99999", "-3", "0", "256", "x", "9" * 300])
def test_a_number_of_partitions_is_in_its_range(number: str) -> None:
    for name in ("create-topic", "expand"):
        with pytest.raises(ConfigError, match=r"^the number of partitions must be 1\.\.255, not '"):
            target_of(ACTIONS[name], {"topic": "a", "to": number})
        assert target_of(ACTIONS[name], {"topic": "a", "to": number}, is_asked=True).to == ""
    assert target_of(ACTIONS["create-topic"], {"topic": "a", "to": " "}).to == "1"
    assert target_of(ACTIONS["create-topic"], {"topic": "a", "to": "255"}).to == "255"


def test_no_partitions_are_added_that_are_there() -> None:
    now = reading(1, node(1, partition("a", 0), partition("a", 1, is_leader=False)))
    for number in ("1", "2"):
        why = "it has 2 partitions already: give a larger number"
        assert refusal("expand", ActionTarget("a", to=number), now) == why
    assert refusal("expand", ActionTarget("a", to="3"), now) == refusal("expand", ActionTarget("a"), now) == ""


def test_what_cannot_be_done_now() -> None:
    now = reading(1, node(1, partition("a", 0, channel("c"))))
    assert refusal("pause", ActionTarget("a", "c"), now) == ""
    assert refusal("pause", ActionTarget("a", "d"), now) == "no nsqd reports this channel"
    assert refusal("unskip", ActionTarget("a", "c"), now) == "the channel is not skipped"
    assert refusal("move-leader", ActionTarget("a", partition=0), now) == ""
    assert refusal("move-leader", ActionTarget("a", partition=4), now) == "no nsqd reports this partition"
    plain = reading(1, node(1, partition("a", 0, channel("c"))), is_plain=True)
    assert refusal("skip", ActionTarget("a", "c"), plain) == "only a partitioned nsqd can do this"
    assert refusal("pause-topic", ActionTarget("a"), plain) == ""
    unstable = reading(1, node(1, partition("a", 0)), stable=False)
    for name in ("move-leader", "expand"):
        assert refusal(name, ActionTarget("a", partition=0), unstable).startswith("the cluster is unstable: ")
    none = dict.fromkeys(("cluster", "nodes", "topics"), "refused")
    for lost, why in (
        (reading(1, errors=none), "no nsqlookupd answers"),
        (reading(1, stable=None), "no nsqlookupd leads"),
    ):
        assert why in refusal("create-topic", ActionTarget("b"), lost)
    assert refusal("create-topic", ActionTarget("b"), reading(1, is_plain=True, stable=None)) == ""
    held = reading(1, node(1, partition("a", 0)), node(2, partition("a", 0, is_leader=False)))
    assert refusal("tombstone", ActionTarget("a", nsqd="n:1"), held) == ""
    assert refusal("tombstone", ActionTarget("a", nsqd="n:2"), held) == "it leads no partition of the topic"
    assert refusal("tombstone", ActionTarget("b", nsqd="n:1"), plain) == "it does not have the topic"
    new = dataclasses.replace(plain, listed={"new": TopicInfo("new")})
    text = "no nsqd has the topic yet: it gets its channels with its first message"
    assert refusal("pause", ActionTarget("new", "c"), new) == text
    assert refusal("delete-topic", ActionTarget("b"), now) == "there is no such topic"
    assert refusal("create-topic", ActionTarget("b"), now) == ""
    assert refusal("tombstone", ActionTarget("a", nsqd="n:9"), now) == "the cluster lists no such nsqd"
