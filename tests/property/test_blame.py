"""Blame adds up, whatever happens, and comes out the same from any prefix and the rest."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from skep.ledger import fold as ledger_fold
from skep.ledger.blame import holders as holders_module
from skep.ledger.blame.holders import KEPT, Holders
from skep.ledger.blame.state import gpus_of
from skep.ledger.state import ClusterState
from skep.sim.history import live
from skep.sim.world import Settings, World
from skep.units import Instant
from tests.blame_kit import At, Folded
from tests.fold_kit import LOGS, Story, stored

SEEDS = 20


def history(seed: int) -> list[At]:
    """Return what the allocator records in a world of faults."""
    world = World(seed, Settings(check_every=64))
    live(world)
    log = world.roles["allocator"].log
    assert log is not None
    return [At(record.at, record.facts) for record in log.replay()]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, SEEDS))]
)
def test_every_job_of_a_history_with_faults_adds_up(seed: int) -> None:
    records = history(seed)
    whole = Folded().take(records, ask_every=20)
    assert whole.told, seed
    for job, told in whole.told.items():
        assert told.elapsed_ns == max(0, whole.elapsed[job]), (seed, job)
    rng, parts, begin = random.Random(seed), Folded(), 0
    while begin < len(records):
        end = begin + rng.randrange(1, 60)
        parts = parts.take(records[begin:end]).again()
        begin = end
    assert parts.told == whole.told, seed
    assert parts.blame == whole.blame, seed


@pytest.mark.parametrize("seed", range(3))
def test_gpus_are_held_as_the_ledger_says(seed: int) -> None:
    state, folded = ClusterState(), Folded()
    for number, record in enumerate(history(100 + seed)):
        for fact in record.facts:
            ledger_fold.apply(state, fact)
        folded.take([record])
        assert list(folded.blame.lives) == list(state.jobs), (seed, number)
        for name, job in state.jobs.items():
            held = {
                f"{node}/{device}"
                for node, member in job.members.items()
                for devices in member.devices
                for device in devices
                if job.job in state.placed and not job.released
            }
            assert set(gpus_of(folded.blame.lives[name].parts)) == held, (seed, number, name)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.gz")), ids=lambda path: path.name)
def test_stored_logs_of_earlier_versions_add_up(path: Path) -> None:
    records = [At(Instant(0), facts) for facts in stored(path).records]
    whole = Folded().take(records, ask_every=10)
    whole.ask()
    assert len(whole.told) + len(whole.blame.lives) > 0


@pytest.mark.parametrize("seed", range(2))
def test_stories_of_packs_and_other_quotas_add_up(seed: int) -> None:
    records = [At(Instant(0), facts) for facts in Story(seed).records]
    Folded().take(records, ask_every=5)


# --- holders --------------------------------------------------------------------------------------


class Naive:
    """Holders, added up second by second."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.waits: dict[str, Counter[str]] = {}
        self.busy: Counter[str] = Counter()

    def passes(self, ns: int) -> None:
        whole = sum(self.held.values())
        for job, parts in self.waits.items():
            self.busy[job] += ns if whole else 0
            for party, gpus in self.held.items():
                parts[party] += round(ns * gpus / whole)


@pytest.mark.parametrize("seed", range(12))
def test_holders_are_those_of_a_naive_count(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(holders_module, "SLICE", rng.choice([2, 3, 8]))
    monkeypatch.setattr(holders_module, "SLICES_MAX", rng.choice([4, 16, 1024]))
    parties = [f"job nlp j{number}" for number in range(rng.choice([3, 8, KEPT]))]
    few = len(parties) <= holders_module.EARLIEST
    found, naive, now, asked = Holders(), Naive(), 0, 0
    for number in range(600):
        step = rng.randrange(1, 10**9)
        naive.passes(step)
        now += step
        happens = rng.random()
        if happens < 0.6:
            party, gpus = rng.choice(parties), rng.choice([0, 1000, 1000, 2000, 8000, 333])
            found.hold(party, gpus, now)
            naive.held.pop(party, None)
            naive.held |= {party: gpus} if gpus else {}
        elif happens < 0.75:
            found.wait(f"w{number}", now)
            naive.waits[f"w{number}"] = Counter()
            naive.busy[f"w{number}"] = 0
        elif naive.waits:
            job = rng.choice(list(naive.waits))
            busy, named = found.blamed(job, now)
            assert busy == naive.busy[job], (seed, number)
            assert sum(named.values()) <= busy
            parts = naive.waits[job]
            for party, part in named.items():
                assert part <= parts[party] + 2000, (seed, number, party)
                if few:
                    assert abs(part - parts[party]) < 2000, (seed, number, party)
            asked += 1
            if rng.random() < 0.5:
                found.waits_no_more(job)
                del naive.waits[job], naive.busy[job]
    assert asked > 50


def test_what_is_kept_of_holders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders_module, "SLICE", 8)
    monkeypatch.setattr(holders_module, "SLICES_MAX", 16)
    found, now = Holders(), 0
    found.wait("w", now)
    for number in range(5000):
        now += 1000
        found.hold(f"job nlp j{number}", 1000 * (1 + number % 4), now)
        found.hold(f"job nlp j{number - 4}", 0, now)
        assert len(found.left) < 8
        assert sum(map(len, found.slices)) < 2 * 16
        assert all(len(one) <= KEPT for level in found.slices for one in level)
        assert len(found.marks["w"].named) <= KEPT
    busy, named = found.blamed("w", now)
    assert busy == 5000 * 1000 - 1000
    assert 0 < sum(named.values()) <= busy
