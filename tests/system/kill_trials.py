"""SIGKILL the services that begin, measure and judge trials, in every phase; account for all.

    python -m tests.system.kill_trials [--only SERVICE/PHASE] [--lanes N] [--slice SECONDS]

On an embedded cluster each lane is a virtual cluster with one fake GPU, policy `gandiva` with
`introspect: true`. In each case two jobs of PyTorch come to a lane, take turns, and are packed on
trial; a service is killed in one phase of that, and the supervisor starts it again:

    order     some seconds before both jobs are measured; the allocator, as it is told that they
              are, which is what the pack follows from
    begun     `TrialBegun` is recorded, and the guest has yet to go on beside its host
    measured  both run together for some seconds
    verdict   the introspector says what it found
    undone    `TrialOver` is recorded, and the guest has yet to leave

Afterwards both have to train on, and then to end by themselves. A case fails if a trial has not
exactly one verdict, or a job stands for ever, began again, or did not succeed; or if the gateway's
ledger says otherwise than the log, or a replay of the log breaks an invariant or leaves anything
behind. Prints JSON: a row for each case. Exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import nats

from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.advice import Outlook
from skep.wire.changes import JobChanged, JobChanging
from skep.wire.facts import JobBound, JobEnded
from skep.wire.findings import Rates
from skep.wire.trials import Judged, TrialBegun, TrialOver, Trials
from skep_services.ports import Delivery
from tests.support.embedded import Embedded, open_bus
from tests.system import cells_account
from tests.system.introspect.live import GIB, MEMORY, Job, Live, machine

SERVICES = ("introspector", "advisor", "allocator")
PHASES = ("order", "begun", "measured", "verdict", "undone")
STEP_MS = 100.0
HURTS = {"utilisation": 1.0, "demand": 1.0, "sensitivity": 1.0, "pressure": 1.0}
"""Two of these make a third each, two thirds together: the pack is undone."""
HELPS = {"utilisation": 0.2, "demand": 0.2}
"""Two of these hardly slow one another: the pack is kept."""
LOADS = {"order": HELPS, "begun": HURTS, "measured": HELPS, "verdict": HURTS, "undone": HURTS}
INTO_S = 15.0
"""How long a pack has been measured when somebody is killed: the first look is after 32 s."""
SOON_S = 12.0
"""A rate has to be told for so long, and some seconds more, before a plan goes by it."""
APART_S = 4.0
"""Lanes begin one after another, so that their phases do not coincide."""
BEGUN_S, OVER_S, TRAINS_S, ENDS_S = 200.0, 240.0, 150.0, 120.0
MORE = 3
"""Mini-batches by which a job has trained on."""

Row = dict[str, Any]
T = TypeVar("T")


class Case(NamedTuple):
    """Who is killed when."""

    service: str
    phase: str

    def __str__(self) -> str:
        return f"{self.service}/{self.phase}"


def cases() -> list[Case]:
    """Return all, so that neighbours are of other phases and mostly of other services."""
    return [
        Case(SERVICES[(turn + index) % len(SERVICES)], phase)
        for turn in range(len(SERVICES))
        for index, phase in enumerate(PHASES)
    ]


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"kill-trials: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Heard:
    """The allocator's log and what is said of trials, as they grow; watchers look at each piece."""

    def __init__(self) -> None:
        """Start with nothing heard."""
        self.facts: list[Any] = []
        self.records: list[tuple[Any, ...]] = []
        self._watchers: list[Callable[[Any], None]] = []
        self._grown = asyncio.Event()

    async def take(self, delivery: Delivery) -> None:
        """Take over one record of the log."""
        record = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        assert isinstance(record, codec.Facts), record
        self.records.append(record.facts)
        self.facts += record.facts
        for fact in record.facts:
            self._show(fact)

    async def hear(self, message: Any) -> None:
        """Take over what was said on the bus."""
        headers = message.headers or {}
        self._show(codec.read(message.subject, message.data, headers, 0, Instant(0)))

    def _show(self, told: Any) -> None:
        for watcher in list(self._watchers):
            watcher(told)
        self._grown.set()

    async def when(self, look: Callable[[Any], T | None], what: str, within_s: float) -> T:
        """Return the first true value of `look` at a piece that is heard from now on."""
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def watch(told: Any) -> None:
            value = look(told)
            if value and not found.done():
                found.set_result(value)

        self._watchers.append(watch)
        try:
            return await asyncio.wait_for(found, within_s)
        except TimeoutError:
            raise _late(what, within_s) from None
        finally:
            self._watchers.remove(watch)

    async def until(self, look: Callable[[], T | None], what: str, within_s: float) -> T:
        """Return the first true value of `look`, looking again whenever something is heard."""
        try:
            async with asyncio.timeout(within_s):
                while not (found := look()):
                    self._grown.clear()
                    await self._grown.wait()
                return found
        except TimeoutError:
            raise _late(what, within_s) from None

    def of(self, kind: type[T], job: str) -> list[T]:
        """Return the facts of a kind about a job."""
        return [fact for fact in self.facts if isinstance(fact, kind) and job in _jobs(fact)]


def _jobs(fact: Any) -> tuple[str, ...]:
    if isinstance(fact, TrialBegun):
        return tuple(each.job for each in fact.jobs)
    return fact.jobs if isinstance(fact, TrialOver) else (fact.job,)


def _late(what: str, within_s: float) -> TimeoutError:
    return TimeoutError(f"not within {within_s:.0f} s: {what}")


class Measured:
    """Whether jobs are measured, by what is heard; or `early` seconds of rates after the last."""

    def __init__(self, jobs: Collection[str], early: float | None) -> None:
        """Start with nothing known."""
        self._jobs, self._early = set(jobs), early
        self._told: set[str] = set()
        self._since: dict[str, float] = {}

    def look(self, told: Any) -> bool:
        """Take over what was heard; return whether it is so."""
        if isinstance(told, Outlook):
            self._told.update(each.job for each in told.jobs if each.rate_milli and each.memory)
        elif isinstance(told, Rates):
            for each in told.jobs:
                self._since.setdefault(each.job, time.monotonic())
        left = self._jobs - self._told
        if len(left) != 1 or self._early is None:
            return not left
        (last,) = left
        return time.monotonic() >= self._since.get(last, float("inf")) + self._early


class KillTrials:
    """One run on a cluster that is up."""

    def __init__(self, live: Live, heard: Heard) -> None:
        """Prepare."""
        self.live, self.heard = live, heard
        self.rows: list[Row] = []
        self.problems: list[str] = []
        self._number = itertools.count(1)

    async def run(self, wanted: Sequence[Case], lanes: int) -> None:
        """Play cases, so many at a time."""
        todo = iter(wanted)

        async def lane(number: int) -> None:
            await asyncio.sleep(APART_S * number)
            for case in todo:
                await self.play(case, _vc(number))

        await asyncio.gather(*(lane(number) for number in range(min(lanes, len(wanted)))))
        self.problems += [text async for text in self._account()]

    async def play(self, case: Case, vc: str) -> None:
        """Play one case."""
        began = time.monotonic()
        row: Row = {"killed": case.service, "phase": case.phase, "vc": vc, "problems": []}
        number = next(self._number)
        jobs: list[Job] = []
        try:
            load = {**LOADS[case.phase], "step_ms": STEP_MS, "memory": 2 * GIB}
            jobs += [
                await asyncio.to_thread(self.live.train, f"c{number}-{index}", load, vc=vc)
                for index in (1, 2)
            ]
            row["jobs"] = [job.job for job in jobs]
            await self._reach(case, jobs, row)
            await self._killed(case, row)
            await self._over(jobs, row)
            await self._train_on(jobs, row)
        except (TimeoutError, AssertionError, LookupError, OSError, RuntimeError) as error:
            row["problems"].append(f"{type(error).__name__}: {error}")
            row["states"] = [job.row["state"] for job in jobs]
        for job in jobs:
            job.finish()
        for job in jobs:
            try:
                await self._ended(job)
            except TimeoutError as error:
                row["problems"].append(str(error))
        row["problems"] += [text for job in jobs for text in self._wrong(job)]
        row["ok"] = not row["problems"]
        row["seconds"] = round(time.monotonic() - began)
        self.rows.append(row)
        say(
            f"{case}: {row.get('verdicts')} {'ok' if row['ok'] else row['problems']} "
            f"({row['seconds']} s)"
        )
        print(json.dumps(row), flush=True)

    async def _reach(self, case: Case, jobs: Sequence[Job], row: Row) -> None:
        """Return at the moment at which somebody is to be killed."""
        ids, heard = {job.job for job in jobs}, self.heard
        if case.phase == "order":
            early = SOON_S if case.service != "allocator" else None
            await heard.when(Measured(ids, early).look, "both are measured", BEGUN_S)
            return

        def begun(told: Any) -> TrialBegun | None:
            mine = isinstance(told, TrialBegun) and set(_jobs(told)) == ids
            return told if mine else None

        trial = (await heard.when(begun, "a pack is tried", BEGUN_S)).trial
        row["trial"] = trial
        if case.phase == "measured":

            def runs(told: Any) -> bool:
                opened = told.open if isinstance(told, Trials) else ()
                return any(each.trial == trial and each.since for each in opened)

            await heard.when(runs, f"trial {trial} can be measured", BEGUN_S)
            await asyncio.sleep(INTO_S)
        elif case.phase in ("verdict", "undone"):
            kind = Judged if case.phase == "verdict" else TrialOver

            def found(told: Any) -> bool:
                return isinstance(told, kind) and told.trial == trial

            await heard.when(found, f"a {kind.__name__} of trial {trial}", OVER_S)

    async def _killed(self, case: Case, row: Row) -> None:
        """Kill it; return once it is back."""
        cluster, ids = self.live.cluster, row["jobs"]
        before = len(self.heard.facts)
        # Not even a turn of the loop until it is dead.
        entry = cluster.entry(case.service)
        at = cluster.kill(case.service)
        back = await asyncio.to_thread(cluster.wait_back, case.service, entry["pid"])
        row["back_ms"] = round((back - at) / 1e6)
        # What is heard later may have been recorded before it died: the clock tells.
        mine = [
            fact
            for fact in self.heard.facts
            if isinstance(fact, TrialBegun | TrialOver) and set(_jobs(fact)) == set(ids)
        ]
        row["recorded_before"] = [type(fact).__name__ for fact in mine if fact.at <= at]
        row["changes_under_way"] = self._under_way(ids, before)

    def _under_way(self, ids: Sequence[str], before: int) -> list[str]:
        """Return which changes of these jobs had begun and not ended at a point of the log."""
        open_: dict[str, str] = {}
        for fact in self.heard.facts[:before]:
            if isinstance(fact, JobChanging) and fact.job in ids:
                open_[fact.job] = str(fact.goal)
            elif isinstance(fact, JobChanged) and fact.job in ids:
                open_.pop(fact.job, None)
        return [f"{job} {goal}" for job, goal in open_.items()]

    async def _over(self, jobs: Sequence[Job], row: Row) -> None:
        """Return once a trial was begun with them, and all that were have a verdict."""
        job, heard = jobs[0].job, self.heard
        await heard.until(lambda: heard.of(TrialBegun, job), "a pack is tried", BEGUN_S)

        def all_over() -> bool:
            return len(heard.of(TrialBegun, job)) <= len(heard.of(TrialOver, job))

        await heard.until(all_over, "every trial has a verdict", OVER_S)
        row["verdicts"] = [
            f"{over.verdict} ({over.why}, {over.gain_milli:+})" for over in heard.of(TrialOver, job)
        ]

    async def _train_on(self, jobs: Sequence[Job], row: Row) -> None:
        """Return once both have made more mini-batches."""
        since = time.monotonic()

        def train_on(job: Job) -> None:
            before, deadline = len(job.steps().ends), time.monotonic() + TRAINS_S
            while len(job.steps().ends) < before + MORE:
                if time.monotonic() > deadline:
                    what = f"{job.job} trains on; it is {job.row['state']}"
                    raise _late(what, TRAINS_S)
                time.sleep(0.5)  # tidy: allow sleep because this waits for another process

        await asyncio.gather(*(asyncio.to_thread(train_on, job) for job in jobs))
        row["both_train_on_s"] = round(time.monotonic() - since, 1)

    async def _ended(self, job: Job) -> None:
        of = functools.partial(self.heard.of, JobEnded, job.job)
        await self.heard.until(of, f"{job.job} ends", ENDS_S)

    def _wrong(self, job: Job) -> Iterator[str]:
        """Yield what is wrong with a job and its trials when all is over."""
        ends = [str(fact.end) for fact in self.heard.of(JobEnded, job.job)]
        if ends != ["succeeded"]:
            yield f"{job.job} ended as {ends}"
        bound = [fact.attempt for fact in self.heard.of(JobBound, job.job)]
        if bound != [1]:
            yield f"{job.job} has attempts {bound}"
        begun = sorted(fact.trial for fact in self.heard.of(TrialBegun, job.job))
        over = sorted(fact.trial for fact in self.heard.of(TrialOver, job.job))
        if begun != over or len({*begun}) != len(begun):
            yield f"{job.job}: trials {begun} were begun, {over} have a verdict"

    async def _account(self) -> Any:
        """Yield what is wrong with the log and the ledger."""
        log = {
            fact.trial: str(fact.verdict)
            for fact in self.heard.facts
            if isinstance(fact, TrialOver)
        }
        begun = [fact.trial for fact in self.heard.facts if isinstance(fact, TrialBegun)]
        if begun != sorted(log):
            yield f"trials {begun} were begun, {sorted(log)} are over"
        ledger: dict[int, str] = {}
        for _ in range(40):
            told = await asyncio.to_thread(self.live.cluster.get, "/v1/trials")
            ledger = {each["trial"]: each["verdict"] for each in told["trials"]}
            if ledger == log:
                break
            await asyncio.sleep(0.25)
        else:
            yield f"the ledger says {ledger}, the log {log}"
        for text in cells_account.leaks(self.heard.records):
            yield text


def _vc(number: int) -> str:
    return f"lane-{number + 1}"


def kill_trials(wanted: Sequence[Case], lanes: int, slice_s: float) -> dict[str, Any]:
    """Play cases on a fresh cluster; return the report."""
    names = [_vc(number) for number in range(min(lanes, len(wanted)))]
    # A kind of GPU for each, so that none borrows from another.
    policy = {"name": "gandiva", "slice_s": slice_s, "introspect": True}
    told = {
        "nodes": [
            {"name": f"node-{vc}", "gpus": 1, "device": "fake", "gpu_type": vc} for vc in names
        ],
        "chains": {vc: {"gpu": vc, "levels": {"node": 1}, "nodes": f"node-{vc}"} for vc in names},
        "vcs": {vc: {"cells": {f"{vc}/node": 1}, "policy": policy} for vc in names},
    }
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="skep-kill-trials-") as text:
        folder = Path(text)
        file = folder / "cluster.yaml"
        file.write_text(json.dumps(told))
        cluster = Embedded(folder / "home", {"SKEP_GPU_MEMORY": str(MEMORY)})
        try:
            cluster.up("--cluster", str(file), "--port", "0")
            run = asyncio.run(_run(cluster, Live(cluster, folder), wanted, lanes))
        finally:
            cluster.down()
    failed = sum(not row["ok"] for row in run.rows)
    return {
        "rows": run.rows,
        "ran": len(run.rows),
        "failed": failed,
        "problems": run.problems,
        "seconds": round(time.monotonic() - began),
        **machine(),
    }


async def _run(cluster: Embedded, live: Live, wanted: Sequence[Case], lanes: int) -> KillTrials:
    about, heard = cluster.about, Heard()
    bus = await open_bus(about, "operator")
    client = await nats.connect(
        about["nats"]["url"].split(","),
        user="operator",
        password=about["nats"]["users"]["operator"],
        inbox_prefix=b"_INBOX.operator",
    )
    try:
        for subject in (subjects.FINDINGS, subjects.TRIALS_OPEN, subjects.ADVICE_OUTLOOK):
            await client.subscribe(subject, cb=heard.hear)
        await bus.follow(subjects.ALLOC, 0, heard.take)
        run = KillTrials(live, heard)
        await run.run(wanted, lanes)
        return run
    finally:
        await client.close()
        await bus.close()


def main() -> int:
    """Run what the command line asks for."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        action="append",
        metavar="SERVICE/PHASE",
        choices=[str(case) for case in cases()],
        help="one case; repeatable",
    )
    parser.add_argument("--lanes", type=int, default=5, help="cases at a time (default: 5)")
    parser.add_argument("--slice", type=float, default=25.0, help="seconds of a turn")
    given = parser.parse_args()
    wanted = [case for case in cases() if not given.only or str(case) in given.only]
    report = kill_trials(wanted, given.lanes, given.slice)
    print(json.dumps({name: value for name, value in report.items() if name != "rows"}))
    return 1 if report["failed"] or report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
