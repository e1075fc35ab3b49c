"""What is shown of jobs that wait for other jobs, for a time, or are held."""

from __future__ import annotations

from typing import Any

from skep.wire.node import Outcome
from skep.wire.spec import After
from skep_services.cli.show import _after, _begin
from skep_services.gateway.live import Live
from skep_services.gateway.rows import State
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, job_of, texts
from tests.kit import at, joined, spec


def cluster() -> Cluster:
    made = Cluster()
    made.set_vcs(nlp=2)
    made.join(joined("node-1", 2))
    return made


def row(made: Cluster, job: str) -> tuple[State, str | None, str]:
    shown = job_of(made.fold, job).row
    return shown.state, shown.why, shown.needs


def why(made: Cluster, job: str, second: float = 5) -> tuple[list[tuple[str, ...]], list[str]]:
    told: dict[str, Any] = explain(
        job_of(made.fold, job), made.fold, Live(made.fold, at(second)), at(second)
    )
    return [(one["reason"], one["text"], one["needs"]) for one in told["reasons"]], told[
        "would_change"
    ]


def test_a_deferred_job_says_all_that_it_waits_for() -> None:
    made = cluster()
    first = made.submit(spec())
    made.runs(first)
    other = made.submit(spec())
    waits = made.submit(spec(after=After(ok=(first,), fail=(other,)), begin=60))
    assert row(made, waits) == (State.QUEUED, "waits-for-jobs", "j1")
    reasons, changes = why(made, waits)
    assert reasons == [
        ("waits-for-jobs", "it waits until this job succeeds, which is running", "j1"),
        ("waits-for-jobs", "it waits until this job fails or is cancelled, which is bound", "j2"),
        ("waits-for-time", "it may not begin before this time", "2023-11-14T22:14:21Z"),
    ]
    assert changes == [
        "j1 succeeds",
        "j2 fails or is cancelled",
        "the time 2023-11-14T22:14:21Z comes",
    ]
    assert [reason for reason, _, _ in why(made, waits, second=70)[0]] == ["waits-for-jobs"] * 2
    made.exits(first)
    assert row(made, waits) == (State.QUEUED, "waits-for-jobs", "j2")


def test_a_held_job_waits_for_no_other_and_is_before_none() -> None:
    made = cluster()
    made.runs(made.submit(spec(gpus=2)))
    held = made.submit(spec(gpus=2, hold=True))
    waits = made.submit(spec(gpus=2))
    assert why(made, held) == (
        [("held", "it is held until `skep release`", "")],
        ["`skep release j2`"],
    )
    assert why(made, waits)[0][0][0] == "waits-for-cells"  # Not behind the one that is held.


def test_a_job_that_can_never_start_says_why() -> None:
    made = cluster()
    first = made.submit(spec())
    made.runs(first)
    waits = made.submit(spec(after=After(ok=(first,))))
    made.exits(first, outcome=Outcome.EXITED)
    shown = job_of(made.fold, waits)
    assert row(made, waits) == (State.CANCELLED, "dependency-never-satisfied", "")
    assert shown.detail == "j1 failed; it was to run once that succeeds"
    assert not shown.deferred
    assert made.fold.misfits == made.fold.blame_misfits == 0


def test_a_job_that_becomes_eligible_tells_its_story() -> None:
    made = cluster()
    first = made.submit(spec())
    made.runs(first)
    waits = made.submit(spec(after=After(any=(first,))))
    made.exits(first)
    assert row(made, waits)[0] is State.BOUND
    told = [text for text in texts(made.fold) if "its queue" in text]
    assert told == [
        "waits outside of its queue: it waits for other jobs to end, as its `after` says (j1)",
        "enters its queue",
    ]


def test_show_has_what_a_job_waits_for() -> None:
    assert _after({"ok": ["j1", "j2"], "fail": ["j3"]}) == "j1 succeeds, j2 succeeds, j3 fails"
    assert _begin({"submitted_at": 1}, "2026-11-24T08:00:00Z") == "2026-11-24T08:00:00Z"
    assert _begin({"submitted_at": 1}, None) == ""
