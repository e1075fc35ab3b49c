"""Running one seed to its end, and saying what came of it."""

from __future__ import annotations

import traceback

import msgspec

from skep.sim.faults import CHAOS_S_MAX, HEAL_S_MAX, Chaos
from skep.sim.violation import ViolationError
from skep.sim.world import Settings, World


class Result(msgspec.Struct):
    """What came of a history. `violation` is empty if every invariant held."""

    seed: int
    violation: str = ""
    invariant: str = ""
    events: int = 0
    steps: int = 0
    faults: int = 0
    crashes: int = 0
    jobs: int = 0
    attempts: int = 0
    breaches: int = 0
    virtual_s: float = 0.0
    coverage: dict[str, int] = {}
    trials: dict[str, int] = {}
    """By kind and verdict."""
    story: list[str] = []
    digest: str = ""


def run_seed(seed: int, settings: Settings) -> Result:
    """Return what came of the history of a seed. Nothing that a machine does is raised."""
    world = World(seed, settings)
    result = Result(seed=seed)
    try:
        live(world)
    except ViolationError as violation:
        result.invariant, result.violation = violation.invariant, str(violation)
    except Exception:
        # An assertion of a machine, or anything else that would have ended a process.
        result.invariant, result.violation = "I0", traceback.format_exc()
    story = world.story
    result.events, result.steps = world.decided, world.steps
    result.faults, result.crashes = story.faults, story.crashes
    result.jobs = len(world.watch.allocator.ended) + len(world.watch.allocator.jobs)
    result.attempts = world.watch.allocator.attempts
    result.breaches = sum(log.breaches for log in world.watch.logs.values())
    result.virtual_s = world.timeline.elapsed_s
    result.coverage = {f"{fault} {step}": count for (fault, step), count in story.coverage.items()}
    result.trials = {
        f"{kind} {verdict}": count
        for (kind, verdict), count in world.watch.allocator.tried.verdicts.items()
    }
    result.story, result.digest = story.lines, story.digest()
    return result


def live(world: World) -> None:
    """Open a world, let its faults happen, heal it, and let everything end.

    Raises:
        ViolationError: An invariant broke.
    """
    world.open()
    if world.settings.faults:
        chaos = Chaos(world)
        chaos.begin()
        world.until(chaos.missing, CHAOS_S_MAX)
        chaos.stop()
    else:
        world.until(lambda: world.people.left, CHAOS_S_MAX)
    world.heal()
    world.until(world.pending, HEAL_S_MAX)
    world.finish()
