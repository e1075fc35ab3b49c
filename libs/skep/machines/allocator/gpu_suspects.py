"""Which GPUs are quarantined by rule, and where a job goes that may have met a bad one.

`ledger.gpu_health` says what is weighed, and keeps it. Here it is decided: a GPU is quarantined
with enough jobs whose signs count, up to a share of its chain. What a device says itself, as its
driver hears of it, needs no weighing: it is quarantined at once, up to the same share. So that
there is an alibi, a job's next attempt goes to another node if there is room (`place`).
"""

from __future__ import annotations

from skep.cells.decide import placement
from skep.cells.decide.search import Limit
from skep.cells.holds import Placement, Request
from skep.ledger import gpu_health
from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.placement import job_cells
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, seconds
from skep.wire.facts import GpuQuarantined
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat


def place(
    state: ClusterState, job: JobState, asked: Request, limit: Limit, now: Instant
) -> Placement | None:
    """Return where a gang goes; to nodes that it failed on in such a way only if it has to.

    Else a job whose turn is next would be given the same GPU until it has used up its retries, and
    it would not be known whose fault it is. No job is put aside for that. A gang that may be mixed
    is in one chain if any holds it, with such nodes if need be: it would be slow for all its life.

    Args:
        state: Its cells and jobs are read.
        job: The job that is placed.
        asked: What it asks the cells for.
        limit: How many workers of it each node may have; None: as many as it has GPUs for.
        now: The time of the decision.

    Returns:
        The place; None: the job has to wait.
    """
    loss = job_cells.loss(state, now)
    left = shunned(state, job)
    if not left:
        return placement.find_placement(state.cells, asked, loss, limit)

    def elsewhere(node: str) -> int:
        if node in left:
            return 0
        return job.spec.resources.workers if limit is None else limit(node)

    for each in (asked._replace(mixed=False), asked) if asked.mixed else (asked,):
        where = placement.find_placement(state.cells, each, loss, elsewhere)
        if where is not None and not (where.victims or where.cancels or where.demoted):
            return where
        where = placement.find_placement(state.cells, each, loss, limit)
        if where is not None:
            return where
    return None


def shunned(state: ClusterState, job: JobState) -> set[str]:
    """Return the nodes that a job failed on in such a way."""
    failed = state.suspicion.failed.get(job.job, ())
    return {gpu.rpartition("/")[0] for gpus in failed for gpu in gpus}


def convict(tx: Transaction, now: Instant) -> None:
    """Quarantine the GPUs that enough jobs speak against, the most jobs first, up to the share.

    Args:
        tx: Facts are added.
        now: The time of the decision.
    """
    known, rule = tx.state.suspicion, tx.state.asked.quarantine
    if not rule.jobs or not known.signs:
        return
    found: list[tuple[int, str, list[str]]] = []
    for gpu, signs in known.signs.items():
        if len(signs) >= rule.jobs:
            told = [job for job in signs if _speaks(tx.state, job, gpu, now)]
            if len(told) >= rule.jobs:
                found.append((-len(told), gpu, told))
    for _, gpu, told in sorted(found):
        name, _, device = gpu.rpartition("/")
        node, home = tx.state.nodes.get(name), tx.state.cells.find(name, int(device))
        if node is None or home is None or int(device) in node.quarantined:
            continue
        if has_room(tx.state, home[0]):
            named = " ".join(told[-gpu_health.RUNS_MAX :])
            tx.record(
                GpuQuarantined(
                    node=name,
                    device=int(device),
                    quarantine=True,
                    why=Reason.REPEATED_FAILURES,
                    detail=f"{named} failed there and ran elsewhere",
                )
            )


def troubled(tx: Transaction, event: Heartbeat) -> None:
    """Quarantine GPUs that say themselves that something is wrong with them, up to the share.

    One that an operator took back stays so until it says something else.

    Args:
        tx: Facts are added.
        event: What a node says, also of its devices.
    """
    known, node = tx.state.suspicion, tx.state.nodes.get(event.node)
    if not tx.state.asked.quarantine.jobs or node is None:
        return
    for each in event.trouble:
        home = tx.state.cells.find(event.node, each.index)
        if home is None or each.index in node.quarantined:
            continue
        if known.told.get(f"{event.node}/{each.index}") != each.text and has_room(
            tx.state, home[0]
        ):
            tx.record(
                GpuQuarantined(
                    node=event.node,
                    device=each.index,
                    quarantine=True,
                    why=Reason.DEVICE_TROUBLE,
                    detail=each.text,
                )
            )


def has_room(state: ClusterState, chain: str) -> bool:
    """Return whether one more GPU of a chain may be quarantined by the rule."""
    share = state.asked.quarantine.share
    homes = [
        state.cells.find(gpu.rpartition("/")[0], int(gpu.rpartition("/")[2]))
        for gpu in state.suspicion.ruled
    ]
    out = sum(home is not None and home[0] == chain for home in homes)
    most = int(state.cells.chains[chain].topology.leaves * share)
    return out < (max(1, most) if share else 0)


def _speaks(state: ClusterState, name: str, gpu: str, now: Instant) -> bool:
    """Return whether a job that failed on a GPU has run without it, and never failed without it."""
    known = state.suspicion
    if any(gpu not in gpus for gpus in known.failed.get(name, ())):
        return False
    if any(gpu not in gpus for gpus in known.ran.get(name, ())):
        return True
    job = state.jobs.get(name)
    if job is None or job.state is not State.RUNNING:
        return False
    lasts = now - job.ran_at >= seconds(state.asked.quarantine.within)
    return lasts and not any(gpu in gpu_health._part(job, node) for node in job.members)
