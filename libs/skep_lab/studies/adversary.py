"""Worlds that are hard on the introspective mode: jobs that come inconveniently, on few GPUs.

A world is drawn by a seed, or is another one with something changed. Its name tells how: `17.2.5`
is world 17, changed by 2 and then by 5, and always the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from skep.units import seconds
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation

GIB = 2**30
GPU_BYTES = 16 * GIB
SLICE_S = 60.0
STEP_S = 0.5
"""A mini-batch alone, of the fastest family; others take up to four times as long."""
FAMILIES_MAX = 5
PATTERNS_MAX = 3
JOBS_MAX = 24
CHANGES_MAX = 3


class Family(msgspec.Struct, frozen=True):
    """Jobs that are alike: how busy they keep a GPU, and what of its memory they take.

    `scales`: the exponent of their speed in workers; `apart`: their speed on too many nodes.
    """

    busy: float
    memory: int
    step_s: float
    scales: float
    apart: float


class Come(msgspec.Struct, frozen=True):
    """A job: seconds from the beginning, and how long it runs alone where it asked for."""

    at: float
    family: int
    gpus: int
    runs: float
    most: int = 0
    """Workers that it may grow to; 0: it does not."""
    priority: int = 0
    phases: tuple[tuple[float, float], ...] = ()
    """From when on it goes so many times as fast as before."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A world. `together`: by pair of families what each makes of its rate beside the other."""

    name: str
    nodes: int
    size: int
    lasts: float
    pause: float
    boundary: float
    families: tuple[Family, ...]
    together: tuple[tuple[float, ...], ...]
    jobs: tuple[Come, ...]


class Pairs:
    """The speeds of a world: its jobs' models are the numbers of their families."""

    def __init__(self, world: Drawn) -> None:
        """Know a world."""
        self._world = world

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return how fast a job goes, relative to alone and as it asked for."""
        family = self._of(job)
        speed = float((max(where.workers, 1) / max(job.workers, 1)) ** family.scales)
        fewest = -(-sum(where.spread) // self._world.size)
        if len(where.spread) > fewest:
            speed *= family.apart
        for other in where.partners:
            speed *= self._world.together[int(job.model)][int(other)]
        return speed

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return seconds of a mini-batch."""
        return self._of(job).step_s / self.speed(job, where)

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return what part of the time its GPUs are busy with it and with the jobs beside it."""
        return min(1.0, self._of(job).busy * (1 + len(where.partners)))

    def memory(self, job: TraceJob) -> int:
        """Return the bytes of a worker."""
        return self._of(job).memory

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing: all are known."""
        return {}

    def _of(self, job: TraceJob) -> Family:
        return self._world.families[int(job.model)]


def trace_of(world: Drawn) -> tuple[TraceJob, ...]:
    """Return a world's jobs, in the order in which they come."""
    return tuple(
        TraceJob(
            id=f"{world.name}-{number}",
            at=seconds(job.at),
            gpus=job.gpus,
            workers=job.gpus,
            run_time=seconds(job.runs),
            model=str(job.family),
            mini_batches=max(1, round(job.runs / world.families[job.family].step_s)),
            workers_min=job.gpus if job.most else 0,
            workers_max=job.most,
            priority=job.priority,
        )
        for number, job in enumerate(world.jobs)
    )


def named(name: str, *, long: bool = False) -> Drawn:
    """Return the world of a name.

    Args:
        name: The seed and those of its changes, such as `17.2.5`.
        long: Whether it lasts hours.

    Raises:
        ValueError: A part of the name is no whole number.
    """
    first, *changes = (int(part) for part in name.split("."))
    world = draw(first, long=long)
    for change in changes:
        world = mutated(world, change)
    return world


# --- drawing -------------------------------------------------------------------------------------


def draw(seed: int, *, long: bool = False) -> Drawn:
    """Return a world by its seed; a `long` one lasts hours."""
    rng = random.Random(f"adversary {seed}")
    count = rng.randint(2, FAMILIES_MAX)
    families = tuple(_family(rng) for _ in range(count))
    together = [[1.0] * count for _ in range(count)]
    for one in range(count):
        for other in range(one, count):
            together[one][other] = together[other][one] = _pair(rng)
    nodes, size = rng.choice([(1, 2), (1, 4), (2, 2), (2, 4), (3, 2), (4, 1)])
    world = Drawn(
        name=str(seed),
        nodes=nodes,
        size=size,
        lasts=14_400.0 if long else rng.choice([2400.0, 3600.0]),
        pause=rng.choice([0.5, 2.0, 10.0, 30.0]),
        boundary=rng.choice([0.0, 0.5, 5.0]),
        families=families,
        together=tuple(map(tuple, together)),
        jobs=(),
    )
    jobs = list(_steady(rng, world))
    for _ in range(rng.randint(1, PATTERNS_MAX)):
        jobs += rng.choice(PATTERNS)(rng, world)
    return _with(world, jobs)


def mutated(world: Drawn, seed: int) -> Drawn:
    """Return a world with a few things changed, and the name of that."""
    rng = random.Random(f"adversary {world.name}.{seed}")
    jobs, together = list(world.jobs), [list(row) for row in world.together]
    for _ in range(rng.randint(1, CHANGES_MAX)):
        kind, at = rng.randrange(6), rng.randrange(len(jobs))
        if kind == 0:
            jobs += rng.choice(PATTERNS)(rng, world)
        elif kind == 1 and len(jobs) > 2:
            del jobs[at]
        elif kind == 2:
            moved = max(0.0, jobs[at].at + rng.choice([-1, 1]) * rng.choice([0.5, SLICE_S, 300]))
            jobs[at] = msgspec.structs.replace(jobs[at], at=moved)
        elif kind == 3:
            longer = jobs[at].runs * rng.choice([0.3, 0.7, 1.5, 3])
            jobs[at] = msgspec.structs.replace(jobs[at], runs=longer)
        elif kind == 4:
            jobs[at] = msgspec.structs.replace(jobs[at], phases=_phases(rng, world))
        else:
            one, other = rng.randrange(len(together)), rng.randrange(len(together))
            together[one][other] = together[other][one] = _pair(rng)
    changed = msgspec.structs.replace(
        world, name=f"{world.name}.{seed}", together=tuple(map(tuple, together))
    )
    return _with(changed, jobs)


def _with(world: Drawn, jobs: list[Come]) -> Drawn:
    jobs = sorted(jobs, key=lambda job: (job.at, job.family, job.gpus, job.runs))
    most = JOBS_MAX * (3 if world.lasts > 3600 else 1)
    return msgspec.structs.replace(world, jobs=tuple(jobs[:most]))


def _family(rng: random.Random) -> Family:
    return Family(
        busy=rng.choice([0.1, 0.3, 0.5, 0.9]),
        memory=rng.choice([2, 4, 7, 12]) * GIB,
        step_s=STEP_S * rng.choice([0.2, 1, 4]),
        scales=rng.choice([0.0, 0.3, 0.7, 0.95]),
        apart=rng.choice([0.5, 0.8, 1.0]),
    )


def _pair(rng: random.Random) -> float:
    """Return what each of two makes beside the other: well more, hardly more, or less than half."""
    return rng.choice([0.9, 0.7, 0.55, 0.51, 0.49, 0.4, 0.2])


def _come(rng: random.Random, world: Drawn, at: float, gpus: int = 1) -> Come:
    gpus = min(gpus, world.nodes * world.size)
    grows = rng.random() < 0.3 and gpus < world.size
    return Come(
        at=max(at, 0.0),
        family=rng.randrange(len(world.families)),
        gpus=gpus,
        runs=rng.choice([120, 600, 1800, world.lasts]) * rng.uniform(0.5, 1.5),
        most=world.size if grows else 0,
        phases=_phases(rng, world) if rng.random() < 0.15 else (),
    )


def _phases(rng: random.Random, world: Drawn) -> tuple[tuple[float, float], ...]:
    """Return a rate that goes up and down."""
    every = rng.choice([20.0, 70.0, 400.0])
    steps = min(int(world.lasts / every), 40)
    return tuple((every * (step + 1), rng.choice([0.4, 0.8, 1.0, 1.6])) for step in range(steps))


def _steady(rng: random.Random, world: Drawn) -> list[Come]:
    """Jobs that stay, about as many as there are GPUs."""
    gpus = world.nodes * world.size
    stay = [_come(rng, world, rng.uniform(0, 60)) for _ in range(rng.randint(1, gpus + 2))]
    return [msgspec.structs.replace(job, runs=world.lasts * 1.5) for job in stay]


def _burst(rng: random.Random, world: Drawn) -> list[Come]:
    """Many at once, just after those that run have had time to grow."""
    at = rng.uniform(0, world.lasts * 0.7) + rng.choice([61, 75, 125])
    return [_come(rng, world, at + rng.random()) for _ in range(rng.randint(2, 8))]


def _alternating(rng: random.Random, world: Drawn) -> list[Come]:
    """One GPU and all of a server, in turn."""
    at, every = rng.uniform(0, world.lasts / 2), rng.choice([5, 59, 61, 200])
    return [
        _come(rng, world, at + every * number, world.size if number % 2 else 1)
        for number in range(rng.randint(4, 10))
    ]


def _boundaries(rng: random.Random, world: Drawn) -> list[Come]:
    """Gangs of more than a server, around the ends of slices."""
    first = rng.randrange(1, 20)
    return [
        _come(rng, world, SLICE_S * (first + number) + rng.choice([-0.5, 0, 0.5]), world.size + 1)
        for number in range(rng.randint(1, 4))
    ]


def _short(rng: random.Random, world: Drawn) -> list[Come]:
    """Short ones that end about when a trial would be judged."""
    at = rng.uniform(0, world.lasts / 2)
    return [
        msgspec.structs.replace(_come(rng, world, at + 45 * number), runs=rng.uniform(10, 90))
        for number in range(rng.randint(3, 10))
    ]


def _urgent(rng: random.Random, world: Drawn) -> list[Come]:
    """A few of a higher priority, again and again."""
    every = rng.choice([90, 150, 600])
    return [
        msgspec.structs.replace(
            _come(rng, world, every * (number + 1)), runs=rng.uniform(20, 60), priority=5
        )
        for number in range(rng.randint(2, 8))
    ]


Pattern = Callable[[random.Random, Drawn], list[Come]]
PATTERNS: tuple[Pattern, ...] = (_burst, _alternating, _boundaries, _short, _urgent)
