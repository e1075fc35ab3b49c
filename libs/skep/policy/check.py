"""A cluster file, and a cluster, with the policies of its VCs: what is wrong with either.

The cells know nothing of policies, so whoever takes a cluster in asks here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.cells import clustercheck, clusterfile
from skep.cells.clustercheck import PROBLEMS_MAX, Paths, problem
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
    """Return everything that is wrong with a cluster, PROBLEMS_MAX at most; nothing: it is good."""
    found = clustercheck.cluster_problems(cluster, paths)
    return [*found, *policy_problems(cluster)][:PROBLEMS_MAX]


def policy_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield VCs whose policies do not exist, or not with these options."""
    for name, vc in cluster.vcs.items():
        path = f"$.vcs.{name}.policy"
        try:
            make(vc.policy, vc.options)
        except NoPolicy as error:
            reason = Reason.BAD_OPTION if error.option else Reason.UNKNOWN_POLICY
            here = f"{path}.{error.option}" if error.option else path
            yield problem(here, reason, error.text, error.suggestion)
