"""The processes of one node, as its runtime holds them: they survive the agent, not a reboot.

What a process does is written in its command line, so that a job behaves alike on every node:

    job KIND MILLISECONDS [TIER]

`ok` exits with 0 after about so long, `fail` with 1, `flaky` with either, `signal` is killed by
one, `stubborn` is `ok` but ignores SIGTERM, `polite` exits with 0 on SIGTERM, `endless` does not
end by itself, `absent` does not exist. `ranks` tells what a TIER can do. Requests of one agent are
carried out in order; answers come when they come.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from skep.machines.agent import (
    PORT_BUSY,
    ForgetRun,
    ListRuns,
    RankStats,
    RunsListed,
    StartRank,
    StopRun,
)
from skep.sim.story import Story
from skep.sim.timeline import MILLISECOND, SECOND, Timeline
from skep.units import Instant
from skep.wire.node import Gpu, NodeJoined
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from skep.wire.talk import Answer, RescaleRank, Told

UNSYNCED = 5 * SECOND
"""How far back a power failure reaches: what the runtime noted since may be forgotten."""

STATS_EVERY = 2 * SECOND
STEP = 10 * MILLISECOND
"""How long a mini-batch takes, of every job: they are counted from the beginning of time."""
BEGAN = 1_600_000_000 * SECOND
"""Before any history."""

KINDS = ("ok", "fail", "flaky", "signal", "stubborn", "polite", "absent", "endless")


class Keeper(Protocol):
    """What is asked before a process is executed or goes on."""

    def resumed(self, host: Host, run: Run) -> None:
        """Take it that a run goes on.

        Raises:
            ViolationError: It must not train here.
        """
        ...

    refused: dict[tuple[str, int, int], None]
    """Changes of size that somebody voted against: job, attempt, generation."""

    def all_hosts(self) -> list[Host]:
        """Return every machine."""
        ...

    def executed(self, host: Host, command: StartRank, run: Run) -> None:
        """Take it that a run is executed.

        Raises:
            ViolationError: It must not be executed here.
        """
        ...


class Listener(Protocol):
    """The agent's process, as the runtime sees it."""

    dead: bool

    def enter(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something inside it."""
        ...

    def put(self, event: Any) -> None:
        """Let an event wait for its machine."""
        ...


class Run(msgspec.Struct):
    """One process tree. `ended_at` is None while it lives; `code` None if its end was not seen."""

    token: str
    job: str
    attempt: int
    devices: tuple[int, ...]
    kind: str
    pid: int
    boot: int
    started_at: Instant
    ended_at: Instant | None = None
    code: int | None = None
    kill_at: int = 0
    asked: bool = False
    seen: bool = True
    """Whether the runtime that started it still lives: only that one sees exit codes."""
    rank: int = 0
    tier: str = "opaque"
    standing: bool = False
    """It waits between two mini-batches."""
    frozen: bool = False
    stood_at: int = 0
    """Since when it does not train, 0 while it does."""
    released: bool = False
    order: int = 0
    """The latest order it has taken."""
    signalled: int = 0
    """The order of the latest signal before its time limit."""
    signals: int = 0
    """How many of those it was given."""
    said: Answer | None = None
    unheard: list[Told] = []
    """What it was told while it was frozen."""
    begun: bool = False
    """A successor that has been told to train."""
    awaits: str = ""
    """The secret of whoever may send it its state; it does not train before it is resumed."""
    loaded: int = 0
    """The mini-batch as of which it has its state."""
    generation: int = 0
    """Of its gang, as far as it took part in changing its size."""
    meets: RescaleRank | None = None
    """The change of size for which it waits until everybody is there."""
    leaves: bool = False
    due: int | None = None
    """The status with which it would have ended meanwhile."""

    @property
    def joins(self) -> bool:
        """Return whether it was started to join a gang that trains."""
        return self.awaits.startswith("generation-")

    @property
    def suspended(self) -> bool:
        """Return whether it does not train."""
        return self.stood_at > 0

    def step(self, now: int) -> int:
        """Return the mini-batch after which it stands, or that it has just made.

        Args:
            now: Nanoseconds.
        """
        return step_at(self.stood_at or now)

    @property
    def live(self) -> bool:
        """Return whether it runs."""
        return self.ended_at is None


def step_at(now: int) -> int:
    """Return the mini-batch that every job has just made at an instant.

    Args:
        now: Nanoseconds.
    """
    return (now - BEGAN) // STEP


class Host:
    """A machine with GPUs: `identity` names its state folder, `node` what it calls itself."""

    def __init__(
        self,
        node: str,
        identity: str,
        gpus: tuple[Gpu, ...],
        *,
        timeline: Timeline,
        rng: random.Random,
        story: Story,
        keeper: Keeper,
    ) -> None:
        """Start without processes."""
        self.node, self.identity = node, identity
        self.gpus = gpus
        self.runs: dict[str, Run] = {}
        self.skew = 0
        self.gone = False
        self.boot = 1
        self.slow_until = 0
        self._timeline, self._rng, self._story, self._keeper = timeline, rng, story, keeper
        self.others: Callable[[Host, Listener, Any], None] = _unknown
        """Carries out what is not about starting and ending processes."""
        self.greeted: Callable[[Host, Run], None] = _silent
        """Has a rank say hello."""
        self._agent: Listener | None = None
        self._told: dict[str, None] = {}
        self._free_at = 0
        self._pids = 0

    def joined(self) -> NodeJoined:
        """Return what the agent says of this node, before its first start."""
        return NodeJoined(
            node=self.node,
            identity=self.identity,
            incarnation=0,
            cpus=16,
            address="10.0.0.1",
            ports=(20000, 20015),
            gpus=self.gpus,
            memory=64 * 2**30,
        )

    def live_runs(self) -> list[Run]:
        """Return what runs here."""
        return [run for run in self.runs.values() if run.live]

    # --- faults --------------------------------------------------------------------------------

    def slow(self, length: int) -> None:
        """Answer late for a while.

        Args:
            length: Nanoseconds.
        """
        self.slow_until = self._timeline.now + length

    def restart_runtime(self) -> None:
        """Let the runtime's process die: another takes over, but exit codes go unseen."""
        for run in self.live_runs():
            run.seen = False

    def reboot(self, *, power_failure: bool) -> None:
        """Let every process vanish; a power failure also takes what was noted of late.

        Args:
            power_failure: Whether power failed.
        """
        for run in self.live_runs():
            self._end(run, None)
        if power_failure:
            synced = self._timeline.now - UNSYNCED
            lost = [token for token, run in self.runs.items() if run.started_at > synced]
            for token in lost:
                if self._rng.random() < 0.5:
                    del self.runs[token]
        self.boot += 1
        self._agent = None

    def destroy(self) -> None:
        """Let the machine be gone for good."""
        self.reboot(power_failure=False)
        self.gone = True

    # --- requests ------------------------------------------------------------------------------

    def attach(self, agent: Listener) -> None:
        """Take an agent's connection, and tell it the ends that no agent confirmed."""
        self._agent = agent
        self._told = {}
        for run in list(self.runs.values()):
            if run.live:
                self._timeline.after(self._pause(), self.greeted, self, run)
            else:
                self._tell_end(run)

    def request(self, agent: Listener, command: Any) -> None:
        """Carry out a request of the agent, after those before it."""
        self._free_at = max(self._free_at, self._timeline.now) + self._pause()
        delay = self._free_at - self._timeline.now
        self._timeline.after(delay, self._serve, agent, command)

    def _pause(self) -> int:
        if self._timeline.now < self.slow_until:
            top = 3 * SECOND
        else:
            top = 2 * MILLISECOND if self._rng.random() < 0.9 else 200 * MILLISECOND
        return 20_000 + int(self._rng.random() * top)

    def _serve(self, agent: Listener, command: Any) -> None:
        if self.gone or self._agent is not agent:
            return  # The connection is gone, and what was not read from it as well.
        match command:
            case StartRank():
                self._answer(agent, self._start(command))
            case StopRun():
                self._stop(command.token, command.grace_s)
            case ForgetRun():
                run = self.runs.get(command.token)
                if run is not None and not run.live:
                    del self.runs[command.token]
            case ListRuns():
                runs = tuple(
                    self._started(run) if run.live else self._exited(run)
                    for run in self.runs.values()
                )
                self._answer(agent, RunsListed(runs))
            case _:
                self.others(self, agent, command)

    def later(self, delay: int, do: Callable[..., None], *arguments: Any) -> None:
        """Do something on this machine after a while.

        Args:
            delay: Nanoseconds.
            do: What to do.
            arguments: What `do` is called with.
        """
        self._timeline.after(delay, do, *arguments)

    @property
    def now(self) -> int:
        """Return the virtual time, in nanoseconds."""
        return self._timeline.now

    def chance(self) -> float:
        """Return a random number from 0 to 1."""
        return self._rng.random()

    def stand(self, run: Run) -> None:
        """Have a rank wait between two mini-batches."""
        run.stood_at = run.stood_at or self._timeline.now
        run.standing = True

    def freeze(self, run: Run) -> None:
        """Freeze a process tree wherever it is."""
        run.stood_at = run.stood_at or self._timeline.now
        run.frozen = True

    def thaw(self, run: Run) -> None:
        """Let a process tree go on; a rank that stands goes on standing."""
        run.frozen = False
        if not run.standing and not (run.awaits and not run.begun):
            self._trains(run)

    def go_on(self, run: Run) -> None:
        """Have a rank train on."""
        run.standing, run.released, run.begun = False, False, True
        self._trains(run)

    def _trains(self, run: Run) -> None:
        self._keeper.resumed(self, run)
        run.stood_at = 0
        if run.due is not None:
            status, run.due = run.due, None
            self._timeline.after(int(self._rng.random() * SECOND), self._finishes, run, status)

    def leave(self, run: Run) -> None:
        """Have a rank end by itself, as its gang trains on without it."""
        self.stand(run)
        run.leaves = True
        self._timeline.after(int(self._rng.random() * SECOND), self._ends, run, 0)

    def others_and_self(self) -> list[Host]:
        """Return every machine."""
        return self._keeper.all_hosts()

    @property
    def refused(self) -> dict[tuple[str, int, int], None]:
        """Return the changes of size that a rank voted against: job, attempt, generation."""
        return self._keeper.refused

    def say(self, event: Any) -> None:
        """Have a rank say something to the agent, if one is connected."""
        if self._agent is not None:
            self._answer(self._agent, event)

    def tell(self, agent: Listener, event: Any) -> None:
        """Tell the agent something, if it still is the one that is connected."""
        if self._agent is agent:
            self._answer(agent, event)

    def _finishes(self, run: Run, code: int) -> None:
        """End a run by itself, or once it goes on."""
        if run.suspended:
            run.due = code
        else:
            self._ends(run, code)

    def _answer(self, agent: Listener, event: Any) -> None:
        self._timeline.after(self._pause(), agent.enter, agent.put, event)

    # --- lives of processes ----------------------------------------------------------------------

    def _start(self, command: StartRank) -> RunStarted | RunNotStarted:
        known = self.runs.get(command.token)
        if known is not None:
            return self._started(known)
        bind, plan = command.command, command.plan
        if plan.rank == 0 and bind.world > 1 and self._rng.random() < 0.03:
            return RunNotStarted(command.token, f"{PORT_BUSY}port {bind.master_port} is taken")
        # A script's words follow on the interpreter and what observes it.
        _, kind, milliseconds, *tier = bind.argv[bind.argv.index("job") :]
        if kind == "absent":
            return RunNotStarted(command.token, "executable absent was not found")
        self._pids += 1
        run = Run(
            token=command.token,
            job=bind.job,
            attempt=bind.attempt,
            kind=kind,
            devices=plan.devices,
            rank=plan.rank,
            tier="".join(tier),
            pid=self._pids,
            boot=self.boot,
            started_at=self._timeline.now,
        )
        self._keeper.executed(self, command, run)
        if bind.awaits:
            run.stood_at, run.awaits = self._timeline.now, bind.awaits
        self.runs[run.token] = run
        self._told.pop(run.token, None)
        self._timeline.after(int(self._rng.random() * SECOND / 5), self.greeted, self, run)
        self._story.say(self.identity, f"executes {run.token} ({kind}) on {plan.devices}")
        length = int(int(milliseconds) * MILLISECOND * (0.5 + self._rng.random()))
        if kind != "endless":
            self._timeline.after(length, self._finishes, run, self._status(kind))
        if length > STATS_EVERY:
            self._timeline.after(SECOND // 5, self._stats, run, plan.rank)
        return self._started(run)

    def _status(self, kind: str) -> int:
        match kind:
            case "fail":
                return 1
            case "flaky":
                return int(self._rng.random() < 0.5)
            case "signal":
                return -11
            case _:
                return 0

    def _stats(self, run: Run, rank: int) -> None:
        if not run.live:
            return
        if self._agent is not None and not self._agent.dead and not run.suspended:
            at = Instant(self._timeline.now + self.skew)
            progress = RankProgress(
                rank=rank, steps=run.step(self._timeline.now), step_ns=STEP, last_step_at=at
            )
            stats = RankStats(run.job, run.attempt, progress)
            self._agent.enter(self._agent.put, stats)
        self._timeline.after(STATS_EVERY, self._stats, run, rank)

    def _stop(self, token: str, grace_s: float) -> None:
        run = self.runs.get(token)
        if run is None or not run.live:
            return
        run.asked = True
        kill_at = self._timeline.now + int(grace_s * SECOND)
        if run.kill_at == 0 or kill_at < run.kill_at:
            run.kill_at = kill_at
            self._timeline.after(kill_at - self._timeline.now, self._ends, run, -9)
        if run.kind != "stubborn" and grace_s > 0:
            code = 0 if run.kind == "polite" else -15
            self._timeline.after(int(self._rng.random() * SECOND / 3), self._ends, run, code)

    def _ends(self, run: Run, code: int) -> None:
        if run.live:
            self._end(run, code if run.seen else None)
            self._tell_end(run)

    def _end(self, run: Run, code: int | None) -> None:
        run.ended_at, run.code = self._timeline.now, code
        self._story.say(self.identity, f"{run.token} is gone: {code}")

    def _tell_end(self, run: Run) -> None:
        agent = self._agent
        if agent is not None and not agent.dead and run.token not in self._told:
            self._told[run.token] = None
            self._answer(agent, self._exited(run))

    def _started(self, run: Run) -> RunStarted:
        at = Instant(run.started_at + self.skew)
        return RunStarted(run.token, run.pid, 1, at, frozen=run.frozen)

    def _exited(self, run: Run) -> RunExited:
        assert run.ended_at is not None, run.token
        return RunExited(run.token, run.code, Instant(run.ended_at + self.skew), asked=run.asked)


def _unknown(host: Host, agent: Listener, command: Any) -> None:
    del host, agent
    raise AssertionError(command)


def _silent(host: Host, run: Run) -> None:
    """Have a rank that says nothing."""
