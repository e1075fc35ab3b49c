"""The cells as the API answers them: the tree, what each VC owns and uses, and what a change means.

Pure functions of the cells and the fold. `vc` is the tenant that asks, empty for an operator. Of
other tenants it sees which GPUs are taken and which cells are owned, without names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skep.cells.chain import ChainState
from skep.cells.decide.bad_cells import AT_ONCE
from skep.cells.decide.reconfigure import reconfigure
from skep.cells.holds import CellHold
from skep.cells.install import ReconfiguredJob
from skep.cells.levels import gpus_owned
from skep.cells.pools import VirtualCell
from skep.cells.propose import resolve
from skep.cells.snapshot import CellsSnapshot, restore_cells
from skep.cells.state import Cells
from skep.ids import job_of
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.reasons import TEXT
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.fold import Fold
from skep_services.gateway.holders import counted
from skep_services.gateway.rows import PLACED, State
from skep_services.gateway.texts import alarm_text

Plain = dict[str, Any]
HIDDEN = "?"
"""What a tenant reads in place of another tenant and its jobs."""


# --- the tree ------------------------------------------------------------------------------------


def cells_view(cells: Cells, vc: Only, chain: str = "") -> list[Plain]:
    """Return every chain with its levels and its tree of cells.

    Nodes and cells within them that are alike throughout (idle, or used by one job) come without
    their children, so that a large idle cluster is a short answer.

    Args:
        vc: The tenant that asks; empty: an operator.
        chain: The only chain to return; empty: every chain.
    """
    return [
        {
            "chain": name,
            "gpu": state.topology.gpu,
            "node_level": state.topology.levels[state.topology.node_level],
            "levels": [
                {"level": level, "gpus": size}
                for level, size in zip(
                    state.topology.levels[1:], state.topology.size[1:], strict=True
                )
            ],
            "cells": list(_Tree(cells, state, vc).tops()),
        }
        for name, state in cells.chains.items()
        if chain in {"", name}
    ]


class _Tree:
    """One chain's cells as nested plain data."""

    def __init__(self, cells: Cells, state: ChainState, vc: Only) -> None:
        self.state, self.shape, self.vc = state, state.topology, vc
        found = ((cells.find(*gpu), job) for job, gpus in cells.off_chain.items() for gpu in gpus)
        self.off_chain = {
            home[1]: job_of(job)
            for home, job in found
            if home is not None and home[0] == self.shape.name
        }

    def tops(self) -> Iterator[Plain]:
        for index in range(self.shape.count[self.shape.top]):
            yield self._cell(self.shape.top, index, None)

    def _cell(self, level: int, index: int, owner: VirtualCell | None) -> Plain:
        """Return a cell; `owner` is the bound cell that contains it."""
        shape, forest = self.shape, self.state.forest
        bound = self.state.bound[level].get(index) if owner is None else owner
        cell: Plain = {
            "level": shape.levels[level],
            "address": shape.address(level, index),
            "gpus": shape.size[level],
        }
        if bound is not None and owner is None:
            cell |= {"owner": _shown(bound.pool.vc, self.vc, bound.pool.vc)}
            cell |= {"pin": bound.pool.pin} if bound.pool.pin else {}
            cell |= {"doomed": True} if bound.bad_cell else {}
        if level == 1:
            return cell | self._use(index)
        inside = level <= shape.node_level
        whole = bound is not None or forest.enclosing_free_level(level, index) > 0
        if inside and whole and not forest.busy[level][index]:
            return cell | {"idle": shape.size[level]}
        children = [
            self._cell(level - 1, each, bound) for each in shape.within(level, index, level - 1)
        ]
        counts = {
            key: sum(child.get(key, 0) for child in children)
            for key in ("idle", "used", "borrowed", "reserved", "bad")
        }
        cell |= {key: count for key, count in counts.items() if count}
        alike = {key: children[0].get(key) for key in ("job", "vc", "for", "beside")}
        uniform = inside and all(
            "children" not in child
            and "owner" not in child
            and alike == {key: child.get(key) for key in alike}
            for child in children
        )
        if uniform and all(count in (0, shape.size[level]) for count in counts.values()):
            return cell | {key: value for key, value in alike.items() if value is not None}
        return cell | {"children": children}

    def _use(self, leaf: int) -> Plain:
        user, claim = self.state.user[leaf], self.state.claim.get(leaf)
        told: Plain = {}
        if leaf in self.off_chain:
            told |= {"borrowed": 1, "job": self.off_chain[leaf]}
        elif user is not None:
            told |= {"used" if user.guaranteed else "borrowed": 1, **self._who(user, "job")}
            told["vc"] = _shown(user.vc, self.vc, user.vc)
            told |= self._beside(user, leaf)
        if claim is not None:
            told |= {"reserved": 1, **self._who(claim, "for")}
        if leaf in self.state.bad and leaf not in self.off_chain:
            told["bad"] = 1
        return told or {"idle": 1}

    def _beside(self, hold: CellHold, leaf: int) -> Plain:
        """Return the jobs that share a GPU with the one that leads there."""
        others = [
            job_of(job)
            for job, each in hold.partners.items()
            if job != hold.job and leaf in each.leaves
        ]
        return {"beside": others} if others and covers(self.vc, hold.vc) else {}

    def _who(self, hold: CellHold, key: str) -> Plain:
        return {key: _shown(hold.vc, self.vc, job_of(hold.job))}


def _shown(owner: str, vc: Only, text: str) -> str:
    return text if covers(vc, owner) else HIDDEN


def alarms_view(fold: Fold, vc: Only) -> list[Plain]:
    """Return what the allocator found broken in the cells and not in order since.

    A tenant sees what concerns it, without the story, which names jobs of others.
    """
    return [
        {
            "rule": alarm.rule,
            "chain": alarm.chain,
            "where": alarm.where,
            "vcs": [each for each in alarm.vcs if covers(vc, each)],
            "at": alarm.at,
            "text": alarm_text(alarm) if vc == "" else TEXT[alarm.rule],
            "story": list(alarm.story) if vc == "" else [],
        }
        for alarm in fold.state.alarms.values()
        if vc == "" or any(covers(vc, each) for each in alarm.vcs)
    ]


# --- tenants -------------------------------------------------------------------------------------


def vcs_view(fold: Fold, vc: Only) -> list[Plain]:
    """Return tenants by name: what they own, what they use.

    `gpus` are those of its cells, `asked` as many as were asked for: more than that while too few
    nodes have joined. `used` are in its own cells, `borrowed` its jobs use opportunistically.
    `running` counts jobs that hold their place and are not suspended; `suspended` the others.
    """
    cluster = fold.state.cells.cluster
    counts = {
        name: {"used": 0, "borrowed": 0, "running": 0, "suspended": 0, "queued": 0}
        for name in cluster.vcs
    }
    for job in fold.active.values():
        count = counts.get(job.row.vc)
        if count is None:
            continue
        if job.row.state in PLACED:
            guaranteed = job.row.class_in_force == "guaranteed"
            placed = fold.state.placed.get(job.row.job)
            gpus = counted(fold.state, placed) if placed is not None else 0
            count["used" if guaranteed else "borrowed"] += gpus
            count["suspended" if job.row.state is State.SUSPENDED else "running"] += 1
        elif job.row.state is State.QUEUED:
            count["queued"] += 1
    return [
        {
            "vc": name,
            "gpus": gpus_owned(cluster, name),
            "asked": gpus_owned(fold.state.asked, name),
            "weight": config.weight,
            "jobs_max": config.jobs_max,
            "policy": config.policy,
            "options": config.options,
            "templates": msgspec.to_builtins(config.templates),
            **counts[name],
        }
        for name, config in sorted(cluster.vcs.items())
        if covers(vc, name)
    ]


def usage_view(cells: Cells, rows: list[Plain], vc: Only) -> list[Plain]:
    """Return tenants (rows of `vcs_view`) with their cells: how many, and where each one is."""
    return [
        {
            **row,
            "cells": list(owned_view(cells, row["vc"])),
            "bound": list(bound_view(cells, row["vc"], vc)),
            "borrowers": list(_borrowers(cells, row["vc"])),
        }
        for row in rows
    ]


def owned_view(cells: Cells, vc: str) -> Iterator[Plain]:
    """Yield the kinds of cells a VC owns: how many, how many are bound, free, or bad."""
    for name, chain in cells.chains.items():
        shape = chain.topology
        for (owner, pin), pool in chain.pools.items():
            for level in range(shape.top, 0, -1) if owner == vc else ():
                if pool.total[level]:
                    bad_cells = [
                        cell
                        for cell in chain.bad_cells
                        if cell.pool is pool and cell.level == level
                    ]
                    bound = pool.total[level] - pool.left[level]
                    yield {
                        "chain": name,
                        "level": shape.levels[level],
                        "pin": pin,
                        "gpus": shape.size[level],
                        "owned": pool.total[level],
                        "bound": bound,
                        "free": pool.total[level] - bound,
                        "bad": len(bad_cells),
                    }


def bound_view(cells: Cells, vc: str, asking: Only) -> Iterator[Plain]:
    """Yield where a VC's cells are for now, and the jobs inside.

    Args:
        vc: The VC whose cells they are.
        asking: The tenant that asks; empty: an operator.
    """
    for name, chain in cells.chains.items():
        shape = chain.topology
        for pool in chain.pools.values():
            for (level, index), cell in sorted(pool.bound.items()) if pool.vc == vc else ():
                span = shape.span(level, index)
                inside: dict[str, Plain] = {}
                for leaf in span:
                    _count(inside, chain.user[leaf], asking, claims=False)
                    _count(inside, chain.claim.get(leaf), asking, claims=True)
                bad = sum(leaf in chain.bad for leaf in span)
                yield {
                    "chain": name,
                    "level": shape.levels[level],
                    "address": shape.address(level, index),
                    "pin": pool.pin,
                    "gpus": len(span),
                    "idle": sum(chain.is_idle(leaf) for leaf in span),
                    "bad": bad,
                    "doomed": cell.bad_cell,
                    "jobs": list(inside.values()),
                }


def _count(inside: dict[str, Plain], hold: CellHold | None, asking: Only, *, claims: bool) -> None:
    if hold is not None:
        told = inside.setdefault(
            f"{hold.job} {claims}",
            {
                "job": _shown(hold.vc, asking, job_of(hold.job)),
                "vc": _shown(hold.vc, asking, hold.vc),
                "gpus": 0,
                "borrowed": not hold.guaranteed,
                "reserved": claims,
                "beside": [job_of(job) for job in hold.partners if job != hold.job]
                if covers(asking, hold.vc)
                else [],
            },
        )
        told["gpus"] += 1


def _borrowers(cells: Cells, vc: str) -> Iterator[Plain]:
    """Yield a VC's jobs that use GPUs beyond its cells, and on which nodes."""
    for hold in cells.holds.values():
        if hold.vc == vc and not hold.guaranteed:
            nodes = dict.fromkeys(cells.nodes_of(hold))
            yield {"job": job_of(hold.job), "gpus": hold.gpus, "nodes": list(nodes)}


# --- a change ------------------------------------------------------------------------------------


def resolved(fold: Fold, asked: Cluster) -> Cluster:
    """Return what a sound cluster would be with the nodes that have joined."""
    return resolve(asked, [node.joined for node in fold.state.nodes.values()])


def fates(kept: CellsSnapshot, after: Cluster) -> list[ReconfiguredJob]:
    """Return what other cells would mean for each job that holds GPUs.

    Args:
        kept: The cells as they are.
        after: The cluster whose cells would replace them.
    """
    return reconfigure(restore_cells(kept, AT_ONCE), after)[1]


def plan_view(fold: Fold, asked: Cluster, after: Cluster, changes: list[ReconfiguredJob]) -> Plain:
    """Return what a sound cluster would mean: for each job that holds GPUs, and for each VC.

    `missing` are nodes of it that have not joined: their cells count as bad until they do.

    Args:
        fold: The cluster as it is.
        asked: The cluster that an operator has in mind.
        after: What it would be with the nodes that have joined (`resolved`).
        changes: What it would mean for jobs (`fates`).
    """
    before = fold.state.cells.cluster
    jobs = []
    for change in changes:
        job = fold.find(job_of(change.job))
        jobs.append(
            {
                "job": job_of(change.job),
                "vc": change.vc,
                "fate": change.fate,
                "gpus": job.row.gpus if job is not None else 0,
                "place": job.row.place if job is not None else "",
                "astray": [f"{node}:{device}" for node, device in change.astray],
            }
        )
    named = dict.fromkeys(cell.node for chain in after.chains.values() for cell in chain.nodes)
    return {
        "jobs": jobs,
        "vcs": [
            {
                **_vc_change(name, before, after),
                "asked": gpus_owned(asked, name) if name in asked.vcs else 0,
            }
            for name in sorted({*before.vcs, *after.vcs})
        ],
        "missing": [name for name in named if name not in fold.state.nodes],
    }


def _vc_change(name: str, before: Cluster, after: Cluster) -> Plain:
    sides = [
        {"gpus": gpus_owned(cluster, name), **_told(cluster.vcs[name])}
        if name in cluster.vcs
        else None
        for cluster in (before, after)
    ]
    return {"vc": name, "before": sides[0], "after": sides[1], "changes": sides[0] != sides[1]}


def _told(vc: VirtualCluster) -> Plain:
    return {
        "cells": {f"{one.chain}/{one.level}": one.count for one in vc.cells},
        "pinned": list(vc.pinned),
        "weight": vc.weight,
        "jobs_max": vc.jobs_max,
        "policy": vc.policy,
        "options": vc.options,
        "priorities": vc.priorities,
    }
