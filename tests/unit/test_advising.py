"""The advisor's part for VCs with a model: gaps, missing models, stages, and what a crash keeps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from skep.learn.advising import ActsAtOnce, Advising, GivenModels, NoModels
from skep.learn.guard import (
    BLOCKS_KEPT,
    KNOWN_MAX,
    PAIRS_KEPT,
    PERIOD_S,
    SHADOW_S,
    T_975,
    Guard,
    interval,
)
from skep.learn.shadow import Shadow, put_back
from skep.units import Instant, seconds
from skep.wire.bounds import INSTANT_MAX
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.facts import End, JobBound, JobEnded, JobQueued, Member
from skep.wire.following import (
    AdviceFollowed,
    BlockMeasured,
    GuardFact,
    ShadowSeen,
    StageSet,
    models_named,
)
from skep.wire.learned import AdvisedMove, JobSight, LearnedAdvice, RoomSight, Sight, SightWanted
from skep.wire.reasons import Reason
from tests.kit import at, spec
from tests.learned_kit import MODEL, OTHER_MODEL, Follower


def cluster(model: str = MODEL, **options: object) -> Cluster:
    chosen = {"model": model, "rule": "packing", **options}
    return Cluster(vcs={"nlp": VirtualCluster(gpus=4, policy="learned", options=chosen)})


def sight(number: int, *, whole: bool = False, jobs: tuple[JobSight, ...] = ()) -> Sight:
    return Sight(
        vc="nlp", number=number, whole=whole, at=at(0), gpus=4, free=4, node_gpus=4, jobs=jobs
    )


def job(name: str, phase: str = "waiting", workers: int = 1) -> JobSight:
    made = JobSight(
        job=name,
        sequence=int(name[1:]),
        phase="waiting",
        each=1,
        workers=workers,
        least=workers,
        most=workers,
        submitted_at=at(0),
    )
    return msgspec.structs.replace(made, phase=phase)


def advising() -> Advising:
    made = Advising(GivenModels({MODEL: Follower}), ActsAtOnce())
    made.set_cluster(cluster())
    return made


def test_a_gap_is_asked_about_each_second_until_a_whole_sight_comes() -> None:
    made = advising()
    assert [*made.due(at(0))] == [SightWanted(vc="nlp", at=at(0))]
    assert [*made.sight(sight(7), at(0.5))] == []
    assert made.wake_at() == at(1)
    assert [*made.due(at(1))] == [SightWanted(vc="nlp", at=at(1))]
    (answer,) = made.sight(sight(8, whole=True), at(1.1))
    assert isinstance(answer, LearnedAdvice)
    assert (answer.number, answer.stage, answer.at) == (8, "on", at(1.1))
    assert [*made.sight(sight(10), at(2.5))] == [SightWanted(vc="nlp", at=at(2.5))]


def test_advice_is_said_again_before_it_expires() -> None:
    made = advising()
    (first,) = made.sight(sight(1, whole=True), at(0))
    assert made.wake_at() == at(5)
    (again,) = made.due(at(5))
    assert isinstance(first, LearnedAdvice)
    assert isinstance(again, LearnedAdvice)
    assert again.at < first.expires_at < again.expires_at


def test_a_model_that_comes_later_is_used_once_it_is_there() -> None:
    seats = dict[str, type[Follower]]()
    made = Advising(GivenModels(seats), ActsAtOnce())
    made.set_cluster(cluster())
    (answer,) = made.sight(sight(1, whole=True), at(0))
    assert isinstance(answer, LearnedAdvice)
    assert (answer.stage, answer.why) == ("off", Reason.NO_MODEL)
    seats[MODEL] = Follower
    assert [*made.due(at(5))] == [SightWanted(vc="nlp", at=at(5))]
    (answer,) = made.sight(sight(2, whole=True), at(5.1))
    assert isinstance(answer, LearnedAdvice)
    assert answer.stage == "on"


class Fragile(Follower):
    """Takes over a half of a sight without a job, and fails."""

    def follow(self, sight: Sight) -> bool:
        """Follow a sight, or fail in the middle of it."""
        followed = super().follow(sight)
        if sight.jobs or not followed:
            return followed
        self.jobs["j9"] = job("j9")
        text = "no job"
        raise ValueError(text)


def test_what_a_model_has_half_taken_over_is_used_no_more() -> None:
    made = Advising(GivenModels({MODEL: Fragile}), ActsAtOnce())
    made.set_cluster(cluster())
    (first,) = made.sight(sight(1, whole=True, jobs=(job("j1"),)), at(0))
    assert isinstance(first, LearnedAdvice)
    assert first.stage == "on"
    broken, asks = made.sight(sight(2), at(0.5))
    assert isinstance(broken, LearnedAdvice)
    assert (broken.stage, broken.why, broken.number) == ("off", Reason.ADVICE_BROKEN, 2)
    assert asks == SightWanted(vc="nlp", at=at(0.5))
    assert [*made.sight(sight(3, jobs=(job("j2"),)), at(0.9))] == [], "it is asked for already"
    (broken,) = made.sight(sight(4, whole=True), at(1))
    assert isinstance(broken, LearnedAdvice)
    assert (broken.why, made.wake_at()) == (Reason.ADVICE_BROKEN, at(1.5))
    assert [*made.due(at(1.5))] == [SightWanted(vc="nlp", at=at(1.5))]
    (again,) = made.sight(sight(5, whole=True, jobs=(job("j1"),)), at(1.6))
    assert isinstance(again, LearnedAdvice)
    assert again.stage == "on"
    seat = made.posts["nlp"].seat
    assert isinstance(seat, Fragile)
    assert [*seat.jobs] == ["j1"]
    made.check()


def test_vcs_without_a_model_are_not_answered() -> None:
    made = Advising(NoModels(), ActsAtOnce())
    made.set_cluster(cluster(model=""))
    assert [*made.sight(sight(1, whole=True), at(0))] == []
    assert made.wake_at() is None


@pytest.mark.parametrize("options", [{}, {"model": ""}, {"model": 7}, {"model": [MODEL]}])
def test_a_vc_names_a_model_by_text_and_with_this_policy_only(options: dict[str, object]) -> None:
    vcs = {
        "none": VirtualCluster(gpus=1, policy="learned", options=options),
        "other": VirtualCluster(gpus=1, policy="fair", options={"model": MODEL}),
        **cluster().vcs,
    }
    assert models_named(Cluster(vcs=vcs)) == {"nlp": MODEL}


# --- shadow --------------------------------------------------------------------------------------


def test_what_a_rule_began_is_shown_as_it_was_before() -> None:
    shadow = Shadow()
    assert shadow.follow(sight(1, whole=True, jobs=(job("j1"), job("j2")))) is None
    begun = msgspec.structs.replace(
        sight(2, jobs=(job("j1", "starting", 2),)),
        free=2,
        room=(RoomSight(gpus=4, free=2, count=1),),
    )
    found = shadow.follow(begun)
    assert found is not None
    names, before = found
    assert [(name, each.workers) for name, each in names.items()] == [("j1", 2)]
    assert (before.whole, before.free, before.room) == (
        True,
        4,
        (RoomSight(gpus=4, free=4, count=1),),
    )
    assert [(each.job, each.phase) for each in before.jobs] == [
        ("j1", "waiting"),
        ("j2", "waiting"),
    ]


@pytest.mark.parametrize("taken, after", [([2], [(4, 2), (4, 4)]), ([8], [(4, 4), (4, 4)])])
def test_gpus_go_back_to_the_fullest_nodes(taken: list[int], after: list[tuple[int, int]]) -> None:
    room: tuple[RoomSight, ...] = (RoomSight(gpus=4, free=0, count=2),)
    if taken == [2]:
        room = (RoomSight(gpus=4, free=0, count=1), RoomSight(gpus=4, free=4, count=1))
    found = put_back(room, taken)
    assert [(each.gpus, each.free) for each in found for _ in range(each.count)] == after


def test_very_many_nodes_are_counted_and_not_listed() -> None:
    room = tuple(RoomSight(gpus=8, free=free, count=65_536) for free in (0, 5))
    found = put_back(room, [8 * 60_000, 3])
    told = [(each.gpus, each.free, each.count) for each in found]
    assert told == [(8, 0, 5535), (8, 3, 1), (8, 5, 65_536), (8, 8, 60_000)]


# --- the guard -----------------------------------------------------------------------------------


def looked(guard: Guard, now: Instant) -> list[GuardFact]:
    found = []
    for fact in guard.look(now):
        guard.apply(fact)
        found.append(fact)
    guard.check()
    return found


def begun(**options: object) -> Guard:
    guard = Guard()
    guard.set_cluster(cluster(**options))  # type: ignore[arg-type]
    looked(guard, at(0))
    return guard


def bound(name: str, attempt: int = 1) -> JobBound:
    member = Member(node="n1", identity="i", first_rank=0, devices=((0,),))
    return JobBound(
        job=name,
        attempt=attempt,
        order=1,
        members=(member,),
        master_port=1,
        why=Reason.BEST_FIT_ONE_NODE,
        at=at(2),
    )


def compared(guard: Guard, pairs: int, *, model_s: float, rule_s: float) -> None:
    """Have the rule begin one job, and the model another, so many times."""
    for number in range(pairs):
        names = f"j{2 * number + 1}", f"j{2 * number + 2}"
        for name in names:
            guard.hear(JobQueued(job=name, spec=spec(vc="nlp"), submitted_at=at(1)))
            guard.hear(bound(name))
        guard.compared("nlp", {names[0]: False}, [names[1]], at(2))
        guard.compared("nlp", {names[1]: True}, [names[1]], at(3))
        for name, ran_s in zip(names, (rule_s, model_s), strict=True):
            ended = JobEnded(
                job=name,
                end=End.SUCCEEDED,
                why=Reason.SUCCEEDED,
                attempts=1,
                at=at(10 + ran_s),
                ran_at=at(10),
            )
            guard.hear(ended)


def test_a_mean_has_the_interval_of_student() -> None:
    found = interval([10, 20, 30, 40], T_975)
    assert found is not None
    assert (found.mean, found.samples) == (25, 4)
    assert (found.low, found.high) == (4, 46)  # 25 -+ 3.182 * 12.91 / 2
    assert interval([1.0], T_975) is None


def test_a_model_leaves_the_shadow_only_if_its_choices_were_not_longer() -> None:
    good, bad = begun(shadow_s=60), begun(shadow_s=60)
    compared(good, 12, model_s=1, rule_s=9)
    compared(bad, 12, model_s=9, rule_s=1)
    stages = [
        [each for each in looked(one, at(61)) if isinstance(each, StageSet)] for one in (good, bad)
    ]
    assert [(one.stage, one.gain_milli, one.pairs) for (one,) in stages] == [
        ("switchback", 800, 12),
        ("off", -800, 12),
    ]
    assert stages[0][0].agreed_milli == 500


def test_a_model_that_only_holds_stays_in_the_shadow() -> None:
    guard = begun(shadow_s=60)
    for number in range(300):
        name = f"j{number + 1}"
        guard.hear(JobQueued(job=name, spec=spec(vc="nlp"), submitted_at=at(1)))
        guard.hear(bound(name))
        guard.compared("nlp", {name: False}, [], at(2))
    assert guard.watched["nlp"].seen.decisions == 300
    assert not [each for each in looked(guard, at(100)) if isinstance(each, StageSet)]


def test_an_operator_forces_a_stage_and_another_model_begins_anew() -> None:
    guard = begun(shadow_s=60)
    guard.set_cluster(cluster(stage="on"))
    (fact,) = looked(guard, at(1))
    assert isinstance(fact, StageSet)
    assert (fact.stage, fact.why) == ("on", Reason.ASKED_FOR)
    assert guard.stage("nlp", MODEL, at(2)) == "on"
    assert guard.stage("nlp", OTHER_MODEL, at(2)) == "shadow"
    guard.set_cluster(cluster(OTHER_MODEL))
    (fact,) = looked(guard, at(3))
    assert isinstance(fact, StageSet)
    assert (fact.model, fact.stage) == (OTHER_MODEL, "shadow")


@pytest.mark.parametrize("period_s, until", [(100, at(680)), (1e12, INSTANT_MAX)])
def test_faults_again_and_again_lead_back_to_the_shadow(period_s: float, until: int) -> None:
    guard = begun(shadow_s=60, period_s=period_s)
    compared(guard, 12, model_s=1, rule_s=9)
    looked(guard, at(61))
    for number in range(5):
        guard.hear(
            AdviceFollowed(
                vc="nlp", follows=False, why=Reason.ADVICE_LATE, at=at(70 + number), model=MODEL
            )
        )
    (fact,) = looked(guard, at(80))
    assert isinstance(fact, StageSet)
    assert (fact.stage, fact.why, fact.until) == ("shadow", Reason.FAULTS_REPEATED, until)


def test_its_facts_lead_to_the_same_state() -> None:
    guard = begun(shadow_s=60)
    compared(guard, 6, model_s=1, rule_s=9)
    assert any(isinstance(each, ShadowSeen) for each in looked(guard, at(20)))
    again = Guard()
    for fact in guard.facts():
        again.apply(fact)
    again.set_cluster(cluster(shadow_s=60))
    assert [*again.facts()] == [*guard.facts()]
    assert again.stage("nlp", MODEL, at(21)) == guard.stage("nlp", MODEL, at(21)) == "shadow"


def test_a_job_that_came_after_the_rule_had_begun_another_is_no_choice() -> None:
    guard = begun(shadow_s=60)
    for name, came_s in (("j1", 1), ("j2", 2.4), ("j3", 1.5)):
        guard.hear(JobQueued(job=name, spec=spec(vc="nlp"), submitted_at=at(came_s)))
    known = guard.watched["nlp"]
    guard.hear(bound("j1"))  # At 2 s.
    guard.compared("nlp", {"j1": False}, ["j2"], at(2.5))
    assert (known.seen.decisions, known.pairs) == (0, {})
    guard.hear(bound("j1", 2))
    guard.compared("nlp", {"j1": False}, ["j2", "j3"], at(2.5))
    assert (known.seen.decisions, known.pairs) == (1, {"j1": ("j1", "j3")})


@pytest.mark.parametrize("log_first", [False, True])
def test_a_sight_counts_only_with_the_log_whichever_comes_first(log_first: bool) -> None:
    guard = begun(shadow_s=60)
    known = guard.watched["nlp"]
    for name in ("j1", "j2"):
        guard.hear(JobQueued(job=name, spec=spec(vc="nlp"), submitted_at=at(1)))
    for attempt in (1, 2):
        if log_first:
            guard.hear(bound("j1", attempt))
        for _ in range(300):
            guard.compared("nlp", {"j1": True}, ["j1"], at(2))
            guard.compared("nlp", {"j2": True, "j3": True}, ["j2", "j3"], at(2))
        if not log_first:
            assert known.seen.decisions == attempt - 1
            guard.hear(bound("j1", attempt))
        assert (known.seen.decisions, known.seen.agreed) == (attempt, attempt)


def test_sights_of_jobs_that_there_are_not_take_no_room() -> None:
    guard = begun(shadow_s=60)
    names = [f"j{number + 1}" for number in range(PAIRS_KEPT + 5)]
    guard.compared("nlp", dict.fromkeys(names, True), names, at(2))
    assert [*guard.watched["nlp"].choices] == names[5:]


def test_what_is_kept_of_a_job_that_is_not_followed_is_found() -> None:
    guard = begun(shadow_s=60)
    compared(guard, 3, model_s=1, rule_s=9)
    guard.check()
    guard.watched["nlp"].bound["j99"] = at(1)
    with pytest.raises(AssertionError, match="nlp"):
        guard.check()


def test_a_job_that_is_not_followed_takes_no_place_among_pairs() -> None:
    guard = begun(shadow_s=60)
    guard.hear(JobQueued(job="j1", spec=spec(vc="nlp"), submitted_at=at(1)))
    guard.compared("nlp", {"j2": False}, ["j1"], at(2))
    assert guard.watched["nlp"].pairs == {}


def test_the_latest_blocks_are_kept_and_no_more() -> None:
    guard = begun(stage="on")
    for number in range(BLOCKS_KEPT + 5):
        guard.apply(
            BlockMeasured(
                vc="nlp",
                model=MODEL,
                block=number,
                at=at(number),
                by_model=0,
                by_rule=0,
                valid=False,
            )
        )
    kept = [each.block for each in guard.facts() if isinstance(each, BlockMeasured)]
    assert kept == [*range(5, BLOCKS_KEPT + 5)]


def turns(guard: Guard, gains: Sequence[int | None], named_at: int = 1) -> list[tuple[int, Reason]]:
    """Have blocks come to these gains (None: not valid); return after which stages changed, why."""
    stage = StageSet(
        vc="nlp",
        model=MODEL,
        stage="switchback",
        why=Reason.SHADOW_PASSED,
        at=at(60),
        named_at=Instant(named_at),
    )
    guard.apply(stage)
    found = []
    for number, gain in enumerate(gains):
        block = BlockMeasured(
            vc="nlp",
            model=MODEL,
            block=number,
            at=at(100),
            by_model=3,
            by_rule=3,
            valid=gain is not None,
            gain_milli=gain or 0,
        )
        guard.apply(block)
        changes = [each for each in looked(guard, at(100)) if isinstance(each, StageSet)]
        found += [(number + 1, each.why) for each in changes]
        if changes:
            break
    return found


@pytest.mark.parametrize(
    "gains, ends",
    [
        ([5] * 8, [(8, Reason.NOT_WORSE)]),
        ([5, None] * 8, [(15, Reason.NOT_WORSE)]),
        ([-500, 500] * 8, [(16, Reason.NO_VERDICT)]),
        # The latest 16 blocks have eight valid ones again and again: all good in the end.
        ([-500, None, 500, None] * 4 + [100, None] * 12, [(31, Reason.NO_VERDICT)]),
        ([None, None, 5] * 11, [(24, Reason.NOT_WORSE)]),
        ([None, None, None, 5] * 12, [(32, Reason.NOT_WORSE)]),
        ([None] * 40, [(BLOCKS_KEPT, Reason.NO_VERDICT)]),
    ],
)
def test_each_number_of_valid_blocks_is_looked_at_once(
    gains: list[int | None], ends: list[tuple[int, Reason]]
) -> None:
    assert turns(begun(shadow_s=60, period_s=1e6), gains) == ends


def test_what_turns_cost_is_counted_until_it_is_half_of_what_they_may() -> None:
    guard = begun(shadow_s=60, period_s=100)
    compared(guard, 12, model_s=1, rule_s=9)
    # Two per cent of 40 periods are 80 s: the first turn costs 49 s, and the second one as much.
    assert turns(guard, [-400, -400, -400], at(100) - seconds(4000)) == [
        (2, Reason.MEASURED_REGRESSION)
    ]
    spent = guard.watched["nlp"].spent()
    assert round(spent / 1e9) == 98
    assert looked(guard, at(700)) == [guard.watched["nlp"].said]
    assert (guard.stage("nlp", MODEL, at(701)), guard.watched["nlp"].spent()) == ("shadow", spent)
    compared(guard, 12, model_s=1, rule_s=9)
    again = at(100 - 4000 + 2 * 98.4 / 0.02)
    assert abs(guard.watched["nlp"].turns_from(at(800)) - again) < seconds(20)
    assert not [each for each in looked(guard, at(5000)) if isinstance(each, StageSet)]
    assert guard.wake_at() == guard.watched["nlp"].turns_from(at(5000))
    (fact,) = (each for each in looked(guard, at(6000)) if isinstance(each, StageSet))
    assert (fact.stage, fact.spent) == ("switchback", spent)


def test_the_first_blocks_are_the_rules_but_for_one_turn_in_four() -> None:
    guard = begun(shadow_s=60, period_s=100)
    compared(guard, 12, model_s=1, rule_s=9)
    looked(guard, at(61))
    acts = [guard.stage("nlp", MODEL, at(61 + 100 * n + 50)) == "on" for n in range(24)]
    assert [sum(acts[at : at + 4]) for at in range(0, 16, 4)] == [1] * 4
    assert [sum(acts[at : at + 2]) for at in range(16, 24, 2)] == [1] * 4


def test_a_model_that_begins_jobs_otherwise_waits_until_a_bad_turn_would_cost_little() -> None:
    guard = begun(shadow_s=60, period_s=100)
    compared(guard, 12, model_s=1, rule_s=9)
    known = guard.watched["nlp"]
    known.seen = msgspec.structs.replace(known.seen, alike=known.seen.agreed // 2)
    assert [each for each in looked(guard, at(61)) if isinstance(each, StageSet)] == []
    assert guard.wake_at() == at(5000), "two per cent of 50 periods are a whole one"
    (fact,) = (each for each in looked(guard, at(5000)) if isinstance(each, StageSet))
    assert fact.stage == "switchback"


def test_a_model_with_faults_stays_in_the_shadow_until_they_are_an_hour_old() -> None:
    guard = begun(shadow_s=60, period_s=100)
    compared(guard, 12, model_s=1, rule_s=9)
    for number in range(7):
        late = AdviceFollowed(vc="nlp", follows=False, why=Reason.ADVICE_LATE, at=at(10 + number))
        guard.hear(late)
    assert [each for each in looked(guard, at(61)) if isinstance(each, StageSet)] == []
    assert guard.wake_at() == at(3612)
    (fact,) = (each for each in looked(guard, at(3612)) if isinstance(each, StageSet))
    assert fact.stage == "switchback"


def test_a_model_may_be_held_in_the_shadow_from_the_beginning() -> None:
    guard = Guard()
    guard.set_cluster(cluster(stage="shadow"))
    (fact,) = looked(guard, at(0))
    assert isinstance(fact, StageSet)
    assert (fact.stage, fact.why, guard.wake_at()) == ("shadow", Reason.ASKED_FOR, None)


@pytest.mark.parametrize("longer", [0, 4, 6, 12])
def test_a_model_that_chooses_otherwise_has_to_be_shown_to_be_better(longer: int) -> None:
    """Of twelve choices so many are nine times as long as the rule's, and the others as short."""
    guard = begun(shadow_s=60)
    compared(guard, 12, model_s=1, rule_s=9)
    known = guard.watched["nlp"]
    total = 800 * (12 - 2 * longer)
    known.seen = msgspec.structs.replace(known.seen, sum_milli=total, square_milli=12 * 640)
    found = [each.stage for each in looked(guard, at(61)) if isinstance(each, StageSet)]
    assert found == {0: ["switchback"], 4: [], 6: [], 12: ["off"]}[longer]
    assert guard.wake_at() is None or found


@pytest.mark.parametrize(
    "workers, spread, alike",
    [(0, False, True), (4, False, True), (2, False, False), (4, True, False)],
)
def test_a_move_is_alike_if_it_is_as_large_and_as_close(
    workers: int, spread: bool, alike: bool
) -> None:
    begun_so = msgspec.structs.replace(job("j1", "running", 4), nodes=1)
    move = AdvisedMove(job="j1", workers=workers, spread=spread)
    assert Shadow().is_alike(begun_so, move, 4) == alike
    assert Shadow().is_alike(msgspec.structs.replace(begun_so, nodes=2), move, 4) == (
        spread and workers in (0, 4)
    )


def test_a_model_that_would_begin_a_job_earlier_or_change_its_size_is_not_alike() -> None:
    shadow = Shadow()
    shadow.follow(sight(1, whole=True, jobs=(job("j1"), job("j2", "running"), job("j3"))))
    moves = [AdvisedMove(job=name) for name in ("j1", "j2", "j9")]
    assert shadow.wish(moves) == ["j2"]
    assert shadow.wish(moves) == []
    shadow.follow(sight(2, jobs=(job("j1", "running"), job("j3", "running"))))
    found = [shadow.is_alike(job(name), AdvisedMove(job=name), 4) for name in ("j1", "j3")]
    assert found == [False, True]
    shadow.check()
    guard = begun(shadow_s=60)
    compared(guard, 3, model_s=1, rule_s=9)
    guard.differs("nlp", ["j2"])
    assert (guard.watched["nlp"].seen.agreed, guard.watched["nlp"].seen.alike) == (3, 2)


def test_reading_a_log_again_keeps_no_job_of_before_the_block() -> None:
    guard = begun(stage="on", period_s=100)
    looked(guard, at(901))
    early, late = (
        JobQueued(job=f"j{at_s}", spec=spec(vc="nlp"), submitted_at=at(at_s)) for at_s in (1, 801)
    )
    for queued in (early, late):
        guard.hear(queued)
        ended = JobEnded(
            job=queued.job, end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=1, at=at(902)
        )
        guard.hear(ended)
    assert [*guard.watched["nlp"].came] == ["j801"]


def test_the_stages_of_named_models_outlive_any_number_of_others() -> None:
    names = [f"vc{number}" for number in range(KNOWN_MAX + 50)]
    named = Cluster(vcs={each: cluster().vcs["nlp"] for each in names})
    guard = Guard()
    guard.set_cluster(named)
    looked(guard, at(1))
    again = Guard()
    for fact in guard.facts():
        again.apply(fact)
    again.set_cluster(named)
    assert looked(again, at(2)) == []
    again.set_cluster(cluster())
    looked(again, at(3))
    assert len({each.vc for each in again.facts()}) == KNOWN_MAX + 1


def test_options_of_another_version_count_as_usual() -> None:
    guard = Guard()
    guard.set_cluster(cluster(period_s="soon", shadow_s=None))
    known = guard.watched["nlp"]
    assert (known.period, known.shadow) == (seconds(PERIOD_S), seconds(SHADOW_S))


@pytest.mark.parametrize("wanted, stage", [("auto", "shadow"), ("switchback", "switchback")])
def test_turns_in_blocks_of_an_older_version_do_not_go_on(wanted: str, stage: str) -> None:
    guard = begun(shadow_s=60, period_s=100, stage=wanted)
    assert turns(guard, [-900], named_at=0) == [
        (1, Reason.NO_VERDICT if wanted == "auto" else Reason.ASKED_FOR)
    ]
    known = guard.watched["nlp"]
    assert known.said is not None
    assert (known.stage, known.said.spent, known.blocks) == (stage, 0, [])
    assert known.named_at > 0
    assert not looked(guard, at(101))
