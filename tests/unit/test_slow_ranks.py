"""Ranks that are slow and not hung: when that is found, and when a node is blamed for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.ledger import held_up
from skep.ledger.fold import apply
from skep.ledger.snapshot import Kept, keep
from skep.ledger.state import ClusterState
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Restarted, Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.perf.slow_ranks import HELD, SAID_EVERY, Slow, SlowWatch
from skep.units import seconds
from skep.wire.admin import QuarantineGpu, SetVcs
from skep.wire.cluster import QuarantineRule
from skep.wire.codec import encode
from skep.wire.facts import GpuQuarantined
from skep.wire.held_up import RANKS_MAX, GangHeldUp, GangSlowed, OwnTime, PlaceBlamed, slower_milli
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat, HungPart, JobProgress, NodeReport, RankProgress, RankStands
from skep_services.gateway.texts import blamed_text, held_text
from tests.kit import Driver, admitted, allocator, at, exited, joined, started
from tests.unit.test_allocator_changes import known, of
from tests.unit.test_allocator_mixed import BIG, SMALL
from tests.unit.test_allocator_mixed import running as running_mixed
from tests.unit.test_hung_jobs import LOADS, WAITS

MS = 1_000_000


def owns(*own_ms: float, loads: tuple[float, ...] = ()) -> dict[int, OwnTime]:
    """Return what ranks report, in milliseconds."""
    more = (*loads, *[0.0] * (len(own_ms) - len(loads)))
    return {
        rank: OwnTime(own_ns=round(own * MS), load_ns=round(load * MS))
        for rank, (own, load) in enumerate(zip(own_ms, more, strict=True))
    }


def looked(watch: SlowWatch, said: dict[int, OwnTime], times: int = HELD) -> list[Slow]:
    """Return what is found in so many looks at the same."""
    return [each for _ in range(times) for each in watch.look(said, 200 * MS)]


def test_a_rank_is_slow_once_that_has_lasted_and_is_not_once_it_has_not() -> None:
    watch = SlowWatch()
    slow = owns(100, 105, 180, 98)
    assert looked(watch, slow, HELD - 1) == []
    assert looked(watch, owns(100, 105, 101, 98), 1) == [], "one look begins anew"
    assert looked(watch, slow) == [Slow(2, 180 * MS, 100 * MS, loads=False)]
    assert set(looked(watch, slow, SAID_EVERY)) == {Slow(2, 180 * MS, 100 * MS, loads=False)}
    half = owns(100, 105, 125, 98)
    assert all(not each.over for each in looked(watch, half, 3 * HELD)), "half way back is not back"
    even = owns(100, 105, 104, 98)
    assert looked(watch, even) == [Slow(2, 104 * MS, 100 * MS, loads=False, over=True)]


def test_a_loader_is_named_also_where_own_times_do_not_differ() -> None:
    assert looked(SlowWatch(), owns(100, 180, loads=(1, 79))) == [
        Slow(1, 180 * MS, 100 * MS, loads=True)
    ]
    assert looked(SlowWatch(), owns(100, 100, loads=(1, 79))) == [
        Slow(1, 178 * MS, 100 * MS, loads=True)
    ]


@pytest.mark.parametrize(
    "said",
    [
        owns(100, 128),  # Below the factor.
        owns(2, 20),  # Ten times as much, and little of a mini-batch of 200 ms.
        owns(100),  # There is nothing to compare with.
        owns(100, 100, 100, 100),
    ],
)
def test_what_differs_little_says_nothing(said: dict[int, OwnTime]) -> None:
    assert looked(SlowWatch(), said, 4 * HELD) == []


def test_two_ranks_of_a_slow_node_are_both_found() -> None:
    found = looked(SlowWatch(), owns(100, 102, 190, 180))
    assert [(each.rank, each.usual_ns) for each in found] == [(2, 102 * MS), (3, 102 * MS)]


def test_of_more_slow_ranks_than_are_named_none_is_the_cause() -> None:
    watch, many = SlowWatch(), owns(*[100] * 10, *[180] * 10)
    assert looked(watch, many, 3 * HELD) == []
    few = owns(*[100] * 12, *[180] * RANKS_MAX)
    assert len(looked(watch, few)) == RANKS_MAX
    assert [each.rank for each in looked(watch, many) if each.over] == [*range(12, 20)]
    assert watch.slow == {}


def test_ranks_that_left_are_forgotten() -> None:
    watch = SlowWatch()
    looked(watch, owns(100, 100, 180))
    assert watch.leave(2) == [2]
    assert watch.slow == {}


def test_the_loss_is_what_is_beyond_the_median() -> None:
    assert slower_milli(180 * MS, 100 * MS, 180 * MS) == 1800
    assert slower_milli(180 * MS, 100 * MS, 280 * MS) == 1400
    assert slower_milli(100 * MS, 100 * MS, 200 * MS) == 0
    assert slower_milli(10**15, 1, 2) == 2000, "what cannot be is bounded"


def reports(own_ms: tuple[float, ...], count: int) -> list[GangSlowed]:
    """Return what the introspector says of a gang on two nodes, by so many reports of each."""
    machine = IntrospectorMachine()
    effects: list[Any] = machine.decide(Restarted(1), at(0))
    for second in range(1, count + 1):
        for node, own in enumerate(own_ms):
            rank = RankProgress(
                rank=node,
                steps=5 * second,
                step_ns=200 * MS,
                last_step_at=at(second),
                own=OwnTime(own_ns=round(own * MS)) if second % 5 == node else None,
            )
            progress = JobProgress(job="j1", attempt=1, world=2, ranks=(rank,))
            report = NodeReport(node=f"node-{node + 1}", at=at(second + 0.1), jobs=(progress,))
            effects += machine.decide(report, at(second + 0.1))
            machine.check()
        effects += machine.decide(Tick(), at(second + 0.9))
    said = [each.message for each in effects if isinstance(each, Send)]
    return [each for each in said if isinstance(each, GangSlowed)]


def test_the_introspector_says_which_rank_of_a_gang_is_slow_and_where() -> None:
    first, *more = reports((100, 180), 200)
    assert (first.job, first.rank, first.node) == ("j1", 1, "node-2")
    assert (first.own_ns, first.usual_ns, first.step_ns) == (180 * MS, 100 * MS, 200 * MS)
    assert first.at - at(0) < seconds(80)
    assert len(more) <= 2, "it is said again every minute"
    assert reports((100, 104), 200) == []


# --- blame ---------------------------------------------------------------------------------------


def cluster(**rule: Any) -> Driver[AllocatorMachine]:
    """Return an allocator with two nodes of four GPUs, and this rule of quarantine."""
    decide = allocator(joined("node-1"), joined("node-2"))
    asked = decide.machine.state.asked
    decide(SetVcs(vcs=asked.vcs, chains=asked.chains, quarantine=QuarantineRule(**rule)))
    return decide


def run(decide: Driver[AllocatorMachine], number: int, owner: str) -> str:
    """Have a gang of two with two GPUs each run on both nodes."""
    said = admitted(number, workers=2, gpus=4)
    facts = tuple(msgspec.structs.replace(fact, owner=owner) for fact in said.facts)
    decide(msgspec.structs.replace(said, facts=facts))
    job = f"j{number}"
    for node in ("node-1", "node-2"):
        decide(started(job, node=node))
        decide(known(job, node, ()))
    return job


def run_on_one(
    decide: Driver[AllocatorMachine], number: int, owner: str, workers: int = 2, vc: str = "nlp"
) -> str:
    """Have a gang run on node-1."""
    said = admitted(number, workers=workers, gpus=1, vc=vc)
    facts = tuple(msgspec.structs.replace(fact, owner=owner) for fact in said.facts)
    decide(msgspec.structs.replace(said, facts=facts))
    decide(started(f"j{number}"))
    return f"j{number}"


def end(decide: Driver[AllocatorMachine], job: str) -> None:
    for node in ("node-1", "node-2"):
        decide(exited(job, node=node, outcome=Outcome.SUCCEEDED))


def slowed(job: str, node: str, rank: int, **more: Any) -> GangSlowed:
    return GangSlowed(
        at=at(1),
        job=job,
        attempt=1,
        rank=rank,
        node=node,
        own_ns=180 * MS,
        usual_ns=100 * MS,
        step_ns=180 * MS,
        **more,
    )


def slow_on(decide: Driver[AllocatorMachine], node: str, *owners: str) -> list[Any]:
    """Have a job of each owner be slow on a node, one after the other; return all effects.

    The nodes are judged once what was found has settled, and stay heard.
    """
    effects: list[Any] = []
    rank = 0 if node == "node-1" else 1
    for number, owner in enumerate(owners, 1 + decide.machine.state.last_queued):
        job = run(decide, number, owner)
        effects += decide(slowed(job, node, rank))
        end(decide, job)
    return effects + settled(decide)


def settled(decide: Driver[AllocatorMachine]) -> list[Any]:
    """Let what was found settle; return the effects of judging the nodes."""
    later = (decide.now - at(0)) / seconds(1) + 20
    for node in ("node-1", "node-2"):
        decide(Heartbeat(node=node, identity=f"id-{node}", at=at(later)), later)
    return decide.tick(later)


def test_a_slow_rank_becomes_a_fact_once_and_is_over_once() -> None:
    decide = cluster()
    job = run(decide, 1, "ann")
    (fact,) = of(decide(slowed(job, "node-2", 1)), GangHeldUp)
    assert (fact.why, fact.tenant, fact.slower_milli) == (Reason.RANK_SLOW, "ann", 1800)
    assert held_text(fact) == (
        "the gang trains 1.8 x slower for rank 1 on node-2, GPU 0, 1, 2, 3: it spends 180 ms of a "
        "mini-batch on its own, the median of the gang is 100 ms"
    )
    assert decide(slowed(job, "node-2", 1)) == []
    assert held_up.holding(decide.machine.state, job) == (fact,)
    (over,) = of(decide(slowed(job, "node-2", 1, over=True)), GangHeldUp)
    assert over.over
    assert held_up.holding(decide.machine.state, job) == ()
    assert decide(slowed(job, "node-2", 1, over=True)) == []


@pytest.mark.parametrize(
    "event",
    [
        slowed("j9", "node-2", 1),
        slowed("j1", "node-1", 1),
        slowed("j1", "node-7", 0),
        slowed("j1", "node-2", 77),
    ],
)
def test_what_is_not_so_says_nothing(event: GangSlowed) -> None:
    decide = cluster()
    run(decide, 1, "ann")
    assert decide(event) == []


def test_a_slow_rank_that_is_not_said_again_is_slow_no_more() -> None:
    decide = cluster()
    job = run(decide, 1, "ann")
    decide(slowed(job, "node-2", 1), 1)
    found = []
    for second in range(2, 330, 2):
        for node in ("node-1", "node-2"):
            decide(Heartbeat(node=node, identity=f"id-{node}", at=at(second)), second)
        found += of(decide.tick(second), GangHeldUp)
    assert [fact.over for fact in found] == [True]


def test_a_node_is_blamed_by_jobs_of_two_tenants_and_nothing_is_quarantined() -> None:
    decide = cluster()
    assert of(slow_on(decide, "node-2", "ann", "bob"), PlaceBlamed) == []
    effects = slow_on(decide, "node-2", "ann")
    (blamed,) = of(effects, PlaceBlamed)
    assert (blamed.place, blamed.findings, blamed.tenants) == ("node-2", 3, 2)
    assert blamed_text(blamed) == (
        "node-2 is blamed: 3 times a rank there was slow or hung (j1, j2, j3)"
    )
    assert of(effects, GpuQuarantined) == []
    assert of(slow_on(decide, "node-2", "bob"), PlaceBlamed) == [], "it is blamed already"


def test_ranks_of_one_attempt_are_one_finding() -> None:
    decide = allocator(joined("node-1"))
    for number, owner in ((1, "ann"), (2, "bob")):
        run_on_one(decide, number, owner, 4)
        effects = [decide(slowed(f"j{number}", "node-1", rank)) for rank in range(3)]
        assert [len(of(each, GangHeldUp)) for each in effects] == [1, 1, 1]
        decide(exited(f"j{number}", outcome=Outcome.SUCCEEDED))
    decide.tick(30)
    assert not any(isinstance(fact, PlaceBlamed) for fact in decide.facts)
    signs = decide.machine.state.held_up.signs["node-1"].values()
    assert [(len(sign.times), sign.devices) for sign in signs] == [(1, [0, 1, 2])] * 2


def test_a_job_that_is_slow_on_two_nodes_in_one_look_blames_none() -> None:
    decide = cluster(slow=2)
    slow_on(decide, "node-1", "ann")
    job = run(decide, 2, "bob")
    decide(slowed(job, "node-1", 0))
    decide(slowed(job, "node-2", 1))
    settled(decide)
    assert not any(isinstance(fact, PlaceBlamed) for fact in decide.facts)


def test_a_job_that_hangs_on_two_nodes_blames_neither() -> None:
    decide = cluster(slow=2)
    slow_on(decide, "node-1", "ann")
    said: Any = admitted(2, workers=4, gpus=2)
    (fact,) = said.facts
    spec = msgspec.structs.replace(fact.spec, restart_hung=300)
    decide(msgspec.structs.replace(said, facts=(msgspec.structs.replace(fact, spec=spec),)))
    effects: list[Any] = []
    for node in ("node-1", "node-2"):
        decide(started("j2", node=node))
        decide(known("j2", node, ()))
    for node, numbers in (("node-1", (0, 1)), ("node-2", (2, 3))):
        ranks = tuple(
            RankStands(rank=rank, stands=stands)
            for rank, stands in zip(numbers, (LOADS, WAITS), strict=True)
        )
        part = HungPart(job="j2", attempt=1, silent_ns=seconds(300), ranks=ranks)
        now = decide.now
        effects += decide(Heartbeat(node=node, identity=f"id-{node}", at=now, hung=(part,)))
    assert [fact.node for fact in of(effects, GangHeldUp)] == ["node-1", "node-2"]
    settled(decide)
    assert not any(isinstance(fact, PlaceBlamed) for fact in decide.facts)


def test_a_finding_that_has_yet_to_settle_counts_when_it_has() -> None:
    decide = cluster(slow=2)
    first, second = run_on_one(decide, 1, "ann"), run_on_one(decide, 2, "bob")
    decide(slowed(first, "node-1", 0), 1)
    decide(slowed(second, "node-1", 0), 15)
    assert of(decide.tick(21), PlaceBlamed) == []
    assert len(of(settled(decide), PlaceBlamed)) == 1


def test_a_restart_does_not_forget_which_nodes_are_to_be_judged() -> None:
    decide = cluster(slow=2)
    first, second = run_on_one(decide, 1, "ann"), run_on_one(decide, 2, "bob")
    for job in (first, second):
        decide(slowed(job, "node-1", 0))
    decide(Restarted(2))
    assert len(of(settled(decide), PlaceBlamed)) == 1


@pytest.mark.parametrize(
    "of_jobs, tenants",
    [
        ((("ann", "nlp"), ("", "nlp")), 0),
        ((("ann", "nlp"), ("ann", "cv"), ("", "nlp"), ("", "cv")), 0),
        ((("ann", "nlp"), ("", "cv")), 2),
        ((("ann", "nlp"), ("bob", "nlp"), ("", "nlp")), 2),
        ((("", "nlp"), ("", "cv")), 2),
    ],
)
def test_an_owner_who_has_the_token_of_a_vc_is_one_tenant(
    of_jobs: tuple[tuple[str, str], ...], tenants: int
) -> None:
    decide = allocator(joined("node-1"), nlp=2, cv=2)
    asked = decide.machine.state.asked
    decide(SetVcs(vcs=asked.vcs, chains=asked.chains, quarantine=QuarantineRule(slow=2)))
    for number, (owner, vc) in enumerate(of_jobs, 1):
        run_on_one(decide, number, owner, vc=vc)
        decide(slowed(f"j{number}", "node-1", 1))
        decide(exited(f"j{number}", outcome=Outcome.SUCCEEDED))
    blamed = of(settled(decide), PlaceBlamed)
    assert [fact.tenants for fact in blamed] == ([tenants] if tenants else [])


def test_one_tenant_alone_blames_nothing() -> None:
    decide = cluster(slow=1, quarantine_slow=True)
    effects = slow_on(decide, "node-2", *["ann"] * 12)
    assert len(of(effects, GangHeldUp)) == 12
    assert of(effects, PlaceBlamed) == of(effects, GpuQuarantined) == []


def test_a_job_that_is_slow_wherever_it_runs_blames_nothing() -> None:
    decide = cluster(slow=2)
    job = run(decide, 1, "ann")
    decide(slowed(job, "node-1", 0))
    decide(slowed(job, "node-2", 1))
    end(decide, job)
    assert of(slow_on(decide, "node-2", "bob"), PlaceBlamed) == []


def test_a_blamed_place_is_quarantined_if_it_is_wanted_and_acquitted_by_hand() -> None:
    decide = cluster(quarantine_slow=True, share=0.5)
    out = of(slow_on(decide, "node-2", "ann", "bob", "eve"), GpuQuarantined)
    assert [(each.node, each.device, each.why) for each in out] == [
        ("node-2", index, Reason.HELD_UP_GANGS) for index in range(4)
    ]
    back = decide(QuarantineGpu(node="node-2", device=0, quarantine=False))
    assert [each.blamed for each in of(back, PlaceBlamed)] == [False]
    assert decide.machine.state.held_up.signs == {}


def test_a_rank_on_the_slower_type_of_a_mixed_gang_is_not_slow() -> None:
    decide = allocator(BIG, SMALL)
    running_mixed(decide)
    assert decide(slowed("j1", "node-1", 0)) == []
    same = allocator(joined("node-1", {"a100": 3}), joined("node-2", {"a100": 1}))
    running_mixed(same)
    assert len(of(same(slowed("j1", "node-1", 0)), GangHeldUp)) == 1, "two chains of one type"


def test_what_speaks_against_nodes_outlives_a_snapshot() -> None:
    decide = cluster()
    slow_on(decide, "node-2", "ann", "bob")
    job = run(decide, 3, "eve")
    decide(slowed(job, "node-2", 1))
    again = ClusterState()
    for piece in keep(decide.machine.state):
        apply(again, msgspec.json.decode(encode(piece), type=Kept))
    assert again.held_up == decide.machine.state.held_up
