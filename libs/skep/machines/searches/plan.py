"""Which of a search's trials run: one step at a time, from what is known of them.

`curves` (Gandiva, section 6.2): the `exclusive` trials that promise the most keep their places. The
other places go round: a trial that has not run yet comes first, so that every one gives early
feedback, then the trial that stood the longest. A turn is never cut short, so that ranks which
change with every point of a curve cost at most one suspension per place and turn. Only a trial that
a client demoted gives way at once, and goes round only with places that no other trial wants.

`asha` (Li et al., MLSys'20): a trial that comes to its rung stands there until it is among the
best 1/eta of those that came to it; free places go to the highest rung with such a trial, and
else to a new one. With brackets it is Hyperband's (Li et al., JMLR'18), each with its own rungs.

Nothing is killed to make room: a trial that loses its place is suspended, one that gets a place is
resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.machines.searches.state import Search, Trial, drawn, turn_of
from skep.perf.learning import POINTS_MIN
from skep.units import Instant
from skep.wire.reasons import Reason
from skep.wire.search_facts import (
    SearchEnding,
    SearchTrialAdded,
    SearchTrialGivenUp,
    SearchTrialTurned,
    Stand,
)

FEEDBACK_TURNS = 4
"""Turns that a trial may have on end whose curve is too short to promise anything: loading takes
its time, and one that left before would be compared with none until all others had been there."""

FAILURES_MAX = 8
"""Trials without a value, one after another, that end a search: its job is broken."""

SURE = 2.0
"""Deviations below `give_up` that a promise must be: a bad guess would cost a good trial."""

Step = SearchTrialAdded | SearchTrialTurned | SearchTrialGivenUp


def ends(search: Search, now: Instant) -> SearchEnding | None:
    """Return that a search is to end, or ends for another reason than before, or None.

    Args:
        search: Only looked at.
        now: The time of the decision.
    """
    if search.ending is not None and search.spared == 0:
        return None
    spent = search.spent_at(now)
    if spent is not None and spent <= now:
        return SearchEnding(search=search.search, why=Reason.BUDGET_SPENT, at=now)
    if search.ending is not None:
        return None
    best = search.best()
    if (
        best is not None
        and best.best is not None
        and search.qualifies(_unsigned(search, best.best))
    ):
        return SearchEnding(
            search=search.search,
            why=Reason.TARGET_REACHED,
            at=now,
            spared=0 if best.over else best.number,
        )
    if search.failures >= FAILURES_MAX:
        return SearchEnding(search=search.search, why=Reason.REPEATED_FAILURES, at=now)
    busy = any(trial.holds or trial.stand is Stand.OUTSIDE for trial in search.trials.values())
    used_up = len(search.trials) >= search.spec.budget.trials
    if used_up and not busy and step(search, now) is None:
        return SearchEnding(search=search.search, why=Reason.ALL_TRIED, at=now)
    return None


def step(search: Search, now: Instant) -> Step | None:
    """Return the next thing to do, or None: everything is as it should be."""
    if search.ending is not None:
        return None
    mine = [trial for trial in search.live if trial.stand is not Stand.OUTSIDE]
    hopeless = _hopeless(search, mine, now)
    if hopeless is not None:
        return hopeless
    wanted = [trial for trial in mine if not trial.given_up]
    return (_asha if search.spec.method == "asha" else _curves)(search, wanted, now)


def wake_at(search: Search, now: Instant) -> Instant | None:
    """Return when time alone may change what is to be done, after `now`; None: never."""
    found = [search.spent_at(now)]
    if search.ending is None and search.spec.method == "curves":
        turn = turn_of(search.spec)
        for trial in search.trials.values():
            if trial.stand is Stand.RUNNING and trial.run and not trial.fixed:
                found += [Instant(trial.since + turn), Instant(trial.since + turn * FEEDBACK_TURNS)]
    return min((each for each in found if each is not None and each > now), default=None)


def may_add(search: Search) -> bool:
    """Return whether the search may have another trial."""
    spec = search.spec
    return (
        search.ending is None
        and len(search.trials) < spec.budget.trials
        and len(search.live) < spec.live
    )


def has_place(search: Search) -> bool:
    """Return whether another trial may run."""
    return _places(search) < search.spec.parallel


def _new(search: Search) -> int:
    """Return how many trials could be added now."""
    spec = search.spec
    if spec.sampler != "random":
        return 0
    return max(0, min(spec.budget.trials - len(search.trials), spec.live - len(search.live)))


def bracket(search: Search) -> int:
    """Return the bracket of the next trial: by Hyperband's numbers of trials, evenly mixed.

    Returns:
        Counted from 0; 0 too where there are no brackets.
    """
    rungs = search.spec.rungs
    if rungs is None:
        return 0
    counts = [0] * rungs.brackets
    for trial in search.trials.values():
        counts[trial.bracket] += 1
    # Hyperband begins (s_max + 1) / (s + 1) * eta^s trials in bracket s, s_max being the longest.
    weights = [
        rungs.eta ** (rungs.brackets - 1 - at) / (rungs.brackets - at)
        for at in range(rungs.brackets)
    ]
    return min(range(rungs.brackets), key=lambda at: ((counts[at] + 1) / weights[at], at))


def _unsigned(search: Search, value: float) -> float:
    return search.spec.signed(value)  # Its own inverse.


def _hopeless(search: Search, mine: Sequence[Trial], now: Instant) -> Step | None:
    least = search.spec.give_up
    if least is None:
        return None
    for trial in mine:
        if trial.scored is not None and not trial.given_up and trial.job:
            _, value, spread = trial.scored
            if value + SURE * spread < search.spec.signed(least):
                return SearchTrialGivenUp(
                    search=search.search, trial=trial.number, score=value, at=now
                )
    return None


def _add(search: Search, now: Instant) -> Step | None:
    if search.spec.sampler != "random" or not may_add(search):
        return None
    number = len(search.trials) + 1
    return SearchTrialAdded(
        search=search.search,
        trial=number,
        at=now,
        bracket=bracket(search),
        params=drawn(search.spec, number),
    )


def _submit(search: Search, mine: Sequence[Trial], now: Instant) -> Step | None:
    """Return that a client's trial is submitted now that there is a place, or None."""
    for trial in mine:
        if trial.stand is Stand.NEW and not trial.run:
            return _turn(search, trial, now, Reason.FIRST_FEEDBACK, run=True)
    return None


def _turn(
    search: Search, trial: Trial, now: Instant, why: Reason, *, run: bool, rung: int | None = None
) -> Step:
    return SearchTrialTurned(
        search=search.search,
        trial=trial.number,
        run=run,
        why=why,
        at=now,
        rung=trial.rung if rung is None else rung,
        score=trial.scored[1] if trial.scored else None,
    )


# --- curves --------------------------------------------------------------------------------------


def _curves(search: Search, mine: Sequence[Trial], now: Instant) -> Step | None:
    held = [trial for trial in mine if trial.holds]
    free = search.spec.parallel - _places(search)
    top = _top(search, mine)
    rising = [trial for trial in top if not trial.holds]
    if rising and free > 0:
        return _turn(search, rising[0], now, Reason.BEST_PROMISE, run=True)
    rest = sorted(
        (trial for trial in mine if not trial.holds and trial not in top),
        key=lambda trial: (trial.demoted, trial.since, trial.number),
    )
    if free > 0:
        first = _submit(search, mine, now)
        if first is not None:
            return first
        added = _add(search, now)
        if added is not None:
            return added
        return _turn(search, rest[0], now, Reason.ITS_TURN, run=True) if rest else None
    # What is on its way out makes room for the first of those that wait.
    leaving = sum(not trial.run for trial in held)
    waiting = _new(search) + sum(not trial.demoted for trial in rest)
    if len(rising) + waiting > leaving:
        for trial in held:
            if trial.demoted and _leaves(trial):
                return _turn(search, trial, now, Reason.DEMOTED, run=False)
    may_leave = [trial for trial in held if trial not in top and _turn_over(search, trial, now)]
    if len(rising) > leaving:
        # The least promise goes first; a trial that has none yet had no fair chance.
        victim = min(
            (trial for trial in may_leave if trial.scored is not None), key=_rank, default=None
        )
        victim = victim or max(may_leave, key=lambda trial: trial.ran(now), default=None)
        return None if victim is None else _turn(search, victim, now, Reason.OUTRANKED, run=False)
    if waiting + len(rising) <= leaving:
        # Only demoted ones are left to wait: they take turns with those of their own.
        may_leave = [trial for trial in may_leave if trial.demoted]
        waiting = len(rest)
    if waiting > leaving - len(rising):
        victim = min(may_leave, key=lambda trial: (trial.since, trial.number), default=None)
        if victim is not None:
            return _turn(search, victim, now, Reason.SLICE_OVER, run=False)
    return None


def _top(search: Search, mine: Sequence[Trial]) -> list[Trial]:
    """Return the trials that keep their places, the best first."""
    if any(trial.stand is Stand.NEW and not trial.run for trial in mine):
        return []  # What was asked for and never ran has its first turn before anybody keeps his.
    known = [trial for trial in mine if trial.best is not None and trial.job and not trial.demoted]
    return sorted(known, key=lambda trial: (_rank(trial), -trial.number), reverse=True)[
        : search.exclusive
    ]


def _rank(trial: Trial) -> tuple[float, float]:
    assert trial.best is not None, trial
    if trial.scored is None:
        return 0.0, trial.best
    return trial.scored[0], trial.scored[1]


def _places(search: Search) -> int:
    """Return how many places are taken, also by trials that are being stopped for good."""
    return sum(trial.holds for trial in search.trials.values())


def _turn_over(search: Search, trial: Trial, now: Instant) -> bool:
    """Return whether a trial that runs may be suspended for another one."""
    if not _leaves(trial):
        return False
    turns = 1 if len(trial.values) >= POINTS_MIN else FEEDBACK_TURNS
    return now >= trial.since + turn_of(search.spec) * turns


def _leaves(trial: Trial) -> bool:
    """Return whether a trial runs and can be suspended."""
    return trial.stand is Stand.RUNNING and trial.run and not trial.fixed


# --- asha ----------------------------------------------------------------------------------------


def _asha(search: Search, mine: Sequence[Trial], now: Instant) -> Step | None:
    best = _promotable(search)
    others = [trial for trial in mine if not trial.demoted]
    if others or _new(search):  # Where only demoted ones are left, they are as good as any.
        for trial in mine:
            if trial.demoted and _leaves(trial):
                return _turn(search, trial, now, Reason.DEMOTED, run=False)
        mine = others
    for trial in mine:
        if trial.run and len(trial.reached) > trial.rung:
            if trial.number in best:
                return _turn(search, trial, now, Reason.PROMOTED, run=True, rung=len(trial.reached))
            if _leaves(trial):
                return _turn(search, trial, now, Reason.RUNG_REACHED, run=False)
    if not has_place(search):
        return None
    waiting = [trial for trial in mine if not trial.holds and trial.number in best]
    if waiting:
        chosen = max(
            waiting, key=lambda trial: (len(trial.reached), trial.reached[-1], -trial.number)
        )
        return _turn(search, chosen, now, Reason.PROMOTED, run=True, rung=len(chosen.reached))
    first = _submit(search, mine, now)
    if first is not None:
        return first
    added = _add(search, now)
    stuck = added is None and not may_add(search) and len(search.trials) < search.spec.budget.trials
    if stuck and not any(trial.holds for trial in mine):
        # As many stand as may, none of them good enough: the best one goes on all the same.
        standing = [trial for trial in mine if trial.reached]
        if standing:
            chosen = max(standing, key=lambda trial: (trial.reached[-1], -trial.number))
            return _turn(search, chosen, now, Reason.PROMOTED, run=True, rung=len(chosen.reached))
    return added


def _promotable(search: Search) -> dict[int, None]:
    """Return the trials that are among the best 1/eta of those that came to their latest rung."""
    rungs = search.spec.rungs
    assert rungs is not None, "a spec that was read has rungs for this method"
    came: dict[tuple[int, int], list[Trial]] = {}
    for trial in search.trials.values():
        for rung in range(len(trial.reached)):
            came.setdefault((trial.bracket, rung), []).append(trial)
    found: dict[int, None] = {}
    for (_, rung), there in came.items():
        order = sorted((-trial.reached[rung], trial.number) for trial in there)
        best = [number for _, number in order[: len(there) // rungs.eta]]
        found.update(
            (number, None) for number in best if len(search.trials[number].reached) == rung + 1
        )
    return found
