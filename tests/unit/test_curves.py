"""What jobs say about their training, from their agent's reports to a picture."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

from skep.machines.base import Send
from skep.machines.introspector import MEASURED, IntrospectorMachine
from skep.units import Instant, after, seconds
from skep.wire.findings import Measured
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep_services.cli.curve import picture
from skep_services.gateway.curves import JOBS_MAX, POINTS_MAX, Curves

T0 = Instant(1_760_000_000_000_000_000)


def report(second: int, step: int, loss: float | None) -> NodeReport:
    at = after(T0, seconds(second))
    values = {} if loss is None else {"loss": loss}
    rank = RankProgress(
        rank=0,
        steps=step,
        step_ns=10_000_000,
        last_step_at=at,
        values=values,
        values_step=step if values else 0,
    )
    job = JobProgress(job="j1", attempt=1, world=1, ranks=(rank,))
    return NodeReport(node="n1", at=at, jobs=(job,))


def told(machine: IntrospectorMachine, one: NodeReport) -> list[Measured]:
    effects = machine.decide(one, one.at)
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send)
        and effect.subject == MEASURED
        and isinstance(effect.message, Measured)
    ]


def test_numbers_are_passed_on_once() -> None:
    machine = IntrospectorMachine()
    said = [
        told(machine, report(0, 10, 0.5)),
        told(machine, report(1, 20, 0.4)),
        told(machine, report(2, 20, 0.4)),
        told(machine, report(3, 30, None)),
        told(machine, report(4, 40, 0.3)),
    ]
    steps = [[one.step for one in each] for each in said]
    assert [step for each in steps for step in each] == [20, 40]
    assert said[1][0].values == {"loss": 0.4}


def measured(step: int, attempt: int = 1, job: str = "j1") -> Measured:
    return Measured(at=T0, job=job, attempt=attempt, step=step, values={"loss": 1 / (1 + step)})


def test_a_long_curve_is_thinned_out_and_keeps_both_ends() -> None:
    curves = Curves()
    for step in range(10 * POINTS_MAX):
        curves.take(measured(step))
        assert len(curves.of("j1")) <= POINTS_MAX
        assert curves.of("j1")[-1].step == step
    steps = [point.step for point in curves.of("j1")]
    assert steps[0] == 0
    assert steps == sorted(set(steps))
    assert len(steps) >= POINTS_MAX // 2 - 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps[:-1])]
    assert max(gaps) <= 2 * min(gaps), "evenly spread but for the latest"


def test_a_curve_goes_on_in_the_next_attempt() -> None:
    curves = Curves()
    for step in range(2 * POINTS_MAX):
        curves.take(measured(step))
    curves.take(measured(2 * POINTS_MAX, attempt=2))
    assert [point.attempt for point in curves.of("j1")[-2:]] == [1, 2]


def test_only_so_many_jobs_are_kept() -> None:
    curves = Curves()
    for number in range(JOBS_MAX + 1):
        curves.take(measured(1, job=f"j{number}"))
    assert curves.of("j0") == []
    assert len(curves.of(f"j{JOBS_MAX}")) == 1
    assert curves.of("j-nobody") == []


def test_the_picture_has_a_plot_for_each_number_and_a_line_for_each_attempt() -> None:
    points = [
        {"at": 0, "attempt": 1 + step // 5, "step": step, "values": {"loss": 1 / (1 + step)}}
        for step in range(10)
    ]
    points[3]["values"] = {"loss": 0.2, "<accuracy>": 0.9}
    drawn = ET.fromstring(picture("j1", points))
    lines = [each for each in drawn if each.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [5, 5, 1]
    assert "<accuracy>" in "".join(drawn.itertext())
