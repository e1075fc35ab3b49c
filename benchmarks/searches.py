"""What a search of many trials costs its service, per event.

    python -m benchmarks searches [--trials 1000] [--method curves]

All trials stand or run at once; admission, the allocator and the jobs are a page of rules that
answers everything at once. Only the machine's decisions are timed, in CPU time of this thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, deque
from typing import Any

from skep.machines.base import Record, Restarted, Send, Tick
from skep.machines.searches import SearchesMachine
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire import codec
from skep.wire.changes import AskOver, AskSuspend, ChangeAsked, Goal, JobChanged, Result
from skep.wire.codec import Facts
from skep.wire.facts import Admitted, CancelAsked, End, JobEnded, JobRan
from skep.wire.findings import Measured
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchOver, SearchRequest

T0 = Instant(1_760_000_000 * NS_PER_SECOND)
STEPS = 600
"""Mini-batches of a trial: one in a second, and told each second."""
PARALLEL = 64


class Play:
    """A machine, the world that it thinks it is in, and how long each kind of event took."""

    def __init__(self) -> None:
        self.machine = SearchesMachine()
        self.now = T0
        self.number = 0
        self.inbox: deque[Any] = deque()
        self.running: dict[str, tuple[float, int]] = {}
        """Jobs that train: what their curve is, and their mini-batches so far."""
        self.standing: dict[str, tuple[float, int]] = {}
        self.taken_ns: dict[str, list[int]] = {}
        self.facts: Counter[str] = Counter()
        self.fact_bytes = 0
        self.over: SearchOver | None = None

    def decide(self, event: Any) -> None:
        """Have the machine decide, and follow what it wants."""
        began = time.thread_time_ns()
        effects = self.machine.decide(event, self.now)
        taken = time.thread_time_ns() - began
        name = type(event.facts[0]).__name__ if isinstance(event, Facts) else type(event).__name__
        self.taken_ns.setdefault(name, []).append(taken)
        for effect in effects:
            if isinstance(effect, Record):
                self.facts[type(effect.fact).__name__] += 1
                self.fact_bytes += len(codec.encode(effect.fact))
                if isinstance(effect.fact, SearchOver):
                    self.over = effect.fact
            elif isinstance(effect, Send):
                self._follow(effect)

    def settle(self) -> None:
        """Decide everything that waits."""
        while self.inbox:
            self.decide(self.inbox.popleft())

    def second(self) -> None:
        """Let a second pass: timers ring, jobs train, and tell."""
        until = Instant(self.now + seconds(1))
        while (wake := self.machine.wake_at()) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.decide(Tick())
            self.settle()
        self.now = until
        for job, (slope, step) in list(self.running.items()):
            if job not in self.running:
                continue  # It was suspended by what another one told.
            self.running[job] = slope, step + 1
            value = 1 - (1 + slope * (step + 1)) ** -0.5
            self.decide(
                Measured(at=self.now, job=job, attempt=1, step=step + 1, values={"accuracy": value})
            )
            self.settle()
            if step + 1 >= STEPS and job in self.running:
                del self.running[job]
                self._tell(
                    JobEnded(
                        job=job, end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=1, at=self.now
                    )
                )
        self.settle()

    def _tell(self, *facts: Any) -> None:
        self.inbox += [Facts(service="", at=self.now, facts=(fact,)) for fact in facts]

    def _follow(self, send: Send) -> None:
        self.number += 1
        kind, message = send.subject.split(".")[2], send.message
        if kind == "submit":
            job, trial = f"j{self.number}", int(message.labels["trial"])
            self.running[job] = (trial * 7919 % 1009 + 1) / 1000, 0
            self._tell(
                Admitted(
                    job=job, spec=message, submitted_at=self.now, key=send.headers["Nats-Msg-Id"]
                ),
                JobRan(job=job, attempt=1, at=self.now),
            )
        elif kind == "cancel":
            job = message["job"]
            self.running.pop(job, None)
            self.standing.pop(job, None)
            self._tell(
                CancelAsked(job=job),
                JobEnded(job=job, end=End.CANCELLED, why=Reason.CANCELLED, attempts=1, at=self.now),
            )
        elif kind == "ask":
            self._change(message)

    def _change(self, ask: Any) -> None:
        goal = Goal.SUSPEND if isinstance(ask, AskSuspend) else Goal.RESUME
        here, there = (
            (self.running, self.standing) if goal is Goal.SUSPEND else (self.standing, self.running)
        )
        if ask.job in here:
            there[ask.job] = here.pop(ask.job)
        self._tell(
            ChangeAsked(number=self.number, ask=ask, at=self.now),
            JobChanged(
                job=ask.job,
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=Reason.REQUESTED,
                at=self.now,
            ),
            AskOver(job=ask.job, number=self.number, ask=ask, result=Result.DONE, at=self.now),
        )


def spec(trials: int, method: str) -> dict[str, Any]:
    """Return the search."""
    more: dict[str, Any] = {"method": "asha", "rungs": {"first": 20, "last": STEPS, "eta": 3}}
    if method == "curves":
        more = {"exclusive": 16, "turn": 60, "steps": STEPS}
    return {
        "name": "many",
        "vc": "nlp",
        "metric": "accuracy",
        "direction": "maximize",
        "job": {"command": "train {lr}"},
        "space": {"lr": {"log": [0.0001, 1.0]}},
        "budget": {"trials": trials},
        "parallel": PARALLEL,
        "live": min(trials, 1024),
        **more,
    }


def measure(trials: int, method: str, limit_s: int) -> dict[str, Any]:
    """Return what events took, by kind, in a search that goes on for at most `limit_s`."""
    play = Play()
    play.decide(Restarted(1))
    raw = json.dumps({"do": "begin", "spec": spec(trials, method)}).encode()
    play.decide(SearchRequest(vc="nlp", raw=raw, at=T0, number=1))
    play.settle()
    passed = 0
    while play.over is None and passed < limit_s:
        play.second()
        passed += 1
    every = sorted(ns for taken in play.taken_ns.values() for ns in taken)
    kinds = {
        name: {
            "events": len(taken),
            "mean_us": round(sum(taken) / len(taken) / 1000, 1),
            "max_us": round(max(taken) / 1000, 1),
        }
        for name, taken in sorted(play.taken_ns.items())
    }
    return {
        "trials": trials,
        "method": method,
        "simulated_s": passed,
        "over": play.over is not None,
        "events": len(every),
        "mean_us": round(sum(every) / len(every) / 1000, 1),
        "p99_us": round(every[len(every) * 99 // 100] / 1000, 1),
        "max_us": round(every[-1] / 1000, 1),
        "kinds": kinds,
        "facts": sum(play.facts.values()),
        "fact_bytes": play.fact_bytes,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--method", choices=("curves", "asha"), default="curves")
    parser.add_argument("--limit", type=int, default=2_000, help="simulated seconds at most")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the cost of each kind of event."""
    return measure(given.trials, given.method, given.limit)
