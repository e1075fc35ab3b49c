"""Check cluster files and clusters together with the policies of their VCs.

The package `skep.cells` knows nothing of policies, so every check of a whole cluster begins here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.cells import clustercheck, clusterfile
from skep.cells.clustercheck import PROBLEMS_MAX, Paths, problem
from skep.policy import fair
from skep.policy.registry import NoPolicy, make
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep.wire.spec import Problem


def parse_cluster(tree: Any) -> Cluster | list[Problem]:
    """Return the cluster in a decoded YAML or JSON value, or everything that is wrong with it."""
    read = clusterfile.parse_cluster(tree)
    if isinstance(read, list):
        return read
    return list(policy_problems(read)) or read


def cluster_problems(cluster: Cluster, paths: Paths | None = None) -> list[Problem]:
    """Return everything that is wrong with a cluster.

    Args:
        cluster: The cluster.
        paths: The path of each part of the cluster, for the messages; None: that of a cluster file.

    Returns:
        At most PROBLEMS_MAX problems; none if the cluster is good.
    """
    found = clustercheck.cluster_problems(cluster, paths)
    return [*found, *policy_problems(cluster)][:PROBLEMS_MAX]


def policy_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each VC whose policy does not exist or refuses its options."""
    for name, vc in cluster.vcs.items():
        path = f"$.vcs.{name}.policy"
        try:
            policy = make(vc.policy, vc.options)
        except NoPolicy as error:
            reason = Reason.BAD_OPTION if error.option else Reason.UNKNOWN_POLICY
            here = f"{path}.{error.option}" if error.option else path
            yield problem(here, reason, error.text, error.suggestion)
            continue
        why = fair.unfit(policy) if vc.fair_share is not None else ""
        if why:
            text = f"`fair_share` puts the jobs of a policy in order, and {vc.policy}: {why}"
            hint = "leave `policy` out, or take one that only orders, such as backfill"
            yield problem(f"$.vcs.{name}.fair_share", Reason.BAD_OPTION, text, hint)
