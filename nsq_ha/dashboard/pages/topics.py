"""The list of topics, and the page of one topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.dashboard import figures
from nsq_ha.dashboard.charts import Line, chart
from nsq_ha.dashboard.markup import Html, join, path, query, tag
from nsq_ha.dashboard.pages.parts import (
    Board,
    Column,
    Page,
    badge,
    channel_link,
    crumbs,
    events_list,
    filter_form,
    found,
    node_link,
    number,
    section,
    table,
    tiles,
    topic_link,
)
from nsq_ha.policy.topology import tcp_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.admin import ChannelStats, Latency, PartitionDescription, PartitionStats, TopicStats
    from nsq_ha.admin.reading import Place
    from nsq_ha.dashboard.markup import Child

_COLUMNS: Final = (
    Column("topic", "name"),
    Column("kind"),
    number("partitions", "partitions"),
    number("replicas"),
    number("channels", "channels"),
    number("messages", "messages"),
    number("published", "published"),
    number("depth", "depth"),
    number("lag", "lag"),
)


def topics(board: Board) -> Page:
    """Return the list of topics."""
    reading = board.reading
    needle = board.arguments.get("q", "")
    sums = {
        name: (
            sum(c.depth for c in topic.channels),
            max((c.lag(reading.at) or 0.0 for c in topic.channels), default=0.0),
        )
        for name, topic in reading.topics.items()
    }
    orders: Mapping[str, Callable[[str], float]] = {
        "partitions": lambda name: len(reading.partitions(name)),
        "channels": lambda name: len(reading.topics[name].channels) if name in reading.topics else 0,
        "messages": lambda name: reading.topics[name].messages if name in reading.topics else 0,
        "published": lambda name: board.history.last("topic", name, "published") or 0.0,
        "depth": lambda name: sums.get(name, (0, 0.0))[0],
        "lag": lambda name: sums.get(name, (0, 0.0))[1],
    }
    names = [name for name in reading.names if found(name, needle)]
    chosen = board.arguments.get("sort", "name")
    if chosen in orders:
        names.sort(key=lambda name: -orders[chosen](name))
    else:
        chosen = "name"
    columns = tuple(c for c in _COLUMNS if not reading.is_plain or c.title not in ("partitions", "replicas"))
    rows = (
        (name, [cell for title, cell in _row(board, name, sums.get(name)) if any(c.title == title for c in columns)])
        for name in names
    )
    empty = "No topic has this text in its name." if needle else "There are no topics."
    return Page(
        "Topics",
        join(
            filter_form(("topics",), board, "Name contains"),
            table("topics", columns, rows, empty=empty, sorting=(chosen, board.arguments)),
        ),
    )


def _row(board: Board, name: str, sums: tuple[int, float] | None) -> Iterator[tuple[str, Child]]:
    reading = board.reading
    topic = reading.topics.get(name)
    partitions = reading.partitions(name)
    copies = [len(reading.holders.get((name, partition), ())) for partition in partitions]
    yield "topic", topic_link(name)
    yield "kind", join(flags(board, name), None if topic else badge("no nsqd has it", "warning"))
    yield "partitions", figures.count(len(partitions))
    yield (
        "replicas",
        figures.NONE
        if not copies
        else str(max(copies))
        if min(copies) == max(copies)
        else f"{min(copies)}–{max(copies)}",
    )
    yield "channels", figures.count(len(topic.channels) if topic else 0)
    yield "messages", figures.count(topic.messages if topic else 0)
    yield "published", figures.rate(board.history.last("topic", name, "published"))
    yield "depth", figures.count(sums[0] if sums else 0)
    yield "lag", figures.span(sums[1] if sums else None)


def flags(board: Board, name: str) -> Html:
    """Return the badges of a topic."""
    listed = board.reading.listed.get(name)
    topic = board.reading.topics.get(name)
    entries = topic.partitions if topic else ()
    return join(
        badge("ordered") if any(e.ordered for e in entries) or (listed and listed.ordered) else None,
        badge("headers") if any(e.extended for e in entries) or (listed and listed.extend_support) else None,
        badge("registered channels") if listed and listed.disable_channel_auto_create else None,
        badge("several partitions a node") if listed and listed.multi_part else None,
        badge("paused", "warning") if any(e.paused for e in entries) else None,
        badge("no nsqlookupd lists it", "warning") if _is_unlisted(board, name) else None,
    )


def _is_unlisted(board: Board, name: str) -> bool:
    """Return whether nsqds have a topic that clients cannot find."""
    reading = board.reading
    return bool(reading.listed) and name not in reading.listed and "topics" not in reading.errors


def topic_page(board: Board, name: str) -> Page:
    """Return the page of a topic."""
    reading, history = board.reading, board.history
    if name not in reading.names:
        return missing(board, f"There is no topic {name!r}", ("Topics", ("topics",)))
    topic = reading.topics.get(name)
    channels = topic.channels if topic else ()
    marks = [event for event in history.events if event.kind == "leader" and event.topic == name]
    periods = [
        p
        for p in history.periods
        if p.subject == "cluster" or (p.trouble == "leaderless" and p.subject.rpartition("-")[0] == name)
    ]
    lines = [
        Line(channel.name, history.series("channel", name, channel.name, "depth"))
        for channel in sorted(channels, key=lambda c: -c.depth)[:6]
    ]
    events = [event for event in reversed(history.events) if event.topic == name]
    content = join(
        crumbs(("Topics", ("topics",))),
        tag("p", flags(board, name)),
        incomplete(board, name),
        tiles(
            ("published", figures.rate(history.last("topic", name, "published")), ""),
            ("messages so far", figures.short(topic.messages if topic else None), ""),
            ("waiting", figures.short(sum(c.depth for c in channels)), ""),
            ("in flight", figures.short(sum(c.in_flight for c in channels)), ""),
        ),
        tag(
            "div",
            chart(
                "published",
                "Published per second",
                history.times,
                [Line("published", history.series("topic", name, "published"))],
                unit="rate",
                periods=periods,
                marks=marks,
            ),
            chart("depths", "Waiting messages by channel", history.times, lines, periods=periods, marks=marks),
            class_="charts",
        ),
        section("Channels", _channels(board, name, channels)),
        section("Partitions" if not reading.is_plain else "At the nsqds", _partitions(board, name)),
        latencies(
            [(e.nsqd if reading.is_plain else str(e.partition), e.latency) for e in topic.partitions] if topic else []
        ),
        section(
            "Events", events_list(events[:20], empty="Nothing has happened to this topic since the dashboard started.")
        ),
        tag("p", tag("a", "Search a message of this topic", href=path("search") + query(topic=name))),
    )
    return Page(name, content)


def incomplete(board: Board, name: str) -> Html | None:
    """Return a warning if the figures of a topic do not have all its parts."""
    reading = board.reading
    if reading.is_plain:
        silent = len(reading.silent)
        text = (
            f"{silent} of {len(reading.nodes)} nsqds do not answer: what they have is missing here." if silent else ""
        )
    else:
        topic = reading.topics.get(name)
        known = {entry.partition for entry in topic.partitions} if topic else set()
        gone = [str(each) for each in reading.partitions(name) if each not in known]
        text = f"No leader answers for partition {', '.join(gone)}: its figures are missing here." if gone else ""
    return tag("p", text, class_="banner warning", id="incomplete") if text else None


def missing(board: Board, text: str, above: tuple[str, tuple[str, ...]]) -> Page:
    """Return the page for something that the cluster does not have."""
    known = board.history.latest is not None
    note = "It may be new: this page shows it when the nsqds report it." if known else "The cluster was not read yet."
    return Page(
        "Not found" if known else "Reading", join(crumbs(above), tag("p", f"{text}. {note}")), 404 if known else 200
    )


def _channels(board: Board, topic: str, channels: tuple[ChannelStats, ...]) -> Html:
    is_plain = board.reading.is_plain
    columns = (Column("channel"), *channel_columns(is_plain=is_plain))
    rows = (
        (
            channel.name,
            (
                join(channel_link(topic, channel.name), " ", states(channel)),
                *channel_figures(channel, board.reading.at, is_plain=is_plain),
            ),
        )
        for channel in channels
    )
    return table("channels", columns, rows, empty="It has no channel: consumers create them, or nsq-ha channel create.")


def channel_columns(*, is_plain: bool) -> tuple[Column, ...]:
    """Return the columns of a channel's figures; :func:`channel_figures` fills them."""
    # A plain nsqd knows neither the size of what waits nor its age, but how much of it a crash would lose.
    own = ("in memory", "on disk") if is_plain else ("lag", "size")
    titles = ("depth", *own, "in flight", "deferred", "requeued", "timed out", "messages", "clients")
    return tuple(number(title) for title in titles)


def channel_figures(channel: ChannelStats, now: float, *, is_plain: bool) -> tuple[Child, ...]:
    """Return the figures of a channel at the time ``now``, one for each of the columns."""
    own = (
        (figures.count(channel.depth - channel.on_disk), figures.count(channel.on_disk))
        if is_plain
        else (figures.span(channel.lag(now)), figures.size(channel.depth_bytes))
    )
    return (
        figures.count(channel.depth),
        *own,
        figures.count(channel.in_flight),
        figures.count(channel.deferred),
        figures.count(channel.requeued),
        figures.count(channel.timed_out),
        figures.count(channel.messages),
        figures.count(channel.clients),
    )


def states(channel: ChannelStats) -> Html:
    """Return the badges of a channel."""
    return join(
        badge("paused", "warning") if channel.paused else None, badge("skipped", "warning") if channel.skipped else None
    )


def _partitions(board: Board, name: str) -> Html:
    reading = board.reading
    topic = reading.topics.get(name)
    if reading.is_plain:
        return _at_nsqds(board, topic)
    described = reading.details.get(name)
    details = {entry.partition: entry for entry in described.partitions} if described else {}
    stats = {entry.partition: entry for entry in topic.partitions} if topic else {}
    columns = (
        number("partition"),
        Column("leader"),
        Column("replicas"),
        Column("writable"),
        number("messages"),
        number("first offset"),
        number("end offset"),
        number("publishers"),
        *((Column("change"),) if board.may_change else ()),
    )
    rows = [
        (str(each), _partition(board, (name, each), details.get(each), stats.get(each)))
        for each in sorted({*reading.partitions(name), *details})
    ]
    note = tag("p", described.note, class_="banner warning") if described and described.note else None
    return join(note, table("partitions", columns, rows, empty="No nsqd reports a partition."))


def _at_nsqds(board: Board, topic: TopicStats | None) -> Html:
    columns = (
        Column("nsqd"),
        number("messages"),
        number("in no channel yet"),
        number("in memory"),
        number("on disk"),
        number("channels"),
    )
    rows = [
        (
            e.nsqd,
            (
                join(node_link(e.nsqd), " ", _found_at(board, e)),
                figures.count(e.messages),
                figures.count(e.unrouted),
                figures.count(e.unrouted - e.on_disk),
                figures.count(e.on_disk),
                len(e.channels),
            ),
        )
        for e in (topic.partitions if topic else ())
    ]
    return table("partitions", columns, rows, empty="No nsqd has it: the first publish creates it.")


def _found_at(board: Board, entry: PartitionStats) -> Html:
    """Return the badges that say why consumers do not find a topic at a plain nsqd, or get nothing there."""
    info = board.reading.infos.get(entry.nsqd)
    is_hidden = info is not None and entry.topic in info.tombstoned
    is_unknown = info is not None and entry.topic not in info.topics and not is_hidden
    return join(
        badge("paused", "warning") if entry.paused else None,
        badge("tombstoned", "warning") if is_hidden else None,
        badge("not registered", "warning") if is_unknown else None,
    )


def _partition(
    board: Board, place: Place, detail: PartitionDescription | None, stats: PartitionStats | None
) -> list[Child]:
    reading = board.reading
    leader = reading.leaders.get(place)
    silent = leader in reading.silent
    in_sync = {tcp_address(replica) or replica for replica in detail.replicas} if detail else set()
    others = [address for address in reading.holders.get(place, ()) if address != leader]
    replicas = [
        tag("span", node_link(address), " ", _sync(address, in_sync), class_="pair")
        for address in sorted({*others, *(in_sync - {leader or ""})})
    ]
    writable: Child = "…" if detail is None else "yes" if detail.writable else badge("no", "bad")
    cells: list[Child] = [
        str(place[1]),
        join(node_link(leader), badge("silent", "bad") if silent else None) if leader else badge("none", "bad"),
        join(*replicas) if replicas else "none",
        writable,
        figures.count(stats.messages if stats else None),
        str(stats.begin_offset) if stats else figures.NONE,
        str(stats.end_offset) if stats else figures.NONE,
        figures.count(stats.publishers if stats else None),
    ]
    if board.may_change:
        move = tag(
            "a",
            "Move leader",
            href=path("confirm", "move-leader") + query(topic=place[0], partition=place[1]),
            class_="button",
        )
        cells.append(move if others else "")
    return cells


def _sync(address: str, in_sync: set[str]) -> Html | None:
    if not in_sync:  # the leader was not asked yet, or does not answer
        return None
    return badge("in sync", "good") if address in in_sync else badge("not in sync", "warning")


def latencies(entries: list[tuple[str, Latency | None]]) -> Html | None:
    """Return how long messages take from publish to FIN, where nsqd measures it."""
    known = [(label, latency) for label, latency in entries if latency is not None]
    if not known:
        return None
    shares = sorted({share for _, latency in known for share, _ in latency.percentiles})
    columns = (Column("at"), number("messages"), *(number(figures.share(share)) for share in shares))
    rows = [
        (
            label,
            (
                label,
                figures.count(latency.count),
                *(figures.milliseconds(dict(latency.percentiles).get(share)) for share in shares),
            ),
        )
        for label, latency in known
    ]
    return section("From publish to FIN", table("latency", columns, rows, empty=""))
