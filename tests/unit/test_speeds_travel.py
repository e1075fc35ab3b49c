"""From what jobs took to a promise: the advisor and admission, with what they say between them."""

from __future__ import annotations

from typing import Any

from skep.machines.admission import AdmissionMachine
from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Send, Tick
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.advice import Outlook
from skep.wire.codec import Facts
from skep.wire.facts import EpochBegan
from skep.wire.promises import Answer, Judged
from skep.wire.reasons import Reason
from tests.kit import Driver, at
from tests.unit.test_admission_promises import begun, judged, submit
from tests.unit.test_advisor import bound, node, queued, spec
from tests.unit.test_profiles import NET, profiled

JOB: dict[str, Any] = {
    "elastic": {"min": 1, "max": 16},
    "size": {"mini_batches": 360_000, "family": "resnet"},
    "willing": {"gpus": "1..16", "profile": "allowed"},
}
"""An hour at 10 ms, and nothing else is said of how long it runs."""
PLACES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2))


class Town:
    """Both services; what the advisor says goes through the codec to admission."""

    def __init__(self) -> None:
        self.admission: Driver[AdmissionMachine] = begun()
        self.advisor = AdvisorMachine()
        self.now = at(100)
        nodes = [node(f"n{number}", "v100") for number in (0, 1)]
        self.told(*nodes)

    def hear(self, event: Any) -> int:
        """Have the advisor decide; return how many fits it told."""
        fits = 0
        for effect in self.advisor.decide(event, self.now):
            if isinstance(effect, Send) and isinstance(effect.message, Outlook):
                payload = codec.encode(effect.message)
                heard = codec.read(subjects.ADVICE_OUTLOOK, payload, {}, 0, self.now)
                assert heard == effect.message
                self.admission.now = self.now
                self.admission(heard)
                fits += len(effect.message.fits)
        return fits

    def told(self, *facts: Any) -> None:
        self.hear(Facts(service="allocator", at=self.now, facts=facts))

    def work(self, for_s: float) -> int:
        """Let the advisor's timer ring for some seconds; return how many fits it told."""
        until, fits = Instant(self.now + round(for_s * 1e9)), 0
        while (wake := self.advisor.wake_at()) is not None and wake <= until:
            self.now = Instant(max(self.now, wake))
            fits += self.hear(Tick())
        self.now = until
        return fits

    def measure(self, vc: str, family: str, scale: float, *places: tuple[int, int]) -> None:
        """Have jobs of a tenant timed at some placements."""
        for gpus, nodes in places:
            job = f"j{len(self.advisor._jobs) + 1}"
            wanted = spec(vc=vc, family=family)
            on = [f"n{number}" for number in range(nodes)]
            self.told(queued(job, wanted), bound(job, *on))
            step_ms = 10 * scale * (1 + 0.1 * (gpus > 1) + 0.2 * (nodes > 1))
            shown = profiled(job, step_ms, gpus, fingerprint=NET, at=self.now)
            self.hear(shown)

    def answer(self, number: int, by: str = "8h") -> Judged:
        self.admission.now = self.now
        return judged(submit(self.admission, number, finish_by=by, **JOB))


def test_a_job_is_promised_by_what_was_measured_of_its_family() -> None:
    town = Town()
    assert town.answer(1).why is Reason.NOT_PROFILED
    for number, scale in enumerate((0.5, 2.0, 4.0)):
        town.measure("other", f"f{number}", scale, *PLACES)
    town.measure("other", "resnet", 0.1, *PLACES)
    town.work(60)
    assert town.answer(2).why is Reason.NOT_PROFILED, (
        "another tenant's measurements are not its own"
    )
    town.measure("nlp", "resnet", 1.0, (1, 1))
    town.work(60)
    assert town.answer(3).why is Reason.PROFILED_TOO_LITTLE
    town.measure("nlp", "resnet", 1.0, *PLACES[1:])
    town.work(60)
    found = town.answer(4)
    assert found.answer is Answer.ACCEPTED
    assert 3000e9 < found.alone < 7000e9, "an hour, and not the six minutes that another one says"


def test_an_admission_that_starts_again_is_told_within_seconds() -> None:
    town = Town()
    town.measure("nlp", "resnet", 1.0, *PLACES)
    town.work(60)
    assert town.answer(1).answer is Answer.ACCEPTED
    town.admission.restart()
    assert "has just begun" in town.answer(2).note
    begins = EpochBegan(epoch=2, owner="admission-2")
    town.hear(Facts(service="admission", at=town.now, facts=(begins,)))
    assert town.work(2) == 1
    assert town.answer(3).answer is Answer.ACCEPTED
