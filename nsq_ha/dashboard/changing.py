"""The routes that sign in and out, ask before a change, and make it.

The invariant: nothing changes without a session, the key of its form, and our own origin.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, RedirectResponse, Response

from nsq_ha.admin.reading import Reading
from nsq_ha.dashboard.actions import ACTIONS, ActionTarget, refusal, run, target_of
from nsq_ha.dashboard.guard import LIFETIME, BrowserSession, Guard, WrongTokens, cookie_of, form, segments, session_of
from nsq_ha.dashboard.history import MAX_TEXT, ClusterEvent, History, Level
from nsq_ha.dashboard.pages import change, frame
from nsq_ha.dashboard.pages.ui import Board, Extra, Page
from nsq_ha.errors import MAY_STILL_HAPPEN, ConfigError, NsqError
from nsq_ha.tracelog import ends_within_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from starlette.requests import Request

    from nsq_ha.admin import AdminClient
    from nsq_ha.base.markup import Html
    from nsq_ha.dashboard.options import DashboardOptions

PATIENCE: Final = 3.0
"""Seconds for which the page waits for a change."""

log: Final = logging.getLogger("nsq_ha.dashboard")


_LINK: Final = re.compile(r'(?<= )(href|src|action|data-base)="/')


class Changing:
    """What all routes share, and those that sign in and change the cluster.

    Args:
        admin: Asks and changes the cluster.
        options: How the dashboard runs.
        extra: A page of the program that runs the dashboard.

    Raises:
        ConfigError: The change log cannot be written, or the token is too short.
    """

    def __init__(self, admin: AdminClient, options: DashboardOptions, extra: Extra | None = None) -> None:
        try:
            _append(options.change_log, "")
        except OSError as error:
            raise ConfigError(f"the change log {options.change_log} cannot be written: {error.strerror}") from error
        self._admin = admin
        self._options = options
        self._extra = extra
        self._base = "".join(f"/{quote(each)}" for each in segments(options.base_path))
        self._guard = Guard(options.token, hosts=(*options.hosts, options.host), is_private=options.is_private)
        self._history = History(max(2, round(options.history / options.interval)))
        self._wrong = WrongTokens()
        self._running: set[asyncio.Task[Page]] = set()

    def _respond(self, request: Request, page: Page, *, is_live: bool = False) -> Response:
        session = self._session(request)
        sign: Html | None = None
        if self._guard.has_token:
            sign = change.sign_control(is_signed_in=session is not None, key=session.key if session else "")
        text = frame.document(
            page,
            place=request.url.path,
            is_live=is_live,
            sign=sign,
            refresh=max(2, round(self._options.interval)),
            more=[(f"/{self._extra.place}", self._extra.title)] if self._extra else (),
        )
        return HTMLResponse(self._below(text).encode("utf-8", "replace"), status_code=page.status)

    def _below(self, text: str) -> str:
        """Return a page whose links are below the path of a proxy."""
        return _LINK.sub(rf'\1="{self._base}/', text) if self._base else text

    def _session(self, request: Request) -> BrowserSession | None:
        return self._guard.session(session_of(request))

    def _failed(self, request: Request, title: str, text: str, status: int) -> Response:
        return self._respond(request, change.failure(title, text, status))

    async def sign_in(self, request: Request) -> Response:
        """Ask for the token, or start a session for it."""
        if not self._guard.has_token:
            return self._failed(request, "Not found", "Nobody can sign in: this dashboard is read-only.", 404)
        if request.method == "GET":
            return self._respond(request, change.sign_in())
        fields = await form(request)
        address = request.client.host if request.client else ""
        if (wait := self._wrong.wait(address)) > 0:
            seconds = math.ceil(wait)
            return self._refused(request, f"Too many wrong tokens came from your address: wait {seconds} s.", 429)
        name = self._guard.sign_in(fields.get("token", "")) if self._guard.is_same_origin(request.headers) else None
        if name is None:
            self._wrong.wrong(address)
            log.warning("a sign-in to the dashboard was refused")
            return self._refused(request, "The token is wrong, or the form is not of this dashboard.", 403)
        response = RedirectResponse("/", status_code=303)
        cookie, age = cookie_of(request), int(LIFETIME)
        response.set_cookie(cookie, name, max_age=age, httponly=True, samesite="strict", path="/")
        return response

    def _refused(self, request: Request, problem: str, status: int) -> Response:
        return self._respond(request, change.sign_in(problem)._replace(status=status))

    async def sign_out(self, request: Request) -> Response:
        """End a session."""
        session = self._session(request)
        fields = await form(request)
        if session is not None and self._is_meant(request, session, fields):
            self._guard.sign_out(session_of(request))
        response = RedirectResponse("/", status_code=303)
        response.delete_cookie(cookie_of(request), path="/", httponly=True, samesite="strict")
        return response

    def _is_meant(self, request: Request, session: BrowserSession, fields: Mapping[str, str]) -> bool:
        """Return whether a person pressed a button of this dashboard."""
        return self._guard.is_same_origin(request.headers) and self._guard.has_key(session, fields.get("key", ""))

    def _allowed(self, request: Request) -> BrowserSession | Response:
        """Return the session of somebody who may change the cluster, or the answer to somebody who may not."""
        if not self._options.may_change:
            return self._failed(request, "Not allowed", "This dashboard is read-only: start it with --admin.", 403)
        return self._session(request) or RedirectResponse("/sign-in", status_code=303)

    async def confirm(self, request: Request) -> Response:
        """Ask before a change."""
        session = self._allowed(request)
        if isinstance(session, Response):
            return session
        found = self._find(request, request.query_params, is_asked=True)
        if isinstance(found, Response):
            return found
        board = Board(self._history, time.time(), may_change=True)
        return self._respond(request, change.confirm(board, *found, session.key))

    async def act(self, request: Request) -> Response:
        """Make a change that a form asks for."""
        session = self._allowed(request)
        if isinstance(session, Response):
            return session
        fields = await form(request)
        if not self._is_meant(request, session, fields):
            return self._failed(request, "Not done", "The request did not come from a form of this dashboard.", 403)
        found = self._find(request, fields)
        if isinstance(found, Response):
            return found
        name, target = found
        if ACTIONS[name].loses(target.given) and fields.get("typed", "") != target.name:
            text = f"To confirm, type the name: {target.name}"
            board = Board(self._history, time.time(), may_change=True)
            return self._respond(request, change.confirm(board, name, target, session.key, text))
        # What takes longer goes on without the person, and its outcome is on the timeline.
        address = "" if request.client is None else request.client.host
        task = asyncio.create_task(self._do(name, target, address), name=f"nsq_ha dashboard {name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
        return self._respond(request, task.result() if done else change.going_on(ACTIONS[name], target))

    def _find(
        self, request: Request, fields: Mapping[str, str], *, is_asked: bool = False
    ) -> tuple[str, ActionTarget] | Response:
        """Return the action and its target, or the page that says why it cannot be done."""
        name = request.path_params["name"]
        action = ACTIONS.get(name)
        if action is None:
            return self._failed(request, "Not found", "There is no such action.", 404)
        try:
            target = target_of(action, fields, is_asked=is_asked)
        except NsqError as error:
            return self._failed(request, "Not done", str(error), 400)
        reason = refusal(name, target, self._history.latest or Reading(0.0))
        if reason:
            return self._failed(request, "Not possible", f"{target.subject}: {reason}.", 409)
        return name, target

    async def _do(self, name: str, target: ActionTarget, address: str) -> Page:
        failure: NsqError | None = None
        try:
            await run(self._admin, name, target)
        except NsqError as error:
            failure = error
        except asyncio.CancelledError:
            self._record(self._tell(name, target, address, NsqError(f"the dashboard ended. {MAY_STILL_HAPPEN}")))
            raise
        await asyncio.to_thread(self._record, self._tell(name, target, address, failure))
        return change.outcome(name, target, failure)

    def _tell(self, name: str, target: ActionTarget, address: str, failure: NsqError | None) -> str:
        """Put a change into the log and on the timeline; return its line of the change log."""
        action = ACTIONS[name]
        level: Level = "warning" if failure is None else "bad"
        tried = f"an operator tried this: {action.label}. It failed: {failure}"
        text = f"an operator {action.done} it" if failure is None else tried
        log.warning("%s: %s", target.subject, text)
        self._history.tell(ClusterEvent(time.time(), "operator", level, target.subject, text[:MAX_TEXT], target.topic))
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"at": at, "from": address, "action": name, **target.fields, "failure": str(failure or "")}
        return json.dumps(entry, default=str) + "\n"

    def _record(self, line: str) -> None:
        try:
            _append(self._options.change_log, line)
        except OSError as error:
            log.error("the change log %s cannot be written: %s", self._options.change_log, error)  # noqa: TRY400 - no bug


def _append(path: Path | None, line: str) -> None:
    if path is not None:
        is_torn = ends_within_line(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}" if is_torn else line)
