"""What a seed draws: faults that the target can suffer, submissions, and late packets."""

from __future__ import annotations

import random
import struct
from typing import Any, cast

import pytest

from tests.system.chaos import delay, faults, workload
from tests.system.chaos.network import Cut
from tests.system.chaos.target import VCS, Jobs, Target

BUS = ("nats-1", "nats-2", "nats-3")
ROLES = {"gateway": "service", "allocator": "service", "node-1": "agent", "node-2": "agent"}
SECONDS = 100.0


class Drawn:
    """A target that faults are drawn for, and none is done to."""

    def __init__(self, *bus: str) -> None:
        self.stores = {"node-1": None}
        self._bus = bus

    def components(self) -> dict[str, str]:
        return ROLES | dict.fromkeys(self._bus, "bus")


def draw(seed: int, *bus: str, count: int = 300) -> list[faults.Fault]:
    absent = {"kill-runner", "kill-supervisor"}
    kinds = tuple(kind for kind in faults.KINDS if kind not in absent)
    target = cast("Target", Drawn(*bus))
    return faults.plan(random.Random(seed), count, SECONDS, target, kinds)


def test_a_seed_draws_the_same_faults_again() -> None:
    assert draw(7, *BUS) == draw(7, *BUS)
    assert draw(7, *BUS) != draw(8, *BUS)


def test_faults_of_every_kind_hit_what_there_is_and_end_in_time() -> None:
    drawn = draw(1, *BUS, count=1000)
    known = {*ROLES, *BUS, "everything", "clock"}
    assert {fault.kind for fault in drawn} == set(faults.KINDS) - {"kill-runner", "kill-supervisor"}
    for fault in drawn:
        assert 0 <= fault.at_s <= fault.at_s + fault.seconds <= SECONDS
        assert fault.kind == "partition" or fault.component in known, fault


@pytest.mark.parametrize("bus", [("nats",), BUS], ids=["one-server", "three-servers"])
def test_groups_lose_bus_servers_and_never_themselves(bus: tuple[str, ...]) -> None:
    rng = random.Random(3)
    by_role = {"bus": list(bus), "service": ["gateway", "allocator"], "agent": ["node-1", "node-2"]}
    seen = set()
    for _ in range(300):
        first, _, second = faults.groups(rng, by_role).partition("|")
        one, other = first.split("+"), second.split("+")
        assert not set(one) & set(other)
        assert set(other) <= set(bus)
        assert set(one) <= {*ROLES, *bus}
        assert len(set(one) & set(bus)) < max(2, len(bus))
        seen.add((bool(set(one) & set(bus)), bool(set(one) & set(ROLES)), len(other)))
    if len(bus) == 1:
        assert seen == {(False, True, 1)}
    else:
        assert seen >= {(True, False, 2), (True, True, 2), (False, True, 3), (False, True, 1)}


def test_jobs_are_told_where_the_nodes_see_their_program_and_notes() -> None:
    jobs = Jobs("python", "/seen/work.py", "/seen/notes", trains=False)
    wishes = workload.plan(random.Random(1), 200, SECONDS, VCS, jobs)
    assert [wish.at_s for wish in wishes] == sorted(wish.at_s for wish in wishes)
    assert {wish.told.kind for wish in wishes} == set(workload.KINDS) - {"real"}
    for wish in wishes:
        assert wish.spec["command"] == ["python", "-S", "-E", "/seen/work.py"]
        assert wish.spec["env"]["NOTES"] == "/seen/notes"


def test_a_cut_is_from_everybody_unless_it_says_from_whom() -> None:
    assert Cut("mute").others == ()


def _packet(number: int) -> bytes:
    head = struct.pack(">IHB", number, 0x800, 3)
    attributes = delay._attribute(9, b"xyz") + delay._attribute(delay.PACKET_ATTRIBUTE, head)
    return delay._message(delay.PACKET, 5, attributes)


def test_the_packets_that_wait_are_found_in_what_the_kernel_says() -> None:
    other: Any = delay._message(delay.VERDICT, 5, delay._attribute(delay.PACKET_ATTRIBUTE, b"1234"))
    assert delay._packet_ids(_packet(7) + other + _packet(1 << 20)) == [7, 1 << 20]
    assert delay._packet_ids(b"") == []
