"""Workload models by name."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from skep.wire.cluster import Chain, Cluster
from skep_lab.workloads.models import Models
from skep_lab.workloads.situation import Speeds, Steady
from skep_lab.workloads.table import Table
from skep_services import workload_tables
from skep_services.simulations.inputs import WrongError, like

VARIABLE = "SKEP_SHARED_DATA"

MODELS = {
    "steady": "every job goes everywhere as fast as in the trace",
    "papers": "what the papers print of types, nodes, partners and neighbours",
    "measured": f"what was measured, by all tables of the folder that {VARIABLE} names",
    **{name: f"by {name}'s table alone" for name in workload_tables.READERS if name != "salus"},
}


def speeds(name: str, cluster: Cluster) -> Speeds:
    """Return a workload model for the types and nodes of a cluster.

    Args:
        name: One of MODELS.
        cluster: The cluster.

    Raises:
        WrongError: There is no such model, or its measurements are not there or cannot be read.
    """
    if name not in MODELS:
        reason = f"no workload model is called {name!r}{like(name, MODELS)}"
        raise WrongError(reason)
    if name == "steady":
        return Steady()
    node_gpus = max((_node_gpus(chain) for chain in cluster.chains.values()), default=8)
    types = sorted({chain.gpu for chain in cluster.chains.values()})
    if name == "papers":
        return Models(node_gpus=node_gpus, types=types)
    tables = _measured(name)
    return Models(tables, node_gpus=node_gpus, types=types, papers=name == "measured")


@cache
def measured_digest(name: str) -> str:
    """Return a digest of the measurements that a workload model has here; empty: it has none.

    Args:
        name: One of MODELS.

    Raises:
        WrongError: Its measurements are not there or cannot be read.
    """
    if name in ("steady", "papers"):
        return ""
    said = repr([_plain(table) for table in _measured(name)])
    return hashlib.sha256(said.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value as lists in an order of their own, which is the same in every process."""
    if isinstance(value, Mapping):
        return sorted((repr(_plain(key)), _plain(each)) for key, each in value.items())
    if isinstance(value, frozenset | set):
        return sorted(repr(_plain(each)) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _plain(vars(value))]
    return value


def _measured(name: str) -> tuple[Table, ...]:
    """Return the tables of a workload model.

    Raises:
        WrongError: They are not there or cannot be read.
    """
    folder = os.environ.get(VARIABLE, "")
    if not Path(folder or ".", "").is_dir() or not folder:
        reason = f"{name}: {VARIABLE} names no folder with measurements; `papers` needs none"
        raise WrongError(reason)
    only = () if name == "measured" else (name,)
    try:
        read = workload_tables.read(Path(folder), only)
    except workload_tables.TableError as error:
        raise WrongError(str(error)) from error
    if not read.tables:
        reason = f"{name}: not in {folder}: {', '.join(read.absent.values())}"
        raise WrongError(reason)
    return read.tables


def _node_gpus(chain: Chain) -> int:
    names = [level.name for level in chain.levels]
    below = names.index(chain.node_level) + 1 if chain.node_level in names else 0
    return math.prod(level.fanout for level in chain.levels[:below])
