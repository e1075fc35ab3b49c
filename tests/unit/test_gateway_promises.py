"""What the gateway keeps of promises: rows of jobs, counts by VC, lines of `skep why`."""

from __future__ import annotations

from skep.units import Duration
from skep.wire.codec import Facts
from skep.wire.facts import Admitted
from skep.wire.promises import (
    Answer,
    Judged,
    Lasts,
    Place,
    PromiseBroken,
    PromiseFact,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep.wire.reasons import Reason
from skep_services.gateway.fold import Fold
from skep_services.gateway.promises import PromiseCounts, lines
from skep_services.gateway.rows import Job
from skep_services.gateway.submit import judged_of
from tests.kit import T0, at, spec

DUE = at(3600)


def judged(answer: Answer, why: Reason, note: str = "") -> Judged:
    return Judged(answer=answer, why=why, due=DUE, text=f"{answer}: {why}", p90=DUE, note=note)


def made(job: str) -> PromiseMade:
    return PromiseMade(
        job=job,
        vc="nlp",
        judged=judged(Answer.ACCEPTED, Reason.IN_TIME, "it counts as normal"),
        place=Place(gpu_type="v100", gpus=2, begin=at(10), end=DUE, nodes=((0, 2), (1, 2))),
        lasts=Lasts(p10=Duration(1), p50=Duration(2), p90=Duration(3)),
        at=T0,
    )


def folded(*facts: PromiseFact) -> Fold:
    fold = Fold(lambda _: None)
    admitted = [Admitted(job=f"j{number}", spec=spec(), submitted_at=T0) for number in range(1, 4)]
    fold.apply(Facts(service="admission", at=T0, facts=(*admitted, *facts)), T0)
    return fold


def of(fold: Fold, job: str) -> Job:
    found = fold.find(job)
    assert found is not None
    return found


def test_a_promise_is_open_until_it_is_kept_or_broken() -> None:
    moved = made("j1").place
    moved = Place(gpu_type="v100", gpus=2, begin=at(20), end=at(30), nodes=moved.nodes)
    fold = folded(
        made("j1"),
        made("j2"),
        made("j3"),
        PromiseMoved(job="j1", place=moved, why=Reason.IN_TIME, at=T0),
        PromiseKept(job="j2", vc="nlp", due=DUE, at=T0),
        PromiseBroken(job="j3", vc="nlp", due=DUE, why=Reason.NODE_LOST, at=T0, detail="n1"),
    )
    rows = [of(fold, job).pledged for job in ("j1", "j2", "j3")]
    assert [row and row.outcome for row in rows] == ["open", "kept", "broken"]
    assert rows[0] is not None
    assert (rows[0].begin, rows[0].end, rows[0].gpus) == (at(20), at(30), 4)
    assert fold.promises == {"nlp": [3, 1, 1]}
    family, causes = PromiseCounts(fold).collect()
    counts = {sample.labels["outcome"]: sample.value for sample in family.samples}
    assert counts == {"made": 3, "kept": 1, "broken": 1}
    (cause,) = causes.samples
    assert (cause.labels, cause.value) == ({"vc": "nlp", "cause": "node-lost"}, 1)


def test_why_names_the_answer_and_the_cause() -> None:
    broken = PromiseBroken(
        job="j1", vc="nlp", due=DUE, why=Reason.OUTRAN_ITS_LENGTH, at=T0, detail="it has run 9 s"
    )
    told = lines(of(folded(made("j1"), broken), "j1"))
    assert [line["reason"] for line in told] == [
        Reason.IN_TIME,
        Reason.BUDGET_EXCEEDED,
        Reason.OUTRAN_ITS_LENGTH,
    ]
    assert told[-1]["needs"] == "it has run 9 s"
    assert lines(of(folded(), "j1")) == []


def test_a_lost_verdict_is_told_from_the_facts() -> None:
    answer = judged(Answer.LATE, Reason.BEHIND_PROMISES)
    fold = folded(PromiseJudged(job="j1", vc="nlp", judged=answer, at=T0))
    assert judged_of(of(fold, "j1")) == answer
    assert judged_of(of(fold, "j2")) is None
    assert fold.promises == {}
