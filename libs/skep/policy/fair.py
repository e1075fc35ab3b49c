"""Sharing among the people of a VC: whose turn is next, and what each may have at one time.

The person whose decayed usage is the smallest part for its weight comes first:

    order of a person = used / weight,    used = sum of GPU time x 2^-(age / half-life)

This is the order of Slurm's classic fair share (factor 2^-(usage / shares), usage and shares as
parts of their sums: https://slurm.schedmd.com/classic_fair_share.html) and, as there is one level
of people below a VC, also that of its Fair Tree (level fair share = shares / usage:
https://slurm.schedmd.com/fair_tree.html); both decay usage by a half-life. Priorities come first,
as everywhere in Skep. Between people of like usage, the one with fewer GPUs for its weight is
next, as in max-min fairness. A person's own jobs stay in the order of the VC's policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from msgspec.structs import replace

from skep.policy.api import Planner, Policy
from skep.policy.plan import Plan, Resize, Turn, Withheld
from skep.policy.view import JobView, PersonView, Phase, VcView
from skep.wire.cluster import PersonLimits
from skep.wire.reasons import Reason

FINE = 10**9
"""An order is used / weight in so fine steps that no usage of a nanosecond is lost."""


GPUS_AHEAD, TURNS_LEAST = 2, 50
"""A strict plan has turns for so many times the GPUs of its VC, and of so many jobs at least: some
of them may wait for a window, and hold up no other."""


def unfit(policy: Policy) -> str:
    """Return why a policy cannot order the jobs of each person; empty: it can.

    One that takes GPUs from jobs for the first of its own order would take them in vain.
    """
    powers = policy.powers
    found = [
        word
        for does, word in (
            (powers.suspends, "suspends"),
            (powers.moves, "moves"),
            (powers.packs, "packs"),
            (powers.resizes, "resizes"),
        )
        if does
    ]
    return f"it {' and '.join(found)} running jobs" if found else ""


def shared(planner: Planner) -> Planner:
    """Return a function that plans as a policy does, for people with fair shares and limits.

    Args:
        planner: Plans for the jobs that are offered to it.
    """

    def plan(view: VcView) -> Plan:
        seen, held = offered(view)
        made = planner(seen)
        if view.fair:
            most = enough(view) if made.strict and made.behind is None else None
            turns = in_fair_order(view, made.turns, most)
            behind = made.behind if len(turns) == len(made.turns) else Reason.WAITS_BEHIND
            made = replace(made, turns=turns, behind=behind)
        if view.limits is not None and view.limits.gpus is not None:
            made = replace(made, actions=_within_limits(view, view.limits.gpus, made))
        return replace(made, holds=(*made.holds, *held)) if held else made

    return plan


# --- fair shares -----------------------------------------------------------------------------


def order_of(used: int, weight: int) -> int:
    """Return a person's place: the lowest is next.

    Args:
        used: GPU-nanoseconds, decayed.
        weight: In thousandths.
    """
    return used * FINE // weight


def enough(view: VcView) -> int:
    """Return for how many GPUs a strict plan needs turns: it cannot give more than its VC has."""
    return GPUS_AHEAD * view.gpus


def in_fair_order(view: VcView, turns: Sequence[Turn], most: int | None = None) -> tuple[Turn, ...]:
    """Return the turns of a plan with the person first that used the smallest part.

    Args:
        view: The VC, with its people.
        turns: Those of its policy. The order of each person's own ones stays.
        most: No more turns follow once those before them are of so many GPUs, and of TURNS_LEAST
            jobs; None: all follow.
    """
    jobs = {job.job: job for job in view.jobs}
    people = {each.person: each for each in view.people}
    lines: dict[str, deque[tuple[Turn, JobView]]] = {}
    for turn in turns:
        job = jobs.get(turn.job)
        if job is None:
            return tuple(turns)  # The plan is wrong: that is told where it is carried out.
        lines.setdefault(job.person, deque()).append((turn, job))
    gpus = {name: people[name].gpus if name in people else 0 for name in lines}
    first = [_place(people.get(name), gpus[name], line[0][1], name) for name, line in lines.items()]
    heapify(first)
    found: list[Turn] = []
    asked = 0
    while first and (most is None or asked < most or len(found) < TURNS_LEAST):
        name = first[0][-1]
        turn, job = lines[name].popleft()
        found.append(turn if turn.why is not Reason.ARRIVAL else replace(turn, why=FAIR))
        gpus[name] += 0 if job.counted else job.gpus
        asked += job.gpus
        if lines[name]:
            heapreplace(first, _place(people.get(name), gpus[name], lines[name][0][1], name))
        else:
            heappop(first)
    return tuple(found)


FAIR = Reason.FAIR_SHARE


def _place(
    person: PersonView | None, gpus: int, job: JobView, name: str
) -> tuple[int, int, int, int, str]:
    """Return the sort key of a person whose next job this is."""
    used, weight = (0, 1000) if person is None else (person.used, person.weight)
    priority = -job.spec.priority
    return priority, order_of(used, weight), order_of(gpus, weight), job.sequence, name


# --- limits ----------------------------------------------------------------------------------


def offered(view: VcView) -> tuple[VcView, tuple[Withheld, ...]]:
    """Return what a policy is shown of a VC with limits, and why it is not shown the rest.

    Of each person the first waiting jobs are shown, by priority and arrival, as many as it may have
    at one time. Behind one that is not shown no later one of the same person is, so that no gang
    starves behind its owner's small jobs; a job that alone is above a limit holds up no other.

    Args:
        view: The VC, with its people.
    """
    limits = view.limits
    if limits is None or (limits.running is None and limits.gpus is None):
        return view, ()
    has = {each.person: (each.jobs, each.gpus) for each in view.people}
    waiting = [job for job in view.jobs if job.phase is Phase.WAITING and not job.counted]
    waiting.sort(key=lambda job: (-job.spec.priority, job.sequence))
    full: dict[str, None] = {}
    held: dict[str, Withheld] = {}
    for job in waiting:
        jobs, gpus = has.get(job.person, (0, 0))
        above = above_limits(limits, jobs, gpus, job.gpus)
        if job.person not in full and not above:
            has[job.person] = jobs + 1, gpus + job.gpus
            continue
        held[job.job] = Withheld(
            job.job, Reason.PERSON_LIMIT, above or "an earlier job comes first"
        )
        if not above_limits(limits, 0, 0, job.gpus):
            full[job.person] = None
    if not held:
        return view, ()
    shown = tuple(job for job in view.jobs if job.job not in held)
    return replace(view, jobs=shown), tuple(held.values())


def above_limits(limits: PersonLimits, jobs: int, gpus: int, more: int) -> str:
    """Return which limit a person would be above with a further job; empty: none.

    Args:
        limits: What each person may have.
        jobs: Its jobs that count.
        gpus: Their GPUs.
        more: The GPUs of the further job.
    """
    if limits.running is not None and jobs + 1 > limits.running:
        return f"one person runs {limits.running} jobs at a time"
    if limits.gpus is not None and gpus + more > limits.gpus:
        return f"one person has {limits.gpus} GPUs at a time"
    return ""


def _within_limits(view: VcView, most: int, plan: Plan) -> tuple[object, ...]:
    """Return the actions of a plan without growths by which a person would be above its limit."""
    jobs = {job.job: job for job in view.jobs}
    has = {each.person: each.gpus for each in view.people}
    kept = []
    for action in plan.actions:
        job = jobs.get(action.job)
        if isinstance(action, Resize) and job is not None and action.workers > job.workers:
            more = (action.workers - job.workers) * job.spec.resources.gpus
            if has.get(job.person, 0) + more > most:
                continue
            has[job.person] = has.get(job.person, 0) + more
        kept.append(action)
    return tuple(kept)
