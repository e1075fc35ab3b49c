"""The simulated nodes: agents that answer every command, and jobs that make progress.

Agents need no time to receive and answer; what a job does takes the times in `Costs`. A gang on
several nodes stops after one mini-batch, as its ranks would agree on, whichever mini-batch the
command names.
"""

from __future__ import annotations

import random
from typing import Any

from skep.units import Duration, Instant, after, seconds
from skep.wire.cluster import Cluster
from skep.wire.commands import (
    BindJob,
    ChangeJob,
    Checkpoint,
    Move,
    RankPlan,
    Resize,
    Resume,
    Share,
    StopJob,
    Suspend,
    Warn,
)
from skep.wire.node import (
    Door,
    Manner,
    MemberChanged,
    MemberExited,
    MemberKnown,
    MemberLoaded,
    MemberReady,
    MemberStarted,
    Outcome,
    Tier,
)
from skep_lab.simulator.floor import Floor, Part, Run
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.work import Work
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation, Speeds, Steady

SPEED_MIN = 0.05
"""Noise never reduces the speed of an attempt below this factor."""
GPU = 1_000_000
"""Busy and useful GPUs are counted in millionths of a GPU: sums of integers never drift."""

Later = tuple[Any, ...]
"""What happens at a later time: a method of `Agents`, and its arguments."""


class Agents:
    """All nodes. `outbox` collects their messages at this instant, `later` what happens later."""

    def __init__(
        self,
        jobs: dict[str, TraceJob],
        cluster: Cluster,
        settings: Settings,
        speeds: Speeds,
        can: tuple[str, ...],
    ) -> None:
        """Begin without running jobs.

        Args:
            jobs: The jobs of the trace, by id.
            cluster: The nodes.
            settings: Costs, noise and seed.
            speeds: The workload model.
            can: What jobs report that Skep can do with them.
        """
        costs = settings.costs
        self._start, self._stop = seconds(costs.start_s), seconds(costs.stop_s)
        self._suspend, self._resume = seconds(costs.suspend_s), seconds(costs.resume_s)
        self._migrate, self._resize = seconds(costs.migrate_s), seconds(costs.resize_s)
        self._store_every = seconds(costs.checkpoint_every_s)
        self._again = [(gpus, seconds(cost)) for gpus, cost in sorted(settings.again_s.items())]
        self._seed, self._noise = settings.seed, settings.noise
        self._speeds, self._can = speeds, can
        self._steady = type(speeds) is Steady
        self.works = {name: Work(job) for name, job in jobs.items()}
        self._floor = Floor(cluster)
        self._runs: dict[tuple[str, int], Run] = {}
        self._stale: dict[Run, None] = {}
        """Attempts beside which another one began or ceased to train."""
        self.outbox: list[Any] = []
        self.later: list[tuple[Instant, Later]] = []
        self.busy = self.useful = 0
        """What all jobs keep busy and get done, in millionths of a GPU."""
        self._counted: dict[Run, tuple[int, int]] = {}
        self._packs = False
        """Whether jobs ever shared GPUs."""
        self._awaiting: dict[str, Run] = {}
        """By job: the successor that is to take over."""
        self.paced: dict[Run, None] | None = None
        """Attempts whose pace has changed; None: this is not recorded."""

    # --- commands ------------------------------------------------------------------------------

    def bind(self, order: BindJob, now: Instant) -> None:
        """Start a part; the attempt begins with the last of its parts."""
        key = order.job, order.attempt
        run = self._runs.get(key)
        if run is None:
            work = self.works[order.job]
            run = Run(
                order.job,
                order.attempt,
                work.job,
                order.nodes,
                {},
                awaits=bool(order.awaits),
                servers=order.servers,
            )
            self._runs[key] = run
        if order.node in run.parts:
            return
        self._packs = self._packs or bool(order.beside)
        part = run.parts[order.node] = Part(
            order.node,
            order.identity,
            _devices(order.ranks),
            len(order.ranks),
            now,
            order.joins,
            joined=not order.joins,
        )
        if order.awaits and not order.joins:
            self._awaits(run, part, order, now)
            return
        self.outbox.append(
            MemberStarted(
                node=order.node,
                identity=order.identity,
                at=now,
                job=order.job,
                attempt=order.attempt,
                order=order.joins,
            )
        )
        if self._can:
            self._send_abilities(run, part, now)
        if order.joins or len(run.parts) < run.nodes:
            return
        work = self.works[run.name]
        work.attempt = run.number
        work.factor = self._chance(run)
        self._go(run, self._start, now)

    def _awaits(self, run: Run, part: Part, order: BindJob, now: Instant) -> None:
        """Prepare a successor of the attempt that trains."""
        part.stands = True
        self._awaiting[run.name] = run
        self._send_abilities(run, part, now)
        doors = tuple(Door(rank=rank.rank, host="10.0.0.1", port=30_000) for rank in order.ranks)
        ready = MemberReady(
            node=part.node,
            identity=part.identity,
            job=run.name,
            attempt=run.number,
            doors=doors,
            at=after(now, self._start),
        )
        self._send_later(self._start, ready, run, now)

    def stop(self, order: StopJob, now: Instant) -> None:
        """End a part after its costs; what its job did since it was last stored is lost."""
        run = self._runs.get((order.job, order.attempt))
        part = run.parts.get(order.node) if run is not None else None
        if run is None or part is None:
            self.outbox.append(_exited(order, Outcome.STOPPED, now, order=order.joins))
            return
        if part.stopping:
            return
        part.stopping = True
        if part.joined and self.works[run.name].attempt == run.number:
            self._halt(run, now)
            self.works[run.name].lose()
            if self._again:
                self._owe(run)
            self._pay(run, order.order, self._stop)
        if self._stop:
            self.later.append((after(now, self._stop), (self._gone, run, part)))
        else:
            self._gone(run, part, now)

    def crash(self, node: str, now: Instant) -> None:
        """End all parts on a node at once: what their jobs did since they stored it is lost.

        Args:
            node: The node.
            now: The present instant.
        """
        for run in list(self._runs.values()):
            part = run.parts.get(node)
            if part is None or part.stopping:
                continue
            part.stopping = True
            if self.works[run.name].attempt == run.number:
                self._halt(run, now)
                self.works[run.name].lose()
            self._gone(run, part, now)

    def change(self, order: ChangeJob, now: Instant) -> None:
        """Change a part; an order that was carried out before is only answered again."""
        run = self._runs.get((order.job, order.attempt))
        part = run.parts.get(order.node) if run is not None else None
        if run is None or part is None or part.stopping or order.order < part.order:
            return
        if order.order == part.order:
            if part.answer is not None:
                self.outbox.append(part.answer)  # The answer was lost, or is asked for again.
            return
        part.order, part.answer = order.order, None
        match order.change:
            case Suspend(release=release):
                self._do_suspend(run, part, now, release=release)
            case Resume(ranks=ranks):
                self._do_resume(run, part, ranks, now)
            case Checkpoint():
                self._halt(run, now)
                self._pay(run, order.order, self._suspend)
                self._after_costs(self._suspend, now, self._stored, run, part, part.order)
            case Move():
                self._halt(run, now)
                self._pay(run, order.order, self._migrate)
                self._after_costs(self._migrate, now, self._sent, run, part, part.order)
            case Resize():
                self._do_resize(run, part, order.change, now)
            case Share() | Warn():
                self._answer(run, part, now)

    # --- what changes do -------------------------------------------------------------------------

    def _do_suspend(self, run: Run, part: Part, now: Instant, *, release: bool) -> None:
        costs = Duration(0) if part.stands else self._suspend
        self._halt(run, now)
        self._pay(run, part.order, costs)
        self._after_costs(costs, now, self._suspended, run, part, part.order, release)

    def _suspended(self, run: Run, part: Part, order: int, release: bool, now: Instant) -> None:
        if part.is_at(order):
            part.stands = True
            self._answer(run, part, now, released=release)

    def _do_resume(self, run: Run, part: Part, ranks: tuple[RankPlan, ...], now: Instant) -> None:
        if ranks:
            part.devices = _devices(ranks)
        costs = Duration(0) if run.awaits else self._resume
        self._pay(run, part.order, costs)
        self._after_costs(costs, now, self._resumed, run, part, part.order)

    def _resumed(self, run: Run, part: Part, order: int, now: Instant) -> None:
        if not part.is_at(order):
            return
        part.stands = False
        self._answer(run, part, now)
        self.works[run.name].attempt = run.number
        if not any(each.stands for each in run.parts.values()):
            run.awaits = False
            if self._awaiting.get(run.name) is run:
                del self._awaiting[run.name]
            self._go(run, Duration(0), now)

    def _stored(self, run: Run, part: Part, order: int, now: Instant) -> None:
        if not part.is_at(order):
            return
        work = self.works[run.name]
        work.stored = work.done
        self._answer(run, part, now)
        if not any(each.answer is None and each.order == order for each in run.parts.values()):
            self._go(run, Duration(0), now)

    def _sent(self, run: Run, part: Part, order: int, now: Instant) -> None:
        """Note that a part has sent the state; once all have, the successor has loaded it."""
        if not part.is_at(order):
            return
        part.stands = True
        self._answer(run, part, now)
        if not all(each.order == order and each.answer is not None for each in run.parts.values()):
            return
        other, work = self._awaiting.get(run.name), self.works[run.name]
        if other is None:
            return
        work.attempt, work.factor = other.number, self._chance(other)
        for each in other.parts.values():
            self.outbox.append(
                MemberLoaded(
                    node=each.node,
                    identity=each.identity,
                    job=run.name,
                    attempt=other.number,
                    step=work.steps(),
                    at=now,
                )
            )

    def _do_resize(self, run: Run, part: Part, change: Resize, now: Instant) -> None:
        if change.prepare:
            kept = {rank.rank for rank in change.ranks}
            if not part.joined and not kept:
                self._after_costs(
                    Duration(0), now, self._gone, run, part
                )  # It does not join after all.
                return
            ready = max(Duration(0), Duration(part.began + self._start - now))
            costs = Duration(0) if part.joined else ready
            ready_message = MemberReady(
                node=part.node,
                identity=part.identity,
                job=run.name,
                attempt=run.number,
                doors=(),
                at=after(now, costs),
                order=part.order,
            )
            part.answer = ready_message
            self._send_later(costs, ready_message, run, now)
            return
        self._halt(run, now)
        self._pay(run, part.order, self._resize)
        self._after_costs(self._resize, now, self._resized, run, part, part.order, change)

    def _resized(self, run: Run, part: Part, order: int, change: Resize, now: Instant) -> None:
        if not part.is_at(order):
            return
        part.devices, part.ranks = _devices(change.ranks), len(change.ranks)
        part.joined = True
        run.servers = change.servers
        self._answer(run, part, now)
        if not part.ranks:
            del run.parts[part.node]
        if all(each.order == order and each.answer is not None for each in run.parts.values()):
            self._go(run, Duration(0), now)

    # --- how attempts continue and end -----------------------------------------------------------

    def ends(self, name: str, version: int, now: Instant) -> None:
        """End a job whose work is done, unless its end was computed again since.

        Args:
            name: The job.
            version: The `Work.version` with which the end was computed.
            now: The present instant.
        """
        work = self.works[name]
        if work.version != version:
            return
        run = self._runs[name, work.attempt]
        where = work.where
        self._halt(run, now)
        work.done = work.job.run_time
        steps = step_ns = 0
        if work.job.mini_batches and where is not None:
            steps = work.job.mini_batches
            step_ns = round(self._speeds.mini_batch_s(work.job, where) * 1e9)
        del self._runs[name, run.number]
        for part in run.parts.values():
            self.outbox.append(
                MemberExited(
                    node=part.node,
                    identity=part.identity,
                    job=name,
                    attempt=run.number,
                    outcome=Outcome.SUCCEEDED,
                    at=now,
                    steps=steps,
                    step_ns=step_ns,
                    order=part.came,
                )
            )

    def _gone(self, run: Run, part: Part, now: Instant) -> None:
        run.parts.pop(part.node, None)
        self.outbox.append(
            MemberExited(
                node=part.node,
                identity=part.identity,
                job=run.name,
                attempt=run.number,
                outcome=Outcome.STOPPED,
                at=now,
                order=part.came,
            )
        )
        if not run.parts:
            self._runs.pop((run.name, run.number), None)
            if self._awaiting.get(run.name) is run:
                del self._awaiting[run.name]

    def _go(self, run: Run, costs: Duration, now: Instant) -> None:
        """Make an attempt train, after the costs of that."""
        run.begins = True
        if costs:
            self.works[run.name].overhead += costs
            self.later.append((after(now, costs), (self._train, run)))
        else:
            self._train(run, now)

    def _train(self, run: Run, now: Instant) -> None:
        work = self.works[run.name]
        if not run.begins or work.attempt != run.number:
            return  # Another command came meanwhile.
        run.begins, run.trains = False, True
        work.since = work.begun = now
        if not self._steady:
            self._stale[run] = None
            self._floor.enter(run)
            self._stale.update(self._floor.beside(run))
        else:
            self._reckon(run, work, 1.0 * work.factor, 1.0, now)

    def _halt(self, run: Run, now: Instant) -> None:
        """Stop the training of an attempt, if it trains."""
        run.begins = False
        if not run.trains:
            return
        run.trains = False
        work = self.works[run.name]
        work.advance(now, self._store_every)
        work.rate = 0.0
        work.version += 1
        work.where = None
        self._count(run, 0, 0)
        if self.paced is not None:
            self.paced[run] = None
        self._stale.pop(run, None)
        if not self._steady:
            self._floor.leave(run)
            self._stale.update(self._floor.beside(run))

    def settle(self, now: Instant) -> None:
        """Compute speeds again for attempts with other neighbours than before."""
        if not self._stale:
            return
        stale, self._stale = self._stale, {}
        for run in stale:
            if not run.trains:
                continue
            work, where = self.works[run.name], self._floor.situation(run)
            if run.job.batch_max:
                work.advance(now, self._store_every)
                where = where._replace(stage=work.stage())
            where = self._as_slow(run, where)
            if where == work.where:
                continue
            work.advance(now, self._store_every)
            work.where = where
            speed = self._speeds.speed(work.job, where) * work.factor * work.phase
            self._reckon(run, work, speed, self._speeds.utilisation(work.job, where), now)

    def _as_slow(self, run: Run, where: Situation) -> Situation:
        """Return the situation of a mixed gang: as if all its GPUs were of its slowest type.

        Each mini-batch waits for all ranks.
        """
        types = self._floor.types(run)
        if len(types) == 1:
            return where
        job = self.works[run.name].job
        return min(
            (where._replace(gpu_type=each) for each in types),
            key=lambda there: self._speeds.speed(job, there),
        )

    def _staged(self, run: Run, version: int, now: Instant) -> None:
        """Compute the speed of an attempt again, as another part of its run has begun."""
        if self.works[run.name].version == version and run.trains:
            self._stale[run] = None

    def vary(self, name: str, phase: float, now: Instant) -> None:
        """Change the speed of a job by a factor to its model: it is in another phase.

        Args:
            name: The job.
            phase: The factor.
            now: The present instant.
        """
        work = self.works[name]
        work.phase = phase
        run = self._runs.get((name, work.attempt))
        if run is not None and run.trains:
            work.where = None
            self._stale[run] = None

    def _reckon(self, run: Run, work: Work, speed: float, utilisation: float, now: Instant) -> None:
        """Set the speed of an attempt from now on."""
        work.rate = speed
        work.version += 1
        gpus = sum(len(part.devices) for part in run.parts.values())
        self._count(run, round(gpus * utilisation * GPU), round(gpus * min(speed, 1.0) * GPU))
        if self.paced is not None:
            self.paced[run] = None
        if speed > 0:
            self.later.append((after(now, work.left()), (self.ends, run.name, work.version)))
            until = work.next_stage()
            if until is not None and not self._steady:
                self.later.append((after(now, until), (self._staged, run, work.version)))

    def _count(self, run: Run, busy: int, useful: int) -> None:
        before = self._counted.pop(run, (0, 0))
        self.busy += busy - before[0]
        self.useful += useful - before[1]
        if busy or useful:
            self._counted[run] = busy, useful

    def busy_gpus(self) -> float:
        """Return how many GPUs are busy: one that jobs share is so once, and never more."""
        if not self._packs:
            return self.busy / GPU
        found: dict[tuple[str, int], float] = {}
        for run, (busy, _) in self._counted.items():
            devices = [(node, each) for node, gpus in run.devices.items() for each in gpus]
            for device in devices:
                found[device] = found.get(device, 0.0) + busy / GPU / len(devices)
        return sum(min(each, 1.0) for each in found.values())

    def _chance(self, run: Run) -> float:
        if not self._noise:
            return 1.0
        rng = random.Random(f"speed {self._seed} {run.job.id} {run.number}")
        return max(SPEED_MIN, rng.gauss(1.0, self._noise))

    def _owe(self, run: Run) -> None:
        """Count what a job will train without progress, once for all parts of an attempt."""
        work = self.works[run.name]
        if work.stopped == run.number:
            return
        work.stopped = run.number
        costs = [cost for gpus, cost in self._again if gpus <= run.job.gpus]
        if costs:
            work.debt += costs[-1]
            work.overhead += costs[-1]

    def _pay(self, run: Run, order: int, costs: Duration) -> None:
        """Count the costs of a change, once for all parts of a gang."""
        work = self.works[run.name]
        if costs and work.paid != (run.number, order):
            work.paid = run.number, order
            work.overhead += costs

    # --- what is known of an attempt -------------------------------------------------------------

    def lives(self, run: Run) -> bool:
        """Return whether an attempt has processes, and its job has not ended."""
        return self._runs.get((run.name, run.number)) is run

    def pace(self, run: Run) -> tuple[int, int]:
        """Return the present pace of an attempt.

        Returns:
            Nanoseconds of a mini-batch (0: it makes none, or that is unknown), and thousandths
            of its GPUs' time that are busy.
        """
        work = self.works[run.name]
        job, where = work.job, work.where
        if not run.trains or work.attempt != run.number or work.rate <= 0:
            return 0, 0
        busy = 1.0 if where is None else self._speeds.utilisation(job, where)
        if job.mini_batches:
            step_s = job.run_time / job.mini_batches / work.rate
        else:
            known = 0.0 if where is None else self._speeds.mini_batch_s(job, where)
            step_s = known * 1e9 / work.factor
        return round(step_s), min(1000, round(1000 * busy))

    def memory(self, run: Run) -> int:
        """Return the bytes of GPU memory that its largest worker needs; 0: unknown."""
        return self._speeds.memory(run.job)

    # --- what agents say -------------------------------------------------------------------------

    def _after_costs(self, costs: Duration, now: Instant, *what: Any) -> None:
        """Call a method now, or after its costs."""
        if costs:
            self.later.append((after(now, costs), what))
        else:
            what[0](*what[1:], now)

    def _send_abilities(self, run: Run, part: Part, now: Instant) -> None:
        self.outbox.append(
            MemberKnown(
                node=part.node,
                identity=part.identity,
                job=run.name,
                attempt=run.number,
                tier=Tier.COOPERATIVE,
                can=self._can,
                at=now,
            )
        )

    def _send_later(self, costs: Duration, message: Any, run: Run, now: Instant) -> None:
        if costs:
            self.later.append((after(now, costs), (self._send, run, message)))
        else:
            self.outbox.append(message)

    def _send(self, run: Run, message: Any, now: Instant) -> None:
        part = run.parts.get(message.node)
        if part is not None and not part.stopping:
            self.outbox.append(message)

    def _answer(self, run: Run, part: Part, now: Instant, *, released: bool = False) -> None:
        part.answer = MemberChanged(
            node=part.node,
            identity=part.identity,
            job=run.name,
            attempt=run.number,
            order=part.order,
            manner=Manner.BOUNDARY,
            at=now,
            released=released,
            step=self.works[run.name].steps(),
        )
        self.outbox.append(part.answer)


def _devices(ranks: tuple[RankPlan, ...]) -> tuple[int, ...]:
    return tuple(device for rank in ranks for device in rank.devices)


def _exited(stop: StopJob, outcome: Outcome, now: Instant, *, order: int) -> MemberExited:
    return MemberExited(
        node=stop.node,
        identity=stop.identity,
        job=stop.job,
        attempt=stop.attempt,
        outcome=outcome,
        at=now,
        order=order,
    )
