"""Reads the evidence at the end: the streams as they are stored, and the jobs' own files."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from skep.ids import job_id
from skep.wire import subjects
from skep.wire.facts import AdmissionFact, Admitted, AllocatorFact, JobEnded, Refused, Repeated
from skep.wire.search_facts import SearchFact
from skep_services.adapters.records import Chain
from skep_services.ports import CorruptLogError, Delivery, LogRecord
from tests.system.chaos.evidence import NS, Evidence, Submitted, read_notes
from tests.system.chaos.target import Target

LOGS: tuple[tuple[str, Any], ...] = (
    (subjects.ADMISSION, AdmissionFact),
    (subjects.ALLOC, AllocatorFact),
)
LOOK_S = 1.0


async def read_logs(target: Target, evidence: Evidence) -> None:
    """Read SUBMIT and the fact logs into the evidence; raises while the bus is away."""
    evidence.broken.clear()
    evidence.submitted = [
        Submitted(one.sequence, one.subject.split(".")[3], one.headers.get("Nats-Msg-Id", ""))
        for one in await target.records(subjects.SUBMIT)
        if one.subject.split(".")[2] == "submit"
    ]
    evidence.admission, evidence.allocator = [
        chain(await target.records(stream), stream, facts, evidence.broken)
        for stream, facts in LOGS
    ]
    # Nothing is searched for here: of this log only the chain is looked at.
    found = await target.records(subjects.SEARCH)
    chain(found, subjects.SEARCH, SearchFact, evidence.broken)


def chain(found: list[Delivery], stream: str, facts: Any, broken: list[str]) -> list[LogRecord]:
    """Return a log's records up to the first that does not continue its chain."""
    read = Chain(f"fact log {stream}", facts)
    records = []
    for one in found:
        try:
            records.append(read.read(one.payload, f"sequence {one.sequence}"))
        except CorruptLogError as error:
            broken.append(str(error))
            break
    return records


def unfinished(evidence: Evidence) -> list[str]:
    """Return every submission in the stream that has no end yet, and why."""
    answers = {}
    ended = set()
    for record in evidence.admission:
        for fact in record.facts:
            if isinstance(fact, Admitted | Refused | Repeated):
                answers[fact.job] = fact
    for record in evidence.allocator:
        ended |= {fact.job for fact in record.facts if isinstance(fact, JobEnded)}
    left = []
    for one in evidence.submitted:
        job = job_id(one.sequence)
        answer = answers.get(job)
        if answer is None:
            left.append(f"{job} ({one.key}) has no answer")
        elif isinstance(answer, Admitted) and job not in ended:
            left.append(f"{job} ({answer.spec.name}) was admitted and has no end")
    return left


async def until_ended(target: Target, evidence: Evidence, within_s: float) -> float:
    """Read the logs until everything has ended; return the seconds that took.

    What had no end in time is in `evidence.unfinished`.
    """
    begin = time.monotonic()
    while True:
        try:
            await read_logs(target, evidence)
            evidence.unfinished = unfinished(evidence)
        except Exception as error:
            # Whatever keeps the streams from being read is the finding, if it stays.
            evidence.unfinished = [f"the streams cannot be read: {error!r}"]
        took_s = time.monotonic() - begin
        if not evidence.unfinished or evidence.broken or took_s > within_s:
            return took_s
        await asyncio.sleep(LOOK_S)


def read_runs(target: Target, evidence: Evidence) -> None:
    """Read what the jobs noted."""
    evidence.runs, broken = read_notes(target.notes)
    evidence.broken += broken


def availability(evidence: Evidence, begin: int, healed: int) -> dict[str, float]:
    """Return the worst that clients saw, in seconds, from `begin` to `healed` (monotonic ns)."""
    waits = [told.acks[0].at - told.sent_at for told in evidence.told if told.acks]
    starts = sorted(run.began for run in evidence.runs if begin <= run.began <= healed)
    gaps = [b - a for a, b in zip([begin, *starts], [*starts, healed], strict=True)]
    return {
        "ack_wait_s_max": round(max(waits, default=0) / NS, 2),
        "ack_wait_s_median": round(sorted(waits)[len(waits) // 2] / NS, 4) if waits else 0.0,
        "without_a_start_s_max": round(max(gaps, default=0) / NS, 2),
    }
