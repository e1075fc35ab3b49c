"""A cluster that has been busy for a day, for the page in a browser: what a person would see there.

The allocator decides its own facts: nodes of four tenants, a fifth that borrows, gangs, quarantined
GPUs, drained and silent nodes, windows. What other services would have said is made up:
searches, outcomes of estimates, profiles, curves of losses, trials.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from benchmarks.cells import all_levels
from benchmarks.pages import SEND, STORE, Feed
from skep.machines.base import Effect, Record
from skep.units import Duration, Instant, seconds
from skep.wire import codec, subjects
from skep.wire.admin import DrainNode, QuarantineGpu
from skep.wire.bearing import RULES
from skep.wire.cluster import FairShare, PersonLimits, Template, VirtualCluster
from skep.wire.estimates import EstimateJudged, Outcome
from skep.wire.facts import EpochBegan, JobBound, JobStopping
from skep.wire.findings import JobRate, Measured, Rates
from skep.wire.node import Outcome as Exit
from skep.wire.profile import ProfileMeasured
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.search import SearchSpec, parse_search_tree
from skep.wire.search_facts import (
    SearchBegan,
    SearchOver,
    SearchTrialAdded,
    SearchTrialAdmitted,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchTrialStood,
    SearchTrialTurned,
    Stand,
    TrialEnd,
)
from skep.wire.spec import JobSpec, Resources, SizeHint
from skep.wire.trials import After, Before, Kind, TrialBegun, TrialOver, Verdict
from skep.wire.windows import ReserveNodes, Window
from skep_services.adapters.records import Chain

VCS = ("vision", "speech", "language-models", "robotics")
DEMAND = (4, 10, 10, 9)
"""How many of the jobs are theirs: the first one needs less than it owns."""
SIZES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (8, 8))
"""Workers, and GPUs of each."""
GANGS_UNTIL = 3_000
GUESTS = "guests"
"""Owns nothing, and borrows."""
DAY, HOUR = seconds(24 * 3600.0), seconds(3600.0)
ENDED, FAILED = 1_500, 30
MODELS = ("resnet50", "vit-b16", "wav2vec2", "gpt2-medium", "mask-rcnn", "dreamer-v3")
PEOPLE = ("ada", "bo", "chidi", "dagny", "emeka", "fatima.al-rashid", "goran", "hiroko")
RECORD_FACTS_MAX, RATES_MAX = 500, 1_000
TRIALS = 240
SILENT, DRAINED = (17, 404), (5, 6, 7, 250)
BAD = {3: (0,), 90: (2, 3), 311: (7,), 800: (0, 1, 2, 3, 4, 5, 6, 7)}
"""Nodes by number: silent, drained, and with these GPUs in quarantine."""


def tenants(per_rack: int) -> dict[str, VirtualCluster]:
    """Return four tenants that own the cluster together, and one that borrows."""
    owned = dict(zip(VCS, all_levels(per_rack).values(), strict=True))
    guests = VirtualCluster(
        weight=0.5,
        fair_share=FairShare(half_life=86_400, weights={"ada": 2.0}),
        limits=PersonLimits(running=2_000, gpus=3_000),
        priorities={"submitter": 50, "manager": 100},
        templates={
            "finetune": Template(
                spec={"resources": {"gpus": 8}, "labels": {"kind": "finetune"}},
                fixed=("resources.gpus",),
                about="Fine-tunes a model on a whole node.",
            )
        },
    )
    return {**owned, GUESTS: guests}


class Busy(Feed):
    """A feed whose jobs came over the last day."""

    def __init__(self, nodes: int) -> None:
        """Begin a day ago with all nodes there."""
        self._behind: int = DAY
        self._chains = {
            subject: Chain(subject, EpochBegan)
            for subject in (subjects.SEARCH_FACTS, subjects.PROFILE_FACTS)
        }
        self._bound: dict[str, JobBound] = {}
        self.searches: list[str] = []
        self.silent: set[str] = set()
        self.failed: list[str] = []
        super().__init__(nodes, tenants)
        for subject in self._chains:
            self.tell(subject, [EpochBegan(epoch=1, owner="bench", rules=RULES)])

    def clock(self) -> Instant:
        """Return the time, which is behind until the day is over."""
        return Instant(time.time_ns() - self._behind)

    def fill(self, jobs: int) -> None:
        """Have so many unfinished jobs, and others that ended, and all that else is to be seen."""
        for number in range(jobs + ENDED):
            self._behind = DAY - DAY * number // (jobs + ENDED)
            self.submit()
            if number % 10 < 9:
                self.start()
            if number * ENDED // (jobs + ENDED) > (number - 1) * ENDED // (jobs + ENDED):
                self.end()
        self._behind = 0
        self._make_sick()
        self._tell_searches()
        self._tell_profiles()
        self._tell_trials()
        self.rates()
        self._tell_curves()

    def spec(self) -> tuple[JobSpec, str]:
        """Return the next job: mostly small ones, now and then a gang, or one that borrows."""
        rng = self.rng
        guest = rng.random() < 0.05
        # Gangs come early: one that waits is tried anew at every turn, which takes time.
        sizes = SIZES if self.jobs < GANGS_UNTIL and not guest else SIZES[:2]
        workers, gpus = rng.choices(sizes, (150, 8, 4, 3, 1, 0.2)[: len(sizes)])[0]
        model = rng.choice(MODELS)
        long = rng.random() < 0.01
        name = f"{rng.choice(('train', 'tune', 'eval'))}-{model}-{rng.randrange(10_000)}"
        owner = f"{rng.choice(PEOPLE)}{rng.randrange(12)}"
        spec = JobSpec(
            name=f"{name}-with-a-name-that-says-everything-about-its-data-and-seeds" * long or name,
            vc=GUESTS if guest else rng.choices(VCS, DEMAND)[0],
            command=("python", "train.py", "--model", model),
            service_class="opportunistic" if guest else "guaranteed",
            resources=Resources(gpus=gpus, workers=workers, cpus=4),
            labels={"project": f"p{rng.randrange(40)}", "model": model},
            size=SizeHint(mini_batches=1_000 * rng.randrange(10, 1_000), family=model),
        )
        return spec, owner

    def decide(self, event: Any) -> list[Effect]:
        """Decide an event; what is stopped by it has ended at once."""
        effects = super().decide(event)
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        for fact in facts:
            if isinstance(fact, JobBound):
                self._bound[fact.job] = fact
        for fact in facts:
            if isinstance(fact, JobStopping) and fact.job in self._bound:
                for word in self.exits(self._bound[fact.job]):
                    self.decide(msgspec.structs.replace(word, outcome=Exit.STOPPED))
        return effects

    def tell(self, subject: str, facts: list[Any]) -> None:
        """Have another service record facts."""
        chain = self._chains[subject]
        for begin in range(0, len(facts), RECORD_FACTS_MAX):
            part = facts[begin : begin + RECORD_FACTS_MAX]
            record, payload = chain.encode(part, {}, self.clock(), 1)
            chain.advance(record, payload)
            self.records.append((STORE, subject, payload))

    # --- what is not well ------------------------------------------------------------------------

    def _make_sick(self) -> None:
        names = list(self.machine.state.nodes)

        def named(numbers: Iterable[int]) -> list[str]:
            return [names[number] for number in numbers if number < len(names)]

        for node in named(DRAINED):
            self.decide(DrainNode(node=node))
        for number, devices in BAD.items():
            for node in named((number,)):
                for device in devices:
                    self.decide(QuarantineGpu(node=node, device=device))
        now = self.clock()
        for name, first, begins, lasts, vc, reason in (
            ("firmware", 40, 2 * HOUR, 4 * HOUR, "", "new firmware of the switches of this row"),
            ("deadline-week", 60, 12 * HOUR, 48 * HOUR, "vision", "the deadline of a conference"),
        ):
            window = Window(
                name=name,
                nodes=tuple(named(range(first, first + 8))),
                begins=Instant(now + begins),
                ends=Instant(now + begins + lasts),
                vc=vc,
                reason=reason,
            )
            self.decide(ReserveNodes(window=window))
        # Jobs of other kinds of ends.
        for _ in range(min(FAILED, len(self.running))):
            fact = self.running.popleft()
            self.failed.append(fact.job)
            for word in self.exits(fact):
                failed = {"outcome": Exit.EXITED, "detail": "exit code 1"}
                self.decide(msgspec.structs.replace(word, **failed))
        self.silent = set(named(SILENT))

    # --- what others say -------------------------------------------------------------------------

    def _tell_searches(self) -> None:
        rng, now = self.rng, self.clock()
        running = list(self.running)
        for number, (name, method, trials, over) in enumerate(
            (
                ("learning-rate-of-wav2vec2", "asha", 60, False),
                ("everything-about-resnet50", "curves", 400, False),
                ("dropout", "curves", 12, True),
                ("warmup-and-decay-of-the-language-model", "asha", 27, True),
            ),
            start=1,
        ):
            search, began = f"s{number}", Instant(now - 6 * HOUR)
            self.searches.append(search)
            spec = _search(name, VCS[number % 4], method, trials)
            facts: list[Any] = [SearchBegan(search=search, spec=spec, at=began, owner="ada1")]
            best: tuple[float, int, dict[str, Any], int] = (math.inf, 0, {}, 0)
            for trial in range(1, trials + 1):
                job = running[(trial * 7 + number) % len(running)].job if running else "j1"
                params = {
                    "lr": 10 ** rng.uniform(-5, -1),
                    "dropout": rng.uniform(0, 0.6),
                    "layers": rng.randint(2, 24),
                    "optimizer": rng.choice(("adamw", "sgd", "lion")),
                }
                facts += _trial(search, trial, params, job, began, rng, asha=method == "asha")
                ends = over or trial % 3 == 0
                last = facts[-1]
                if isinstance(last, SearchTrialMeasured) and last.value < best[0]:
                    best = last.value, trial, params, last.step
                if ends:
                    end, why = (TrialEnd.DONE, Reason.SUCCEEDED)
                    if trial % 7 == 0:
                        end, why = (TrialEnd.GIVEN_UP, Reason.NO_PROMISE)
                    facts.append(
                        SearchTrialOver(search=search, trial=trial, end=end, why=why, at=now)
                    )
            if over:
                facts.append(
                    SearchOver(
                        search=search,
                        why=Reason.BUDGET_SPENT,
                        at=now,
                        trials=trials,
                        gpu_ns=trials * HOUR,
                        trial=best[1],
                        value=best[0],
                        step=best[3],
                        params=best[2],
                    )
                )
            self.tell(subjects.SEARCH_FACTS, facts)

    def _tell_profiles(self) -> None:
        rng, now = self.rng, self.clock()
        facts: list[Any] = []
        for model in MODELS:
            base = rng.randrange(40, 400) * 1_000_000
            for gpus in (1, 2, 4, 8, 16):
                took = int(base * gpus**-0.85)
                facts.append(
                    ProfileMeasured(
                        at=now,
                        job="j1",
                        attempt=1,
                        vc=rng.choice(VCS),
                        family=model,
                        gpu_type="v100",
                        gpus=gpus,
                        nodes=max(1, gpus // 8),
                        p10_ns=took * 9 // 10,
                        p50_ns=took,
                        p90_ns=took * 12 // 10,
                        samples=64,
                        spread_milli=60,
                        batch=32,
                    )
                )
        facts.extend(_judged(number, now, rng) for number in range(400))
        self.tell(subjects.PROFILE_FACTS, facts)

    def _tell_trials(self) -> None:
        rng, now, running = self.rng, self.clock(), list(self.running)
        for number in range(1, min(TRIALS + 1, len(running) // 2)):
            fact, other = running[number], running[-number]
            at = Instant(now - DAY + DAY * number // TRIALS)
            kind = list(Kind)[number % 3]
            jobs = [fact.job, other.job][: 2 if kind is Kind.PACK else 1]
            gain = rng.randrange(-150, 260)
            kept = gain > 0
            begun = TrialBegun(
                trial=number,
                kind=kind,
                vc=self.machine.state.jobs[fact.job].spec.vc,
                jobs=tuple(
                    Before(job=job, attempt=1, gpus=1, rate_milli=9_000, samples=40) for job in jobs
                ),
                families=(rng.choice(MODELS),),
                at=at,
                until=Instant(at + 10 * 60_000_000_000),
                needed_milli=1_050,
                expected_milli=1_150,
                why=Reason.MOST_GAIN,
            )
            over = TrialOver(
                trial=number,
                jobs=tuple(jobs),
                verdict=Verdict.KEPT if kept else Verdict.UNDONE,
                why=Reason.TRIAL_GAINS if kept else Reason.TRIAL_LOSES,
                at=Instant(at + 5 * 60_000_000_000),
                gain_milli=gain,
                low_milli=gain - rng.randrange(20, 120),
                high_milli=gain + rng.randrange(20, 120),
                after=tuple(
                    After(job=job, rate_milli=9_000 + gain * 9, samples=40) for job in jobs
                ),
            )
            self._write([begun, over])

    def _tell_curves(self) -> None:
        """Jobs that run say how their losses fall."""
        now = self.clock()
        for number, fact in enumerate(list(self.running)[:: max(1, len(self.running) // 20)]):
            for point in range(120):
                step = (point + 1) * 250
                loss = 0.4 + 4 * math.exp(-step / 9_000) + 0.05 * self.rng.random()
                message = Measured(
                    at=Instant(now - HOUR + HOUR * point // 120),
                    job=fact.job,
                    attempt=fact.attempt,
                    step=step,
                    values={"loss": loss, "accuracy": 1 - loss / 5, "lr": 0.1 / (1 + number)},
                )
                subject = subjects.finding("measured")
                self.records.append((SEND, subject, codec.encode(message)))

    def rates(self) -> None:
        """The introspector tells how fast all of them run, in several messages."""
        now, rng, jobs = self.clock(), self.rng, self.machine.state.jobs
        told = []
        for fact in self.running:
            job = jobs.get(fact.job)
            if job is None or job.attempt != fact.attempt or job.bound_at is None:
                continue
            total = job.spec.size.mini_batches or 1
            part = min(0.99, (now - job.bound_at) / (DAY + 7 * (total % 97) * HOUR / 10))
            rate = JobRate(
                job=fact.job,
                attempt=fact.attempt,
                steps=int(total * part),
                rate_milli=total * 1_000_000_000_000 // (DAY * (1 + total % 3)) + rng.randrange(90),
                utilisation=350 + total % 600 + rng.randrange(40),
                memory=(total % 30 + 2) << 30,
            )
            told.append(rate)
        for begin in range(0, len(told), RATES_MAX):
            message = Rates(at=now, jobs=tuple(told[begin : begin + RATES_MAX]))
            self.records.append((SEND, subjects.finding("rates"), codec.encode(message)))

    def heartbeats(self) -> None:
        """Every node that is not silent lives."""
        now = self.clock()
        for node in self.machine.state.nodes:
            if node not in self.silent:
                message = Heartbeat(node=node, identity=f"id-{node}", at=now, incarnation=1)
                self.records.append((SEND, subjects.heartbeat(node), codec.encode(message)))


# --- what is made up -----------------------------------------------------------------------------


def _search(name: str, vc: str, method: str, trials: int) -> SearchSpec:
    tree: dict[str, Any] = {
        "name": name,
        "vc": vc,
        "metric": "loss",
        "direction": "minimize",
        "method": method,
        "job": {"script": "train.py", "args": ["--lr={lr}"]},
        "space": {
            "lr": {"log": [1e-5, 0.1]},
            "dropout": {"uniform": [0, 0.6]},
            "layers": {"integer": [2, 24]},
            "optimizer": {"choice": ["adamw", "sgd", "lion"]},
        },
        "budget": {"trials": trials, "gpu_time": "900h"},
        "parallel": 16,
    }
    if method == "asha":
        tree["rungs"] = {"first": 500, "last": 13_500, "eta": 3}
    spec = parse_search_tree(tree)
    assert isinstance(spec, SearchSpec), spec
    return spec


def _trial(
    search: str,
    trial: int,
    params: dict[str, Any],
    job: str,
    at: Instant,
    rng: random.Random,
    *,
    asha: bool,
) -> list[Any]:
    """Return the facts of a trial up to what it measured last."""
    facts: list[Any] = [
        SearchTrialAdded(search=search, trial=trial, params=params, at=at),
        SearchTrialAdmitted(search=search, trial=trial, job=job, at=at),
        SearchTrialStood(search=search, trial=trial, stand=Stand.RUNNING, at=at),
    ]
    floor = 0.3 + abs(math.log10(params["lr"]) + 3) * 0.3 + params["dropout"] * rng.random()
    rung = 0
    while asha and rung < 3 and rng.random() < 0.4:
        rung += 1
    last = 500 * 3**rung if asha else 13_500
    points = 24
    for point in range(1, points + 1):
        step = last * point // points
        value = floor + 3 * math.exp(-step / 2_500) + 0.04 * rng.random()
        facts.append(SearchTrialMeasured(search=search, trial=trial, step=step, value=value, at=at))
        if asha and point == points and rung:
            turned = SearchTrialTurned(
                search=search, trial=trial, run=True, why=Reason.RUNG_REACHED, at=at, rung=rung
            )
            facts.insert(-1, turned)
    return facts


def _judged(number: int, now: Instant, rng: random.Random) -> EstimateJudged:
    """Return how an estimate held: somewhat too sure of itself."""
    p50 = rng.randrange(10, 400) * 60_000_000_000
    took = int(p50 * math.exp(rng.gauss(0.05, 0.35)))
    p10, p90 = int(p50 * 0.7), int(p50 * 1.4)
    rank = min(999, max(0, int(500 + 1_000 * (took - p50) / (p90 - p10) * 0.8)))
    outcomes = tuple(
        Outcome(
            what=what,
            p10=Duration(p10),
            p50=Duration(p50),
            p90=Duration(p90),
            took=Duration(took),
            held=p10 <= took <= p90,
            rank=rank,
        )
        for what in ("start", "declared-time")
    )
    return EstimateJudged(
        at=now,
        job=f"j{number + 1}",
        attempt=1,
        vc=rng.choice(VCS),
        family=rng.choice(MODELS),
        gpu_type="v100",
        gpus=1,
        nodes=1,
        outcomes=outcomes,
        mini_batches=10_000,
        ran=Duration(took),
        declared=Duration(p50),
    )
