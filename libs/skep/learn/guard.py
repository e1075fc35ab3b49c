"""The guard of learned models: how far each has come in a VC, by what was measured there.

    shadow --nothing looks worse--> switchback --not worse, measured--> on
       ^          measured worse, or faults again and again: off           |
       +---------------- after a while ---------- off <--------------------+

In shadow a model's advice is compared with what the rule does. In a switchback the model and the
rule take turns, in blocks whose order is drawn: one period in four is the model's in the first
blocks, then one in two. Jobs count for the period in which they came, and the first part of a
period, in which the jobs of the one before run on, counts for neither. A block gives one
difference, so jobs that hinder one another are one sample. The blocks' mean has an interval by
Student's t, which is looked at after LOOKS blocks; harm ends it earlier. When a model is on, one
period in eight stays the rule's, so that a regression is measured as well.

What turns have cost is counted for ever: as soon as it is more than WORSE_MILLI of the time since
the model was named, there are no more of them, and the next ones come once it is half of that. A
model that begins jobs otherwise than the rule, so that no hindsight tells what it would come to,
has its first turn when one that takes twice as long would cost no more.

What must not be forgotten is facts. What a block is made of is read again from the allocator's log.

Sources: Bojinov, Simchi-Levi and Zhao, Design and Analysis of Switchback Experiments (2023); Wu,
Shariff, Lattimore and Szepesvari, Conservative Bandits (ICML 2016), for what turns may cost.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skep.units import Duration, Instant, after, seconds
from skep.wire.bounds import INSTANT_MAX
from skep.wire.cluster import Cluster
from skep.wire.facts import End, JobBound, JobEnded, JobQueued
from skep.wire.following import (
    AdviceFollowed,
    BlockMeasured,
    GuardFact,
    GuardStage,
    ShadowSeen,
    StageSet,
    models_named,
)
from skep.wire.learned import Stage
from skep.wire.reasons import Reason

MILLI = 1000
LOOKS = (8, 16)
"""Valid blocks after which a switchback is judged; behind the last one there is no verdict."""
HARM_FROM = 4
"""Blocks from which on harm ends it, at a stricter level: it is looked at after each."""
BLOCKS_ON = 16
"""The latest blocks by which a model that is on is judged."""
BLOCKS_KEPT = 32
"""The latest blocks that are kept. A switchback has no more, whether they are valid or not: none
drops out of its looks, so each number of valid blocks is looked at once."""
assert max(BLOCKS_ON, *LOOKS) <= BLOCKS_KEPT
CAREFUL, TURNS_CAREFUL = 4, 4
TURNS = 2
TURNS_ON = 8
"""Periods of a block: in a switchback one is the model's, of more in its first CAREFUL blocks; and
when it is on all but one."""
WASHOUT = 4
"""The first part of a period that counts for neither: a fourth."""
JOBS_MIN = 3
"""Jobs of a block under the model, and under the rule, without which it says nothing."""
WORSE_MILLI = 20
"""By how much worse a model may be and count as not worse: 2 %."""
COST_MAX = 10.0
"""Periods of the rule that one of a model may cost: a longer one is wrongly measured."""
UNLIKE_PERIODS = MILLI // WORSE_MILLI
"""Periods before the first turn of a model that begins more than WORSE_MILLI of the jobs earlier,
in another size or less close together than the rule: one of them may cost many times its length."""
DECISIONS_MIN, DECISIONS_ALIKE, ALIKE_OF_TEN = 20, 200, 9
"""Decisions of the rule that are compared before a model leaves the shadow, with PAIRS_MIN choices
that differ, or without: a model that chooses the same nine times in ten does little harm. One that
does not has to be shown to choose shorter jobs."""
TOLD_EVERY = 10
"""Compared decisions between two facts about them: what a crash may forget."""
COOLS_PERIODS = 6
"""Periods for which a model that was found worse is not tried again."""
FAULTS_MAX, FAULTS_WITHIN = 5, seconds(3600.0)
FAULTS = frozenset(
    (
        Reason.ADVICE_BROKEN,
        Reason.ADVICE_LATE,
        Reason.BEYOND_TRAINING,
        Reason.NO_MODEL,
        Reason.OTHER_SCHEMA,
        Reason.WAITED_TOO_LONG,
    )
)
JOBS_KEPT = 100_000
OTHERS_KEPT = 8
"""Jobs that a model would have begun in place of one: the first of them is compared with it."""
PAIRS_KEPT = 1000
"""Pairs that wait for the ends of their jobs; and choices that wait for the log, the latest."""
PAIRS_MIN = 10
"""Pairs without which hindsight says nothing: a few may all be alike."""
KNOWN_MAX = 200
"""Models in VCs that are remembered beside those that VCs name now."""
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120),
)
T_995 = (
    *(63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
    *(3.106, 3.055, 3.012, 2.977, 2.947, 2.921),
)
"""Quantiles of Student's t, by degrees of freedom from 1 on."""
SHADOW_S, PERIOD_S = 86_400.0, 14_400.0
"""How long a model is in shadow at least, and a period lasts, unless the VC says otherwise."""


class Interval(NamedTuple):
    """A mean and where it lies, in thousandths."""

    mean: int
    low: int
    high: int
    samples: int


def interval(values: Sequence[float], quantiles: Sequence[float]) -> Interval | None:
    """Return the mean of independent values and its interval by Student's t; None: too few.

    Args:
        values: Thousandths.
        quantiles: By degrees of freedom, from 1 on; the last one stands for all beyond.
    """
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    variance = sum((each - mean) ** 2 for each in values) / (count - 1)
    half = quantiles[min(count - 1, len(quantiles)) - 1] * math.sqrt(variance / count)
    return Interval(round(mean), math.floor(mean - half), math.ceil(mean + half), count)


class Sum:
    """How long jobs of one kind of period took, and how long they would have alone."""

    def __init__(self) -> None:
        """Begin with none."""
        self.jobs, self.known, self._took, self._expected = 0, 0, 0.0, 0.0

    def add(self, took: int, expected: float) -> None:
        """Count a job.

        Args:
            took: From its submission to its end, in nanoseconds.
            expected: How long its owner says that it runs; 0: not known.
        """
        self.jobs, self.known = self.jobs + 1, self.known + (expected > 0)
        self._took, self._expected = self._took + max(took, 1), self._expected + expected

    def level(self) -> float:
        """Return the logarithm of their mean time, in units of what they would take if known."""
        alone = self._expected if self.known == self.jobs else float(self.jobs)
        return math.log(self._took / alone)


class Came(NamedTuple):
    """A job of a VC that is watched: when it came, and how long its owner says that it runs."""

    at: Instant
    expected: float


class Choice(NamedTuple):
    """What a model would have done where its rule began a job."""

    agreed: bool
    """It would have begun the job."""
    alike: bool
    """With as many workers, and as close together."""
    others: tuple[str, ...]
    """The jobs that it would have begun instead, the first one first."""


class Watched:
    """A model in a VC, and what was measured of it in its stage."""

    def __init__(self, vc: str, model: str) -> None:
        """Begin before its first stage.

        Args:
            vc: The VC.
            model: The hash of the model that its policy names.
        """
        self.vc, self.model = vc, model
        self.wanted = "auto"
        self.shadow, self.period = seconds(SHADOW_S), seconds(PERIOD_S)
        self.said: StageSet | None = None
        self.seen = ShadowSeen(vc=vc, model=model, at=Instant(0), decisions=0, agreed=0)
        self.told = 0
        """`seen.decisions` as it was recorded last."""
        self.blocks: list[BlockMeasured] = []
        self.faults: list[Instant] = []
        self.came: dict[str, Came] = {}
        """Its unfinished jobs, and those of blocks that are not measured yet."""
        self.ended: dict[str, Instant | None] = {}
        """When those have ended; None: not as they should."""
        self.pairs: dict[str, tuple[str, str]] = {}
        """By job that the rule began: that and the job that the model would have begun."""
        self.bound: dict[str, Instant] = {}
        """Jobs of `came` that the log says were begun, and when, that are not compared yet."""
        self.choices: dict[str, Choice] = {}
        """By job that a sight says was begun, but not the log yet."""
        self.work: dict[str, float] = {}
        """How much GPU time the jobs of pairs took, as far as they have ended."""

    @property
    def stage(self) -> GuardStage:
        """Return how far it has come."""
        return self.said.stage if self.said is not None else "shadow"

    @property
    def since(self) -> Instant:
        """Return since when."""
        return self.said.at if self.said is not None else Instant(0)

    def options(self, given: Mapping[str, Any]) -> None:
        """Follow the options of the VC's policy."""
        self.wanted = str(given.get("stage", "auto"))
        self.shadow = seconds(max(_number(given, "shadow_s", SHADOW_S), 0.0))
        self.period = seconds(max(_number(given, "period_s", PERIOD_S), 1.0))

    def acts(self, now: Instant) -> bool:
        """Return whether the model has its turn, in a stage in which it and the rule take turns."""
        return self.is_models((now - self.since) // self.period)

    def is_models(self, number: int) -> bool:
        """Return whether a period is the model's: which one of a block is the other's is drawn."""
        block, place = self._block_of(number)
        text = f"{self.vc}/{self.model}/{self.since}/{block}"
        turns = self._begins(block + 1) - self._begins(block)
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % turns
        return (place == drawn) == (turns == TURNS_CAREFUL)

    def _block_of(self, number: int) -> tuple[int, int]:
        """Return in which block a period is, and its place there."""
        if self.stage == "on":
            return divmod(number, TURNS_ON)
        careful = self._begins(CAREFUL)
        if number < careful:
            return divmod(number, TURNS_CAREFUL)
        block, place = divmod(number - careful, TURNS)
        return block + CAREFUL, place

    def _begins(self, block: int) -> int:
        """Return how many periods there are before a block."""
        if self.stage == "on":
            return TURNS_ON * block
        return TURNS_CAREFUL * min(block, CAREFUL) + TURNS * max(block - CAREFUL, 0)

    @property
    def compares_enough(self) -> bool:
        """Return whether enough of its choices were compared to leave the shadow."""
        seen = self.seen
        agrees = ALIKE_OF_TEN * seen.decisions <= 10 * seen.agreed
        if seen.pairs < PAIRS_MIN:
            return seen.decisions >= DECISIONS_ALIKE and agrees
        found = self.hindsight()
        return seen.decisions >= DECISIONS_MIN and (agrees or found.low > 0 or found.high < 0)

    def turns_from(self, now: Instant) -> Instant:
        """Return from when on a model in shadow may take turns, if enough was compared.

        Args:
            now: The present instant.
        """
        assert self.said is not None, self.vc
        spent = Duration(max(self.said.spent, 0) * 2 * MILLI // WORSE_MILLI)
        times = [self.said.until, after(self.since, self.shadow), after(self.named_at, spent)]
        if (self.seen.agreed - self.seen.alike) * MILLI > WORSE_MILLI * self.seen.decisions:
            times.append(after(self.named_at, Duration(UNLIKE_PERIODS * self.period)))
        recent = self.recent_faults(now)
        if len(recent) >= FAULTS_MAX:
            times.append(after(recent[-FAULTS_MAX], self.faults_within))
        return min(max(times), Instant(INSTANT_MAX))

    def recent_faults(self, now: Instant) -> list[Instant]:
        """Return when there were faults, in an hour or a period."""
        return [at for at in self.faults if after(at, self.faults_within) > now]

    @property
    def faults_within(self) -> Duration:
        """Return for how long a fault counts."""
        return max(FAULTS_WITHIN, self.period)

    # --- what turns cost -------------------------------------------------------------------------

    @property
    def named_at(self) -> Instant:
        """Return since when the model is watched."""
        return (self.said.named_at or self.said.at) if self.said is not None else Instant(0)

    def spent(self) -> int:
        """Return what its turns in switchbacks have cost: in nanoseconds of a period of the rule's.

        A turn that had no valid block costs nothing.
        """
        before = self.said.spent if self.said is not None else 0
        if self.stage != "switchback" or self.outdated:
            return before
        gains = (each.gain_milli / MILLI for each in self.blocks if each.valid)
        costs = (min(math.exp(min(-gain, COST_MAX)) - 1.0, COST_MAX) for gain in gains)
        return before + round(self.period * sum(costs))

    @property
    def outdated(self) -> bool:
        """Return whether it takes turns in blocks of an older version, which are not as long.

        That did not say since when a model is watched.
        """
        said = self.said
        return said is not None and said.stage == "switchback" and not said.named_at

    def overspent(self, now: Instant) -> bool:
        """Return whether that is more than a model may be worse."""
        return self.spent() * MILLI > WORSE_MILLI * (now - self.named_at)

    # --- shadow ----------------------------------------------------------------------------------

    def compared(self, begun: Mapping[str, bool], chosen: Sequence[str], at: Instant) -> None:
        """Compare the jobs that the rule began with those that the model would have.

        A job counts once the log says as well that it was begun: anybody may send a sight. Which
        of the two comes first is no matter.

        Args:
            begun: The jobs that the rule began, and whether the model would have so too.
            chosen: The jobs that the model would have begun, the first one first.
            at: When that was.
        """
        others = tuple(job for job in chosen if job not in begun)[:OTHERS_KEPT]
        for job, alike in begun.items():
            agreed = job in chosen
            self.choices.pop(job, None)
            self.choices[job] = Choice(agreed, alike, () if agreed else others)
            self._count(job, at)
        while len(self.choices) > PAIRS_KEPT:
            del self.choices[next(iter(self.choices))]

    def begins(self, job: str, at: Instant) -> None:
        """Take over that the log says that a job was begun.

        Args:
            job: The job.
            at: When that was.
        """
        if job in self.came and job not in self.ended:
            self.bound[job] = at
            self._count(job, at)

    def _count(self, job: str, at: Instant) -> None:
        """Count a decision, if both a sight and the log have said it."""
        if job not in self.bound or job not in self.choices:
            return
        began, choice = self.bound.pop(job), self.choices.pop(job)
        others = (other for other in choice.others if other in self.came)
        # Between two sights jobs come of which the rule did not know.
        known = [other for other in others if self.came[other].at <= began]
        if choice.others and not known:
            return
        self.seen = msgspec.structs.replace(
            self.seen,
            at=at,
            decisions=self.seen.decisions + 1,
            agreed=self.seen.agreed + choice.agreed,
            alike=self.seen.alike + choice.alike,
        )
        taken = {other for _, other in self.pairs.values()}
        other = next((each for each in known if each not in taken), "")
        # A job that is not followed never ends, and its pair would stay for ever.
        if other and len(self.pairs) < PAIRS_KEPT:
            self.pairs[job] = job, other

    def ends(self, fact: JobEnded, gpus: int) -> None:
        """Take over that a job has ended.

        Args:
            fact: Its end.
            gpus: How many it asked for.
        """
        self.bound.pop(fact.job, None)
        self.choices.pop(fact.job, None)
        if fact.job not in self.came:
            return
        good = fact.end is End.SUCCEEDED and fact.ran_at > 0
        self.ended[fact.job] = fact.at if good else None
        self.work[fact.job] = float(max(fact.at - fact.ran_at, 0) * gpus) if good else 0.0
        for name, (one, other) in list(self.pairs.items()):
            if one in self.work and other in self.work:
                del self.pairs[name]
                self._compare(self.work[one], self.work[other])
        # While the log is read again, jobs of long ago would leave no room for those of the block.
        if self.stage in ("shadow", "off") or self.came[fact.job].at < self._next_begins():
            self.forget()

    def _compare(self, rules: float, models: float) -> None:
        """Take over by how much shorter the model's choice of two was, in hindsight."""
        if rules <= 0 or models <= 0:
            return
        gain = (rules - models) / (rules + models)
        self.seen = msgspec.structs.replace(
            self.seen,
            pairs=self.seen.pairs + 1,
            sum_milli=self.seen.sum_milli + round(gain * MILLI),
            square_milli=self.seen.square_milli + round(gain * gain * MILLI),
        )

    def hindsight(self) -> Interval:
        """Return by how much shorter the model's choices were, with a normal interval of 95 %."""
        count = self.seen.pairs
        if count < 2:
            return Interval(0, -MILLI, MILLI, count)
        mean = self.seen.sum_milli / count
        variance = max(self.seen.square_milli * MILLI / count - mean * mean, 0.0)
        half = 1.96 * math.sqrt(variance / (count - 1))
        return Interval(round(mean), math.floor(mean - half), math.ceil(mean + half), count)

    # --- blocks ----------------------------------------------------------------------------------

    def measure(self, now: Instant) -> BlockMeasured | None:
        """Return what came of the next block, once it is over and its jobs had time to end."""
        block = self._next_block()
        begins, ends = self._times(block)
        if now < after(ends, self.period):
            return None
        models, rules = Sum(), Sum()
        for name, came in self.came.items():
            if not begins <= came.at < ends:
                continue
            number, within = divmod(came.at - self.since, self.period)
            ended = self.ended.get(name, now)
            if within * WASHOUT >= self.period and ended is not None:
                (models if self.is_models(number) else rules).add(ended - came.at, came.expected)
        valid = min(models.jobs, rules.jobs) >= JOBS_MIN
        gain = rules.level() - models.level() if valid else 0.0
        return BlockMeasured(
            vc=self.vc,
            model=self.model,
            block=block,
            at=now,
            by_model=models.jobs,
            by_rule=rules.jobs,
            valid=valid,
            gain_milli=round(gain * MILLI),
        )

    def _next_block(self) -> int:
        """Return which block is to be measured next."""
        return self.blocks[-1].block + 1 if self.blocks else 0

    def _times(self, block: int) -> tuple[Instant, Instant]:
        begins, ends = (
            after(self.since, Duration(self._begins(number) * self.period))
            for number in (block, block + 1)
        )
        return begins, ends

    def block_due(self) -> Instant:
        """Return when the next block can be measured."""
        return after(self._times(self._next_block())[1], self.period)

    def _next_begins(self) -> Instant:
        """Return when the next block to be measured begins."""
        return self._times(self._next_block())[0]

    def check(self) -> None:
        """Assert its bounds, and that what is kept of jobs is of jobs that are followed.

        Raises:
            AssertionError: That does not hold.
        """
        assert len(self.blocks) <= BLOCKS_KEPT, self.vc
        assert len(self.faults) <= FAULTS_MAX, self.vc
        assert len(self.came) <= JOBS_KEPT, self.vc
        assert max(len(self.pairs), len(self.choices)) <= PAIRS_KEPT, self.vc
        assert self.work.keys() == self.ended.keys() <= self.came.keys(), self.vc
        assert self.bound.keys() <= self.came.keys() - self.ended.keys(), self.vc
        assert not self.choices.keys() & self.bound.keys(), self.vc
        assert self.seen.alike <= self.seen.agreed <= self.seen.decisions, self.vc

    def forget(self) -> None:
        """Forget jobs that no further block, and no comparison, is about."""
        begins = self._next_begins()
        counts = self.stage in ("switchback", "on")
        paired = {name for pair in self.pairs.values() for name in pair}
        for name in list(self.ended):
            known = self.came.get(name)
            if not (counts and known is not None and known.at >= begins) and name not in paired:
                self.came.pop(name, None)
                self.ended.pop(name, None)
                self.work.pop(name, None)


def _number(options: Mapping[str, Any], name: str, usual: float) -> float:
    """Return an option; `usual` if it is no number: another version may have taken that."""
    found = options.get(name, usual)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else usual


class Guard:
    """The stages of all models. What `look` returns is to be recorded; `apply` takes it over."""

    def __init__(self) -> None:
        """Begin with nothing watched."""
        self.watched: dict[str, Watched] = {}
        """By VC: the model that its policy names."""
        self._known: dict[tuple[str, str], Watched] = {}
        """By VC and model: those that were named, or that facts are about, the latest last."""
        self._gpus: dict[str, tuple[str, int]] = {}
        """By unfinished job of a VC that is watched: the VC, and its GPUs."""

    def set_cluster(self, cluster: Cluster) -> None:
        """Follow which VCs have a model."""
        self.watched = {}
        for vc, model in models_named(cluster).items():
            self.watched[vc] = self._of(vc, model)
            self.watched[vc].options(cluster.vcs[vc].options)

    def _of(self, vc: str, model: str) -> Watched:
        """Return a model in a VC, as the one that was named the latest."""
        known = self._known.pop((vc, model), None) or Watched(vc, model)
        self._known[vc, model] = known
        return known

    def _forget_old(self) -> None:
        """Forget the models that were named the longest ago, once it is known which are named."""
        spare = [key for key, one in self._known.items() if self.watched.get(key[0]) is not one]
        for key in spare[: max(len(spare) - KNOWN_MAX, 0)]:
            del self._known[key]

    def stage(self, vc: str, model: str, now: Instant) -> Stage:
        """Return what a model may do in a VC now."""
        known = self.watched.get(vc)
        if known is None or known.model != model:
            return "shadow"
        if known.stage in ("shadow", "off"):
            return known.stage
        return "on" if known.acts(now) or known.wanted == "on" else "rest"

    def turns_at(self, vc: str, model: str, at: Instant) -> Instant | None:
        """Return when the next period begins after an instant; None: no turns are taken."""
        known = self.watched.get(vc)
        if known is None or known.model != model or known.stage in ("shadow", "off"):
            return None
        past = max(at - known.since, 0) // known.period
        return after(known.since, Duration((past + 1) * known.period))

    def compared(
        self, vc: str, begun: Mapping[str, bool], chosen: Sequence[str], at: Instant
    ) -> None:
        """Take over what a rule began, and what its model in shadow would have.

        Args:
            vc: The VC.
            begun: The jobs that the rule began, and whether the model would have so too.
            chosen: The jobs that the model would have begun, the first one first.
            at: When that was.
        """
        known = self.watched.get(vc)
        if known is not None and known.stage == "shadow":
            known.compared(begun, chosen, at)

    def differs(self, vc: str, jobs: Sequence[str]) -> None:
        """Take over that a model in shadow would change the sizes of these jobs.

        Args:
            vc: The VC.
            jobs: They count as begun otherwise.
        """
        known = self.watched.get(vc)
        if known is not None and known.stage == "shadow":
            alike = max(known.seen.alike - len(jobs), 0)
            known.seen = msgspec.structs.replace(known.seen, alike=alike)

    def hear(self, fact: Any) -> None:
        """Take over a fact of the allocator."""
        match fact:
            case JobQueued(job=job, spec=spec):
                known = self.watched.get(spec.vc)
                if known is not None and len(known.came) < JOBS_KEPT and not spec.opportunistic:
                    run_s = spec.size.run_time
                    expected = float(run_s) * 1e9 if isinstance(run_s, int | float) else 0.0
                    known.came[job] = Came(fact.submitted_at, expected)
                    self._gpus[job] = spec.vc, spec.gpus
            case JobBound(job=job, at=at):
                known = self.watched.get(self._gpus.get(job, ("", 0))[0])
                if known is not None:
                    known.begins(job, at)
            case JobEnded(job=job):
                vc, gpus = self._gpus.pop(job, ("", 0))
                if vc in self.watched:
                    self.watched[vc].ends(fact, gpus)
            case AdviceFollowed(vc=vc, follows=False, why=why, at=at):
                known = self.watched.get(vc)
                if known is not None and why in FAULTS and at > known.since:
                    known.faults = [*known.faults[1 - FAULTS_MAX :], at]
            case _:
                pass

    def apply(self, fact: GuardFact) -> None:
        """Take over a fact of the guard's own."""
        known = self._of(fact.vc, fact.model)
        match fact:
            case StageSet():
                known.said, known.blocks, known.faults, known.told = fact, [], [], 0
                known.seen = ShadowSeen(
                    vc=fact.vc, model=fact.model, at=fact.at, decisions=0, agreed=0
                )
                known.pairs.clear()
                known.choices.clear()
                known.forget()
            case ShadowSeen():
                known.seen, known.told = fact, fact.decisions
            case BlockMeasured():
                known.blocks = [*known.blocks[1 - BLOCKS_KEPT :], fact]
                known.forget()

    def facts(self) -> Iterator[GuardFact]:
        """Yield facts that lead to the same state."""
        for known in self._known.values():
            if known.said is not None:
                yield known.said
                if known.told:
                    yield known.seen
                yield from known.blocks

    def check(self) -> None:
        """Assert that models are found by what they are, and the bounds of each.

        Raises:
            AssertionError: That does not hold.
        """
        for key, known in self._known.items():
            assert key == (known.vc, known.model)
            known.check()
        for vc, known in self.watched.items():
            assert self._known[vc, known.model] is known

    def wake_at(self) -> Instant | None:
        """Return when something is to be looked at; None: at no time."""
        return min(filter(None, map(_due_at, self.watched.values())), default=None)

    def look(self, now: Instant) -> Iterator[GuardFact]:
        """Yield what is to be recorded now; each is to be applied before the next is asked for."""
        if self.watched and len(self._known) > KNOWN_MAX + len(self.watched):
            self._forget_old()
        for known in self.watched.values():
            if known.stage == "shadow" and known.seen.decisions >= known.told + TOLD_EVERY:
                yield known.seen
            if known.stage in ("switchback", "on") and not known.outdated:
                measured = known.measure(now)
                if measured is not None:
                    yield measured
            step = _step(known, now)
            if step is not None:
                yield step


def _due_at(known: Watched) -> Instant | None:
    """Return when a model in a VC is next to be looked at."""
    if known.said is None or known.outdated or known.wanted not in ("auto", known.stage):
        return Instant(1)
    if known.stage == "off":
        return max(known.said.until, Instant(1)) if known.wanted == "auto" else None
    if known.stage == "shadow":
        waits = not known.compares_enough or known.wanted != "auto"
        return None if waits else known.turns_from(known.seen.at)
    return known.block_due()


def _step(known: Watched, now: Instant) -> StageSet | None:
    """Return the next stage of a model, if it is to have another one now."""
    if known.wanted != "auto":
        forced: Any = known.wanted
        stays = known.said is not None and known.wanted == known.stage and not known.outdated
        return None if stays else _set(known, forced, Reason.ASKED_FOR, now)
    if known.said is None:
        return _set(known, "shadow", Reason.STAGE_SHADOW, now)
    if known.outdated:
        return _set(known, "shadow", Reason.NO_VERDICT, now)
    if known.stage == "off":
        if now < known.said.until:
            return None
        return _set(known, "shadow", Reason.COOLED_DOWN, now)
    if known.stage == "shadow":
        return _leaves_shadow(known, now)
    if len(known.recent_faults(now)) >= FAULTS_MAX:
        return _set(known, "shadow", Reason.FAULTS_REPEATED, now, cools=True)
    return _judged(known, now)


def _leaves_shadow(known: Watched, now: Instant) -> StageSet | None:
    """Return the next stage of a model in shadow: nothing that it would have done looks worse."""
    if not known.compares_enough or now < known.turns_from(now):
        return None
    found = known.hindsight()
    if found.high < 0:
        return _set(known, "off", Reason.MEASURED_REGRESSION, now, found, cools=True)
    return _set(known, "switchback", Reason.SHADOW_PASSED, now, found)


def _judged(known: Watched, now: Instant) -> StageSet | None:
    """Return the next stage of a model by its blocks; None: it stays."""
    takes_turns = known.stage == "switchback"
    blocks = known.blocks if takes_turns else known.blocks[-BLOCKS_ON:]
    gains = [float(each.gain_milli) for each in blocks if each.valid]
    strict = interval(gains, T_995)
    if strict is not None and len(gains) >= HARM_FROM and strict.high < 0:
        return _set(known, "off", Reason.MEASURED_REGRESSION, now, strict, cools=True)
    if not takes_turns:
        return None
    found = interval(gains, T_975)
    if known.overspent(now):
        return _set(known, "off", Reason.MEASURED_REGRESSION, now, found, cools=True)
    if found is not None and len(gains) in LOOKS and known.blocks[-1].valid:
        if found.high < 0:
            return _set(known, "off", Reason.MEASURED_REGRESSION, now, found, cools=True)
        if found.low > -WORSE_MILLI and found.mean >= 0:
            return _set(known, "on", Reason.NOT_WORSE, now, found)
    if len(gains) >= LOOKS[-1] or len(blocks) >= BLOCKS_KEPT:
        return _set(known, "shadow", Reason.NO_VERDICT, now, found, cools=True)
    return None


def _set(
    known: Watched,
    stage: GuardStage,
    why: Reason,
    now: Instant,
    found: Interval | None = None,
    *,
    cools: bool = False,
) -> StageSet:
    """Return the fact of another stage, with the figures that it rests on."""
    seen = known.seen
    figures = found or Interval(0, 0, 0, 0)
    cool = Duration(COOLS_PERIODS * known.period)
    return StageSet(
        vc=known.vc,
        model=known.model,
        stage=stage,
        why=why,
        at=now,
        until=min(after(now, cool), Instant(INSTANT_MAX)) if cools else Instant(0),
        decisions=seen.decisions,
        agreed_milli=MILLI * seen.agreed // seen.decisions if seen.decisions else 0,
        pairs=figures.samples,
        gain_milli=figures.mean,
        low_milli=figures.low,
        high_milli=figures.high,
        named_at=known.named_at or now,
        spent=known.spent(),
    )
