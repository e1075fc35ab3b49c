r"""The runs of one node: starting them, seeing them end, and killing what they leave behind.

    start -> alive --main process ends--> ending --tree is gone--> ended --forget--> (unknown)
               \_________ stop: SIGTERM, SIGKILL after the grace ________/

The tree of a run is found without asking its processes to cooperate. The runner is a *subreaper*:
a process whose parent dies becomes the runner's child. So whatever is left of a run after its main
process is in the subtree of one of the runner's own children, and while the runner has no children
but main processes, nothing is left of anything: that is the fast path, one read of /proc.

Whose a child is that is no main process, is told by what it cannot lose by accident: the run's
number (see `proc.marked`), else by its session, else by the token in its environment. A process
that has rid itself of all three belongs to the runs that were alive when it was first seen, and is
killed with the last of them.

Runs adopted after the death of an earlier runner are not children: their ends are seen through
pidfds, without exit codes, and their trees are found by number, token, session and parents.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from skep_services.agent import proc, runner_freeze, runner_signal
from skep_services.agent.runner_enclosure import Enclosure
from skep_services.agent.runner_ends import Ends
from skep_services.agent.runner_launch import NotStarted, not_written
from skep_services.agent.runner_log import RunLog
from skep_services.agent.runner_record import Known, Record
from skep_services.agent.runner_sessions import Sessions

RUNS_MAX = 65_536
"""Runs known at once, ended ones included. An agent forgets ends as soon as they are durable."""

LEFTOVER_GRACE_SECONDS = 1.0
"""How long after SIGTERM a process may live that outlived its run's main process."""

LEFT_NAMES_MAX = 4
LEFT_RUNS_MAX = 1000
"""How many leftovers of a run are named, and of how many runs in a list: a run that leaks leaks
more of the same.
"""

LOG_CHECK_SECONDS = 0.25
LOG_CHECK_FLOOD_SECONDS = 0.05
"""How often logs are measured, and how often while one of them outgrows its bound."""

ADOPTED_LOOK_SECONDS = 0.1
"""How often the rest of a run is looked for that are no children: nothing tells their end."""

KILL_SECONDS_MAX = 0.2
"""How long one attempt to kill a tree may keep the runner from the other runs. A fork bomb has
fewer processes after each attempt.
"""

KILL_AGAIN_SECONDS = 0.02
KILL_AGAIN_SECONDS_MAX = 1.0
"""Pause between two attempts to kill a tree, doubled while the same processes are left: one may be
in uninterruptible sleep for long, and scanning /proc for it costs the other runs.
"""

assert KILL_AGAIN_SECONDS < KILL_AGAIN_SECONDS_MAX <= LEFTOVER_GRACE_SECONDS


DUE = 0.0
"""Of `Run.look_at`: at the next tick."""


class Run:
    """One run that has not ended. `own`: its main process is the runner's child.

    `kill_at` and `look_at` are monotonic seconds, infinite where nothing is due.
    """

    def __init__(self, known: Known, *, own: bool) -> None:
        self.known = known
        self.own = own
        self.log: RunLog | None = None
        self.code: int | None = None
        self.main_gone = False
        self.stopping = False
        self.kill_at = math.inf
        self.kill_again = KILL_AGAIN_SECONDS
        self.look_at = math.inf
        self.killed: dict[tuple[int, int], bool] = {}
        self.leftovers: dict[tuple[int, int], bool] = {}
        self.left: list[str] = []
        self.kept: Mapping[str, Any] | None = None
        """The variables and the folder that it began with; None: another runner began it."""
        self.sessions: dict[int, bool] = {}
        """Sessions of the kernel in which people ran commands: what is left there is not the
        job's."""

    def leave(self, found: list[proc.Process]) -> None:
        """Note what outlived the main process; the first are named, while they are there."""
        for one in found:
            if one.sid in self.sessions:
                continue
            if (one.pid, one.ticks) not in self.leftovers:
                self.leftovers[one.pid, one.ticks] = True
                if len(self.left) < LEFT_NAMES_MAX:
                    self.left.append(f"{one.pid}: {proc.command_line(one.pid)}")


class Orphan:
    """A child of the runner that is no main process; `suspects` are the runs it may belong to."""

    def __init__(self, suspects: list[Run]) -> None:
        self.suspects = suspects
        self.run: Run | None = None


class Holder:
    """Every run of the node whose state folder is `state`.

    Must live in a single-threaded subreaper that starts no other processes than those that it
    names in `helpers`. `ends` collects the ends to be told; `watched` maps pidfds to adopted runs:
    call `adopted_ended` once one is readable. What keeps runs apart is the `enclosure`'s matter.
    """

    def __init__(self, state: str, enclosure: Enclosure | None = None) -> None:
        self.state = state
        self.enclosure = enclosure or Enclosure()
        self.ends: list[dict[str, Any]] = []
        self.live: dict[str, Run] = {}
        self.watched: dict[int, Run] = {}
        self.helpers: dict[int, bool] = {}
        """Children that are of no run, by pid; one that ends is taken out."""
        self.enclosure.helpers = self.helpers
        self.sessions = Sessions(self.enclosure)
        self._pid = os.getpid()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._record = Record(os.path.join(state, "runner.jsonl"), proc.boot_id())
        self._mains: dict[int, Run] = {}
        self._orphans: dict[int, Orphan] = {}
        self.marks: dict[int, Run] = {}
        self._strays_due = False
        self._logs_at = 0.0
        self._adopt()

    # --- requests -----------------------------------------------------------------------------

    def start(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Start a run, or say what it became if its token was started before.

        Args:
            plan: Its `token`, `argv`, `env`, `workdir`, `script`, `log_path` and `log_bytes_max`;
                with `fresh` the log begins empty.

        Returns:
            The answer to the client: what was `started`, or in words why it is `not_started`, and
            whose `fault` that is if it is the node's. Of a run that might have started from a
            warm process it says whether it did: `warm`, or why not: `cold`.
        """
        token = plan["token"]
        known = self._record.runs.get(token)
        if known is not None:
            return {"started": _started(known)}
        if len(self._record.runs) >= RUNS_MAX:
            text = f"this node already remembers {RUNS_MAX} runs: forget some"
            return _not_started(NotStarted(text, of_node=True))
        about = self.enclosure.admit(plan)
        if isinstance(about, NotStarted):
            return _not_started(about)
        try:
            log = self.enclosure.open_log(plan["log_path"], plan["log_bytes_max"], about)
            if plan.get("fresh") is True:
                log.clear()
        except OSError as error:
            return _not_started(not_written(f"log {plan['log_path']}", error))
        try:
            mark = self.enclosure.new_mark()
            known = self._record.began(token, mark, log.path, log.bytes_max, about)
        except OSError as error:
            log.close()
            return _not_started(not_written(error.filename or self.state, error))
        try:
            outcome = self._launch(plan, known, log)
        except OSError as error:
            outcome = not_written(error.filename or self.state, error)
        if isinstance(outcome, NotStarted):
            log.close()
            self._note(self._record.not_started, token)
            self.enclosure.ended(known)
            return _not_started(outcome)
        ticks = proc.start_ticks(outcome)
        assert ticks is not None, "a child that was not waited for has an entry in /proc"
        run = self._mains[outcome] = Run(known, own=True)
        self._add(run)
        run.log = log
        run.kept = {"env": plan["env"], "workdir": plan["workdir"]}
        self._note(self._record.started, known, outcome, ticks, time.time_ns())
        return {"started": _started(known), **self.enclosure.how}

    def enter(self, request: Mapping[str, Any], asked: object) -> tuple[int, Ends] | NotStarted:
        """Start a command of a person in a run; see `runner_sessions`.

        Args:
            request: The `token` of the run, and the command.
            asked: The connection that it goes with.

        Raises:
            ValueError: The request makes no sense.
        """
        run = self.live.get(request["token"])
        if run is None or run.main_gone or run.stopping or not run.known.pid:
            return NotStarted("not-running: its process has ended, or is being ended")
        if run.known.frozen:
            return NotStarted("job-suspended: its processes are frozen: `skep resume` it first")
        self.reap()
        outcome = self.sessions.enter(run.known, run.kept, request, asked)
        if not isinstance(outcome, NotStarted):
            run.sessions[outcome[0]] = True
            orphan = self._orphans[outcome[0]] = Orphan([run])
            orphan.run = run
        return outcome

    def stop(self, token: str, grace_s: float) -> None:
        """Ask a run's tree to end, and kill it later. Unknown and ended runs are fine.

        Args:
            token: The name of the run.
            grace_s: What the tree gets before it is killed (seconds); 0: nothing.
        """
        run = self.live.get(token)
        if run is None:
            return
        self.reap()
        self.thaw(token)
        run.known.asked = run.known.asked or not run.main_gone
        at = time.monotonic()
        run.kill_at = min(run.kill_at, at + max(grace_s, 0.0))
        self.sessions.run_ends(token)
        if not run.stopping and run.kill_at > at:
            _terminate(self._members(run))
        run.stopping = True
        self._look(run, at)

    def freeze(self, token: str) -> str:
        """Freeze a run's tree where it is; return what would not be, or an empty text.

        It is noted first: a tree that is frozen and not known to be would stay so for ever.
        """
        run = self.live.get(token)
        if run is None or run.stopping:
            return ""
        self.reap()
        known = run.known
        group = self.enclosure.group(known) or known.group
        group = group or runner_freeze.group_for(known.mark)
        try:
            self._record.frozen(known, group)
        except OSError as error:
            return f"the record cannot be written: {error}"
        trouble = ""
        if group:
            trouble = runner_freeze.freeze_group(group, lambda: self._members(run))
        if trouble or not group:
            if group:
                _complain(f"{trouble}; stopped by signals instead")
                runner_freeze.thaw_group(group)
                self._note(self._record.frozen, known, "")
            trouble = runner_freeze.stop_all(lambda: self._members(run))
        return trouble

    def thaw(self, token: str) -> str:
        """Let a run's tree go on; return why that failed, or an empty text."""
        run = self.live.get(token)
        if run is None or not (run.known.frozen or run.known.group):
            return ""
        trouble = runner_freeze.thaw_group(run.known.group) if run.known.group else ""
        if not run.known.group:
            runner_freeze.continue_all(lambda: self._members(run))
        if not trouble and run.known.frozen:
            self._note(self._record.thawed, run.known)
        return trouble

    def signal(self, token: str, name: str, order: int) -> str:
        """Give a run a signal, once for each order; return why it has none, or an empty text."""
        run, number = self.live.get(token), runner_signal.number_of(name)
        if run is None or run.stopping or run.main_gone:
            return "its process has ended, or is being ended"
        if number is None:
            return f"there is no signal {name!r}"
        if order <= run.known.signalled:
            return ""
        self.reap()
        try:
            self._record.signalled(run.known, order)
        except OSError as error:
            return f"the record cannot be written: {error}"
        members = [one for one in self._members(run) if one.sid not in run.sessions]
        found = runner_signal.uppermost(run.known.pid, members, number)
        if not sum(proc.send(one, number) for one in found):
            return f"none of its processes has a handler for SIG{name}"
        return ""

    def forget(self, token: str) -> None:
        """Drop an ended run. Unknown runs are fine, living ones stay."""
        if token in self._record.runs and token not in self.live:
            self._note(self._record.forgot, token)

    def runs(self) -> list[dict[str, Any]]:
        """Return every run known, as told to clients."""
        told = [
            _alive(known) if token in self.live else _ended(known)
            for token, known in self._record.runs.items()
        ]
        for run in [run for run in told if run.get("left")][LEFT_RUNS_MAX:]:
            run["left"] = []
        return told

    def is_of_a_run(self, pid: int) -> bool:
        """Return whether a process is below this one, or in the tree of a run that was adopted.

        Nothing that a run starts can leave the first, as this is its subreaper. A process of which
        not everything above it can be seen counts as one too.
        """
        adopted = {run.known.pid for run in self.live.values() if not run.own} - {0}
        above = pid
        for one in proc.lineage(pid):
            if one.ppid == self._pid or one.pid in adopted or one.sid in adopted:
                return True
            above = one.ppid
        return above != 0

    # --- what happens -------------------------------------------------------------------------

    def reap(self) -> None:
        """Take every child that has died; `tick` sees to what follows from it."""
        orphans = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            run = self._mains.pop(pid, None)
            self.sessions.reaped(pid, status)
            if self.helpers.pop(pid, False):
                self.enclosure.helper_ended(pid)
                continue
            if run is None:
                self._orphans.pop(pid, None)
                orphans = True
            else:
                run.main_gone = True
                run.code = os.waitstatus_to_exitcode(status)
                run.look_at = DUE
                self.sessions.run_over(run.known.token, run.code)
        if orphans:
            # What died may have been the last of a run, or have left children that are its rest.
            self._strays_due = True
            for run in self.live.values():
                if run.main_gone:
                    run.look_at = DUE

    def adopted_ended(self, pidfd: int) -> None:
        """Take the end of the main process of an adopted run."""
        run = self.watched.pop(pidfd)
        os.close(pidfd)
        run.main_gone = True
        run.look_at = DUE
        self.sessions.run_over(run.known.token, None)

    def wake_at(self) -> float:
        """Return when `tick` is due (monotonic seconds), infinite if never."""
        if self._strays_due:
            return DUE
        looks = min((run.look_at for run in self.live.values()), default=math.inf)
        return min(looks, self._logs_at if self.live else math.inf, self.enclosure.wake_at())

    def tick(self) -> None:
        """Do what is due."""
        at = time.monotonic()
        self.enclosure.tick(at)
        for run in [run for run in self.live.values() if run.look_at <= at]:
            self._look(run, at)
        if self._strays_due:
            self._strays_due = False
            for one in self._children():
                self._owner(one)
        if at >= self._logs_at:
            flood = False
            for run in self.live.values():
                flood = _check_log(run) or flood
            self._logs_at = at + (LOG_CHECK_FLOOD_SECONDS if flood else LOG_CHECK_SECONDS)
            for token, why in self.enclosure.overdrawn():
                self._end(token, why, at)

    def _end(self, token: str, why: str, at: float) -> None:
        """End a run that uses more than it may: by a signal, and as its own fault."""
        run = self.live.get(token)
        if run is None or run.kill_at < math.inf:
            return
        if run.log is not None:
            run.log.say(why)
        run.known.exceeded = why
        self.sessions.run_ends(token)
        run.kill_at = at + LEFTOVER_GRACE_SECONDS
        _terminate(self._members(run))
        self._look(run, at)

    # --- the end of a run ---------------------------------------------------------------------

    def _look(self, run: Run, at: float) -> None:
        """See how far the end of a run is, and push it on."""
        if run.main_gone and not self._remains(run):
            self._finish(run)
            return
        if run.main_gone and run.kill_at == math.inf:
            left = self._members(run)
            run.leave(left)
            _terminate(left)
            run.kill_at = at + LEFTOVER_GRACE_SECONDS
        if at >= run.kill_at:
            grown = self._kill(run)
            pause = KILL_AGAIN_SECONDS if grown else run.kill_again
            run.kill_at = run.look_at = time.monotonic() + pause
            run.kill_again = min(pause * 2, KILL_AGAIN_SECONDS_MAX)
        elif run.main_gone and (not run.own or self.enclosure.leaves_to_init(run.known)):
            run.look_at = min(run.kill_at, at + ADOPTED_LOOK_SECONDS)
        else:
            run.look_at = run.kill_at

    def _finish(self, run: Run) -> None:
        known = run.known
        del self.live[known.token]
        del self.marks[known.mark]
        if run.log is not None:
            _check_log(run)
            run.log.close()
        if known.group:
            runner_freeze.remove(known.group)
        self.enclosure.ended(known)
        self._note(
            self._record.exited, known, run.code, len(run.leftovers), time.time_ns(), run.left
        )
        self.ends.append(_ended(known))

    def _kill(self, run: Run) -> bool:
        """Freeze the tree until nothing is found that is not frozen, then kill it.

        Return whether there was anything that had not been killed before. What is frozen does not
        fork, so that even processes which do nothing but fork and leave their session are caught
        up with.
        """
        if self._kill_enclosed(run):
            return True
        frozen: dict[int, proc.Process] = {}
        until = time.monotonic() + KILL_SECONDS_MAX
        _outrun(begin=True)
        while time.monotonic() < until:
            if run.own and self._freeze_orphans(run, frozen):
                continue
            fresh = [one for one in self._members(run) if one.pid not in frozen]
            if not fresh:
                break
            _signal(fresh, signal.SIGSTOP)
            frozen.update((one.pid, one) for one in fresh)
        fresh_ids = [each for each in _identities(list(frozen.values())) if each not in run.killed]
        if run.main_gone:
            run.leave([one for one in frozen.values() if (one.pid, one.ticks) in fresh_ids])
        _signal(list(frozen.values()), signal.SIGKILL)
        _outrun(begin=False)
        run.killed.update(dict.fromkeys(fresh_ids, True))
        return bool(fresh_ids)

    def _kill_enclosed(self, run: Run) -> bool:
        """Kill a tree at once where its enclosure can; return whether it can."""
        inside = self.enclosure.inside(run.known)
        if inside is None or not self.enclosure.kill(run.known):
            return False
        found = [one for pid in inside if (one := proc.process(pid)) is not None]
        fresh = [one for one in found if (one.pid, one.ticks) not in run.killed]
        if run.main_gone:
            # Not what was killed together with the main process, and takes longer to die.
            run.leave(fresh)
        run.killed.update(dict.fromkeys(_identities(fresh), True))
        return True

    def _freeze_orphans(self, run: Run, frozen: dict[int, proc.Process]) -> bool:
        """Freeze children of the runner the moment they are found; return whether there were any.

        A process that forks and ends at once is gone by the time a scan of /proc is complete, but
        what it leaves is always another child.
        """
        found = False
        # The dead would be looked at again and again, and can be many more than the living.
        self.reap()
        for one in self._children():
            if one.pid not in frozen and self._owner(one) is run:
                os.kill(one.pid, signal.SIGSTOP)
                frozen[one.pid] = one
                found = True
        return found

    # --- what belongs to a run ------------------------------------------------------------------

    def _remains(self, run: Run) -> bool:
        """Tell whether anything is left of a run whose main process is gone."""
        inside = self.enclosure.inside(run.known)
        if inside is not None:
            return any(proc.process(pid) for pid in inside)
        return bool(self._orphans_of(run) if run.own else self._members(run))

    def _members(self, run: Run) -> list[proc.Process]:
        """Return the living processes of a run's tree."""
        inside = self.enclosure.inside(run.known)
        if inside is not None:
            return [one for pid in inside if (one := proc.process(pid)) is not None]
        orphans = self._orphans_of(run) if run.own else []
        everything = proc.processes()
        everything.pop(self._pid, None)
        # An orphan may have died since: what it left has become another orphan, seen next time.
        everything.update((one.pid, one) for one in orphans)
        roots = [one.pid for one in orphans]
        main = everything.get(run.known.pid)
        if main is not None and main.ticks == run.known.ticks:
            roots.append(main.pid)
        if not run.own:
            roots += [pid for pid in everything if self._carries(pid, run.known)]
        return list(proc.tree(everything, roots).values())

    def _orphans_of(self, run: Run) -> list[proc.Process]:
        """Return the living children of the runner that are the rest of a run."""
        return [one for one in self._children() if self._owner(one) is run]

    def _children(self) -> Iterator[proc.Process]:
        """Yield the living children that are no main processes."""
        for pid in proc.children(self._pid):
            if pid not in self._mains and pid not in self.helpers:
                one = proc.process(pid)
                if one is not None:
                    yield one

    def _owner(self, one: proc.Process) -> Run | None:
        """Return the run of a child that is no main process, or None while that is undecided.

        One that can be of no living run is killed.
        """
        orphan = self._orphans.get(one.pid)
        if orphan is None:
            orphan = self._orphans[one.pid] = Orphan([r for r in self.live.values() if r.own])
        if orphan.run is None:
            orphan.run = self._owner_by_signs(one)
        if orphan.run is None:
            orphan.suspects = [each for each in orphan.suspects if each.known.token in self.live]
            if len(orphan.suspects) == 1:
                orphan.run = orphan.suspects[0]
            elif not orphan.suspects:
                proc.send(one, signal.SIGKILL)
        return orphan.run

    def _owner_by_signs(self, one: proc.Process) -> Run | None:
        mark = self.enclosure.mark_of(one.pid)
        if mark is not None and mark in self.marks:
            return self.marks[mark]
        main = self._mains.get(one.sid)
        if main is not None:
            return main
        token = self._token(one.pid)
        return None if token is None else self.live.get(token)

    def _carries(self, pid: int, known: Known) -> bool:
        mark = proc.mark(pid)
        return mark == known.mark or (mark is None and self._token(pid) == known.token)

    def _token(self, pid: int) -> str | None:
        if not self.enclosure.trusts_environments:
            return None
        environ = proc.environ(pid)
        if environ.get(proc.NODE_VARIABLE.encode()) != os.fsencode(self.state):
            return None
        return proc.run_named(environ) or None

    # --- birth and rebirth ------------------------------------------------------------------------

    def _add(self, run: Run) -> None:
        self.live[run.known.token] = run
        self.marks[run.known.mark] = run

    def _launch(self, plan: dict[str, Any], known: Known, log: RunLog) -> int | NotStarted:
        env = {**plan["env"], proc.RUN_VARIABLE: plan["token"], proc.NODE_VARIABLE: self.state}
        output = log.open_for_process()
        try:
            return self.enclosure.launch({**plan, "env": env}, known, self._null, output)
        finally:
            os.close(output)

    def _adopt(self) -> None:
        """Find what an earlier runner left: by the record, and by the marks of the processes.

        A process that runner was about to execute holds its lock until the exec, so everything
        the record began is visible here by its number.
        """
        numbers = {known.mark: token for token, known in self._record.runs.items()}
        marked: dict[str, list[proc.Process]] = {}
        for one in proc.processes().values():
            mark = self.enclosure.mark_of(one.pid) or 0
            token = numbers.get(mark) or self._token(one.pid)
            if token is not None and one.pid != self._pid:
                marked.setdefault(token, []).append(one)
        for token, found in marked.items():
            known = self._record.runs.get(token)
            if known is None:
                mark = proc.mark(found[0].pid) or proc.random_mark()
                known = self._record.began(token, mark, os.devnull, 0)
            if known.pid == 0:
                main = next((one for one in found if one.sid == one.pid), None)
                if main is not None:
                    self._record.started(known, main.pid, main.ticks, time.time_ns())
        for token, known in self._record.runs.items():
            if known.ended_at == 0:
                own = _is_child(known)
                run = Run(known, own=own)
                self._add(run)
                self.enclosure.adopted(known)
                if own:
                    self._mains[known.pid] = run
                    run.log = _log_again(self.enclosure, known)
                elif not self._watch(run):
                    run.main_gone = True
                    run.look_at = DUE
            elif token in marked:
                _signal(marked[token], signal.SIGKILL)

    def _watch(self, run: Run) -> bool:
        """Watch the main process of an adopted run; return whether it is alive."""
        known = run.known
        if known.pid == 0:
            return False
        try:
            pidfd = os.pidfd_open(known.pid)
        except OSError:
            return False
        main = proc.process(known.pid)
        if main is None or main.ticks != known.ticks:
            os.close(pidfd)
            return False
        run.log = _log_again(self.enclosure, known)
        self.watched[pidfd] = run
        return True

    def _note(self, write: Any, *arguments: Any) -> None:
        """Write to the record where failing to must not fail the run.

        What is missing from the record shows after the runner's death only, as an end without
        exit code or an end told once more.
        """
        try:
            write(*arguments)
        except OSError as error:
            _complain(f"the record cannot be written: {error}")


def _is_child(known: Known) -> bool:
    """Return whether the main process of a run is this process's, dead or alive.

    It is where a runner has executed another one in its own place.
    """
    if known.pid == 0 or proc.start_ticks(known.pid) != known.ticks:
        return False
    try:
        os.waitid(os.P_PID, known.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _log_again(enclosure: Enclosure, known: Known) -> RunLog | None:
    """Return the log of a run that an earlier runner began."""
    try:
        return enclosure.open_log(known.log, known.log_bytes_max, known.about)
    except OSError as error:
        _complain(f"log {known.log} cannot be kept within its bound: {error}")
        return None


def _started(known: Known) -> dict[str, Any]:
    uid = {"uid": known.about["uid"]} if "uid" in known.about else {}
    return {"token": known.token, "pid": known.pid, "ticks": known.ticks, "at": known.at, **uid}


def _not_started(why: NotStarted) -> dict[str, Any]:
    return {"not_started": why.detail, **({"fault": "node"} if why.of_node else {})}


def _alive(known: Known) -> dict[str, Any]:
    return {**_started(known), **({"frozen": True} if known.frozen else {})}


def _ended(known: Known) -> dict[str, Any]:
    return {
        "token": known.token,
        "code": known.code,
        "leftovers": known.leftovers,
        "left": known.left,
        "asked": known.asked,
        "at": known.ended_at,
        **({"exceeded": known.exceeded} if known.exceeded else {}),
    }


def _check_log(run: Run) -> bool:
    """Keep a run's log within its bound; return whether it had outgrown it."""
    try:
        return run.log is not None and run.log.check()
    except OSError as error:
        _complain(f"log {run.known.log} cannot be kept within its bound: {error}")
        return False


def _complain(text: str) -> None:
    """Leave a word in the runner's log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _identities(found: list[proc.Process]) -> list[tuple[int, int]]:
    return [(one.pid, one.ticks) for one in found]


def _terminate(found: list[proc.Process]) -> None:
    for one in found:
        if proc.send(one, signal.SIGTERM):
            # A suspended process acts on SIGTERM only once it goes on.
            proc.send(one, signal.SIGCONT)


def _outrun(*, begin: bool) -> None:
    """Run before every ordinary process while a tree is killed, where that is permitted.

    Among a thousand processes that fork, an even share of the processors is too little to catch
    them. KILL_SECONDS_MAX bounds how long others wait.
    """
    policy = os.SCHED_FIFO if begin else os.SCHED_OTHER
    try:
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(int(begin)))
    except PermissionError:
        pass  # Only root may; the kill takes longer.


def _signal(found: list[proc.Process], number: signal.Signals) -> None:
    """Signal processes of one run's tree and their process groups.

    Signalling a group is atomic against fork. A group of the tree holds nothing but the tree,
    because groups never span sessions and its sessions begin in the tree. But what has just left
    its group is only reached by itself.
    """
    for pgid in dict.fromkeys(one.pgid for one in found):
        assert pgid > 1, "a run's processes are in groups of its own sessions"
        try:
            os.killpg(pgid, number)
        except (ProcessLookupError, PermissionError):
            continue  # Gone, or of another user: the next look at the run tells which.
    for one in found:
        proc.send(one, number)
