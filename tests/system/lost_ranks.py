"""Gangs of two nodes that lose a rank or a node, and go on from copies in memory.

A node's memory is a folder of its own; that of a lost node is removed. Ranks are forked from one
warm process, as agents have it, so that many losses take little time.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skep_job.state.checkpoint_folder import Checkpoints, entries_of
from tests.support.elastic_gang import ElasticGang, Member, Store
from tests.support.warm_ranks import Warm
from tests.system.reshard import (
    BOUND,
    END_S,
    LARGE,
    SCRIPT,
    difference,
    ends,
    gang,
    losses,
    said_losses,
    say,
)

RANKS, PER_NODE = 4, 2
HOMES = [rank // PER_NODE for rank in range(RANKS)]
"""The node of each rank."""
SMALL = {"layers": 1, "sizes": [1, RANKS], "copies": 0.001, "agree_ns": -1}
"""Every boundary is copied, unless the one before is still on its way."""
MEMORY = Path("/dev/shm")
STOPPED_S = 15.0
"""Until the rest of a gang is killed, as the allocator has it stopped when one rank has ended."""


class Loss(NamedTuple):
    """What is lost."""

    at: int
    victims: tuple[int, ...]
    node: int  # whose memory is lost; -1: none
    after_s: float  # how long after mini-batch `at` has begun
    disk_every: float | None


def drawn(seed: int) -> Loss:
    """Return what a seed stands for."""
    chance = random.Random(seed)
    at, rank = chance.randrange(1, 15), chance.randrange(RANKS)
    node = rank // PER_NODE if chance.random() < 0.5 else -1
    victims = tuple(r for r in range(RANKS) if r == rank or r // PER_NODE == node)
    every = 0.05 if chance.random() < 0.3 else None
    return Loss(at, victims, node, chance.random() * 0.1, every)


def whole_in(folders: list[Path]) -> tuple[int, int]:
    """Return attempt and step of the newest state of which folders have every rank's file."""
    found: dict[tuple[int, int, int], set[int]] = {}
    for each in (entry for folder in folders for entry in entries_of(folder)):
        found.setdefault((each.attempt, each.step, each.world), set()).add(each.rank)
    whole = [key[:2] for key, ranks in found.items() if len(ranks) == key[2]]
    return max(whole, default=(0, 0))


def start(of: ElasticGang, nodes: list[int], **options: Any) -> list[Member]:
    """Start all ranks of an attempt, each on a node."""
    of.node_of = lambda rank: nodes[rank]
    return [of.start(rank, RANKS, **options) for rank in range(RANKS)]


def lose(of: ElasticGang, members: list[Member], loss: Loss, memory: Path) -> float:
    """Lose ranks, and a node's memory; return when."""
    first = members[loss.victims[0]]
    first.wait_holding(loss.at)
    if loss.after_s:
        first.go()
        threading.Event().wait(loss.after_s)
    for victim in loss.victims:
        members[victim].process.kill()
    for victim in loss.victims:
        members[victim].process.wait(END_S)
    since = time.monotonic()
    if loss.node >= 0:
        shutil.rmtree(memory / str(loss.node), ignore_errors=True)
    return since


def one(
    folder: Path, memory: Path, loss: Loss, attempt: int, warm: Warm, store: Store
) -> tuple[dict[str, Any], dict[int, float]]:
    """Play one loss; return what came of it, and the losses after it."""
    with gang(folder, store=store, every=loss.disk_every, **SMALL) as of:
        of.memory, of.warm, of.attempt = memory, warm, attempt
        members = start(of, HOMES, hold=[loss.at])
        for rank, member in enumerate(members):
            if rank != loss.victims[0]:
                member.wait_holding(loss.at)
                member.go()
        lose(of, members, loss, memory)
        found, after = gone_on(of, members, loss.victims, loss.node)
        return {"loss": loss, **found}, after


def gone_on(
    of: ElasticGang, members: list[Member], victims: Sequence[int], node: int
) -> tuple[dict[str, Any], dict[int, float]]:
    """Go on after a loss; return what came of it, and the losses after it.

    Args:
        of: The gang.
        members: Its ranks, of which some are dead.
        victims: Which.
        node: Whose memory is lost; -1: none.
    """
    assert of.memory is not None
    for member in members:
        try:
            member.process.wait(STOPPED_S)
        except subprocess.TimeoutExpired:  # gloo may wait for a rank that is gone.
            member.process.kill()
            member.process.wait(END_S)
    statuses = [member.end() for member in members]
    alive = [m for n, m in enumerate(members) if n not in victims]
    if not all(statuses):  # The loss came after the end of the training.
        return {"ended_before": True, "ok": True}, {}
    newest = whole_in(list(of.memory.iterdir()))
    stored = whole_in([of.checkpoints])
    begun = sorted({step for member in alive for step in member.said("copied")})
    done = max((step for m in alive for step, *_ in said_losses(m)), default=-1) + 1
    of.attempt += 1
    later = start(of, homes_without(node), every=None, hold=[], die="")
    ends(later)
    after = losses(later)
    first = min(after)
    found = {
        "statuses": statuses,
        "whole_in_memory": newest[1],
        "whole_on_disk": stored[1],
        "goes_on_after": first,
        "boundaries_lost": sum(step > first for step in begun),
        "mini_batches_lost": done - first,
    }
    found["ok"] = first == max(newest, stored)[1] and found["boundaries_lost"] <= 1
    return found, after


def homes_without(node: int) -> list[int]:
    """Return the node of each rank after the loss of one, for which there is another one."""
    return [RANKS if home == node else home for home in HOMES]


DIES = (
    "prune:3",
    "after-prune:3",
    "keep:3",
    "after-keep:3",
    "put:3",
    "after-put:3",
    "take-in:3",
    "after-take-in:3",
)


STARTS = ("fetch", "after-fetch", "read", "after-read")


def phases(folder: Path) -> dict[str, Any]:
    """A rank dies in each phase of a copy in memory, or of a start from one."""
    folder.mkdir()
    found: dict[str, Any] = {}
    store = Store()
    try:
        with warmed(folder, **SMALL) as (warm, whole):
            for number, phase in enumerate((*DIES, *STARTS)):
                with (
                    tempfile.TemporaryDirectory(prefix="skep-lost-", dir=MEMORY) as memory,
                    gang(folder / phase, store=store, **SMALL) as of,
                ):
                    of.memory, of.warm, of.attempt = Path(memory), warm, 3 + 3 * number
                    outcome, after = dying(of, phase)
                    outcome["ok"] &= bool(after) and difference(after, whole) <= BOUND
                found[f"memory/{phase}"] = outcome
                say(json.dumps({phase: outcome}))
    finally:
        store.process.kill()
        store.close()
    return found


def dying(of: ElasticGang, phase: str) -> tuple[dict[str, Any], dict[int, float]]:
    """Have rank 2 die in a phase; return what came of it, and the losses after it."""
    assert of.memory is not None
    if phase in DIES:
        of.node_of = lambda rank: HOMES[rank]
        members = [of.start(rank, RANKS, die=phase if rank == 2 else "") for rank in range(RANKS)]
        return gone_on(of, members, [2], -1)
    members = start(of, HOMES, hold=[6])
    for member in members:
        member.wait_holding(6)
    lose(of, members, Loss(6, (2, 3), 1, 0.0, None), of.memory)
    for member in members:
        member.process.kill()  # The others hold.
        member.process.wait(END_S)
    of.attempt += 1
    before = whole_in(list(of.memory.iterdir()))
    homes = homes_without(1)
    of.node_of = lambda rank: homes[rank]
    second = [of.start(rank, RANKS, die=phase if rank == 2 else "", hold=[]) for rank in range(4)]
    found, after = gone_on(of, second, [2], -1)
    found["ok"] &= found.get("goes_on_after") == before[1] > 0
    return found, after


@contextlib.contextmanager
def warmed(folder: Path, **options: Any) -> Iterator[tuple[Warm, dict[int, float]]]:
    """Yield a warm process for the script, and the losses of an undisturbed run."""
    record = folder / "imports"
    with gang(folder / "alone", **options) as of:
        of.env = {"SKEP_IMPORTS": str(record)}
        members = [of.start(rank, RANKS) for rank in range(RANKS)]
        ends(members)
        whole = losses(members)
    env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with Warm(SCRIPT, env, record) as warm:
        yield warm, whole


def lost(folder: Path, seeds: int) -> dict[str, Any]:
    """Lose a rank or a node at any moment, once for each seed."""
    found: list[dict[str, Any]] = []
    longest_s = 0.0
    store = Store()
    try:
        with warmed(folder, **SMALL) as (warm, whole):
            for seed in range(seeds):
                since = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="skep-lost-", dir=MEMORY) as memory:
                    place = folder / str(seed)
                    try:
                        outcome, after = one(
                            place, Path(memory), drawn(seed), 3 + 2 * seed, warm, store
                        )
                    except (subprocess.TimeoutExpired, TimeoutError) as error:
                        outcome, after = {"loss": drawn(seed), "stuck": str(error), "ok": False}, {}
                    outcome["largest_relative_difference"] = (
                        difference(after, whole) if after else 0
                    )
                outcome["ok"] &= outcome["largest_relative_difference"] <= BOUND
                longest_s = max(longest_s, time.monotonic() - since)
                found.append({"seed": seed, **outcome})
                say(json.dumps(found[-1]))
                shutil.rmtree(place, ignore_errors=True)
    finally:
        store.process.kill()
        store.close()
    return {
        "seeds": seeds,
        "well": sum(each["ok"] for each in found),
        "not_well": [each for each in found if not each["ok"]],
        "nodes_lost": sum(each["loss"].node >= 0 for each in found),
        "from_memory": sum(
            each.get("whole_in_memory", 0) >= each.get("whole_on_disk", 0) > -1 for each in found
        ),
        "most_boundaries_lost": max(each.get("boundaries_lost", 0) for each in found),
        "most_mini_batches_lost": max(each.get("mini_batches_lost", 0) for each in found),
        "stuck": sum("stuck" in each for each in found),
        "longest_s": round(longest_s, 1),
    }


def recover(folder: Path) -> dict[str, Any]:
    """Time what follows a loss, in phases, from its detection to the next mini-batch."""
    found: dict[str, Any] = {}
    options = LARGE | {"sizes": [1, RANKS], "copies": 0.001, "agree_ns": -1, "stamps": True}
    small = {**options, "width": 32, "heads": 4, "layers": 1}
    with warmed(folder, **small) as (warm, _):
        for name, loss in (
            ("rank", Loss(5, (3,), -1, 0.0, None)),
            ("node", Loss(5, (2, 3), 1, 0.0, None)),
        ):
            with (
                tempfile.TemporaryDirectory(prefix="skep-lost-", dir=MEMORY) as memory,
                gang(folder / name, **options) as of,
            ):
                found[name] = timed(of, loss, Path(memory), warm)
            say(json.dumps({name: found[name]}))
    return found


def timed(of: ElasticGang, loss: Loss, memory: Path, warm: Warm) -> dict[str, Any]:
    """Lose something, begin the next attempt at once, and return the phases (ms)."""
    of.memory, of.warm = memory, warm
    next_store = Store()  # Agents have one that is ready, as they have a warm process.
    members = start(of, HOMES, hold=[loss.at])
    for victim in (0, 1, 2, 3):
        members[victim].wait_holding(loss.at)
    since = lose(of, members, loss, memory)
    for member in members:
        member.process.kill()  # An agent ends what is left of the attempt.
    for member in members:
        member.process.wait(END_S)
    ended = time.monotonic()
    of.attempt += 1
    of.store.close()
    of.store = next_store
    later = start(of, homes_without(loss.node), hold=[])
    forked = time.monotonic()
    for member in later:
        member._wait(lambda m=member: sum(x.get("stamp") == "batch" for x in m.lines) >= 2)
    stamps = [
        {line["stamp"]: line["at"] for line in reversed(member.lines) if "stamp" in line}
        for member in later
    ]
    batches = [[x["at"] for x in m.lines if x.get("stamp") == "batch"] for m in later]
    for member in later:
        member.process.kill()
        member.end()
    at = {
        "others ended": ended,
        "ranks forked": forked,
        "scripts begin": max(each["script"] for each in stamps),
        "models split": max(each["model"] for each in stamps),
        "state loaded, first mini-batch begins": max(each[0] for each in batches),
        "first mini-batch ends": max(each[1] for each in batches),
    }
    lines = [line.strip() for line in later[0].errors + later[3].errors if "going on" in line]
    return {
        "ms_since_detected": {name: round((when - since) * 1e3) for name, when in at.items()},
        "to_first_mini_batch_s": round(at["state loaded, first mini-batch begins"] - since, 2),
        "reached_5_s": at["state loaded, first mini-batch begins"] - since <= 5.0,
        "mini_batch_ms": round(statistics.median(b[1] - b[0] for b in batches) * 1e3),
        "said": lines,
        "killed_before_mini_batch": loss.at,
        "newest_on_disk": len(Checkpoints(of.checkpoints, "j7", 3, 0, 1).wholes()),
    }
