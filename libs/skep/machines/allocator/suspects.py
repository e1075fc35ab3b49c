"""Quarantine by rule: a GPU on which several jobs fail at once that run elsewhere counts as bad.

What is weighed are attempts that are over. One that fails within a short time in a way that points
to hardware is a *sign* against the GPUs of the part that failed first; one that lasted, or
succeeded, *clears* all its GPUs, and is the alibi of its job. A sign counts once its job has an
alibi without that GPU, and only if the job never failed so without it: a script that fails wherever
it runs never has a GPU quarantined, however many jobs run it. With enough jobs whose signs count,
the GPU is quarantined, up to a share of its chain.

What a device says itself, as its driver hears of it, needs no such weighing: it is quarantined at
once, up to the same share.

So that there is an alibi, a job's next attempt goes to another node if there is room (`place`).

All of it follows from the allocator's facts (`Suspicion` is durable state), apart from the alibi of
a job that still runs, which only time gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skep.cells.decide import placement
from skep.cells.decide.search import Limit
from skep.cells.holds import Placement, Request
from skep.machines.allocator.jobs import FAILURES, JobState, State
from skep.units import Instant, seconds
from skep.wire.facts import End, GpuQuarantined, JobEnded, JobRequeued
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

SIGNS: dict[Reason, str] = {
    Reason.KILLED_BY_SIGNAL: "signal",
    Reason.NOT_STARTED: "not-started",
    Reason.EXITED_NONZERO: "exit",
}
"""Which word of the rule's `signs` means which end of an attempt."""
GPUS_MAX = 64
"""An attempt with more GPUs says too little about each of them to be kept."""
RUNS_MAX = 8
"""Attempts kept of a job on either side, and jobs named in a reason: the latest."""
SIGNS_MAX = 32
SUSPECTS_MAX = 1000
"""Jobs kept whose attempts failed on one GPU, and GPUs kept that something speaks against: the
latest, since a script that fails everywhere speaks against every GPU there is."""


class Suspicion(msgspec.Struct):
    """What attempts that are over say about GPUs, which are named `node/device`."""

    signs: dict[str, dict[str, int]] = {}
    """By GPU: the jobs that failed there since one last ran well, and when (wall-clock ns)."""
    failed: dict[str, list[list[str]]] = {}
    """By job: the GPUs of attempts that failed so."""
    ran: dict[str, list[list[str]]] = {}
    """By job: the GPUs of attempts that ran well."""
    ruled: dict[str, int] = {}
    """GPUs quarantined by the rule, each with how many jobs spoke against it."""
    told: dict[str, str] = {}
    """By GPU: what it said of itself when it was quarantined for that the last time."""


def over(machine: AllocatorMachine, job: JobState, fact: JobRequeued | JobEnded) -> None:
    """Take in that an attempt is over, before the job forgets what it held."""
    known, rule = machine.suspicion, machine.asked.quarantine
    succeeded = isinstance(fact, JobEnded) and fact.end is End.SUCCEEDED
    if succeeded and not known.signs:
        # Nothing speaks against any GPU: nobody needs this one's alibi.
        known.failed.pop(job.job, None)
        known.ran.pop(job.job, None)
        return
    gpus = [gpu for node in job.members for gpu in _part(job, node)]
    gone: list[str] = []
    lasted = fact.at - (job.ran_at or fact.at) >= seconds(rule.within)
    if rule.jobs and 0 < len(gpus) <= GPUS_MAX and (succeeded or lasted):
        gone = [name for gpu in gpus for name in known.signs.pop(gpu, ())]
        _note(known.ran, job.job, gpus)
    elif rule.jobs and gpus and SIGNS.get(fact.why) in rule.signs and not job.mixed:
        # The one that `judge` went by: the others of a gang were stopped because of it.
        blamed = (gone.node for gone in job.gone if gone.outcome in FAILURES)
        part = _part(job, next(blamed, ""))
        if 0 < len(part) <= GPUS_MAX:
            for gpu in part:
                signs = known.signs[gpu] = known.signs.pop(gpu, {})
                signs.pop(job.job, None)
                signs[job.job] = fact.at
                while len(signs) > SIGNS_MAX:
                    del signs[next(iter(signs))]
            while len(known.signs) > SUSPECTS_MAX:
                del known.signs[next(iter(known.signs))]
            _note(known.failed, job.job, part)
    gone += _old(known, fact.at - seconds(rule.window))
    _forget(machine, [*gone, job.job])


def quarantined(machine: AllocatorMachine, fact: GpuQuarantined) -> None:
    """Take in that a GPU was quarantined, or taken back: then nothing speaks against it."""
    known, gpu = machine.suspicion, f"{fact.node}/{fact.device}"
    signs = known.signs.pop(gpu, {})
    known.ruled.pop(gpu, None)
    if fact.quarantine and fact.why is Reason.REPEATED_FAILURES:
        known.ruled[gpu] = len(signs)
    elif fact.quarantine and fact.why is Reason.DEVICE_TROUBLE:
        known.ruled[gpu], known.told[gpu] = 0, fact.detail
    _forget(machine, list(signs))


def place(
    machine: AllocatorMachine, job: JobState, asked: Request, limit: Limit, now: Instant
) -> Placement | None:
    """Return where a gang goes; to nodes that it failed on in such a way only if it has to.

    Else a job whose turn is next would be given the same GPU until it has used up its retries, and
    nobody would learn whose fault it is. Nobody is put aside for that.
    """
    loss = machine.loss(now)
    failed = machine.suspicion.failed.get(job.job)
    if not failed:
        return placement.find_placement(machine.cells, asked, loss, limit)
    shunned = {gpu.rpartition("/")[0] for gpus in failed for gpu in gpus}

    def elsewhere(node: str) -> int:
        if node in shunned:
            return 0
        return job.spec.resources.workers if limit is None else limit(node)

    where = placement.find_placement(machine.cells, asked, loss, elsewhere)
    if where is not None and not (where.victims or where.cancels or where.demoted):
        return where
    return placement.find_placement(machine.cells, asked, loss, limit)


def convict(machine: AllocatorMachine, now: Instant) -> None:
    """Quarantine the GPUs that enough jobs speak against, the most jobs first, up to the share."""
    known, rule = machine.suspicion, machine.asked.quarantine
    if not rule.jobs or not known.signs:
        return
    found: list[tuple[int, str, list[str]]] = []
    for gpu, signs in known.signs.items():
        if len(signs) >= rule.jobs:
            told = [job for job in signs if _speaks(machine, job, gpu, now)]
            if len(told) >= rule.jobs:
                found.append((-len(told), gpu, told))
    for _, gpu, told in sorted(found):
        name, _, device = gpu.rpartition("/")
        node, home = machine.nodes.get(name), machine.cells.find(name, int(device))
        if node is None or home is None or int(device) in node.quarantined:
            continue
        if _room(machine, home[0]):
            named = " ".join(told[-RUNS_MAX:])
            machine.record(
                GpuQuarantined(
                    node=name,
                    device=int(device),
                    quarantine=True,
                    why=Reason.REPEATED_FAILURES,
                    detail=f"{named} failed there and ran elsewhere",
                )
            )


def troubled(machine: AllocatorMachine, event: Heartbeat) -> None:
    """Quarantine GPUs that say themselves that something is wrong with them, up to the share.

    One that an operator took back stays so until it says something else.
    """
    known, node = machine.suspicion, machine.nodes.get(event.node)
    if not machine.asked.quarantine.jobs or node is None:
        return
    for each in event.trouble:
        home = machine.cells.find(event.node, each.index)
        if home is None or each.index in node.quarantined:
            continue
        if known.told.get(f"{event.node}/{each.index}") != each.text and _room(machine, home[0]):
            machine.record(
                GpuQuarantined(
                    node=event.node,
                    device=each.index,
                    quarantine=True,
                    why=Reason.DEVICE_TROUBLE,
                    detail=each.text,
                )
            )


def _room(machine: AllocatorMachine, chain: str) -> bool:
    """Return whether one more GPU of a chain may be quarantined by the rule."""
    share = machine.asked.quarantine.share
    homes = [
        machine.cells.find(gpu.rpartition("/")[0], int(gpu.rpartition("/")[2]))
        for gpu in machine.suspicion.ruled
    ]
    out = sum(home is not None and home[0] == chain for home in homes)
    most = int(machine.cells.chains[chain].topology.leaves * share)
    return out < (max(1, most) if share else 0)


def _speaks(machine: AllocatorMachine, name: str, gpu: str, now: Instant) -> bool:
    """Return whether a job that failed on a GPU has run without it, and never failed without it."""
    known = machine.suspicion
    if any(gpu not in gpus for gpus in known.failed.get(name, ())):
        return False
    if any(gpu not in gpus for gpus in known.ran.get(name, ())):
        return True
    job = machine.jobs.get(name)
    if job is None or job.state is not State.RUNNING:
        return False
    lasts = now - job.ran_at >= seconds(machine.asked.quarantine.within)
    return lasts and not any(gpu in _part(job, node) for node in job.members)


def _part(job: JobState, node: str) -> list[str]:
    member = job.members.get(node)
    return [
        f"{node}/{device}"
        for rank in (member.devices if member is not None else ())
        for device in rank
    ]


def _note(runs: dict[str, list[list[str]]], job: str, gpus: list[str]) -> None:
    kept = runs.setdefault(job, [])
    if gpus not in kept:
        kept.append(gpus)
        del kept[:-RUNS_MAX]


def _old(known: Suspicion, before: int) -> list[str]:
    """Drop signs from before an instant; returns whose they were."""
    gone: list[str] = []
    for gpu in list(known.signs):
        signs = known.signs[gpu]
        old = [job for job, at in signs.items() if at < before]
        for job in old:
            del signs[job]
        if not signs:
            del known.signs[gpu]
        gone += old
    return gone


def _forget(machine: AllocatorMachine, jobs: list[str]) -> None:
    """Drop what is kept of jobs that are over and say nothing against any GPU any more."""
    known = machine.suspicion
    for job in jobs:
        if job not in machine.jobs and not any(job in signs for signs in known.signs.values()):
            known.failed.pop(job, None)
            known.ran.pop(job, None)
