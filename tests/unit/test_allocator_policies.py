"""VCs with a policy: who is placed by a plan, who is preempted or held by it, and wrong plans."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from skep.ledger.job_state import State
from skep.ledger.snapshot import JobKept
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.policies import policy_views
from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.allocator.policies.policy_plans import HOLDS_TOLD
from skep.machines.allocator.policies.policy_views import of_vc
from skep.machines.base import Effect, Send
from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn, Withheld
from skep.policy.registry import POLICIES
from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.changes import AskResume, AskSuspend, GpusRegained
from skep.wire.cluster import Chain, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.commands import ChangeJob
from skep.wire.facts import CellsAlarm, JobBound, JobRequeued, JobStopping, JobWaits
from skep.wire.node import MemberKnown, NodeJoined, Outcome, Tier
from skep.wire.reasons import Reason
from tests.kit import (
    Driver,
    admitted,
    allocator,
    at,
    cancel_asked,
    exited,
    facts_of,
    heartbeat,
    joined,
    spec,
    started,
)
from tests.unit.test_allocator_changes import ask, changed, suspended, told


class Shortest(Policy, frozen=True):
    """Whoever has least work as told has the GPUs; the others are preempted, and held."""

    name: ClassVar[str] = "shortest"
    source: ClassVar[str] = "a test"
    strict: bool = True

    def plan(self, view: VcView) -> Plan:
        room, turns, actions = view.gpus, [], []
        for job in sorted(view.jobs, key=_length):
            if job.phase is Phase.STOPPING:
                continue
            if job.gpus <= room:
                room -= job.gpus
                if job.phase not in HOLDING:
                    turns.append(Turn(job.job, Reason.PREDICTED_SHORTEST))
            elif job.phase in HOLDING:
                actions.append(Preempt(job.job, Reason.PREDICTED_SHORTEST))
        return Plan(turns=tuple(turns), actions=tuple(actions), strict=self.strict)


def _length(job: JobView) -> tuple[int, int]:
    return job.expected or 0, job.sequence


class Broken(Policy, frozen=True):
    """A policy that does what its options say, whatever that is."""

    name: ClassVar[str] = "broken"
    source: ClassVar[str] = "a test"
    raises: bool = False
    names: tuple[str, ...] = ()

    def plan(self, view: VcView) -> Plan:
        if self.raises:
            raise ZeroDivisionError
        turns = tuple(Turn(name, Reason.ARRIVAL) for name in self.names)
        return Plan(
            turns=turns, actions=tuple(Preempt(name, Reason.ARRIVAL) for name in self.names)
        )


class Stubborn(Policy, frozen=True):
    """In order of arrival, everybody on the same nodes."""

    name: ClassVar[str] = "stubborn"
    source: ClassVar[str] = "a test"
    sees_nodes: ClassVar[bool] = True
    nodes: tuple[str, ...] = ()
    strict: bool = True

    def plan(self, view: VcView) -> Plan:
        turns = tuple(
            Turn(job.job, Reason.ARRIVAL, self.nodes)
            for job in view.jobs
            if job.phase not in HOLDING
        )
        return Plan(turns=turns, strict=self.strict)


class Later(Policy, frozen=True):
    """Nobody runs before ten seconds after the epoch of tests."""

    name: ClassVar[str] = "later"
    source: ClassVar[str] = "a test"

    def plan(self, view: VcView) -> Plan:
        if view.now < at(10):
            held = tuple(Withheld(job.job, Reason.WAITS_BEHIND, "later") for job in view.jobs)
            return Plan(holds=held, look_at=at(10))
        return Plan(turns=tuple(Turn(job.job, Reason.ARRIVAL) for job in view.jobs))


class Fickle(Policy, frozen=True):
    """Whoever runs has to go, and whoever waits has a turn: it never lets things be."""

    name: ClassVar[str] = "fickle"
    source: ClassVar[str] = "a test"

    def plan(self, view: VcView) -> Plan:
        goes = [job.job for job in view.jobs if job.phase is Phase.RUNNING and job.can]
        turns = [Turn(job.job, Reason.ARRIVAL) for job in view.jobs if job.phase not in HOLDING]
        actions = tuple(Preempt(name, Reason.OUTRANKED) for name in goes)
        return Plan(turns=tuple(turns), actions=actions, strict=False)


@pytest.fixture(autouse=True)
def _tested(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (Shortest, Broken, Stubborn, Later, Fickle):
        monkeypatch.setitem(POLICIES, each.name, each)


def under(
    policy: str, *nodes: NodeJoined, gpus: int = 1000, **options: Any
) -> Driver[AllocatorMachine]:
    """Return an allocator with these nodes, all of the VC `nlp`, which has a policy."""
    decide = allocator(*(nodes or (joined(gpus=4),)))
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=gpus, policy=policy, options=options)}))
    return decide


def job(number: int, length_s: float = 100, **changes: Any) -> Any:
    """Return the word that a job may run of which its owner says how long it runs."""
    return admitted(number, size=msgspec.structs.replace(spec().size, run_time=length_s), **changes)


def of(effects: list[Effect], kind: type[Any]) -> list[str]:
    return [fact.job for fact in facts_of(effects) if isinstance(fact, kind)]


def why(effects: list[Effect]) -> list[tuple[str, Reason, str]]:
    return [
        (fact.job, fact.why, fact.needs) for fact in facts_of(effects) if isinstance(fact, JobWaits)
    ]


def test_who_fits_goes_ahead_of_a_large_one_under_backfill() -> None:
    decide = under("backfill")
    assert of(decide(job(1, gpus=2)), JobBound) == ["j1"]
    assert of(decide(job(2, gpus=4)), JobBound) == []
    assert of(decide(job(3, gpus=2)), JobBound) == ["j3"]
    decide(started("j1"))
    decide(exited("j1"))
    assert decide.machine.state.jobs["j2"].state is State.QUEUED


def test_a_shorter_job_preempts_and_the_longer_one_waits_held() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    effects = decide(job(2, 10, gpus=4), 105)
    stopping = next(fact for fact in facts_of(effects) if isinstance(fact, JobStopping))
    assert (stopping.job, stopping.why) == ("j1", Reason.PREEMPTED_BY_POLICY)
    assert stopping.detail == "shortest, predicted-shortest"
    effects = decide(exited("j1", outcome=Outcome.STOPPED), 106)
    requeued = next(fact for fact in facts_of(effects) if isinstance(fact, JobRequeued))
    assert (requeued.why, requeued.counted) == (Reason.PREEMPTED_BY_POLICY, False)
    bound = next(fact for fact in facts_of(effects) if isinstance(fact, JobBound))
    assert (bound.job, bound.ranked) == ("j2", Reason.PREDICTED_SHORTEST)
    assert why(effects) == [("j1", Reason.HELD_BY_POLICY, "shortest")]
    kept = decide.machine.state.jobs["j1"]
    assert (kept.served, kept.starts, kept.waiting_since) == (seconds(100), 1, at(106))
    decide(started("j2"))
    assert of(decide(exited("j2"), 120), JobBound) == ["j1"]


def test_a_job_that_can_be_suspended_is_and_comes_back_by_its_turn() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    decide(
        MemberKnown(
            node="node-1",
            identity="id-node-1",
            job="j1",
            attempt=1,
            at=at(5),
            can=("suspend", "release"),
            tier=Tier.OBSERVED,
        )
    )
    (command,) = [
        each.message
        for each in decide(job(2, 10, gpus=4), 105)
        if isinstance(each, Send) and isinstance(each.message, ChangeJob)
    ]
    assert of(decide(changed(command, released=True), 106), JobBound) == ["j2"]
    assert list(decide.machine.state.away) == ["j1"]
    decide(started("j2"))
    effects = decide(exited("j2"), 120)
    assert of(effects, GpusRegained) == ["j1"]
    assert decide.machine.state.jobs["j1"].served == seconds(101)


def test_whose_gpus_were_taken_is_let_be_until_he_has_run_for_a_second() -> None:
    """Whatever his policy says: else he would go and come again for ever at one instant."""
    decide = under("fickle")
    decide(job(1, gpus=4), 1)
    decide(started("j1"), 5)
    told_at = []
    effects = decide(
        MemberKnown(
            node="node-1",
            identity="id-node-1",
            job="j1",
            attempt=1,
            at=at(5),
            can=("suspend", "release"),
            tier=Tier.OBSERVED,
        ),
        10,
    )
    for second in (10, 10.5, 11, 12):
        effects = effects if second == 10 else decide.tick(second)
        while commands := told(effects):
            told_at += [(second, type(each.change).__name__) for each in commands]
            assert len(told_at) < 20, told_at
            effects = [
                each for one in commands for each in decide(changed(one, at=at(second)), second)
            ]
    goes = [second for second, change in told_at if change == "Suspend"]
    assert goes == [10, 11, 12], told_at


def test_a_policy_is_asked_again_when_it_wished() -> None:
    decide = under("later")
    assert why(decide(job(1), 1)) == [("j1", Reason.WAITS_BEHIND, "later")]
    assert decide.machine.wake_at() is not None
    assert decide.machine.tx.soft.planned["nlp"].look_at == at(10)
    assert of(decide.tick(10), JobBound) == ["j1"]


def test_a_policy_that_raises_is_told_of_once_and_its_queue_served_in_order() -> None:
    decide = under("broken", raises=True)
    effects = decide(job(1), 1)
    alarms = [fact for fact in facts_of(effects) if isinstance(fact, CellsAlarm)]
    assert [(one.rule, one.vcs, one.over) for one in alarms] == []
    assert [(rule, where) for rule, _, where in decide.machine.state.alarms] == [
        (Reason.POLICY_FAILED, "nlp")
    ]
    assert of(effects, JobBound) == ["j1"]
    assert of(decide(job(2), 2), JobBound) == ["j2"]
    effects = decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000)}), 3)
    assert [fact.over for fact in facts_of(effects) if isinstance(fact, CellsAlarm)] == [True]


def test_a_policy_may_not_touch_what_is_not_its_own() -> None:
    decide = allocator(joined(gpus=4), nlp=2, other=2)
    decide(admitted(1, vc="other"), 1)
    decide(started("j1"))
    mine = VirtualCluster(gpus=2, policy="broken", options={"names": ["j1", "j9", "j2"]})
    effects = decide(SetVcs(vcs={"nlp": mine, "other": VirtualCluster(gpus=2)}), 2)
    (alarm,) = [fact for fact in facts_of(effects) if isinstance(fact, CellsAlarm)]
    assert (alarm.rule, alarm.where) == (Reason.NOT_ITS_JOB, "nlp")
    assert "preempt j1" in alarm.text
    assert of(decide(admitted(2), 3), JobBound) == ["j2"]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_another_policy_takes_effect_at_once_and_none_does_too() -> None:
    decide = under("later")
    decide(job(1, 50, gpus=4), 1)
    decide(job(2, 10, gpus=4), 1)
    effects = decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy="shortest")}), 2)
    assert of(effects, JobBound) == ["j2"]
    decide(started("j2"))
    decide(job(3, 5, gpus=4), 6)
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000)}), 7)
    assert decide.machine.tx.soft.planned == {}
    assert of(decide(exited("j2", outcome=Outcome.STOPPED), 8), JobBound) == ["j1"]


def test_las_tells_a_deep_queue_nothing_new_from_round_to_round() -> None:
    """Who waits hears the same at the beginning of a round and after it, until his turn comes."""
    decide = under("las", joined(gpus=1), round_s=10)
    for number in range(1, 10):
        decide(job(number), 1)
    runs, heard = "j1", list[str]()
    for number in range(1, 5):
        decide(started(runs, at=at(10 * number - 8)))
        assert of(decide.tick(10 * number), JobStopping) == [runs]
        effects = decide(exited(runs, outcome=Outcome.STOPPED), 10 * number + 0.1)
        (runs,) = of(effects, JobBound)
        heard += of(effects, JobWaits) if number > 1 else []
        later = decide(job(20 + number), 10 * number + 1)
        heard += of(later, JobWaits) if number > 1 else []
    assert runs == "j5"
    assert not {"j7", "j8", "j9"} & set(heard), heard


def test_what_a_restart_forgets_of_plans_is_made_again() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    decide(job(2, 2000, gpus=4), 6)
    before = dict(decide.machine.tx.soft.planned["nlp"].views)
    decide.restart(7)
    assert decide.machine.tx.soft.planned["nlp"].views == before
    decide(cancel_asked(2), 8)
    assert list(decide.machine.tx.soft.planned["nlp"].views) == ["j1"]
    view = decide.machine.tx.soft.planned["nlp"].views["j1"]
    assert view is not None
    assert view.ran(after(at(5), seconds(3))) == seconds(3)


def test_who_is_being_suspended_keeps_the_service_it_had() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    decide(known("j1"))
    decide(job(2, 10, gpus=4), 105)
    view = decide.machine.tx.soft.planned["nlp"].views["j1"]
    assert view is not None
    assert (view.phase, view.served) == (Phase.STOPPING, seconds(100))
    assert view.ran(at(110)) == seconds(100)


def test_nobody_is_stopped_while_he_goes_on_again() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    decide(known("j1"))
    (command,) = told(decide(job(2, 10, gpus=4), 105))
    decide(changed(command, released=True), 106)
    decide(started("j2"))
    (resume,) = told(decide(exited("j2"), 120))
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED
    effects = decide(job(3, 10, gpus=4), 121)
    assert of(effects, JobStopping) == []
    decide(changed(resume), 122)
    assert told(decide(job(4, 5000, gpus=4), 123)) != [], "it has run, and makes room alive"


def test_who_is_demoted_on_his_way_out_waits_from_then_on() -> None:
    """Else he would seem to have waited since before he ran."""
    decide = under("las")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    kept = decide.machine.state.jobs["j1"]
    decide(cancel_asked(1), 50)
    assert kept.state is State.STOPPING
    kept.changes_hands(at(60), borrows=True)
    assert kept.waiting_since == at(60)


def test_who_stood_with_his_gpus_waited_for_none() -> None:
    decide = under("srtf")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    decide(known("j1"))

    def stood() -> bool:
        policy_views.bring_up(decide.machine.tx, None)
        seen = decide.machine.tx.soft.planned["nlp"].views["j1"]
        return seen is not None and seen.stood

    for number, release in ((2, False), (4, True)):
        (command,) = told(decide(ask(number, AskSuspend(job="j1", release=release)), 10 * number))
        decide(changed(command, released=release), 10 * number + 1)
        (command,) = told(decide(ask(number + 1, AskResume(job="j1")), 10 * number + 5))
        decide(changed(command), 10 * number + 6)
        assert decide.machine.state.jobs["j1"].state is State.RUNNING
        assert stood() is not release


def test_a_deep_queue_is_told_why_it_waits_bit_by_bit() -> None:
    decide = under("later")
    decide(job(1, gpus=4), 1)
    for number in range(2, 140):
        decide(job(number, gpus=4), 1)
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy="srtf")}), 2)
    while decide.machine.wake_at() == at(2):
        decide.tick(2)
    effects = decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy="backfill")}), 3)
    said = [len(why(effects))]
    while decide.machine.wake_at() == at(3):
        said.append(len(why(decide.tick(3))))
    assert max(said) <= HOLDS_TOLD + 1
    waiting = [each for each in decide.machine.state.jobs.values() if each.state is State.QUEUED]
    held = [each for each in waiting if each.waits and each.waits[0] is Reason.HELD_BY_POLICY]
    assert held == []


def test_a_policy_says_once_why_all_others_wait() -> None:
    decide = under("las", fill=False)
    begins = -(at(0) // NS_PER_SECOND) % 360
    decide(heartbeat(), begins + 359)
    for number in range(1, 5):
        decide(job(number, gpus=4), begins + 359)
    waiting = [decide.machine.state.jobs[f"j{number}"] for number in range(1, 5)]
    assert {each.waits for each in waiting} == {(Reason.WAITS_BEHIND, "")}
    effects = decide.tick(begins + 360)
    assert of(effects, JobBound) == ["j1"]
    assert why(effects) == []


def test_a_snapshot_of_jobs_whose_service_was_not_counted_begins_to_count() -> None:
    decide = under("shortest")
    decide(job(1, 1000, gpus=4), 1)
    decide(started("j1"), 5)
    old = AllocatorMachine()
    for piece in decide.machine.snapshot():
        if isinstance(piece, JobKept):
            bare = msgspec.structs.replace(
                piece.job, since=Instant(0), began_at=Instant(0), waiting_since=Instant(0)
            )
            old.apply(JobKept(job=bare))
        else:
            old.apply(piece)
    kept = old.state.jobs["j1"]
    assert (kept.since, kept.began_at, kept.served) == (kept.ran_at, kept.ran_at, 0)


def test_a_policy_that_cannot_be_made_any_more_is_told_and_its_queue_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = under("shortest")
    monkeypatch.delitem(POLICIES, "shortest")
    decide.restart(2)
    assert of(decide(job(1), 3), JobBound) == ["j1"]
    ((rule, _, where),) = decide.machine.state.alarms
    assert (rule, where) == (Reason.POLICY_FAILED, "nlp")
    effects = decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000)}), 4)
    assert [fact.over for fact in facts_of(effects) if isinstance(fact, CellsAlarm)] == [True]


def known(name: str, node: str = "node-1") -> MemberKnown:
    """Return the word that a job can be suspended and give its GPUs back."""
    return MemberKnown(
        node=node,
        identity=f"id-{node}",
        job=name,
        attempt=1,
        at=at(5),
        can=("suspend", "release"),
        tier=Tier.OBSERVED,
    )


def test_a_move_that_comes_to_nothing_is_tried_again_later_and_later() -> None:
    planned = Planned("nlp", Shortest())
    assert planned.try_elsewhere("j1", at(0))
    assert not planned.try_elsewhere("j1", at(29))
    assert planned.look_at == at(30)
    assert planned.try_elsewhere("j1", at(30))
    assert not planned.try_elsewhere("j1", at(89))
    assert planned.try_elsewhere("j2", at(89))


def test_many_who_may_only_borrow_are_told_why_they_wait_bit_by_bit() -> None:
    decide = under("later", joined(gpus=4), joined("node-2", gpus=4))
    for number in range(1, 140):
        decide(job(number, gpus=4, workers=2, over_quota="opportunistic"), 1)
    effects = decide(
        SetVcs(vcs={"nlp": VirtualCluster(gpus=4, policy="later"), "cv": VirtualCluster(gpus=4)}), 2
    )
    said = [len(why(effects))]
    while decide.machine.wake_at() == at(2):
        said.append(len(why(decide.tick(2))))
    assert sum(said) >= 138, "everybody is told that he waits for what he may borrow"
    assert max(said) <= 2 * (HOLDS_TOLD + 1)


def test_what_is_known_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_views, "FITS_MAX", 5, raising=False)
    decide = under("srtf")
    for number in range(1, 20):
        decide(job(number, cpus=number), 1)
    assert len(decide.machine.tx.soft.planned["nlp"].fits) <= 5


def test_a_node_is_seen_with_the_type_and_gpus_that_its_chain_has_now() -> None:
    decide = allocator(joined(gpus={"cpu": 4}))

    def seen(gpu: str, gpus: int) -> list[tuple[str, int]]:
        chain = Chain(
            gpu=gpu,
            levels=(Level(name="node", fanout=gpus),),
            node_level="node",
            nodes=(NodeCell(node="node-1"),),
        )
        cells = (Quota(chain="c", level="node", count=1),)
        decide(SetVcs(chains={"c": chain}, vcs={"nlp": VirtualCluster(cells=cells, policy="srtf")}))
        nodes = decide.machine.tx.soft.planned["nlp"].seats.views(decide.machine.state, "nlp")
        return [(node.gpu_type, node.gpus) for node in nodes]

    assert seen("cpu", 4) == [("cpu", 4)]
    assert seen("cpu", 2) == [("cpu", 2)]
    assert seen("gpu", 2) == [("gpu", 2)]
    assert seen("tpu", 2) == [("tpu", 2)], "no GPU of it is free here or there"


PAIRS = Chain(
    gpu="cpu",
    levels=(Level("socket", 2), Level("node", 2)),
    node_level="node",
    nodes=(NodeCell("node-1"), NodeCell("node-2")),
)
"""Two nodes of two sockets with two GPUs each."""


def within(
    policy: str, *cells: Quota, pinned: Mapping[str, Pin] = {}, **options: Any
) -> Driver[AllocatorMachine]:
    """Return an allocator of two nodes, in which `nlp` has these cells."""
    decide = allocator(joined("node-1"), joined("node-2"))
    nlp = VirtualCluster(cells=cells, pinned=tuple(pinned), policy=policy, options=options)
    vcs = {"nlp": nlp, "cv": VirtualCluster()}
    decide(SetVcs(vcs=vcs, chains={"x": PAIRS}, pins=dict(pinned)))
    return decide


def test_a_pinned_cell_is_seen_apart_and_serves_who_names_it() -> None:
    """The policy would wait for ever for a node on which all that is free is pinned."""
    decide = within("packing", Quota("x", "socket", 1), pinned={"big": Pin("x", "socket", 0)})
    view = of_vc(decide.machine.tx, decide.machine.tx.soft.planned["nlp"], at(0))
    assert (view.gpus, view.free, view.free_for()) == (4, 4, {"": 2, "big": 2})
    assert {node.node: (node.free, node.pins) for node in view.nodes} == {
        "node-1": (2, (("big", 2),))
    }
    assert of(decide(job(1, gpus=2)), JobBound) == ["j1"]
    assert of(decide(job(2, gpus=1)), JobBound) == []
    assert of(decide(job(3, gpus=2, pinned="big")), JobBound) == []  # Strictly after j2.
    bound = facts_of(decide(exited("j1")))
    assert [fact.job for fact in bound if isinstance(fact, JobBound)] == ["j2", "j3"]


def test_who_is_sent_where_the_cells_have_no_room_goes_where_they_have() -> None:
    """Free on node-1 are one GPU of one socket and two of the other, and no worker is on both.

    By what the view shows, three GPUs fit there: the job would wait until the first is over.
    """
    decide = within("packing", Quota("x", "socket", 2), Quota("x", "node", 1))
    assert of(decide(job(1, gpus=1)), JobBound) == ["j1"]
    bound = [fact for fact in facts_of(decide(job(2, gpus=3))) if isinstance(fact, JobBound)]
    assert [(fact.job, fact.members[0].node) for fact in bound] == [("j2", "node-2")]


def test_a_suspended_job_goes_on_in_a_free_cell_that_is_not_the_first() -> None:
    """The view has as many free cells as the VC may bind: those around its suspended jobs first."""
    decide = allocator(joined("node-1"), joined("node-2"))
    one = (Quota("x", "node", 1),)
    vcs = {"nlp": VirtualCluster(cells=one, policy="srtf"), "cv": VirtualCluster(cells=one)}
    decide(SetVcs(vcs=vcs, chains={"x": PAIRS}))
    assert of(decide(admitted(1, vc="cv", gpus=4), 1), JobBound) == ["j1"]
    decide(job(2, 1000, gpus=4), 2)
    decide(started("j2", node="node-2"), 3)
    decide(known("j2", node="node-2"))
    (command,) = told(decide(job(3, 10, gpus=4), 50))
    assert of(decide(changed(command, released=True), 51), JobBound) == ["j3"]
    decide(started("j3", node="node-2"), 52)
    decide(started("j1"), 53)
    decide(exited("j1"), 54)
    assert of(decide(exited("j3", node="node-2"), 60), GpusRegained) == ["j2"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_node_that_is_not_there_holds_up_nobody(strict: bool) -> None:
    decide = under("stubborn", nodes=("node-9",), strict=strict)
    assert of(decide(job(1, gpus=3)), JobBound) == ["j1"]
    assert of(decide(job(2, gpus=3)), JobBound) == []
    assert of(decide(exited("j1")), JobBound) == ["j2"]


def test_a_turn_waits_for_its_nodes_while_a_job_is_there_whose_end_makes_room() -> None:
    decide = under("stubborn", joined("node-1"), joined("node-2"), nodes=("node-1",))
    assert of(decide(job(1, gpus=3)), JobBound) == ["j1"]
    assert of(decide(job(2, gpus=3)), JobBound) == []
    assert of(decide(job(3, gpus=1)), JobBound) == []
    bound = [fact for fact in facts_of(decide(exited("j1"))) if isinstance(fact, JobBound)]
    assert [(fact.job, fact.members[0].node) for fact in bound] == [
        ("j2", "node-1"),
        ("j3", "node-1"),
    ]


def test_who_stood_without_gpus_and_is_cancelled_goes_on_no_more() -> None:
    """Its processes stand still until they are gone: a turn, or a move beside others, is nothing.

    Nor does it wait for anything.
    """
    decide = under("later")
    decide(job(1), 11)
    decide(started("j1"))
    decide(known("j1"))
    suspended(decide, release=True)
    planned = decide.machine.tx.soft.planned["nlp"]
    planned.policy = Broken(names=("j1",))
    effects = decide(cancel_asked(1), 20)
    assert of(effects, JobStopping) == ["j1"]
    assert of(effects, GpusRegained) == []
    assert why(effects) == []


@pytest.mark.parametrize("over_quota", ["auto", "wait"])
def test_a_job_that_cannot_move_from_where_its_vc_owns_nothing_goes_on_there(
    over_quota: str,
) -> None:
    """Its policy would wait for ever for nodes that its VC's cells never cover."""
    decide = allocator(joined("node-1"), joined("node-2"))
    level = (Level("node", 4),)
    chains = {
        name: Chain(gpu="cpu", levels=level, node_level="node", nodes=(NodeCell(node),))
        for name, node in (("one", "node-1"), ("two", "node-2"))
    }

    def owns(chain: str) -> SetVcs:
        nlp = VirtualCluster(cells=(Quota(chain, "node", 1),), policy="srtf")
        return SetVcs(vcs={"nlp": nlp, "cv": VirtualCluster()}, chains=chains)

    decide(owns("one"))
    assert of(decide(job(1, gpus=2, over_quota=over_quota), 1), JobBound) == ["j1"]
    decide(started("j1"), 2)
    decide(known("j1"), 5)
    (command,) = told(decide(ask(10, AskSuspend(job="j1", release=True)), 6))
    decide(changed(command), 7)
    decide(owns("two"), 8)

    effects = decide(ask(11, AskResume(job="j1")), 9)
    assert of(effects, GpusRegained) == [], "as whatever stands, it is not lent GPUs at once"
    while not of(effects, GpusRegained):
        wakes = decide.machine.wake_at()
        assert wakes is not None
        assert wakes < at(30), "it waits for ever"
        effects = decide.tick((wakes - at(0)) / NS_PER_SECOND)
    (command,) = told(effects)
    decide(changed(command), 31)
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert "j1" in decide.machine.state.borrowed, "it gives way to whoever owns the node"
