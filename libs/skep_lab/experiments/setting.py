"""One setting of an experiment, and its outcome for a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from skep_lab.experiments import gandiva, genie, genieprofile
from skep_lab.experiments import hived as arms
from skep_lab.experiments.gandiva import Played, Scene
from skep_lab.experiments.genie import Check, Prices, Queue
from skep_lab.experiments.genieprofile import ProfileCost
from skep_lab.experiments.hived import STOPPED, Manner, Outcome
from skep_lab.experiments.quota import RULES, Rules
from skep_lab.traces.generators import hived


class Setting(NamedTuple):
    """One setting of an experiment, run for every seed."""

    label: str
    nodes: int
    options: hived.Options
    arms: tuple[str, ...] = ("private", "quota", "cells")
    policy: tuple[str, dict[str, Any]] = ("fifo", {})
    levels: bool = False
    """Cells of every level, by each tenant's demand, instead of whole nodes."""
    beside: bool = False
    """Leave out jobs that either whole nodes or cells of every level cannot hold."""
    fixed: bool = False
    """Cells are bound to hardware permanently."""
    plain: bool = False
    """Private clusters are run by the quotas' scheduler too, which takes seconds for two months."""
    rules: Rules = RULES
    manner: Manner = STOPPED


AnySetting = Setting | Scene | Queue | Check | Prices | ProfileCost
"""A setting of any paper's experiments."""


def play(
    setting: AnySetting,
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] | None = None,
) -> Outcome | Played:
    """Return the outcome of one setting and seed.

    Args:
        setting: The setting.
        seed: The seed of its workload.
        tell: Called with the name of each arm before it runs.
        clock: Returns processor seconds, for experiments on what decisions cost.
    """
    if isinstance(setting, Scene):
        return gandiva.play(setting, seed)
    if isinstance(setting, ProfileCost):
        return genieprofile.play(setting, seed)
    if not isinstance(setting, Setting):
        return genie.play(setting, seed, clock)
    cells = hived.assign_levels(setting.nodes) if setting.levels else None
    other = hived.assign if setting.levels else hived.assign_levels
    beside = other(setting.nodes) if setting.beside else None
    fixed = arms.static(setting.nodes) if setting.fixed else None
    return arms.compare(
        seed,
        setting.nodes,
        setting.options,
        cells=cells,
        policy=setting.policy,
        arms=setting.arms,
        cluster=fixed,
        beside=beside,
        plain=setting.plain,
        rules=setting.rules,
        manner=setting.manner,
        tell=tell,
    )
