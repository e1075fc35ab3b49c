"""Where the time of 200 jobs of a live-like run went: it adds up for every one of them."""

from __future__ import annotations

from collections import Counter

import pytest

from skep.ledger.blame.causes import TRAINING, Cause
from skep.units import NS_PER_SECOND, seconds
from skep.wire.facts import JobRequeued
from tests.blame_kit import START_S, Folded, live_like

JOBS, SEED = 200, 1
WAITS = (
    Cause.WAITS_BEHIND,
    Cause.WAITS_ALONE,
    Cause.WAITS_FOR_ROOM,
    Cause.HELD_BY_POLICY,
    Cause.PREEMPTED,
)


@pytest.mark.nightly
def test_the_time_of_200_jobs_adds_up() -> None:
    records, result = live_like(JOBS, SEED)
    folded = Folded().take(records, ask_every=400)
    assert len(folded.told) == JOBS
    assert not folded.blame.lives
    deviation = {
        job: abs(sum(share.ns for share in told.shares) / max(1, folded.elapsed[job]) - 1)
        for job, told in folded.told.items()
    }
    worst = max(deviation, key=deviation.__getitem__)
    causes = Counter[Cause]()
    for told in folded.told.values():
        causes.update({share.cause: share.ns for share in told.shares})
    print(f"\nseed {SEED}, {JOBS} jobs; the worst is {100 * deviation[worst]:.6f} % off ({worst})")
    for cause, ns in causes.most_common():
        print(f"  {cause:20} {ns / NS_PER_SECOND:10.1f} s  {ns / causes.total():8.3%}")
    assert deviation[worst] == 0
    assert set(causes) >= {*WAITS, Cause.SUSPENDED, Cause.STOPPING, Cause.WORK_LOST}
    # The simulator knows what its jobs lost and how long they waited: it counts both for itself.
    lost = sum(job.lost for job in result.jobs)
    requeued = sum(isinstance(fact, JobRequeued) for one in records for fact in one.facts)
    assert lost <= causes[Cause.WORK_LOST] <= lost + requeued * seconds(START_S)
    waited = sum(job.waited for job in result.jobs)
    waits = sum(causes[cause] for cause in WAITS)
    assert waits <= waited <= waits + causes[Cause.SUSPENDED] + causes[Cause.CHANGING]
    ran = sum(span.ended - span.began for job in result.jobs for span in job.spans)
    trained = sum(causes[cause] for cause in (*TRAINING, Cause.WORK_LOST))
    assert abs(ran - trained) <= causes[Cause.CHANGING] + causes[Cause.STOPPING]


def test_kept_in_the_middle_it_goes_on_to_the_same() -> None:
    records, _ = live_like(JOBS, SEED)
    whole, parts = Folded().take(records), Folded()
    for first in range(0, len(records), 700):
        parts = parts.take(records[first : first + 700]).again()
    assert parts.told == whole.told
    assert parts.blame == whole.blame


def test_nothing_is_kept_of_jobs_that_ended() -> None:
    records, _ = live_like(JOBS, SEED)
    blame = Folded().take(records).blame
    assert (blame.lives, blame.users) == ({}, {})
    for groups in blame.groups.values():
        for holders in groups.values():
            assert (holders.held, holders.sizes, holders.marks, holders.fresh) == ({}, {}, {}, {})
