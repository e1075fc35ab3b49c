"""Commands that people run inside a run: started by what holds it, so they are part of its tree.

A session is one process beside the run's own, with the run's account, groups, namespaces and
variables (`Enclosure.enter`). Its terminal, or its three pipes, are handed to the agent over the
connection that asked; when that connection ends, the session is hung up on. It is frozen and killed
with the run, and what it leaves behind is the run's. Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from skep_services.agent import proc
from skep_services.agent.runner_enclosure import Enclosure
from skep_services.agent.runner_ends import Ends, open_ends
from skep_services.agent.runner_launch import NotStarted
from skep_services.agent.runner_record import Known

SESSIONS_PER_RUN_MAX = 32
"""Sessions in one run: a team at its terminals, and a browser's connections through
`skep port-forward`."""
SESSIONS_MAX = 256
"""Sessions of one node: each has a process, and up to three descriptors here for a moment."""
WORDS_MAX = 1_024
KEPT_BACK = frozenset({"SKEP_SOCK", "SKEP_RANK_SECRET"})
"""Variables of a rank that let its process speak for it: a session is no rank."""


class Session:
    """One session that has not ended, by the pid of its process."""

    def __init__(self, pid: int, token: str, asked: object) -> None:
        """Take its process, its run, and the connection that asked for it."""
        self.pid, self.token, self.asked = pid, token, asked
        self.run_over = False
        """Its run ended before it did."""
        self.run_code: int | None = None
        """How, if the run ended by itself."""


class Left(NamedTuple):
    """A session that has ended, and how."""

    asked: object
    code: int
    run_over: bool
    run_code: int | None


class Sessions:
    """The sessions of a node's runs. `left` collects the ends that are to be told."""

    def __init__(self, enclosure: Enclosure) -> None:
        """Begin with none; `enclosure` is what keeps the runs apart."""
        self.left: list[Left] = []
        self._enclosure = enclosure
        self._live: dict[int, Session] = {}

    def enter(
        self,
        known: Known,
        kept: Mapping[str, Any] | None,
        request: Mapping[str, Any],
        asked: object,
    ) -> tuple[int, Ends] | NotStarted:
        """Start a command in a living run; return its pid and its descriptors, or why it is not.

        Args:
            known: The run.
            kept: What this holder started it with; None: it was another one.
            request: What is to run: `argv`, `env` beside the run's, `terminal`, `rows`, `columns`.
            asked: The connection that it goes with.

        Raises:
            ValueError: The request makes no sense.
        """
        chosen = wanted(request)
        of_run = sum(each.token == known.token for each in self._live.values())
        if of_run >= SESSIONS_PER_RUN_MAX or len(self._live) >= SESSIONS_MAX:
            text = f"{of_run} sessions are open in {known.token}: close one of them"
            return NotStarted(f"too-many-sessions: {text}")
        env, workdir = place_of(known.pid, kept)
        if not env:
            return NotStarted("the variables of its process cannot be read: try it again")
        plan = {
            "token": known.token,
            "argv": chosen["argv"],
            "env": {**env, **chosen["env"]},
            "workdir": workdir,
        }
        try:
            ends = open_ends(**{name: chosen[name] for name in ("terminal", "rows", "columns")})
        except OSError as error:
            return NotStarted(f"no terminal could be made: {error.strerror}", of_node=True)
        try:
            outcome = self._enclosure.enter(plan, known, ends)
        except OSError as error:
            outcome = NotStarted(f"no process could be started: {error.strerror}", of_node=True)
        ends.close_theirs()
        if isinstance(outcome, NotStarted):
            ends.close_ours()
            return outcome
        self._live[outcome] = Session(outcome, known.token, asked)
        return outcome, ends

    def reaped(self, pid: int, status: int) -> None:
        """Take the end of a child, if it is a session's process."""
        session = self._live.pop(pid, None)
        if session is not None:
            code = os.waitstatus_to_exitcode(status)
            self.left.append(Left(session.asked, code, session.run_over, session.run_code))

    def run_ends(self, token: str) -> None:
        """Take note that a run is asked to end, and with it what runs in its sessions."""
        for session in self._of(token):
            session.run_over = True

    def run_over(self, token: str, code: int | None) -> None:
        """Hang up on the sessions of a run whose main process has ended, with this exit code."""
        for session in self._of(token):
            if not session.run_over:
                session.run_over, session.run_code = True, code
            hang_up(session.pid)

    def _of(self, token: str) -> list[Session]:
        return [each for each in self._live.values() if each.token == token]

    def gone(self, asked: object) -> None:
        """Hang up on the sessions of a connection that has ended."""
        for session in [each for each in self._live.values() if each.asked is asked]:
            hang_up(session.pid)


def wanted(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request asks for, checked.

    Raises:
        ValueError: It makes no sense.
    """
    argv, more = request["argv"], request.get("env", {})
    words = isinstance(argv, list) and 0 < len(argv) <= WORDS_MAX
    if not words or not all(isinstance(word, str) and "\0" not in word for word in argv):
        message = "argv must be a list of words"
        raise ValueError(message)
    if not all(isinstance(name, str) and isinstance(more[name], str) for name in more):
        message = "env must be texts by name"
        raise ValueError(message)
    rows, columns = (min(max(int(request.get(name, 0)), 1), 4096) for name in ("rows", "columns"))
    terminal = bool(request.get("terminal", False))
    return {"argv": argv, "env": more, "terminal": terminal, "rows": rows, "columns": columns}


def place_of(pid: int, kept: Mapping[str, Any] | None) -> tuple[dict[str, str], str]:
    """Return the variables and the folder of a run's process.

    Args:
        pid: The process.
        kept: What this holder started it with; None: another one did, so the process is looked at.
    """
    found = proc.environ(pid)
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}
    if kept is not None and proc.RUN_VARIABLE not in env:
        env = dict(kept["env"])  # A process may write its own title over its variables.
    if kept is not None:
        workdir = str(kept["workdir"])
    else:
        try:
            workdir = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            workdir = "/"
    return {name: env[name] for name in env if name not in KEPT_BACK}, workdir


def hang_up(pid: int) -> None:
    """End a session's process, and what shares its session of the kernel."""
    for one in proc.processes().values():
        if one.sid == pid:
            proc.send(one, signal.SIGKILL)
