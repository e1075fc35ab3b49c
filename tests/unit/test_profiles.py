"""What is kept of measurements, from which model an unknown one borrows, and a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.perf import profiles as module
from skep.perf.model.placement import Basis, Placement, Point
from skep.perf.model.pool import Pool
from skep.perf.model.predict import predict
from skep.perf.profiles import Place, Profiles, Tenants
from skep.perf.similarity import Borrowed, Looks, borrow, distance
from skep.units import Duration, Instant
from skep.wire import codec
from skep.wire.advice import FamilyFit, Outlook
from skep.wire.codec import Facts
from skep.wire.facts import EpochBegan
from skep.wire.packs import GpusShared, Mode
from skep.wire.profile import AdvisorFact, Fingerprint, Profiled, ProfileMeasured, Timing
from skep.wire.reasons import Reason
from skep.wire.spec import Elastic, SizeHint
from tests.unit.test_advisor import at, bound, node, queued, requeued, spec

MS = 1_000_000
NET = Fingerprint(
    parameters=25_000_000,
    gradient_bytes=100_000_000,
    shapes="0123456789abcdef",
    sizes=(0, 10, 0, 30),
    batch=(64, 3, 224, 224),
)


def fact(
    job: str = "j1",
    p50_ms: float = 10,
    family: str = "resnet",
    place: tuple[int, int] = (1, 1),
    **more: Any,
) -> ProfileMeasured:
    p50 = round(p50_ms * MS)
    fields: dict[str, Any] = {
        "at": at(0),
        "job": job,
        "attempt": 1,
        "vc": "vision",
        "family": family,
        "gpu_type": "v100",
        "gpus": place[0],
        "nodes": place[1],
        "p10_ns": p50 * 9 // 10,
        "p50_ns": p50,
        "p90_ns": p50 * 11 // 10,
        "samples": 64,
        "spread_milli": 20,
        "fingerprint": NET,
    }
    return ProfileMeasured(**fields | more)


def of(*facts: ProfileMeasured) -> Profiles:
    made = Profiles()
    for each in facts:
        made.apply(each)
        made.check()
    return made


# --- what is news --------------------------------------------------------------------------------


def test_only_what_is_not_known_is_news() -> None:
    known = of(fact())
    assert not known.is_news(fact("j2", 10.4)), "within 5 %"
    assert known.is_news(fact("j2", 10.6))
    assert not known.is_news(fact("j1", 20)), "one of each attempt at each place"
    assert known.is_news(fact("j1", 20, attempt=2))
    assert known.is_news(fact("j1", 10, place=(2, 1)))
    assert known.is_news(fact("j1", 10, batch=32))
    assert known.is_news(fact("j1", 10, shared=True))
    assert known.is_news(fact("j1", 10, gpu_type="a100"))


def test_a_job_without_family_is_known_by_its_shapes() -> None:
    known = of(fact(family=""))
    assert known.models() == [("~0123456789abcdef", "v100")]
    assert not known.is_news(fact("j2", family=""))
    assert not known.is_news(fact("j3", family="", fingerprint=None)), "it has no name at all"


def test_points_are_medians_over_jobs_with_samples_and_spread() -> None:
    known = of(fact("j1", 10), fact("j2", 12), fact("j3", 11), fact("j3", 22, place=(2, 2)))
    one, two = known.measured(("resnet", "v100"))
    assert (one.place, one.p50_ns, one.jobs, one.samples) == (
        Place(1, 1, 0, False),
        11 * MS,
        3,
        192,
    )
    assert one.spread_milli == 91, "of three jobs: 1 in 11"
    assert (two.place.gpus, two.jobs, two.spread_milli) == (2, 1, 20)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAMILIES_MAX", 3)
    monkeypatch.setattr(module, "POINTS_MAX", 4)
    monkeypatch.setattr(module, "FACTS_MAX", 30)
    known = Profiles()
    for number in range(2000):
        place = (1 + number % 7, 1)
        known.apply(fact(f"j{number % 90 + 1}", 1 + number, f"f{number % 5}", place))
        known.check()
    assert len(known.models()) <= 3


def test_a_snapshot_leads_to_the_same_state() -> None:
    known = of(*(fact(f"j{n}", 10 + n, f"f{n % 3}", (1 + n % 4, 1)) for n in range(1, 60)))
    again = of(*known.facts())
    assert list(again.facts()) == list(known.facts())
    assert again.curve(("f1", "v100")) == known.curve(("f1", "v100"))


def test_a_vc_hides_nothing_that_another_one_measures() -> None:
    known = Tenants()
    known.apply(fact(vc="liar"))
    assert known.is_news(fact("j2"))
    known.apply(fact("j2", 30))
    assert known.of("vision").measured(("resnet", "v100"))[0].p50_ns == 30 * MS
    assert not known.is_news(fact("j3", 30))
    known.check()


def test_a_vc_that_measures_much_makes_only_its_own_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FACTS_MAX", 30)
    known = Tenants()
    known.apply(fact())
    for number in range(2000):
        known.apply(fact(f"j{number % 90 + 1}", 1 + number, f"f{number % 25}", vc="flood"))
        known.check()
    assert known.of("vision").measured(("resnet", "v100"))
    again = Tenants()
    for each in known.facts():
        again.apply(each)
    assert list(again.facts()) == list(known.facts())


# --- what is borrowed ----------------------------------------------------------------------------


def looks(name: str, scale: float = 1.0, gpu_type: str = "v100", **more: Any) -> Looks:
    step_ns = more.pop("step_ns", 0)
    net = msgspec.structs.replace(
        NET,
        gradient_bytes=round(NET.gradient_bytes * scale),
        **{"shapes": name.encode().hex().zfill(16)} | more,
    )
    return Looks(name, gpu_type, net, step_ns)


def test_the_same_parameters_come_before_the_same_family_and_that_before_the_nearest() -> None:
    wanted = looks("mine", shapes="a" * 16)
    twin, kin = looks("twin", 9.0, shapes="a" * 16), looks("mine", 5.0, "a100")
    near = looks("near", 1.1)
    assert borrow(wanted, [near, kin, twin]) == Borrowed("twin", "v100", Reason.SAME_FINGERPRINT)
    assert borrow(wanted, [near, kin]) == Borrowed("mine", "a100", Reason.SAME_FAMILY)
    found = borrow(wanted, [looks("far", 3.0), near])
    assert found is not None
    assert (found.name, found.why) == ("near", Reason.NEAREST_MODEL)


def test_nothing_is_borrowed_from_what_is_nothing_like_it() -> None:
    wanted = looks("mine")
    assert borrow(wanted, []) is None
    assert borrow(wanted, [looks("tiny", 0.001)]) is None
    assert borrow(wanted, [looks("other", 1.1, "a100")]) is None, "another model on another type"
    assert borrow(wanted._replace(fingerprint=None), [looks("near", 1.1)]) is None
    found = borrow(looks("mine", shapes=""), [looks("x", 1.1, shapes="")])
    assert found is not None
    assert found.why is Reason.NEAREST_MODEL, "nothing known is not the same"


def test_distance_counts_gradients_the_first_mini_batch_and_sizes() -> None:
    one = looks("a", step_ns=10)
    assert distance(one, looks("b", step_ns=10)) == 0
    assert distance(one, looks("b", 2.0, step_ns=10)) == pytest.approx(0.693, abs=0.001)
    assert distance(one, looks("b", step_ns=20)) == pytest.approx(0.693, abs=0.001)
    assert distance(one, looks("b", sizes=(10, 0, 30))) == pytest.approx(0.693, abs=0.001)
    assert distance(one, looks("b", sizes=(), step_ns=0)) == 0, "what is not known says nothing"


def test_what_is_borrowed_is_scaled_to_what_was_measured_and_says_from_whom() -> None:
    twin = msgspec.structs.replace(NET, shapes="b" * 16)
    known = of(
        fact("j1", 10, place=(1, 1)),
        fact("j1", 14, place=(2, 1)),
        fact("j1", 99, place=(2, 1), shared=True),
        fact("j1", 20, place=(2, 2)),
        fact("j2", 30, "mine", fingerprint=twin),
    )
    curve = known.curve(("mine", "v100"))
    assert curve.source is not None
    assert (curve.source.name, curve.source.why) == ("resnet", Reason.NEAREST_MODEL)
    assert [(place[:2], ns) for place, ns in curve.borrowed] == [
        ((2, 1), 42 * MS),
        ((2, 2), 60 * MS),
    ]
    unknown = known.curve(("new", "v100"), NET)
    assert unknown.source is not None
    assert unknown.source.why is Reason.SAME_FINGERPRINT
    assert not unknown.own
    assert len(unknown.borrowed) == 3


def test_predictions_are_learned_from_what_is_kept() -> None:
    """Of four models three are known; the fourth was measured once, and is predicted on more."""
    places = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (8, 4)]
    known = Profiles()
    for number in range(1, 5):
        for gpus, nodes in places if number < 4 else places[:1]:
            step_ms = number * (8.0 + 1.5 * (gpus > 1) + 2.0 * (nodes > 1) + 0.2 * gpus)
            known.apply(fact(f"j{number}", step_ms, f"f{number}", (gpus, nodes), batch=32))
        known.apply(fact(f"j{number}", 500, f"f{number}", (2, 1), batch=32, shared=True))
    families = known.families("v100")
    assert [len(points) for points in families.values()] == [6, 6, 6, 1]
    assert families["f4"] == [Point(Placement("v100", 1, 1, 32.0), Duration(32_800_000), 64, 0.02)]
    assert known.families("a100") == {}
    pool = Pool({name: points for name, points in families.items() if name != "f4"})
    span = predict(pool.fit_family(families["f4"]), Placement("v100", 4, 2, 32.0))
    assert span.p10 <= span.p50 <= span.p90
    assert span.p50 == pytest.approx(4 * 12.3 * MS, rel=0.15)
    assert (span.basis, span.promised) == (Basis.FEW, False), "no promise on one point"


# --- the advisor ---------------------------------------------------------------------------------


def timing(p50_ms: float) -> Timing:
    p50 = round(p50_ms * MS)
    return Timing(
        samples=64,
        mean_ns=p50,
        deviation_ns=p50 // 50,
        p10_ns=p50 - MS,
        p50_ns=p50,
        p90_ns=p50 + MS,
    )


def profiled(job: str, p50_ms: float, workers: int = 1, **more: Any) -> Profiled:
    fields: dict[str, Any] = {
        "at": at(1),
        "attempt": 1,
        "fingerprint": NET,
        "timing": timing(p50_ms),
    }
    return Profiled(job=job, workers=workers, **fields | more)


def told(*facts: Any) -> Facts:
    return Facts(service="allocator", at=at(0), facts=facts)


def heard(advisor: AdvisorMachine, *events: Any) -> list[ProfileMeasured]:
    """Return the facts that follow from events."""
    effects: list[Effect] = []
    for each in events:
        effects += advisor.decide(each, at(1))
        advisor.check()
    return [each.fact for each in effects if isinstance(each, Record)]


def begun(*facts: Any) -> AdvisorMachine:
    advisor = AdvisorMachine()
    heard(advisor, Restarted(1), told(node("n1", "v100"), node("n2", "v100"), *facts))
    return advisor


def test_what_a_job_took_is_recorded_once() -> None:
    advisor = begun(queued("j1", spec()), bound("j1"))
    (found,) = heard(advisor, profiled("j1", 10))
    assert found == fact(
        batch=64, at=at(1), p10_ns=9 * MS, p90_ns=11 * MS, gpu_type="v100", spread_milli=20
    )
    assert heard(advisor, profiled("j1", 10), profiled("j1", 12)) == []


def test_a_job_that_lies_leads_to_one_fact_for_each_place() -> None:
    """Another batch is another place, and other shapes another model: each would be news."""
    for family in ("resnet", None):
        advisor = begun(queued("j1", spec(family=family)), bound("j1"))
        found = []
        for number in range(1, 200):
            shapes = f"{number:016x}"
            odd = msgspec.structs.replace(NET, batch=(number, 3), shapes=shapes)
            found += heard(advisor, profiled("j1", number, fingerprint=odd))
        assert len(found) == 1


def test_each_size_is_recorded_and_what_is_shared_is_marked() -> None:
    advisor = begun(queued("j1", spec()), bound("j1", "n1", "n2"))
    found = heard(advisor, profiled("j1", 10, 2), profiled("j1", 6, 4))
    assert [(each.gpus, each.nodes) for each in found] == [(2, 2), (4, 2)]
    shared = GpusShared(
        mode=Mode.PACK,
        job="j2",
        attempt=1,
        beside=(("j1", 1),),
        node="n1",
        devices=(0,),
        why=Reason.PACKED,
        at=at(1),
    )
    (marked,) = heard(advisor, told(shared), profiled("j1", 12, 2))
    assert marked.shared


def test_a_batch_that_workers_share_out_has_its_part_at_each_size() -> None:
    """What an elastic job shows is of the size that it had then, if it shows anything."""
    size = SizeHint(family="resnet", batch_size=96)
    elastic = msgspec.structs.replace(spec(), size=size, elastic=Elastic(min=1, max=4))
    advisor = begun(queued("j1", elastic), bound("j1", "n1", "n2"))
    found = heard(advisor, profiled("j1", 10, 2), profiled("j1", 6, 4))
    assert [(each.gpus, each.batch) for each in found] == [(2, 48), (4, 24)]
    unsaid = msgspec.structs.replace(elastic, size=SizeHint(family="resnet"))
    advisor = begun(queued("j1", unsaid), bound("j1", "n1", "n2"))
    (shown,) = heard(advisor, profiled("j1", 10, 2))
    assert shown.batch == NET.batch[0]


def test_what_cannot_be_is_not_recorded() -> None:
    advisor = begun(queued("j1", spec()), bound("j1", "n1", "n2"), queued("j2", spec()))
    odd = msgspec.structs.replace(timing(10), p10_ns=99 * MS)
    for event in (
        profiled("j2", 10),  # It waits.
        profiled("j9", 10),
        profiled("j1", 10, 2, attempt=2),
        profiled("j1", 10, 0),
        profiled("j1", 10, 1),  # On two nodes with one GPU.
        profiled("j1", 10, 2, timing=odd),
        profiled("j1", 10, 2, timing=msgspec.structs.replace(timing(10), mean_ns=0)),
        profiled("j1", 10, 2, timing=None),
    ):
        assert heard(advisor, event) == [], event


def test_an_advisor_that_starts_again_knows_every_curve() -> None:
    """What it recorded is all that it is given: of the runs there is nothing left."""
    advisor = begun(
        queued("j1", spec()),
        bound("j1"),
        queued("j2", spec(family="bert")),
        bound("j2", "n1", "n2"),
    )
    facts = heard(
        advisor,
        profiled("j1", 10),
        profiled("j1", 6, 2),
        profiled("j2", 50, 2),
        told(requeued("j1"), bound("j1", "n2", attempt=2)),
        profiled("j1", 20, attempt=2),
    )
    assert len(facts) == 4
    stored = codec.encode([EpochBegan(epoch=1, owner="a"), *facts])
    again = AdvisorMachine()
    for each in msgspec.json.decode(stored, type=list[AdvisorFact]):
        again.apply(each)
    again.check()
    scaling, before = again._outlooks.scaling, advisor._outlooks.scaling
    assert sorted(scaling.keys()) == [("bert", "v100"), ("resnet", "v100")]
    for key in scaling.keys():  # noqa: SIM118  not a dictionary
        assert scaling.points(key) == before.points(key)
    assert [(p.gpus, p.nodes, p.step_ns) for p in scaling.points(("resnet", "v100"))] == [
        (1, 1, 20 * MS),
        (2, 1, 6 * MS),
    ]
    assert again.snapshot() == advisor.snapshot()
    history = told(node("n1", "v100"), queued("j1", spec()), bound("j1"))
    assert heard(again, Restarted(2), history) == []
    assert heard(again, profiled("j1", 20)) == [], "it is known"


def test_nothing_is_recorded_from_a_half_read_backlog() -> None:
    """An old attempt of the same number may have been elsewhere."""
    advisor = AdvisorMachine()
    late = Instant(at(0) + 3600 * 10**9)
    history = told(node("n1", "v100"), queued("j1", spec()), bound("j1"))
    advisor.decide(history, late)
    assert advisor.decide(profiled("j1", 10), late) == []
    soon = Instant(late + 2 * 10**9)
    assert [type(each) for each in advisor.decide(profiled("j1", 10), soon)] == [Record]


def test_what_is_measured_is_fitted_and_told() -> None:
    advisor = begun(queued("j1", spec()), bound("j1"))
    heard(advisor, profiled("j1", 10), profiled("j1", 6, 2))
    fits: list[FamilyFit] = []
    for _ in range(200):
        wake = advisor.wake_at()
        assert wake is not None
        for effect in advisor.decide(Tick(), wake):
            if isinstance(effect, Send) and isinstance(effect.message, Outlook):
                fits += effect.message.fits
        advisor.check()
        if fits:
            break
    assert [(each.vc, each.family, each.gpu_type) for each in fits] == [
        ("vision", "resnet", "v100")
    ]


def test_a_log_of_epochs_alone_is_read() -> None:
    """As a service has that begins."""
    advisor = AdvisorMachine()
    advisor.apply(EpochBegan(epoch=1, owner="a"))
    assert advisor.snapshot() == []
    assert advisor.wake_at() is None or advisor.wake_at() == Instant(0)
