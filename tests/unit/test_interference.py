"""The interference that the fake accelerator plays is that of the published measurements."""

from __future__ import annotations

import random

import pytest

from skep.perf.interference import (
    TABLE_1,
    Load,
    by_utilisation,
    contention,
    normalised,
    packing_max,
    slowdowns,
)
from skep.perf.loads import GAVEL
from tests import needs


def test_alone_nothing_is_slower() -> None:
    assert slowdowns([by_utilisation(0.9)]) == (1.0,)
    assert slowdowns([]) == ()


def test_whoever_is_sensitive_suffers_and_whoever_presses_does_not() -> None:
    gentle, rough = Load(0.5, 0.0, sensitivity=1.0), Load(0.5, 0.0, pressure=0.5)
    assert slowdowns([gentle, rough]) == (1.5, 1.0)
    assert slowdowns([gentle, rough, rough]) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1_says_the_same_about_packing(name: str) -> None:
    used, sliced, packed = TABLE_1[name]
    gain = packed / sliced
    assert packing_max(by_utilisation(used)) == pytest.approx(gain, rel=0.35)
    assert (packing_max(by_utilisation(used)) > 1) is (gain > 1)


def test_busier_jobs_pack_worse() -> None:
    sums = [normalised([by_utilisation(used / 100)] * 2) for used in range(0, 101, 5)]
    assert sums == sorted(sums, reverse=True)
    assert 0.75 < sums[-1] < 1 < sums[0] < 2


@pytest.mark.needs("data")
@pytest.mark.parametrize("gpu, error", [("k80", 0.04), ("p100", 0.06), ("v100", 0.12)])
def test_pairs_that_were_not_fitted_are_met(gpu: str, error: float) -> None:
    from tools.fit_interference import read_pairs

    pairs = read_pairs(needs.DATA / "gavel")[gpu]
    random.Random(1).shuffle(pairs)  # As the fit shuffles them; the second half was held out.
    loads = {name: Load(0.0, *numbers) for name, numbers in GAVEL[gpu].items()}
    off = []
    for first, second, rates in pairs[len(pairs) // 2 :]:
        a, b = loads[first], loads[second]
        off += [
            abs(1 / (1 + contention(a, b)) - rates[0]),
            abs(1 / (1 + contention(b, a)) - rates[1]),
        ]
    assert sum(off) / len(off) < error
