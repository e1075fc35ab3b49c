"""Plays cells on a real cluster: brings a job into a phase, kills, and sees what came of it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skep.wire import subjects
from tests.system import cells_account
from tests.system.crashes import judge
from tests.system.crashes.cells import (
    CANCEL,
    EVERYTHING,
    MECHANISMS,
    MOVED,
    RESTARTED,
    SAME,
    SERVICES,
    WARM,
    Came,
    Cell,
    Mechanism,
    allowed,
)
from tests.system.crashes.cells import ENDED as FATE_ENDED
from tests.system.crashes.jobs import GANGS, Job, Reference, Stands, stands
from tests.system.crashes.judge import Fact, Step
from tests.system.crashes.world import NODES, VC, World, is_connected, is_there

STEPS_MAX = 4000
STEPS_FIRST, STEPS_EACH = 1000, 200
"""Mini-batches that are compared, at first and for each cell; a job that comes near has done
enough."""
ENOUGH = 0.85
TRAINS_ON = 6
"""Mini-batches after which a job is believed to train."""
TRIES = 3
"""Of a change that a busy machine may make too late."""
SOON = 40
"""Mini-batches within which no job is when it is told to end: all ranks end after the same one."""

Row = dict[str, Any]


class Play:
    """The cells on one cluster, which is up."""

    def __init__(self, world: World, folder: Path, cells: Sequence[Cell]) -> None:
        """Prepare, and begin with the uninterrupted runs."""
        self.kinds = dict.fromkeys(MECHANISMS[cell.mechanism].kind for cell in cells)
        self.steps = min(STEPS_MAX, STEPS_FIRST + STEPS_EACH * len(cells))
        self.world, self.folder = world, folder
        self.jobs: dict[str, Job] = {}
        self.all: list[Job] = []
        self._numbers = itertools.count(1)
        self._runs = {kind: Reference(kind, folder, self.steps) for kind in self.kinds}
        self._totals: dict[str, list[float]] = {}
        self._stands: dict[str, tuple[int, Stands]] = {}
        self._known: dict[str, None] = {}
        """What was found wrong already: each thing is told of the cell in which it came up."""

    async def play(self, cell: Cell) -> Row:
        """Play one cell; return what came of it."""
        began = time.monotonic()
        row: Row = {
            **cell._asdict(),
            "stated": sorted(map(str, allowed(cell))),
            "came": "",
            "seen": "",
            "problems": [],
        }
        one = Playing(self, cell)
        try:
            came = await one.play()
            row["came"] = str(came)
            if came not in allowed(cell):
                row["problems"].append(f"it came to {came}")
            row["problems"] += await self.judged(one.job)
        except (TimeoutError, AssertionError, LookupError, OSError, RuntimeError) as error:
            row["problems"].append(f"{type(error).__name__}: {error}")
            row["tail"] = [dict(fact) for fact in one.facts()[-8:]]
            await self._give_up(one)
        row["seen"] = " ".join(one.seen())
        row["ok"] = not row["problems"]
        row["seconds"] = round(time.monotonic() - began, 2)
        return row

    async def job(self, kind: str) -> Job:
        """Return a job of a kind that trains; a new one where there is none to go on with."""
        job = self.jobs.get(kind)
        last = job.latest() if job is not None else None
        worn = last is not None and last.step > ENOUGH * self.steps
        if job is not None and (worn or job.spent):
            await self.finish(job)
            job = None
        job = job or await self.submit(kind)
        await self.trains(job)
        return job

    async def submit(self, kind: str) -> Job:
        """Begin another job of a kind."""
        job = Job(kind, self.folder, next(self._numbers))
        job.id = f"j{await self.world.publish('submit', job.spec(VC))}"
        job.strange = {pid for node in NODES for pid in self.world.warm(node)}
        self.jobs[kind] = job
        self.all.append(job)
        return job

    def stands(self, job: Job) -> Stands:
        """Return how a job stands."""
        facts = self.world.alloc(job.id)
        count, now = self._stands.get(job.id, (-1, Stands()))
        if count != len(facts):
            count, now = len(facts), stands(facts)
            self._stands[job.id] = count, now
        return now

    async def trains(self, job: Job) -> None:
        """Return once a job has trained on for some mini-batches, and its node knows what it can.

        It is resumed for that if it is suspended.
        """

        def up() -> Stands | None:
            now = self.stands(job)
            assert not now.end, f"{job.name} ended: {now.end}"
            return now if now.ran and now.can else None

        now = await self.world.until(up, f"{job.name} runs and is known")
        if now.suspended:
            assert await self.asked(job, {"ask": "resume"}) == "done"
        for rank in range(now.workers):
            await self.world.until(self._trained(job, rank), f"rank {rank} of {job.name} trains on")

    def _trained(self, job: Job, rank: int) -> Callable[[], bool]:
        def latest() -> Step | None:
            last, attempt = job.latest(rank), self.stands(job).attempt
            return last if last is not None and last.attempt == attempt else None

        before = latest()

        def look() -> bool:
            now = latest()
            if now is None:
                return False
            if before is None or now.pid != before.pid:
                return True
            return now.step >= before.step + TRAINS_ON

        return look

    async def ask(self, job: Job, wish: Mapping[str, object]) -> int:
        """Ask for a change; return the request's number once it is stored."""
        return await self.world.publish("ask", {**wish, "job": job.id})

    async def asked(self, job: Job, wish: Mapping[str, object]) -> str:
        """Ask for a change; return what came of it."""
        return str((await self.over(job, await self.ask(job, wish)))["result"])

    async def brought(self, job: Job, wish: Mapping[str, object]) -> None:
        """Ask for a change until it is done: a job may pass the boundary before it hears of it."""
        for _ in range(TRIES):
            over = await self.over(job, await self.ask(job, wish))
            if over["result"] == "done":
                return
            assert over.get("why") == "not-taken", (wish, over)
        raise AssertionError(wish)

    async def over(self, job: Job, number: int) -> Fact:
        """Return what came of a request."""

        def look() -> Fact | None:
            facts = reversed(self.world.alloc(job.id))
            return next(
                (fact for fact in facts if fact["type"] == "ask-over" and fact["number"] == number),
                None,
            )

        return await self.world.until(look, f"an answer to request {number} about {job.name}")

    async def finish(self, job: Job) -> None:
        """Let a job end by itself, and see that it succeeded."""
        self.jobs.pop(job.kind, None)
        await self.trains(job)
        if job.adopted:
            # How a process ends that a later runner took over is seen by nobody: it is repeated.
            await self.world.publish("cancel", {"job": job.id})
            await self.gone(job)
            return
        last = job.latest()
        assert last is not None, job.name
        job.stop(last.step + SOON)
        end = await self.world.until(lambda: self.stands(job).end, f"{job.name} ends")
        assert end == "succeeded", f"{job.name} ended as {end}"

    async def gone(self, job: Job) -> None:
        """Return once a job is over and nothing is left of it."""
        end = await self.world.until(lambda: self.stands(job).end, f"{job.name} ends")
        assert end == "cancelled", f"{job.name} ended as {end}"

        def dead() -> bool:
            return not any(is_there(pid) for pid in job.processes())

        await self.world.until(dead, f"nothing is left of {job.name}")

    async def end(self) -> list[str]:
        """Let every job end; return what is wrong with the cells then."""
        found: list[str] = []
        for job in list(self.jobs.values()):
            try:
                await self.finish(job)
                found += await self.judged(job)
            except (TimeoutError, AssertionError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return [*found, *cells_account.leaks(self.world.streams[subjects.ALLOC].records)]

    async def judged(self, job: Job) -> list[str]:
        """Return what is wrong with a job's training, and with what the gateway says of it."""
        if job.kind not in self._totals:
            run = self._runs[job.kind]
            self._totals[job.kind] = await asyncio.to_thread(run.totals)
        facts = self.world.alloc(job.id)
        found = list(
            judge.problems(
                facts,
                job.lines(),
                self._totals[job.kind],
                elastic=job.kind in GANGS,
                stores=job.kind != "plain",
            )
        )
        now = stands(facts)
        if not now.end:
            wanted = {
                "state": "running",
                "attempt": now.attempt,
                "workers": now.workers,
                "gpus": now.workers,
            }
            found += await self._shown(job, wanted)
        found = [f"{job.name}: {text}" for text in found]
        news = [text for text in found if text not in self._known]
        self._known |= dict.fromkeys(news)
        return news

    async def _shown(self, job: Job, wanted: Row) -> list[str]:
        """Return what the gateway shows of a job that is otherwise, once it has caught up."""
        shown: Row = {}
        deadline = time.monotonic() + 20.0
        while shown != wanted and time.monotonic() < deadline:
            row = await self.world.get(f"/v1/jobs/{job.id}")
            gpus = (await self.world.get("/v1/gpus"))["gpus"]
            held = sum(1 for gpu in gpus if gpu["taken"] and gpu["job"] == job.id)
            shown = {name: row.get(name) for name in wanted} | {"gpus": held}
        return [] if shown == wanted else [f"the gateway shows {shown}, not {wanted}"]

    async def _give_up(self, one: Playing) -> None:
        """After a cell that came to nothing: go on with another job."""
        one.let_go()
        self.jobs.pop(one.about.kind, None)
        if not all(self.world.cluster.pids()):
            return
        if not is_there(self.world.cluster.entry("supervisor")["pid"]):
            await self.world.up_again()
        await self.world.back()
        if one.job.id and not self.stands(one.job).end:
            await self.world.publish("cancel", {"job": one.job.id})

    def close(self) -> None:
        """End what runs beside the cluster."""
        for run in self._runs.values():
            run.kill()


class Playing:
    """One cell under way."""

    def __init__(self, play: Play, cell: Cell) -> None:
        """Prepare; nothing is done yet."""
        self.play_, self.world, self.cell = play, play.world, cell
        self.about: Mechanism = MECHANISMS[cell.mechanism]
        self.job = Job(self.about.kind, play.folder, 0)
        self.before = Stands()
        self.number = 0
        self._since = self._nodes = 0
        self._stopped: dict[str, int] = {}
        self._newcomers: list[int] = []

    async def play(self) -> Came:
        """Bring the job into the phase, kill the victim, and return what came of it."""
        job = self.job = await self.play_.job(self.about.kind)
        victim = self.cell.victim
        if victim in self.about.ranks and "checkpoint" in self.play_.stands(job).can:
            assert await self.play_.asked(job, {"ask": "checkpoint"}) == "done"
        for wish in self.about.before:
            await self.play_.brought(job, wish)
        if self.about.warm:
            await self._warmed()
        if not self.play_.stands(job).suspended:
            await self.play_.trains(job)
        self.before = self.play_.stands(job)
        self._since, self._nodes = len(self.world.alloc(job.id)), len(self._events())
        self._newcomers = job.begun(self.before.attempt, self.before.workers)
        try:
            for step in self.about.phases[self.cell.phase]:
                await self._do(*step.split())
            await self._kill(victim)
        finally:
            self.let_go()
        job.spent = victim == WARM
        for each in self.play_.all if victim == "runner" else ():
            each.adopted = True  # Whether they are on that node or not.
        if victim == EVERYTHING:
            await self.world.up_again()
        return await self._came()

    async def _warmed(self) -> None:
        """Have the job move until there is a warm process for it where it goes next."""
        for _ in NODES:
            node = self.play_.stands(self.job).nodes[0]
            if self._warm(_other(node)):
                return
            await self.play_.brought(self.job, self.about.ask)
            await self.play_.trains(self.job)
            look = functools.partial(self._warm, node)
            await self.world.until(look, f"a warm process on {node}")

    def _warm(self, node: str) -> int:
        """Return the warm process of the job on a node, 0 if there is none."""
        found = [pid for pid in self.world.warm(node) if pid not in self.job.strange]
        return found[-1] if found else 0

    async def _do(self, verb: str, what: str = "") -> None:
        """Do one step on the way to a phase."""
        match verb:
            case "ask":
                self.number = await self.play_.ask(self.job, self.about.ask)
            case "stop":
                pid = self._pid(what)
                os.kill(pid, signal.SIGSTOP)
                self._stopped[what] = pid
            case "go":
                os.kill(self._stopped.pop(what), signal.SIGCONT)
            case "see":
                look = getattr(self, f"_{what.replace('-', '_')}")
                await self.world.until(look, f"{what} of {self.job.name}")
            case _:
                raise ValueError(verb)

    async def _kill(self, victim: str) -> None:
        match victim:
            case "cancel":
                self.play_.jobs.pop(self.job.kind)
                await self.world.publish("cancel", {"job": self.job.id})
            case "everything":
                await self.world.kill_everything()
            case _:
                pid = self._pid(victim)
                assert is_there(pid), f"{victim} of {self.job.name} is gone already"
                os.kill(pid, signal.SIGKILL)
                self._stopped.pop(victim, None)

    def let_go(self) -> None:
        """Have whoever was stopped, and still is there, go on."""
        for pid in self._stopped.values():
            if is_there(pid):
                os.kill(pid, signal.SIGCONT)
        self._stopped = {}

    async def _came(self) -> Came:
        """Return what came of it, once everything that died is back and the job trains on."""
        over = await self.play_.over(self.job, self.number)
        result = str(over["result"])
        await self.world.back()
        if self.cell.victim == CANCEL:
            await self.play_.gone(self.job)
            return Came(result, FATE_ENDED)
        if all(came.fate == RESTARTED for came in allowed(self.cell)):
            await self.world.until(self._restarted, f"{self.job.name} begins again")
        await self.play_.trains(self.job)
        now = self.play_.stands(self.job).attempt
        if now == self.before.attempt:
            return Came(result, SAME)
        moved = any(fact["type"] == "job-moved" and fact["attempt"] == now for fact in self.facts())
        return Came(result, MOVED if moved else RESTARTED)

    def _restarted(self) -> bool:
        return any(fact["type"] == "job-bound" for fact in self.facts())

    def facts(self) -> list[Fact]:
        """Return the allocator's facts about the job since the cell began."""
        return self.world.alloc(self.job.id)[self._since :] if self.job.id else []

    def seen(self) -> Iterator[str]:
        """Yield what the allocator recorded, in short."""
        for fact in self.facts():
            more = fact.get("result") or fact.get("manner") or ""
            yield f"{fact['type']}({more})" if more else fact["type"]
            if self.about.warm and fact["type"] == "successor-bound":
                run = f"{self.job.id}.{fact['attempt']}."
                forked = self.world.forked(fact["members"][0]["node"], run)
                yield "forked" if forked else "executed"

    # --- who is who ----------------------------------------------------------------------------

    def _pid(self, name: str) -> int:
        """Return the process that a cell or a step means."""
        attempt, job = self.before.attempt, self.job
        source = self.before.nodes[0]
        match name:
            case "job" | "source" | "survivor":
                return job.begun(attempt)[-1]
            case "leaver":
                return job.begun(attempt, self.before.workers - 1)[-1]
            case "newcomer":
                return job.begun(attempt, self.before.workers)[-1]
            case "successor":
                return job.begun(self._successor())[-1]
            case "agent" | "source-agent":
                return self.world.service(source)
            case "successor-agent":
                return self.world.service(_other(source))
            case "warm-process":
                return self._warm(_other(source))
            case "runner":
                return self.world.runner(source)
            case _:
                assert name in SERVICES, name
                return self.world.service(name)

    def _successor(self) -> int:
        bound = self._fact("successor-bound")
        return int(bound["attempt"]) if bound else -1

    # --- what is seen --------------------------------------------------------------------------

    def _fact(self, kind: str) -> Fact | None:
        return next((fact for fact in reversed(self.facts()) if fact["type"] == kind), None)

    def _event(self, kind: str) -> Fact | None:
        events = self._events()[self._nodes :]
        return next((one for one in events if one["type"] == kind), None)

    def _events(self) -> list[Fact]:
        return self.world.streams[subjects.NODE].of.get(self.job.id, [])

    def _change_asked(self) -> bool:
        facts = self.world.streams[subjects.ADMISSION].facts
        return any(
            fact["type"] == "change-asked" and fact["number"] == self.number
            for fact in reversed(facts[-50:])
        )

    def _job_changing(self) -> Fact | None:
        fact = self._fact("job-changing")
        return fact if fact is not None and fact["nodes"] else None

    def _taken(self) -> bool:
        ordered = self._job_changing()
        if ordered is None:
            return False
        journal = self.world.journals[ordered["nodes"][0]].facts()
        return any(
            fact["type"] == "change-taken" and fact["command"]["order"] == ordered["order"]
            for fact in journal
        )

    def _member_changed(self) -> Fact | None:
        return self._event("member-changed")

    def _member_loaded(self) -> Fact | None:
        return self._event("member-loaded")

    def _job_changed(self) -> Fact | None:
        return self._fact("job-changed")

    def _gang_narrowed(self) -> Fact | None:
        return self._fact("gang-narrowed")

    def _successor_bound(self) -> Fact | None:
        return self._fact("successor-bound")

    def _successor_ready(self) -> Fact | None:
        return self._fact("successor-ready")

    def _job_moved(self) -> Fact | None:
        return self._fact("job-moved")

    def _successor_begun(self) -> bool:
        return bool(self.job.begun(self._successor()))

    def _newcomer_begun(self) -> bool:
        return self.job.begun(self.before.attempt, self.before.workers) != self._newcomers

    def _newcomer_connected(self) -> bool:
        ordered = self._job_changing()
        if ordered is None or not self._newcomer_begun():
            return False
        return is_connected(self._pid("newcomer"), ordered["change"]["master_port"])

    def _source_connected(self) -> bool:
        ready = self._fact("successor-ready")
        assert ready is not None
        return is_connected(self._pid("source"), ready["doors"][0]["port"])


def _other(node: str) -> str:
    return next(each for each in NODES if each != node)


async def play_all(
    world: World, folder: Path, chosen: list[Cell], seed: int, tell: Callable[[Row, str], None]
) -> dict[str, Any]:
    """Play cells in an order drawn from `seed`, telling each at once; return the report."""
    cells = random.Random(seed).sample(chosen, len(chosen))
    play = Play(world, folder, cells)
    rows: list[Row] = []
    began = time.monotonic()
    try:
        for kind in play.kinds:
            await play.submit(kind)  # They start side by side.
        for number, cell in enumerate(cells, 1):
            row = await play.play(cell)
            rows.append(row)
            spent = time.monotonic() - began
            left = spent / number * (len(cells) - number) / 60
            tell(row, f"{number} of {len(cells)}, about {left:.0f} min left")
        problems = await play.end()
    finally:
        play.close()
    return {
        "cells": rows,
        "problems": problems,
        "jobs": len(play.all),
        "seconds": round(time.monotonic() - began, 1),
    }
