"""What is known for the moment only: rates, heartbeats, the advised order. Nothing here is kept."""

from __future__ import annotations

from typing import Any

from skep.perf.fitted import FitsKept
from skep.units import NS_PER_SECOND, Duration, Instant, seconds
from skep.wire.advice import Outlook, QueueAdvice
from skep.wire.findings import JobRate, Measured, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.reports import Building, Heartbeat
from skep_services.gateway.courses import Courses
from skep_services.gateway.curves import Curves
from skep_services.gateway.fold import Fold
from skep_services.gateway.rows import Job, State
from skep_services.gateway.texts import describe_building, describe_finding, hang_text

SILENT_AFTER: Duration = seconds(3.0)
"""Three heartbeats: the allocator gives a node up later, people want to see it earlier."""
RATES_FRESH_FOR: Duration = seconds(10.0)
"""Ten windows of the introspector: an estimate that rests on older rates is not shown."""


class Live:
    """Takes core messages; rates go into the rows of running jobs, events into the fold."""

    def __init__(self, fold: Fold, now: Instant) -> None:
        self.heard: dict[str, Instant] = {}
        """When each node's heartbeat last came, by this process's clock."""
        self.building: dict[str, tuple[Building, ...]] = {}
        """The environments that each node builds."""
        self.utilisation: dict[str, int] = {}
        """Thousandths of each running job's devices in use."""
        self.rates_at: Instant | None = None
        self.curves = Curves()
        self.courses = Courses()
        """How fast jobs went, and how much of their devices they used."""
        self.rates: dict[str, JobRate] = {}
        """The latest rate of each running job, and the latest that says how steady it is."""
        self.steady: dict[str, JobRate] = {}
        self.fits = FitsKept()
        """What predicts the speed of models."""
        self._told_at: Instant | None = None
        """When the introspector told the rates that are known; it does so in several messages."""
        self._advice: QueueAdvice | None = None
        self._fold = fold
        self._since = now

    def apply(self, message: Any, now: Instant) -> None:
        """Take over one core message, as `codec.read` returned it."""
        match message:
            case Heartbeat(node=node):
                self.fade(now)
                # Any agent may speak, but only nodes in use are remembered: that bounds the table.
                if node in self._fold.state.nodes:
                    self.heard[node] = now
                    self._builds(node, message.building)
            case Rates():
                self._rates(message, now)
            case QueueAdvice():
                self._advice = message
            case Outlook():
                for fit in message.fits:
                    self.fits.hear(fit)
            case Measured():
                if self._running(message.job, message.attempt) is not None:
                    self.curves.take(message)
            case RateLearned() | PhaseChanged() | Stalled():
                job = self._running(message.job, message.attempt)
                # A suspended job makes no mini-batches, and that is no news.
                if job is not None and job.row.state is not State.SUSPENDED:
                    if isinstance(message, Stalled):
                        job.row.stalled_since = None if message.over else message.since
                        job.hang = hang_text(message)
                        self._fold.news.job(message.job)
                    self._fold.note(message, message.at, describe_finding(message), job)
            case _:
                pass  # What cannot be read costs nothing here: the next message says it again.

    def silent(self, node: str, now: Instant) -> bool:
        """Return whether a node has not been heard for SILENT_AFTER, this process's start heard."""
        return now - self.heard.get(node, self._since) > SILENT_AFTER

    def builds(self, job: str, attempt: int, now: Instant) -> list[dict[str, Any]]:
        """Return which nodes build the environment of an attempt, and since when."""
        return [
            {"node": node, "since": one.since, "text": one.text}
            for node, building in self.building.items()
            if not self.silent(node, now)
            for one in building
            if one.job == job and one.attempt == attempt
        ]

    def turns(self, now: Instant) -> dict[str, int]:
        """Return the advised position (from 0) of queued jobs; empty if the advice has expired."""
        advice = self._advice
        if advice is None or now >= advice.expires_at:
            return {}
        return {one.job: turn for turn, one in enumerate(advice.jobs)}

    def remaining(self, now: Instant) -> dict[str, Duration]:
        """Return the predicted run time (ns) of queued jobs, as far as the advisor knows it."""
        advice = self._advice
        if advice is None or now >= advice.expires_at:
            return {}
        return {one.job: one.remaining for one in advice.jobs if one.remaining is not None}

    def fade(self, now: Instant) -> None:
        """Withdraw estimates once their rates are old: they are not measured any more."""
        if self.rates_at is not None and now - self.rates_at > RATES_FRESH_FOR:
            self.rates_at = None
            self.utilisation, self.rates, self.steady = {}, {}, {}
            for job in self._fold.active.values():
                job.row.eta_s = None

    def _builds(self, node: str, building: tuple[Building, ...]) -> None:
        known = self.building.pop(node, ())
        if not building:
            return
        self.building[node] = building
        for one in building:
            job = self._running(one.job, one.attempt)
            begun = not any((one.job, one.attempt) == (old.job, old.attempt) for old in known)
            if begun and job is not None:
                self._fold.note(one, one.since, describe_building(one, node), job)

    def _rates(self, rates: Rates, now: Instant) -> None:
        if rates.at != self._told_at:
            self.utilisation, self.rates = {}, {}
        self.rates_at, self._told_at = now, rates.at
        for rate in rates.jobs:
            job = self._running(rate.job, rate.attempt)
            if job is not None:
                self.utilisation[rate.job] = rate.utilisation
                self.rates[rate.job] = rate
                if job.row.state is not State.SUSPENDED:
                    # The introspector's window still has mini-batches of before.
                    self.courses.take(rate, rates.at)
                if rate.samples:
                    self.steady[rate.job] = rate
                _rated(job, rate)
        active = self._fold.active
        if len(self.steady) > 2 * len(active) + 100:
            self.steady = {name: rate for name, rate in self.steady.items() if name in active}

    def _running(self, name: str, attempt: int) -> Job | None:
        job = self._fold.active.get(name)
        return job if job is not None and job.row.attempt == attempt else None


def _rated(job: Job, rate: JobRate) -> None:
    row = job.row
    row.steps, row.rate_milli = rate.steps, rate.rate_milli
    if row.total_steps is not None and rate.rate_milli > 0:
        left = max(0, row.total_steps - rate.steps)
        row.eta_s = -(-left * 1000 // rate.rate_milli)
    else:
        row.eta_s = None


def age_s(at: Instant | None, now: Instant) -> float | None:
    """Return how many seconds ago something was, None if it was never."""
    return None if at is None else max(0, now - at) / NS_PER_SECOND
