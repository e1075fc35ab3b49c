"""What the introspector makes of fingerprints and timings."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.base import Send, Tick
from skep.machines.introspector import PROFILED, IntrospectorMachine
from skep.perf.profile_watch import AGAIN_EVERY, is_sane
from skep.units import NS_PER_SECOND
from skep.wire.profile import Fingerprint, Profiled, Timing
from tests.unit.test_introspector import at, job, rank, report

MS = 1_000_000
NET = Fingerprint(parameters=9, gradient_bytes=36, shapes="0123456789abcdef")


def timing(p50_ms: int = 10, samples: int = 64, **more: int) -> Timing:
    p50 = p50_ms * MS
    fields = {"mean_ns": p50, "deviation_ns": p50 // 50, "p10_ns": p50, "p50_ns": p50}
    return Timing(samples=samples, **fields | {"p90_ns": p50} | more)


class Node:
    """Reports to an introspector, a second later each time."""

    def __init__(self) -> None:
        self.machine = IntrospectorMachine()
        self.second = 0.0

    def says(self, *ranks: tuple[int, int, dict[str, Any]], world: int = 1) -> list[Profiled]:
        """Report ranks (number, steps, what else); return what is found of profiles."""
        made = [rank(number, steps, self.second, 0.01, **more) for number, steps, more in ranks]
        self.machine.decide(report(self.second, job("j1", *made, world=world)), at(self.second))
        self.second += 1.0
        effects = self.machine.decide(Tick(), at(self.second))
        self.machine.check()
        return [e.message for e in effects if isinstance(e, Send) and e.subject == PROFILED]


def test_a_fingerprint_is_told_at_once_and_again_now_and_then() -> None:
    node = Node()
    assert node.says((0, 2, {})) == []
    (found,) = node.says((0, 20, {"fingerprint": NET}))
    assert (found.fingerprint, found.timing, found.workers) == (NET, None, 1)
    other = Fingerprint(parameters=1, gradient_bytes=4, shapes="f" * 16)
    assert node.says((0, 25, {"fingerprint": other})) == [], "it has one already"
    told = [second for second in range(130) if node.says((0, 30, {"fingerprint": NET}))]
    every = AGAIN_EVERY // NS_PER_SECOND
    assert told == [every - 2, 2 * every - 2]


def test_a_timing_is_told_once_it_is_precise_and_when_it_changes() -> None:
    node = Node()
    loose = timing(deviation_ns=8 * MS)
    assert node.says((0, 70, {"timing": loose})) == []
    (found,) = node.says((0, 80, {"timing": timing()}))
    assert found.timing == timing()
    assert node.says((0, 90, {"timing": timing(p90_ns=11 * MS)})) == []
    (other,) = node.says((0, 100, {"timing": timing(11)}))
    assert other.timing == timing(11)
    assert node.says((0, 200, {"timing": loose}))[0].timing == loose, "100 are enough in any case"


def test_mini_batches_before_a_gang_changed_do_not_count() -> None:
    node = Node()
    assert len(node.says((0, 100, {"timing": timing()}), world=1)) == 1
    shown = [node.says((0, 100 + n, {"timing": timing()}), world=2) for n in range(0, 70, 5)]
    (found,) = [each for told in shown for each in told if each.timing is not None]
    assert found.workers == 2
    first = next(n for n, told in enumerate(shown) for each in told if each.timing is not None)
    assert first * 5 > 64


def test_the_lowest_rank_speaks() -> None:
    node = Node()
    other = Fingerprint(parameters=1, gradient_bytes=4, shapes="f" * 16)
    (found,) = node.says((0, 9, {"fingerprint": NET}), (1, 9, {"fingerprint": other}), world=2)
    assert found.fingerprint == NET


@pytest.mark.parametrize(
    "odd",
    [
        {"mean_ns": 0},
        {"p10_ns": 0},
        {"p50_ns": 1},
        {"p90_ns": 2**61},
        {"deviation_ns": 2**61},
        {"samples": 1},
    ],
)
def test_what_no_job_can_take_is_passed_over(odd: dict[str, int]) -> None:
    assert is_sane(timing())
    wrong = timing(**{"p50_ms": 10, **odd})
    assert not is_sane(wrong)
    assert Node().says((0, 100, {"timing": wrong})) == []
