"""What attempts that are over say about GPUs.

One that fails within a short time in a way that points to hardware is a *sign* against the GPUs of
the part that failed first; one that lasted, or succeeded, *clears* all its GPUs, and is the alibi
of its job. A sign counts once its job has an alibi without that GPU, and only if the job never
failed so without it: a script that fails wherever it runs never has a GPU quarantined, however many
jobs run it. Only time gives the alibi of a job that still runs; all else follows from facts.
"""

from __future__ import annotations

from skep.ledger import records
from skep.ledger.job_state import FAILURES, JobState
from skep.ledger.state import ClusterState
from skep.units import seconds
from skep.wire.facts import End, GpuQuarantined, JobEnded, JobRequeued
from skep.wire.reasons import Reason

SIGNS: dict[Reason, str] = {
    Reason.KILLED_BY_SIGNAL: "signal",
    Reason.NOT_STARTED: "not-started",
    Reason.NODE_FAULT: "not-started",
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


def over(state: ClusterState, job: JobState, fact: JobRequeued | JobEnded) -> None:
    """Take in that an attempt is over, before the job forgets what it held."""
    known, rule = state.suspicion, state.asked.quarantine
    succeeded = isinstance(fact, JobEnded) and fact.end is End.SUCCEEDED
    if succeeded and not known.signs:
        # Nothing speaks against any GPU: this attempt's alibi is of no use.
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
    _forget(state, [*gone, job.job])


def quarantined(state: ClusterState, fact: GpuQuarantined) -> None:
    """Take in that a GPU was quarantined, or taken back: then nothing speaks against it."""
    known, gpu = state.suspicion, f"{fact.node}/{fact.device}"
    signs = known.signs.pop(gpu, {})
    known.ruled.pop(gpu, None)
    if fact.quarantine and fact.why in (Reason.REPEATED_FAILURES, Reason.HELD_UP_GANGS):
        known.ruled[gpu] = len(signs)
    elif fact.quarantine and fact.why is Reason.DEVICE_TROUBLE:
        known.ruled[gpu], known.told[gpu] = 0, fact.detail
    _forget(state, list(signs))


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


def _old(known: records.Suspicion, before: int) -> list[str]:
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


def _forget(state: ClusterState, jobs: list[str]) -> None:
    """Drop what is kept of jobs that are over and say nothing against any GPU any more."""
    known = state.suspicion
    for job in jobs:
        if job not in state.jobs and not any(job in signs for signs in known.signs.values()):
            known.failed.pop(job, None)
            known.ran.pop(job, None)
