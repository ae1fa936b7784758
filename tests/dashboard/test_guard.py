"""Who may see the dashboard, and who may change the cluster with it."""

import dataclasses
import time
from inspect import signature
from typing import Any
from unittest.mock import call, create_autospec

import httpx
import pytest
from starlette.requests import HTTPConnection

from nsq_ha.admin import AdminClient
from nsq_ha.base.redaction import redact
from nsq_ha.dashboard import DashboardOptions, serve
from nsq_ha.dashboard.actions import ACTIONS, LIMIT, ActionTarget, refusal, run, target_of
from nsq_ha.dashboard.app import Dashboard
from nsq_ha.dashboard.guard import LIFETIME, MAX_SESSIONS, Guard, cookie_of, session_of
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.options.start_from import StartFrom
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
    assert target_of(ACTIONS["pause-channel"], {"topic": "a", "channel": "c"}) == ActionTarget("a", "c")
    moved = target_of(ACTIONS["move-leader"], {"topic": "a", "partition": "3", "to": " n:1 "})
    assert moved == ActionTarget("a", partition=3, given={"to": "n:1"})
    subjects = {each.subject for each in (moved, ActionTarget("a", "c"), ActionTarget("a", nsqd="n:1"), ActionTarget())}
    assert subjects == {"a-3", "a/c", "a at n:1", "the cluster"}
    for name, fields in (
        ("pause-channel", {"topic": "a"}),
        ("pause-channel", {"topic": "a b", "channel": "c"}),
        ("move-leader", {"topic": "a"}),
        ("move-leader", {"topic": "a", "partition": "-1"}),
        ("expand", {"topic": "a", "partitions": "x"}),
        ("expand", {"topic": "a"}),
        ("set-offset", {"topic": "a", "channel": "c", "start": "never"}),
    ):
        with pytest.raises(NsqError):
            target_of(ACTIONS[name], fields)
        if name == "expand":
            assert target_of(ACTIONS[name], fields, is_asked=True).topic == "a"


FORM = {"topic": "a", "channel": "c", "partition": "3", "nsqd": "n:1"}


def arguments_of(name: str) -> dict[str, Any]:
    """What the form above gives a method."""
    needed = signature(getattr(AdminClient, name.replace("-", "_"))).parameters
    return {key: int(value) if key == "partition" else value for key, value in FORM.items() if key in needed}


@pytest.mark.parametrize(
    ("name", "given", "more"),
    [
        *((name, {}, {}) for name, action in ACTIONS.items() if not action.asks),
        ("move-leader", {}, {}),
        ("move-leader", {"to": "n:2"}, {"to": "n:2"}),
        ("set-offset", {}, {"start": StartFrom.beginning()}),
        ("finish-message", {"number": "7"}, {"number": 7}),
        ("expand", {"partitions": "4"}, {"partitions": 4}),
        ("create-channel", {}, {}),
        ("create-topic", {"partitions": "2", "ordered": "1"}, {"partitions": 2, "ordered": True}),
        ("create-topic", {"sync_every": "9", "extended": ""}, {"sync_every": 9}),
        ("update-topic", {"replicas": "2", "retention_days": "0"}, {"replicas": 2, "retention_days": 0}),
        ("update-topic", {"disable_channel_auto_create": "0"}, {"disable_channel_auto_create": False}),
    ],
)
async def test_an_action_calls_the_method_of_its_name(name: str, given: dict[str, str], more: dict[str, Any]) -> None:
    admin = create_autospec(AdminClient, instance=True)
    await run(admin, name, target_of(ACTIONS[name], FORM | given))
    method, limit = getattr(call, name.replace("-", "_")), ACTIONS[name].limit
    assert admin.method_calls == [method(**arguments_of(name), **more, timeout=limit)]


async def test_a_topic_is_created_with_its_first_channel() -> None:
    admin = create_autospec(AdminClient, instance=True)
    await run(admin, "create-topic", target_of(ACTIONS["create-topic"], {"topic": "a", "first_channel": "c"}))
    assert admin.method_calls[1:] == [call.create_channel("a", "c", timeout=LIMIT)]


def test_no_partitions_are_added_that_are_there() -> None:
    now = reading(1, node(1, partition("a", 0), partition("a", 1, is_leader=False)))
    for number in (1, 2):
        why = "it has 2 partitions already: give a larger number"
        assert refusal("expand", ActionTarget("a", given={"partitions": number}), now) == why
    assert refusal("expand", ActionTarget("a", given={"partitions": 3}), now) == ""
    assert refusal("expand", ActionTarget("a"), now) == ""


def test_what_cannot_be_done_now() -> None:
    now = reading(1, node(1, partition("a", 0, channel("c"))))
    assert refusal("pause-channel", ActionTarget("a", "c"), now) == ""
    assert refusal("pause-channel", ActionTarget("a", "d"), now) == "no nsqd reports this channel"
    assert refusal("unskip-channel", ActionTarget("a", "c"), now) == "the channel is not skipped"
    assert refusal("move-leader", ActionTarget("a", partition=0), now) == ""
    assert refusal("move-leader", ActionTarget("a", partition=4), now) == "no nsqd reports this partition"
    plain = reading(1, node(1, partition("a", 0, channel("c"))), is_plain=True)
    assert refusal("skip-channel", ActionTarget("a", "c"), plain) == "only a partitioned nsqd can do this"
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
    assert refusal("tombstone-node", ActionTarget("a", nsqd="n:1"), held) == ""
    assert refusal("tombstone-node", ActionTarget("a", nsqd="n:2"), held) == "it leads no partition of the topic"
    assert refusal("tombstone-node", ActionTarget("b", nsqd="n:1"), plain) == "it does not have the topic"
    new = dataclasses.replace(plain, listed={"new": TopicInfo("new")})
    text = "no nsqd has the topic yet: it gets its channels with its first message"
    assert refusal("pause-channel", ActionTarget("new", "c"), new) == text
    assert refusal("delete-topic", ActionTarget("b"), now) == "there is no such topic"
    assert refusal("create-topic", ActionTarget("b"), now) == ""
    assert refusal("tombstone-node", ActionTarget("a", nsqd="n:9"), now) == "the cluster lists no such nsqd"
