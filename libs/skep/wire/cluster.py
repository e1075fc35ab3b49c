"""What the cluster is and which VC owns which part of it: chains of cells, and virtual clusters.

A *chain* is a hierarchy of cells of one GPU type. Level 1 is one GPU; a cell of the next level is
made of a fixed number of cells of the level below (HiveD section 3.2, "hierarchical uniform
composability"), so a cell is told by its level and its index among the cells of that level, in the
order in which the chain lists its nodes: its children and its GPUs follow by arithmetic.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.wire.bounds import LISTED_MAX, NAMES_MAX, NODES_MAX, TEMPLATES_MAX, Number, Whole, Words
from skep.wire.volumes import Volume

JOBS_MAX = 1_000_000
"""Unfinished jobs a VC may have unless its entry says less: it bounds every queue."""

FIFO = "fifo"
"""The policy of a VC unless its entry says another: the allocator's own queue."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A piece of the cluster: closed, immutable, defaults left out on the wire."""


class Level(_Part, frozen=True):
    """One level of a chain: each of its cells consists of `fanout` cells of the level below."""

    name: Words
    fanout: Whole


class NodeCell(_Part, frozen=True):
    """One node of a chain. `devices` are its GPUs' indices in the order of the tree.

    Without `devices` they are 0, 1, and so on. A node with two types of GPU is in two chains.
    """

    node: Words
    devices: Annotated[tuple[Whole, ...], Meta(max_length=NODES_MAX)] = ()


class Chain(_Part, frozen=True):
    """A hierarchy of cells of one GPU type.

    `levels` are those above one GPU (whose level is named `leaf`), from the lowest up; the level
    named `node_level` is one machine. `nodes` are all nodes, in the order of the tree: the first
    so many make up the first top cell. `names` gives cells above node level other names than
    their index, by `level/index`.
    """

    gpu: Words
    levels: Annotated[tuple[Level, ...], Meta(max_length=NODES_MAX)]
    node_level: Words
    nodes: Annotated[tuple[NodeCell, ...], Meta(max_length=2 * NODES_MAX)]
    leaf: Words = "gpu"
    names: Annotated[dict[Words, Words], Meta(max_length=LISTED_MAX)] = {}


class Quota(_Part, frozen=True):
    """So many cells of one level of a chain, wherever they are."""

    chain: Words
    level: Words
    count: Whole


class Pin(_Part, frozen=True):
    """One particular physical cell, given a name so that a virtual cluster can own it."""

    chain: Words
    level: Words
    index: Whole


class FairShare(_Part, frozen=True):
    """How the GPUs of a VC are shared among its people over time (`skep.policy.fair`).

    What a person used counts half after `half_life` seconds. `weights` are theirs, relative to one
    another; a person that is not named has 1.
    """

    half_life: Whole = 7 * 86_400
    weights: Annotated[dict[Words, Number], Meta(max_length=LISTED_MAX)] = {}


class PersonLimits(_Part, frozen=True):
    """What each person may have in a VC at one time; None: as much as there is.

    `running` are jobs with GPUs, also suspended ones, `gpus` those of all these jobs, `queued`
    jobs that have not begun.
    """

    running: Whole | None = None
    gpus: Whole | None = None
    queued: Whole | None = None


class Template(_Part, frozen=True):
    """A spec in part, which jobs of a VC begin from by its name (`template: NAME`).

    `fixed` are paths of the spec, such as `resources.gpu_type`, that no job may say otherwise.
    """

    spec: dict[Words, Any]
    fixed: Annotated[tuple[Words, ...], Meta(max_length=NAMES_MAX)] = ()
    about: Words = ""


class IdleRule(_Part, frozen=True):
    """What becomes of jobs that make no mini-batch and do not use their GPUs (`skep.idle`).

    After `suspend_after` seconds of that a job gives its GPUs back, its state kept, if it can.
    """

    suspend_after: Whole = 1800


class VirtualCluster(_Part, frozen=True):
    """What one tenant owns: cells of each level, and pinned cells by their names.

    `gpus` is a shorthand for cells: as many GPUs as that, in the largest cells that make it up.
    `weight` is its share of what is idle, relative to other tenants' (weighted max-min fairness).
    `policy` orders its guaranteed jobs, by these `options` (`skep policies` lists them).
    `priorities` are the highest that its people may give a job, by their role; a role that is not
    there has no limit of its own.
    `fair_share` puts the jobs of the person first that used least, `limits` bound each person.
    `templates` are specs in part by name, which jobs begin from. `idle` suspends jobs that do
    nothing.
    """

    cells: Annotated[tuple[Quota, ...], Meta(max_length=LISTED_MAX)] = ()
    pinned: Annotated[tuple[Words, ...], Meta(max_length=LISTED_MAX)] = ()
    gpus: Whole = 0
    weight: Number = 1.0
    jobs_max: Whole = JOBS_MAX
    policy: Words = FIFO
    options: Annotated[dict[Words, Any], Meta(max_length=NAMES_MAX)] = {}
    priorities: Annotated[dict[Words, Whole], Meta(max_length=NAMES_MAX)] = {}
    fair_share: FairShare | None = None
    limits: PersonLimits | None = None
    templates: Annotated[dict[Words, Template], Meta(max_length=TEMPLATES_MAX)] = {}
    idle: IdleRule | None = None

    @property
    def is_planned(self) -> bool:
        """Whether plans place its jobs: those of a policy, or by shares or limits of people."""
        return self.policy != FIFO or self.fair_share is not None or self.limits is not None


class QuarantineRule(_Part, frozen=True):
    """When a GPU is quarantined without a request by an operator.

    When so many `jobs` (0: never) failed on it within so many seconds of their start, in one of
    the ways in `signs` (signal, not-started, exit), and ran elsewhere for longer than that or to
    their end, all within a `window` of so many seconds. At most a `share` of a chain's GPUs is
    quarantined by this rule at one time, or one GPU (0: none).

    A node or GPU is blamed when ranks on it were slow or hung in `slow` attempts (0: never) within
    the `window`, of jobs of at least two tenants; with `quarantine_slow` its GPUs are quarantined
    too, within the `share`.
    """

    jobs: Whole = 3
    within: Whole = 300
    window: Whole = 86_400
    share: Number = 0.1
    signs: Annotated[tuple[Words, ...], Meta(max_length=NAMES_MAX)] = ("signal", "not-started")
    slow: Whole = 3
    quarantine_slow: bool = False


QUARANTINE = QuarantineRule()
"""What holds unless it is said otherwise: one object, so that messages leave it out."""


class Cluster(_Part, frozen=True):
    """The whole: chains and pins by name, virtual clusters and volumes by name.

    Without `chains` the nodes that join make them up, one chain for each kind of node.
    """

    chains: Annotated[dict[Words, Chain], Meta(max_length=NODES_MAX)] = {}
    pins: Annotated[dict[Words, Pin], Meta(max_length=LISTED_MAX)] = {}
    vcs: Annotated[dict[Words, VirtualCluster], Meta(max_length=LISTED_MAX)] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: Annotated[dict[Words, Volume], Meta(max_length=LISTED_MAX)] = {}
