"""Which models are fitted, when, and by what: what their own VC measured, and others teach."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from skep.perf import fitted as kept_module
from skep.perf import fitting as module
from skep.perf.fitted import FitsKept, from_fit
from skep.perf.fitting import AGAIN_EVERY, FIT_EVERY, POOL_SOON, REST, Fitting, Model
from skep.perf.model.placement import Basis, Placement
from skep.perf.model.pool import Pool
from skep.perf.model.widening import Widening
from skep.perf.profiles import Tenants
from skep.units import Instant, after, seconds
from skep.wire.advice import FamilyFit, Outlook
from skep.wire.profile import ProfileMeasured
from skep.wire.reasons import Reason
from tests.unit.test_advisor import at
from tests.unit.test_fitted import GOOD
from tests.unit.test_profiles import MS, NET, fact

PLACES = ((1, 1), (2, 1), (4, 1), (4, 2), (8, 2))


def step_ms(gpus: int, nodes: int, scale: float = 1.0) -> float:
    return scale * (8.0 + 1.5 * (gpus > 1) + 2.0 * (nodes > 1) + 0.2 * gpus)


class Desk:
    """A fitting and what it reads, with a clock that goes from wake to wake."""

    def __init__(self) -> None:
        self.tenants = Tenants()
        self.fitting = Fitting(self.tenants)
        self.now = at(0)
        self.pieces = 0
        self.heard = FitsKept()

    def measure(self, *facts: ProfileMeasured) -> None:
        for each in facts:
            self.tenants.apply(each)
            self.fitting.changed(Model(each.vc, each.family, each.gpu_type), self.now)

    def family(self, name: str, scale: float, vc: str = "vision", places: int = 5) -> None:
        facts = [
            fact("j1", step_ms(*place, scale), name, place, vc=vc) for place in PLACES[:places]
        ]
        self.measure(*facts)

    def run(self, for_s: float = 60.0) -> list[Outlook]:
        until, told = after(self.now, seconds(for_s)), list[Outlook]()
        while (wake := self.fitting.wake_at()) is not None and wake <= until:
            self.now = Instant(max(wake, self.now))
            self.pieces += 1
            told += self.fitting.work(self.now)
            self.fitting.check()
            assert self.pieces < 10_000
        self.now = until
        for each in told:
            for fit in each.fits:
                self.heard.hear(fit)
        return told


def fits(told: list[Outlook]) -> list[FamilyFit]:
    return [fit for each in told for fit in each.fits]


def test_a_measured_model_is_fitted_and_predicts_where_it_was_not_measured() -> None:
    desk = Desk()
    for number, scale in enumerate((1.0, 2.0, 4.0)):
        desk.family(f"f{number}", scale)
    desk.family("mine", 3.0, places=4)
    told = {fit.family: fit for fit in fits(desk.run())}
    assert sorted(told) == ["f0", "f1", "f2", "mine"]
    mine = from_fit(told["mine"])
    assert mine is not None
    span = mine.at(Placement("v100", 8, 2))
    assert span.p50 == pytest.approx(step_ms(8, 2, 3.0) * MS, rel=0.1)
    assert span.p10 <= span.p50 <= span.p90
    assert (span.basis, span.promised, told["mine"].why) == (Basis.OWN, True, None)


def test_the_first_model_of_a_cluster_has_intervals_that_are_of_use() -> None:
    desk = Desk()
    desk.family("mine", 1.0, places=3)
    (fit,) = fits(desk.run())
    fitted = from_fit(fit)
    assert fitted is not None
    span = fitted.at(Placement("v100", 8, 1))
    assert span.promised
    assert span.p50 < span.p90 < 2 * span.p50
    assert not fitted.at(Placement("v100", 8, 2)).promised


def test_what_has_no_name_only_teaches() -> None:
    desk = Desk()
    for place in PLACES:
        desk.tenants.apply(fact("j1", step_ms(*place), "", place))
        desk.fitting.changed(Model("vision", f"~{NET.shapes}", "v100"), desk.now)
    desk.family("mine", 2.0)
    assert [fit.family for fit in fits(desk.run())] == ["mine"]
    assert desk.fitting._families("vision", "v100").keys() == {
        f"vision/~{NET.shapes}",
        "vision/mine",
    }


def test_work_comes_in_pieces_with_rests_and_ends() -> None:
    desk = Desk()
    for number in range(6):
        desk.family(f"f{number}", 1.0 + number)
    began = desk.now
    assert desk.fitting.work(began) == [], "measurements that come together are awaited"
    times = []
    while (wake := desk.fitting.wake_at()) is not None and wake < after(began, seconds(600)):
        times.append(wake)
        desk.fitting.work(wake)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= REST
    assert len(desk.fitting.kept) == 6
    assert len(times) > 20, "what a pool learns is not one piece"
    wake = desk.fitting.wake_at()
    assert wake is not None
    assert wake - times[-1] >= AGAIN_EVERY / 2, "nothing is left to be done"


def test_a_model_is_not_fitted_at_every_measurement() -> None:
    desk = Desk()
    desk.family("mine", 1.0)
    desk.run(60)
    for turn in range(20):
        desk.measure(fact(f"j{turn + 2}", 50 + turn, "mine", (16, 4)))
        desk.run(1)
    assert len(fits(desk.run(FIT_EVERY / 1e9))) <= 2
    after_all = desk.heard.get("vision", "mine", "v100")
    assert after_all is not None
    assert after_all.parameters.seen.gpus == 16


def test_what_predicts_the_same_is_not_told_again() -> None:
    desk = Desk()
    desk.family("mine", 1.0)
    assert len(fits(desk.run(60))) == 1
    desk.measure(fact("j2", step_ms(1, 1) * 1.001, "mine"))
    assert fits(desk.run(60)) == []


def test_an_unmeasured_model_borrows_from_its_own_vc_first_and_says_so() -> None:
    desk = Desk()
    for number, scale in enumerate((1.0, 2.0, 4.0)):
        desk.family(f"f{number}", scale, "other")
    desk.family("kin", 3.0)
    new = Model("vision", "new", "v100")
    desk.fitting.ran(new, NET, desk.now)
    (told,) = [fit for fit in fits(desk.run()) if fit.family == "new"]
    assert (told.why, told.source, told.points) == (Reason.SAME_FINGERPRINT, "kin", 0)
    fitted = from_fit(told)
    assert fitted is not None
    span = fitted.at(Placement("v100", 4, 1))
    assert span.p50 == pytest.approx(step_ms(4, 1, 3.0) * MS, rel=0.1)
    assert (span.basis, span.promised) == (Basis.BORROWED, False)
    # What came of estimates says that intervals are to be wider: it borrows as before.
    desk.fitting.widening = lambda model: Widening(2.0, 2.0, 2.0, 4, 0)
    desk.fitting.changed(new, desk.now)
    (told,) = [fit for fit in fits(desk.run()) if fit.family == "new"]
    assert (told.why, told.source, told.errors[0].wider) == (Reason.SAME_FINGERPRINT, "kin", 2.0)


def test_models_beyond_a_bound_that_were_not_measured_are_not_waited_for() -> None:
    desk = Desk()
    desk.family("kin", 3.0)
    for number in range(module.UNMEASURED_MAX + 100):
        desk.fitting.ran(Model("flood", f"f{number}", "v100"), NET, desk.now)
    assert len(desk.fitting._due.due) == module.UNMEASURED_MAX + 1


def test_one_point_moves_what_is_borrowed_and_three_are_its_own() -> None:
    desk = Desk()
    for number, scale in enumerate((1.0, 2.0, 4.0)):
        desk.family(f"f{number}", scale)
    desk.measure(fact("j9", step_ms(1, 1, 10.0), "new"))
    (told,) = [fit for fit in fits(desk.run()) if fit.family == "new"]
    fitted = from_fit(told)
    assert fitted is not None
    assert fitted.at(Placement("v100", 4, 1)).p50 == pytest.approx(
        step_ms(4, 1, 10.0) * MS, rel=0.1
    )
    assert fitted.at(Placement("v100", 4, 1)).basis is Basis.BORROWED
    desk.family("new", 10.0, places=3)
    (told,) = [fit for fit in fits(desk.run()) if fit.family == "new"]
    assert (told.why, told.points) == (None, 3)


def test_another_vc_teaches_but_its_measurements_stay_its_own() -> None:
    """A tenant that says the same family is ten times as fast changes nothing that was measured."""
    desk = Desk()
    for number, scale in enumerate((1.0, 2.0, 4.0)):
        desk.family(f"f{number}", scale, "other")
    desk.family("mine", 3.0)
    honest = {fit.family: fit for fit in fits(desk.run())}["mine"]
    desk.family("mine", 0.3, "liar")
    desk.run(POOL_SOON / 1e9 + 600)
    mine, lies = (desk.heard.get(vc, "mine", "v100") for vc in ("vision", "liar"))
    before = from_fit(honest)
    assert mine is not None
    assert lies is not None
    assert before is not None
    for gpus, nodes in PLACES:
        place = Placement("v100", gpus, nodes)
        assert mine.at(place).p50 == pytest.approx(before.at(place).p50, rel=0.05)
        assert lies.at(place).p50 * 5 < mine.at(place).p50
    assert mine.parameters.seen == before.parameters.seen


def test_another_vcs_name_for_a_model_is_not_told() -> None:
    desk = Desk()
    desk.family("secret", 2.0, "other")
    desk.fitting.ran(Model("vision", "new", "v100"), NET, desk.now)
    (told,) = [fit for fit in fits(desk.run()) if fit.vc == "vision"]
    assert (told.why, told.source, told.source_type) == (Reason.SAME_FINGERPRINT, "", "v100")
    assert "secret" not in repr(told)


def test_a_pool_has_models_of_every_vc_in_turns() -> None:
    desk = Desk()
    for number in range(40):
        desk.family(f"m{number}", 1.0 + number, "flood", 2)
    desk.family("mine", 3.0)
    desk.family("good", 3.0, "other")
    chosen = desk.fitting._families("vision", "v100")
    assert {"vision/mine", "other/good"} <= chosen.keys()
    assert len(chosen) == module.POOL_MAX


def test_a_vc_with_models_enough_learns_from_no_other() -> None:
    desk = Desk()
    for number in range(module.OWN_ENOUGH):
        desk.family(f"m{number}", 1.0 + number)
    desk.family("lie", 100.0, "liar")
    assert {name.partition("/")[0] for name in desk.fitting._families("vision", "v100")} == {
        "vision"
    }


def test_what_cannot_be_solved_ends_no_advisor(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.family("mine", 1.0)

    def raises(*_: object) -> None:
        raise np.linalg.LinAlgError

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "fit_family", raises)
        assert fits(desk.run()) == []
    desk.measure(fact("j2", 99, "mine"))
    assert len(fits(desk.run())) == 1


def test_everything_is_told_again_to_a_service_that_begins() -> None:
    desk = Desk()
    desk.family("mine", 1.0)
    (first,) = fits(desk.run())
    desk.fitting.again(desk.now)
    assert fits(desk.run(5)) == [first]
    assert fits(desk.run(10)) == [first], "once more, for one that had much to read"
    assert fits(desk.run(1000)) == []
    assert fits(desk.run(AGAIN_EVERY / 1e9)) == [first]


def test_where_nothing_is_measured_there_is_nothing_to_do() -> None:
    desk = Desk()
    desk.fitting.ran(Model("vision", "new", "v100"), NET, desk.now)
    desk.fitting.again(desk.now)
    assert desk.fitting.wake_at() is None


def test_a_vc_with_many_fits_makes_only_its_own_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "FITS_KEPT_MAX", 20)
    kept = FitsKept()
    kept.hear(GOOD)
    for number in range(1_000):
        kept.hear(
            FamilyFit(
                vc="flood", family=f"f{number}", gpu_type="t4", forms=GOOD.forms, errors=GOOD.errors
            )
        )
        kept.check()
    assert kept.get("red", "bert", "t4") is not None
    assert kept.get("flood", "f999", "t4") is not None
    assert kept.get("flood", "f1", "t4") is None
    assert kept.hear(FamilyFit(vc="red", family="bert", gpu_type="t4"))
    assert kept.get("red", "bert", "t4") is None
    for number in range(30):
        kept.hear(replace(GOOD, vc=f"v{99 - number}"))
        kept.check()
    assert len(kept) == 20
