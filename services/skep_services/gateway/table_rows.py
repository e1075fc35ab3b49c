"""The rows of the tables of `/v1/state`, encoded: pure functions of what is in memory.

The columns are those of `columns`. What changes all the time (`Soft`) is told apart, so that it
alone makes a row another one only now and then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from skep.cells.levels import gpus_owned
from skep.cells.nodes import NodeState
from skep.ledger.history import Tally, gpu_states, quantile, useful
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire import codec
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.columns import GPUS, NODES
from skep_services.gateway.fold import Fold
from skep_services.gateway.holders import GUARANTEED_CLASS, User, counted, users
from skep_services.gateway.live import Live
from skep_services.gateway.rows import ENDED, PLACED, Job, Row, State, Times
from skep_services.gateway.versions import Listing, Open, Owned, Shows, Veiled
from skep_services.gateway.views import node_state

TEXT_CHARS_MAX = 300
"""Of the sentence about a state: details of failures may be whole pages."""
NODES_SHOWN = 64
"""Nodes named of one gang; `place` has the same."""
PLACE_CHARS_MAX = 1_000
DIFFERS_PERCENT = 2
"""Less is not shown of rates and other soft values: the difference says nothing."""
ESTIMATE_DIFFERS: int = seconds(5.0)
"""Nor of an estimate: it moves a little whenever anything is measured."""


class Soft(NamedTuple):
    """What of a job changes all the time."""

    rate_milli: int | None
    utilisation: int | None
    steps: int
    progress: int | None
    start: Times | None
    end: Times | None


def soft_of(job: Job, live: Live) -> Soft:
    """Return what of a job changes all the time, as it is now."""
    row = job.row
    steps, total, estimate = row.steps, row.total_steps, row.estimate
    used = live.utilisation.get(row.job) if row.state is State.RUNNING else None
    waits = estimate is not None and row.state not in PLACED
    return Soft(
        rounded(row.rate_milli),
        used if used is None else used // 10 * 10,
        (rounded(steps) or 0) if row.state not in ENDED else steps,
        min(1000, steps * 1000 // total) if total else None,
        estimate.start if estimate is not None and waits else None,
        estimate.end if estimate is not None else None,
    )


def differs(shown: Soft, new: Soft, now: Instant) -> bool:
    """Return whether soft values are so different from what is shown that it should be shown."""
    return (
        _far(shown.rate_milli, new.rate_milli, 0)
        or _far(shown.utilisation, new.utilisation, 20)
        or (_far(shown.steps, new.steps, 0) if new.progress is None else False)
        or _far(shown.progress, new.progress, 20)
        or _moved(shown.start, new.start, now)
        or _moved(shown.end, new.end, now)
    )


def _far(one: int | None, other: int | None, least: int) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > max(least, one * DIFFERS_PERCENT // 100)


def _moved(one: Times | None, other: Times | None, now: Instant) -> bool:
    if one is None or other is None:
        return one is not other
    return any(
        abs(before - after) > max(ESTIMATE_DIFFERS, abs(before - now) * DIFFERS_PERCENT // 100)
        for before, after in ((one.p50, other.p50), (one.p90, other.p90))
    )


# --- jobs ----------------------------------------------------------------------------------------


def job_row(job: Job, soft: Soft, fold: Fold) -> Owned:
    """Return the row of a job, or of an array."""
    row, pledged, changing = job.row, job.pledged, job.changing
    values = [
        row.job,
        row.name,
        row.vc,
        row.owner,
        row.state,
        row.gpus,
        row.gpu_share,
        row.gpu_type,
        row.workers,
        row.priority,
        row.service_class,
        row.class_in_force,
        row.labels,
        row.task,
        _tasks(row),
        row.labels.get("search", ""),
        _awaited(row.job, fold),
        row.place[:PLACE_CHARS_MAX],
        nodes_of(job)[:NODES_SHOWN],
        row.beside,
        row.attempt,
        whole(row.submitted_at),
        whole(row.bound_at),
        whole(row.started_at),
        whole(row.ended_at),
        soft.rate_milli,
        soft.utilisation,
        soft.steps,
        row.total_steps,
        soft.progress,
        _times(soft.start),
        _times(soft.end),
        whole(pledged.due) if pledged is not None else None,
        pledged.answer if pledged is not None else "",
        pledged.outcome if pledged is not None else "",
        None
        if changing is None
        else {"goal": changing.goal, "why": changing.why, "since": whole(changing.since)},
        whole(row.stalled_since),
        row.why or "",
        sentence(job),
        row.needs,
    ]
    return Owned(row.vc, codec.encode(values))


def nodes_of(job: Job) -> list[str]:
    """Return the nodes on which a job is, or was last; none while it waits."""
    if not job.attempts or not (job.row.state in PLACED or job.row.state in ENDED):
        return []
    return [part.node for part in job.attempts[-1].members]


def sentence(job: Job) -> str:
    """Return why a job is where it is, in one sentence."""
    row = job.row
    if row.tasks is not None:
        return row.tasks.text()
    if row.state is State.REFUSED and job.problems:
        return f"{job.problems[0].path}: {job.problems[0].text}"[:TEXT_CHARS_MAX]
    if row.why is None:
        return "admission has not answered yet" if row.state is State.SUBMITTED else ""
    try:
        text = TEXT[Reason(row.why)]
    except (ValueError, KeyError):
        text = str(row.why)
    more = row.needs or (job.detail if row.state in ENDED or row.state is State.QUEUED else "")
    return (f"{text}: {more}" if more else text)[:TEXT_CHARS_MAX]


def _tasks(row: Row) -> dict[str, int] | None:
    if row.tasks is None:
        return None
    names = ("total", "waiting", "queued", "running", "succeeded", "failed", "cancelled")
    return {name: getattr(row.tasks, name) for name in names}


def _awaited(name: str, fold: Fold) -> list[str]:
    """Return the jobs and arrays that a job, or an array, waits for the end of."""
    waiting = fold.state.deferred.get(name) or fold.state.arrays.get(name)
    deferral = waiting.deferral if waiting is not None else None
    return list(deferral.awaits) if deferral is not None else []


def whole(at: int | None) -> int | None:
    """Return an instant cut to seconds: further digits say nothing, and do not compress."""
    return None if at is None else at // NS_PER_SECOND * NS_PER_SECOND


def rounded(value: int | None, digits: int = 3) -> int | None:
    """Return a number of so many digits: for the same reason."""
    if value is None or value < 10**digits:
        return value
    step = int(10 ** (len(str(value)) - digits))
    return value // step * step


def _times(times: Times | None) -> list[int] | None:
    if times is None:
        return None
    return [each // NS_PER_SECOND * NS_PER_SECOND for each in (times.p10, times.p50, times.p90)]


# --- what jobs come to ---------------------------------------------------------------------------


Face = tuple[Any, ...]


def face_of(job: Job) -> Face:
    """Return what of a job shows on its nodes and GPUs."""
    row = job.row
    return row.state, row.vc, row.owner, row.class_in_force, row.beside, row.attempt, job.released


class Share(NamedTuple):
    """What a job adds to the sums of its virtual cluster."""

    vc: str
    state: str
    used: int
    borrowed: int


def share_of(job: Job, fold: Fold) -> Share | None:
    """Return what an unfinished job adds; None: an array adds nothing, its jobs do."""
    row = job.row
    if row.tasks is not None or row.state in ENDED:
        return None
    placed = fold.state.placed.get(row.job) if row.state in PLACED else None
    gpus = counted(fold.state, placed) if placed is not None else 0
    owns = row.class_in_force == GUARANTEED_CLASS
    return Share(row.vc, str(row.state.value), gpus if owns else 0, 0 if owns else gpus)


class Sums:
    """The sums of one virtual cluster: its jobs by state, the GPUs that they use."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.jobs: dict[str, int] = {}
        self.used = self.borrowed = 0

    def move(self, share: Share, sign: int) -> None:
        """Add a job, or (`sign` -1) take it away."""
        count = self.jobs.get(share.state, 0) + sign
        if count:
            self.jobs[share.state] = count
        else:
            self.jobs.pop(share.state, None)
        self.used += sign * share.used
        self.borrowed += sign * share.borrowed


def vc_row(vc: str, sums: Sums, fold: Fold) -> Owned:
    """Return the row of a virtual cluster."""
    cluster, jobs = fold.state.cells.cluster, sums.jobs
    config = cluster.vcs[vc]
    suspended = jobs.get("suspended", 0)
    values = [
        vc,
        gpus_owned(cluster, vc),
        gpus_owned(fold.state.asked, vc),
        sums.used,
        sums.borrowed,
        sum(jobs.get(str(state.value), 0) for state in PLACED) - suspended,
        suspended,
        jobs.get("queued", 0),
        config.policy,
        config.weight,
        config.jobs_max,
        *fold.promises.get(vc, (0, 0, 0)),
    ]
    return Owned(vc, codec.encode(values))


class Total(NamedTuple):
    """The one row of `totals`: what callers see is the sum of their virtual clusters."""

    jobs: dict[str, dict[str, int]]
    """Jobs by state, by VC."""
    gpus: dict[str, int]
    hour: dict[str, Tally]
    day: dict[str, Tally]

    def shown(self, only: Only) -> bytes | None:
        """Return the row."""
        jobs: dict[str, int] = {}
        for vc, counts in self.jobs.items():
            for state, count in counts.items() if covers(only, vc) else ():
                jobs[state] = jobs.get(state, 0) + count
        hour, day = Tally(), Tally()
        for added, tallies in ((hour, self.hour), (day, self.day)):
            for vc, tally in tallies.items():
                if covers(only, vc):
                    added.add(tally)
        p50, p90 = quantile(hour.waits, 50), quantile(hour.waits, 90)
        return codec.encode(["all", jobs, self.gpus, p50, p90, hour.started, useful(day)])


# --- nodes and GPUs ------------------------------------------------------------------------------


def node_row(
    node: NodeState, fold: Fold, live: Live, now: Instant, there: dict[int, list[User]]
) -> Shows:
    """Return the row of a node. `there`: the attempts on its GPUs."""
    joined, state = node.joined, node_state(node, live, now)
    states = list(gpu_states(node).values())
    away = state in ("silent", "lost")
    values = [
        joined.node,
        state,
        joined.address,
        "+".join(dict.fromkeys(gpu.type for gpu in joined.gpus)),
        len(joined.gpus),
        states.count("free"),
        states.count("held"),
        states.count("bad"),
        sorted(node.quarantined),
        node.drained,
        joined.cpus,
        joined.memory,
        whole(live.heard.get(joined.node)) if away else None,
    ]
    assert len(values) == len(NODES) - 1, values
    jobs = dict.fromkeys(user.job for device in sorted(there) for user in there[device])
    parts = [(vc_of(fold, job), job) for job in jobs]
    return Listing(codec.encode(values), tuple((vc, codec.encode([job, vc])) for vc, job in parts))


def gpu_rows(node: NodeState, fold: Fold, there: dict[int, list[User]]) -> list[tuple[str, Shows]]:
    """Return the rows of a node's GPUs, by their keys. `there`: the attempts on them."""
    states = gpu_states(node)
    rows: list[tuple[str, Shows]] = []
    for gpu in node.joined.gpus:
        key = f"{node.joined.node}/{gpu.index}"
        first, *others = there.get(gpu.index, (None,))
        head = [key, node.joined.node, gpu.index, gpu.type, states[gpu.index]]
        borrowed = first is not None and not first.owns
        bare: list[Any] = [*head, None, None, None, None, None, borrowed, []]
        assert len(bare) == len(GPUS), bare
        if first is None:
            rows.append((key, Open(codec.encode(bare))))
            continue
        job = fold.find(first.job)
        vc, owner = (job.row.vc, job.row.owner) if job is not None else ("", "")
        state = job.row.state if job is not None else None
        beside = [one.job for one in others if one is not None]
        full = [*head, first.job, vc, owner, state, first.rank, borrowed, beside]
        rows.append((key, Veiled(vc, codec.encode(full), codec.encode(bare))))
    return rows


def users_of(node: NodeState, fold: Fold) -> dict[int, list[User]]:
    """Return the attempts on each GPU of a node."""
    return users(fold.state, node)


def vc_of(fold: Fold, name: str) -> str:
    """Return the virtual cluster of a job; empty: it is not known."""
    job = fold.find(name)
    return job.row.vc if job is not None else ""


def search_row(told: dict[str, Any], names: tuple[str, ...]) -> Owned:
    """Return the row of a search, of what `/v1/searches` says of it."""
    values = [told[name] for name in names]
    for name in ("began_at", "ended_at"):
        values[names.index(name)] = whole(told[name])
    return Owned(told["vc"], msgspec.json.encode(values))
