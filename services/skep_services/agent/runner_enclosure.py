"""What keeps the runs of a node apart: here nothing does, as they are of the runner's own user.

A launcher has an enclosure of its own (`skep_services.launcher.enclosure`), with accounts, control
groups and namespaces. The holder of runs asks it at each step and knows of none of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skep_services.agent import proc
from skep_services.agent.runner_ends import Ends
from skep_services.agent.runner_launch import NotStarted, launch, script_trouble
from skep_services.agent.runner_log import RunLog
from skep_services.agent.runner_record import Known
from skep_services.agent.runner_warm import WarmProcesses, recorded


class Enclosure:
    """Runs that nothing keeps apart; the base of those that something does."""

    trusts_environments = True
    """Whether the variables of a process say whose it is. A hostile one names any run."""

    def __init__(self) -> None:
        """Have no helper yet."""
        self.helpers: dict[int, bool] = {}
        """Children of this process that are of no run; the holder of the runs shares it."""
        self.how: dict[str, str] = {}
        """How the last run was started that might have been forked from a warm process."""
        self._warm = WarmProcesses()

    def tick(self, at: float) -> None:
        """Do what is due at a time (monotonic seconds)."""
        self._warm.tick(at)

    def wake_at(self) -> float:
        """Return when `tick` is due (monotonic seconds), infinite if never."""
        return self._warm.wake_at()

    def helper_ended(self, pid: int) -> None:
        """Take note that a child has ended that is of no run."""
        self._warm.ended(pid)

    def new_mark(self) -> int:
        """Return the number that the processes of the next run carry."""
        return proc.random_mark()

    def adopted(self, known: Known) -> None:
        """Take note of a run that another process began, and that has not ended."""

    def overdrawn(self) -> Sequence[tuple[str, str]]:
        """Return which runs use more than they may, by token, and what; called now and then."""
        return ()

    def admit(self, plan: Mapping[str, Any]) -> Mapping[str, Any] | NotStarted:
        """Return what is to be remembered of a run that may start, or why it may not."""
        return {}

    def open_log(self, path: str, bytes_max: int, about: Mapping[str, Any]) -> RunLog:
        """Return the log of a run.

        Args:
            path: The file.
            bytes_max: Its bound (bytes).
            about: What `admit` returned.

        Raises:
            OSError: It cannot be opened.
        """
        return RunLog(path, bytes_max)

    def launch(
        self, plan: Mapping[str, Any], known: Known, stdin: int, output: int
    ) -> int | NotStarted:
        """Execute a run's process.

        Args:
            plan: What was asked for.
            known: The run, as it is on record.
            stdin: A descriptor.
            output: A descriptor, which becomes stdout and stderr.

        Returns:
            The pid, or what was wrong.
        """
        self.how = {}
        trouble = script_trouble(plan["script"], plan["workdir"])
        if trouble is not None:
            return NotStarted(trouble)
        self._warm.helpers = self.helpers
        plan = recorded(plan)
        forked = self._warm.fork(plan, known.mark, stdin, output)
        if isinstance(forked, int):
            self.how = {"warm": "yes"}
            return forked
        with proc.marked(known.mark):
            outcome = launch(plan["argv"], plan["env"], plan["workdir"], stdin, output)
        if forked and not isinstance(outcome, NotStarted):
            self.how = {"cold": forked}
            self._warm.executed(plan, outcome)
        return outcome

    def enter(self, plan: Mapping[str, Any], known: Known, ends: Ends) -> int | NotStarted:
        """Execute another process in a living run, as `launch` executes the first one.

        Args:
            plan: Its `argv`, `env` and `workdir`.
            known: The run.
            ends: Its descriptors.

        Returns:
            The pid, or what was wrong.

        Raises:
            OSError: It cannot be kept apart as the run is.
        """
        with proc.marked(known.mark):
            return launch(
                plan["argv"],
                plan["env"],
                plan["workdir"],
                ends.stdin,
                ends.output,
                errors=ends.errors,
                terminal=ends.terminal,
            )

    def mark_of(self, pid: int) -> int | None:
        """Return the number that tells of which run a process is, if it has any."""
        return proc.mark(pid)

    def inside(self, known: Known) -> Sequence[int] | None:
        """Return the processes of a run; None: they are found by their signs."""
        return None

    def kill(self, known: Known) -> bool:
        """Kill every process of a run at once; return whether that can be done."""
        return False

    def group(self, known: Known) -> str:
        """Return the control group (version 2) that holds a run's tree; empty: none does."""
        return ""

    def leaves_to_init(self, known: Known) -> bool:
        """Return whether what outlives a run's main process becomes another process's child."""
        return False

    def ended(self, known: Known) -> None:
        """Take what was made for a run away."""
