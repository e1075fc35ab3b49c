"""Stays with Jupyter in a notebook's job, and has the job suspended while nothing happens in it.

    busy --nothing for `idle_s`--> asking --suspended, and back--> busy
                                   asking --not suspended within ASKS_MAX turns--> ended

Jupyter says when something happened last: a cell that runs, a message of a kernel, a terminal, a
request. While nothing does, the agent is told every second, as by any rank that has nothing to do;
the cluster suspends the job and gives its GPUs away, if they can be had from it. All processes are
frozen then, this one too: it notices that by its clock. Standard library only, beside `skep_job`.
"""

from __future__ import annotations

import datetime
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from skep_job.link.connection import Link, LinkLost
from skep_job.link.settings import Settings, read

HOST = "127.0.0.1"
TURN_S = 1.0
"""How often the agent is told: what it heard holds for five seconds."""
LOOK_TURNS = 5
"""How often Jupyter is asked, in turns; within the last of them before it is idle, every time."""
AWAY_S = 2.5
"""A turn that took longer than this was frozen in between: the job is back. Where that was shorter,
the agent passes over what is asked for a while."""
ASKS_MAX = 60
"""How long the suspension may take (turns): the driver moves 80 GB in some 20 s."""
ANSWER_WITHIN_S = 5.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
END_WITHIN_S = 10.0


class Jupyter:
    """A server of this job, as far as it tells when something happened in it."""

    def __init__(self, port: int, token: str) -> None:
        """Ask at a port of this machine, with the token of the server."""
        self._port, self._token = port, token

    def idle_s(self) -> float | None:
        """Return for how long nothing has happened (seconds); None: it does not say."""
        try:
            status = self._get("/api/status")
            kernels = self._get("/api/kernels")
            if any(each.get("execution_state") not in ("idle", "dead") for each in kernels):
                return 0.0
            last = str(status["last_activity"]).replace("Z", "+00:00")
            return max(0.0, time.time() - datetime.datetime.fromisoformat(last).timestamp())
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):
            return None

    def _get(self, path: str) -> Any:
        link = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_WITHIN_S)
        try:
            # This question is not to count as something that happens.
            headers = {"Authorization": f"token {self._token}"}
            link.request("GET", f"{path}?no_track_activity=1", headers=headers)
            answer = link.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
            if answer.status != 200:
                raise ValueError(answer.status)
            return json.loads(body)
        finally:
            link.close()


class Agent:
    """What the agent of the node is told; it may be away for a while."""

    def __init__(self, settings: Settings | None) -> None:
        """Speak for a rank; None: there is no agent to speak to."""
        self._settings = settings
        self._link: Link | None = None
        self._can: list[str] = []

    def tell(self, idle_s: float) -> None:
        """Say for how long nothing has happened (seconds); 0: something does."""
        if self._settings is None:
            return
        # While something happens it is not to be frozen, for whatever others would need its GPUs.
        can = ["release"] if idle_s else []
        changed, self._can = self._link is not None and can != self._can, can
        try:
            link = self._link = self._link or self._greet(self._settings)
            link.receive()  # Nothing that a rank is told is for this process.
            if changed:
                link.send(self._message("can", tier="opaque", can=can))
            link.send(self._message("idle", idle_ns=int(idle_s * 1e9)))
        except LinkLost:
            if self._link is not None:
                self._link.drop()
            self._link = None

    def _greet(self, settings: Settings) -> Link:
        link = Link(settings.socket_path)
        try:
            hello = self._message("hello", pid=os.getpid(), token=settings.secret)
            link.send(hello)
            link.send(self._message("can", tier="opaque", can=self._can))
        except LinkLost:
            link.drop()
            raise
        return link

    def _message(self, kind: str, **more: object) -> dict[str, object]:
        assert self._settings is not None
        one = self._settings
        return {"type": kind, "job": one.job, "attempt": one.attempt, "rank": one.rank, **more}


class Watch:
    """Counts the turns in which nothing happens."""

    def __init__(self, jupyter: Jupyter, agent: Agent, idle_s: float, now: float) -> None:
        """Begin to count at `now` (monotonic seconds); `idle_s` is how long is long enough."""
        self._jupyter, self._agent, self._idle_s = jupyter, agent, idle_s
        self._since, self._turned_at = now, now
        self._turns, self._asks = 0, 0

    def turn(self, now: float) -> bool:
        """Look, and tell the agent; return whether the notebook has to end, as it is not suspended.

        Args:
            now: Monotonic seconds.
        """
        if now - self._turned_at > AWAY_S:
            self._since, self._asks = now, 0
        self._turned_at = now
        self._turns += 1
        if self._asks or self._near(now) or self._turns % LOOK_TURNS == 0:
            idle = self._jupyter.idle_s()
            # What is not known counts as something that happens.
            self._since = max(self._since, now - (idle or 0.0))
        quiet = now - self._since
        if quiet < self._idle_s:
            self._asks = 0
            self._agent.tell(0.0)
            return False
        self._asks += 1
        self._agent.tell(quiet)
        return self._asks > ASKS_MAX

    def _near(self, now: float) -> bool:
        return now - self._since >= self._idle_s - LOOK_TURNS * TURN_S


def stay(argv: list[str], port: int, token: str, idle_s: int) -> int:
    """Run Jupyter until it ends, and end it if it is idle and cannot be suspended.

    Args:
        argv: Its command.
        port: Where it listens.
        token: What it answers to.
        idle_s: How long nothing may happen.

    Returns:
        Its exit code; 0 if it was ended because nothing happened.

    Raises:
        OSError: It cannot be executed.
    """
    found = read(os.environ)
    settings = found if isinstance(found, Settings) else None
    # One process speaks for the rank: what its cells do is not counted as mini-batches.
    own = {name: value for name, value in os.environ.items() if name != "SKEP_SOCK"}
    child = subprocess.Popen(argv, env=own, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    watch = Watch(Jupyter(port, token), Agent(settings), idle_s, time.monotonic())
    while True:
        try:
            code = child.wait(TURN_S)
        except subprocess.TimeoutExpired:
            if not watch.turn(time.monotonic()):
                continue
            _say(
                f"nothing happened here for {idle_s} s, and the notebook could not be suspended: "
                f"it ends (skep events --job {os.environ.get('SKEP_JOB', '')} says why)"
            )
            return _ended(child)
        return 128 - code if code < 0 else code


def _ended(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        child.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"[skep] {text}\n")
    sys.stdout.flush()
