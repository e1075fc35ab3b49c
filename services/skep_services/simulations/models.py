"""Workload models by name."""

from __future__ import annotations

from skep.wire.cluster import Cluster
from skep.workloads.situation import Speeds, Steady
from skep_services.simulations.inputs import WrongError, like

MODELS = {"steady": "every job goes everywhere as fast as in the trace"}


def speeds(name: str, cluster: Cluster) -> Speeds:
    """Return a workload model for the types and nodes of a cluster. Raises WrongError."""
    if name not in MODELS:
        reason = f"no workload model is called {name!r}{like(name, MODELS)}"
        raise WrongError(reason)
    return Steady()
