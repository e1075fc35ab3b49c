"""Jobs that ask for a share of a GPU: what tenants ask for, and what must hold of them (I24)."""

from __future__ import annotations

import random
from typing import Any

from skep.sim.modelled import AllocatorLog
from skep.sim.violation import require
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason

SHARES = (0.1, 0.2, 0.3, 0.3, 0.5, 0.5, 0.5, 0.7, 0.9, 0.25)
"""What tenants write; the last is refused."""
OFTEN = 0.7


def some_of_a_gpu(rng: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a job that often asks for a share of a GPU in place of what it asked for."""
    if rng.random() > OFTEN:
        return spec
    left = {key: value for key, value in spec.items() if key != "elastic"}
    resources = {"gpus": rng.choice(SHARES)}
    if rng.random() < 0.2:
        resources["gpu_memory"] = rng.choice((1, 2)) * 10**9
    return {**left, "resources": resources}


def together(model: AllocatorLog, fact: GpusShared) -> None:
    """Require that jobs put together for their shares asked for that, and yield alike.

    Raises:
        ViolationError: One did not, or their shares come to more than a GPU.
    """
    if fact.why is not Reason.SHARES_FIT:
        return
    specs = [model.jobs[name].spec for name in (fact.job, *(name for name, _ in fact.beside))]
    shares = [spec.resources.share for spec in specs]
    text = f"{fact.job} beside {fact.beside}"
    require(all(shares), "I24", f"{text}: one asked for no share: {shares}")
    require(sum(shares) <= 1000, "I24", f"{text}: {shares} are more than a GPU")
    alike = {(spec.vc, spec.priority, spec.opportunistic) for spec in specs}
    require(len(alike) == 1, "I24", f"{text}: they yield to others: {alike}")
