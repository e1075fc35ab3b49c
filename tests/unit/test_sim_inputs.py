"""What `skep sim` is told: shapes, policies, costs, times, seeds, and what-ifs."""

from __future__ import annotations

import pytest

from skep.cells.levels import gpus_owned
from skep.policy.check import cluster_problems
from skep.units import seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import Costs
from skep_lab.studies.private import own_jobs, private_cluster
from skep_lab.traces.job import Trace, TraceJob
from skep_services.simulations import inputs, sources, whatif
from skep_services.simulations.inputs import WrongError

CLUSTER = uniform(10, 8, vcs={"A": 4, "B": 3})


def test_a_shape_is_a_cluster_of_one_queue_unless_it_is_divided() -> None:
    place = inputs.shape("80x8")
    assert place.pooled
    assert {vc: gpus_owned(place.cluster, vc) for vc in place.cluster.vcs} == {"all": 640}
    divided = inputs.shape("10x4:a100/nlp=6,vision=4")
    assert not divided.pooled
    assert list(divided.cluster.chains) == ["a100"]
    assert [gpus_owned(divided.cluster, vc) for vc in ("nlp", "vision")] == [24, 16]


@pytest.mark.parametrize(
    "text, what",
    [
        ("0x8", "a cluster has 1 to"),
        ("4x8/a", "write its VCs as /NAME=NODES"),
        ("4x8/a=2,a=1", "each once"),
        ("4x8/a=5", "own 5 nodes of 4"),
    ],
)
def test_a_shape_that_makes_no_sense_says_what_would(text: str, what: str) -> None:
    assert inputs.is_shape(text)
    with pytest.raises(WrongError, match=what):
        inputs.shape(text)
    assert not inputs.is_shape("cluster.yaml")


def test_policies_are_for_everyone_or_for_each_vc() -> None:
    assert inputs.policies("backfill", ["A", "B"]) == {"A": ("backfill", {}), "B": ("backfill", {})}
    mixed = inputs.policies("A=backfill+B=fifo", ["A", "B", "C"])
    assert mixed == {"A": ("backfill", {}), "B": ("fifo", {})}
    for text in ("A=backfill+fifo", "fifo+A=backfill"):  # Whoever is named has its own.
        assert inputs.policies(text, ["A", "B"]) == mixed
    assert inputs.policies("tiresias-l:thresholds=[1e+3]+B=fifo", ["A", "B"]) == {
        "A": ("tiresias-l", {"thresholds": [1e3]}),
        "B": ("fifo", {}),
    }


@pytest.mark.parametrize(
    "text, what",
    [
        ("backfil", "did you mean backfill?"),
        ("fifo:strikt=1", "no option 'strikt'"),
        ("fifo:x", "write options as NAME:option=value"),
        ("C=fifo", "no VC is called 'C'; there are A, B"),
        ("fifo+backfill", "two policies for everybody"),
        ("A=fifo+A=backfill", "two policies for A"),
    ],
)
def test_a_wrong_policy_says_what_is_right(text: str, what: str) -> None:
    with pytest.raises(WrongError, match=what.replace("?", r"\?")):
        inputs.policies(text, ["A", "B"])


def test_options_are_json_or_text_and_lists_keep_their_commas() -> None:
    told = inputs.options_of("x", "thresholds=[3250,7200],name=abc,part=0.5,on=true")
    assert told == {"thresholds": [3250, 7200], "name": "abc", "part": 0.5, "on": True}


def test_costs_times_and_seeds() -> None:
    assert inputs.costs("none") == Costs()
    assert inputs.costs("start=30,checkpoint_every=1h") == Costs(
        start_s=30, checkpoint_every_s=3600
    )
    assert inputs.duration("14d", "--until") == seconds(14 * 86_400)
    assert [inputs.seeds(text) for text in ("3", "4-6", "9,2,9")] == [(0, 1, 2), (4, 5, 6), (9, 2)]
    for wrong in (
        lambda: inputs.costs("begin=3"),
        lambda: inputs.duration("soon", "--until"),
        lambda: inputs.seeds("0"),
        lambda: inputs.seeds("x"),
        lambda: inputs.seeds("5-x"),
        lambda: inputs.seeds("0-9999999999"),
        lambda: inputs.seeds("9" * 5000),
        lambda: inputs.seeds(f"0-{'9' * 30}"),
    ):
        with pytest.raises(WrongError):
            wrong()


def test_what_is_no_file_is_a_generator_or_wrong() -> None:
    trace = sources.load("gandiva", form=None, seed=1, lenient=False, home=None)
    assert len(trace.jobs) == 1000
    assert sources.by_seed("gandiva")
    assert not sources.by_seed(sources.LIVE)
    with pytest.raises(WrongError, match="no generator 'gandva'"):
        sources.load("gandva", form=None, seed=1, lenient=False, home=None)


# --- what if --------------------------------------------------------------------------------------


def what_if(text: str, cluster: Cluster = CLUSTER) -> whatif.WhatIf:
    return whatif.apply(whatif.parse(text, cluster), cluster)


def gpus(cluster: Cluster) -> dict[str, int]:
    return {vc: gpus_owned(cluster, vc) for vc in cluster.vcs}


def nodes(cluster: Cluster) -> int:
    return sum(len(chain.nodes) for chain in cluster.chains.values())


def test_more_nodes_are_spare_ones_first_and_then_new_ones() -> None:
    found = what_if("B.nodes+=5")
    assert gpus(found.cluster) == {"A": 32, "B": 64}
    assert nodes(found.cluster) == 12
    assert found.changes == ("B gets 5 nodes of v100: 3 spare, 2 new",)


def test_nodes_are_taken_away_before_any_are_given() -> None:
    found = what_if("B.nodes += 4; A.nodes -= 1")
    assert gpus(found.cluster) == {"A": 24, "B": 56}
    assert nodes(found.cluster) == 10
    assert found.changes[0].startswith("A gives up 1 node")
    assert nodes(what_if("cluster.nodes+=4").cluster) == 14
    assert nodes(what_if("cluster.nodes-=3").cluster) == 7


def test_several_that_get_new_nodes_get_nodes_of_different_names() -> None:
    full = uniform(4, 8, vcs={"A": 2, "B": 2})
    found = what_if("A.nodes+=1;B.nodes+=2", full)
    names = [cell.node for chain in found.cluster.chains.values() for cell in chain.nodes]
    assert (len(names), len(set(names))) == (7, 7)
    again = what_if("B.nodes+=1", found.cluster)
    assert not cluster_problems(again.cluster)
    assert nodes(again.cluster) == 8


def test_a_what_if_that_no_cluster_can_be_is_refused() -> None:
    with pytest.raises(WrongError, match=r"would not do: .*weight"):
        what_if("A.weight=1e300")


def test_a_new_node_makes_whole_racks() -> None:
    found = what_if("A.nodes+=1", uniform(4, 8, racks=2, vcs={"A": 4}))
    assert gpus(found.cluster) == {"A": 40}
    assert nodes(found.cluster) == 6


def test_a_policy_or_a_weight_changes_for_one_vc_or_for_all() -> None:
    assert what_if("A.policy=backfill").policies == {"A": ("backfill", {})}
    assert list(what_if("cluster.policy=backfill").policies) == ["A", "B"]
    assert what_if("A.weight=2.5").cluster.vcs["A"].weight == 2.5


@pytest.mark.parametrize(
    "text, what",
    [
        ("C.nodes+=1", "no VC is called 'C'; there are A, B, cluster"),
        ("A.node+=1", "did you mean nodes?"),
        ("A.nodes=1", r"write \+= or -= and a number of nodes"),
        ("A.nodes+=few", r"write \+= or -= and a number of nodes"),
        ("A.nodes-=9", "A owns 4 nodes as whole cells"),
        ("A.weight=heavy", "write a number above 0"),
        ("A.weight+=1", "write = and what it is to be"),
        ("A.policy=backfil", "did you mean backfill"),
        ("cluster.weight=2", "cluster has no key 'weight'"),
        ("cluster.nodes-=4", "3 of v100 are nobody's"),
        ("A more", "write VC.nodes"),
        (" ; ", "nothing is to change"),
    ],
)
def test_a_wrong_what_if_says_what_would_be_right(text: str, what: str) -> None:
    with pytest.raises(WrongError, match=what):
        what_if(text)


# --- private clusters -----------------------------------------------------------------------------


def test_a_private_cluster_is_what_a_vc_owns() -> None:
    chain = Chain(
        gpu="v100",
        levels=(Level(name="socket", fanout=4), Level(name="node", fanout=2)),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{n}") for n in range(6)),
    )
    cluster = Cluster(
        chains={"c": chain},
        pins={"mine": Pin(chain="c", level="node", index=0)},
        vcs={
            "a": VirtualCluster(cells=(Quota(chain="c", level="socket", count=3),)),
            "b": VirtualCluster(cells=(Quota(chain="c", level="node", count=1),), pinned=("mine",)),
            "c": VirtualCluster(gpus=12),
        },
    )
    for vc, owns, has in (("a", 12, 2), ("b", 16, 2), ("c", 12, 2)):
        private = private_cluster(cluster, vc)
        assert gpus(private) == {vc: owns}
        assert nodes(private) == has
        assert not private.pins


def test_a_private_cluster_runs_the_guaranteed_jobs() -> None:
    jobs = [
        TraceJob(id=name, at=seconds(0), run_time=seconds(1), gpus=1, vc=vc, opportunistic=soft)
        for name, vc, soft in (("1", "a", False), ("2", "a", True), ("3", "b", False))
    ]
    assert [job.id for job in own_jobs(Trace(name="t", jobs=tuple(jobs)), "a").jobs] == ["1"]
