"""Crash admission and the allocator at every moment in the life of arrays and of what waits.

    python -m tests.system.crash_arrays [--only SERVICE/POINT/NUMBER] [--every N] [--json]

In the simulator, so that each moment is hit exactly. One story: a job, an array that waits for it
and is held, released, and has tasks; arrays and jobs that wait for that by `ok` and by `fail`; an
array that fails and is retried, and what waits for that; one that is cancelled while it waits, and
a task that is; and a pipeline with `max_parallel` of two jobs and an array. It is told once without
a crash, which says how often each service comes to each point. Then once for each of these: there
the process dies, and starts again. `again` dies a second time while it recovers. Every time
everything must have ended as without a crash, and no invariant may have broken. Prints a row for
each service and point, and exits 1 if anything was not so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from skep.sim.driver import Blow, Habits, Process
from skep.sim.services import Role
from skep.sim.timeline import MILLISECOND, SECOND
from skep.sim.violation import ViolationError
from skep.sim.workload import Submission
from skep.sim.world import Settings, World
from skep.wire import codec, subjects
from skep.wire.facts import JobEnded

SEED = 7
VC = "nlp"
SERVICES = ("admission", "allocator")
POINTS = ("before-append", "during-append", "after-append", "effect")
AGAIN = "again"
COUNTED = 1 << 30
"""More than a service ever comes to one point."""
STORY_S_MAX = 120
"""Virtual seconds within which everything has ended."""
LOOK_EVERY = 100 * MILLISECOND
BEGINS_S, SOON_S = 2, 1

JOBS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("prepare", "ok", {}),
    ("sweep", "ok", {"array": "0-3%2", "after": {"ok": ["prepare"]}, "hold": True}),
    ("collect", "ok", {"after": {"ok": ["sweep"]}, "begin": BEGINS_S}),
    ("cleanup", "ok", {"after": {"fail": ["sweep"]}}),
    ("never", "ok", {"array": "0-5", "after": {"fail": ["sweep"]}}),
    ("fails", "fail", {"array": "2,5", "begin": SOON_S}),
    ("repairs", "ok", {"array": "0-2%1", "after": {"fail": ["fails"], "any": ["prepare"]}}),
    ("dropped", "ok", {"array": "0-9", "hold": True}),
    ("narrow", "ok", {"pipeline": {"name": "pair", "max_parallel": 2}}),
    ("wide", "ok", {"array": "0-3", "pipeline": {"name": "pair", "max_parallel": 2}}),
    ("late", "ok", {"pipeline": {"name": "pair", "max_parallel": 2}, "after": {"ok": ["narrow"]}}),
    ("last", "ok", {"after": {"any": ["never", "dropped", "repairs"]}}),
)
"""Names, what their processes do, and what else their specs say."""
ENDS = {
    "prepare": "succeeded",
    "sweep": "4 succeeded, 0 failed, 0 cancelled",
    "collect": "succeeded",
    "cleanup": "cancelled",
    "never": "0 succeeded, 0 failed, 6 cancelled",
    "fails": "0 succeeded, 2 failed, 0 cancelled",
    "repairs": "2 succeeded, 0 failed, 1 cancelled",
    "dropped": "0 succeeded, 0 failed, 10 cancelled",
    "narrow": "succeeded",
    "wide": "4 succeeded, 0 failed, 0 cancelled",
    "late": "succeeded",
    "last": "succeeded",
}


class Moment(NamedTuple):
    """A crash: of which service, where, and how often it was there before."""

    service: str
    point: str
    number: int

    def __str__(self) -> str:
        """Return how `--only` names it."""
        return f"{self.service}/{self.point}/{self.number}"


class Story:
    """The story, told in a world of its own."""

    def __init__(self, moment: Moment | None = None) -> None:
        """Lay out the world; `moment` is when a process dies (None: none does)."""
        self.world = World(SEED, Settings(faults=False, check_every=20))
        self.world.habits = Habits(batch_max=1, record_facts_max=1, check_every=20, keep_every=5)
        self.world.restart_ns_max = 300 * MILLISECOND
        self.moment = moment
        self.blow: Blow | None = None
        self.crashes = 0
        self.over = False
        self._said = [Submission(VC, b"", name) for name, _, _ in JOBS]
        self._told: dict[str, None] = {}

    def tell(self) -> None:
        """Let it happen, to its end.

        Raises:
            ViolationError: An invariant broke, or something did not end.
        """
        world = self.world
        world.people.begin = self._begin  # type: ignore[method-assign]
        world.open()
        world.until(lambda: "" if self.over else "the retry is yet to come", STORY_S_MAX)
        world.heal()
        world.until(world.pending, STORY_S_MAX)
        world.finish()

    def ends(self) -> dict[str, str]:
        """Return how each job and array ended, by name."""
        found = {}
        for submission, (name, _, _) in zip(self._said, JOBS, strict=True):
            end = self._ended(submission.job)
            found[name] = end or "not ended"
        return found

    def _ended(self, job: str) -> str:
        over = self.world.watch.allocator.ended.get(job)
        if isinstance(over, JobEnded):
            return str(over.end)
        array = self.world.watch.admission.arrays.arrays.get(job)
        if array is None or not array.over:
            return ""
        ways = ("succeeded", "failed", "cancelled")
        ends = list(array.tasks.values())
        return ", ".join(f"{ends.count(way)} {way}" for way in ways)

    # --- what people do ----------------------------------------------------------------------

    def _begin(self) -> None:
        self.world.people.set_vcs(generous=True)
        self.world.timeline.after(SECOND, self._next, 0)
        self.world.timeline.after(SECOND, self._arm)
        self.world.timeline.after(SECOND, self._look)

    def _arm(self) -> None:
        """Have the blow wait for the service where it is to die."""
        moment = self.moment
        if moment is None:
            return
        self.world.on_start = self._started
        process = self.world.roles[moment.service].process
        assert process is not None
        point = "after-append" if moment.point == AGAIN else moment.point
        process.blow = self.blow = Blow("crash", point, self._dies, skip=moment.number)

    def _dies(self, process: Process) -> None:
        self.crashes += 1
        process.kill("crash")

    def _started(self, role: Role) -> None:
        moment = self.moment
        assert moment is not None
        if moment.point == AGAIN and role.name == moment.service and self.crashes == 1:
            assert role.process is not None
            points = ("replay", "before-epoch", "during-epoch")
            point = points[moment.number % len(points)]
            role.process.blow = Blow("crash", point, self._dies)

    def _next(self, number: int) -> None:
        """Submit one spec after the other, each once the one before it is acknowledged."""
        if number and not self._said[number - 1].job:
            self.world.timeline.after(10 * MILLISECOND, self._next, number)
            return
        if number == len(JOBS):
            return
        name, kind, more = JOBS[number]
        tree = {"name": name, "vc": VC, "command": ["job", kind, "500", "opaque"], **more}
        tree["resources"] = {"gpus": 1}
        submission = self._said[number]
        submission.raw = codec.encode(tree)
        self.world.people._publish(submission)
        self.world.timeline.after(10 * MILLISECOND, self._next, number + 1)

    def _look(self) -> None:
        """Do what is to be done next, each once, whatever has crashed meanwhile."""
        jobs = dict(zip((name for name, _, _ in JOBS), self._said, strict=True))
        if all(submission.job for submission in self._said):
            self._once("cancel", jobs["dropped"].job)
            self._once("cancel", f"{jobs['repairs'].job}[1]")
            self._once("release", jobs["sweep"].job)
            fails = jobs["fails"].job
            if "retry" not in self._told and self._ended(fails):
                self._told["retry"] = None
                self.world.people._ask(VC, {"ask": "retry", "job": fails})
                self.world.timeline.after(SECOND, self._retried)
        self.over = "retried" in self._told
        self.world.timeline.after(LOOK_EVERY, self._look)

    def _retried(self) -> None:
        self._told["retried"] = None

    def _once(self, wish: str, job: str) -> None:
        if f"{wish} {job}" in self._told:
            return
        self._told[f"{wish} {job}"] = None
        people = self.world.people
        if wish == "cancel":
            headers = {subjects.REPLY_HEADER: f"skep.v1.reply.{VC}.cancel"}
            raw = codec.encode({"job": job})
            people._network.publish(people, subjects.cancel(VC), raw, headers, lambda _: None)
        else:
            people._ask(VC, {"ask": wish, "job": job})


def moments(every: int = 1) -> Iterator[Moment]:
    """Yield every moment of the story, or each so-many-th."""
    for service in SERVICES:
        for point in POINTS:
            story = Story(Moment(service, point, COUNTED))
            story.tell()
            assert story.blow is not None
            for number in range(0, COUNTED - story.blow.skip, every):
                yield Moment(service, point, number)
                if point == "after-append":
                    yield Moment(service, AGAIN, number)


def wrong(moment: Moment | None) -> str:
    """Return what was not as it was to be with a crash at a moment; empty: everything was."""
    story = Story(moment)
    try:
        story.tell()
    except ViolationError as violation:
        return str(violation)
    ends = story.ends()
    if ends != ENDS:
        other = {name: end for name, end in ends.items() if end != ENDS[name]}
        return f"ends are {other}"
    return "" if moment is None or story.crashes else "nothing crashed"


def main() -> int:
    """Crash at every moment; print a row for each service and point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one moment, such as admission/effect/12")
    parser.add_argument("--every", type=int, default=1, help="each so-many-th moment")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.only:
        service, point, number = given.only.split("/")
        chosen = iter([Moment(service, point, int(number))])
    else:
        chosen = moments(given.every)
    rows: dict[str, dict[str, int]] = {}
    problems: dict[str, str] = {}
    for moment in chosen:
        row = rows.setdefault(f"{moment.service}/{moment.point}", {"crashes": 0, "wrong": 0})
        row["crashes"] += 1
        if found := wrong(moment):
            row["wrong"] += 1
            problems[str(moment)] = found
            print(f"{moment}: {found}", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps({"rows": rows, "problems": problems}, indent=1))
    else:
        print("| service, point | crashes | wrong |\n|---|---:|---:|")
        for name, row in rows.items():
            print(f"| {name} | {row['crashes']} | {row['wrong']} |")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
