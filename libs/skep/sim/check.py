"""What must hold, at every step of a history: checked from the logs and from the processes' lives.

    I1  every acknowledged submission comes to exactly one end
    I2  no GPU has two attempts: in the allocator's log, and among real processes; and the log
        frees a GPU only when the processes on it are gone
    I3  a gang has all its workers or none, and has succeeded only if every rank exited with 0
    I4  a rank of an attempt is executed at most once, and never unless its attempt holds its GPUs
    I5  epochs and orders increase by one, and no record of an earlier epoch follows
    I6  every log is without gaps
    I7  replaying a log rebuilds the machine that wrote it
    I8  guaranteed jobs of a VC never hold more GPUs than its quota when they are bound, and a VC
        never has more unfinished jobs than it may when one is admitted
    I9  the same key makes one job, and every verdict says what the log says
    I10 once faults end, everything ends within a bounded time
    I12 every change of a running job that is begun ends, with all parts in one state, and every
        request for one comes to one end; an attempt suspended without GPUs does not train
    I13 a moved job trains at one place at a time: its successor once it was recorded to be the
        job, with the whole state, and what it succeeds never again
    I14 a gang has GPUs for exactly its ranks but while it changes its size; when that is over,
        done or not, all its ranks are of one generation
    I15 a suspended attempt returns to the GPUs it had; to others of its nodes only if it said that
        it can, and it trains on no others than the log gives it
    I16 a GPU never has attempts that no sharing decision names together, all of one VC; what they
        hold together is counted once, and is free when the last of them has gone, in any order
    I17 in a VC with a policy jobs are placed by its turns, and no job that it holds
    I18 a trial is begun with its change and has exactly one verdict; a job is in one at a time
    I19 a VC is said to follow the model that its policy names, or its rule, once for each change
    I20 no person has more jobs or GPUs by a decision than its VC allows
    I21 no job begins on a node where it is known to run into a window, or one is open
    I22 no job starts before its dependencies ended as it asks, before its time, or while it is
        held; one is cancelled for its dependencies only where they can never be fulfilled
    I23 each task of an array becomes a job once and ends once, unless it failed and is retried; no
        more of them are jobs at once than may be, and the array ends when all of them have
    I24 jobs are put on one GPU for their shares only if each asked for one, they come to no more
        than the GPU, and all are of one VC, class and priority
    I25 a gang lies in several chains only if its job allows it, on types that it asked for
    I11 in a queue no job overtakes a more important one, nor without advice an earlier one

The models know nothing of the machines: they read what became durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec

from skep.cells.nodes import NodeState
from skep.ids import run_token
from skep.ledger.queue import JobQueue
from skep.machines.admission.arrays import Arrays
from skep.machines.admission.depending import Known
from skep.machines.agent import StartRank
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import AnyMachine
from skep.promises.pledges import Pledges
from skep.sim.logs import FactLog, LogRecord
from skep.sim.model import AdmissionModel, AllocatorModel
from skep.sim.processes import Host, Run
from skep.sim.violation import ViolationError, require
from skep.wire.commands import BindJob
from skep.wire.facts import EpochBegan, Member
from skep.wire.node import Outcome

SOFT = {
    "AdmissionMachine": (
        "_effects",
        "_hardware",
        "_judged",
        "_owns",
        "_quiet_until",
        "promising",
        "queued",
    ),
    "ClusterState": ("_delta", "away_of", "awaited", "pipelines", "sharers", "unshared"),
    "NodeState": ("changed",),
    "AgentMachine": (
        "_effects",
        "profile_times",
        "idling",
        "progress",
        "settled",
        "told",
        "unsure",
        "clearing",
        "report_at",
        "changes",
        "used",
    ),
}
"""What each machine may forget in a crash."""


class LogWatch:
    """Checks the envelope of every record of one log, and hands its facts to a model."""

    def __init__(
        self, name: str, model: AdmissionModel | AllocatorModel | None, *, strict: bool
    ) -> None:
        """Start with an empty log. Unless `strict`, breaches of the fence are only counted."""
        self.name, self.model, self.strict = name, model, strict
        self.epoch = 0
        self.counter = 0
        self.facts = 0
        self.breaches = 0

    def record(self, record: LogRecord) -> None:
        """Take a record that became durable.

        Args:
            record: The record; its facts go to the model of the log.

        Raises:
            ViolationError: It must not follow on the records before it.
        """
        epoch = self.epoch
        first = record.facts[0]
        if isinstance(first, EpochBegan):
            self._require(first.epoch == epoch + 1, "I5", f"epoch {first.epoch} after {epoch}")
            self.epoch = epoch = first.epoch
        self._require(record.epoch == epoch, "I5", f"epoch {record.epoch} written in {epoch}")
        self._require(record.n == self.counter + 1, "I6", f"{record.n} after {self.counter}")
        self.counter = record.n
        self.facts += len(record.facts)
        if self.model is not None:
            self.model.take(record.facts)

    def compacted(self, counter: int) -> None:
        """Note that a journal was rewritten and goes on behind `counter`.

        Args:
            counter: The counter of the last record that is left.
        """
        self.counter = counter

    def _require(self, holds: bool, invariant: str, text: str) -> None:
        if not holds and self.strict:
            raise ViolationError(invariant, f"{self.name}: {text}")
        self.breaches += not holds


class Watch:
    """Sees every record and every process."""

    def __init__(self, hosts: Mapping[str, Host], *, strict: bool) -> None:
        """Start empty; `hosts` are the machines by identity."""
        self.allocator = AllocatorModel(
            self._freed, self._cleared, self._stands, self._left, self._together
        )
        self.admission = AdmissionModel(self.allocator)
        self.allocator.admission = self.admission
        self.logs = {
            "admission": LogWatch("admission", self.admission, strict=strict),
            "allocator": LogWatch("allocator", self.allocator, strict=strict),
        }
        self.runs: dict[str, Run] = {}
        self.refused: dict[tuple[str, int, int], None] = {}
        self.executions = 0
        self.replays = 0
        self._hosts = hosts

    def log_of(self, name: str) -> LogWatch:
        """Return the watcher of a log; that of an agent's journal is made at first use."""
        return self.logs.setdefault(name, LogWatch(name, None, strict=True))

    # --- processes -------------------------------------------------------------------------------

    def executed(self, host: Host, command: StartRank, run: Run) -> None:
        """Take it that a process is executed on a machine.

        Args:
            host: The machine.
            command: What its agent asked for.
            run: The process.

        Raises:
            ViolationError: It ran before, or its GPUs are not its own.
        """
        earlier = self.runs.get(run.token)
        if earlier is not None:
            # Whoever left its gang, or never became part of it, may be called again.
            joins = command.command.awaits.startswith("generation-")
            again = (earlier.boot == run.boot and not joins) or earlier.live
            require(not again, "I4", f"{run.token} is executed twice")
        for other in host.live_runs():
            self._apart(host, run, other)
        self.runs[run.token] = run
        self.executions += 1
        if host.identity not in self.allocator.disowned:
            bind: BindJob = command.command
            held = self.allocator.holds(host.identity, bind, run.devices)
            require(held, "I4", f"{run.token} is executed, but its GPUs are not its own")

    def resumed(self, host: Host, run: Run) -> None:
        """Take it that a suspended process trains on.

        Args:
            host: The machine.
            run: The process.

        Raises:
            ViolationError: Its GPUs are not its own, or its job trains elsewhere.
        """
        for other in host.live_runs():
            if other is not run:
                self._apart(host, run, other)
        if host.identity not in self.allocator.disowned:
            held = self.allocator.has(host.identity, run)
            require(held, "I4", f"{run.token} goes on, but its GPUs are not its own")
        self._alone(run)

    def _alone(self, run: Run) -> None:
        """Require that a moved job trains at one place: it had its state, the other stands."""
        moved = self.allocator.moved
        require(
            (run.job, run.attempt) not in moved.values(),
            "I13",
            f"{run.token} goes on after its job went on elsewhere",
        )
        if not run.awaits or run.joins:
            return  # Who joins a gang has its GPUs, and trains beside the others.
        source = moved.get((run.job, run.attempt))
        require(
            source is not None and run.loaded > 0, "I13", f"{run.token} goes on before its turn"
        )
        others = [
            other.token
            for host in self._hosts.values()
            for other in host.live_runs()
            if (other.job, other.attempt) == source and not other.suspended
        ]
        require(not others, "I13", f"{run.token} goes on beside {others}")
        states = {
            other.loaded
            for host in self._hosts.values()
            for other in host.live_runs()
            if (other.job, other.attempt) == (run.job, run.attempt) and not other.joins
        }
        whole = len(states) == 1
        require(whole, "I13", f"{run.token} goes on with states of mini-batches {states}")

    def all_hosts(self) -> list[Host]:
        """Return every machine."""
        return list(self._hosts.values())

    def _apart(self, host: Host, run: Run, other: Run) -> None:
        shared = [
            device for device in run.devices if device in other.devices and not other.released
        ]
        late = host.identity in self.allocator.disowned
        agreed = self.allocator.gpus.together(
            (run.job, run.attempt), (other.job, other.attempt), once=late
        )
        text = f"{run.token} and {other.token} on {host.identity} {shared}"
        require(not shared or agreed, "I2", text)

    def _freed(self, member: Member, job: str, attempt: int) -> None:
        host = self._hosts[member.identity]
        alive = [run.token for run in host.live_runs() if run.job == job and run.attempt == attempt]
        require(not alive, "I2", f"{member.node} is said to be free of {alive}")
        gone = self.allocator.jobs.get(job)
        fact = gone.gone.get(member.node) if gone is not None and gone.attempt == attempt else None
        if fact is not None and fact.outcome is Outcome.SUCCEEDED:
            # Who was to join a gang that ended meanwhile was none of its ranks.
            for rank in (rank for rank in member.numbers if gone and rank < gone.workers):
                run = self.runs.get(run_token(job, attempt, rank))
                well = run is not None and (run.code == 0 or run.leaves)
                require(well, "I3", f"{job}: rank {rank} did not succeed")

    def _left(self, gpus: list[tuple[str, int]], job: str, attempt: int) -> None:
        """Require that no process of an attempt is left on GPUs that it gives back."""
        alive = [
            run.token
            for identity, device in gpus
            for run in self._hosts[identity].live_runs()
            if (run.job, run.attempt) == (job, attempt)
            and device in run.devices
            and identity not in self.allocator.disowned
        ]
        require(not alive, "I2", f"{job} gives back the GPUs of {alive}")

    def _together(self, members: list[Member], job: str, attempt: int) -> None:
        """Require that all ranks of a gang are of one generation."""
        gang = {
            run.token: run.generation
            for member in members
            for run in self._hosts[member.identity].live_runs()
            if (run.job, run.attempt) == (job, attempt)
            and not run.leaves
            and not (run.joins and not run.begun)
            and member.identity not in self.allocator.disowned
        }
        same = len(dict.fromkeys(gang.values())) <= 1
        require(same, "I14", f"{job} trains in different gangs: {gang}")

    def _stands(self, member: Member, job: str, attempt: int) -> None:
        trains = [
            run.token
            for run in self._hosts[member.identity].live_runs()
            if run.job == job and run.attempt == attempt and not run.released
        ]
        require(
            not trains or member.identity in self.allocator.disowned,
            "I2",
            f"{member.node} is said to be free of {trains}",
        )

    def _cleared(self, identity: str) -> None:
        alive = [run.token for run in self._hosts[identity].live_runs()]
        require(not alive, "I2", f"{identity} is said to be clear of {alive}")

    # --- machines --------------------------------------------------------------------------------

    def compare(self, machine: AnyMachine, fresh: AnyMachine, log: FactLog) -> None:
        """Check that replaying a log rebuilds a machine.

        Args:
            machine: The machine that wrote the log.
            fresh: One of the same kind that knows nothing yet; changed.
            log: The log.

        Raises:
            ViolationError: Something that is durable is not the same in both.
        """
        for record in log.replay():
            for fact in record.facts:
                fresh.apply(fact)
        fresh.check()
        self.replays += 1
        here, there = durable(machine), durable(fresh)
        for name, value in here.items():
            text = f"{log.service}: {name} is {value!r} live and {there[name]!r} replayed"
            require(value == there[name], "I7", text)

    def compare_snapshot(self, machine: Any, fresh: Any) -> None:
        """Check that a machine's snapshot rebuilds it.

        Args:
            machine: The machine.
            fresh: One of the same kind that knows nothing yet; changed.

        Raises:
            ViolationError: Something that is durable is not the same in both.
        """
        for entry in deepcopy(machine.snapshot()):
            fresh.apply(entry)
        fresh.check()
        here, there = durable(machine), durable(fresh)
        for name, value in here.items():
            what = f"{type(machine).__name__}: {name}"
            text = f"{what} is {value!r} live and {there[name]!r} from its snapshot"
            require(value == there[name], "I7", text)


def durable(machine: AnyMachine | NodeState) -> dict[str, Any]:
    """Return what a machine must know again after a crash, by name; dicts as ordered pairs."""
    known = machine.state if isinstance(machine, AllocatorMachine) else machine
    soft = SOFT[type(known).__name__]
    return {name: _plain(value) for name, value in vars(known).items() if name not in soft}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return [(key, _plain(each)) for key, each in value.items()]
        case NodeState():
            return _plain(durable(value))
        case JobQueue():
            return value.entries
        case Arrays():
            return value.snapshot()
        case Pledges() | Known():
            return value.summary()
        case msgspec.Struct():
            return value
        case _:
            return value
