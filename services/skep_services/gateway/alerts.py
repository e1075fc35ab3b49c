"""What needs a look: bad GPUs, blame, lost nodes, slow or stalled jobs, promises, limits, cells.

Pure functions of what is in memory. Every alert has a stable code, says in one sentence what is
wrong, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from skep.ledger import held_up
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire import codec
from skep.wire.held_up import PlaceBlamed
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.fold import Fold
from skep_services.gateway.limits import Nearly
from skep_services.gateway.live import Live
from skep_services.gateway.rows import ENDED, Job, State
from skep_services.gateway.texts import alarm_text, blamed_text, held_text
from skep_services.gateway.versions import Open, Owned, Shows, Told
from skep_services.gateway.views import node_state

BROKEN_SHOWN_FOR = seconds(24 * 3600.0)
"""How long after its end a job's broken promise is shown."""
ALERTS_MAX = 2_000
"""Of one kind: a page with more is not read, and a cluster whose nodes are all lost has as many."""


class Code(StrEnum):
    """What is wrong. Codes are stable: scripts may rely on them."""

    SERVICE_SILENT = "service-silent"
    CELLS_BROKEN = "cells-broken"
    NODE_LOST = "node-lost"
    NODE_SILENT = "node-silent"
    GPU_BAD = "gpu-bad"
    PLACE_BLAMED = "place-blamed"
    JOB_STALLED = "job-stalled"
    JOB_SLOWED = "job-slowed"
    PROMISE_BROKEN = "promise-broken"
    PROMISE_ENDANGERED = "promise-endangered"
    DISK_NEAR = "disk-near"
    LIMIT_NEAR = "limit-near"


SEVERITY = {
    Code.SERVICE_SILENT: "critical",
    Code.CELLS_BROKEN: "critical",
    Code.NODE_LOST: "critical",
    Code.NODE_SILENT: "warning",
    Code.GPU_BAD: "warning",
    Code.PLACE_BLAMED: "warning",
    Code.JOB_STALLED: "warning",
    Code.JOB_SLOWED: "info",
    Code.PROMISE_BROKEN: "warning",
    Code.PROMISE_ENDANGERED: "warning",
    Code.DISK_NEAR: "critical",
    Code.LIMIT_NEAR: "info",
}


class Alert(NamedTuple):
    """One alert. `vcs`: whose it is; None: everyone sees it; (): only operators.

    `since` None: it is not known, and the instant at which it was first seen counts. `bare` is the
    text for those that do not see everything; empty: the same.
    """

    code: Code
    kind: str
    about: str
    text: str
    todo: str
    since: int | None = None
    vcs: tuple[str, ...] | None = None
    bare: str = ""

    @property
    def key(self) -> str:
        """Return what tells it from all others."""
        return f"{self.code.value}/{self.about}"

    def row(self, since: int) -> Shows:
        """Return it as a row of the table of alerts."""
        doc = self._doc(since, self.text)
        if self.vcs is None:
            return Open(doc)
        if len(self.vcs) <= 1 and not self.bare:
            return Owned("".join(self.vcs), doc)
        return Told(self.vcs, doc, self._doc(since, self.bare or self.text))

    def _doc(self, since: int, text: str) -> bytes:
        severity = SEVERITY[self.code]
        told = [self.key, self.code, severity, self.kind, self.about]
        return codec.encode([*told, " ".join(self.vcs or ()), since, text, self.todo])


def of_nodes(fold: Fold, live: Live, now: Instant) -> Iterator[Alert]:
    """Yield what is wrong with nodes and their GPUs."""
    for name, node in fold.state.nodes.items():
        state, heard = node_state(node, live, now), live.heard.get(name)
        count = len(node.joined.gpus)
        gpus = f"its {count} GPUs" if count != 1 else "its GPU"
        if state == "lost":
            text = f"{name} is lost: {gpus} cannot be used"
            todo = f"look at the machine and its agent; `skep node drain {name}` if it stays away"
            yield Alert(Code.NODE_LOST, "node", name, text, todo, heard)
        elif state == "silent":
            text = f"{name} sends no heartbeats"
            todo = "look at its network and at its agent: the allocator gives it up soon"
            yield Alert(Code.NODE_SILENT, "node", name, text, todo, heard)
        for device in node.quarantined:
            about = f"{name}/{device}"
            text = f"GPU {device} of {name} counts as bad: no job gets it"
            todo = f"test it, then `skep gpu quarantine --undo {name} {device}`"
            yield Alert(Code.GPU_BAD, "gpu", about, text, todo)
    for place, blame in held_up.blamed(fold.state, now).items():
        if blame.node in fold.state.nodes:
            kind = "node" if blame.device < 0 else "gpu"
            text, todo = blamed_text(blame), _test(blame)
            yield Alert(Code.PLACE_BLAMED, kind, place, text, todo, blame.at, vcs=())


def _test(blame: PlaceBlamed) -> str:
    """Return what to do about a node or a GPU that is blamed."""
    out = f"gpu quarantine {blame.node} {blame.device}"
    if blame.device < 0:
        out = f"node drain {blame.node}"
    undo = f"skep gpu quarantine --undo {blame.node} {max(blame.device, 0)}"
    return f"test it; `skep {out}` takes it out, `{undo}` acquits it"


def of_jobs(fold: Fold, now: Instant) -> Iterator[Alert]:
    """Yield what is wrong with jobs: those that stall, and promises that are or may be broken."""
    for job in fold.active.values():
        row = job.row
        if row.stalled_since is not None and row.state is State.RUNNING:
            hang = f": {job.hang}" if job.hang else ""
            text = f"{_named(job)} makes no mini-batches{hang}"
            todo = f"`skep logs {row.job}`, `skep exec {row.job} -- py-spy dump`"
            yield _of(job, Code.JOB_STALLED, text, todo, row.stalled_since)
        held = held_up.holding(fold.state, row.job) if row.state is State.RUNNING else ()
        if held:
            todo = f"`skep why {row.job}`"
            yield _of(job, Code.JOB_SLOWED, held_text(held[0]), todo, held[0].at)
        if job.pledged is not None:
            yield from _promise(job, now)
    for job in fold.recent.values():
        late = job.row.ended_at is None or now - job.row.ended_at > BROKEN_SHOWN_FOR
        if job.pledged is not None and job.row.state in ENDED and not late:
            yield from _promise(job, now)


def _promise(job: Job, now: Instant) -> Iterator[Alert]:
    pledged, row = job.pledged, job.row
    assert pledged is not None, job
    todo = f"`skep why {row.job}`"
    if pledged.outcome == "broken":
        cause = TEXT.get(Reason(pledged.cause), pledged.cause) if pledged.cause else "not known"
        text = f"the promise to {_named(job)} is broken: {cause}"
        yield _of(job, Code.PROMISE_BROKEN, text, todo, None)
    elif pledged.outcome == "open" and row.estimate is not None and row.estimate.end is not None:
        late = row.estimate.end.p50 - pledged.due
        if late > 0:
            text = f"{_named(job)} is likely to end {_length(late)} after its deadline"
            yield _of(job, Code.PROMISE_ENDANGERED, text, todo, None)


def of_cells(fold: Fold) -> Iterator[Alert]:
    """Yield the invariants of cells that were found broken."""
    for alarm in fold.state.alarms.values():
        about = f"{alarm.chain}/{alarm.where}"
        todo = "keep the story (`skep vc ls --json`) for a report, and restart the allocator"
        yield Alert(
            Code.CELLS_BROKEN,
            "cell",
            about,
            alarm_text(alarm),
            todo,
            alarm.at,
            alarm.vcs,
            bare=TEXT[alarm.rule],
        )


def of_limits(near: Iterable[Nearly]) -> Iterator[Alert]:
    """Yield the limits that are near: to operators, and to the virtual cluster that they are of."""
    for one in near:
        kind, _, name = one.counted.partition(" ")
        vcs = (name,) if kind == "VC" else ()
        todo = "close what is not used, or ask less often"
        about = f"{one.counted}: {one.what}"
        yield Alert(Code.LIMIT_NEAR, "limit", about, one.text, todo, None, vcs)


def _of(job: Job, code: Code, text: str, todo: str, since: int | None) -> Alert:
    return Alert(code, "job", job.row.job, text, todo, since, (job.row.vc,))


def _named(job: Job) -> str:
    return f"{job.row.job} ({job.row.name})" if job.row.name else job.row.job


def _length(length: int) -> str:
    """Return how late a job is, as roughly as that is known."""
    late_s = length // NS_PER_SECOND
    if late_s < 120:
        return "shortly"
    return f"{late_s // 60} min" if late_s < 7_200 else f"{late_s // 3600} h"
