"""What the gateway refuses for want of a right, for the audit log, counted by the minute.

The first refusal of a caller and an action is written at once. Further ones within a minute are
counted, and the last of them is written at its end with that count. So a flood costs the log a line
a minute for each action, and the access service bounds what all actions of a caller cost. None is
lost: while the access service is away they are counted on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from aiohttp import web

from skep.wire.access import Actor, NoteRefusal
from skep.wire.bounds import COUNT_MAX, SHORT_MAX
from skep_services.gateway.api import ApiError
from skep_services.gateway.asking import Asking
from skep_services.gateway.callers import Caller
from skep_services.gateway.route_rights import ACTIONS

log = structlog.get_logger(service="gateway")

MINUTE_S = 60.0
COUNTED_MAX = 1_000
"""Callers and actions whose refusals are counted at once, fewer than a hundred of each caller; of
more the gateway's own log has a line."""


class Minute(msgspec.Struct):
    """A minute of a caller and an action. It began with a line; `latest` is what has none yet."""

    until_s: float
    latest: tuple[Actor, NoteRefusal] | None = None
    count: int = 0
    """Refusals that have no line yet, `latest` among them."""


class Counted:
    """Says which refusals are to be written when."""

    def __init__(self) -> None:
        """Start without any."""
        self._minutes: dict[tuple[str, str], Minute] = {}

    def take(self, actor: Actor, what: NoteRefusal, now_s: float) -> bool:
        """Count a refusal.

        Args:
            actor: The one that was refused.
            what: What it was refused; with those that it stands for.
            now_s: The time in seconds, which never goes back.

        Returns:
            Whether it was counted; else too many others were refused something lately.
        """
        whose = actor.name, what.action
        minute = self._minutes.get(whose)
        if minute is None:
            if len(self._minutes) >= COUNTED_MAX:
                return False
            minute = self._minutes[whose] = Minute(now_s)
        minute.latest = actor, what
        minute.count += 1 + what.missed
        return True

    def due(self, now_s: float) -> list[tuple[Actor, NoteRefusal]]:
        """Return what is to be written now. Another minute begins for each of these."""
        found = []
        for whose, minute in list(self._minutes.items()):
            if minute.until_s > now_s:
                continue
            if minute.latest is None:
                del self._minutes[whose]
                continue
            actor, what = minute.latest
            missed = min(minute.count - 1, COUNT_MAX)
            found.append((actor, msgspec.structs.replace(what, missed=missed)))
            self._minutes[whose] = Minute(now_s + MINUTE_S)
        return found

    def due_at(self) -> float | None:
        """Return when something may be due next; None: nothing is counted."""
        return min((minute.until_s for minute in self._minutes.values()), default=None)


class Refusals:
    """Writes what was refused into the audit log. `close` it."""

    def __init__(self, asking: Asking, now_s: Callable[[], float]) -> None:
        """Write by `asking`; `now_s` returns seconds that never go back."""
        self._asking, self._now_s = asking, now_s
        self._counted = Counted()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def note(self, caller: Caller, request: web.Request, error: ApiError) -> None:
        """Take an answer to a caller; what is no refusal of a right is passed over."""
        if error.why is None:
            return
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else ""
        action = ACTIONS.get((request.method, route))
        what = NoteRefusal(
            action=action.value if action is not None else short(f"{request.method} {route}"),
            target=short("/".join(request.match_info.values())),
            why=error.why,
            vc=short(error.vc),
        )
        if not self._counted.take(caller.actor, what, self._now_s()):
            log.warning("refused, not in the audit log", by=caller.name, why=error.why)
            return
        self._news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Stop writing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        while True:
            for actor, what in self._counted.due(self._now_s()):
                await self._write_one(actor, what)
            self._news.clear()
            at_s = self._counted.due_at()
            left_s = None if at_s is None else max(0.0, at_s - self._now_s())
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _write_one(self, actor: Actor, what: NoteRefusal) -> None:
        try:
            await self._asking.ask(actor, what)
        except ApiError as error:
            log.warning("refused, not yet in the audit log", by=actor.name, error=str(error))
            self._counted.take(actor, what, self._now_s())


def short(text: str) -> str:
    """Return a text of a request as the audit log may have it."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:SHORT_MAX])
