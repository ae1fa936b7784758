"""Signing in, confirming a change, and its outcome."""

from __future__ import annotations

from collections.abc import Iterable

from nsq_ha.base.markup import Child, Html, join, path, tag
from nsq_ha.dashboard.actions import ACTIONS, Action, ActionTarget, Field
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page
from nsq_ha.errors import ChangeIncompleteError, NsqError


def sign_in(problem: str = "") -> Page:
    """Return the page that asks for the token."""
    token = ui.labelled("Token", type="password", name="token", required=True, autocomplete="off", autofocus=True)
    form = _form("/sign-in", "sign-in", token, tag("button", "Sign in"))
    note = ui.soft("The token is in the file or variable that the dashboard was started with, or on its terminal.")
    return Page("Sign in", join(tag("h1", "Sign in"), ui.problem(problem), note, form), 403 if problem else 200)


def sign_control(*, is_signed_in: bool, key: str = "") -> Html:
    """Return the link that signs in, or the button that signs out."""
    if not is_signed_in:
        return tag("a", "Sign in", href="/sign-in", class_="sign")
    return _form("/sign-out", "sign", ui.hidden(key=key), tag("button", "Sign out"))


def _form(action: str, class_: str, *content: Child | Iterable[Child]) -> Html:
    """Return a form that changes something."""
    return tag("form", *content, method="post", action=action, class_=class_)


def confirm(board: Board, name: str, target: ActionTarget, key: str, problem: str = "") -> Page:
    """Return the page that asks before a change.

    Args:
        board: What the page is made of.
        name: The action.
        target: What it is for.
        key: The key of the session.
        problem: Why it was not done yet; empty at first.
    """
    action, is_plain = ACTIONS[name], board.reading.is_plain
    asked = [each for each in action.asks if each.is_plain or not is_plain]
    known = {part: value for part, value in target.fields.items() if part not in {each.name for each in asked}}
    fields = [ui.hidden(key=key, **known), *(_field(board, target, each) for each in asked)]
    if is_lossy := action.loses(target.given):
        label = join("To confirm, type ", tag("b", target.name))
        fields.append(ui.labelled(label, type="text", name="typed", required=True, autocomplete="off", autofocus=True))
    do = tag("button", action.label, class_="danger" if is_lossy else None)
    cancel = tag("a", "Cancel", href=_back(action, target), class_="button")
    form = _form(path("act", name), "confirm", fields, tag("div", do, cancel, class_="buttons"))
    joint = " for " if name == "create-channel" else ": "
    title = f"{action.label}{joint + target.subject if known else ''}?"
    loss = tag("p", "Messages will be lost for good.", class_="banner warning") if is_lossy else None
    content = join(tag("h1", title), ui.problem(problem), tag("p", action.effect), _now(board, target), loss, form)
    return Page(title, content, 400 if problem else 200)


def _field(board: Board, target: ActionTarget, field: Field) -> Html:
    value = target.given.get(field.name)
    if field.kind == "check":
        box = tag("input", type="checkbox", name=field.name, value="1", checked=value is True)
        return tag("label", box, f" {field.label}")
    if field.kind == "switch":
        choices = (("", "as it is", None), ("1", "yes", True), ("0", "no", False))
        options = [tag("option", text, value=key, selected=value is of) for key, text, of in choices]
        return tag("label", tag("span", field.label), tag("select", options, name=field.name))
    if field.kind == "replica":
        place = (target.topic, target.partition or 0)
        leader, holders = board.reading.leaders.get(place), board.reading.holders.get(place, ())
        options = [tag("option", address, value=address) for address in holders if address != leader]
        options.insert(0, tag("option", "another replica in sync", value=""))
        label = tag("span", f"From {leader or 'nobody'} to")
        return tag("label", label, tag("select", options, name=field.name))
    mode = "numeric" if field.kind == "number" else "text"
    given = {field.name: str(target.fields.get(field.name, ""))}
    return ui.text_field(
        given, field.name, field.label, field.hint, maxlength=64, required=field.is_needed, inputmode=mode
    )


def _now(board: Board, target: ActionTarget) -> Html | None:
    channel = board.reading.channels.get((target.topic, target.channel))
    if channel is None:
        return None
    counts = f"{channel.depth:,} messages wait, {channel.in_flight:,} are in flight, {channel.clients:,} clients read"
    return tag("p", f"Now {counts}.")


def outcome(name: str, target: ActionTarget, failure: NsqError | None) -> Page:
    """Return the page that says what became of a change; ``failure`` is None if it is done."""
    action, back = ACTIONS[name], target
    if failure is None and name in ("delete-topic", "delete-channel"):
        back = ActionTarget(target.topic if target.channel else "")
    title = "Done" if failure is None else "Not done"
    if isinstance(failure, ChangeIncompleteError):
        title = "Done in part" if failure.done else "Not done yet"
    done = action.done[0].upper() + action.done[1:]
    text, level = (f"{done} {target.subject}.", "good") if failure is None else (f"{target.subject}: {failure}.", "bad")
    link = tag("a", "Back", href=_back(action, back), class_="button", autofocus=True)
    heading = f"{action.label}: {title.lower()}"
    return Page(title, _said(heading, text, f"banner {level}", link), 200 if failure is None else 502)


def going_on(action: Action, target: ActionTarget) -> Page:
    """Return the page for a change that takes longer than a person waits."""
    title = f"{action.label}: it goes on"
    text = f"{target.subject}: this takes longer. You can leave; its outcome comes on the timeline."
    return Page(title, _said(title, text, "banner", tag("a", "Timeline", href="/timeline", class_="button")), 202)


def _said(heading: str, text: str, class_: str, link: Html) -> Html:
    return join(tag("h1", heading), tag("p", text, class_=class_, role="status"), tag("p", link))


def _back(action: Action, target: ActionTarget) -> str:
    if action.scope in ("held", "nsqd", "cluster"):
        return path("nodes", *([target.nsqd] if target.nsqd else ()))
    return path("topics", *(each for each in (target.topic, target.channel) if each))


def failure(title: str, text: str, status: int) -> Page:
    """Return a page that says why there is none."""
    return Page(title, join(tag("h1", title), tag("p", text), tag("p", tag("a", "Overview", href="/"))), status)
