"""The notifier: tells people what becomes of their jobs, once each, and never holds up anything.

    JobWatched --an event--> NoticeMade --MessageBegun--> MessageTried (again, or over)

Notices wait by target and VC, in their order. One message of a target is under way at a time: it
has all notices that wait then, so that an array of a thousand tasks is some messages and not a
thousand. Its number and its notices are recorded before it is sent. So a notifier that is killed
sends at most the message of each target that was under way a second time, under the same number:
whether that was sent before cannot be known. What fails is tried again, ever later, and given up in
the end; what is too long ago is not sent.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import msgspec

from skep.machines.base import Call, Effect, Record, Restarted, Tick
from skep.units import Instant, after, seconds
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.codec import Facts, Unreadable
from skep.wire.facts import End, EpochBegan, JobEnded, JobQueued, JobRan
from skep.wire.notices import (
    JobUnwatched,
    JobWatched,
    MessageBegun,
    MessageKept,
    MessageShown,
    MessageTried,
    NoticeLost,
    NoticeMade,
    NotifierFact,
)
from skep.wire.reasons import TEXT

WAITING_MAX = 1000
"""Notices that wait for one target: beyond it further ones are lost, and that is recorded."""
BUNDLE_MAX = 100
"""Notices of one message: a page of a mail."""
TARGETS_MAX = 10_000
"""Targets that notices may wait for, of all VCs."""
JOBS_MAX = 1_000_000
"""Jobs that are watched: as many as a cluster may have unfinished."""
RETRY_AFTER = (10.0, 30.0, 90.0, 300.0, 900.0, 2700.0)
"""Seconds until a message is tried again: an hour in all, as long as a mail server restarts."""
PAUSE = seconds(5)
"""Between two messages to one target: what happens meanwhile is one message."""
OLD = seconds(24 * 3600.0)
"""Older events are not told: a notifier that lost its journal reads all jobs anew."""
LATELY_MAX = 200
"""Messages that are over and are remembered, for those that ask."""
JOBS_NAMED_MAX = 10
"""Jobs that are named of a message."""
UNDER_WAY_MAX = 8
"""Messages that are being sent at once."""

Key = tuple[str, str]
"""A VC and a target."""


class Deliver(msgspec.Struct, frozen=True):
    """Call: send a message to a target. Answered by Delivered."""

    number: int
    vc: str
    target: str
    notices: tuple[NoticeMade, ...]


class Delivered(msgspec.Struct, frozen=True):
    """A message was taken by its target, or `trouble` says why not. `final`: it never will be."""

    number: int
    vc: str
    target: str
    trouble: str = ""
    final: bool = False


NotifierEvent = Facts | Unreadable | Delivered
"""What the notifier takes from outside, and what comes of its messages."""


class Queue(msgspec.Struct):
    """What waits for one target; the first `count` are the message `number` (0: none)."""

    notices: deque[NoticeMade] = msgspec.field(default_factory=deque)
    number: int = 0
    count: int = 0
    tries: int = 0
    trouble: str = ""
    next_at: Instant = Instant(0)
    """Before that nothing is sent."""

    @property
    def begun(self) -> tuple[NoticeMade, ...]:
        """Return the notices of the message that is not over."""
        return tuple(islice(self.notices, self.count))


class NotifierMachine:
    """The behaviour of the notifier."""

    def __init__(self) -> None:
        """Start with nothing to tell."""
        self.jobs: dict[str, JobWatched] = {}
        self.started: dict[str, None] = {}
        """Jobs of which it was told, or needed not be told, that they run."""
        self.queues: dict[Key, Queue] = {}
        self.lately: deque[MessageKept] = deque(maxlen=LATELY_MAX)
        self.number = 0
        self.due: dict[str, Instant] = {}
        """When jobs are late that have yet to end."""
        self.open_at: dict[Key, Instant] = {}
        """Before that nothing more is sent to a target: what happens meanwhile is one message."""
        self.under_way: dict[Key, None] = {}
        """Soft: the messages that are being sent."""
        self._effects: list[Effect] = []

    # --- decisions -------------------------------------------------------------------------------

    def decide(
        self, event: Facts | Unreadable | Delivered | Restarted | Tick, now: Instant
    ) -> list[Effect]:
        """Return the facts and messages that follow from an event."""
        self._effects = []
        match event:
            case Facts():
                for fact in event.facts:
                    self._heard(fact, now)
            case Delivered():
                self._delivered(event, now)
            case Restarted():
                self.under_way = {}
            case Tick():
                for job, due in [each for each in self.due.items() if each[1] <= now]:
                    self._tell(job, "late", "is late: its `finish_by` has passed", due, now)
            case Unreadable():
                pass
        if self._effects or not isinstance(event, Facts):
            self._send(now)
        return self._effects

    def wake_at(self) -> Instant | None:
        """Return when a message may be sent, or a job is late."""
        times = [*self.due.values()]
        if len(self.under_way) < UNDER_WAY_MAX:
            times += [
                max(queue.next_at, self.open_at.get(key, Instant(0)))
                for key, queue in self.queues.items()
                if queue.notices and key not in self.under_way
            ]
        return min(times, default=None)

    def _heard(self, fact: object, now: Instant) -> None:
        match fact:
            case JobQueued(spec=spec) if spec.notify is not None and fact.job not in self.jobs:
                if len(self.jobs) >= JOBS_MAX:
                    return
                self._record(
                    JobWatched(
                        job=fact.job,
                        name=spec.name,
                        vc=spec.vc,
                        owner=fact.owner,
                        to=spec.notify.to,
                        on=spec.notify.on,
                        due=Instant(spec.promise.due) if spec.promise is not None else Instant(0),
                    )
                )
            case JobRan() if fact.job in self.jobs and fact.job not in self.started:
                self._tell(fact.job, "start", "runs", fact.at, now)
            case JobChanged(goal=Goal.SUSPEND, result=Result.DONE) if fact.job in self.jobs:
                what = "and holds no GPUs" if fact.released else "and keeps its GPUs"
                text = f"is suspended, {what}: {_why(fact.why, fact.detail)}"
                self._tell(fact.job, "suspend", text, fact.at, now)
            case JobEnded() if fact.job in self.jobs:
                on = self.jobs[fact.job].on
                failed = fact.end is End.FAILED and "end" not in on
                text = f"{fact.end}: {_why(fact.why, fact.detail)}"
                self._tell(fact.job, "fail" if failed else "end", text, fact.at, now)
                self._record(JobUnwatched(job=fact.job))
            case _:
                pass

    def _tell(self, job: str, event: str, text: str, at: Instant, now: Instant) -> None:
        """Have an event wait for the targets of a job that wants to be told of it."""
        known = self.jobs[job]
        if event not in known.on:
            return
        for target in dict.fromkeys(known.to):
            queue = self.queues.get((known.vc, target))
            why = ""
            if now - at > OLD:
                why = "it is more than a day ago"
            elif queue is None and len(self.queues) >= TARGETS_MAX:
                why = f"notices wait for {TARGETS_MAX} targets already"
            elif queue is not None and len(queue.notices) >= WAITING_MAX:
                why = f"{WAITING_MAX} notices wait for the target already"
            whose = f" of {known.owner}" if known.owner else ""
            line = f"{job} ({known.name}){whose} in {known.vc} {text}"
            self._record(
                NoticeLost(job=job, event=event, vc=known.vc, target=target, why=why, at=at)
                if why
                else NoticeMade(job=job, event=event, vc=known.vc, target=target, text=line, at=at)
            )

    def _send(self, now: Instant) -> None:
        """Begin the messages that may be sent now, and repeat those whose time has come."""
        self.open_at = {key: at for key, at in self.open_at.items() if at > now}
        for key, queue in self.queues.items():
            if len(self.under_way) >= UNDER_WAY_MAX:
                return
            if key in self.under_way or key in self.open_at or queue.next_at > now:
                continue
            if not queue.count:
                count = min(len(queue.notices), BUNDLE_MAX)
                number = self.number + 1
                self._record(MessageBegun(number=number, vc=key[0], target=key[1], count=count))
            self.under_way[key] = None
            self._effects.append(Call(Deliver(queue.number, *key, queue.begun)))

    def _delivered(self, event: Delivered, now: Instant) -> None:
        """Take it that a message was sent, or was not: then it is tried again, or given up."""
        key = event.vc, event.target
        queue = self.queues.get(key)
        if queue is None or queue.number != event.number or not queue.count:
            return
        self.under_way.pop(key, None)
        again_at = Instant(0)
        if event.trouble and not event.final and queue.tries < len(RETRY_AFTER):
            again_at = after(now, seconds(RETRY_AFTER[queue.tries]))
        self._record(
            MessageTried(
                number=event.number,
                vc=event.vc,
                target=event.target,
                at=now,
                trouble=event.trouble,
                again_at=again_at,
                open_at=after(now, PAUSE),
            )
        )

    def _record(self, fact: NotifierFact) -> None:
        self.apply(fact)
        self._effects.append(Record(fact))

    # --- facts -----------------------------------------------------------------------------------

    def apply(self, fact: NotifierFact) -> None:
        """Take over one fact."""
        match fact:
            case EpochBegan():
                pass
            case JobWatched():
                self.jobs[fact.job] = fact
                if fact.started:
                    self.started[fact.job] = None
                if fact.due and "late" in fact.on:
                    self.due[fact.job] = fact.due
            case JobUnwatched():
                del self.jobs[fact.job]
                self.started.pop(fact.job, None)
                self.due.pop(fact.job, None)
            case NoticeMade():
                self._seen(fact.job, fact.event)
                self.queues.setdefault((fact.vc, fact.target), Queue()).notices.append(fact)
            case NoticeLost():
                self._seen(fact.job, fact.event)
                self.lately.append(
                    MessageKept(
                        number=0,
                        vc=fact.vc,
                        target=fact.target,
                        at=fact.at,
                        tries=0,
                        trouble=fact.why,
                        notices=1,
                        jobs=(fact.job,),
                        over=True,
                    )
                )
            case MessageBegun():
                queue = self.queues[fact.vc, fact.target]
                queue.number, queue.count, queue.tries = fact.number, fact.count, 0
                queue.trouble, self.number = "", max(self.number, fact.number)
            case MessageTried():
                self._apply_tried(fact)
            case MessageKept(over=True):
                self.lately.append(fact)
                self.number = max(self.number, fact.number)
            case MessageKept():
                queue = self.queues[fact.vc, fact.target]
                queue.tries, queue.trouble, queue.next_at = fact.tries, fact.trouble, fact.again_at

    def _seen(self, job: str, event: str) -> None:
        if event == "start":
            self.started[job] = None
        elif event == "late":
            self.due.pop(job, None)

    def _apply_tried(self, fact: MessageTried) -> None:
        key = fact.vc, fact.target
        queue = self.queues[key]
        queue.tries, queue.trouble, queue.next_at = queue.tries + 1, fact.trouble, fact.again_at
        self.open_at[key] = fact.open_at
        if fact.again_at:
            return
        self.lately.append(_kept(key, queue, fact.at, over=True))
        for _ in range(queue.count):
            queue.notices.popleft()
        queue.number = queue.count = 0
        if not queue.notices:
            del self.queues[key]

    def snapshot(self) -> list[NotifierFact]:
        """Return the facts that rebuild this state: what a compacted journal holds."""
        facts: list[NotifierFact] = [*self.lately]
        for job in self.jobs.values():
            due, started = self.due.get(job.job, Instant(0)), job.job in self.started
            facts.append(msgspec.structs.replace(job, due=due, started=started))
        for key, queue in self.queues.items():
            facts += queue.notices
            if queue.count:
                number, count = queue.number, queue.count
                facts.append(MessageBegun(number=number, vc=key[0], target=key[1], count=count))
                facts.append(_kept(key, queue, queue.next_at, over=False))
        return facts

    def check(self) -> None:
        """Assert that what is under way waits, and that no bound is passed.

        Raises:
            AssertionError: One of them does not hold.
        """
        assert len(self.under_way) <= UNDER_WAY_MAX
        assert len(self.queues) <= TARGETS_MAX
        for key, queue in self.queues.items():
            assert queue.notices, key
            assert queue.count <= len(queue.notices) <= WAITING_MAX, key
            assert bool(queue.number) == bool(queue.count), key
        for key in self.under_way:
            assert key in self.queues, key
            assert self.queues[key].count, key
        for job in (*self.due, *self.started):
            assert job in self.jobs, job

    # --- what people see -------------------------------------------------------------------------

    def shown(self, vc: str | None) -> list[MessageShown]:
        """Return the messages of a VC (None: of all), those that wait first, then the latest.

        Args:
            vc: The VC.
        """
        waiting = [
            _shown(_kept(key, queue, queue.notices[-1].at, over=False), len(queue.notices))
            for key, queue in self.queues.items()
            if vc in (None, key[0])
        ]
        over = [
            _shown(each, each.notices) for each in reversed(self.lately) if vc in (None, each.vc)
        ]
        return [*waiting, *over][:LATELY_MAX]

    def waiting(self, vc: str | None) -> int:
        """Return how many notices of a VC (None: of all) wait."""
        found = (queue for key, queue in self.queues.items() if vc in (None, key[0]))
        return sum(len(queue.notices) for queue in found)


def _why(why: object, detail: str) -> str:
    text = TEXT.get(why, str(why))  # type: ignore[call-overload]
    return f"{text} ({detail})" if detail else str(text)


def _kept(key: Key, queue: Queue, at: Instant, *, over: bool) -> MessageKept:
    told = queue.begun
    jobs = dict.fromkeys(notice.job for notice in told)
    return MessageKept(
        number=queue.number,
        vc=key[0],
        target=key[1],
        at=at,
        tries=queue.tries,
        trouble=queue.trouble,
        notices=len(told),
        jobs=tuple(islice(jobs, JOBS_NAMED_MAX)),
        again_at=queue.next_at,
        over=over,
    )


def _shown(kept: MessageKept, notices: int) -> MessageShown:
    state = "waiting"
    if kept.over:
        state = ("lost" if not kept.number else "failed") if kept.trouble else "sent"
    return MessageShown(
        number=kept.number,
        vc=kept.vc,
        target=kept.target,
        state=state,
        at=kept.at,
        tries=kept.tries,
        notices=notices,
        jobs=kept.jobs,
        trouble=kept.trouble,
        again_at=Instant(0) if kept.over else kept.again_at,
    )


assert seconds(RETRY_AFTER[0]) > PAUSE
