"""What is drawn for a cluster of machines: the same by seed, calm around a removal."""

import random

from tests.system.chaos.faults import Fault
from tests.system.deployment.chaos import plan

SERVERS = ("server-1", "server-2", "server-3")
NODES, LATE = ("gpu-1", "gpu-2", "gpu-3", "gpu-4"), "gpu-5"
SECONDS, COUNT = 240.0, 2_000
REMOVED_S = plan.REMOVE_AT * SECONDS


def drawn(seed: int) -> list[Fault]:
    return plan.faults(random.Random(seed), COUNT, SECONDS, SERVERS, NODES, LATE)


def test_a_seed_draws_the_same_of_every_kind() -> None:
    faults = drawn(1)
    assert faults == drawn(1) != drawn(2)
    assert faults == sorted(faults)
    assert len(faults) == COUNT
    assert {fault.kind for fault in faults} == set(plan.KINDS)
    assert all(0 <= fault.at_s <= fault.at_s + fault.seconds <= SECONDS for fault in faults)


def test_around_a_removal_only_processes_are_hit() -> None:
    calm = REMOVED_S - plan.CALM_BEFORE_S, REMOVED_S + plan.CALM_S
    meanwhile = [
        fault for fault in drawn(1) if fault.at_s < calm[1] and fault.at_s + fault.seconds > calm[0]
    ]
    assert meanwhile
    assert {fault.kind for fault in meanwhile} == set(plan.OF_PROCESSES)


def test_nothing_hits_a_node_before_it_joins_or_after_it_left() -> None:
    faults = drawn(1)
    gone = [fault.at_s for fault in faults if NODES[-1] in fault.component]
    late = [fault.at_s for fault in faults if LATE in fault.component]
    assert max(gone) < REMOVED_S < min(late)


def test_the_operator_changes_certificates_then_nodes() -> None:
    changes = plan.changes(SECONDS, SERVERS, NODES, LATE)
    assert [(one.do, one.machines) for one in changes] == [
        ("rotate", SERVERS),
        ("renew", ("gpu-1",)),
        ("remove", ("gpu-4",)),
        ("join", ("gpu-5",)),
    ]
    assert [one.at_s for one in changes] == sorted(one.at_s for one in changes)
