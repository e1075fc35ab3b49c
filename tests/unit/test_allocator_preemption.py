"""Opportunistic jobs use what is idle, and yield: who is stopped for whom, and when nobody is."""

from typing import Any

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement import placing
from skep.machines.base import Effect, Record, Send
from skep.units import GIB
from skep.wire.admin import SetVcs
from skep.wire.facts import (
    CellsReserved,
    JobBound,
    JobQueued,
    JobRequeued,
    JobStopping,
    JobWaits,
    MemberGone,
)
from skep.wire.node import NodeJoined, Outcome
from skep.wire.reasons import Reason
from tests.kit import (
    Driver,
    admitted,
    allocator,
    at,
    bind,
    cancel_asked,
    exited,
    facts_of,
    joined,
    member,
    spec,
    started,
    stop,
    vcs,
)


def filled(*nodes: NodeJoined, jobs: int, **changes: Any) -> Driver[AllocatorMachine]:
    """Return an allocator whose nodes run this many like opportunistic jobs, bound in turn."""
    decide = allocator(*nodes)
    for number in range(1, jobs + 1):
        effects = decide(admitted(number, opportunistic=True, **changes), number)
        assert [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)]
        for node in decide.machine.state.jobs[f"j{number}"].parts:
            decide(started(f"j{number}", node=node))
    return decide


def stopped(effects: list[Effect]) -> list[str]:
    return [fact.job for fact in facts_of(effects) if isinstance(fact, JobStopping)]


def bound(effects: list[Effect]) -> list[str]:
    return [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)]


def waits(effects: list[Effect]) -> list[tuple[str, Reason]]:
    return [(fact.job, fact.why) for fact in facts_of(effects) if isinstance(fact, JobWaits)]


def test_a_guaranteed_job_stops_an_opportunistic_one_and_takes_its_place() -> None:
    decide = filled(joined(gpus=1), jobs=1)
    assert decide(admitted(2), 7) == [
        Record(JobQueued(job="j2", spec=spec(), submitted_at=at(2))),
        Record(JobWaits(job="j2", why=Reason.WAITS_FOR_VICTIMS, needs="j1")),
        Record(
            CellsReserved(
                job="j2",
                attempt=1,
                chain="cpux1",
                victims=("j1",),
                at=at(7),
                members=(member("node-1", (0,), levels=(2,)),),
                why=Reason.BEST_FIT_ONE_NODE,
            )
        ),
        Record(
            JobStopping(
                job="j1", attempt=1, order=2, why=Reason.PREEMPTED, at=at(7), detail="for j2"
            )
        ),
        Send("skep.v1.cmd.node-1", stop(grace_s=5.0)),
    ]
    assert decide(exited("j1", outcome=Outcome.STOPPED), 8) == [
        Record(MemberGone(job="j1", attempt=1, node="node-1", outcome=Outcome.STOPPED)),
        Record(
            JobRequeued(
                job="j1", attempt=1, why=Reason.PREEMPTED, counted=False, at=at(8), detail="for j2"
            )
        ),
        Record(
            JobBound(
                job="j2",
                attempt=1,
                order=3,
                chain="cpux1",
                master_port=20001,
                members=(member("node-1", (0,), levels=(2,)),),
                why=Reason.CELLS_RESERVED,
                at=at(8),
            )
        ),
        Send("skep.v1.cmd.node-1", bind("j2", order=3, settled=2, master_port=20001)),
        Record(JobWaits(job="j1", why=Reason.WAITS_FOR_GPUS, needs="1 x 1 GPUs (any type)")),
    ]
    assert decide.machine.state.jobs["j1"].losses == 0
    assert bound(decide(exited("j2"))) == ["j1"]


def test_a_victim_that_succeeds_in_time_has_succeeded() -> None:
    decide = filled(joined(gpus=1), jobs=1)
    decide(admitted(2))
    effects = decide(exited("j1"))
    assert bound(effects) == ["j2"]
    assert list(decide.machine.state.jobs) == ["j2"]


def test_while_victims_go_their_gpus_are_reserved() -> None:
    decide = filled(joined(gpus=4), jobs=4)
    assert stopped(decide(admitted(5, gpus=2))) == ["j4", "j3"]
    # The next one has victims of its own, and waits for nobody else's.
    assert stopped(decide(admitted(6))) == ["j2"]
    assert decide(exited("j4", outcome=Outcome.STOPPED))
    assert bound(decide(exited("j2", outcome=Outcome.STOPPED))) == ["j6"]
    assert bound(decide(exited("j3", outcome=Outcome.STOPPED))) == ["j5"]
    assert stopped(decide(admitted(7))) == ["j1"]


def test_a_job_whose_vc_has_no_cell_left_stops_nobody() -> None:
    decide = filled(joined(gpus=4), jobs=3)
    decide(SetVcs(vcs=vcs(nlp=1)))
    decide(admitted(4))
    effects = decide(admitted(5))
    assert stopped(effects) == []
    assert waits(effects) == [("j5", Reason.WAITS_FOR_CELLS)]


def test_the_latest_started_goes_first() -> None:
    decide = filled(joined(gpus=3), jobs=3)
    assert stopped(decide(admitted(4, gpus=2))) == ["j3", "j2"]


def test_nobody_is_stopped_in_vain() -> None:
    decide = allocator(joined(gpus=5))
    decide(admitted(1, opportunistic=True, gpus=4), 1)
    decide(admitted(2, opportunistic=True, gpus=1), 2)
    # j2 started later, but j1 alone makes the room.
    assert stopped(decide(admitted(3, gpus=4))) == ["j1"]


def test_a_job_that_no_stop_could_help_stops_nobody() -> None:
    decide = filled(joined(gpus=2), jobs=1)
    decide(admitted(2))
    effects = decide(admitted(3, gpus=2))
    assert stopped(effects) == []
    assert waits(effects) == [("j3", Reason.WAITS_FOR_CELLS)]


def test_cpus_and_memory_that_stay_taken_save_the_victims() -> None:
    needs: list[dict[str, Any]] = [{"cpus": 10}, {"memory": 10 * GIB}]
    for need in needs:
        decide = allocator(joined(gpus=4, cpus=16, memory=16 * GIB))
        decide(admitted(1, **need))
        decide(admitted(2, opportunistic=True, gpus=3))
        effects = decide(admitted(3, **need))
        assert stopped(effects) == []
        assert waits(effects) == [("j3", Reason.WAITS_FOR_CELLS)]


def test_cpus_that_come_free_are_worth_a_stop() -> None:
    decide = allocator(joined(gpus=4, cpus=16))
    decide(admitted(1, opportunistic=True, cpus=10))
    assert stopped(decide(admitted(2, cpus=10))) == ["j1"]
    assert bound(decide(exited("j1", outcome=Outcome.STOPPED))) == ["j2"]


def test_victims_are_taken_where_the_least_work_is_lost() -> None:
    decide = filled(joined("node-1", 2), joined("node-2", 2), jobs=4)
    # node-1 has j1 and j2, which have run longer than j3 and j4 of node-2.
    assert stopped(decide(admitted(5, gpus=2), 9)) == ["j4", "j3"]


def test_a_spread_gang_takes_victims_on_several_nodes() -> None:
    decide = filled(joined("node-1", 2), joined("node-2", 2), jobs=4)
    effects = decide(admitted(5, workers=3), 9)
    assert sorted(stopped(effects)) == ["j1", "j2", "j4"]
    for job in ("j1", "j2"):
        assert bound(decide(exited(job, outcome=Outcome.STOPPED))) == []
    assert bound(decide(exited("j4", node="node-2", outcome=Outcome.STOPPED))) == ["j5"]


def test_a_gang_as_a_victim_gives_up_all_its_parts() -> None:
    decide = filled(joined("node-1", 1), joined("node-2", 1), jobs=1, workers=2)
    effects = decide(admitted(2))
    assert stopped(effects) == ["j1"]
    assert [effect.subject for effect in effects if isinstance(effect, Send)] == [
        "skep.v1.cmd.node-1",
        "skep.v1.cmd.node-2",
    ]
    # One part gone is room enough.
    assert bound(decide(exited("j1", outcome=Outcome.STOPPED))) == ["j2"]


def test_a_part_that_is_gone_gives_nothing() -> None:
    decide = filled(joined("node-1", 1), joined("node-2", 1), jobs=1, workers=2)
    decide(exited("j1"))
    decide(admitted(2))  # Takes node-1.
    assert stopped(decide(admitted(3))) == ["j1"]


def test_the_end_of_a_guaranteed_job_under_way_is_waited_for() -> None:
    decide = allocator(joined(gpus=2))
    decide(admitted(1))
    decide(admitted(2, opportunistic=True))
    decide(cancel_asked(1))
    effects = decide(admitted(3))
    assert stopped(effects) == []
    assert waits(effects) == [("j3", Reason.WAITS_FOR_VICTIMS)]
    assert bound(decide(exited("j1", outcome=Outcome.STOPPED))) == ["j3"]


def test_opportunistic_jobs_stop_nobody() -> None:
    decide = filled(joined(gpus=1), jobs=1)
    effects = decide(admitted(2, opportunistic=True, priority=9))
    assert stopped(effects) == []
    assert waits(effects) == [("j2", Reason.WAITS_FOR_GPUS)]


def test_opportunistic_jobs_use_what_a_guaranteed_one_cannot_yet() -> None:
    decide = allocator(joined(gpus=4))
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=4))
    assert bound(decide(admitted(3, opportunistic=True))) == ["j3"]
    # j3 is in the way as soon as j1 is not.
    effects = decide(exited("j1"))
    assert stopped(effects) == ["j3"]
    assert bound(effects) == []
    assert bound(decide(exited("j3", outcome=Outcome.STOPPED))) == ["j2"]


def test_a_job_over_its_quota_stops_nobody() -> None:
    decide = allocator(joined(gpus=2), nlp=1)
    decide(admitted(1))
    decide(admitted(2, opportunistic=True))
    effects = decide(admitted(3))
    assert stopped(effects) == []
    assert waits(effects) == [("j3", Reason.WAITS_FOR_CELLS)]


def test_gpus_of_another_type_are_no_use() -> None:
    decide = allocator(joined(gpus={"a100": 1, "h200": 1}))
    decide(admitted(1, gpu_type="a100"))
    decide(admitted(2, gpu_type="h200", opportunistic=True))
    assert stopped(decide(admitted(3, gpu_type="a100"))) == []


def test_a_victim_that_was_being_started_is_told_to_stop() -> None:
    decide = allocator(joined(gpus=2))
    decide(admitted(1, opportunistic=True, gpus=2))
    effects = decide(admitted(2))
    assert effects[-1] == Send("skep.v1.cmd.node-1", stop(grace_s=5.0, settled=1))
    decide(started("j1"))
    assert bound(decide(exited("j1", outcome=Outcome.STOPPED))) == ["j2"]


def test_many_victims_are_stopped_in_more_than_one_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "MEMBERS_BOUND_MAX", 7)
    decide = filled(joined(gpus=5), jobs=5)
    # One part and five victims are named, which leaves one stop for this decision.
    assert len(stopped(decide(admitted(6, workers=5), 6))) == 1
    wake_at = decide.machine.wake_at()
    assert wake_at is not None
    assert wake_at <= at(6)
    decide.restart(6)  # Those that are still to be stopped are known from the reservation.
    assert len(stopped(decide.tick(6.5))) == 0
    for number in range(1, 5):
        assert bound(decide(exited(f"j{number}", outcome=Outcome.STOPPED))) == []
    assert bound(decide(exited("j5", outcome=Outcome.STOPPED))) == ["j6"]
