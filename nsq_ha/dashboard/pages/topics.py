"""The list of topics, and the page of one topic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsq_ha.admin.causes import expected, incidents, unled
from nsq_ha.admin.causes import incomplete as lacks_part
from nsq_ha.admin.distribution import distributions
from nsq_ha.admin.words import partly, some
from nsq_ha.base.markup import Child, Html, join, path, query, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.actions import ActionTarget, possible
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Chart, Page, TableColumn
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.policy.topology import tcp_address

if TYPE_CHECKING:
    from nsq_ha.admin import Latency, PartitionDescription, PartitionStats, TopicStats
    from nsq_ha.admin.memory import TopicPartition
    from nsq_ha.admin.reading import FigureRow


def topics(board: Board) -> Page:
    """Return the list of topics."""
    reading = board.reading
    needle = board.arguments.get("q", "")
    columns = _columns(board)
    names = [name for name in reading.names if ui.found(name, needle)]
    rows = [_TopicRow(name, reading.topics.get(name), reading.by_topic.get(name, ())) for name in names]
    chosen, rows = ui.in_order(board, columns, rows, "name")
    empty = "No topic has this text in its name." if needle else "There are no topics."
    sorting = (chosen, board.arguments)
    some, links = ui.paged(board, rows, "topics")
    return Page(
        "Topics",
        join(
            ui.filter_form(("topics",), board, "Name contains"),
            ui.buttons(board, ["create-topic"], ActionTarget()),
            ui.table("topics", columns, some, key=lambda row: row.name, empty=empty, sorting=sorting),
            links,
        ),
    )


class _TopicRow(NamedTuple):
    """A topic of the list; ``stats`` is None if no nsqd serves it."""

    name: str
    stats: TopicStats | None
    rows: Sequence[FigureRow]

    @property
    def depth(self) -> int:
        return sum(row.depth or 0 for row in self.rows)

    @property
    def hourly_bytes(self) -> int:
        return sum(entry.hourly_bytes for entry in self.stats.partitions) if self.stats else 0

    @property
    def lag(self) -> float | None:
        return max((row.lag for row in self.rows if row.lag is not None), default=None)


def _columns(board: Board) -> list[TableColumn]:
    reading, lacking = board.reading, lacks_part(board.reading)

    def kind(row: _TopicRow) -> Child:
        lacks = "no nsqd has it" if row.stats is None else "a part is missing" if row.name in lacking else ""
        return join(flags(board, row.name), ui.badge(lacks, "warning") if lacks else None)

    columns = [TableColumn("topic", lambda row: ui.topic_link(row.name), key="name"), TableColumn("kind", kind)]
    if not reading.is_plain:
        columns += [
            ui.sortable("partitions", figures.count, lambda row: len(reading.partitions(row.name))),
            ui.number("replicas", lambda row: _copies(board, row.name)),
        ]
        columns += [
            ui.sortable("disk", figures.size, lambda row: row.stats.size if row.stats else None),
            ui.sortable("last hour", figures.size, lambda row: row.hourly_bytes),
        ]
    return [
        *columns,
        ui.sortable("channels", figures.count, lambda row: len([each for each in row.rows if each.channel])),
        ui.sortable("messages", figures.count, lambda row: row.stats.messages if row.stats else 0),
        ui.sortable("published", figures.rate, lambda row: reading.published.get((row.name, None, None))),
        ui.sortable("depth", figures.count, lambda row: row.depth),
        ui.sortable("lag", figures.span, lambda row: row.lag),
    ]


def _copies(board: Board, topic: str) -> str:
    """Return how many nsqds hold each partition, or the fewest and the most."""
    copies = {len(board.reading.holders.get((topic, each), ())) for each in board.reading.partitions(topic)}
    return "–".join(map(str, sorted({min(copies), max(copies)}))) if copies else figures.NONE


def flags(board: Board, name: str) -> Html:
    """Return the badges of a topic."""
    reading, topic = board.reading, board.reading.topics.get(name)
    listed, entries = reading.listed.get(name, TopicInfo(name)), topic.partitions if topic else ()
    paused = sum(entry.paused for entry in entries)
    # Clients cannot find what no nsqlookupd lists.
    is_unlisted = reading.listed and name not in reading.listed and "topics" not in reading.errors
    kinds = {
        "ordered": listed.ordered or any(entry.ordered for entry in entries),
        "headers": listed.extend_support or any(entry.extended for entry in entries),
        "registered channels": listed.disable_channel_auto_create,
        "several partitions a node": listed.multi_part,
    }
    troubles = {partly("paused", paused, len(entries)): paused, "no nsqlookupd lists it": is_unlisted}
    badges = [(text, "info") for text, has in kinds.items() if has]
    badges += [(text, "warning") for text, has in troubles.items() if has]
    return join(ui.badge(*each) for each in badges)


def topic_page(board: Board, name: str) -> Page:
    """Return the page of a topic."""
    reading, history = board.reading, board.history
    if name not in reading.names:
        return ui.missing(board, f"There is no topic {name!r}", ("Topics", ("topics",)))
    topic = reading.topics.get(name)
    channels = topic.channels if topic else ()
    lines = [
        (channel.name, ("channel", name, channel.name, "depth"))
        for channel in sorted(channels, key=lambda c: -c.depth)[:6]
    ]
    nsqds = [each for each in history.events if each.kind == "nsqd"] if reading.is_plain else []  # each may have some
    events = sorted([*history.events_of(name), *nsqds], key=lambda each: -each.at)
    missing = incomplete(board, name)
    is_paused = topic is not None and any(each.paused for each in topic.partitions)
    own = ("unpause-topic" if is_paused else "pause-topic", "empty-topic")
    level, least = ("warning", "≥ ") if missing is not None else ("", "")
    content = join(
        ui.crumbs(("Topics", ("topics",))),
        tag("p", flags(board, name)),
        missing,
        ui.buttons(
            board,
            possible(reading, "create-channel", "update-topic", "expand", *own, "delete-topic"),
            ActionTarget(name),
        ),
        ui.tiles(
            ("published", least + figures.rate(reading.published.get((name, None, None))), level),
            ("messages so far", least + figures.short(topic.messages if topic else None), level),
            ("waiting", least + figures.short(sum(row.depth or 0 for row in reading.by_topic.get(name, ()))), level),
            ("in flight", least + figures.short(sum(c.in_flight for c in channels)), level),
        ),
        ui.charts(
            board,
            Chart("published", "Published per second", "rate", [("published", ("topic", name, "published"))]),
            Chart("depths", "Waiting messages by channel", "count", lines),
            topic=name,
        ),
        ui.section("Channels", _channels(board, name)),
        ui.section("Partitions" if not reading.is_plain else "At the nsqds", _partitions(board, name)),
        ui.section("Producers", _producers(board, name)),
        latencies(
            [(e.nsqd if reading.is_plain else str(e.partition), e.latency) for e in topic.partitions] if topic else []
        ),
        spread(topic),
        ui.events_section(events, "this topic"),
        tag(
            "p",
            None if reading.is_plain else tag("a", "Its messages", href=path("messages") + query(topic=name)),
            None if reading.is_plain else " · ",
            tag("a", "Search a message of this topic", href=path("search") + query(topic=name)),
        ),
    )
    return Page(name, content)


def incomplete(board: Board, name: str) -> Html | None:
    """Return a warning if the figures of a topic do not have all its parts."""
    reading = board.reading
    if reading.is_plain:
        gone = {each.subject for each in incidents(reading) if each.trouble == "gone" and each.is_bad}
        lost = sorted(gone | reading.silent.keys())
        who, what = ("does", "it has") if len(lost) == 1 else ("do", "they have")
        text = f"{len(lost)} of {expected(reading)[1]} nsqds {who} not answer: {some(lost, 3)}. What {what} is missing"
        text = f"{text} here." if lost else ""
    else:
        bare = [str(number) for topic, number in unled(reading) if topic == name]
        end, whose = ("", "its") if len(bare) == 1 else ("s", "their")
        text = f"No leader answers for partition{end} {', '.join(bare)}: {whose} figures are missing here."
        text = text if bare else ""
    return tag("p", text, class_="banner warning", id="incomplete") if text else None


def _channels(board: Board, topic: str) -> Html:
    columns = (
        TableColumn("channel", lambda row: join(ui.channel_link(topic, row.name), " ", ui.states(row.channel))),
        *ui.all_channel_figures(is_plain=board.reading.is_plain),
    )
    rows = [row for row in board.reading.by_topic.get(topic, ()) if row.channel is not None]
    empty = "It has no channel: consumers create them, or nsq-ha channel create."
    if board.reading.is_plain and topic not in board.reading.topics:
        empty = "Channels that were created come with its first message."
    return ui.table("channels", columns, rows, empty=empty)


def _partitions(board: Board, name: str) -> Html:
    reading = board.reading
    topic = reading.topics.get(name)
    if reading.is_plain:
        return _at_nsqds(board, topic)
    described = reading.details.get(name)
    details = {entry.partition: entry for entry in described.partitions} if described else {}
    stats = {entry.partition: entry for entry in topic.partitions} if topic else {}
    rows = [
        _PartitionRow((name, each), details.get(each), stats.get(each))
        for each in sorted({*reading.partitions(name), *details})
    ]
    note = tag("p", described.note, class_="banner warning") if described and described.note else None
    empty = "No nsqd reports a partition."
    return join(
        note,
        ui.table("partitions", _partition_columns(board), rows, key=lambda row: str(row.partition[1]), empty=empty),
    )


def _producers(board: Board, name: str) -> Html:
    described = board.reading.details.get(name)
    if described is None:
        return tag("p", "Reading the producers …", class_="empty", id="producers")
    parts = [each.stats for each in described.partitions if each.stats is not None]
    columns = [
        TableColumn("client", lambda each: join(f"{each[1].hostname} ", tag("small", each[1].address))),
        TableColumn("library", lambda each: each[1].user_agent or figures.NONE),
        TableColumn("nsqd", lambda each: ui.node_link(each[0].nsqd)),
    ]
    if not board.reading.is_plain:
        columns += [
            ui.number("partition", lambda each: str(each[0].partition)),
            ui.number("since", lambda each: figures.span(board.reading.at - each[1].since)),
            ui.number("failed", lambda each: figures.count(each[1].failed)),
        ]
    columns.append(ui.number("published", lambda each: figures.count(each[1].messages)))
    rows = [(part, each) for part in parts for each in part.producers]
    empty = "Nobody is connected who published to it."
    return ui.table("producers", columns, rows, key=lambda e: f"{e[1].address} {e[0].partition}", empty=empty)


def _at_nsqds(board: Board, topic: TopicStats | None) -> Html:
    columns = (
        TableColumn("nsqd", lambda entry: join(ui.node_link(entry.nsqd), " ", _found_at(board, entry))),
        ui.number("messages", lambda entry: figures.count(entry.messages)),
        ui.number("in no channel yet", lambda entry: figures.count(entry.unrouted)),
        ui.number("in memory", lambda entry: figures.count(entry.unrouted - entry.on_disk)),
        ui.number("on disk", lambda entry: figures.count(entry.on_disk)),
        ui.number("channels", lambda entry: len(entry.channels)),
    )
    rows, empty = topic.partitions if topic else (), "No nsqd has it: the first publish creates it."
    return ui.table("partitions", columns, rows, empty=empty, key=lambda entry: entry.nsqd)


def _found_at(board: Board, entry: PartitionStats) -> Html:
    """Return the badges that say why consumers do not find a topic at a plain nsqd, or get nothing there."""
    info = board.reading.infos.get(entry.nsqd)
    is_hidden = info is not None and entry.topic in info.tombstoned
    is_unknown = info is not None and entry.topic not in info.topics and not is_hidden
    return join(
        ui.badge("paused", "warning") if entry.paused else None,
        ui.badge("tombstoned", "warning") if is_hidden else None,
        ui.badge("not registered", "warning") if is_unknown else None,
    )


class _PartitionRow(NamedTuple):
    """A partition, what is described of it, and what its leader says."""

    partition: TopicPartition
    detail: PartitionDescription | None
    stats: PartitionStats | None


def _partition_columns(board: Board) -> list[TableColumn]:
    leaders, silent = board.reading.leaders, board.reading.silent

    def leader(row: _PartitionRow) -> Child:
        if not (nsqd := leaders.get(row.partition)):
            return ui.badge("none", "bad")
        return join(ui.node_link(nsqd), ui.badge("silent", "bad") if nsqd in silent else None)

    def writable(row: _PartitionRow) -> Child:
        return "…" if row.detail is None else "yes" if row.detail.writable else ui.badge("no", "bad")

    def move(row: _PartitionRow) -> Child:
        topic, number = row.partition
        target = ActionTarget(topic, partition=number)
        return ui.buttons(board, ["move-leader"], target) if _others(board, row.partition) else ""

    columns = [
        ui.number("partition", lambda row: str(row.partition[1])),
        TableColumn("leader", leader),
        TableColumn("replicas", lambda row: _replicas(board, row)),
        TableColumn("writable", writable),
        ui.number("messages", lambda row: figures.count(row.stats.messages if row.stats else None)),
        ui.number("first offset", lambda row: str(row.stats.begin_offset) if row.stats else figures.NONE),
        ui.number("end offset", lambda row: str(row.stats.end_offset) if row.stats else figures.NONE),
        ui.number("size", lambda row: figures.size(row.stats.size if row.stats else None)),
        ui.number("publishers", lambda row: figures.count(row.stats.publishers if row.stats else None)),
    ]
    return [*columns, TableColumn("change", move)] if board.may_change else columns


def _others(board: Board, partition: TopicPartition) -> list[str]:
    """Return the nsqds that hold a partition and do not lead it."""
    leader = board.reading.leaders.get(partition)
    return [address for address in board.reading.holders.get(partition, ()) if address != leader]


def _replicas(board: Board, row: _PartitionRow) -> Child:
    in_sync = {tcp_address(replica) or replica for replica in row.detail.replicas} if row.detail else set()
    addresses = {*_others(board, row.partition), *(in_sync - {board.reading.leaders.get(row.partition, "")})}
    replicas = [
        tag("span", ui.node_link(address), " ", _sync(address, in_sync), class_="pair") for address in sorted(addresses)
    ]
    return join(*replicas) if replicas else "none"


def _sync(address: str, in_sync: set[str]) -> Html | None:
    if not in_sync:  # the leader was not asked yet, or does not answer
        return None
    return ui.badge("in sync", "good") if address in in_sync else ui.badge("not in sync", "warning")


def spread(topic: TopicStats | None, channel: str = "") -> Html | None:
    """Return the distributions of a topic, or of a channel. None if nothing was counted."""
    columns = (
        TableColumn("of", lambda each: each.of),
        TableColumn("partition", lambda each: str(each.partition)),
        TableColumn("messages", lambda each: each.text),
    )
    found = [each for each in distributions(topic) if each.channel == channel] if topic else []
    listed = ui.table("distributions", columns, found, key=lambda each: f"{each.of} {each.partition}", empty="")
    return ui.section("Distributions since the nsqds started", listed) if found else None


def latencies(entries: list[tuple[str, Latency | None]]) -> Html | None:
    """Return how long messages take from publish to FIN, where nsqd measures it."""
    known = [(label, latency) for label, latency in entries if latency is not None]
    if not known:
        return None
    shares = sorted({share for _, latency in known for share, _ in latency.percentiles})
    columns = (
        TableColumn("at", lambda entry: entry[0]),
        ui.number("messages", lambda entry: figures.count(entry[1].count)),
        *(ui.number(figures.share(each), functools.partial(_within, each)) for each in shares),
    )
    return ui.section("From publish to FIN", ui.table("latency", columns, known, key=lambda entry: entry[0], empty=""))


def _within(share: float, entry: tuple[str, Latency]) -> str:
    return figures.brief(dict(entry[1].percentiles).get(share))
