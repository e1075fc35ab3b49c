"""Jobs that may be mixed: what is refused of them, what is said of them, how long they run."""

from typing import Any

import pytest

from skep.estimates.lengths import Known, slowest
from skep.machines.admission import AdmissionMachine
from skep.units import Duration
from skep.wire.admin import SetVcs
from skep.wire.cluster import PersonLimits, VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted, JobBound, Refused
from skep.wire.parse import parse_tree
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep_services.gateway.texts import describe
from tests.kit import (
    T0,
    Driver,
    added,
    admitted,
    allocator,
    cells_set,
    facts_of,
    joined,
    spec,
    submission,
    vcs,
)
from tests.unit.test_allocator_changes import of
from tests.unit.test_allocator_mixed import BIG, MIXED, SMALL

GANG = {"name": "train", "vc": "nlp", "command": ["true"]}


@pytest.mark.parametrize(
    "where, keys, resources",
    [
        ("$.resources.mixed", {}, {"workers": 1}),
        ("$.resources.pinned", {}, {"pinned": "corner"}),
        ("$.resources.topology", {}, {"topology": {"within": "rack", "hard": True}}),
        ("$.service_class", {"service_class": "opportunistic"}, {}),
        ("$.elastic", {"elastic": {"min": 1, "max": 4}}, {}),
        ("$.finish_by", {"finish_by": "2h"}, {}),
        ("$.qos", {"qos": "urgent"}, {}),
    ],
)
def test_what_a_mixed_gang_cannot_have_is_refused(
    where: str, keys: dict[str, Any], resources: dict[str, Any]
) -> None:
    wanted = {"workers": 2, "mixed": True, **resources}
    problems = parse_tree({**GANG, **keys, "resources": wanted})
    assert isinstance(problems, list)
    (problem,) = problems
    assert (problem.path, problem.reason) == (where, Reason.NOT_MIXED)
    assert "mixed" in problem.suggestion


def test_a_soft_wish_and_several_types_are_taken() -> None:
    topology = {"within": "rack", "hard": False}
    wanted = {"workers": 2, "mixed": True, "gpu_type": "a100|h100", "topology": topology}
    parsed = parse_tree({**GANG, "resources": wanted})
    assert isinstance(parsed, JobSpec)
    assert parsed.resources.mixed


def answer(entry: VirtualCluster | None = None, **wanted: Any) -> Any:
    """Return what admission says to a mixed job on three A100s and one H100."""
    decide = Driver(AdmissionMachine)
    decide.restart()
    decide(SetVcs(vcs={"nlp": entry} if entry is not None else vcs(nlp=4)))
    for node in (BIG, SMALL):
        decide(added(node))
    decide(Facts(service="allocator", at=T0, facts=(cells_set(BIG, SMALL, nlp=4),)))
    (fact,) = [
        fact
        for fact in facts_of(decide(submission(1, raw=spec(**{**MIXED, **wanted}))))
        if isinstance(fact, Admitted | Refused)
    ]
    return fact


def test_a_gang_that_only_both_types_hold_is_admitted() -> None:
    assert isinstance(answer(), Admitted)
    assert isinstance(answer(mixed=False), Refused)


@pytest.mark.parametrize(
    "wanted, reason",
    [
        ({"gpu_type": "a100|h200"}, Reason.NO_SUCH_GPU_TYPE),
        ({"gpu_type": "a100", "workers": 2}, Reason.MIXED_OF_ONE),
        ({"gpus": 2, "workers": 2}, Reason.NODE_TOO_SMALL),
        ({"workers": 5}, Reason.TOO_MANY_GPUS),
    ],
)
def test_a_mix_that_cannot_be_is_refused(wanted: dict[str, Any], reason: Reason) -> None:
    fact = answer(**wanted)
    assert [problem.reason for problem in fact.problems] == [reason]


@pytest.mark.parametrize(
    "entry",
    [
        VirtualCluster(gpus=4, policy="tiresias-l"),
        VirtualCluster(gpus=4, limits=PersonLimits(gpus=4)),
    ],
)
def test_a_vc_whose_policy_plans_gangs_in_one_chain_takes_none(entry: VirtualCluster) -> None:
    (problem,) = answer(entry).problems
    assert problem.reason is Reason.MIXED_UNDER_POLICY
    assert problem.path == "$.resources.mixed"


def test_history_says_which_ranks_are_on_which_type() -> None:
    decide = allocator(BIG, SMALL)
    (bound,) = of(decide(admitted(1, **MIXED)), JobBound)
    line = describe(bound)
    assert line is not None
    assert line.text.startswith(
        "placed on node-1:0,1,2 node-2:0 (ranks 0-2 a100, 3 h100): no chain"
    )


def test_history_says_so_where_a_type_lies_between_two_chains_of_another() -> None:
    nodes = [{"a100": 4}, {"h100": 3}, {"a100": 2}]
    decide = allocator(*(joined(f"node-{n}", node) for n, node in enumerate(nodes, start=1)))
    (bound,) = of(decide(admitted(1, **{**MIXED, "workers": 9})), JobBound)
    line = describe(bound)
    assert line is not None
    assert "(ranks 0-3 a100, 4-6 h100, 7-8 a100)" in line.text


def lasts(hours: int) -> Known:
    each = Lasts(p10=Duration(1), p50=Duration(hours), p90=Duration(9 * hours))
    return Known(each, Reason.PREDICTED_SPEED, "speed")


def test_it_lasts_as_long_as_on_its_slowest_type() -> None:
    assert slowest([lasts(2), lasts(5), lasts(3)]) == lasts(5)
    assert slowest([lasts(2), None]) is None, "the unknown type may be the slowest"


def test_one_type_in_two_sizes_is_a_mix() -> None:
    sizes = [joined("node-1", {"a100": 2}), joined("node-2", {"a100": 4})]
    decide = Driver(AdmissionMachine)
    decide.restart()
    decide(SetVcs(vcs=vcs(nlp=6)))
    for node in sizes:
        decide(added(node))
    decide(Facts(service="allocator", at=T0, facts=(cells_set(*sizes, nlp=6),)))
    asked = spec(workers=6, gpu_type="a100", mixed=True)
    assert any(isinstance(f, Admitted) for f in facts_of(decide(submission(1, raw=asked))))
