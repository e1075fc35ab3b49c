"""A plain world for searches: admission, allocator and jobs as a page of rules, over a bad net.

What the machine sends lies in `air` until it is delivered, once, several times, late or never.
What admission and the allocator decide is read from their streams, each at a pace of its own.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from skep.machines.base import Effect, Restarted, Send, Tick
from skep.machines.searches import SearchesMachine
from skep.units import Instant
from skep.wire import subjects
from skep.wire.changes import AskOver, AskSuspend, ChangeAsked, Goal, JobChanged, Result
from skep.wire.codec import Facts
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    End,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    Refused,
    Repeated,
)
from skep.wire.findings import Measured
from skep.wire.reasons import Reason
from skep.wire.search import SearchSpec, parse_search_tree
from skep.wire.search_facts import SearchOver, SearchRequest, SearchVerdict
from skep.wire.spec import JobSpec, Problem
from tests.kit import Driver

REPLY = "_INBOX.vc-nlp.x"


def tree(**changes: Any) -> dict[str, Any]:
    """Return a search as its owner writes it: a rate to find, 6 trials, 2 at a time."""
    given = {
        "name": "find",
        "vc": "nlp",
        "metric": "accuracy",
        "direction": "maximize",
        "job": {"script": "train.py", "args": ["--lr={lr}"]},
        "space": {"lr": {"log": [0.001, 1.0]}},
        "budget": {"trials": 6},
        "parallel": 2,
        "turn": "10s",
    }
    return {**given, **changes}


def search(**changes: Any) -> SearchSpec:
    """Return a search as it is read."""
    parsed = parse_search_tree(tree(**changes))
    assert isinstance(parsed, SearchSpec), parsed
    return parsed


class Job(msgspec.Struct):
    """A job as the allocator of this world has it."""

    job: str
    spec: JobSpec
    state: str = "queued"
    ask: ChangeAsked | None = None
    step: int = 0


class World:
    """Everything outside the machine."""

    def __init__(self, gpus: int = 8) -> None:
        self.driver = Driver(SearchesMachine)
        self.gpus = gpus
        self.number = 0
        self.air: list[Send] = []
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, str] = {}
        self.refuse: Reason | None = None
        self.fixed = False
        self.admission: list[Any] = []
        self.alloc: list[Any] = []
        self.read = [0, 0]
        self.deaf = False
        """The process dies between its facts and its sends."""
        self.driver.restart(0)

    @property
    def machine(self) -> SearchesMachine:
        return self.driver.machine

    @property
    def now(self) -> Instant:
        return self.driver.now

    def over(self) -> dict[str, SearchOver]:
        return {fact.search: fact for fact in self.driver.facts if isinstance(fact, SearchOver)}

    def event(self, event: Any, second: float | None = None) -> list[Effect]:
        effects = self.driver(event, second)
        if self.deaf:
            self.deaf = False
            self.restart()
        else:
            self.take(effects)
        return effects

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and not isinstance(effect.message, SearchVerdict):
                self.air.append(effect)

    def restart(self) -> None:
        self.take(self.driver.restart())

    def ask(self, vc: str = "nlp", key: str = "", **request: Any) -> SearchVerdict:
        self.number += 1
        asked = SearchRequest(
            vc=vc,
            raw=json.dumps(request).encode(),
            at=self.now,
            key=key,
            number=self.number,
            reply=f"_INBOX.vc-{vc}.x",
        )
        verdict: SearchVerdict
        (verdict,) = [
            effect.message
            for effect in self.event(asked)
            if isinstance(effect, Send) and effect.subject == asked.reply
        ]
        return verdict

    def begin(self, key: str = "", **changes: Any) -> str:
        self.ask(key=key, do="begin", spec=tree(**changes))
        return f"s{self.number}"

    # --- admission ---------------------------------------------------------------------------

    def deliver(self, send: Send) -> None:
        self.number += 1
        kind = send.subject.split(".")[2]
        raw = msgspec.json.encode(send.message)
        if kind == "submit":
            self._submit(msgspec.json.decode(raw, type=JobSpec), send.headers[subjects.KEY_HEADER])
        elif kind == "cancel":
            job = self.jobs[json.loads(raw)["job"]]
            if job.state != "ended":
                self.admission.append(CancelAsked(job=job.job))
                self.end(job, End.CANCELLED, Reason.CANCELLED)
        else:
            job = self.jobs[send.message.job]
            if job.state != "ended":
                asked = ChangeAsked(number=self.number, ask=send.message, at=self.now)
                self.admission.append(asked)
                self._change(job, asked)

    def _submit(self, spec: JobSpec, key: str) -> None:
        job = f"j{self.number}"
        if key in self.keys:
            self.admission.append(Repeated(job=job, original=self.keys[key], vc=spec.vc))
            return
        self.keys[key] = job
        if self.refuse is not None:
            problem = Problem(path="$", reason=self.refuse, text="no")
            self.admission.append(
                Refused(job=job, vc=spec.vc, problems=(problem,), key=key, submitted_at=self.now)
            )
            return
        self.jobs[job] = Job(job, spec)
        self.admission.append(Admitted(job=job, spec=spec, submitted_at=self.now, key=key))
        self.alloc.append(JobQueued(job=job, spec=spec, submitted_at=self.now))

    # --- allocator ---------------------------------------------------------------------------

    def _change(self, job: Job, asked: ChangeAsked) -> None:
        if job.ask is not None:
            self._answer(job, job.ask, Result.OVERTAKEN, Reason.OVERTAKEN)
            job.ask = None
        if job.state == "queued":
            self._answer(job, asked, Result.REFUSED, Reason.NOT_RUNNING)
        elif isinstance(asked.ask, AskSuspend):
            if self.fixed:
                self._answer(job, asked, Result.REFUSED, Reason.CANNOT)
                return
            if job.state == "running":
                job.state = "suspended"
                self._changed(job, Goal.SUSPEND)
            self._answer(job, asked, Result.DONE)
        elif job.state == "suspended":
            job.ask = asked
        else:
            self._answer(job, asked, Result.DONE)

    def _answer(
        self, job: Job, asked: ChangeAsked, result: Result, why: Reason | None = None
    ) -> None:
        self.alloc.append(
            AskOver(
                job=job.job, number=asked.number, ask=asked.ask, result=result, why=why, at=self.now
            )
        )

    def _changed(self, job: Job, goal: Goal) -> None:
        self.alloc.append(
            JobChanged(
                job=job.job,
                attempt=1,
                goal=goal,
                result=Result.DONE,
                why=Reason.REQUESTED,
                at=self.now,
            )
        )

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "running"]

    def start(self) -> bool:
        """Give free GPUs to the first job that waits for some."""
        waiting = [job for job in self.jobs.values() if job.state == "queued" or job.ask]
        if not waiting or len(self.running()) >= self.gpus:
            return False
        job = waiting[0]
        if job.state == "queued":
            self.alloc.append(JobRan(job=job.job, attempt=1, at=self.now))
        else:
            asked, job.ask = job.ask, None
            assert asked is not None
            self._changed(job, Goal.RESUME)
            self._answer(job, asked, Result.DONE)
        job.state = "running"
        return True

    def lose(self, job: Job) -> None:
        """Lose a job's node: it is queued again."""
        job.state, job.ask = "queued", None
        self.alloc.append(
            JobRequeued(job=job.job, attempt=1, why=Reason.NODE_LOST, counted=False, at=self.now)
        )

    def end(self, job: Job, end: End, why: Reason, step: int = 0, value: float = 0.0) -> None:
        values = {"accuracy": value} if step else {}
        if job.ask is not None:
            self._answer(job, job.ask, Result.OVERTAKEN, Reason.OVERTAKEN)
        job.state, job.ask = "ended", None
        self.alloc.append(
            JobEnded(
                job=job.job,
                end=end,
                why=why,
                attempts=1,
                at=self.now,
                values=values,
                values_step=step,
            )
        )

    # --- what the machine hears --------------------------------------------------------------

    def read_one(self, which: int) -> bool:
        stream = (self.admission, self.alloc)[which]
        if self.read[which] >= len(stream):
            return False
        fact = stream[self.read[which]]
        self.read[which] += 1
        self.event(Facts(service=("admission", "allocator")[which], at=self.now, facts=(fact,)))
        return True

    def measure(self, job: Job, step: int, value: float, name: str = "accuracy") -> None:
        job.step = max(job.step, step)
        self.event(Measured(at=self.now, job=job.job, attempt=1, step=step, values={name: value}))

    def settle(self) -> None:
        """Deliver and read everything there is, without time going on."""
        going = True
        while going:
            going = False
            while self.air:
                self.deliver(self.air.pop(0))
                going = True
            while self.start():
                going = True
            while self.read_one(0) or self.read_one(1):
                going = True

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and the machine's timer ring whenever it asks for it."""
        until = Instant(self.now + round(seconds * 10**9))
        self.settle()
        while (wake := self.machine.wake_at()) is not None and wake <= until:
            self.driver.now = max(self.now, wake)
            self.event(Tick())
            self.settle()
        self.driver.now = until

    def trial(self, number: int, name: str = "") -> Any:
        found = self.machine.searches[name or next(iter(self.machine.searches))]
        return found.trials[number]

    def job_of(self, number: int) -> Job:
        return next(job for job in self.jobs.values() if job.spec.labels["trial"] == str(number))


__all__ = ["REPLY", "Job", "Restarted", "World", "search", "tree"]
