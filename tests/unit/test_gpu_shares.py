"""Jobs with a share of a GPU: put on one together, told what is theirs, and taken apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Restarted
from skep.perf.measure import Window
from skep.units import GIB
from skep.wire.advice import JobPace, Outlook
from skep.wire.changes import AskUnpack
from skep.wire.commands import BindJob, Share, Suspend
from skep.wire.facts import JobBound, JobStopping, JobWaits
from skep.wire.node import Gpu, NodeJoined, Outcome
from skep.wire.packs import GpusShared
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem
from skep.wire.trials import Judged, Kind, OpenTrial, TrialBegun, TrialOver, Verdict
from skep_services.cli.job_table import COLUMNS
from skep_services.gateway.live import Live
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, job_of
from tests.kit import (
    Driver,
    admitted,
    allocator,
    at,
    cancel_asked,
    exited,
    heartbeat,
    joined,
    spec,
    started,
)
from tests.unit.test_allocator_changes import EVERYTHING, ask, changed, known, of, told
from tests.unit.test_allocator_packs import held, quota_used, sent
from tests.unit.test_blame import Log


def share(number: int, milli: int = 500, **more: Any) -> Any:
    return admitted(number, share=milli, **more)


def runs(size: int = 2, milli: int = 500, **more: Any) -> Driver[AllocatorMachine]:
    """Return an allocator with one node, on which j1 runs with a share of a GPU."""
    decide = allocator(joined(gpus=size), nlp=size)
    decide(share(1, milli, **more))
    decide(started("j1"))
    return decide


def bound(effects: list[Effect]) -> list[tuple[str, tuple[int, ...], Reason]]:
    return [(each.job, each.members[0].devices[0], each.why) for each in of(effects, JobBound)]


def state(decide: Driver[AllocatorMachine], job: str) -> State:
    return decide.machine.state.jobs[job].state


def test_the_first_has_a_gpu_and_its_part_of_the_memory_and_another_joins_it() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    effects = decide(share(1))
    (bind,) = sent(effects, BindJob)
    assert (bind.share, bind.beside, bind.gpu_share) == (0.5, (), 500)
    decide(started("j1"))
    effects = decide(share(2, 300))
    assert bound(effects) == [("j2", (0,), Reason.PACKED)]
    (fact,) = of(effects, GpusShared)
    assert (fact.why, fact.share, fact.beside) == (Reason.SHARES_FIT, 0.3, (("j1", 1),))
    (bind,) = sent(effects, BindJob)
    assert (bind.share, bind.beside, bind.gpu_share) == (0.3, ("j1",), 300)
    assert held(decide) == {"j1": [0], "j2": [0]}
    assert quota_used(decide) == 1
    # A restart tells both as before.
    decide.tick()
    assert [each.share for each in sent(decide(Restarted(2)), BindJob)] == [0.3]


def test_while_the_first_starts_the_other_waits_aside_for_it_and_no_longer() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(share(1))
    effects = decide(share(2))
    (waits,) = of(effects, JobWaits)
    assert (waits.job, waits.why, waits.needs) == ("j2", Reason.WAITS_FOR_SHARE, "j1")
    # The room is kept for it: the next has a GPU, and nobody waits behind.
    assert bound(decide(share(3))) == [("j3", (1,), Reason.BEST_FIT_ONE_NODE)]
    assert bound(decide(started("j1"))) == [("j2", (0,), Reason.PACKED)]


def test_a_job_behind_one_that_waits_aside_is_served() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(share(1))
    decide(share(2))
    assert bound(decide(admitted(3))) == [("j3", (1,), Reason.BEST_FIT_ONE_NODE)]


def test_if_the_first_does_not_start_the_other_has_its_gpu() -> None:
    decide = allocator(joined(gpus=1), nlp=1)
    decide(share(1))
    decide(share(2))
    decide(cancel_asked(1))
    assert bound(decide(exited("j1"))) == [("j2", (0,), Reason.CELLS_RESERVED)]


def test_shares_come_to_one_gpu_at_most() -> None:
    decide = runs(1, 500)
    assert bound(decide(share(2, 600))) == []
    assert state(decide, "j2") is State.QUEUED
    assert bound(decide(share(3, 300))) == [("j3", (0,), Reason.PACKED)]
    decide(started("j3"))
    assert bound(decide(share(4, 200))) == [("j4", (0,), Reason.PACKED)]
    decide(started("j4"))
    assert bound(decide(share(5, 100))) == []
    decide(cancel_asked(1))
    assert bound(decide(exited("j1"))) == [("j5", (0,), Reason.PACKED)]
    assert quota_used(decide) == 1


@pytest.mark.parametrize(
    "more", [{"priority": 3}, {"opportunistic": True}, {"vc": "vision"}, {"gpu_type": "a100"}]
)
def test_only_jobs_that_yield_alike_share(more: dict[str, Any]) -> None:
    decide = runs(1, priority=1)
    assert of(decide(share(2, **{"priority": 1, **more})), GpusShared) == []


def test_whole_jobs_are_left_alone() -> None:
    decide = allocator(joined(gpus=1), nlp=1)
    decide(admitted(1))
    decide(started("j1"))
    assert bound(decide(share(2))) == []


def memories(*sizes: int) -> NodeJoined:
    gpus = tuple(Gpu(index=at, type="cpu", memory=size) for at, size in enumerate(sizes))
    return msgspec.structs.replace(joined(gpus=len(sizes)), gpus=gpus)


def test_memory_that_is_asked_for_is_what_must_fit_and_what_is_told() -> None:
    decide = allocator(memories(40 * GIB), nlp=1)
    (bind,) = sent(decide(share(1, 200, gpu_memory=30 * GIB)), BindJob)
    assert bind.share == 0.75
    decide(started("j1"))
    assert bound(decide(share(2, 200, gpu_memory=11 * GIB))) == []
    effects = decide(share(3, 200, gpu_memory=10 * GIB))
    assert bound(effects) == [("j3", (0,), Reason.PACKED)]
    assert [each.share for each in sent(effects, BindJob)] == [0.25]


def test_a_gpu_with_less_memory_is_not_taken() -> None:
    decide = allocator(memories(40 * GIB), nlp=1)
    assert bound(decide(share(1, 200, gpu_memory=41 * GIB))) == []


def test_one_that_was_taken_off_has_the_next_gpu_to_itself() -> None:
    decide = runs(1)
    decide(share(2))
    decide(started("j2"))
    decide(known("j2", can=()))
    effects = decide(ask(50, AskUnpack(job="j2")))
    assert [each.why for each in of(effects, JobStopping)] == [Reason.UNPACKED]
    decide(exited("j2", outcome=Outcome.STOPPED))
    assert decide.machine.state.jobs["j2"].apart
    assert state(decide, "j2") is State.QUEUED
    decide(cancel_asked(1))
    assert bound(decide(exited("j1"))) == [("j2", (0,), Reason.CELLS_RESERVED)]


def test_those_that_share_are_told_when_others_come_and_go() -> None:
    decide = runs(1, 400)
    decide(known("j1"))
    effects = decide(share(2, 300))
    (command,) = told(effects)
    assert (command.job, command.change) == ("j1", Share(share=0.4, beside=("j2",)))
    decide(changed(command))
    decide(started("j2"))
    decide(cancel_asked(2))
    (command,) = told(decide(exited("j2")))
    assert command.change == Share(share=0.4)


# --- what is measured ----------------------------------------------------------------------------


def measured(rate: int = 100_000) -> Driver[AllocatorMachine]:
    """Return an allocator on which j2 joined j1, whose rate alone was known."""
    decide = runs(2)
    decide(known("j1", can=EVERYTHING))
    pace = JobPace(job="j1", attempt=1, steps=10, rate_milli=rate)
    decide(Outlook(at=at(5), jobs=(pace,), families=()))
    return decide


def judged(*, kept: bool) -> Judged:
    low = 100 if kept else -100
    return Judged(
        at=at(60), trial=1, kept=kept, gain_milli=low, low_milli=low, high_milli=low, after=()
    )


def test_the_first_is_to_keep_its_share_of_its_rate() -> None:
    (fact,) = of(measured()(share(2, 300)), TrialBegun)
    assert (fact.needed_milli, fact.why) == (500, Reason.SHARES_FIT)
    assert [(each.job, each.solo_milli) for each in fact.jobs] == [("j2", 0), ("j1", 100_000)]


def test_nothing_is_tried_where_no_rate_is_known() -> None:
    assert of(runs(2)(share(2)), TrialBegun) == []


def joined_and_judged(*, kept: bool) -> tuple[Driver[AllocatorMachine], list[Effect]]:
    decide = measured()
    for command in told(decide(share(2))):
        decide(changed(command))
    decide(started("j2"))
    decide(known("j2", can=EVERYTHING))
    return decide, decide(judged(kept=kept))


def test_one_that_hurts_is_taken_off_and_not_put_back() -> None:
    decide, effects = joined_and_judged(kept=False)
    assert [fact.why for fact in of(effects, TrialOver)] == [Reason.TRIAL_LOSES]
    (command,) = told(effects)
    assert (command.job, type(command.change)) == ("j2", Suspend)
    # Its kind has cooled down, and is not put beside the first again.
    assert of(decide(share(3)), GpusShared) == []


def test_one_that_does_not_hurt_stays() -> None:
    decide, effects = joined_and_judged(kept=True)
    assert [fact.verdict for fact in of(effects, TrialOver)] == [Verdict.KEPT]
    assert told(effects) == []
    assert held(decide) == {"j1": [0], "j2": [0]}


def test_without_a_verdict_they_stay_together() -> None:
    decide = measured()
    for command in told(decide(share(2))):
        decide(changed(command))
    decide(started("j2"))
    overs: list[TrialOver] = []
    for second in range(20, 1200, 20):
        decide(heartbeat("node-1"), second)
        overs += of(decide.tick(second), TrialOver)
    assert [(each.verdict, each.why) for each in overs] == [(Verdict.KEPT, Reason.NO_VERDICT)]


def test_one_that_never_ran_alone_does_not_count() -> None:
    (fact,) = of(measured()(share(2)), TrialBegun)
    window = Window(
        OpenTrial(
            trial=1,
            kind=Kind.PACK,
            since=at(1),
            until=at(99),
            needed_milli=fact.needed_milli,
            jobs=fact.jobs,
        )
    )
    window.samples["j1"].rates += [40_000] * 16
    verdict = window.judge()
    assert verdict is not None
    assert verdict.kept is False


# --- what is written -----------------------------------------------------------------------------


def parsed(resources: dict[str, Any], **more: Any) -> JobSpec | list[Problem]:
    return parse_tree({"name": "a", "vc": "nlp", "command": "x", "resources": resources, **more})


def test_a_share_is_read_and_goes_on_as_it_was_read() -> None:
    spec = parsed({"gpus": 0.3, "gpu_memory": "10GiB"})
    assert isinstance(spec, JobSpec)
    assert (spec.resources.gpus, spec.resources.share) == (1, 300)
    assert spec.resources.gpu_memory == 10 * GIB
    assert parse_tree(msgspec.to_builtins(spec)) == spec


@pytest.mark.parametrize(
    "resources, more, path",
    [
        ({"gpus": 0.55}, {}, "resources.gpus"),
        ({"gpus": 1.5}, {}, "resources.gpus"),
        ({"gpus": float("nan")}, {}, "resources.gpus"),
        ({"gpus": "0.5"}, {}, "resources.gpus"),
        ({"gpus": 0.5, "share": 300}, {}, "resources.share"),
        ({"gpus": 2, "share": 500}, {}, "resources.gpus"),
        ({"share": 1000}, {}, "resources.share"),
        ({"gpus": 0.5, "workers": 2}, {}, "resources.workers"),
        ({"gpus": 0.5}, {"elastic": {"min": 1, "max": 1}}, "elastic"),
        ({"gpus": 0.5}, {"finish_by": "2h"}, "finish_by"),
        ({"gpus": 0.5, "gpu_memory": "ten"}, {}, "resources.gpu_memory"),
        ({"gpus": 1, "gpu_memory": "1GiB"}, {}, "resources.gpu_memory"),
    ],
)
def test_what_is_no_share_is_refused_in_one_line(
    resources: dict[str, Any], more: dict[str, Any], path: str
) -> None:
    problems = parsed(resources, **more)
    assert isinstance(problems, list)
    assert [each.path for each in problems] == [f"$.{path}"]


# --- what people see -----------------------------------------------------------------------------


def seen() -> Cluster:
    """Return a gateway that has seen j1 and j2 share a GPU."""
    cluster = Cluster()
    cluster.set_vcs(nlp=2)
    cluster.join(joined(gpus=2))
    first = cluster.submit(spec(share=500))
    second = cluster.submit(spec(share=300))
    cluster.runs(first)
    cluster.runs(second, second=4)
    return cluster


def reasons(cluster: Cluster, job: str) -> list[str]:
    live = Live(cluster.fold, at(50))
    told = explain(job_of(cluster.fold, job), cluster.fold, live, at(50))
    return [each["text"] for each in told["reasons"]]


def test_why_and_the_list_have_the_share() -> None:
    cluster = seen()
    assert "it asked for 0.3 of a GPU, and has one together with j1" in reasons(cluster, "j2")
    assert "it asked for 0.5 of a GPU, and has one together with j2" in reasons(cluster, "j1")
    row = job_of(cluster.fold, "j2").row
    assert (row.gpus, row.gpu_share, row.counted_gpus) == (1, 0.3, 0.3)
    assert COLUMNS["gpus"].cells([msgspec.to_builtins(row)], 0) == ["0.3"]


def test_the_time_of_a_gpu_is_divided_by_shares() -> None:
    log = Log()
    log.queued(0, "j1", share=500)
    log.bound(0, "j1", "n1/0")
    log.ran(0, "j1")
    log.queued(10, "j2", share=300)
    log.bound(10, "j2", "n1/0", owns=False)
    assert [log.blame.lives[job].gpus for job in ("j1", "j2")] == [625, 375]
