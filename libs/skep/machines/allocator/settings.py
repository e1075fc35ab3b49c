"""What a simulation may have otherwise, and how long things may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from skep.machines.base import Effect
from skep.policy.api import Policy
from skep.policy.plan import Plan
from skep.policy.view import VcView
from skep.units import Duration, seconds

NODE_CHECK_EVERY = seconds(1)
"""How often nodes are looked for that fell silent, and the watch over the cells goes on."""
NODE_LOST_AFTER = seconds(40)
"""Silence after which a node's jobs are given up: far beyond an agent's restart (a second) and a
bus election (4 to 9 s), well within what a user would wait."""
READY_WITHIN = seconds(600)
"""What a successor gets to import, build and warm up: compiling a large model takes minutes."""
YIELDS_WITHIN = seconds(15)
"""How long a job waits for GPUs of a gang that changes its size, before the gang is stopped."""

RUNS_LEAST = seconds(1)
"""What a job whose GPUs its policy took runs for before they are taken again: plans that contradict
each other cost no more than that."""

LASTS = seconds(600.0)
"""How long a trial may go without a verdict: twice what the test's last look takes of jobs whose
mini-batches are shorter than its samples."""
LASTS_MADE_READY = seconds(1200.0)
"""Likewise where a successor or newcomers make ready first: that may take as long again."""
LASTS_PROBE = seconds(300.0)
"""What a probe may take: newcomers make ready, and then 30 s or 100 mini-batches are measured. The
budget of its VC has to cover all of it."""
PROBE_EVERY = seconds(30.0)
"""How often it is looked whether a probe may begin."""
REPEAT = seconds(2.0)
"""As often as any command is repeated."""


SIGHTS_WHOLE_EVERY = seconds(60.0)
"""So a model that has missed something without knowing it is right again within a minute."""
Witness = Callable[[VcView, Plan, Sequence[Effect]], None]
"""Is shown a VC with its nodes, the plan that its policy made, and what came of it at once."""


class Rules(msgspec.Struct):
    """The rules of trials."""

    repeated: Duration = REPEAT
    """How often open trials are told; where nothing is lost, once is enough."""
    measured: bool = True
    """Whether jobs in trials have a known rate; the fault simulator tries any."""
    lasts: Duration = msgspec.field(default_factory=lambda: LASTS)
    lasts_made_ready: Duration = msgspec.field(default_factory=lambda: LASTS_MADE_READY)
    probe_every: Duration = PROBE_EVERY
    lasts_probe: Duration = msgspec.field(default_factory=lambda: LASTS_PROBE)


class Settings(msgspec.Struct):
    """What a simulation may have otherwise than a service."""

    node_lost_after: Duration = NODE_LOST_AFTER
    """Silence after which a node's jobs are given up; a simulation has less patience."""
    node_check_every: Duration = NODE_CHECK_EVERY
    """In a simulation whose nodes never fall silent: as often as the watch is to go on."""
    trial_rules: Rules = msgspec.field(default_factory=Rules)
    sights_whole_every: Duration = SIGHTS_WHOLE_EVERY
    """How often all of what a policy sees is told to its model; where nothing is lost, once."""
    stores_by_time: bool = True
    """Whether jobs are stored as often as their specs say; a look ahead gains nothing by it."""
    defers: bool = False
    """While this holds nothing is placed: a simulation has more to say about this instant."""
    plan_every: Duration = Duration(0)
    """Policies are asked at multiples of this only, as published simulators do; 0: whenever
    something happened."""
    runs_least: Duration = RUNS_LEAST
    """In a simulation like those of others, which have no such rule, 0."""
    policies: dict[str, Policy] = {}
    """In a simulation: by VC, a policy that has no name in a cluster file."""
    witness: Witness | None = None
    """Is shown every plan, for learning from it. A service has none; no decision depends on it."""
    key: bytes = b""
    """What secrets of successors are derived from: a service's own, never recorded."""
