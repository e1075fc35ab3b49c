"""What `skep top` shows, fetched in a thread: when the event stream says that something happened.

Rates make no events, and are asked for every RATES_EVERY_S. Only what is on the screen is asked
for: the list of jobs, or nodes, or virtual clusters; and of one job why it is so, or its output.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from skep_services.cli.client import Client, Target, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.news import News

ASK_EVERY_S = 1.0
"""The list is asked for at most so often, however much happens."""
RATES_EVERY_S = 5.0
"""Rates, heartbeats and progress make no events: they are asked for so often."""
OUTPUT_EVERY_S = 1.0
"""How often more output of the chosen job is asked for, while it is shown."""
PATIENCE_S = 2.0
"""How long one question is repeated; the screen says that it is out of date meanwhile."""
ANSWER_S = 10.0
ROWS_MAX = 500
"""Rows of a list. A person finds the others by filters."""
OUTPUT_LINES = 200
OUTPUT_BYTES_MAX = 256 * 1024
RATES_KEPT = 240
"""Rates of each job for its line: twenty minutes."""

PATHS = {"nodes": "/v1/nodes", "vcs": "/v1/usage"}


class Wish(NamedTuple):
    """What is on the screen.

    `view` is jobs, nodes or vcs; `pane` why, output, details or nothing of the chosen `job`.
    """

    view: str = "jobs"
    job: str = ""
    pane: str = "why"
    order: str = "queue"
    ended: bool = False


class Seen(NamedTuple):
    """What was fetched. `error` says why it may be out of date; empty: it is not."""

    jobs: list[dict[str, Any]] = []  # noqa: RUF012 - nobody changes it
    total: int = 0
    things: list[dict[str, Any]] = []  # noqa: RUF012
    about: dict[str, Any] = {}  # noqa: RUF012
    output: str = ""
    error: str = ""
    at: float = 0.0
    wish: Wish = Wish()


class Feed:
    """Fetches until it is closed.

    Args:
        target: The gateway.
        vc: Jobs of this virtual cluster only; None: all.
        ended: Ended jobs too.
    """

    def __init__(self, target: Target, vc: str | None, *, ended: bool = False) -> None:
        self.wish = Wish(ended=ended)
        self.where = target.url
        self.rates: dict[str, deque[int]] = {}
        """The latest rates of each listed job, in thousandths."""
        self._target, self._vc = target, vc
        self._client = Client(target, PATIENCE_S)
        self._changed = threading.Event()
        self._closed = False
        self._seen = Seen()
        self._output_at: tuple[str, int, int] = ("", 0, 0)
        """The job and attempt of which output is shown, and how many bytes of it were read."""

    def start(self, show: Callable[[Seen], None]) -> None:
        """Begin to fetch; `show` gets, in another thread, what was seen."""
        threading.Thread(target=self._run, args=(show,), name="feed", daemon=True).start()

    def want(self, wish: Wish) -> None:
        """Fetch something else from now on."""
        if wish != self.wish:
            self.wish = wish
            self._changed.set()

    def close(self) -> None:
        """Fetch nothing more."""
        self._closed = True
        self._changed.set()

    def _run(self, show: Callable[[Seen], None]) -> None:
        news: News | None = None
        asked_at, stale = -RATES_EVERY_S, True
        while not self._closed:
            now = time.monotonic()
            try:
                news = news or News(self._target, vc=self._vc, wake=self._changed)
                if stale or now - asked_at >= RATES_EVERY_S:
                    self._seen = self._look(self.wish)
                    asked_at = now
                elif self.wish.pane == "output":
                    self._seen = self._seen._replace(output=self._output(self._seen), error="")
                news.check()
            except (CommandError, OSError) as error:
                self._seen = self._seen._replace(error=str(error).split("\n")[0])
                news = None if news is not None and news.failed else news
            show(self._seen)
            stale = self._pause(asked_at)

    def _pause(self, asked_at: float) -> bool:
        """Return whether the view is out of date, once it may be asked for again."""
        stale = self._changed.wait(OUTPUT_EVERY_S)
        if stale and self.wish == self._seen.wish:
            # Something happened: but not so soon after the last time. A key is answered at once.
            left_s = ASK_EVERY_S - (time.monotonic() - asked_at)
            if left_s > 0:
                time.sleep(left_s)
        self._changed.clear()
        return stale

    def _look(self, wish: Wish) -> Seen:
        path = query(
            "/v1/jobs",
            state="all" if wish.ended else "active",
            vc=self._vc,
            order=wish.order,
            limit=ROWS_MAX,
        )
        answer = self._get(path)
        jobs = answer["jobs"]
        self._keep_rates(jobs)
        things: list[dict[str, Any]] = []
        if wish.view in PATHS:
            things = self._get(PATHS[wish.view])[wish.view]
        seen = self._seen._replace(
            jobs=jobs, total=answer["total"], things=things, error="", at=time.time(), wish=wish
        )
        about, output = {}, ""
        if wish.pane != "output":
            self._output_at = ("", 0, 0)
        if wish.job and wish.pane in {"why", "details"}:
            more = "/why" if wish.pane == "why" else ""
            about = self._about(f"/v1/jobs/{quote(wish.job)}{more}")
        elif wish.job and wish.pane == "output":
            output = self._output(seen)
        return seen._replace(about=about, output=output)

    def _about(self, path: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._get(path)
        except CommandError as error:
            return {"error": error.text}
        return found

    def _output(self, seen: Seen) -> str:
        """Return the output of the chosen job: what is known of it, and what has come since."""
        job = self.wish.job
        row = next((row for row in seen.jobs if row["job"] == job), None)
        if row is None or not row["attempt"]:
            self._output_at = ("", 0, 0)
            return "no output: it was not started yet" if row is not None else ""
        known, attempt, offset = self._output_at
        text = seen.output
        more: dict[str, Any] = {"offset": offset}
        if (known, attempt) != (job, row["attempt"]):
            text, more = "", {"tail": OUTPUT_LINES}
        path = query(f"/v1/jobs/{quote(job)}/logs", rank=0, attempt=row["attempt"], **more)
        try:
            answer = self._client.stream(path, ANSWER_S)
            begin = int(answer.headers.get("skep-offset", "0"))
            raw = answer.read()
        except CommandError as error:
            self._output_at = ("", 0, 0)
            return error.text
        self._output_at = (job, row["attempt"], begin + len(raw))
        return (text + raw.decode("utf-8", "replace"))[-OUTPUT_BYTES_MAX:]

    def _keep_rates(self, jobs: list[dict[str, Any]]) -> None:
        kept: dict[str, deque[int]] = {}
        for row in jobs:
            if row["rate_milli"]:
                one = self.rates.get(row["job"]) or deque(maxlen=RATES_KEPT)
                one.append(row["rate_milli"])
                kept[row["job"]] = one
        self.rates = kept

    def _get(self, path: str) -> Any:
        return self._client.get(path, ANSWER_S)
