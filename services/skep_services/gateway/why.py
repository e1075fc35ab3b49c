"""Why a job is where it is, and what would change that: pure functions of what is in memory."""

from __future__ import annotations

import re
from typing import Any

from skep.cells.decide.explain import explain_wait
from skep.cells.levels import gpus_owned
from skep.cells.nodes import NodeState
from skep.ledger import held_up
from skep.ledger.attempts import request
from skep.ledger.job_state import ArrayState, JobState
from skep.ledger.pipelines import key_of
from skep.ledger.trial_facts import key
from skep.units import NS_PER_SECOND, Instant
from skep.wire.deadline import told
from skep.wire.reasons import TEXT, Reason
from skep.wire.trials import Kind
from skep_services.gateway import arrays
from skep_services.gateway.cells import bound_view, owned_view
from skep_services.gateway.fold import Fold
from skep_services.gateway.following import sentence
from skep_services.gateway.holders import GUARANTEED_CLASS, free_gpus, users
from skep_services.gateway.live import Live
from skep_services.gateway.rows import PLACED, Job, Row, State
from skep_services.gateway.shares import fair_line, window_line, windows_ahead
from skep_services.gateway.texts import held_text, types_of

FOR_CELLS = (
    Reason.WAITS_FOR_CELLS,
    Reason.WAITS_FOR_REPAIR,
    Reason.WAITS_FOR_AFFINITY,
    Reason.FITS_NO_CELL,
)
"""What a job's VC, and what is in its cells, explain."""
ATTEMPT = re.compile(r"\b(j\d+)\.\d+\b")
"""Cells know attempts (`j3.2`), people know jobs."""
CELLS_NAMED = 8
"""Cells of a VC that are named with the jobs inside; with more it says how many."""
AWAITED = {"ok": "succeeds", "any": "ends", "fail": "fails or is cancelled"}
"""What a job waits for another to do, by the kind of the dependency."""
OF_ARRAY = {
    "ok": "has ended and all of its tasks succeeded",
    "any": "has ended",
    "fail": "has ended and a task failed or was cancelled",
}
"""The same where the other is an array."""
JOBS_NAMED = 4
"""Jobs named in one sentence whose end would help; with more it says how many."""


def explain(job: Job, fold: Fold, live: Live, now: Instant) -> dict[str, Any]:
    """Return the answer of `/v1/jobs/{job}/why`."""
    row = job.row
    if row.tasks is not None:
        waits = job.deferred and row.state is State.QUEUED
        return arrays.explain(job, _deferred(job, fold, now)) if waits else arrays.explain(job)
    reasons: list[dict[str, str]] = []
    would_change: list[str] = []
    match row.state:
        case State.SUBMITTED:
            reasons = [_said("submitted", "admission has not answered yet")]
            would_change = ["admission answers; it does so at once when it runs"]
        case State.QUEUED if job.deferred:
            reasons, would_change = _deferred(job, fold, now)
        case State.QUEUED if row.why == Reason.WAITS_FOR_SHARE:
            reasons, would_change = [_reason(row.why, row.needs)], [f"{row.needs} runs"]
        case State.QUEUED:
            reasons, would_change = _queued(job, fold, live, now)
            if row.gpu_share is not None:
                text = f"a GPU that jobs of VC {row.vc} share has {row.gpu_share:g} of it left"
                would_change.append(text)
            said = fold.state.followed.get(row.vc)
            if said is not None and row.service_class == GUARANTEED_CLASS:
                reasons.append(_said(said.why.value, sentence(said)))
            reasons += _by_person(job, fold, now)
        case State.BOUND | State.RUNNING:
            reasons = _placed(job, now)
            held = held_up.holding(fold.state, row.job)
            reasons += [_said(each.why, held_text(each)) for each in held]
            if row.gpu_share is not None:
                reasons.append(_said(Reason.SHARES_FIT.value, _share_line(row)))
            reasons += [_said("window", text) for text in windows_ahead(fold.state, row.job)]
        case State.SUSPENDED:
            reasons, would_change = _suspended(job, fold)
        case State.REFUSED:
            reasons = [
                {"reason": one.reason, "text": f"{one.path}: {one.text}", "needs": ""}
                for one in job.problems
            ]
            would_change = [one.suggestion for one in job.problems if one.suggestion]
        case _:
            reasons = [_reason(row.why, job.detail)]
    if row.state in (State.QUEUED, State.SUSPENDED, State.BOUND, State.RUNNING):
        reasons += _by_latency(job, fold, now)
    return {"job": row.job, "state": row.state, "reasons": reasons, "would_change": would_change}


def _share_line(row: Row) -> str:
    """Return what a job has that asked for a share of a GPU."""
    asked = f"it asked for {row.gpu_share:g} of a GPU"
    if not row.beside:
        return f"{asked}; it has one to itself until other such jobs of VC {row.vc} come"
    return f"{asked}, and has one together with {' '.join(row.beside)}"


def _by_latency(job: Job, fold: Fold, now: Instant) -> list[dict[str, str]]:
    """Return that it shares no GPU with a kind of job, as requests took too long beside it."""
    tried = [one for one in fold.ledger.of(job.row.job) if one.why == Reason.LATENCY_ABOVE]
    cooling = fold.state.tries.cooling.get(job.row.vc, {}).get(
        key(Kind.PACK, tried[-1].families) if tried else ""
    )
    if cooling is None or cooling.until <= now:
        return []
    text = f"{tried[-1].detail}: jobs like these share no GPU until {told(cooling.until)}"
    return [_said(Reason.LATENCY_ABOVE.value, text)]


def _by_person(job: Job, fold: Fold, now: Instant) -> list[dict[str, str]]:
    """Return what its person used, and the window that a job waits for, if that matters."""
    row, found = job.row, []
    window = fold.state.windows.get(row.needs or "")
    if row.why == Reason.WAITS_FOR_WINDOW and window is not None:
        found.append(_said(Reason.WAITS_FOR_WINDOW.value, window_line(window, row.vc)))
    line = fair_line(fold.state, row.job, now)
    if line:
        found.append(_said(Reason.FAIR_SHARE.value, f"fair share: {line}"))
    return found


# --- waiting -------------------------------------------------------------------------------------


def _deferred(job: Job, fold: Fold, now: Instant) -> tuple[list[dict[str, str]], list[str]]:
    """Explain a job that waits outside of its queue: everything that it waits for."""
    name = job.row.job
    waiting = fold.state.jobs.get(name) or fold.state.arrays.get(name)
    deferral = waiting.deferral if waiting is not None else None
    if waiting is None or deferral is None:  # The state may be older than the row.
        return [_reason(job.row.why, job.row.needs)], []
    reasons, changes = [], []
    if deferral.held:
        reasons.append(_reason(Reason.HELD, ""))
        changes.append(f"`skep release {job.row.job}`")
    after = waiting.after if isinstance(waiting, ArrayState) else waiting.spec.after
    for kind, _, name in after.named() if after is not None else ():
        if name not in deferral.awaits:
            continue
        what, does = ("array", OF_ARRAY) if name in fold.state.arrays else ("job", AWAITED)
        other = fold.active.get(name) or fold.arrays.get(name)
        state = f", which is {other.row.state}" if other is not None else ""
        text = f"it waits until this {what} {does[kind]}{state}"
        reasons.append({"reason": Reason.WAITS_FOR_JOBS.value, "text": text, "needs": name})
        changes.append(f"{name} {does[kind]}")
    if deferral.begin > now:
        begin = told(deferral.begin)
        text = "it may not begin before this time"
        reasons.append({"reason": Reason.WAITS_FOR_TIME.value, "text": text, "needs": begin})
        changes.append(f"the time {begin} comes")
    if not reasons and isinstance(waiting, JobState) and waiting.spec.pipeline is not None:
        return _for_room(waiting, fold)
    return reasons, changes


def _for_room(job: JobState, fold: Fold) -> tuple[list[dict[str, str]], list[str]]:
    """Explain a job that waits for room in its pipeline."""
    key, bound = key_of(job), job.spec.pipeline
    assert key is not None, job
    assert bound is not None, job
    of_it = fold.state.pipelines.get(key)
    let_in = list(of_it.let_in) if of_it is not None else []
    shown = ", ".join(let_in[:JOBS_NAMED])
    more = f" and {len(let_in) - JOBS_NAMED} more" if len(let_in) > JOBS_NAMED else ""
    text = f"of its pipeline are in their queue or have GPUs: {shown}{more}; at most "
    text = f"{len(let_in)} jobs {text}{bound.max_parallel} may be (`max_parallel`)"
    reason = {"reason": Reason.WAITS_FOR_PIPELINE.value, "text": text, "needs": key.name}
    return [reason], [f"one of {shown}{more} ends"]


def _queued(
    job: Job, fold: Fold, live: Live, now: Instant
) -> tuple[list[dict[str, str]], list[str]]:
    """Explain a job that waits: its own reason if it is next in its queue, else the head's too."""
    ahead = _ahead(job, fold, live.turns(now))
    if not ahead:
        return _head(job, fold)
    head = min(ahead, key=_order(live.turns(now)))
    count = "1 job comes" if len(ahead) == 1 else f"{len(ahead)} jobs come"
    before = f"{count} first in this queue, {head.row.job} before all"
    head_reasons, head_changes = _head(head, fold)
    reasons = [
        {"reason": Reason.WAITS_BEHIND.value, "text": before, "needs": head.row.job},
        *({**one, "text": f"{head.row.job}: {one['text']}"} for one in head_reasons),
    ]
    started = (
        f"{head.row.job} starts or is cancelled"
        if len(ahead) == 1
        else f"the {len(ahead)} jobs before it start or are cancelled"
    )
    higher = max(one.row.priority for one in ahead)
    return reasons, [started, f"a priority above {higher}", *head_changes]


def _head(job: Job, fold: Fold) -> tuple[list[dict[str, str]], list[str]]:
    """Explain a job that is next in its queue."""
    row = job.row
    if row.why == Reason.WAITS_BEHIND:
        text = "it is next; the allocator has not looked at it yet"
        return [{"reason": Reason.WAITS_BEHIND.value, "text": text, "needs": ""}], []
    reasons = [_reason(row.why, row.needs or job.detail)]
    if row.why in FOR_CELLS:
        reasons = [_reason(*_for_cells(job, fold))]
        reasons += [_said("cells", text) for text in _cells_in_use(job, fold)]
    return reasons, _changes(job, fold)


def _ahead(job: Job, fold: Fold, turns: dict[str, int]) -> list[Job]:
    """Return the jobs of the same queue (VC and service class) that start before this one.

    Those that no cell can hold wait for other cells, and no job waits for them.
    """
    order = _order(turns)
    row, mine = job.row, order(job)
    return [
        other
        for other in fold.active.values()
        if other.row.state is State.QUEUED
        and other.row.vc == row.vc
        and other.row.service_class == row.service_class
        and not (other.aside or other.deferred)
        and order(other) < mine
    ]


def _order(turns: dict[str, int]) -> Any:
    """Return the key queues are sorted by: priority, then the advised turn, then arrival."""
    last = len(turns)

    def key(job: Job) -> tuple[int, int, int]:
        return -job.row.priority, turns.get(job.row.job, last), job.sequence

    return key


def _changes(job: Job, fold: Fold) -> list[str]:
    """Return what would let the job at the head of a queue start."""
    row = job.row
    why = _for_cells(job, fold)[0] if row.why in FOR_CELLS else row.why
    match why:
        case Reason.PERSON_LIMIT:
            return ["jobs of the same person end", "the operator raises `limits` of the VC"]
        case Reason.WAITS_FOR_WINDOW:
            return [
                "the window ends",
                "a shorter `limits: {time: ...}`, so that it is over by then",
            ]
        case Reason.WAITS_FOR_CELLS | Reason.WAITS_FOR_REPAIR | Reason.WAITS_FOR_AFFINITY:
            return _cell_changes(job, fold)
        case Reason.FITS_NO_CELL:
            return [
                f"VC {row.vc} owns cells that hold it",
                "it asks for less, and is submitted again",
            ]
        case Reason.MIXED_UNDER_POLICY:
            return [
                f"VC {row.vc} owns cells of one chain that hold it",
                "it is submitted again without `mixed`, or to a VC with `policy: fifo`",
            ]
        case Reason.WAITS_FOR_GPUS:
            return _gpu_changes(row, fold)
        case Reason.WAITS_FOR_NODES:
            return [*(_return_of(node) for node in _away(fold)), *_more_nodes(row, fold)]
        case Reason.WAITS_FOR_PORT:
            return [f"any job whose first node is {row.needs} ends", "the agent has more ports"]
        case Reason.WAITS_FOR_VICTIMS:
            victims = [fold.active.get(name) for name in job.victims]
            return [
                f"{victim.row.job} has stopped"
                for victim in victims
                if victim is not None and victim.row.state in PLACED
            ]
        case _:
            return []


def _for_cells(job: Job, fold: Fold) -> tuple[Reason, str]:
    """Return why its cells do not serve it as they are by now, and what it waits for."""
    waiting = fold.state.jobs[job.row.job]
    asked = request(waiting, waiting.attempt + 1, guaranteed=not waiting.spec.opportunistic)
    owner = fold.state.cells.cluster.vcs.get(job.row.vc)
    if owner is not None and owner.is_planned:
        asked = asked._replace(mixed=False)  # Policies plan a gang in one chain.
    why = explain_wait(fold.state.cells, asked)
    return why.reason, ATTEMPT.sub(r"\1", why.text)


def _cells_in_use(job: Job, fold: Fold) -> list[str]:
    """Return a line for each kind of cell its VC owns: places, jobs inside, what is bad.

    Of a job that asked for a pinned cell: for that one.
    """
    cells, vc = fold.state.cells, job.row.vc
    bound = [one for one in bound_view(cells, vc, vc) if one["pin"] == job.pinned]
    lines = []
    for kind in owned_view(cells, vc):
        if kind["pin"] != job.pinned:
            continue
        places = [
            f"{one['address']} {_inside(one)}"
            for one in bound
            if (one["chain"], one["level"]) == (kind["chain"], kind["level"])
        ]
        more = len(places) - CELLS_NAMED
        named = places[:CELLS_NAMED] + ([f"{more} more in use"] if more > 0 else [])
        named += [f"{kind['free']} free"] if kind["free"] else []
        name = f"pinned cell {kind['pin']}" if kind["pin"] else f"{kind['chain']}/{kind['level']}"
        lines.append(f"{vc} owns {kind['owned']} x {name}: {', '.join(named)}")
    return lines


def _inside(cell: dict[str, Any]) -> str:
    """Return the jobs inside a cell and what of it is bad, in brackets."""
    jobs = [
        " with ".join([each["job"], *each["beside"]])
        + " borrows" * each["borrowed"]
        + " claims" * each["reserved"]
        for each in cell["jobs"]
    ]
    more = len(jobs) - JOBS_NAMED
    named = jobs[:JOBS_NAMED] + ([f"{more} more"] if more > 0 else [])
    bad = [f"{cell['bad']} of {cell['gpus']} GPUs bad"] if cell["bad"] else []
    return f"({', '.join([*named, *bad]) or 'idle'})"


def _cell_changes(job: Job, fold: Fold) -> list[str]:
    row, cells = job.row, fold.state.cells
    holders = [
        other.row
        for other in _placed_jobs(fold)
        if other.row.vc == row.vc and other.row.class_in_force == GUARANTEED_CLASS
    ]
    kinds = [kind for kind in owned_view(cells, row.vc) if kind["pin"] == job.pinned]
    idle = sum(kind["free"] * kind["gpus"] for kind in kinds)
    idle += sum(
        one["idle"] for one in bound_view(cells, row.vc, row.vc) if one["pin"] == job.pinned
    )
    missing = row.gpus - idle
    changes = _endings(holders, max(1, missing))
    changes += [_return_of(node) for node in _away(fold)]
    if missing > 0:
        more = "1 more GPU" if missing == 1 else f"{missing} more GPUs"
        changes.append(f"cells of {more} for VC {row.vc}")
    return [*changes, "submitted as opportunistic, it could use GPUs that are idle"]


def _gpu_changes(row: Row, fold: Fold) -> list[str]:
    usable = [node for node in fold.state.nodes.values() if node.usable]
    free = sum(free_gpus(node, row.gpu_type) for node in usable)
    kind = f" of type {row.gpu_type}" if row.gpu_type else ""
    missing = row.gpus - free
    per_worker = row.gpus // max(1, row.workers)
    if missing > 0:
        changes = [f"{missing} more free GPU{'s' if missing > 1 else ''}{kind}"]
    elif row.workers == 1:
        changes = [f"{row.gpus} free GPUs{kind} on one node"]
    else:
        changes = [f"{per_worker} free GPUs{kind} on one node for each of {row.workers} workers"]
    holders = [job.row for job in _placed_jobs(fold)]
    changes += _endings(holders, max(1, missing))
    changes += [f"{node.joined.node} comes back" for node in _away(fold) if node.lost]
    return changes


def _endings(holders: list[Row], gpus: int) -> list[str]:
    """Return the jobs whose end would free so many GPUs, in a text.

    Those expected to end first come first; the oldest where none is known.
    """
    holders = sorted(
        holders, key=lambda row: (row.eta_s is None, row.eta_s or 0, row.bound_at or 0, row.job)
    )
    chosen: list[Row] = []
    freed = 0
    for row in holders:
        if freed >= gpus:
            break
        chosen.append(row)
        freed += row.gpus
    if freed < gpus:
        return []
    names = ", ".join(row.job for row in chosen[:JOBS_NAMED])
    if len(chosen) > JOBS_NAMED:
        names += f" and {len(chosen) - JOBS_NAMED} more"
    etas = [row.eta_s for row in chosen]
    known = [eta for eta in etas if eta is not None]
    when = f" (in about {_duration(max(known))})" if len(known) == len(etas) else ""
    return [f"job {names} ends{when}" if len(chosen) == 1 else f"jobs {names} end{when}"]


def _placed_jobs(fold: Fold) -> list[Job]:
    return [job for job in fold.active.values() if job.row.state in PLACED]


def _away(fold: Fold) -> list[NodeState]:
    return [node for _, node in sorted(fold.state.nodes.items()) if not node.usable]


def _more_nodes(row: Row, fold: Fold) -> list[str]:
    """Return how many GPUs have yet to join before a VC owns what was asked for it."""
    asked, resolved = fold.state.asked, fold.state.cells.cluster
    if row.vc not in asked.vcs:
        return []
    missing = gpus_owned(asked, row.vc) - gpus_owned(resolved, row.vc)
    return [f"nodes with {missing} more GPUs join"] if missing > 0 else []


def _return_of(node: NodeState) -> str:
    name = node.joined.node
    if node.lost:
        return f"{name} comes back"
    if node.drained:
        return f"{name} is opened for work again"
    return f"{name} has ended what was begun before its name had a new owner"


# --- placed and ended ----------------------------------------------------------------------------


def _placed(job: Job, now: Instant) -> list[dict[str, str]]:
    reasons = [{**_reason(job.row.why, ""), "needs": ""}]
    types = types_of(job.attempts[-1].members)
    reasons[0]["text"] = f"placed on {job.row.place}{types}: {reasons[0]['text']}"
    if job.row.beside:
        reasons.append(_reason(Reason.PACKED, ""))
        reasons[-1]["text"] = f"it shares its GPUs with {_share_text(job.row)}"
    if job.row.class_in_force != GUARANTEED_CLASS:
        reasons.append(_said("borrowed", _borrows(job)))
    attempt = job.attempts[-1]
    if attempt.ranked is not None:
        ranked = _reason(attempt.ranked, "")
        turn = "ahead of its turn" if attempt.ranked == Reason.LENT_MEANWHILE else "its turn"
        reasons.append({**ranked, "text": f"{turn}: {ranked['text']}"})
    if job.row.stalled_since is not None:
        stalled = _duration((now - job.row.stalled_since) // NS_PER_SECOND)
        hang = f": {job.hang}" if job.hang else ""
        reasons.append(_said("stalled", f"no mini-batch for {stalled}{hang}"))
    return reasons


def _suspended(job: Job, fold: Fold) -> tuple[list[dict[str, str]], list[str]]:
    """Explain a job that stands still, and what it needs to go on."""
    row, again = job.row, f"`skep resume {job.row.job}`"
    asked = row.why == Reason.REQUESTED
    reasons = [_reason(Reason.SUSPENDED if asked else row.why, "")]
    if not job.released:
        reasons.append(_said("holds", f"it keeps its GPUs: {row.place}"))
        return reasons, [again] if asked else []
    others = _users_of(job, fold)
    named = ", ".join(others[:JOBS_NAMED]) + (" and others" if len(others) > JOBS_NAMED else "")
    moves = all("rebind" in part.can for part in job.attempts[-1].members)
    reasons.append(_reason(Reason.WAITS_FOR_ITS_GPUS, row.needs or row.place))
    reasons.append(
        _said(
            "in-place",
            "its state is in the memory of its node: it goes on "
            + ("on any idle GPUs there, and not" if moves else "there, and cannot")
            + " elsewhere",
        )
    )
    change = [f"{named} end or make room"] if others else []
    nodes = dict.fromkeys(part.node for part in job.attempts[-1].members)
    change += [_return_of(node) for node in _away(fold) if node.joined.node in nodes]
    return reasons, [again, *change] if asked else change


def _share_text(row: Row) -> str:
    named = ", ".join(row.beside[:JOBS_NAMED])
    named += " and others" if len(row.beside) > JOBS_NAMED else ""
    share = row.share
    return named if not share else f"{named}, and has {share:.0%} of each device's memory"


def _users_of(job: Job, fold: Fold) -> list[str]:
    """Return the jobs that use what a suspended job ran on."""
    others: dict[str, None] = {}
    for part in job.attempts[-1].members if job.attempts else ():
        node = fold.state.nodes.get(part.node)
        there = users(fold.state, node) if node is not None else {}
        for device in (device for devices in part.devices for device in devices):
            others |= {user.job: None for user in there.get(device, ()) if user.job != job.row.job}
    return list(others)


def _borrows(job: Job) -> str:
    yields = "it borrows its GPUs, and makes room for any guaranteed job that needs them"
    if job.row.service_class != GUARANTEED_CLASS:
        return yields
    return f"{yields}, until cells of {job.row.vc} that cover it are free"


def _reason(code: str | None, needs: str) -> dict[str, str]:
    text = TEXT[Reason(code)] if code is not None else "no reason was recorded"
    return {"reason": code or "", "text": text, "needs": needs}


def _said(reason: str, text: str) -> dict[str, str]:
    return {"reason": reason, "text": text, "needs": ""}


def _duration(length_s: int) -> str:
    if length_s < 120:
        return f"{length_s} s"
    return f"{length_s // 60} min" if length_s < 7_200 else f"{length_s // 3600} h"
