r"""What a learned model advises, as far as it may be followed; else what a named rule plans.

    VcView.advised --judged--> turns and sizes of the model
                          \--> the rule's plan, at once, with why

A model may advise and never acts: each of its moves is judged here as any other wish, and whatever
is wrong with it leads to the rule's plan in the same decision. The rule is in force for `cool_s`
then, so that no VC swings between the two.

Source: SCHED², section II (placement by locality); DL², section 4 (sizes); ADR 0215.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from skep.policy import exploring
from skep.policy.api import Planner, Policy
from skep.policy.capacity import FreeCapacity, fewest_nodes, fit_close
from skep.policy.parts import queued
from skep.policy.plan import Following, Plan, Resize, Turn, Withheld
from skep.policy.powers import Powers
from skep.policy.sizes import fewest_workers, gpus_per_worker, resizable, snapped
from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import Duration, Instant, after, seconds
from skep.wire.following import LEARNED, MARGIN_MILLI
from skep.wire.learned import SCHEMA, AdvisedMove, LearnedAdvice
from skep.wire.reasons import Reason

LEAST = seconds(1.0)
"""For how long a VC is planned in one way at least, whatever its model's stage: each turn from one
to the other is a fact."""
LASTS_MAX = seconds(3600.0)
"""How long advice may be in force: an advisor's is sent again long before."""
HOURS_MAX = 10**6
"""GPU-hours that may be explored on a day: 40,000 GPUs have no more."""
YEAR_S = 365 * 86_400
"""No time that an operator sets is longer: a number of milliseconds is noticed."""
STAGES: Mapping[str, Reason] = {
    "off": Reason.STAGE_OFF,
    "shadow": Reason.STAGE_SHADOW,
    "rest": Reason.STAGE_SWITCHBACK,
}
"""Stages in which the rule is in force."""
SAID = frozenset((Reason.ADVICE_BROKEN, Reason.NO_MODEL, Reason.OTHER_SCHEMA))
"""Reasons that an advisor may give for the stage "off": others would be no reason of it."""
WANTED = ("auto", "off", "shadow", "on")
CALM = frozenset((Reason.NO_ADVICE, *STAGES.values()))
"""Why a VC follows its rule though nothing is wrong with its model."""


class Learned(Policy, frozen=True, kw_only=True):
    """The moves of a learned model, or the plan of a rule wherever the model may not be followed.

    The model is named by the hash of its file, and no other one may act. The rule is any other
    policy, with its default options. It is in force where nothing was heard of the model, or it
    has not answered for `answer_s`; where its advice is damaged, of another model, made for other
    features or beyond what the model was trained on; where the model hardly prefers what it
    proposes (`margin_milli`, thousandths); where a job has waited for longer than `wait_bound_s`,
    which then comes first, unless the VC's nodes would not hold it even if nothing else ran; and
    where its stage in the VC is not to act. A VC that turned to its rule because of something wrong
    stays with it for `cool_s`.

    How far the model has come is judged by the advisor (`stage` "auto"): at least `shadow_s` in
    shadow, then in turns of `period_s` with the rule. Another `stage` forces it.

    No job is stopped for another: a model places waiting jobs and changes sizes of elastic ones.

    Nothing is explored unless `explore_share_milli` and `explore_gpu_hours` say so: in so many
    thousandths of its decisions one of the moves is drawn that are at most `explore_margin_milli`
    worse than the best, the better the likelier, for at most so many predicted GPU-hours a day
    (UTC). Each draw is a fact with its chance.
    """

    name: ClassVar[str] = LEARNED
    source: ClassVar[str] = "Skep's own (docs/explanation/learned.md), after SCHED² and DL²"
    kinds: ClassVar[dict[str, type[Policy]]] = {}
    """The policies that `rule` may name: set by the registry, which knows them."""
    model: str = ""
    rule: str = "look-ahead"
    answer_s: float = 2
    wait_bound_s: float = 21_600
    margin_milli: int = 0
    cool_s: float = 30
    stage: str = "auto"
    shadow_s: float = 86_400
    period_s: float = 14_400
    explore_share_milli: int = 0
    explore_gpu_hours: float = 0
    explore_margin_milli: int = MARGIN_MILLI

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: The model is no hash, the rule no other policy, or a number out of bounds.
        """
        if self.model and not (
            len(self.model) == 64 and set(self.model) <= set("0123456789abcdef")
        ):
            reason = f"model is the SHA-256 of a model's file, 64 digits: not {self.model!r}"
            raise ValueError(reason)
        if self.rule == self.name or self.rule not in self.kinds:
            reason = f"rule is the name of another policy: not {self.rule!r}"
            raise ValueError(reason)
        for option in ("answer_s", "wait_bound_s", "cool_s", "shadow_s", "period_s"):
            least, value = int(option == "period_s"), getattr(self, option)
            if not least <= value <= YEAR_S:
                reason = f"{option} is seconds, {least} to {YEAR_S} (a year): not {value}"
                raise ValueError(reason)
        if self.margin_milli < 0:
            reason = f"margin_milli is thousandths, 0 or more: not {self.margin_milli}"
            raise ValueError(reason)
        bounds = {"share_milli": (0, 1000), "gpu_hours": (0, HOURS_MAX), "margin_milli": (1, 10**6)}
        for option, (low, high) in bounds.items():
            value = getattr(self, f"explore_{option}")
            if not low <= value <= high:
                reason = f"explore_{option} is {low} to {high}: not {value}"
                raise ValueError(reason)
        if self.stage not in WANTED:
            reason = f"stage is one of {', '.join(WANTED)}: not {self.stage!r}"
            raise ValueError(reason)

    def fallback(self) -> Policy:
        """Return the rule."""
        return self.kinds[self.rule]()

    @property
    def answers_within(self) -> Duration:
        """Return `answer_s`."""
        return seconds(self.answer_s)

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_rates(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_cells(self) -> bool:
        """Return what the rule needs."""
        return self.fallback().sees_cells

    @property
    def counts_holds(self) -> bool:
        """Return what the rule needs."""
        return self.fallback().counts_holds

    @property
    def powers(self) -> Powers:
        """Return what the model and the rule may do."""
        rule = self.fallback().powers
        return replace(rule, resizes=True, passes=True, run_times=True, rates=True)

    def plan(self, view: VcView) -> Plan:
        """Return the plan of the model, or that of the rule."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that lets the rule keep what it keeps from one view to the next."""
        rule = self.fallback().planner()

        def plan(view: VcView) -> Plan:
            wrong = self.judge(view)
            following, until = self._settled(view, wrong)
            advised = view.advised
            if following.model and advised is not None:
                if self.explore_share_milli:
                    drawn = exploring.draw(view, *self._explores)
                    advised = replace(advised, moves=exploring.chosen(view, drawn))
                    following = replace(following, drawn=drawn)
                made = follow(view, advised)
                times = advised.expires_at, self._late_at(view), self._overdue_at(view)
                look_at = _soonest(*times)
                return replace(made, following=following, look_at=look_at)
            made = rule(view)
            if following.why is Reason.WAITED_TOO_LONG:
                made = _first(made, self._overdue(view))
            look_at = _soonest(made.look_at, until)
            return replace(made, following=following, look_at=look_at)

        return plan

    @property
    def _explores(self) -> tuple[int, int, int]:
        """Return how often, how far, and for how many GPU-nanoseconds a day it explores."""
        budget = int(seconds(3600.0) * self.explore_gpu_hours)
        return self.explore_share_milli, self.explore_margin_milli, budget

    # --- whether it may be followed --------------------------------------------------------------

    def judge(self, view: VcView) -> Reason | None:
        """Return why the model may not be followed now; None: it may be."""
        advised = view.advised
        if advised is None or not self.model:
            return Reason.NO_ADVICE
        late = self._late_at(view)
        if advised.expires_at <= view.now or (late is not None and late <= view.now):
            return Reason.ADVICE_LATE
        if advised.model != self.model:
            return Reason.OTHER_MODEL
        if advised.schema != SCHEMA:
            return Reason.OTHER_SCHEMA
        if advised.stage in STAGES:
            return advised.why if advised.why in SAID else STAGES[advised.stage]
        moves = advised.moves + advised.choices
        if advised.expires_at > after(view.now, LASTS_MAX) or _absurd(view, moves):
            return Reason.ADVICE_BROKEN
        if not advised.reliable:
            return Reason.BEYOND_TRAINING
        if _mixed(view):
            return Reason.MIXED_PRIORITIES
        if any(move.margin_milli < self.margin_milli for move in advised.moves):
            return Reason.MARGIN_TOO_SMALL
        return Reason.WAITED_TOO_LONG if self._overdue(view) is not None else None

    def _settled(self, view: VcView, wrong: Reason | None) -> tuple[Following, Instant | None]:
        """Return what is followed and why, and until when that stays so whatever comes.

        From the model to the rule it goes at once, and back only after a while.
        """
        made = Following(model=wrong is None, why=wrong or Reason.ADVISED)
        said = view.followed
        if said is None or said.follows or said.model != self.model or view.now < said.at:
            return made, None
        cools = LEAST if said.why in CALM else max(seconds(self.cool_s), LEAST)
        until = after(said.at, cools)
        if until <= view.now or made.why is said.why:
            return made, None
        return Following(model=False, why=said.why), until

    def _late_at(self, view: VcView) -> Instant | None:
        """Return when what the model has not answered yet will be late; None: it has answered."""
        return after(view.unanswered, self.answers_within) if view.unanswered else None

    def _overdue(self, view: VcView) -> JobView | None:
        """Return the job that has waited the longest, if that is beyond its bound.

        A job that would not fit if nothing else ran waits for nodes, and no rule helps it.
        """
        late = [job for job in queued(view) if self._bound(job) <= view.now]
        if not late or not self.wait_bound_s:
            return None
        capacity, vain = FreeCapacity(view, ()), dict[object, None]()
        for job in sorted(late, key=lambda job: (_waits_since(job), job.sequence)):
            workers = fewest_workers(job)
            gpus = workers * gpus_per_worker(job)
            least = replace(job, workers=workers, gpus=gpus) if workers else job
            asks = job.spec.resources, least.workers, job.nodes if job.at_home else ()
            if asks in vain:
                continue
            if capacity.fit(least) is not None:
                return job
            vain[asks] = None
        return None

    def _overdue_at(self, view: VcView) -> Instant | None:
        """Return when the next job that waits now will have waited for too long."""
        if not self.wait_bound_s:
            return None
        bounds = map(self._bound, queued(view))
        return min((at for at in bounds if at > view.now), default=None)

    def _bound(self, job: JobView) -> Instant:
        """Return when a job will have waited for too long."""
        return after(_waits_since(job), seconds(self.wait_bound_s))


def _waits_since(job: JobView) -> Instant:
    """Return since when a job waits for its turn."""
    return job.since if job.phase is Phase.AWAY else (job.waiting_since or job.submitted_at)


def _soonest(*times: Instant | None) -> Instant | None:
    return min((at for at in times if at is not None), default=None)


def _mixed(view: VcView) -> bool:
    """Return whether jobs of different priorities wait: a model knows of none."""
    return len({job.spec.priority for job in queued(view)}) > 1


def _absurd(view: VcView, moves: tuple[AdvisedMove, ...]) -> bool:
    """Return whether moves ask for sizes that their jobs cannot have."""
    jobs = {job.job: job for job in view.jobs} if moves else {}
    for move in moves:
        job = jobs.get(move.job)
        if job is None or not move.workers:
            continue  # It has ended since; or it has the size of its spec.
        elastic = job.spec.elastic
        least, most = (elastic.min, elastic.max) if elastic else (job.workers, job.workers)
        if not least <= move.workers <= most:
            return True
    return False


def _first(made: Plan, job: JobView | None) -> Plan:
    """Return a plan in which a job has the first turn, unless its rule waits for better nodes."""
    if job is None or any(
        (job.job, Reason.HELD_FOR_LOCALITY) == (each.job, each.why) for each in made.holds
    ):
        return made
    mine = [turn for turn in made.turns if turn.job == job.job]
    turn = mine[0] if mine else Turn(job.job, Reason.WAITED_TOO_LONG)
    others = (each for each in made.turns if each.job != job.job)
    holds = tuple(each for each in made.holds if each.job != job.job)
    return replace(made, turns=(turn, *others), holds=holds)


# --- what it says --------------------------------------------------------------------------------


def follow(view: VcView, advised: LearnedAdvice) -> Plan:
    """Return what advice comes to as a plan.

    Moves of jobs that have ended or begun since are passed over, and so are those that cannot be
    made as things are. No model knows which sizes a job offers: it has one near the advised size.

    Args:
        view: The VC.
        advised: What its model says; its sizes are allowed.
    """
    staying = [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
    capacity = FreeCapacity(view, staying)
    moves: dict[str, AdvisedMove] = {}
    for move in advised.moves:
        moves.setdefault(move.job, move)
        moves[move.job] = replace(move, spread=move.spread or moves[move.job].spread)
    jobs = {job.job: job for job in view.jobs}
    known = [(jobs[name], _sized(jobs[name], move)) for name, move in moves.items() if name in jobs]
    actions = tuple(_resizes(capacity, known))
    holds = [Withheld(name, Reason.HELD_BY_MODEL) for name in advised.holds if name not in moves]
    turns: list[Turn] = []
    for job, move in known:
        if job.phase not in (Phase.WAITING, Phase.AWAY):
            continue
        turn = _turn(view, capacity, job, move)
        if turn is None:
            holds.append(Withheld(job.job, Reason.HELD_FOR_LOCALITY))
        else:
            turns.append(turn)
    return Plan(
        turns=tuple(turns),
        strict=False,
        actions=actions,
        holds=tuple(holds),
        behind=Reason.WAITS_FOR_GPUS,
    )


def _sized(job: JobView, move: AdvisedMove) -> AdvisedMove:
    """Return a move to a size that the job offers."""
    return replace(move, workers=snapped(job, move.workers)) if move.workers else move


def _resizes(capacity: FreeCapacity, known: list[tuple[JobView, AdvisedMove]]) -> Iterator[Resize]:
    """Yield the changes of sizes that there is room for: those that give up GPUs first."""
    wanted = [
        (job, move)
        for job, move in known
        if job.spec.elastic is not None and move.workers not in (0, job.workers) and resizable(job)
    ]
    for job, move in sorted(wanted, key=lambda each: each[1].workers > each[0].workers):
        more = (move.workers - job.workers) * gpus_per_worker(job)
        if more > capacity.left(job.pin):
            continue
        if more > 0:
            capacity.take_gpus(job, more, ())
        yield Resize(job.job, Reason.ADVISED, move.workers)


def _turn(view: VcView, capacity: FreeCapacity, job: JobView, move: AdvisedMove) -> Turn | None:
    """Return the turn of a waiting job where it fits; None if it had better wait for such nodes."""
    workers = move.workers if job.phase is Phase.WAITING and job.spec.elastic is not None else 0
    asks = replace(job, workers=workers, gpus=workers * gpus_per_worker(job)) if workers else job
    if move.spread or job.at_home:
        place = capacity.fit(asks)
        if place is None:
            return Turn(job.job, Reason.ADVISED, workers=workers)
    else:
        place = fit_close(asks, capacity, fewest_nodes(asks, view))
        if place is None:
            return None
    capacity.take_gpus(asks, asks.gpus, place)
    return Turn(job.job, Reason.ADVISED, tuple(node for node, _ in place), workers=workers)
