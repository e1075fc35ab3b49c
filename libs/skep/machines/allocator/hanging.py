"""Jobs that made mini-batches and make none any more are begun again, where their spec wants it.

    every node with a part: HungPart --> JobStopping (hung) --> another attempt, from the checkpoint

The ranks of a gang stand for one another, so all nodes of a job say so at about the same time; a
node that says nothing is silent or lost, and dealt with as such. What ranks say of where they stand
goes into the fact, as words: which rank keeps the others, and on which node. Nodes repeat what they
say every second, so all of this is soft.
"""

from __future__ import annotations

from skep.ledger.job_state import JobState, State
from skep.machines.allocator import outbox, slow_nodes
from skep.machines.allocator.transaction import Transaction
from skep.perf.hang import blame
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat, HungPart

FRESH = seconds(5)
"""How long what a node said of its part holds: it says so every second."""


def heard(tx: Transaction, event: Heartbeat, now: Instant) -> None:
    """Take it that parts on a node hang; begin the jobs again that hang on all their nodes.

    Args:
        tx: Facts and commands are added.
        event: What the node says.
        now: The time of the decision.
    """
    for part in event.hung:
        job = tx.state.jobs.get(part.job)
        if job is None or job.attempt != part.attempt or event.node not in job.live:
            continue
        limit_s = outbox.hung_s(job.spec)
        if not limit_s or part.silent_ns < seconds(limit_s) or not _calm(job):
            continue
        said = tx.soft.hung.setdefault((job.job, job.attempt), {})
        said[event.node] = now, part
        if all(node in said and now - said[node][0] < FRESH for node in job.live):
            del tx.soft.hung[job.job, job.attempt]
            parts = {node: part for node, (_, part) in said.items() if node in job.live}
            _hold(tx, job, parts, now)
            outbox.stop(tx, job, Reason.HUNG, now, _text(parts))


def _hold(tx: Transaction, job: JobState, parts: dict[str, HungPart], now: Instant) -> None:
    """Record which ranks of a gang kept the others, of one that has others."""
    stands = {rank.rank: rank.stands for part in parts.values() for rank in part.ranks}
    found = blame(stands)
    if found is None or len(stands) <= len(found.ranks):
        return
    for node, part in sorted(parts.items()):
        for rank in part.ranks:
            if rank.rank in found.ranks:
                slow_nodes.hold(tx, job, node, rank.rank, Reason.RANK_HUNG, now=now)


def _calm(job: JobState) -> bool:
    """Return whether nothing else is under way with a job."""
    return job.change is None and job.successor is None and job.state is State.RUNNING


def _text(parts: dict[str, HungPart]) -> str:
    """Return since when a job hangs and what keeps it, in words."""
    silent = min(part.silent_ns for part in parts.values()) // NS_PER_SECOND
    where = {rank.rank: node for node, part in sorted(parts.items()) for rank in part.ranks}
    found = blame({rank.rank: rank.stands for part in parts.values() for rank in part.ranks})
    text = f"no mini-batch for {silent} s"
    if found is None:
        return text
    nodes = dict.fromkeys(where[rank] for rank in found.ranks)
    on = f", on {', '.join(nodes)}" if nodes else ""
    return f"{text}: {found.text} ({found.code}{on})"
