"""The allocator binds: whom, where, in which order, and what it tells the agents."""

from typing import Any

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement.placing import MEMBERS_BOUND_MAX
from skep.machines.base import Effect, Record, Send, Tick
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.advice import JobAdvice, QueueAdvice
from skep.wire.cluster import Chain, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import Facts, Unreadable, encode
from skep.wire.commands import AGENT_PYTHON
from skep.wire.facts import Admitted, JobBound, JobEnded, JobOver, JobQueued, JobWaits, NodeAdded
from skep.wire.node import MemberStepped, NodeJoined
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_GPUS_MAX, GANG_NODES_MAX, SPEC_BYTES_MAX, Runtime
from skep_services.shell import RECORD_BYTES
from tests.kit import (
    T0,
    TRACE,
    Driver,
    admitted,
    allocator,
    at,
    bind,
    cells_set,
    exited,
    facts_of,
    heartbeat,
    joined,
    member,
    plans,
    spec,
    started,
    vcs,
)

ONE, FEWEST = Reason.BEST_FIT_ONE_NODE, Reason.FEWEST_NODES


def queued(number: int, **changes: Any) -> JobQueued:
    return JobQueued(job=f"j{number}", spec=spec(**changes), submitted_at=at(number))


def places(effects: list[Effect]) -> dict[str, str]:
    """Return where jobs were bound, as `node-1:0,1 node-2:0`."""
    return {
        effect.fact.job: " ".join(
            f"{each.node}:{','.join(str(d) for rank in each.devices for d in rank)}"
            for each in effect.fact.members
        )
        for effect in effects
        if isinstance(effect, Record) and isinstance(effect.fact, JobBound)
    }


def waits(effects: list[Effect]) -> list[tuple[str, Reason, str]]:
    return [
        (effect.fact.job, effect.fact.why, effect.fact.needs)
        for effect in effects
        if isinstance(effect, Record) and isinstance(effect.fact, JobWaits)
    ]


# --- one job ------------------------------------------------------------------------------------


def test_a_job_is_queued_bound_and_told_to_its_agent() -> None:
    decide = allocator(joined())
    assert decide(admitted(1, trace=TRACE), 3) == [
        Record(JobQueued(job="j1", spec=spec(), submitted_at=at(1), trace=TRACE)),
        Record(
            JobBound(
                job="j1",
                attempt=1,
                order=1,
                members=(member("node-1", (0,), levels=(3,)),),
                master_port=20000,
                why=ONE,
                at=at(3),
                trace=TRACE,
                chain="cpux4",
            )
        ),
        Send("skep.v1.cmd.node-1", bind(trace=TRACE), {"traceparent": TRACE}),
    ]
    assert decide.machine.wake_at() == at(1)  # The node is looked after, then the bind.


def test_a_gang_over_two_nodes_meets_at_its_first() -> None:
    decide = allocator(joined("node-1"), joined("node-2"))
    job: dict[str, Any] = {
        "gpus": 2,
        "workers": 3,
        "script": "train.py",
        "args": ("-x",),
        "name": "gang",
        "env": {"A": "1"},
        "workdir": "/data",
    }
    whole = member("node-1", (0, 1), (2, 3), levels=(3, 3))
    half = member("node-2", (0, 1), first_rank=2, levels=(3,))
    told: dict[str, Any] = {
        "name": "gang",
        "argv": (AGENT_PYTHON, "-m", "skep_job", "train.py", "-x"),
        "world": 3,
        "nodes": 2,
        "master_address": "10.0.0.1",
        "env": {"A": "1"},
        "workdir": "/data",
    }
    assert decide(admitted(1, **job), 3) == [
        Record(queued(1, **job)),
        Record(
            JobBound(
                job="j1",
                attempt=1,
                order=1,
                members=(whole, half),
                master_port=20000,
                why=FEWEST,
                at=at(3),
                chain="cpux4",
            )
        ),
        Send("skep.v1.cmd.node-1", bind(node="node-1", ranks=plans((0, 1), (2, 3)), **told)),
        Send(
            "skep.v1.cmd.node-2",
            bind(node="node-2", node_rank=1, ranks=plans((0, 1), first_rank=2), **told),
        ),
    ]


def test_an_image_goes_with_the_command() -> None:
    decide = allocator(joined())
    effects = decide(admitted(1, command=("prog",), runtime=Runtime(image="a/b:1")))
    assert effects[2:] == [Send("skep.v1.cmd.node-1", bind(argv=("prog",), image="a/b:1"))]


def test_a_line_for_the_shell() -> None:
    decide = allocator(joined())
    effects = decide(admitted(1, command="a | b"))
    assert effects[2:] == [Send("skep.v1.cmd.node-1", bind(argv=("/bin/sh", "-c", "a | b")))]


def test_the_agent_hears_which_orders_are_settled() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    assert decide(admitted(2))[2:] == [
        Send(
            "skep.v1.cmd.node-1",
            bind("j2", order=2, settled=0, ranks=plans((1,)), master_port=20001),
        )
    ]
    decide(started("j1"))
    assert decide(admitted(3))[2:] == [
        Send(
            "skep.v1.cmd.node-1",
            bind("j3", order=3, settled=1, ranks=plans((2,)), master_port=20002),
        )
    ]
    decide(started("j2"))
    assert decide(admitted(4))[2:] == [
        Send(
            "skep.v1.cmd.node-1",
            bind("j4", order=4, settled=2, ranks=plans((3,)), master_port=20003),
        )
    ]


def test_an_admission_read_again_queues_nothing() -> None:
    decide = allocator(joined())
    decide(admitted(2))
    assert decide(admitted(2)) == []
    assert decide(admitted(1)) == []


# --- where --------------------------------------------------------------------------------------


def test_best_fit_fills_cells_in_use_before_it_opens_others() -> None:
    decide = allocator(joined("node-1", 4), joined("node-2", 4))
    assert places(decide(admitted(1, gpus=2))) == {"j1": "node-1:0,1"}
    assert places(decide(admitted(2, gpus=3))) == {"j2": "node-2:0,1,2"}
    # Both nodes have room: the one with less of it keeps the other for larger gangs.
    assert places(decide(admitted(3))) == {"j3": "node-2:3"}
    assert places(decide(admitted(4, gpus=2))) == {"j4": "node-1:2,3"}


def test_small_nodes_serve_before_large_ones() -> None:
    decide = allocator(joined("node-1", 4), joined("node-2", 2))
    assert places(decide(admitted(1))) == {"j1": "node-2:0"}
    assert places(decide(admitted(2, gpus=3))) == {"j2": "node-1:0,1,2"}
    assert places(decide(admitted(3, opportunistic=True))) == {"j3": "node-2:1"}
    # A gang is spread over small nodes only if no large one holds it.
    decide = allocator(joined("node-1", 2), joined("node-2", 2), joined("node-3", 4))
    assert places(decide(admitted(1, workers=4))) == {"j1": "node-3:0,1,2,3"}


def test_gpus_close_to_one_another() -> None:
    decide = allocator(joined(gpus=8))
    decide(admitted(1))
    assert places(decide(admitted(2, gpus=2))) == {"j2": "node-1:2,3"}
    assert places(decide(admitted(3, gpus=4))) == {"j3": "node-1:4,5,6,7"}
    assert places(decide(admitted(4))) == {"j4": "node-1:1"}


def test_a_hard_topology_waits_where_a_soft_one_spreads() -> None:
    decide = allocator(joined("node-1", 2), joined("node-2", 2))
    effects = decide(admitted(1, workers=3, hard=True))
    assert waits(effects) == [("j1", Reason.WAITS_FOR_NODES, "3 x 1 GPUs (any type)")]
    decide = allocator(joined("node-1", 2), joined("node-2", 2), nlp=4)
    effects = decide(admitted(1, workers=3, hard=True))
    assert waits(effects) == [("j1", Reason.FITS_NO_CELL, "3 x 1 GPUs (any type)")]
    decide = allocator(joined("node-1", 2), joined("node-2", 2))
    assert places(decide(admitted(2, workers=3, hard=False))) == {"j2": "node-1:0,1 node-2:0"}


def test_a_gang_stays_with_one_type_of_gpu() -> None:
    decide = allocator(joined("node-1", {"a100": 2, "h200": 2}), nlp=4)
    effects = decide(admitted(1, workers=3))
    assert waits(effects) == [("j1", Reason.FITS_NO_CELL, "3 x 1 GPUs (any type)")]
    decide = allocator(joined("node-1", {"a100": 1, "h200": 2}), nlp=3)
    assert places(decide(admitted(1, workers=2))) == {"j1": "node-1:1,2"}


def test_a_gpu_type_is_honoured() -> None:
    decide = allocator(joined("node-1", {"a100": 1, "h200": 1}))
    assert places(decide(admitted(1, gpu_type="h200"))) == {"j1": "node-1:1"}
    assert places(decide(admitted(2))) == {"j2": "node-1:0"}


def test_of_several_gpu_types_any_will_do_and_no_other() -> None:
    """A type on which its model does not run is no place, however idle it is."""
    decide = allocator(joined("node-1", {"k80": 1, "h200": 1, "a100": 1}))
    assert places(decide(admitted(1, gpu_type="a100|h200"))) == {"j1": "node-1:1"}
    assert places(decide(admitted(2, gpu_type="a100|h200"))) == {"j2": "node-1:2"}
    effects = decide(admitted(3, gpu_type="a100|h200"))
    assert waits(effects) == [
        ("j3", Reason.WAITS_FOR_CELLS, "1 x 1 GPUs (a100|h200) in cells of nlp")
    ]


def test_a_rendezvous_needs_a_port() -> None:
    decide = allocator(joined(ports=(20000, 20000)))
    assert places(decide(admitted(1))) == {"j1": "node-1:0"}
    decide(admitted(2, opportunistic=True))
    assert facts_of(decide(admitted(3)))[1:] == [
        JobWaits(job="j3", why=Reason.WAITS_FOR_PORT, needs="node-1")
    ]
    assert decide.machine.state.jobs["j2"].waits == (Reason.WAITS_FOR_PORT, "node-1")
    assert places(decide(exited("j1"))) == {"j3": "node-1:0"}
    assert places(decide(exited("j3"))) == {"j2": "node-1:0"}


# --- in which order -----------------------------------------------------------------------------


def test_a_small_job_never_overtakes_a_large_one() -> None:
    decide = allocator(joined())
    decide(admitted(1, gpus=2))
    assert decide(admitted(2, gpus=4)) == [
        Record(queued(2, gpus=4)),
        Record(
            JobWaits(
                job="j2", why=Reason.WAITS_FOR_CELLS, needs="1 x 4 GPUs (any type) in cells of nlp"
            )
        ),
    ]
    assert decide(admitted(3)) == [Record(queued(3))]
    assert places(decide(exited("j1"))) == {"j2": "node-1:0,1,2,3"}
    assert places(decide(exited("j2"))) == {"j3": "node-1:0"}


def test_no_vc_waits_for_another() -> None:
    decide = allocator(joined(gpus=8), nlp=4, cv=4)
    decide(admitted(1, gpus=2))
    assert waits(decide(admitted(2, gpus=4, priority=9)))
    # What is idle of nlp's cells stays nlp's; what is cv's is cv's at once.
    assert places(decide(admitted(3, vc="cv", gpus=4))) == {"j3": "node-1:4,5,6,7"}
    assert waits(decide(admitted(4, vc="cv")))[0][1] is Reason.WAITS_FOR_CELLS
    assert places(decide(exited("j1"))) == {"j2": "node-1:0,1,2,3"}


def test_a_gang_that_no_usable_node_could_hold_holds_no_other_vc_back() -> None:
    decide = allocator(joined("node-1", 4), joined("node-2", 2), nlp=4, cv=2)
    decide(DrainNode(node="node-1"))
    needs = "1 x 3 GPUs (any type) in cells of nlp"
    assert waits(decide(admitted(1, gpus=3))) == [("j1", Reason.WAITS_FOR_CELLS, needs)]
    assert places(decide(admitted(2, vc="cv"))) == {"j2": "node-2:0"}
    assert places(decide(DrainNode(node="node-1", drain=False))) == {"j1": "node-1:0,1,2"}


def test_priority_comes_before_arrival_within_a_vc() -> None:
    decide = allocator(joined(gpus=2), nlp=1, cv=1)
    decide(admitted(1, priority=9))
    decide(admitted(2))
    decide(admitted(3, vc="cv", priority=9))
    decide(admitted(4, vc="cv", priority=5))
    decide(admitted(5, priority=5))
    assert places(decide(exited("j1"))) == {"j5": "node-1:0"}
    assert places(decide(exited("j5"))) == {"j2": "node-1:0"}
    assert places(decide(exited("j3"))) == {"j4": "node-1:1"}


def test_a_vc_keeps_to_its_cells_while_others_go_on() -> None:
    decide = allocator(joined(gpus=8), nlp=3, cv=3)
    decide(admitted(1, gpus=2))
    assert waits(decide(admitted(2, gpus=2))) == [
        ("j2", Reason.WAITS_FOR_CELLS, "1 x 2 GPUs (any type) in cells of nlp")
    ]
    assert decide(admitted(3)) == [Record(queued(3))]  # Behind j2: no overtaking within a VC.
    assert len(places(decide(admitted(4, vc="cv", gpus=2)))) == 1
    # What nobody holds is for opportunistic jobs, far from the others.
    assert places(decide(admitted(5, gpus=4, opportunistic=True))) == {"j5": "node-1:4,5,6,7"}
    assert places(decide(exited("j1"))) == {"j2": "node-1:0,1"}


def test_a_vc_that_is_gone_has_no_cells() -> None:
    decide = allocator(joined(), nlp=3)
    assert waits(decide(admitted(1, vc="cv"))) == [
        ("j1", Reason.FITS_NO_CELL, "1 x 1 GPUs (any type)")
    ]
    assert decide(SetVcs(vcs=vcs(cv=1))) == [
        Record(cells_set(joined(), cv=1)),
        *decide_bound("j1", vc="cv", level=1),
    ]


def test_a_worker_may_be_too_large_for_every_cell_of_its_vc() -> None:
    decide = allocator(joined(), nlp=2)
    effects = decide(admitted(1, gpus=4))
    assert waits(effects) == [("j1", Reason.FITS_NO_CELL, "1 x 4 GPUs (any type)")]
    # It may borrow what no cell of its VC will ever give it.
    effects = decide(admitted(2, gpus=4, vc="nlp", over_quota="opportunistic", priority=1))
    assert places(effects) == {"j2": "node-1:0,1,2,3"}


def decide_bound(job: str, vc: str, level: int = 3) -> list[Effect]:
    """Return the effects of binding a 1-GPU job as the first of node-1."""
    members = (member("node-1", (0,), levels=(level,)),)
    bound = JobBound(
        job=job,
        attempt=1,
        order=1,
        members=members,
        master_port=20000,
        why=ONE,
        at=T0,
        chain="cpux4",
    )
    return [Record(bound), Send("skep.v1.cmd.node-1", bind(job, vc=vc))]


def test_a_job_waits_for_the_first_node_to_join() -> None:
    decide = allocator(nlp=8)
    assert waits(decide(admitted(1))) == [("j1", Reason.WAITS_FOR_NODES, "1 x 1 GPUs (any type)")]
    assert decide.machine.wake_at() is None
    assert decide(joined()) == [
        Record(NodeAdded(joined=joined())),
        Record(cells_set(joined(), nlp=8)),
        *decide_bound("j1", "nlp"),
    ]


def test_why_a_job_waits_is_recorded_once() -> None:
    decide = allocator(joined(gpus=1))
    decide(admitted(1))
    assert len(waits(decide(admitted(2)))) == 1
    assert decide(Tick(), 0.5) == []


# --- advice -------------------------------------------------------------------------------------


def advice(*numbers: int, until_s: float = 60) -> QueueAdvice:
    jobs = tuple(JobAdvice(job=f"j{n}", why=Reason.PREDICTED_SHORTEST) for n in numbers)
    return QueueAdvice(at=T0, expires_at=at(until_s), jobs=jobs)


def waiting(*numbers: int, **changes: Any) -> Driver[AllocatorMachine]:
    """Return an allocator with one GPU, held by j1, and these jobs in its queue."""
    decide = allocator(joined(gpus=1))
    decide(admitted(1))
    for number in numbers:
        decide(admitted(number, **changes))
    return decide


def test_advice_orders_equals() -> None:
    decide = waiting(2, 3, 4)
    # The advised head waits for the GPU in its stead, and says so.
    assert decide(advice(4, 1, 7, 2), 1) == [
        Record(
            JobWaits(
                job="j4", why=Reason.WAITS_FOR_CELLS, needs="1 x 1 GPUs (any type) in cells of nlp"
            )
        )
    ]
    effects = decide(exited("j1"), 2)
    assert places(effects) == {"j4": "node-1:0"}
    (bound,) = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    assert bound.ranked is Reason.PREDICTED_SHORTEST
    assert places(decide(exited("j4"), 3)) == {"j2": "node-1:0"}
    assert places(decide(exited("j2"), 4)) == {"j3": "node-1:0"}


def test_advice_that_expired_is_not_followed() -> None:
    decide = waiting(2, 3)
    decide(advice(3, 2, until_s=10), 1)
    assert places(decide(exited("j1"), 10)) == {"j2": "node-1:0"}


def test_advice_that_comes_too_late_is_not_taken() -> None:
    decide = waiting(2, 3)
    assert decide(advice(3, 2, until_s=10), 10) == []
    assert places(decide(exited("j1"), 11)) == {"j2": "node-1:0"}


def test_the_latest_advice_holds() -> None:
    decide = waiting(2, 3, 4)
    decide(advice(4, 3, 2), 1)
    decide(advice(3), 2)
    assert places(decide(exited("j1"), 3)) == {"j3": "node-1:0"}
    assert places(decide(exited("j3"), 4)) == {"j2": "node-1:0"}


def test_advice_is_forgotten_in_a_crash() -> None:
    decide = waiting(2, 3)
    decide(advice(3, 2), 1)
    decide.restart(2)
    assert places(decide(exited("j1"), 3)) == {"j2": "node-1:0"}


def test_advice_never_moves_a_job_across_vcs() -> None:
    decide = allocator(joined(gpus=2), nlp=1, cv=1)
    decide(admitted(1))
    decide(admitted(2, vc="cv"))
    decide(admitted(3))
    decide(admitted(4))
    decide(admitted(5, vc="cv"))
    decide(advice(4, 5, 3), 1)
    assert places(decide(exited("j2"), 2)) == {"j5": "node-1:1"}
    assert places(decide(exited("j1"), 3)) == {"j4": "node-1:0"}


# --- what changes nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        Unreadable(subject="x", text="y"),
        MemberStepped(node="node-1", identity="id-node-1", job="j1", attempt=1, at=T0),
        heartbeat(),
        heartbeat("node-7"),
        Facts(service="admission", at=T0, facts=(JobOver(job="j1"),)),
        started("j9"),
        exited("j9"),
    ],
)
def test_what_changes_nothing(event: object) -> None:
    decide = allocator(joined())
    decide(admitted(1))
    assert decide(event) == []


def test_an_end_that_nobody_may_reach_is_a_bug() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    with pytest.raises(AssertionError, match="JobBound in bound"):
        decide.machine.state.jobs["j1"].move("JobBound")


def test_a_job_that_ended_is_forgotten() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    (_, ended) = facts_of(decide(exited("j1")))
    assert isinstance(ended, JobEnded)
    assert decide.machine.state.jobs == {}
    assert decide.machine.state.placed == {}


def described(chains: dict[str, tuple[list[str], int]]) -> Driver[AllocatorMachine]:
    """Return an allocator of chains by name, nodes, and GPUs per node, all of one tenant's."""
    decide = allocator()
    decide.thorough = False
    made = {
        name: Chain(
            gpu="cpu",
            levels=(Level(name="node", fanout=gpus),),
            node_level="node",
            nodes=tuple(NodeCell(node=node) for node in nodes),
        )
        for name, (nodes, gpus) in chains.items()
    }
    cells = tuple(
        Quota(chain=name, level="node", count=len(nodes)) for name, (nodes, _) in chains.items()
    )
    decide(SetVcs(chains=made, vcs={"nlp": VirtualCluster(cells=cells)}))
    return decide


def tell(decide: Driver[AllocatorMachine], node: NodeJoined) -> None:
    """Have the allocator know a node from its own record: of very many that is quicker."""
    fact = NodeAdded(joined=node)
    decide.facts.append(fact)
    decide.machine.apply(fact)


# --- many at once -------------------------------------------------------------------------------


def test_one_decision_binds_no_more_than_a_record_holds() -> None:
    decide = allocator(nlp=1000)
    decide.thorough = False
    for number in range(1, 251):
        decide(admitted(number))
    big = joined(gpus=300, cpus=0, ports=(20000, 20999))
    assert len(places(decide(big))) == MEMBERS_BOUND_MAX
    assert decide.machine.wake_at() == decide.now
    assert len(places(decide.tick())) == 250 - MEMBERS_BOUND_MAX
    assert decide.machine.wake_at() != decide.now
    decide.check_replay()


@pytest.mark.nightly
@pytest.mark.parametrize("workers, gpus", [(1024, 8), (8192, 1)])
def test_the_largest_gang_fits_one_record_with_all_that_may_be_decided_beside_it(
    workers: int, gpus: int
) -> None:
    assert workers * gpus == GANG_GPUS_MAX
    names = [f"{number:063}" for number in range(GANG_NODES_MAX)]
    decide = described({"m" * 63: (names, 8), "n" * 63: (["y" * 63], 1)})
    for number, name in enumerate(names):
        node = joined(name, 8, cpus=0, memory=0, identity=f"{number:032x}", address="10.0.0.1")
        tell(decide, node)
    wish = spec(workers=workers, gpus=gpus)
    text = "x" * (SPEC_BYTES_MAX - len(encode(wish)) - len('"env":{"X":""},'))
    wish = spec(workers=workers, gpus=gpus, env={"X": text})
    assert len(encode(wish)) > SPEC_BYTES_MAX - 100
    fact = Admitted(job="j1", spec=wish, submitted_at=T0, trace=TRACE)
    effects = decide(Facts(service="admission", at=T0, facts=(fact,)))
    made = tuple(effect.fact for effect in effects if isinstance(effect, Record))
    assert [type(each) for each in made] == [JobQueued, JobBound]
    assert isinstance(made[1], JobBound)
    assert len(made[1].members) == GANG_NODES_MAX
    decide(joined("y" * 63, 1, identity="z" * 32))
    single = facts_of(decide(admitted(2, trace=TRACE)))[-1]
    assert isinstance(single, JobBound)
    others = (MEMBERS_BOUND_MAX - 1) * len(encode(single))
    assert sum(len(encode(each)) for each in made) + others <= RECORD_BYTES


def test_a_gang_spans_no_more_nodes_than_one_record_can_name() -> None:
    names = [f"n{number}" for number in range(GANG_NODES_MAX + 1)]
    decide = described({"main": (names, 1)})
    for name in names:
        tell(decide, joined(name, 1))
    needs = f"{GANG_NODES_MAX + 1} x 1 GPUs (any type) in cells of nlp"
    asked = decide(admitted(1, workers=GANG_NODES_MAX + 1))
    assert waits(asked) == [("j1", Reason.WAITS_FOR_CELLS, needs)]
    (bound,) = places(decide(admitted(2, workers=GANG_NODES_MAX, priority=1))).values()
    assert len(bound.split()) == GANG_NODES_MAX


def test_many_tenants_that_wait_do_not_use_up_a_decision() -> None:
    names = [f"vc{number:03}" for number in range(1, MEMBERS_BOUND_MAX + 50)]
    decide = allocator(joined(), **dict.fromkeys(names, 0), nlp=9)
    decide.thorough = False
    for number, name in enumerate(names, 1):
        decide(admitted(number, vc=name))
    assert places(decide(admitted(900))) == {"j900": "node-1:0"}
    assert decide.machine.wake_at() == at(1)
