"""Accounts that are kept from view to view say what accounts made from nothing say: in random
histories of jobs that come, run, are suspended, change their weight, and end."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from skep.policy.gandiva.deficits import PATIENCE_TURNS, Deficits
from skep.policy.gandiva.shares import begun, kind_of, owed, shares
from skep.policy.view import JobView, Phase
from skep.units import Duration, Instant, seconds
from tests.policy_kit import NOW, job, view

SLICE = seconds(60)
VIEWS = 60
PHASES = (Phase.WAITING, Phase.STARTING, Phase.RUNNING, Phase.RUNNING, Phase.STOPPING, Phase.AWAY)


def weigh(each: JobView) -> float:
    """Return a weight by label, as the policy does."""
    return {"a": 3.0, "b": 0.5}.get(each.spec.labels.get("user", ""), 1.0)


def changed(rng: random.Random, each: JobView, now: Instant) -> JobView:
    """Return a job to which something has happened by now."""

    def past() -> Instant:
        return Instant(now - rng.choice([0, 1, SLICE, rng.randrange(10 * SLICE)]))

    phase = rng.choice(PHASES)
    nodes = () if phase is Phase.WAITING else (("n0", each.gpus),)
    spec = replace(each.spec, labels={"user": rng.choice("abc")})
    return replace(
        each,
        spec=spec,
        phase=phase,
        nodes=nodes,
        since=past(),
        waiting_since=past(),
        began_at=rng.choice([Instant(0), past()]),
        served=Duration(rng.randrange(4 * SLICE)),
        owed=rng.randrange(-2 * SLICE, 2 * SLICE),
        owed_at=rng.choice([Instant(0), past()]),
        owed_ran=Duration(rng.randrange(4 * SLICE)),
        can=rng.choice([(), ("suspend", "release"), ("suspend", "release", "migrate")]),
    )


@pytest.mark.parametrize("seed", range(8))
def test_kept_accounts_are_those_made_from_nothing(seed: int) -> None:
    rng = random.Random(seed)
    kept = Deficits(weigh, SLICE, SLICE // 2, SLICE // 4)
    jobs: list[JobView] = []
    now, made = NOW, 0
    for _ in range(VIEWS):
        now = Instant(now + rng.choice([0, 1, seconds(1), rng.randrange(SLICE)]))
        if rng.random() < 0.4:
            made += 1
            jobs.append(replace(job(f"j{made}", rng.choice([1, 1, 2, 4])), sequence=made))
        if jobs and rng.random() < 0.2:
            jobs.pop(rng.randrange(len(jobs)))
        jobs = [changed(rng, each, now) if rng.random() < 0.3 else each for each in jobs]
        seen = replace(view(jobs, nodes=1, size=8), now=now)
        kept.follow(seen)
        wanted = shares(seen, weigh)
        for each in jobs:
            share = wanted[each.job]
            assert kept.share(each) == share, (seed, each.job, kind_of(each, weigh))
            assert kept.of(each) == owed(each, share, now, SLICE), (seed, each.job, begun(each))
            patience = each.waiting_since + int(PATIENCE_TURNS / share * SLICE) if share else None
            assert patience is None or kept.patience(each) == patience, (seed, each.job)
