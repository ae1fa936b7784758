"""Pages, charts and figures, without a server."""

import dataclasses
import html
import json
import math
import re
from html.parser import HTMLParser

import msgspec
import pytest

from nsq_ha.admin import (
    Latency,
    LookupdState,
    PartitionDescription,
    PublisherStats,
    StoredMessage,
    TopicDescription,
    TopicView,
)
from nsq_ha.admin.browsing import Browsed, LogLook, LogPlace, with_plugin
from nsq_ha.base.markup import Html, join, path, query, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.charts import HEIGHT, MAX_POINTS, ChartLine, chart, merged, timeline
from nsq_ha.dashboard.guard import MAX_ADDRESS, arguments
from nsq_ha.dashboard.history import ClusterEvent, History, Period
from nsq_ha.dashboard.pages import change, frame
from nsq_ha.dashboard.pages.channel import channel_page
from nsq_ha.dashboard.pages.messages import messages_page, place_of
from nsq_ha.dashboard.pages.nodes import node_page, nodes
from nsq_ha.dashboard.pages.overview import overview
from nsq_ha.dashboard.pages.search import search_page
from nsq_ha.dashboard.pages.timeline import timeline as timeline_page
from nsq_ha.dashboard.pages.topics import topic_page, topics
from nsq_ha.dashboard.pages.ui import Board, Page, marked
from nsq_ha.engine.answers import NodeInfo, TopicInfo
from nsq_ha.policy.topology import Node
from tests.dashboard.conftest import CLIENT, HOSTILE, channel, node, partition, reading


class Tags(HTMLParser):
    """Notes the elements, and whether all are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in ("input", "link", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def filled(*names: str, paused: bool = False) -> History:
    """A history in which everything has a hostile name."""
    kept = History(5)
    for at in (100, 102):
        latency = Latency(3, ((0.99, 0.25),))
        channels = [
            dataclasses.replace(
                channel(name, depth=at, oldest_at=90.0, paused=paused), latency=latency, connections=(CLIENT,)
            )
            for name in names
        ]
        nodes = [node(4150, partition("orders", 0, *channels)), node(4250, error=HOSTILE)]
        kept.add(reading(at, *nodes, before=kept.latest, stable=False, has_clients=True))
    return kept


def every_page(board: Board, topic: str, name: str) -> list[Page]:
    pages = [overview(board), topics(board), nodes(board), timeline_page(board), search_page(board, None, HOSTILE)]
    return [*pages, topic_page(board, topic), channel_page(board, topic, name), node_page(board, "n:4150")]


def test_no_text_can_become_markup() -> None:
    kept = History(5)
    hostile_channel = channel(HOSTILE, depth=3)
    client = msgspec.structs.replace(CLIENT, client_id=HOSTILE, hostname=HOSTILE, user_agent=HOSTILE, tag=HOSTILE)
    hostile_channel = dataclasses.replace(hostile_channel, connections=(client,))
    for at in (1, 2):
        lookupd = LookupdState(HOSTILE, leads=True, error=HOSTILE)
        broken = dataclasses.replace(
            node(4150, partition(HOSTILE, 0, hostile_channel)), version=HOSTILE, health=HOSTILE
        )
        kept.add(
            reading(at, broken, node(4250, error=HOSTILE), before=kept.latest, lookupds=[lookupd], has_clients=True)
        )
    kept.tell(ClusterEvent(3, "operator", "bad", HOSTILE, HOSTILE, HOSTILE))
    board = Board(kept, 3.0, may_change=True, arguments={"q": HOSTILE[:3], "topic": HOSTILE[:20]})
    for page in every_page(board, HOSTILE, HOSTILE):
        text = frame.document(Page(page.title, frame.live(board, page)), place="/", is_live=True)
        assert parsed(text).names.count("script") == 1
        assert "\u202e" not in text
    text = timeline_page(Board(kept, 3.0)).content
    assert html.escape(HOSTILE[:20], quote=True) in text


def test_every_page_shows_its_parts() -> None:
    kept = filled("billing", "audit")
    board = Board(kept, 102.0)
    joined = {page.title: page.content for page in every_page(board, "orders", "billing")}
    for content in joined.values():
        parsed(content)
    assert "1 of 2" in joined["Overview"]
    assert "unstable" in joined["Overview"]
    assert "Current problems" in joined["Overview"]
    assert "250 ms" in joined["orders/billing"]
    assert "host" in joined["orders/billing"]
    assert "12 s" in joined["orders/billing"]
    assert "go-nsq/1" in joined["n:4150"]
    assert "Leaders cannot be moved now" in joined["Nodes"]


def test_a_topic_shows_who_publishes_and_what_is_counted() -> None:
    kept = History(5)
    led = dataclasses.replace(
        partition("a", 0, dataclasses.replace(channel("c"), finished_within=(0, 5) + (0,) * 9 + (1,))),
        producers=(PublisherStats("10.0.0.9:5", "go-nsq/1", "", 7, 1, 9),),
        sizes=(3, 0, 2),
    )
    view = TopicView("a", None, {}, complete=True, exists=True)
    described = TopicDescription(view, (PartitionDescription(0, None, True, (), led),), "")
    kept.add(dataclasses.replace(reading(10, node(4150, led)), details={"a": described}, has_clients=True))
    board = Board(kept, 10.0)
    text = topic_page(board, "a").content
    row = re.findall(r'<tr data-key="10.0.0.9:5 0">(.*?)</tr>', text)[0]
    cells = dict(re.findall(r'data-label="([^"]+)"><div>([^<]+)', row))
    assert cells == {
        "client": " ",
        "library": "go-nsq/1",
        "partition": "0",
        "since": "1 s",
        "failed": "1",
        "published": "7",
    }
    assert "&lt; 100 B: 3, &lt; 2 kB: 2" in text
    assert "&lt; 32 ms: 5, longer: 1" in channel_page(board, "a", "c").content
    assert 'data-label="disk"><div>300 B' in topics(board).content


def test_a_command_is_marked_from_its_first_to_its_last_word() -> None:
    text = re.sub("</?span>", "", marked("if it is gone: nsq-ha node forget n:1; or give --a-b <file>"))
    assert text == "if it is gone: <code>nsq-ha node forget n:1</code>; or give <code>--a-b</code> &lt;file&gt;"


def test_buttons_are_only_for_those_who_may_change() -> None:
    kept = filled("billing", paused=True)
    reader, operator = Board(kept, 102.0), Board(kept, 102.0, may_change=True)
    assert "confirm" not in "".join(page.content for page in every_page(reader, "orders", "billing"))
    text = channel_page(operator, "orders", "billing").content
    assert re.findall(r"/confirm/([a-z-]+)", text) == [
        "unpause-channel",
        "skip-channel",
        "empty-channel",
        "set-offset",
        "delete-channel",
        "finish-message",
    ]
    # What an unstable cluster refuses is disabled, with the reason.
    topic = topic_page(operator, "orders").content
    assert re.findall(r"/confirm/([a-z-]+)", topic) == ["create-channel", "update-topic", "delete-topic"]
    assert re.findall(r'class="button disabled"[^>]*>([^<]+)', topic) == ["Add partitions"]
    assert "/confirm/move-leader" not in topic_page(operator, "orders").content  # there is no other replica


def test_a_channel_that_is_paused_in_a_part_says_so() -> None:
    kept = History(5)
    parts = [partition("orders", number, channel("billing", paused=number == 0)) for number in range(3)]
    kept.add(reading(1, *(node(4150 + number, part) for number, part in enumerate(parts)), has_clients=True))
    text = channel_page(Board(kept, 1.0, may_change=True), "orders", "billing").content
    assert "paused on 1 of 3" in text
    assert re.findall(r"/confirm/(\w*pause)", text) == ["unpause"]


def test_a_stored_message_cannot_become_markup() -> None:
    each = Browsed(
        0, StoredMessage(1, 2, 3, 4, 5, HOSTILE, json.dumps({"h": HOSTILE, "##client_dispatch_tag": HOSTILE}))
    )
    board = Board(History(5), 3.0, arguments=dict.fromkeys(("topic", "contains", "as"), HOSTILE[:20]))
    text = messages_page(board, LogLook((each,), 1, {0: 4}, {0: 6}, (HOSTILE,)), HOSTILE).content
    assert "script" not in parsed(text).names
    assert "\u202e" not in text


def test_a_link_to_other_messages_keeps_its_place_in_every_partition() -> None:
    """With a hundred partitions the address was cut, so that Older showed the latest messages, or a part of them."""
    numbers = dict.fromkeys(range(255), 10**12)
    board = Board(History(5), 1.0, arguments={"topic": "t" * 64})
    links = re.findall(r'href="(/messages[^"]+)"', messages_page(board, LogLook((), 1, numbers, numbers, ())).content)
    assert [place_of(arguments(html.unescape(link)[:MAX_ADDRESS]), 0.0) for link in links] == [
        LogPlace(numbers, is_backward=True),
        LogPlace(numbers, is_backward=False),
    ]


def test_a_plain_cluster_has_no_partitions_and_leaders() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, partition("orders", 0, channel("c"))), is_plain=True, stable=None))
    board = Board(kept, 1.0, may_change=True)
    text = "".join(page.content for page in every_page(board, "orders", "c"))
    assert "leader" not in text.lower()
    found = [
        re.findall(r"/confirm/([a-z-]+)", page.content)
        for page in (channel_page(board, "orders", "c"), topic_page(board, "orders"), topics(board))
    ]
    assert found == [
        ["pause-channel", "empty-channel", "delete-channel"],
        ["create-channel", "pause-topic", "empty-topic", "delete-topic"],
        ["create-topic"],
    ]


def test_a_plain_nsqd_says_what_is_only_in_memory_and_what_clients_do_not_find() -> None:
    kept = History(5)
    waiting = dataclasses.replace(channel("c", depth=5), on_disk=2)
    placed = dataclasses.replace(partition("orders", 0, waiting), unrouted=7, on_disk=3, paused=True)
    now = reading(1, node(4150, placed), node(4250, placed), node(4350, placed), node(4450, error="x"), is_plain=True)
    infos = {
        f"n:{port}": NodeInfo(Node("n", port, port + 1), "h", "1", {}, topics, frozenset(hidden))
        for port, topics, hidden in ((4150, ("orders",), ()), (4250, ("orders",), ("orders",)), (4350, (), ()))
    }
    kept.add(dataclasses.replace(now, infos=infos, listed={"others": TopicInfo("others")}))
    board = Board(kept, 1.0)
    page = topic_page(board, "orders").content
    rows = dict(re.findall(r'<tr data-key="([^"]+)">(.*?)</tr>', page))
    cells = {key: re.findall(r"<div>(?:<[^>]+>)*([^<]*)", row) for key, row in rows.items()}
    assert cells["orders None c"] == ["c", "15", "9", "6", "0", "0", "0", "0", "30", "3"]
    assert cells["n:4150"] == ["n:4150", "10", "7", "4", "3", "1"]
    badges = {key: re.findall(r'class="badge [^"]*">([^<]+)', row) for key, row in rows.items() if key[0] == "n"}
    assert badges == {"n:4150": ["paused"], "n:4250": ["paused", "tombstoned"], "n:4350": ["paused", "not registered"]}
    for text in (page, channel_page(board, "orders", "c").content):
        assert "1 of 4 nsqds does not answer: n:4450. What it has is missing here." in text
    assert "no nsqlookupd lists it" in topics(board).content


def test_what_waits_for_the_first_channel_counts() -> None:
    """Such messages were in no figure but that of the nsqds."""
    kept = History(5)
    new = dataclasses.replace(partition("orders"), unrouted=10)
    kept.add(reading(1, node(4150, new, partition("a", 0, channel("c", depth=3))), node(4250, new), is_plain=True))
    board = Board(kept, 1.0)
    (row,) = re.findall(r'<tr data-key="orders">(.*?)</tr>', topics(board).content)
    cells = dict(re.findall(r'data-label="([^"]+)"><div>([^<]*)', row))
    assert (cells["channels"], cells["depth"]) == ("0", "20")
    assert "<dt>waiting</dt><dd>20</dd>" in topic_page(board, "orders").content
    assert "<dt>waiting</dt><dd>23</dd>" in overview(board).content


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_plain_cluster_does_not_know_the_lag(is_plain: bool) -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, partition("orders", 0, channel("c"))), is_plain=is_plain))
    board, lag = Board(kept, 1.0), "–" if is_plain else "0 s"
    assert ("<dt>longest lag</dt><dd>0 s</dd>" in overview(board).content) is not is_plain
    assert f"<dt>lag</dt><dd>{lag}</dd>" in channel_page(board, "orders", "c").content
    assert f'data-label="lag"><div>{lag}</div>' in topics(board).content
    for page in (overview(board), channel_page(board, "orders", "c")):
        assert ("chart-lag" in page.content) is not is_plain


def test_no_figure_is_good_while_nobody_answers() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, partition("orders", 0, channel("c")))))
    assert overview(Board(kept, 1.0)).content.count('class="tile good"') == 3
    kept.add(dataclasses.replace(reading(2, node(4150, partition("orders"))), errors={"nsqds": "refused"}))
    text = overview(Board(kept, 2.0)).content
    assert "the cluster does not answer" in text
    assert 'class="tile good"' not in text
    for label in ("nsqds that answer", "partitions without leader"):
        assert f"<dt>{label}</dt><dd>–</dd>" in text


def test_nobody_knows_whether_the_cluster_is_stable_while_no_nsqlookupd_answers() -> None:
    """It was green."""
    kept, none = History(5), dict.fromkeys(("cluster", "nodes", "topics"), "refused")
    kept.add(reading(1, node(4150)))
    kept.add(reading(2, node(4150), errors={"cluster": "no answer within 5 s"}, before=kept.latest))
    assert "<dd>stable" not in overview(Board(kept, 2.0)).content
    kept.add(reading(2, node(4150), errors=none, before=kept.latest))
    board = Board(kept, 2.0)
    assert '<div class="tile warning"><dt>cluster</dt><dd>unknown</dd></div>' in overview(board).content
    assert "The cluster is stable" not in nodes(board).content
    assert 'data-label="role"><div>leads' not in nodes(board).content


def test_what_a_plain_nsqd_that_is_gone_had_is_not_zero() -> None:
    kept = History(5)
    held = partition("orders", 0, channel("c", depth=5))
    kept.add(reading(1, node(4150, held), node(4250, held), is_plain=True))
    gone = dataclasses.replace(
        reading(3, node(4150, held), before=kept.latest, is_plain=True), absent={"n:4250": node(4250, error="refused")}
    )
    kept.add(gone)
    board = Board(kept, 3.0)
    rows = dict(re.findall(r'<tr data-key="([^"]+)">(.*?)</tr>', nodes(board).content))
    assert 'data-label="topics"><div>–' in rows["n:4250"]
    assert 'data-label="topics"><div>1' in rows["n:4150"]
    assert "<dt>messages so far</dt><dd>≥ 10</dd>" in overview(board).content
    assert "<dt>waiting</dt><dd>≥ 5</dd>" in overview(board).content
    text = topic_page(board, "orders").content
    assert "1 of 2 nsqds does not answer: n:4250." in text
    assert "nsqd n:4250 gone" in text  # among its events
    assert 'class="band' in text


def test_what_silent_nsqds_have_is_not_said_to_be_nothing() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150)))
    assert "There are no channels." in overview(Board(kept, 1.0)).content
    kept.add(reading(2, node(4150, error="x"), before=kept.latest))
    board = Board(kept, 2.0)
    text = overview(board).content
    assert ("There are no" in text, text.count("No nsqd that answers has a")) == (False, 1)
    for label in ("messages", "clients"):
        assert f"<dt>{label}</dt><dd>–</dd>" in node_page(board, "n:4150").content


def test_a_client_shows_how_it_is_connected() -> None:
    kept = History(5)
    client = msgspec.structs.replace(CLIENT, tls_version="TLS1.3", sample_rate=10, auth_identity="ops")
    consumed = dataclasses.replace(channel("c"), connections=(client, CLIENT))
    kept.add(reading(1, node(4150, partition("a", 0, consumed)), has_clients=True))
    shown = re.findall(r'class="badge [^"]*">([^<]+)', channel_page(Board(kept, 1.0), "a", "c").content)
    assert shown == ["TLS1.3", "snappy", "tag t", "samples 10 %", "AUTH ops", "TLS", "snappy", "tag t"]


@pytest.mark.parametrize(
    ("ready", "in_flight", "depth", "said"), [(5, 5, 9, ["no more"]), (0, 0, 9, ["none"]), (5, 4, 9, []), (5, 5, 0, [])]
)
def test_a_client_that_takes_no_more_is_marked(ready: int, in_flight: int, depth: int, said: list[str]) -> None:
    kept = History(5)
    client = msgspec.structs.replace(CLIENT, ready=ready, in_flight=in_flight)
    consumed = dataclasses.replace(channel("c", depth=depth), connections=(client,))
    kept.add(reading(1, node(4150, partition("a", 0, consumed)), has_clients=True))
    page = channel_page(Board(kept, 1.0), "a", "c").content
    assert re.findall(r'class="badge warning" title="nsqd cannot say why: [^"]*">([^<]+)', page) == said


def test_an_nsqd_whose_clients_are_not_listed_is_named_beside_those_of_others() -> None:
    """The table looked like a whole one."""
    kept, small = History(5), dataclasses.replace(channel("c"), connections=(CLIENT,))
    large = partition("a", 0, channel("c", clients=9))
    kept.add(reading(1, node(4150, large), node(4160, partition("a", 1, small)), has_clients=True))
    page = channel_page(Board(kept, 1.0), "a", "c").content
    assert ("too many clients to list at n:4150." in page, CLIENT.address in page) == (True, True)


def test_rates_are_shown_though_there_are_more_series_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand channels at the first reading, no rate had a place later: not even those of the cluster."""
    monkeypatch.setattr("nsq_ha.dashboard.history.MAX_SERIES", 10)
    kept = History(5)
    for at, messages in ((1, 10), (3, 20)):
        channels = [channel(f"c{number}", messages=messages) for number in range(10)]
        kept.add(reading(at, node(4150, partition("orders", 0, *channels, messages=messages)), before=kept.latest))
    board = Board(kept, 3.0)
    text = overview(board).content
    assert text.count('data-label="finished"><div>5/s') == 10
    assert 'data-label="published"><div>5/s' in topics(board).content
    for page in (text, topic_page(board, "orders").content):
        assert "<dt>published</dt><dd>5/s</dd>" in page


def test_bodies_are_shown_by_a_function_of_the_users() -> None:
    board = Board(History(5), 1.0, arguments={"topic": "a", "as": "builtins:len", "key": "k"})
    found = LogLook((Browsed(0, StoredMessage(1, 2, 3, 4, 5, "abc", "")),), 1, {}, {}, ())
    text = messages_page(board, found, plugins={"builtins:len": with_plugin("builtins:len")}).content
    assert re.findall(r"<pre[^>]*>(\d+)</pre>", text) == ["3"]
    assert "<option selected>builtins:len</option>" in text
    assert 'name="key" value="k"' in text


def test_a_partition_without_a_leader_is_missing_in_the_figures() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, partition("a", 0, channel("c")), partition("a", 1, is_leader=False))))
    board = Board(kept, 1.0)
    for page in (topic_page(board, "a"), channel_page(board, "a", "c")):
        assert "No leader answers for partition 1: its figures are missing here." in page.content
    kept.add(reading(2, node(4150, *(partition("a", number, is_leader=False) for number in (0, 1)))))
    assert "No leader answers for partitions 0, 1: their figures are missing here." in topic_page(board, "a").content
    kept.add(reading(3, node(4150, partition("a", 0, channel("c")), partition("a", 1, is_leader=False))))
    for page in (topic_page(board, "a"), channel_page(board, "a", "c")):
        assert "<dt>waiting</dt><dd>≥ 0</dd></div>" in page.content
    assert "a part is missing" in topics(board).content
    assert topic_page(board, "a").content.count('class="tile warning"') == 4


def test_what_is_missing_is_said() -> None:
    kept = History(5)
    board = Board(kept, 1.0)
    assert topic_page(board, "orders").status == 200
    assert "for the first time" in frame.live(board, overview(board))
    kept.add(reading(1, node(4150)))
    for page in (topic_page(board, "x"), channel_page(board, "x", "y"), node_page(board, "z:1")):
        assert page.status == 404
        assert "There is no topic" in page.content or "no" in page.content
    kept.add(reading(2, errors={"nsqds": "no nsqlookupd answers", "cluster": "x"}))
    assert "no nsqlookupd answers" in frame.banner(Board(kept, 60.0))
    kept.add(
        reading(3, node(4150), before=kept.latest, errors=dict.fromkeys(("cluster", "nodes", "topics"), "refused"))
    )
    board = Board(kept, 3.0)
    assert "those of the nsqds that are known" in frame.banner(board)
    assert re.findall("<small>([^<]*)</small>", nodes(board).content)[-1:] == ["refused"]
    kept.add(reading(3, node(4150), errors={"topics": "slow"}))
    assert "topics: slow" in frame.banner(Board(kept, 3.0))


def test_topics_are_filtered_and_sorted() -> None:
    kept = History(5)
    deep, flat = partition("b-deep", 0, channel(depth=9)), partition("a-flat", 0, channel(depth=1))
    kept.add(reading(1, node(1, deep, flat)))

    def shown(**arguments: str) -> list[str]:
        return re.findall(r'data-key="([^"]+)"', topics(Board(kept, 1.0, arguments=arguments)).content)

    assert shown() == ["a-flat", "b-deep"]
    assert shown(sort="depth") == ["b-deep", "a-flat"]
    assert shown(sort="nothing") == ["a-flat", "b-deep"]
    assert shown(q="DEEP") == ["b-deep"]
    assert "No topic has this text" in topics(Board(kept, 1.0, arguments={"q": "zzz"})).content


def test_many_topics_come_in_pages() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, *(partition(f"t{number:03}") for number in range(120)))))

    def shown(**arguments: str) -> list[str]:
        text = topics(Board(kept, 1.0, arguments=arguments)).content
        return re.findall(r'data-key="(t[0-9]+)"', text)

    assert shown() == [f"t{number:03}" for number in range(50)]
    assert shown(page="3") == [f"t{number:03}" for number in range(100, 120)]
    assert shown(page="99") == shown(page="3")
    assert shown(page="x") == shown()
    assert shown(q="t11") == [f"t{number}" for number in range(110, 120)]
    text = topics(Board(kept, 1.0, arguments={"page": "2", "q": "t"})).content
    assert "51–100 of 120" in text
    assert 'href="/topics?q=t&amp;page=3"' in text
    assert len(text) < 60_000


def test_a_chart_leaves_gaps_and_keeps_peaks() -> None:
    times = [float(number) for number in range(1000)]
    values = [math.nan if number < 500 else 1.0 for number in range(1000)]
    values[777] = 40.0
    text = chart("x", "Title", times, [ChartLine("depth", values)], periods=[Period("silent", "n:1", "why", 10, 20)])
    parsed(text)
    found = re.search(r'data-chart="([^"]+)"', text)
    assert found is not None
    data = json.loads(html.unescape(found[1]))
    [[label, points]] = data["lines"]
    assert label == "depth"
    assert len(points) == len(data["times"]) <= MAX_POINTS
    assert max(point for point in points if point is not None) == 40.0
    assert points[0] is None
    assert data["times"][-1] == 999.0
    assert text.count('class="band outage"') == 1
    assert f"V{HEIGHT}" not in text


def test_outages_that_overlap_are_one_band() -> None:
    """Those of a hundred partitions used to add up to solid red over the line."""
    many = [Period("leaderless", f"t-{number}", "why", 10 + number / 100, 20) for number in range(100)]
    bands = merged([*many, Period("silent", "n:1", "why", 15, 25), Period("silent", "n:1", "why", 40)], 0, 50)
    assert [times for times, _ in bands] == [(10, 25), (40, 50)]
    assert bands[0][1].endswith("t-4: why and 96 more")
    assert merged(many, 30, 50) == []


def test_the_timeline_has_a_row_for_each_thing() -> None:
    mark = ClusterEvent(15, "leader", "warning", "orders-0", "moved", "orders")
    periods = [Period("leaderless", "orders-0", "why", 12, 14), Period("unstable", "cluster", "why", 11)]
    text = timeline("x", 10, 20, periods, [mark])
    parsed(text)
    assert re.findall(r'class="subject">([^<]+)', text) == ["cluster", "orders-0"]
    assert text.count('class="mark"') == 1
    assert "lasts" in text
    assert "Nothing happened" in timeline("x", 10, 20, [], [])
    many = [Period("silent", f"n:{number}", "why", 12) for number in range(50)]
    assert "10 more" in timeline("x", 10, 20, many, [])
    now = Period("gone", "n:999", "gone", 19)  # the last that began had no row
    over = [dataclasses.replace(each, ended=20.0) for each in many]
    assert "n:999" in timeline("x", 10, 20, [*over, now], [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0"),
        (7, "7"),
        (2.5, "2.5"),
        (999, "999"),
        (1000, "1k"),
        (12345, "12.3k"),
        (4e6, "4M"),
    ],
)
def test_short_numbers(value: float | None, expected: str) -> None:
    assert figures.short(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (-1, "0 s"),
        (0.42, "0.4 s"),
        (3, "3 s"),
        (119, "119 s"),
        (600, "10 min"),
        (7500, "2 h 5 min"),
        (2 * 86400 + 3700, "2 d 1 h"),
    ],
)
def test_spans(value: float | None, expected: str) -> None:
    assert figures.span(value) == expected


def test_other_figures() -> None:
    assert [figures.size(value) for value in (None, 12, 1536, 5 * 2**20)] == ["–", "12 B", "1.5 kB", "5 MB"]
    assert [figures.brief(value) for value in (None, 0.0012, 0.25, 2.0)] == ["–", "1.2 ms", "250 ms", "2.0 s"]
    assert [figures.rate(value) for value in (None, 3)] == ["–", "3/s"]
    assert figures.clock(0) == "00:00:00"
    assert figures.share(0.99) == "99 %"


def test_markup() -> None:
    assert tag("a", "<", Html("<b></b>"), None, 3, href='"', data_key="k", hidden=True, class_=None) == (
        '<a href="&quot;" data-key="k" hidden>&lt;<b></b>3</a>'
    )
    assert tag("input", name="q", value="x") == '<input name="q" value="x">'
    assert join("a", ["b", "<"]) == "ab&lt;"
    assert path("topics", "a/b #ephemeral") == "/topics/a%2Fb%20%23ephemeral"
    assert query(a="x&y", b=None, c="", d=1) == "?a=x%26y&d=1"
    assert path("\ud800")


def test_pages_around_changes() -> None:
    assert "wrong" in change.sign_in("wrong").content
    assert change.sign_in().status == 200
    assert "Sign out" in change.sign_control(is_signed_in=True, key="k")
    for page in (change.sign_in(), change.failure("a", HOSTILE, 404)):
        assert parsed(page.content).names.count("script") == 0
