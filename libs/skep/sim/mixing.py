"""Jobs whose gangs may be mixed: what tenants ask for, and what must hold of their places (I25)."""

from __future__ import annotations

import random
from typing import Any

from skep.sim.violation import require
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsReserved, JobBound
from skep.wire.spec import JobSpec, suits

OFTEN = 0.6
TYPES = ("", "", "a100|v100", "cpu", "cpu|a100|v100")


def perhaps_mixed(rng: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a job that often allows its gang to lie in several chains; now and then wrongly."""
    if rng.random() > OFTEN:
        return spec
    left = spec if rng.random() < 0.05 else {k: v for k, v in spec.items() if k != "elastic"}
    resources = {**spec["resources"], "mixed": True, "workers": rng.choice((2, 3, 4, 5, 6))}
    resources.pop("topology", None)
    resources.pop("gpu_type", None)
    kinds = rng.choice(TYPES)
    if kinds:
        resources["gpu_type"] = kinds
    guaranteed = {"service_class": "guaranteed"} if rng.random() < 0.95 else {}
    return {**left, "resources": resources, **guaranteed}


def apart(cluster: Cluster, spec: JobSpec, fact: JobBound | CellsReserved) -> None:
    """Require that a gang lies in several chains only if its job allows it, on GPUs of its types.

    Raises:
        ViolationError: It does not, or a part is not where the fact says.
    """
    chains = dict.fromkeys(member.chain for member in fact.members)
    if chains == {"": None}:
        return
    text = f"{fact.job} is in {', '.join(chains)}"
    require(spec.resources.mixed and not spec.opportunistic, "I25", f"{text}: it is not mixed")
    require("" not in chains and len(chains) > 1, "I25", f"{text}: not every part says where")
    require(next(iter(chains)) == fact.chain, "I25", f"{text}, and begins in {fact.chain}")
    for member in fact.members:
        chain = cluster.chains[member.chain]
        there = member.node in {cell.node for cell in chain.nodes}
        require(there, "I25", f"{text}: {member.node} is not in {member.chain}")
        right = member.gpu_type == chain.gpu and suits(spec.resources.gpu_type, chain.gpu)
        require(right, "I25", f"{text}: {member.node} has {chain.gpu}")
        require(all(member.levels), "I25", f"{text}: {member.node} is in no cells of {spec.vc}")
