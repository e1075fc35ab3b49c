"""The introspector: how fast every job goes, from what the agents report.

    NodeReport --> rank windows --(once a second)--> Rates, RateLearned, PhaseChanged, Stalled
               --> fingerprint and timing of the first rank ------------------------> Profiled
               --> own times of a gang's ranks --(every 10 s)-----------------------> GangSlowed

Reports carry cumulative counts, so a lost one costs nothing and a restart is made up for within
seconds: the machine records no facts, and what it knew is gone with it. An attempt is known from
its first report; the allocator's facts only make it forgotten at once when it is over, instead of
after FORGET_AFTER of silence, and keep reports still under way from bringing it back.

A suspended attempt is not looked at, and what it made before says nothing of how it goes on.

A job goes at the pace of its slowest rank among those that make mini-batches (a parameter server
makes none). Its memory is that of its largest rank, its utilisation the mean of all. `Rates`
leave out what was not heard of for a window. A job whose slowest rank is silent for `stall_limit`
is stalled, and has no rate, until that is over; learning and stalls are told once per attempt and
incident, and once more after a restart of this service. What a job says about its training (a loss)
is passed on as it comes.

A report that lasts (`JobProgress.lasts`) stands for one every second until the next: what those
would lead to is found at the time it would be, and in between the attempt is not looked at, nor
told in `Rates`. Facts end such an attempt, silence does not.

Jobs of open trials (`Trials`) are looked at every second from when all of them run as they are to
be compared; the verdict is said every second until the trial is open no more, or past its time.

What does not fit a bound is shed: telemetry costs quality, never liveness.
"""

from __future__ import annotations

from typing import Any

from skep.ids import job_sequence
from skep.ledger import runs
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.perf.attempt import Attempt
from skep.perf.hang import blame
from skep.perf.measure import Window
from skep.perf.profile_watch import ProfileWatch
from skep.perf.progress import (
    FINE_PER_MILLI,
    LEARNED_STEPS,
    RATE_MILLI_MAX,
    WINDOW,
    PhaseWatch,
    RankWindow,
    stall_limit,
)
from skep.perf.reported import COUNT_MAX, course_of, is_sane
from skep.perf.slow_ranks import LOOK, SlowWatch
from skep.perf.steady import NOT_YET
from skep.units import KIB, NS_PER_SECOND, Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.bounds import ATTEMPT_MAX, INSTANT_MAX
from skep.wire.codec import Facts, ServiceFact, Unreadable
from skep.wire.facts import EpochBegan
from skep.wire.findings import JobRate, Measured, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.held_up import GangSlowed
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep.wire.trials import Judged, Kind, Trials

IntrospectorEvent = Facts | NodeReport | Trials | Unreadable
"""What the introspector takes from outside."""

EMIT_EVERY = seconds(1.0)
"""As often as agents report."""

FORGET_AFTER = seconds(60.0)
"""Silence after which an attempt is dropped: a node that is lost for longer has lost its jobs."""

CLOCK_STEP = seconds(60.0)
"""A report older than the node's latest by less is a duplicate; by more, its clock was set."""

RATES_BYTES_MAX = 256 * KIB
RATES_JOBS_MAX = 1_000
"""Jobs in one Rates, so that it stays within RATES_BYTES_MAX whatever they report."""

RANKS_MAX = 100_000
"""Ranks followed, at about 3 KiB each where every job has one: 300 MB at the very most."""

WORLD_MAX = RANKS_MAX
"""The largest gang that is told as such."""

ATTEMPTS_MAX = RANKS_MAX
"""Attempts followed: one without any rank is known too."""

NODES_MAX = 20_000
"""Nodes whose latest report is remembered, the latest heard of: more than can exist."""

OVER_MAX = 20_000
"""Ended attempts remembered, the latest: reports under way arrive within seconds."""

TOLD_MAX = 2_000
"""Findings about single jobs per emission; the others are told in the next: the bus shares."""

CALM = 3
"""Looks at an attempt whose rate has become what it will be, so that a program that compares rates
told one after the other has seen some that agree."""

JOB_LENGTH_MAX = 19
JOB_RATE_BYTES_MAX = 250
"""One JobRate in JSON with every field at its largest, and the comma after it."""

NO_RUNS: runs.Runs = {}
"""Reports say where attempts run: facts are read only for what ends or suspends one."""

assert RATES_JOBS_MAX * JOB_RATE_BYTES_MAX + KIB <= RATES_BYTES_MAX
assert EMIT_EVERY <= WINDOW < FORGET_AFTER

RATES = subjects.finding("rates")
LEARNED = subjects.finding("learned")
PHASE = subjects.finding("phase")
STALL = subjects.finding("stall")
MEASURED = subjects.finding("measured")
PROFILED = subjects.finding("profiled")


class IntrospectorMachine:
    """The behaviour of the introspector service."""

    def __init__(self) -> None:
        """Start knowing nothing: reports say it all again."""
        self._attempts: dict[str, Attempt] = {}
        self._ranks = 0
        self._nodes: dict[str, int] = {}
        """When each node's latest report was made, by its clock; the latest heard of last."""
        self._over: dict[str, int] = {}
        self._trials: dict[int, Window] = {}
        """Trials that are open and may be measured."""
        self._tried: dict[str, None] = {}
        """Their jobs."""
        self._due: Instant | None = None
        self._lasting: dict[str, Attempt] = {}
        """Attempts whose latest report lasts."""
        self._restless: dict[str, Attempt] = {}
        """Those of them that are to be looked at."""

    def decide(self, event: IntrospectorEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Take over an event and return the findings that are due.

        Args:
            event: What came. A report that is old, or of an attempt that is over, is passed over.
            now: The time of this service's clock. Reports bear that of their node.

        Returns:
            Messages only: rates first, then findings about single jobs, then verdicts on trials.
        """
        match event:
            case NodeReport():
                self._report(event, now)
            case Facts():
                for fact in event.facts:
                    self._fact(fact)
            case Trials():
                self._try(event, now)
            case Tick() | Restarted() | Unreadable():
                pass
        if self._due is None or now < self._due:
            return []
        return self._emit(now)

    def apply(self, fact: EpochBegan) -> None:
        """Do nothing: the introspector's own log holds epochs only."""

    def wake_at(self) -> Instant | None:
        """Return the next whole second at which an attempt is to be looked at, else None."""
        return self._due

    def check(self) -> None:
        """Assert the bounds, and that every count is of what is there.

        Raises:
            AssertionError: One of them does not hold.
        """
        assert self._ranks == sum(len(attempt.ranks) for attempt in self._attempts.values())
        assert self._ranks <= RANKS_MAX
        assert len(self._attempts) <= ATTEMPTS_MAX
        assert len(self._over) <= OVER_MAX
        assert len(self._nodes) <= NODES_MAX
        tried = {job for window in self._trials.values() for job in window.samples}
        assert self._tried.keys() == tried
        assert self._due is not None or len(self._attempts) == len(self._lasting)
        assert self._due is not None or not (self._restless or self._trials)
        assert all(self._attempts[job] is each for job, each in self._lasting.items())
        assert self._restless.keys() <= self._lasting.keys()
        for job, attempt in self._attempts.items():
            assert job == attempt.job
            assert attempt.attempt > self._over.get(job, 0), job
            for rank in attempt.ranks.values():
                assert 0 <= rank.rate_milli <= RATE_MILLI_MAX, (job, rank.rate_milli)

    # --- what is heard -----------------------------------------------------------------------

    def _report(self, report: NodeReport, now: Instant) -> None:
        """Take over what a node reports of its jobs, unless that is old or from no time."""
        if not self._is_news(report):
            return
        for progress in report.jobs:
            attempt = self._attempts.get(progress.job)
            if attempt is None or attempt.attempt != progress.attempt:
                attempt = self._meet(progress, attempt)
            if attempt is not None:
                self._progress(attempt, progress, report, now)
        if len(self._attempts) > len(self._lasting) or self._restless:
            self._due = min(self._due or _next_second(now), _next_second(now))

    def _is_news(self, report: NodeReport) -> bool:
        """Return whether a report is a node's latest, and remember when it was made."""
        if not 0 < report.at < INSTANT_MAX:
            return False
        latest = self._nodes.get(report.node)
        if latest is not None and latest - CLOCK_STEP < report.at <= latest:
            return False
        self._nodes.pop(report.node, None)
        self._nodes[report.node] = report.at
        if len(self._nodes) > NODES_MAX:
            del self._nodes[next(iter(self._nodes))]
        return True

    def _progress(
        self, attempt: Attempt, progress: JobProgress, report: NodeReport, now: Instant
    ) -> None:
        """Take over what a node reported of an attempt, by the clock of the node."""
        at = report.at
        attempt.heard_at = now
        if progress.lasts or progress.job in self._lasting:
            self._lasts(attempt, progress, at, now)
        windows = attempt.ranks
        if attempt.world != progress.world and attempt.watch is not None:
            attempt.watch.steady.clear()
        attempt.world = min(max(0, progress.world), WORLD_MAX)
        if len(windows) > progress.world:
            self._leave(attempt, progress.world)
        for rank in progress.ranks:
            window = windows.get(rank.rank)
            if window is None:
                if self._ranks >= RANKS_MAX or not 0 <= rank.rank < progress.world:
                    continue
                window = windows[rank.rank] = RankWindow()
                self._ranks += 1
            if is_sane(rank):
                window.utilisation = rank.utilisation
                window.memory = rank.memory
                window.stands, window.node = rank.stands, report.node
                window.own = rank.own or window.own
                _take_values(attempt, rank, now)
                _take_profile(attempt, rank)
                window.observe(rank.steps, rank.last_step_at, rank.step_ns, at)
                window.course = course_of(rank, at) if progress.lasts else None

    def _lasts(self, attempt: Attempt, progress: JobProgress, at: Instant, now: Instant) -> None:
        """Bring an attempt up to date with what was said before, and note whether this lasts."""
        if attempt.job in self._lasting:
            for window in attempt.ranks.values():
                if window.course is not None:
                    until = window.course.heard(min(at, now - attempt.behind))
                    window.follow(window.course, until)
            _follow_level(attempt, Instant(_next_second(now) - NS_PER_SECOND))
        if progress.lasts:
            self._lasting[attempt.job] = self._restless[attempt.job] = attempt
            attempt.behind, attempt.calm = now - at, 0
            attempt.look_at = _next_second(now)
        else:
            del self._lasting[attempt.job]
            self._restless.pop(attempt.job, None)
            attempt.look_at = None

    def _meet(self, progress: JobProgress, known: Attempt | None) -> Attempt | None:
        """Begin to follow an attempt, in place of an earlier one; None if it is not to be."""
        job, number = progress.job, progress.attempt
        if not max(self._over.get(job, 0), known.attempt if known else 0) < number < ATTEMPT_MAX:
            return None
        if known is not None:
            self._forget(known)
        elif (
            len(self._attempts) >= ATTEMPTS_MAX
            or len(job) > JOB_LENGTH_MAX
            or job_sequence(job) is None
        ):
            return None
        attempt = self._attempts[job] = Attempt(progress)
        return attempt

    def _leave(self, attempt: Attempt, world: int) -> None:
        """Forget ranks that have left a gang: it goes at the pace of those that are there."""
        for rank in [rank for rank in attempt.ranks if rank >= world]:
            del attempt.ranks[rank]
            self._ranks -= 1

    def _forget(self, attempt: Attempt) -> None:
        del self._attempts[attempt.job]
        self._lasting.pop(attempt.job, None)
        self._restless.pop(attempt.job, None)
        self._ranks -= len(attempt.ranks)

    def _fact(self, fact: ServiceFact) -> None:
        """Take over which attempts are over, and whether one is suspended."""
        delta = runs.apply(NO_RUNS, fact)
        if delta.over:
            self._end(delta.job, delta.over)
        if delta.suspended is not None:
            self._stand(delta.job, delta.attempt, suspended=delta.suspended)

    def _stand(self, job: str, number: int, *, suspended: bool) -> None:
        """Note that an attempt is suspended, or goes on at a rate that rests on nothing old."""
        attempt = self._attempts.get(job)
        if attempt is None or attempt.attempt != number:
            return
        attempt.stands = suspended
        if not suspended:
            for window in attempt.ranks.values():
                window.begin_anew()

    def _end(self, job: str, last: int) -> None:
        """Remember that the job's attempts up to `last` are over."""
        last = max(last, self._over.pop(job, 0))
        if last == 0:
            return
        self._over[job] = last
        if len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]
        attempt = self._attempts.get(job)
        if attempt is not None and attempt.attempt <= last:
            self._forget(attempt)

    # --- trials ------------------------------------------------------------------------------

    def _try(self, event: Trials, now: Instant) -> None:
        """Take over what is open; what was known to be measured otherwise begins anew."""
        windows = {}
        for trial in event.open:
            if trial.since and now <= trial.until:
                known = self._trials.get(trial.trial)
                same = known is not None and known.trial == trial
                windows[trial.trial] = known if known is not None and same else Window(trial)
        self._trials = windows
        self._note_tried()
        for job in self._tried:
            attempt = self._lasting.get(job)
            if attempt is not None and job not in self._restless:
                self._restless[job] = attempt
                attempt.look_at = _next_second(now)
        if self._trials:
            self._due = min(self._due or _next_second(now), _next_second(now))

    def _note_tried(self) -> None:
        self._tried = {job: None for window in self._trials.values() for job in window.samples}

    def _judge(self, now: Instant) -> list[Effect]:
        """Measure the jobs of open trials; return the verdicts."""
        said: list[Effect] = []
        late = [number for number, window in self._trials.items() if window.trial.until < now]
        for number in late:
            del self._trials[number]
        if late:
            self._note_tried()
        for window in self._trials.values():
            for each in window.trial.jobs if window.measures(now) else ():
                attempt = self._attempts.get(each.job)
                if attempt is None or attempt.attempt != each.attempt:
                    continue
                slowest = _slowest(attempt)
                if slowest is not None:
                    window.samples[each.job].take(slowest)
            if window.trial.kind is Kind.PROBE:
                said += self._probed(window, now)
                continue
            found = window.judge()
            if found is not None:
                needed = window.trial.needed_milli
                said.append(
                    Send(
                        subjects.JUDGED,
                        Judged(
                            at=now,
                            trial=window.trial.trial,
                            kept=bool(found.kept),
                            gain_milli=round(found.sum * 1000) - needed,
                            low_milli=round(found.low * 1000) - needed,
                            high_milli=round(found.high * 1000) - needed,
                            after=window.after(),
                        ),
                    )
                )
        return said

    def _probed(self, window: Window, now: Instant) -> list[Effect]:
        """Return that a probe was measured for long enough, if it was."""
        trial, before = window.trial, window.trial.jobs[0]
        attempt = self._attempts.get(before.job)
        known = attempt is not None and attempt.attempt == before.attempt
        profile = attempt.profile if attempt is not None and known else None
        timing = profile.timing(trial.workers) if profile is not None else None
        found = window.probed(timing, times=profile is not None and profile.times)
        if found is None or not known:
            return []
        gain = found.rate_milli * 1000 // before.rate_milli - 1000 if before.rate_milli else 0
        verdict = Judged(
            at=now,
            trial=trial.trial,
            kept=False,
            gain_milli=gain,
            low_milli=gain,
            high_milli=gain,
            after=(found,),
        )
        return [Send(subjects.JUDGED, verdict)]

    # --- what is said ------------------------------------------------------------------------

    def _emit(self, now: Instant) -> list[Effect]:
        self._drop_silent(now)
        told: list[Effect] = []  # At most some entries more than TOLD_MAX.
        heard_since = now - WINDOW
        rates = [
            self._look(attempt, told, now)
            for attempt in self._looked_at(now)
            if attempt.ranks
            and not attempt.stands
            and (attempt.heard_at >= heard_since or attempt.look_at)
        ]
        effects: list[Effect] = [
            Send(RATES, Rates(at=now, jobs=tuple(rates[start : start + RATES_JOBS_MAX])))
            for start in range(0, len(rates), RATES_JOBS_MAX)
        ]
        judged = self._judge(now)
        self._due = self._next_look(now)
        return effects + told + judged

    def _looked_at(self, now: Instant) -> list[Attempt]:
        """Return the attempts to be looked at; those that last are brought up to date."""
        if not self._lasting:
            return list(self._attempts.values())
        plain = () if len(self._lasting) == len(self._attempts) else self._attempts.values()
        found = [attempt for attempt in plain if attempt.job not in self._lasting]
        for attempt in self._restless.values():
            if attempt.look_at is not None and attempt.look_at <= now:
                for window in attempt.ranks.values():
                    if window.course is not None:
                        until = window.course.heard(now - attempt.behind)
                        window.follow(window.course, until)
                _follow_level(attempt, Instant(now - NS_PER_SECOND))
                found.append(attempt)
        return found

    def _next_look(self, now: Instant) -> Instant | None:
        """Return when to look again, and forget attempts of which nothing can be found any more."""
        for attempt in list(self._restless.values()):
            if attempt.look_at is not None and attempt.look_at <= now:
                attempt.look_at = _look_again(attempt, _next_second(now))
                if attempt.job in self._tried:
                    attempt.look_at = _next_second(now)
                if attempt.look_at is None:
                    del self._restless[attempt.job]
        if len(self._attempts) > len(self._lasting) or self._trials:
            return _next_second(now)
        looks = (attempt.look_at for attempt in self._restless.values())
        return min((at for at in looks if at is not None), default=None)

    def _drop_silent(self, now: Instant) -> None:
        limit = now - FORGET_AFTER
        if len(self._attempts) == len(self._lasting):
            return
        silent = [each for each in self._attempts.values() if each.heard_at < limit]
        for attempt in silent:
            if attempt.job not in self._lasting:
                self._forget(attempt)

    def _look(self, attempt: Attempt, told: list[Effect], now: Instant) -> JobRate:
        """Return an attempt's rate; add what else there is to say about it to `told`."""
        slowest: RankWindow | None = None
        laggard: RankWindow | None = None
        steps = memory = utilisation = 0
        for rank in attempt.ranks.values():
            utilisation += rank.utilisation
            memory = max(memory, rank.memory)
            if rank.steps == 0:
                continue
            if laggard is None or rank.silent_ns > laggard.silent_ns:
                laggard = rank
            if steps == 0 or rank.steps < steps:
                steps = rank.steps
            if rank.known and (slowest is None or rank.rate_milli < slowest.rate_milli):
                slowest = rank
        if laggard is not None and len(told) < TOLD_MAX:
            _look_for_stall(attempt, laggard, told, now)
        if slowest is not None and len(told) < TOLD_MAX:
            _look_for_level(attempt, slowest, told, now)
        if now >= attempt.slow_at and attempt.stalled is None and len(told) < TOLD_MAX:
            told += _slow_ranks(attempt, now)
        if attempt.values_step != attempt.told_step and len(told) < TOLD_MAX:
            attempt.told_step = attempt.values_step
            measured = Measured(
                at=now,
                job=attempt.job,
                attempt=attempt.attempt,
                step=attempt.values_step,
                values=attempt.values,
            )
            told.append(Send(MEASURED, measured))
        if attempt.profile is not None and len(told) < TOLD_MAX:
            profiled = attempt.profile.news(attempt.job, attempt.attempt, now)
            told += [] if profiled is None else [Send(PROFILED, profiled)]
        rate = slowest.rate_milli if slowest is not None and attempt.stalled is None else 0
        base = attempt.watch.steady.news() if attempt.watch is not None else NOT_YET
        return JobRate(
            job=attempt.job,
            attempt=attempt.attempt,
            steps=steps,
            rate_milli=rate,
            utilisation=utilisation // len(attempt.ranks),
            memory=memory,
            workers=attempt.world,
            mean_milli=base.mean // FINE_PER_MILLI,
            spread_milli=base.spread // FINE_PER_MILLI,
            samples=base.samples,
        )


def _slowest(attempt: Attempt) -> RankWindow | None:
    """Return the rank at whose pace a gang goes."""
    known = [rank for rank in attempt.ranks.values() if rank.steps and rank.known]
    return min(known, key=lambda rank: rank.rate_milli, default=None)


def _look_for_stall(
    attempt: Attempt, laggard: RankWindow, told: list[Effect], now: Instant
) -> None:
    stalled = laggard.silent_ns > stall_limit(laggard.step_ns)
    if stalled is (attempt.stalled is not None):
        return
    since = laggard.last_step_at if attempt.stalled is None else attempt.stalled
    attempt.stalled = since if stalled else None
    about = _what_keeps(attempt) if stalled else {}
    finding = Stalled(
        at=now,
        job=attempt.job,
        attempt=attempt.attempt,
        since=Instant(since),
        over=not stalled,
        trace=attempt.trace,
        **about,
    )
    told.append(Send(STALL, finding))


def _what_keeps(attempt: Attempt) -> dict[str, Any]:
    """Return what a stall is told to come from."""
    found = blame({number: rank.stands for number, rank in attempt.ranks.items()})
    if found is None:
        return {}
    nodes = tuple(dict.fromkeys(attempt.ranks[rank].node for rank in found.ranks))
    return {"code": found.code, "behind": found.ranks, "nodes": nodes, "text": found.text}


def _slow_ranks(attempt: Attempt, now: Instant) -> list[Effect]:
    """Compare the own times that the ranks of a gang have reported; return what is to be said."""
    attempt.slow_at = now + LOOK
    windows = {number: rank for number, rank in attempt.ranks.items() if rank.own is not None}
    owns = {number: rank.own for number, rank in windows.items() if rank.own is not None}
    if len(owns) < 2 or 2 * len(owns) < attempt.world:
        return []
    step_ns = max(rank.step_ns for rank in windows.values())
    for rank in windows.values():
        rank.own = None
    if attempt.slow is None:
        attempt.slow = SlowWatch()
    attempt.slow.leave(attempt.world)
    return [
        Send(
            subjects.SLOWED,
            GangSlowed(
                at=now,
                job=attempt.job,
                attempt=attempt.attempt,
                rank=one.rank,
                node=attempt.ranks[one.rank].node,
                own_ns=one.own_ns,
                usual_ns=one.usual_ns,
                step_ns=step_ns,
                loads=one.loads,
                over=one.over,
                trace=attempt.trace,
            ),
        )
        for one in attempt.slow.look(owns, step_ns)
    ]


def _look_for_level(
    attempt: Attempt, slowest: RankWindow, told: list[Effect], now: Instant
) -> None:
    if not attempt.learned and slowest.full():
        attempt.learned = True
        rate = slowest.rate_milli
        finding = RateLearned(
            at=now, job=attempt.job, attempt=attempt.attempt, rate_milli=rate, trace=attempt.trace
        )
        told.append(Send(LEARNED, finding))
    if attempt.watch is None:
        attempt.watch = PhaseWatch(slowest)
        return
    change = attempt.watch.watch(slowest)
    if change is not None:
        changed = PhaseChanged(
            at=now,
            job=attempt.job,
            attempt=attempt.attempt,
            before_milli=change.before,
            after_milli=change.after,
            trace=attempt.trace,
        )
        told.append(Send(PHASE, changed))


def _follow_level(attempt: Attempt, until: Instant) -> None:
    """Have the watch over an attempt's level be where it were, had it been looked at till then."""
    watch = attempt.watch
    course = watch.rank.course if watch is not None else None
    if watch is not None and course is not None and course.goes and watch.settled(course):
        watch.follow(course, until - attempt.behind)


def _look_again(attempt: Attempt, soon: Instant) -> Instant | None:
    """Return when there may be something more to find, if the latest report still holds."""
    looks: list[int] = []
    pure, going = True, False
    for rank in attempt.ranks.values():
        course = rank.course
        if course is None:
            continue
        goes = course.goes
        if rank.steps == 0:
            looks += [course.tells(course.next_at)] if goes else []
        elif not goes:
            looks += [0] if attempt.stalled is None else []
        else:
            going = True
            if not rank.pure(course.next_at):
                pure = False
            elif rank.steps < LEARNED_STEPS:
                looks.append(course.tells(course.ends(LEARNED_STEPS)))
    attempt.calm += pure
    if going and not (pure and attempt.learned and attempt.calm > CALM and attempt.stalled is None):
        return soon
    watch = attempt.watch
    course = watch.rank.course if watch is not None else None
    if watch is not None and course is not None and course.goes:
        if not watch.settled(course):
            looks.append(watch.ends(course))
        elif watch.steady.missing:
            looks.append(watch.gathered(course))
    if not looks:
        return None
    return max(soon, _next_second(Instant(min(looks) + attempt.behind)))


def _take_values(attempt: Attempt, rank: RankProgress, now: Instant) -> None:
    """Take what a rank tells of the training, unless a lower one still does.

    All ranks train the same model, so one is enough, and the next carries on if it leaves.
    """
    if not rank.values or not 0 <= rank.values_step <= COUNT_MAX:
        return
    silent = now - attempt.spoke_at > WINDOW or attempt.speaker not in attempt.ranks
    if rank.rank <= attempt.speaker or silent or not attempt.values:
        attempt.values, attempt.values_step = rank.values, rank.values_step
        attempt.speaker, attempt.spoke_at = rank.rank, now


def _take_profile(attempt: Attempt, rank: RankProgress) -> None:
    """Take what the lowest rank shows of the model: each node tells of its own lowest one."""
    if rank.fingerprint is None and rank.timing is None:
        return
    if rank.rank == min(attempt.ranks):
        if attempt.profile is None:
            attempt.profile = ProfileWatch()
        attempt.profile.take(rank, attempt.world)


def _next_second(now: Instant) -> Instant:
    return after(Instant(now - now % NS_PER_SECOND), Duration(NS_PER_SECOND))
