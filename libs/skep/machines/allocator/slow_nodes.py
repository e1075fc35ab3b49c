"""Ranks that hold their gangs up, and nodes and GPUs that are blamed for it.

    GangSlowed (the introspector), a gang that hangs --> GangHeldUp
        --(SETTLES)--> enough? --> PlaceBlamed
                               --> GpuQuarantined, only if the operator wants it

A node is blamed when ranks on it were slow or hung in `slow` attempts within the rule's window, of
at least JOBS_MIN jobs of at least TENANTS_MIN tenants. What a job says of itself may be a lie, and
so the jobs of one tenant alone blame nothing. Where all of them used the same GPU, that is blamed.
A job that is slow or hangs on several nodes blames none of them; what is found of its other ranks
may come a little later, and so a finding counts after SETTLES.

The introspector says again what lasts; what it says no more, as after its restart, is over. It
compares all ranks of a gang: of a gang on several types of GPUs, where those on the slower type
always take longer, nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from skep.ledger import held_up
from skep.ledger.job_state import JobState, State
from skep.machines.allocator import gpu_suspects
from skep.machines.allocator.transaction import Transaction
from skep.units import Duration, Instant, after, seconds
from skep.wire.facts import GpuQuarantined
from skep.wire.held_up import JOBS_MAX, GangHeldUp, GangSlowed, PlaceBlamed, Sign
from skep.wire.reasons import Reason

JOBS_MIN = 2
TENANTS_MIN = 2
"""One tenant may say what it likes of its own jobs; see ADR 0331."""

SAID_AGAIN: Duration = seconds(300.0)
"""A slow rank of which nothing was said for so long is slow no more: it is said every minute."""

SETTLES: Duration = seconds(20.0)
"""How old a finding has to be to count: two looks of the introspector (`perf.slow_ranks.LOOK`)."""


def heard(tx: Transaction, event: GangSlowed, now: Instant) -> None:
    """Record that a rank holds its gang up, or no more, if that is news.

    Args:
        tx: Facts are added.
        event: What the introspector says; of another attempt, or another place, it says nothing.
        now: The time of the decision.
    """
    job = tx.state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt or job.state is not State.RUNNING:
        return
    key = event.job, event.rank
    known = tx.state.held_up.now.get(event.job, {}).get(event.rank)
    if event.over:
        tx.soft.slow_heard.pop(key, None)
        if known is not None:
            tx.record(_over(known, now))
        return
    if _devices(job, event.node, event.rank) is None or _several_types(job):
        return
    tx.soft.slow_heard[key] = now
    why = Reason.LOADER_SLOW if event.loads else Reason.RANK_SLOW
    if known is None or (known.attempt, known.node) != (event.attempt, event.node):
        times = event.own_ns, event.usual_ns, event.step_ns
        hold(tx, job, event.node, event.rank, why, now=now, times=times)


def hold(
    tx: Transaction,
    job: JobState,
    node: str,
    rank: int,
    why: Reason,
    *,
    now: Instant,
    times: tuple[int, int, int] = (0, 0, 0),
) -> None:
    """Record that a rank on a node holds up its gang; the node is to be judged once it settled.

    Args:
        tx: A fact is added, and to `soft.judged_at` the node.
        job: It runs.
        node: Where the rank is; without a part there nothing is recorded.
        rank: Its number.
        why: Whether it is slow, and for what, or hangs.
        now: The time of the decision.
        times: Own time, the gang's median, and a mini-batch, in nanoseconds.
    """
    devices = _devices(job, node, rank)
    if devices is None:
        return
    own_ns, usual_ns, step_ns = times
    tx.record(
        GangHeldUp(
            job=job.job,
            attempt=job.attempt,
            rank=rank,
            node=node,
            devices=devices,
            why=why,
            at=now,
            tenant=_tenant(job.owner, job.spec.vc),
            own_ns=own_ns,
            usual_ns=usual_ns,
            step_ns=step_ns,
            trace=job.trace,
            vc=job.spec.vc,
        )
    )
    tx.soft.judged_at.setdefault(node, after(now, SETTLES))


def restarted(tx: Transaction, now: Instant) -> None:
    """Have each node judged that something speaks against: what was due to be is not kept."""
    tx.soft.judged_at = dict.fromkeys(tx.state.held_up.signs, after(now, SETTLES))


def go_round(tx: Transaction, now: Instant) -> None:
    """Judge the nodes whose time has come, and record which ranks are slow no more.

    Args:
        tx: Facts are added. Nodes with findings that have yet to settle stay in `soft.judged_at`.
        now: The time of the decision. Ranks of which nothing was said for SAID_AGAIN are fine.
    """
    for node in [node for node, due in tx.soft.judged_at.items() if due <= now]:
        del tx.soft.judged_at[node]
        _blame(tx, node, now)
        if after(held_up.found_last(tx.state, node), SETTLES) > now:
            tx.soft.judged_at[node] = after(now, SETTLES)
    heard_at, held = tx.soft.slow_heard, tx.state.held_up.now
    for key in [key for key in heard_at if key[1] not in held.get(key[0], {})]:
        del heard_at[key]
    for job, ranks in list(held.items()):
        for rank, known in list(ranks.items()):
            if now - heard_at.setdefault((job, rank), now) >= SAID_AGAIN:
                tx.record(_over(known, now))


def acquit(tx: Transaction, node: str, device: int, now: Instant) -> None:
    """Record that a GPU, or its node, is blamed no more, as an operator takes it back."""
    for place in (node, f"{node}/{device}"):
        known = tx.state.held_up.blamed.get(place)
        if known is not None:
            tx.record(
                PlaceBlamed(
                    node=node, device=known.device, blamed=False, why=Reason.ASKED_FOR, at=now
                )
            )


def _blame(tx: Transaction, node: str, now: Instant) -> None:
    """Blame a node, or a GPU of it, if enough speaks against it; quarantine that if it is wanted.

    Args:
        tx: Facts are added.
        node: The node.
        now: The time of the decision.
    """
    rule = tx.state.asked.quarantine
    since, until = Instant(now - seconds(rule.window)), Instant(now - SETTLES)
    signs = held_up.signs_of(tx.state, node, since, until)
    findings = sum(len(sign.times) for sign in signs.values())
    tenants = _tenants(signs.values())
    if not rule.slow or findings < rule.slow or len(signs) < JOBS_MIN or len(tenants) < TENANTS_MIN:
        return
    device = _common(signs)
    known = held_up.blamed(tx.state, now)
    if node not in known and f"{node}/{device}" not in known:
        tx.record(
            PlaceBlamed(
                node=node,
                device=device,
                blamed=True,
                why=Reason.HELD_UP_GANGS,
                at=now,
                until=after(now, seconds(rule.window)),
                jobs=tuple(signs)[-JOBS_MAX:],
                findings=findings,
                tenants=len(tenants),
            )
        )
    if rule.quarantine_slow:
        _quarantine(tx, node, signs, device)


def _quarantine(tx: Transaction, node: str, signs: Mapping[str, Sign], device: int) -> None:
    """Quarantine the GPUs that signs are about, as many as the rule's share allows."""
    state = tx.state.nodes.get(node)
    found = [each for sign in signs.values() for each in sign.devices]
    for index in sorted(dict.fromkeys([device] if device >= 0 else found)):
        home = tx.state.cells.find(node, index)
        if state is None or home is None or index in state.quarantined:
            continue
        if gpu_suspects.has_room(tx.state, home[0]):
            named = " ".join(signs)
            tx.record(
                GpuQuarantined(
                    node=node,
                    device=index,
                    quarantine=True,
                    why=Reason.HELD_UP_GANGS,
                    detail=f"{named} had slow or hung ranks there",
                )
            )


def _common(signs: Mapping[str, Sign]) -> int:
    """Return the one GPU that all signs are about; -1: there is none, or there are several."""
    first, *others = [sign.devices for sign in signs.values()]
    shared = [one for one in first if all(one in each for each in others)]
    return shared[0] if len(shared) == 1 else -1


def _devices(job: JobState, node: str, rank: int) -> tuple[int, ...] | None:
    """Return the GPUs of a rank on a node; None: it is not there."""
    member = job.members.get(node)
    if member is None or rank not in member.numbers:
        return None
    return member.devices[member.numbers.index(rank)]


def _several_types(job: JobState) -> bool:
    """Return whether a gang has GPUs of several types."""
    return len({member.gpu_type for member in job.members.values()}) > 1


def _tenants(signs: Collection[Sign]) -> set[str]:
    """Return the tenants that signs are from.

    A job without an owner was submitted with the credentials of its virtual cluster, which the
    owner of another job there may have: it is a tenant only where no such job speaks too.
    """
    owned = {_tenant("", sign.vc) for sign in signs if sign.tenant != _tenant("", sign.vc)}
    return {sign.tenant for sign in signs} - owned


def _tenant(owner: str, vc: str) -> str:
    """Return what vouches for a job: its owner, or its virtual cluster where it has none."""
    return owner or f"vc {vc}"


def _over(known: GangHeldUp, now: Instant) -> GangHeldUp:
    return GangHeldUp(
        job=known.job,
        attempt=known.attempt,
        rank=known.rank,
        node=known.node,
        devices=known.devices,
        why=known.why,
        at=now,
        tenant=known.tenant,
        over=True,
        trace=known.trace,
        vc=known.vc,
    )
