"""What people of VCs used and may have, and which windows keep nodes: as the ledger has it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from skep.access.person import person_of
from skep.ledger.accounts import Account, VcPeople
from skep.ledger.job_state import State as JobIs
from skep.ledger.state import ClusterState
from skep.policy.fair import order_of
from skep.units import NS_PER_SECOND, Instant
from skep.wire.windows import Window
from skep_services.gateway.callers import Only, covers

WHOLE = "(whole VC)"
"""How the person of jobs that name none is shown."""
UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
MILLI = 1000


def fair_view(state: ClusterState, now: Instant, sees: Only, vc: str = "") -> list[dict[str, Any]]:
    """Return the VCs that share by person or limit it, with their people, the next one first.

    Args:
        state: The allocator's state.
        now: Until when usage is decayed.
        sees: The VCs that the caller may see.
        vc: Only this one; empty: all of them.
    """
    shown = []
    for name, of_vc in state.people.of_vc.items():
        if (vc and name != vc) or not covers(sees, name):
            continue
        limits = of_vc.limits
        shown.append(
            {
                "vc": name,
                "half_life_s": of_vc.half_life // NS_PER_SECOND,
                "limits": None
                if limits is None
                else {key: getattr(limits, key) for key in ("running", "gpus", "queued")},
                "people": people_of(state, name, of_vc, now),
            }
        )
    return shown


def people_of(state: ClusterState, vc: str, of_vc: VcPeople, now: Instant) -> list[dict[str, Any]]:
    """Return the people of a VC in the order in which their jobs come: usage, part, what they have.

    `part` is what of the usage would be a person's by weight, `used_part` what is, and `times` how
    often the first is in the second; null: nothing was used.

    Args:
        state: Read for the jobs that wait.
        vc: The VC.
        of_vc: Its people.
        now: Until when usage is decayed.
    """
    waiting: dict[str, int] = {}
    for job in state.jobs.values():
        if job.spec.vc == vc and job.state is JobIs.QUEUED:
            name = person_of(job.owner, job.spec.labels)
            waiting[name] = waiting.get(name, 0) + 1
    names = list(dict.fromkeys((*of_vc.accounts, *waiting)))
    used = {name: of_vc.used(name, now) for name in names}
    all_used, weights = sum(used.values()), sum(map(of_vc.weight, names))
    nothing = Account()
    rows: list[dict[str, Any]] = []
    for name in names:
        account, weight = of_vc.accounts.get(name, nothing), of_vc.weight(name)
        part = weight / weights
        used_part = used[name] / all_used if all_used else 0.0
        rows.append(
            {
                "person": name,
                "weight": weight / MILLI,
                "used_gpu_s": used[name] // NS_PER_SECOND,
                "used_part": round(used_part, 6),
                "part": round(part, 6),
                "times": round(used_part / part, 3) if all_used else None,
                "jobs": account.jobs,
                "gpus": account.gpus,
                "queued": waiting.get(name, 0),
            }
        )
    rows.sort(
        key=lambda row: (order_of(used[row["person"]], of_vc.weight(row["person"])), row["person"])
    )
    return [{"order": number, **row} for number, row in enumerate(rows, 1)]


def fair_line(state: ClusterState, name: str, now: Instant) -> str:
    """Return how fair share sees the person of a job, in one line; empty: it does not.

    Args:
        state: The allocator's state.
        name: A job.
        now: Until when usage is decayed.
    """
    job = state.jobs.get(name)
    of_vc = state.people.of_vc.get(job.spec.vc) if job is not None else None
    if job is None or of_vc is None or not of_vc.half_life or job.spec.opportunistic:
        return ""
    person = person_of(job.owner, job.spec.labels)
    rows = people_of(state, job.spec.vc, of_vc, now)
    mine = next((row for row in rows if row["person"] == person), None)
    if mine is None:
        return ""
    waiting = [row for row in rows if row["queued"]]
    before = [row["person"] or WHOLE for row in waiting if row["order"] < mine["order"]]
    half_life = length(of_vc.half_life // NS_PER_SECOND)
    times = "nothing yet" if not mine["times"] else f"{mine['times']:.1f} times its part"
    verb = "comes" if len(before) == 1 else "come"
    turn = f"; {', '.join(before[:4])} {verb} first" if before else ""
    return f"{person or WHOLE} has used {times}{turn}; half-life {half_life}"


def length(seconds: int) -> str:
    """Return a length of time in the largest unit that it is a whole number of."""
    return next(f"{seconds // size} {unit}" for size, unit in UNITS if seconds % size == 0)


# --- windows -------------------------------------------------------------------------------------


def windows_view(state: ClusterState, sees: Only = "") -> list[dict[str, Any]]:
    """Return the windows that are booked or open, the first to begin first.

    Args:
        state: The cluster.
        sees: The VCs whose windows show, beside those of the whole cluster.
    """
    shown = {
        name: window
        for name, window in state.windows.items()
        if not window.vc or covers(sees, window.vc)
    }
    jobs = {
        node: [job for job, _ in state.nodes[node].holdings] if node in state.nodes else []
        for window in shown.values()
        for node in window.nodes
    }
    rows = [
        {
            "name": name,
            "nodes": list(window.nodes),
            "begins": window.begins,
            "ends": window.ends,
            "vc": window.vc,
            "maintenance": not window.vc,
            "reason": window.reason,
            "open": name in state.opened,
            "jobs": list(dict.fromkeys(job for node in window.nodes for job in jobs[node])),
        }
        for name, window in shown.items()
    ]
    return sorted(rows, key=lambda row: (row["begins"], row["name"]))


def window_line(window: Window, vc: str | None = None) -> str:
    """Return a window in one line: what for, which nodes, and when.

    Args:
        window: The window.
        vc: The VC whose people read it: of a window of another one they learn when and where, not
            whose it is and why. None: an operator reads it.
    """
    nodes = ", ".join(window.nodes[:4]) + (" and others" if len(window.nodes) > 4 else "")
    foreign = vc is not None and window.vc not in ("", vc)
    what = "maintenance" if not window.vc else f"reserved for {window.vc}"
    if foreign:
        what = "reserved for another VC"
    text = f"window {window.name} ({what}) of {nodes}, {utc(window.begins)} to {utc(window.ends)}"
    return f"{text}: {window.reason}" if window.reason and not foreign else text


def utc(at: Instant) -> str:
    """Return an instant as people write it, in UTC."""
    return datetime.fromtimestamp(at / NS_PER_SECOND, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def windows_ahead(state: ClusterState, name: str) -> list[str]:
    """Return what windows mean for a job that has GPUs: it leaves when they begin."""
    job = state.jobs.get(name)
    if job is None:
        return []
    return [
        f"it leaves {', '.join(both[:4])} when this begins: {window_line(window, job.spec.vc)}"
        for window in state.windows.values()
        if window.vc != job.spec.vc
        and (both := [each for each in window.nodes if each in job.parts])
    ]
