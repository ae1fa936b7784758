"""Signing in, confirming a change, and its outcome."""

from __future__ import annotations

from nsq_ha.base.markup import Html, join, path, tag
from nsq_ha.dashboard.actions import ACTIONS, Action, ActionTarget
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page
from nsq_ha.errors import ChangeIncompleteError, NsqError


def sign_in(problem: str = "") -> Page:
    """Return the page that asks for the token."""
    form = tag(
        "form",
        ui.labelled("Token", type="password", name="token", required=True, autocomplete="off", autofocus=True),
        tag("button", "Sign in"),
        method="post",
        action="/sign-in",
        class_="sign-in",
    )
    note = tag(
        "p",
        "The token is in the file or variable that the dashboard was started with, or on its terminal.",
        class_="soft",
    )
    return Page("Sign in", join(tag("h1", "Sign in"), _problem(problem), note, form), 403 if problem else 200)


def sign_control(*, is_signed_in: bool, key: str = "") -> Html:
    """Return the link that signs in, or the button that signs out."""
    if not is_signed_in:
        return tag("a", "Sign in", href="/sign-in", class_="sign")
    return tag(
        "form",
        _hidden(key=key),
        tag("button", "Sign out"),
        method="post",
        action="/sign-out",
        class_="sign",
    )


def _hidden(**fields: str | int) -> Html:
    """Return fields of a form that nobody sees."""
    return join(tag("input", type="hidden", name=name, value=value) for name, value in fields.items())


def _problem(text: str) -> Html | None:
    """Return why a form was not accepted. None without a text."""
    return tag("p", text, class_="banner bad", role="alert") if text else None


def confirm(board: Board, name: str, target: ActionTarget, key: str, problem: str = "") -> Page:
    """Return the page that asks before a change.

    Args:
        board: What the page is made of.
        name: The action.
        target: What it is for.
        key: The key of the session.
        problem: Why it was not done yet; empty at first.
    """
    action = ACTIONS[name]
    back = _back(target)
    fields = [_hidden(key=key)]
    if target.topic:
        fields.append(_hidden(topic=target.topic))
    else:
        fields.append(ui.labelled("Name of the topic", type="text", name="topic", required=True, maxlength=64))
    if action.scope == "partition":
        fields += [_hidden(partition=target.partition or 0), _destination(board, target)]
    elif action.scope == "nsqd":
        fields.append(_hidden(nsqd=target.nsqd))
    elif target.channel:
        fields.append(_hidden(channel=target.channel))
    if action.asks is not None and not target.channel:
        field, asked = action.asks
        fields.append(ui.labelled(asked, type="text", name=field, required=True, maxlength=64, autocomplete="off"))
    if action.is_lossy:
        label = join("To confirm, type ", tag("b", target.name))
        fields.append(ui.labelled(label, type="text", name="typed", required=True, autocomplete="off", autofocus=True))
    form = tag(
        "form",
        fields,
        tag(
            "div",
            tag("button", action.label, class_="danger" if action.is_lossy else None),
            tag("a", "Cancel", href=back, class_="button"),
            class_="buttons",
        ),
        method="post",
        action=path("act", name),
        class_="confirm",
    )
    joint = " for" if name == "create-channel" else ":"
    title = f"{action.label}{joint} {target.subject}?" if target.topic else f"{action.label}?"
    loss = tag("p", "Messages will be lost for good.", class_="banner warning") if action.is_lossy else None
    content = join(tag("h1", title), _problem(problem), tag("p", action.effect), _now(board, target), loss, form)
    return Page(title, content, 400 if problem else 200)


def _destination(board: Board, target: ActionTarget) -> Html:
    place = (target.topic, target.partition or 0)
    leader, holders = board.reading.leaders.get(place), board.reading.holders.get(place, ())
    options = [tag("option", "another replica in sync", value="")]
    options += [tag("option", address, value=address) for address in holders if address != leader]
    return tag("label", tag("span", f"From {leader or 'nobody'} to"), tag("select", options, name="to"))


def _now(board: Board, target: ActionTarget) -> Html | None:
    channel = board.reading.channels.get((target.topic, target.channel))
    if channel is None:
        return None
    return tag(
        "p",
        f"Now {channel.depth:,} messages wait, {channel.in_flight:,} are in flight, {channel.clients:,} clients read.",
    )


def outcome(name: str, target: ActionTarget, failure: NsqError | None) -> Page:
    """Return the page that says what became of a change; ``failure`` is None if it is done."""
    action, back = ACTIONS[name], target
    if failure is None and name in ("delete-topic", "delete-channel"):
        back = ActionTarget(target.topic if target.channel else "")
    title = "Done" if failure is None else "Not done"
    if isinstance(failure, ChangeIncompleteError):
        title = "Done in part" if failure.done else "Not done yet"
    text, level = (action.done, "good") if failure is None else (str(failure), "bad")
    content = join(
        tag("h1", f"{action.label}: {title.lower()}"),
        tag("p", f"{target.subject}: {text}.", class_=f"banner {level}", role="status"),
        tag(
            "p", tag("a", f"Back to {back.subject or 'the topics'}", href=_back(back), class_="button", autofocus=True)
        ),
    )
    return Page(title, content, 200 if failure is None else 502)


def going_on(action: Action, target: ActionTarget) -> Page:
    """Return the page for a change that takes longer than a person waits."""
    title = f"{action.label}: it goes on"
    text = f"{target.subject}: this takes longer. You can leave; its outcome comes on the timeline."
    content = join(tag("h1", title), tag("p", text, class_="banner", role="status"))
    return Page(title, join(content, tag("p", tag("a", "Timeline", href="/timeline", class_="button"))), 202)


def _back(target: ActionTarget) -> str:
    if target.nsqd:
        return path("nodes", target.nsqd)
    if not target.topic:
        return path("topics")
    return path("topics", target.topic, target.channel) if target.channel else path("topics", target.topic)


def failure(title: str, text: str, status: int) -> Page:
    """Return a page that says why there is none."""
    return Page(title, join(tag("h1", title), tag("p", text), tag("p", tag("a", "Overview", href="/"))), status)
