"""The advisor beside a plain model of the queue."""

from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skep.machines import advisor
from skep.machines.advisor import AGE_MAX, AdvisorMachine
from skep.machines.base import Send, Tick
from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire import codec
from skep.wire.advice import ADVISED_MAX, QueueAdvice
from skep.wire.codec import Facts
from skep.wire.facts import End, JobBound, JobEnded, JobQueued, JobRequeued, Member
from skep.wire.findings import JobRate, Rates
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Resources, SizeHint

BEGIN = 1_700_000_000 * NS_PER_SECOND

specs = st.builds(
    JobSpec,
    name=st.just("a"),
    vc=st.sampled_from(["a", "b"]),
    command=st.just("x"),
    resources=st.builds(Resources, gpus=st.integers(0, 2)),
    priority=st.sampled_from([0, 0, 0, 7]),
    service_class=st.sampled_from(["guaranteed", "guaranteed", "opportunistic"]),
    size=st.builds(
        SizeHint,
        mini_batches=st.none() | st.integers(1, 1000),
        family=st.none() | st.sampled_from(["f", "g"]),
    ),
)


class AdvisorBesideModel(RuleBasedStateMachine):
    """`queued` and `running` are the model: specs by sequence, and attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = AdvisorMachine()
        self.now = BEGIN
        self.sequence = 0
        self.queued: dict[int, JobQueued] = {}
        self.running: dict[int, tuple[JobQueued, int]] = {}
        self.advice: QueueAdvice | None = None
        self.advised_at: list[int] = []

    def tell(self, *facts: Any) -> None:
        self.see(Facts(service="allocator", at=Instant(self.now), facts=facts))

    def see(self, event: Any) -> None:
        for effect in self.machine.decide(event, Instant(self.now)):
            assert isinstance(effect, Send)
            payload = codec.encode(effect.message)
            self.advice = codec.read(effect.subject, payload, {}, 0, Instant(0))
            assert self.advice == effect.message
            self.advised_at.append(self.now)
            self.judge(effect.message)

    @rule(spec=specs)
    def submit(self, spec: JobSpec) -> None:
        self.sequence += 1
        fact = JobQueued(job=f"j{self.sequence}", spec=spec, submitted_at=Instant(self.now))
        self.queued[self.sequence] = fact
        self.tell(fact)

    @precondition(lambda self: self.queued)
    @rule(data=st.data(), attempt=st.integers(1, 3))
    def bind(self, data: st.DataObject, attempt: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.queued)))
        fact = self.queued.pop(sequence)
        self.running[sequence] = fact, attempt
        member = Member(node="n", identity="i", first_rank=0, devices=((0,),))
        bound = JobBound(
            job=fact.job,
            attempt=attempt,
            order=1,
            members=(member,),
            master_port=1,
            why=Reason.BEST_FIT_ONE_NODE,
            at=Instant(self.now),
        )
        self.tell(bound)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.running)))
        fact, attempt = self.running.pop(sequence)
        self.queued[sequence] = fact
        requeued = JobRequeued(
            job=fact.job, attempt=attempt, why=Reason.NODE_LOST, counted=False, at=Instant(self.now)
        )
        self.tell(requeued)

    @precondition(lambda self: self.running or self.queued)
    @rule(
        data=st.data(),
        steps=st.integers(0, 500),
        ran_ns=st.integers(0, 100 * NS_PER_SECOND),
        end=st.sampled_from(End),
    )
    def end(self, data: st.DataObject, steps: int, ran_ns: int, end: End) -> None:
        sequence = data.draw(st.sampled_from(sorted([*self.running, *self.queued])))
        self.running.pop(sequence, None)
        self.queued.pop(sequence, None)
        ended = JobEnded(
            job=f"j{sequence}",
            end=end,
            why=Reason.SUCCEEDED,
            attempts=1,
            at=Instant(self.now),
            ran_at=Instant(self.now - ran_ns),
            steps=steps,
            step_ns=steps * 1000,
        )
        self.tell(ended)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), steps=st.integers(0, 500), rate_milli=st.integers(0, 10_000))
    def progress(self, data: st.DataObject, steps: int, rate_milli: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.running)))
        attempt = self.running[sequence][1]
        rate = JobRate(job=f"j{sequence}", attempt=attempt, steps=steps, rate_milli=rate_milli)
        self.see(Rates(at=Instant(self.now), jobs=(rate,)))

    @rule(pause=st.integers(0, 10 * NS_PER_SECOND) | st.just(30 * 60 * NS_PER_SECOND))
    def wait(self, pause: int) -> None:
        """Tick as often as the machine asks for, at most twenty times."""
        end = self.now + pause
        for _ in range(20):
            due = self.machine.wake_at()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.see(Tick())
            following = self.machine.wake_at()
            assert following is None or following > self.now, "a timer that is due is served"
        self.now = end

    def judge(self, advice: QueueAdvice) -> None:
        """Advice is the queue, permuted as promised."""
        assert advice.at == self.now < advice.expires_at
        ordered = sorted(self.queued, key=lambda each: (-self.queued[each].spec.priority, each))
        arrived = [self.queued[sequence] for sequence in ordered[:ADVISED_MAX]]
        by_name = {fact.job: fact for fact in arrived}
        assert sorted(each.job for each in advice.jobs) == sorted(by_name)
        assert any(each.remaining is not None for each in advice.jobs)
        groups: dict[Any, list[int]] = {}
        for place, (fact, advised) in enumerate(zip(arrived, advice.jobs, strict=True)):
            spec = by_name[advised.job].spec
            group = spec.vc, spec.opportunistic, spec.priority
            assert group == (fact.spec.vc, fact.spec.opportunistic, fact.spec.priority)
            assert advised.remaining == self.machine.remaining(advised.job)
            aged = self.now - fact.submitted_at > AGE_MAX
            if aged or self.machine.remaining(fact.job) is None:
                assert (advised.job, advised.why) == (fact.job, Reason.ARRIVAL)
            else:
                assert advised.why is Reason.PREDICTED_SHORTEST
                groups.setdefault((group, self.aged_before(place, arrived)), []).append(place)
        for places in groups.values():
            for earlier, later in pairwise(places):
                assert self.length(advice, earlier) <= self.length(advice, later)

    def aged_before(self, place: int, arrived: list[JobQueued]) -> int:
        """Return how many aged jobs of the same group came before: each is a barrier."""
        spec = arrived[place].spec
        return sum(
            self.now - fact.submitted_at > AGE_MAX
            and (fact.spec.vc, fact.spec.service_class, fact.spec.priority)
            == (spec.vc, spec.service_class, spec.priority)
            for fact in arrived[:place]
        )

    @staticmethod
    def length(advice: QueueAdvice, place: int) -> Duration:
        remaining = advice.jobs[place].remaining
        assert remaining is not None
        return remaining

    @invariant()
    def bounds_hold(self) -> None:
        self.machine.check()
        for earlier, later in pairwise(self.advised_at):
            assert later - earlier >= advisor.ADVISE_EVERY


AdvisorBesideModel.TestCase.settings = settings(stateful_step_count=40)
TestAdvisorBesideModel = AdvisorBesideModel.TestCase
