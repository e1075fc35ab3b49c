"""SIGKILL the allocator in the middle of what it does with cells, and see that none is lost.

    python -m tests.system.kill_cells [--times N] [--seed N] [--json]

Two nodes with four slots each; tenants `red` and `blue` own a node's worth of cells each. In every
round the allocator is killed while a preemption is under way (its victims take a second to stop),
while the cluster is divided anew under running jobs, while both happen, or while a gang over both
nodes is launched; each time at another moment, drawn from the seed. Afterwards the logs and what
the jobs noted themselves must agree: every job ended once, no GPU was held twice, the preemptor
got the cells it had reserved and its victims came back, a new division stopped nobody, a launched
gang ran once, and a machine that replays the log has every cell free again. Exits 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from skep.wire import codec, subjects
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep_services.ports import Delivery
from tests.support.bare_client import BareClient, bare_client
from tests.support.embedded import Embedded, open_bus, until
from tests.system import account, cells_account
from tests.system.account import Fact, Note

HOLDER = str(Path(__file__).parents[1] / "e2e" / "jobs" / "holder.py")
NODES, GPUS = 2, 4
OWNED = {"red": GPUS, "blue": GPUS}
OPTIONS = (
    "--nodes",
    str(NODES),
    "--gpus",
    str(GPUS),
    "--port",
    "0",
    *(f"--vc={vc}={gpus}" for vc, gpus in OWNED.items()),
)
GANG = 6
"""Workers of a gang that fits on no node alone."""
DEADLINE_S = 60.0
LIVED_S = 10.0
"""What a service has to have lived for the supervisor to start it again at once."""
STOPPING_S = 1.1
"""A bit more than the victims take to stop."""
LAUNCH_S = 0.04
"""A bit more than a launch takes."""
SETTING_S = 0.015
"""A bit more than it takes to have another division recorded."""

Row = dict[str, Any]
T = TypeVar("T")


class Log:
    """The allocator's log as it grows: plain facts, and the same as messages by record."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self.facts: list[Fact] = []
        self.records: list[tuple[Any, ...]] = []
        self.index: dict[tuple[str, str], list[Fact]] = {}
        self._grown = asyncio.Event()

    async def take(self, delivery: Delivery) -> None:
        """Take over one record."""
        record = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        assert isinstance(record, codec.Facts), record
        self.records.append(record.facts)
        for fact in json.loads(delivery.payload)["facts"]:
            self.facts.append(fact)
            self.index.setdefault((fact["type"], fact.get("job", "")), []).append(fact)
        self._grown.set()

    def of(self, kind: str, job: str = "") -> list[Fact]:
        """Return a job's facts of a kind so far."""
        return self.index.get((kind, job), [])

    async def until(self, look: Callable[[], T], what: str) -> T:
        """Return the first true value of `look`; raises TimeoutError that says what was not."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (found := look()):
                    self._grown.clear()
                    await self._grown.wait()
                return found
        except TimeoutError:
            text = f"not within {DEADLINE_S:.0f} s: {what}; the log ends with {self.facts[-5:]}"
            raise TimeoutError(text) from None


class Round:
    """The jobs of one round, by their names."""

    def __init__(self, run: KillCells, row: Row) -> None:
        """Take over what is told of the round so far."""
        self.run, self.row = run, row
        self.mark = f"{row['number']}-"
        self.jobs: dict[str, str] = {}
        self.preemptor = ""
        self.since = self.begun = len(run.log.facts)
        """Where the log was when the round began, and what is interrupted in it."""

    async def submit(self, vc: str, names: Sequence[str], **more: Any) -> list[str]:
        """Submit jobs that hold a GPU each until their name's file exists; return their names."""
        made = [self.mark + name for name in names]
        for name in made:
            spec = {
                "name": name,
                "vc": vc,
                "command": [sys.executable, "-S", "-E", HOLDER],
                "env": {"NOTES": str(self.run.notes), "UNTIL": str(self.over(name))},
                **more,
            }
            answer = await self.run.tenants[vc].submit(spec, name)
            assert answer.verdict["accepted"], answer
            self.jobs[name] = answer.job
        return made

    def over(self, name: str) -> Path:
        """Return the file that ends a job."""
        return self.run.folder / f"{name}.over"

    async def ran(self, names: Sequence[str]) -> None:
        """Return once these jobs have run."""
        for name in names:
            await self.run.log.until(
                functools.partial(self.run.log.of, "job-ran", self.jobs[name]), f"{name} runs"
            )

    async def noted(self, names: Sequence[str]) -> None:
        """Return once these jobs have noted their start: SIGTERM would end them before that."""

        def look() -> bool:
            started = {note.name for note in self.run.read_notes() if note.what == "start"}
            return started.issuperset(names)

        await asyncio.to_thread(until, look, f"a start noted by each of {', '.join(names)}")

    async def end(self, names: Sequence[str]) -> None:
        """Let jobs end, and return once they have."""
        for name in names:
            self.over(name).touch()
        for name in names:
            await self.run.log.until(
                functools.partial(self.run.log.of, "job-ended", self.jobs[name]), f"{name} ends"
            )


class KillCells:
    """A run on a fresh cluster; `folder` takes what the jobs note."""

    def __init__(
        self, cluster: Embedded, folder: Path, *, times: int, seed: int, lived_s: float
    ) -> None:
        """Prepare `times` rounds of each kind, at moments drawn from `seed`."""
        self.cluster, self.folder, self.times, self.lived_s = cluster, folder, times, lived_s
        self.random = random.Random(seed)
        self.notes = folder / "notes"
        self.log = Log()
        self.tenants: dict[str, BareClient] = {}
        self.rounds: list[Round] = []
        self.up_since = 0.0
        self.stuck: list[str] = []
        """What did not happen in time, and ended the run."""

    def run(self) -> dict[str, Any]:
        """Do it all; return the report. `problems` in it is empty if everything was as promised."""
        self.notes.mkdir()
        self.cluster.up(*OPTIONS)
        return asyncio.run(self._run())

    async def _run(self) -> dict[str, Any]:
        about = self.cluster.about
        bus = await open_bus(about, "operator")
        async with (
            bare_client(about, "vc-red") as red,
            bare_client(about, "vc-blue") as blue,
            bare_client(about, "operator") as self.operator,
        ):
            self.tenants = {"red": red, "blue": blue}
            following = await bus.follow(subjects.ALLOC, 0, self.log.take)
            await self.divided(OWNED, 1)
            self.up_since = time.monotonic()
            try:
                for kind in KINDS:
                    for number in range(self.times):
                        await self.round(kind, number)
                await self.fill()
            except TimeoutError as error:
                self.stuck = [str(error)]
            await following.close()
            await bus.close()
        admission = [
            fact
            for one in await self.cluster.records(subjects.ADMISSION)
            for fact in json.loads(one.payload)["facts"]
        ]
        notes = self.read_notes()
        problems = [*self.stuck, *self.problems(admission, notes)]
        return {
            "rounds": [one.row for one in self.rounds if one.row["kind"] in KINDS],
            "jobs": sum(len(one.jobs) for one in self.rounds),
            "facts": len(self.log.facts),
            "notes": len(notes),
            "problems": problems,
        }

    async def round(self, kind: str, number: int) -> None:
        """Do one round and keep what it showed."""
        row: Row = {
            "number": len(self.rounds),
            "kind": kind,
            "variant": "",
            "after_ms": None,
            "back_ms": None,
            "recorded": {},
        }
        one = Round(self, row)
        self.rounds.append(one)
        await KINDS[kind](self, one, number)
        say(
            f"{row['number']}: {kind}, {row['variant']}: back after {row['back_ms']} ms, "
            f"by then {row['recorded']}"
        )

    # --- kills ---------------------------------------------------------------------------------

    async def lived(self) -> None:
        """Return once the allocator has lived as long as it has to before it is killed."""
        await asyncio.sleep(max(0.0, self.up_since + self.lived_s - time.monotonic()))

    @contextlib.asynccontextmanager
    async def killed(self, one: Round, after_s: float) -> AsyncIterator[None]:
        """Kill the allocator after a while; do what is inside; return when it is back."""
        epochs, entry = len(self.log.of("epoch-began")), self.cluster.entry("allocator")
        # Not even a turn of the loop where none is asked for.
        if after_s:
            await asyncio.sleep(after_s)
        begun = time.monotonic()
        self.cluster.kill("allocator")
        yield
        await self.log.until(lambda: len(self.log.of("epoch-began")) > epochs, "a new epoch")
        self.up_since = time.monotonic()
        await asyncio.to_thread(self.cluster.wait_back, "allocator", entry["pid"])
        here = [fact["type"] for fact in self.log.facts[one.begun :]]
        took = {
            "after_ms": round(after_s * 1000, 1),
            "back_ms": round((self.up_since - begun) * 1000),
        }
        if one.row["back_ms"] is None:
            recorded = Counter(here[: here.index("epoch-began")])
            one.row.update(took, recorded=dict(recorded))
        else:
            one.row["again"] = took

    def moment(self, number: int, most_s: float) -> float:
        """Return when to kill: at once in the first round of a kind."""
        return self.random.uniform(0.0, most_s) if number else 0.0

    # --- preemption ----------------------------------------------------------------------------

    async def preempt(self, one: Round) -> list[str]:
        """Fill the cluster, have a gang reserve cells in it; return the others' names.

        Half of the time the victims are opportunistic jobs of the other tenant, and two more of
        them wait with a higher priority for whatever comes free; else they are jobs of the same
        tenant with a lower priority.
        """
        spare = {"service_class": "opportunistic"}
        if one.row["variant"].startswith("opportunistic"):
            fill = await one.submit("blue", [f"flood-{i}" for i in range(NODES * GPUS)], **spare)
        else:
            fill = await one.submit("red", [f"low-{i}" for i in range(GPUS)])
            fill += await one.submit("blue", [f"flood-{i}" for i in range(GPUS)], **spare)
        await one.ran(fill)
        await one.noted(fill)
        fill += await one.submit("blue", ["third-0", "third-1"], priority=10, **spare)
        await self.lived()
        one.begun = len(self.log.facts)
        (one.preemptor,) = await one.submit(
            "red",
            ["gang"],
            priority=20,
            resources={"workers": GPUS, "topology": {"within": "node", "hard": True}},
        )
        job = one.jobs[one.preemptor]
        await self.log.until(lambda: self.log.of("cells-reserved", job), "a reservation")
        return fill

    async def preemption(self, one: Round, number: int) -> None:
        """Kill it while victims stop; half of the time once more when it has just come back."""
        one.row["variant"] = ("opportunistic victims", "victims of lower priority")[number % 2]
        fill = await self.preempt(one)
        async with self.killed(one, self.moment(number // 2, STOPPING_S)):
            pass
        if number % 4 >= 2:
            async with self.killed(one, self.moment(number, STOPPING_S / 2)):
                pass
        await self.finish(one, fill)

    async def finish(self, one: Round, fill: list[str]) -> None:
        """Let the preemptor run and end, and then, once they run again, its victims."""
        await one.ran([one.preemptor])
        await one.end([one.preemptor])
        # What waits for a slot gets one as the others end.
        await one.end(fill)

    # --- another division ----------------------------------------------------------------------

    async def set_vcs(self, gpus: dict[str, int]) -> None:
        """Publish a division of the cluster."""
        vcs = {vc: VirtualCluster(gpus=count) for vc, count in gpus.items()}
        await self.operator.publish(subjects.admin("vcs"), codec.encode(SetVcs(vcs=vcs)))

    def apply(self, gpus: dict[str, int]) -> None:
        """Have `skep vc apply` put a division in force."""
        path = self.folder / "division.json"
        path.write_text(json.dumps({"vcs": {vc: {"gpus": n} for vc, n in gpus.items()}}))
        self.cluster.skep("vc", "apply", str(path))

    async def divided(self, gpus: dict[str, int], times: int) -> None:
        """Return once the log has one more division than `times`, and that is this one."""
        await self.log.until(lambda: len(self.log.of("cells-set")) > times, f"cells for {gpus}")
        asked = self.log.of("cells-set")[-1]["asked"]["vcs"]
        assert {vc: owned.get("gpus", 0) for vc, owned in asked.items()} == gpus, asked

    async def divide(self, one: Round, gpus: dict[str, int], variant: str, after_s: float) -> None:
        """Put a division in force and kill the allocator in the midst of it."""
        one.begun, times = len(self.log.facts), len(self.log.of("cells-set"))
        if variant == "at the fact":
            applying = asyncio.create_task(asyncio.to_thread(self.apply, gpus))
            await self.divided(gpus, times)
        else:
            applying = asyncio.create_task(self.set_vcs(gpus))
        async with self.killed(one, after_s):
            pass
        await applying
        await self.divided(gpus, times)

    async def reconfiguration(self, one: Round, number: int) -> None:
        """Kill it while red's cells shrink under its jobs, and let them grow again."""
        one.row["variant"] = variant = ("as it is published", "at the fact")[number % 2]
        jobs = await one.submit("red", [f"red-{i}" for i in range(GPUS)])
        jobs += await one.submit("blue", [f"blue-{i}" for i in range(GPUS)])
        await one.ran(jobs)
        left = self.random.randint(0, GPUS - 1)
        smaller = {"red": left, "blue": GPUS, "green": GPUS - left}
        await self.lived()
        await self.divide(one, smaller, variant, self.moment(number // 2, SETTING_S))
        fates = self.log.of("cells-set")[-1].get("fates", [])
        one.row["demoted"] = len(fates)
        one.row["expected"] = GPUS - left
        times = len(self.log.of("cells-set"))
        await self.set_vcs(OWNED)
        await self.divided(OWNED, times)
        for fate in fates:
            await self.log.until(
                functools.partial(self.log.of, "job-promoted", fate["job"]),
                f"{fate['job']} has its tenant's cells again",
            )
        await one.end(jobs)

    async def both(self, one: Round, number: int) -> None:
        """Kill it while the cluster is divided anew in the middle of a preemption."""
        one.row["variant"] = ("opportunistic victims", "victims of lower priority")[number % 2]
        fill = await self.preempt(one)
        await asyncio.sleep(self.random.uniform(0.0, STOPPING_S / 2))
        turned = {"blue": GPUS, "red": GPUS, "green": 0}
        await self.divide(one, turned, "as it is published", self.moment(number // 2, SETTING_S))
        await self.finish(one, fill)
        times = len(self.log.of("cells-set"))
        await self.set_vcs(OWNED)
        await self.divided(OWNED, times)

    # --- a gang --------------------------------------------------------------------------------

    async def launch(self, one: Round, number: int) -> None:
        """Kill it while a gang over both nodes starts.

        Half of the time one node's agent is stopped, so that the other part alone has started.
        """
        frozen = number % 2 == 0
        one.row["variant"] = "one part held back" if frozen else "both parts starting"
        whole = {"red": NODES * GPUS, "blue": 0}
        guaranteed = number % 4 < 2
        times = len(self.log.of("cells-set"))
        if guaranteed:
            await self.set_vcs(whole)
            await self.divided(whole, times)
        await self.lived()
        one.begun = len(self.log.facts)
        agent = self.cluster.entry(f"node-{1 + self.random.randrange(NODES)}")["pid"]
        try:
            if frozen:
                os.kill(agent, signal.SIGSTOP)
            jobs = await one.submit(
                "red",
                ["gang"],
                resources={"workers": GANG},
                service_class="guaranteed" if guaranteed else "opportunistic",
            )
            job = one.jobs[jobs[0]]
            kind = "member-ran" if frozen else "job-bound"
            await self.log.until(lambda: self.log.of(kind, job), f"{kind} of the gang")
            async with self.killed(one, self.moment(number // 2, LAUNCH_S)):
                if frozen and self.random.random() < 0.5:
                    await asyncio.sleep(self.random.uniform(0.0, 0.5))
                    os.kill(agent, signal.SIGCONT)
        finally:
            os.kill(agent, signal.SIGCONT)
        await one.ran(jobs)
        await one.end(jobs)
        if guaranteed:
            times = len(self.log.of("cells-set"))
            await self.set_vcs(OWNED)
            await self.divided(OWNED, times)

    async def fill(self) -> None:
        """Have each tenant's gang take all its cells at once: the allocator has lost none."""
        one = Round(self, {"number": len(self.rounds), "kind": "fill"})
        self.rounds.append(one)
        resources = {"workers": GPUS, "topology": {"within": "node", "hard": True}}
        for vc in OWNED:
            await one.submit(vc, [f"{vc}-gang"], resources=resources)
        await one.ran(list(one.jobs))
        await one.end(list(one.jobs))

    # --- the account ---------------------------------------------------------------------------

    def read_notes(self) -> list[Note]:
        """Return everything the jobs noted."""
        return [
            note
            for path in sorted(self.notes.iterdir())
            for note in account.read_notes(path.name, path.read_text())
        ]

    def problems(self, admission: list[Fact], notes: list[Note]) -> Iterator[str]:
        """Yield everything that was not as promised; note in each round's row what concerns it."""
        names = {name: job for one in self.rounds for name, job in one.jobs.items()}
        yield from account.problems(list(names), admission, self.log.facts)
        ranks = dict.fromkeys(names, 1)
        for one in self.rounds:
            for name in one.jobs:
                if name.endswith("gang"):
                    ranks[name] = GANG if one.row["kind"] == "launch" else GPUS
        yield from account.noted_problems(notes, ranks)
        yield from cells_account.unfinished(notes)
        yield from cells_account.leaks(self.log.records)
        for one in self.rounds:
            one.row["problems"] = list(self.of_round(one, notes))
            yield from one.row["problems"]

    def of_round(self, one: Round, notes: list[Note]) -> Iterator[str]:
        """Yield what went wrong in a round."""
        facts, kind = self.log.facts[one.since :], one.row["kind"]
        mine = [note for note in notes if note.name in one.jobs]
        if kind == "fill":
            yield from (
                f"at the end {fact['job']} waits: {fact['why']} {fact['needs']}"
                for fact in facts
                if fact["type"] == "job-waits"
            )
        if kind in ("preemption", "both"):
            yield from cells_account.preemption_problems(
                facts, mine, one.jobs, one.preemptor, plans_max=2 if kind == "both" else 1
            )
        else:
            yield from cells_account.untouched_problems(facts, mine, one.jobs)
        if one.row.get("demoted") != one.row.get("expected"):
            yield f"{one.row['demoted']} jobs were demoted, not {one.row['expected']}"


KINDS = {
    "preemption": KillCells.preemption,
    "reconfiguration": KillCells.reconfiguration,
    "launch": KillCells.launch,
    "both": KillCells.both,
}


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"kill-cells: {text}", file=sys.stderr, flush=True)


def kill_cells(
    times: int, seed: int, folder: Path | None = None, lived_s: float = LIVED_S
) -> dict[str, Any]:
    """Run it on a fresh cluster in a folder of its own; return the report.

    An allocator that is killed before it has lived for 10 s is back some tenths of a second later.
    """
    with tempfile.TemporaryDirectory(prefix="skep-kill-cells-", dir=folder) as name:
        cluster = Embedded(Path(name) / "home")
        try:
            report = KillCells(cluster, Path(name), times=times, seed=seed, lived_s=lived_s).run()
        finally:
            cluster.down()
    return {"seed": seed, "times": times, **report}


def table(report: dict[str, Any]) -> str:
    """Return the report as people read it."""
    lines = [f"{'killed during':16}  {'':31} {'after':>10} {'back':>8}   recorded by then"]
    for row in report["rounds"]:
        recorded = ", ".join(f"{count} {kind}" for kind, count in row["recorded"].items()) or "-"
        if "again" in row:
            recorded += f"; again after {row['again']['after_ms']} ms"
        lines.append(
            f"{row['kind']:16}  {row['variant']:31} {row['after_ms'] or 0:>7} ms "
            f"{row['back_ms'] or '-':>5} ms   {recorded}"
        )
    kills = sum(1 + ("again" in row) for row in report["rounds"])
    lines.append("")
    lines.append(
        f"seed {report['seed']}: {kills} kills, {report['jobs']} jobs, "
        f"{report['facts']} facts, {report['notes']} notes, "
        f"{len(report['problems'])} problems"
    )
    lines += [f"PROBLEM {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def main() -> int:
    """Run it in a temporary folder."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=4, help="rounds of each kind (default: 4)")
    parser.add_argument("--seed", type=int, help="of the moments (default: a new one, printed)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    say(f"seed {seed}")
    report = kill_cells(arguments.times, seed)
    print(json.dumps(report) if arguments.json else table(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
