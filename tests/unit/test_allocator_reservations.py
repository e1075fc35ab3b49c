"""Cells in time: reserved before anybody is stopped, borrowed, given back, and changed under jobs.

Whatever is under way survives a crash: the driver rebuilds the machine from its facts after every
event.
"""

from typing import Any

import msgspec
import pytest

from skep.cells.decide import placement
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect, Send
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.cluster import Chain, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.commands import BindJob, StopJob
from skep.wire.facts import (
    CellsReserved,
    CellsSet,
    JobBound,
    JobDemoted,
    JobEnded,
    JobFate,
    JobPromoted,
    JobStopping,
    ReservationDropped,
)
from skep.wire.node import NodeJoined, Outcome
from skep.wire.reasons import Reason
from tests.kit import (
    Driver,
    admitted,
    allocator,
    cancel_asked,
    exited,
    facts_of,
    heartbeat,
    joined,
    started,
    vcs,
)

GONE = Outcome.STOPPED


def of(kind: type, effects: list[Effect]) -> list[Any]:
    return [fact for fact in facts_of(effects) if isinstance(fact, kind)]


def jobs(kind: type, effects: list[Effect]) -> list[str]:
    """Return the jobs that facts of one kind are about."""
    return [fact.job for fact in of(kind, effects)]


def told(effects: list[Effect]) -> list[tuple[str, str]]:
    return [
        ("bind" if isinstance(effect.message, BindJob) else "stop", effect.message.job)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, BindJob | StopJob)
    ]


def full(*nodes: NodeJoined, count: int, **quotas: int) -> Driver[AllocatorMachine]:
    """Return an allocator on whose nodes this many opportunistic jobs of `lab` run."""
    decide = allocator(*nodes, **quotas)
    for number in range(1, count + 1):
        assert jobs(JobBound, decide(admitted(number, vc="lab", opportunistic=True), number))
        (node,) = decide.machine.state.jobs[f"j{number}"].parts
        decide(started(f"j{number}", node=node))
    return decide


def placed(decide: Driver[AllocatorMachine], job: str) -> list[tuple[str, tuple[int, ...], int]]:
    """Return a job's workers as (node, GPUs, level of the cell that covers them)."""
    return [
        (member.node, gpus, level)
        for member in decide.machine.state.jobs[job].members.values()
        for gpus, level in zip(member.devices, member.levels or (0,) * 99, strict=False)
    ]


# --- reservations -------------------------------------------------------------------------------


def test_nobody_else_is_offered_what_is_reserved() -> None:
    decide = full(joined(), count=4, nlp=2, cv=2)
    effects = decide(admitted(5, gpus=2), 9)
    (claim,) = of(CellsReserved, effects)
    assert jobs(JobStopping, effects) == list(claim.victims)
    first, second = claim.victims
    assert first == "j4"  # It has run shortest.
    decide(admitted(6, vc="lab", opportunistic=True))
    # The GPU that comes free goes neither to j6 nor back to the victim.
    assert jobs(JobBound, decide(exited(first, outcome=GONE))) == []
    # A tenant with cells of its own gets other victims.
    effects = decide(admitted(7, vc="cv"))
    assert not set(jobs(JobStopping, effects)) & {first, second}
    assert len(jobs(JobStopping, effects)) == 1
    effects = decide(exited(second, outcome=GONE))
    assert jobs(JobBound, effects) == ["j5"]
    assert of(JobBound, effects)[0].members == claim.members
    assert of(JobBound, effects)[0].why is Reason.CELLS_RESERVED


def test_a_cancelled_reservation_gives_everything_back() -> None:
    decide = full(joined(), count=4, nlp=4)
    cells = decide.machine.state.cells
    before = {name: list(pool.left) for name, pool in cells.chains["cpux4"].pools.items()}
    decide(admitted(5, gpus=2), 9)
    effects = decide(cancel_asked(5))
    assert of(ReservationDropped, effects) == [
        ReservationDropped(job="j5", attempt=1, why=Reason.CANCELLED)
    ]
    assert jobs(JobEnded, effects) == ["j5"]
    pools = decide.machine.state.cells.chains["cpux4"].pools
    assert {name: pool.left for name, pool in pools.items()} == before
    # The victims were told already; their GPUs are anybody's again.
    decide(admitted(6, vc="lab", opportunistic=True))
    assert jobs(JobBound, decide(exited("j4", outcome=GONE))) == ["j4"]
    assert jobs(JobBound, decide(exited("j3", outcome=GONE))) == ["j3"]
    assert decide.machine.state.jobs["j6"].state is State.QUEUED


def test_a_reservation_on_hardware_that_turns_bad_is_planned_anew() -> None:
    decide = full(joined("node-1", 2), joined("node-2", 2), count=4, nlp=2)
    effects = decide(admitted(5, gpus=2), 9)
    (claim,) = of(CellsReserved, effects)
    (part,) = claim.members
    effects = decide(QuarantineGpu(node=part.node, device=0))
    assert of(ReservationDropped, effects) == [
        ReservationDropped(job="j5", attempt=1, why=Reason.NODE_LOST)
    ]
    (again,) = of(CellsReserved, effects)
    assert again.members[0].node != part.node
    for job in again.victims:
        effects = decide(exited(job, node=again.members[0].node, outcome=GONE))
    assert jobs(JobBound, effects) == ["j5"]


def test_a_reservation_without_another_place_waits_for_healthy_hardware() -> None:
    decide = full(joined(gpus=2), count=2, nlp=2)
    decide(admitted(3, gpus=2), 9)
    assert jobs(ReservationDropped, decide(DrainNode(node="node-1"))) == ["j3"]
    assert decide.machine.state.jobs["j3"].waits == (
        Reason.WAITS_FOR_CELLS,
        "1 x 2 GPUs (any type) in cells of nlp",
    )
    for job in ("j1", "j2"):
        assert jobs(JobBound, decide(exited(job, outcome=GONE))) == []
    assert jobs(JobBound, decide(DrainNode(node="node-1", drain=False))) == ["j3"]


def test_a_higher_priority_takes_a_reservation_over() -> None:
    decide = full(joined(gpus=2), count=2, nlp=2)
    decide(admitted(3, gpus=2), 9)
    effects = decide(admitted(4, gpus=2, priority=5))
    assert of(ReservationDropped, effects) == [
        ReservationDropped(job="j3", attempt=1, why=Reason.PREEMPTED)
    ]
    assert jobs(CellsReserved, effects) == ["j4"]
    assert jobs(JobStopping, effects) == []  # Both go already.
    decide(exited("j1", outcome=GONE))
    assert jobs(JobBound, decide(exited("j2", outcome=GONE))) == ["j4"]
    assert jobs(JobBound, decide(exited("j4"))) == ["j3"]


def test_a_claim_on_what_is_idle_by_now_is_taken_over_at_once() -> None:
    decide = full(joined(gpus=2), count=2, nlp=2)
    (claim,) = of(CellsReserved, decide(admitted(3, gpus=2), 9))
    decide(exited(claim.victims[0], outcome=GONE))
    effects = decide(admitted(4, priority=5))
    assert jobs(ReservationDropped, effects) == ["j3"]
    assert jobs(JobBound, effects) == ["j4"]
    assert jobs(JobStopping, effects) == []


def test_an_equal_priority_takes_no_reservation_over() -> None:
    decide = full(joined(gpus=2), count=2, nlp=2)
    decide(admitted(3, gpus=2), 9)
    effects = decide(admitted(4))
    assert jobs(ReservationDropped, effects) == []
    assert jobs(CellsReserved, effects) == []


def test_a_lower_priority_of_the_same_vc_makes_room() -> None:
    decide = allocator(joined(), nlp=2, cv=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, vc="cv", gpus=2))
    effects = decide(admitted(3, gpus=2, priority=1))
    (claim,) = of(CellsReserved, effects)
    assert claim.victims == ("j1",)
    # No other tenant's job ever makes room, whatever its priority is.
    assert jobs(JobStopping, decide(exited("j1", outcome=GONE))) == []
    assert placed(decide, "j3") == [("node-1", (0, 1), 2)]


# --- CPUs and memory ----------------------------------------------------------------------------


def test_cpus_that_a_reservation_waits_for_are_its_own() -> None:
    decide = allocator(joined(cpus=16), nlp=2, cv=2)
    decide(admitted(1, vc="lab", opportunistic=True, cpus=10))
    effects = decide(admitted(2, cpus=16))
    (claim,) = of(CellsReserved, effects)
    assert claim.victims == ()  # A GPU is idle: it is CPUs that j1 has to give back.
    assert jobs(JobStopping, effects) == ["j1"]
    # Six CPUs are free, and nobody else gets them meanwhile.
    assert jobs(JobBound, decide(admitted(3, vc="cv", cpus=6))) == []
    assert jobs(JobBound, decide(admitted(4, vc="lab", opportunistic=True, cpus=6))) == []
    assert jobs(JobBound, decide(admitted(5, vc="cv", priority=1))) == ["j5"]  # It asks for none.
    assert jobs(JobBound, decide(exited("j1", outcome=GONE))) == ["j2"]
    assert jobs(JobBound, decide(exited("j2"))) == ["j3", "j1"]


def test_memory_is_made_room_for_by_the_latest_started() -> None:
    decide = allocator(joined(memory=12), nlp=4)
    for number, memory in ((1, 4), (2, 4), (3, 4)):
        decide(admitted(number, vc="lab", opportunistic=True, memory=memory), number)
    effects = decide(admitted(4, memory=5), 9)
    assert jobs(JobStopping, effects) == ["j3", "j2"]
    decide(exited("j3", outcome=GONE))
    assert jobs(JobBound, decide(exited("j2", outcome=GONE))) == ["j4"]


# --- who is next --------------------------------------------------------------------------------


def test_idle_gpus_go_to_tenants_by_their_weights() -> None:
    decide = allocator()
    owners = {"nlp": VirtualCluster(), "cv": VirtualCluster(weight=2.0)}
    decide(SetVcs(vcs=owners))
    for number in range(1, 13):
        decide(admitted(number, vc="nlp" if number <= 6 else "cv", opportunistic=True))
    decide(joined(gpus=6))
    running = [job.spec.vc for job in decide.machine.state.placed.values()]
    assert running.count("cv") == 4
    assert running.count("nlp") == 2
    # Who has least for its weight is next, not who came first.
    first = next(job.job for job in decide.machine.state.placed.values() if job.spec.vc == "cv")
    bound = jobs(JobBound, decide(exited(first)))
    assert [decide.machine.state.jobs[job].spec.vc for job in bound] == ["cv"]


def test_what_did_not_fit_is_tried_again_when_something_came_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    find = placement.find_placement

    def counting(cells: Cells, request: Any, *args: Any) -> Any:
        if args:  # What is asked of vacant cells is no trial.
            tried.append(request.job)
        return find(cells, request, *args)

    monkeypatch.setattr(placement, "find_placement", counting)
    decide = allocator(joined(gpus=2), nlp=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, vc="lab", opportunistic=True))
    decide(admitted(3))
    assert tried == ["j1.1", "j2.1", "j3.1"]
    decide(started("j1"))
    decide(heartbeat(), 5)
    decide.tick(5)
    decide(admitted(4))  # Behind j3.
    assert tried == ["j1.1", "j2.1", "j3.1"]
    decide(admitted(5))
    decide(DrainNode(node="node-1"))
    assert tried[3:] == ["j3.1", "j2.1"]
    decide(DrainNode(node="node-1", drain=False))
    assert tried[5:] == ["j3.1", "j2.1"]
    decide(exited("j1"))
    assert tried[7:] == ["j3.1", "j4.1", "j5.1", "j2.1"]


# --- borrowing, promotion, demotion ---------------------------------------------------------------


def test_a_job_beyond_its_vcs_cells_borrows_and_is_promoted() -> None:
    decide = allocator(joined(), nlp=2, cv=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2, over_quota="opportunistic"))
    assert placed(decide, "j2") == [("node-1", (2, 3), 0)]
    assert list(decide.machine.state.borrowed) == ["j2"]
    assert decide.machine.state.cells.borrowed.get("nlp", 0) == 2
    effects = decide(exited("j1"))
    assert [(each.job, each.levels) for each in of(JobPromoted, effects)] == [("j2", (2,))]
    assert decide.machine.state.borrowed == {}
    assert decide.machine.state.cells.borrowed.get("nlp", 0) == 0
    # Now that it is guaranteed cv's gang has the other half, and j2 is safe from it.
    assert jobs(JobBound, decide(admitted(3, vc="cv", gpus=2))) == ["j3"]


def test_nothing_is_kept_of_a_job_that_borrowed_and_is_over() -> None:
    decide = allocator(joined(), nlp=2, cv=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2, over_quota="opportunistic"))
    assert list(decide.machine.tx.soft.uncovered) == ["j2"]
    decide(exited("j2"))
    assert decide.machine.tx.soft.uncovered == {}


def test_who_borrows_yields_to_the_owner() -> None:
    decide = allocator(joined(), nlp=2, cv=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2, over_quota="opportunistic"))
    effects = decide(admitted(3, vc="cv", gpus=2))
    assert jobs(JobStopping, effects) == ["j2"]
    assert decide.machine.state.jobs["j2"].stopped_why is Reason.PREEMPTED
    assert jobs(JobBound, decide(exited("j2", outcome=GONE))) == ["j3"]
    assert jobs(JobBound, decide(exited("j1"))) == ["j2"]
    assert placed(decide, "j2") == [("node-1", (0, 1), 2)]


def test_a_higher_priority_rather_has_room_made_than_borrows() -> None:
    decide = allocator(joined(), nlp=2)
    decide(admitted(1, gpus=2))
    effects = decide(admitted(2, priority=1, over_quota="opportunistic"))
    assert jobs(CellsReserved, effects) == ["j2"]
    assert jobs(JobBound, decide(exited("j1", outcome=GONE))) == ["j2"]


def test_nobody_is_promoted_before_a_higher_priority_that_waits() -> None:
    decide = allocator(joined(), nlp=2)
    decide(admitted(1, priority=5))
    decide(admitted(2, gpus=2, over_quota="opportunistic"))
    decide(admitted(4, gpus=2, priority=5))
    assert list(decide.machine.state.borrowed) == ["j2"]
    effects = decide(exited("j1"))
    assert jobs(JobPromoted, effects) == []
    assert jobs(JobBound, effects) == ["j4"]
    effects = decide(exited("j4"))
    assert jobs(JobPromoted, effects) == ["j2"]


def test_a_demotable_job_makes_room_without_being_stopped() -> None:
    decide = allocator(joined(), nlp=2)
    decide(admitted(1, gpus=2, demotable=True))
    decide(started("j1"))
    effects = decide(admitted(2, gpus=2, priority=5))
    (demoted,) = of(JobDemoted, effects)
    assert (demoted.job, demoted.why, demoted.detail) == ("j1", Reason.PREEMPTED, "for j2")
    assert jobs(JobBound, effects) == ["j2"]
    assert jobs(JobStopping, effects) == []
    assert told(effects) == [("bind", "j2")]
    assert placed(decide, "j2") == [("node-1", (2, 3), 2)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    # Its VC's cells are its own again as soon as nobody more important has them.
    effects = decide(exited("j2"))
    assert [(each.job, each.levels) for each in of(JobPromoted, effects)] == [("j1", (2,))]


def test_where_nothing_is_idle_a_demotable_job_is_stopped_after_all() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(admitted(1, gpus=2, demotable=True))
    effects = decide(admitted(2, gpus=2, priority=5))
    assert jobs(JobStopping, effects) == ["j1"]
    assert jobs(JobBound, decide(exited("j1", outcome=GONE))) == ["j2"]


# --- nodes --------------------------------------------------------------------------------------


def test_what_a_lost_node_still_runs_keeps_nobody_from_the_vcs_cells() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), nlp=4)
    decide(admitted(1, gpus=4))
    decide(started("j1"))
    decide(heartbeat("node-2"), 20)
    decide.tick(41)
    assert placed(decide, "j1") == [("node-2", (0, 1, 2, 3), 3)]
    holds = decide.machine.state.cells.holds
    assert not holds[AttemptId("j1.1")].guaranteed
    assert holds[AttemptId("j1.2")].guaranteed
    # The ghost holds nobody's cells, yet its GPUs are taken until its node says otherwise.
    decide(heartbeat("node-1"), 42)
    assert jobs(JobBound, decide(admitted(2, vc="lab", opportunistic=True))) == []
    assert jobs(JobBound, decide(exited("j1", outcome=GONE))) == ["j2"]


def test_a_quarantined_gpu_keeps_its_job_and_gets_no_other() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(admitted(1))
    effects = decide(QuarantineGpu(node="node-1", device=0))
    assert [type(fact).__name__ for fact in facts_of(effects)] == ["GpuQuarantined"]
    assert decide(QuarantineGpu(node="node-1", device=0)) == []
    assert decide(QuarantineGpu(node="node-9", device=0)) == []
    decide(exited("j1"))
    decide(admitted(2))
    assert placed(decide, "j2") == [("node-1", (1,), 2)]
    decide(admitted(3))
    assert jobs(JobBound, decide(QuarantineGpu(node="node-1", device=0, quarantine=False))) == [
        "j3"
    ]


# --- reconfiguration ----------------------------------------------------------------------------


def test_a_vc_that_owns_less_has_jobs_demoted_and_none_stopped() -> None:
    decide = allocator(joined(), nlp=4)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2))
    effects = decide(SetVcs(vcs=vcs(nlp=2, cv=2)))
    (fact,) = of(CellsSet, effects)
    assert fact.fates == (JobFate(job="j2", fate="demoted", attempt=1),)  # j1 has run longer.
    assert told(effects) == []
    # The new owner may have its cells at once, from whoever is opportunistic now.
    effects = decide(admitted(3, vc="cv", gpus=2))
    assert jobs(JobStopping, effects) == ["j2"]
    assert jobs(JobBound, decide(exited("j2", outcome=GONE))) == ["j3"]


def test_who_was_demoted_is_promoted_when_its_vc_owns_more_again() -> None:
    decide = allocator(joined(), nlp=4)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2))
    decide(SetVcs(vcs=vcs(nlp=2)))
    assert list(decide.machine.state.borrowed) == ["j2"]
    effects = decide(SetVcs(vcs=vcs(nlp=4)))
    assert jobs(JobPromoted, effects) == ["j2"]
    assert decide.machine.state.cells.holds[AttemptId("j2.1")].guaranteed


def test_a_reservation_is_planned_anew_on_other_cells() -> None:
    decide = full(joined(), count=4, nlp=2)
    decide(admitted(5, gpus=2), 9)
    effects = decide(SetVcs(vcs=vcs(nlp=2, cv=2)))
    (fact,) = of(CellsSet, effects)
    assert JobFate(job="j5", fate="released", attempt=1) in fact.fates
    (claim,) = of(CellsReserved, effects)
    # Who was being stopped for it is preferred: that costs nothing more.
    assert claim.victims == ("j4", "j3") or set(claim.victims) == {"j4", "j3"}
    assert jobs(JobStopping, effects) == []


def described(*nodes: str, **owners: VirtualCluster) -> SetVcs:
    """Return a cluster of racks of two nodes of four GPUs, with a pinned pair on its first node."""
    levels = (
        Level(name="pair", fanout=2),
        Level(name="node", fanout=2),
        Level(name="rack", fanout=2),
    )
    chain = Chain(
        gpu="cpu",
        levels=levels,
        node_level="node",
        nodes=tuple(NodeCell(node=node) for node in nodes),
    )
    return SetVcs(
        chains={"main": chain}, vcs=owners, pins={"mine": Pin(chain="main", level="pair", index=0)}
    )


def test_chains_that_are_described_take_the_place_of_those_that_joined() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), nlp=8)
    decide(admitted(1, gpus=4))
    decide(started("j1"))
    owners = {
        "nlp": VirtualCluster(cells=(Quota(chain="main", level="node", count=1),)),
        "cv": VirtualCluster(pinned=("mine",)),
    }
    effects = decide(described("node-2", "node-1", **owners))
    (fact,) = of(CellsSet, effects)
    assert fact.fates == ()  # j1 has a whole node, which is one of nlp's cells.
    hold = decide.machine.state.cells.holds[AttemptId("j1.1")]
    assert (hold.chain, hold.guaranteed) == ("main", True)
    decide(admitted(2, vc="cv", gpus=2, pinned="mine"))
    assert placed(decide, "j2") == [("node-2", (0, 1), 2)]
    # A node that joins changes no chain that is described.
    assert of(CellsSet, decide(joined("node-3"))) == []
    decide(admitted(3, gpus=1, vc="lab", opportunistic=True))
    assert placed(decide, "j3") == [("node-2", (2,), 0)]


def test_a_job_on_hardware_that_is_in_no_chain_any_more_goes_on() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), joined("node-3"), nlp=12)
    for number in (1, 2, 3):
        decide(admitted(number, gpus=4))
    owner = VirtualCluster(cells=(Quota(chain="main", level="rack", count=1),))
    effects = decide(described("node-1", "node-2", nlp=owner))
    (fact,) = of(CellsSet, effects)
    assert fact.fates == (JobFate(job="j3", fate="demoted", attempt=1),)
    assert told(effects) == []
    # It comes back into a chain, and its GPUs are still its own.
    decide(SetVcs(vcs=vcs(nlp=12)))
    decide(admitted(4, gpus=4))
    assert decide.machine.state.jobs["j4"].state is State.QUEUED
    assert jobs(JobBound, decide(exited("j3", node="node-3"))) == ["j4"]


def test_a_node_of_a_described_chain_that_never_joined_is_bad() -> None:
    decide = allocator()
    owner = VirtualCluster(cells=(Quota(chain="main", level="node", count=2),))
    decide(described("node-1", "node-2", nlp=owner))
    decide(admitted(1, gpus=4))
    assert decide.machine.state.jobs["j1"].state is State.QUEUED
    assert jobs(JobBound, decide(joined("node-2"))) == ["j1"]
    assert placed(decide, "j1") == [("node-2", (0, 1, 2, 3), 3)]
    decide(admitted(2, gpus=1))
    # With other GPUs than the chain says it is of no use to it.
    assert jobs(JobBound, decide(joined("node-1", {"h200": 4}))) == []
    assert jobs(JobBound, decide(joined("node-1", incarnation=2))) == ["j2"]


# --- crashes ------------------------------------------------------------------------------------


def test_a_crash_in_the_middle_of_a_preemption() -> None:
    decide = full(joined(gpus=2), count=2, nlp=2)
    decide.machine.decide(admitted(3, gpus=2), decide.now)  # Its facts were never durable.
    decide.restart(8)
    assert decide.machine.state.reserved == {}
    assert jobs(CellsReserved, decide(admitted(3, gpus=2), 9)) == ["j3"]
    effects = decide.restart(10)  # Nor was it seen whether its commands went out.
    assert sorted(told(effects)) == [("stop", "j1"), ("stop", "j2")]
    decide(exited("j1", outcome=GONE))
    effects = decide.restart(11)
    assert told(effects) == [("stop", "j2")]
    assert jobs(JobBound, effects) == []
    assert jobs(JobBound, decide(exited("j2", outcome=GONE))) == ["j3"]
    assert told(decide.restart(12)) == [("bind", "j3")]
    assert len(decide.machine.state.cells.holds) == 1


def test_a_crash_in_the_middle_of_a_reconfiguration() -> None:
    decide = allocator(joined(), nlp=4)
    decide(admitted(1, gpus=2))
    decide(admitted(2, gpus=2))
    smaller = SetVcs(vcs=vcs(nlp=2, cv=2))
    decide.machine.decide(smaller, decide.now)
    decide.restart(8)
    assert decide.machine.state.borrowed == {}
    effects = decide(smaller)
    before = msgspec.json.encode(decide.machine.snapshot()[1])
    decide.restart(9)
    assert msgspec.json.encode(decide.machine.snapshot()[1]) == before
    assert list(decide.machine.state.borrowed) == ["j2"]
    assert of(CellsSet, effects)
    assert of(CellsSet, decide(smaller)) == []  # Read again, it changes nothing.


def test_a_crash_in_the_middle_of_a_gang_launch() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1), nlp=2)
    decide(admitted(1, workers=2))
    decide(started("j1"))
    (send,) = [each for each in decide.restart(3) if isinstance(each, Send)]
    assert isinstance(send.message, BindJob)
    assert (send.message.node, send.message.order) == ("node-2", 1)
    decide(started("j1", node="node-2"))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert told(decide.restart(4)) == []
    decide(exited("j1"))
    decide(exited("j1", node="node-2"))
    assert decide.machine.state.cells.holds == {}
