"""Gandiva's experiments in the small: each kind of setting once, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from skep.units import in_seconds
from skep_lab.experiments import catalogue, gandiva, gandivafigures, multijob
from skep_lab.experiments.gandiva import Played, Scene
from skep_lab.experiments.multijob import Curves, Study
from skep_lab.traces.generators import gandiva as mix
from skep_lab.traces.generators import gandivadays
from skep_services.experiments import keep, page

STUDY = Study(
    trials=16,
    places=2,
    exclusive=1,
    position=14,
    target=0.84,
    final=0.85,
    trial_s=1200,
    evaluations=12,
    added=1,
    turn_s=110,
    curves=Curves(worst=0.4, hopeless=0.25),
)


def scene(kind: Any, **options: Any) -> Scene:
    return Scene("x", kind)._replace(**options)


def test_packs_do_more_for_the_mix_than_a_queue_and_every_verdict_is_right() -> None:
    trace = mix.generate(0, mix.Options(jobs=14, hours=0.2))
    policies: tuple[Any, ...] = (("fifo", {}), ("gandiva", {"introspect": True, "slice_s": 300}))
    base, ours = (gandiva._cluster(scene("mix", policy=each), trace, 2, 0) for each in policies)
    told = ours.figures
    assert told["unfinished"] == base.figures["unfinished"] == 0
    assert told["hundred_s"] < base.figures["hundred_s"]
    assert told["makespan_min"] < base.figures["makespan_min"]
    ended = sum(told.get(f"pack: {verdict}", 0) for verdict in ("kept", "undone", "void"))
    assert told["pack: trials"] == ended > 0
    assert told["wrong"] == 0
    assert ours.curves["packs kept"][-1][1] == told["pack: kept"]


def test_tenants_have_the_mix_in_cells_and_alone() -> None:
    told = [
        gandiva.play(scene("mix", part=0.02, cells=cells), 0).figures for cells in ("alone", "own")
    ]
    for name in gandiva.TENANTS:
        assert all(each[f"{name}: unfinished"] == 0 for each in told)
        assert told[1][f"{name}: jct_min"] <= told[0][f"{name}: jct_min"]


def test_tenants_with_quotas_wait_less_together_than_alone() -> None:
    alone, shared = (
        gandiva.play(scene("mix", part=0.05, cells=cells), 0).figures
        for cells in ("quota alone", "quota")
    )
    for name in gandiva.TENANTS:
        assert alone[f"{name}: unfinished"] == shared[f"{name}: unfinished"] == 0
    assert shared["busy: queue_s"] < alone["busy: queue_s"]
    assert shared["busy: jct_min"] < alone["busy: jct_min"]


def test_the_days_are_as_much_work_as_was_asked_for_and_all_of_it_ends() -> None:
    trace = gandivadays.generate(1, gandivadays.Options(gpus=8, load=0.5))
    work = sum(job.gpus * in_seconds(job.run_time) for job in trace.jobs)
    assert 0.5 * 8 * 7.5 * 86400 <= work <= 0.5 * 8 * 7.5 * 86400 + 8 * gandivadays.LONGEST_S
    assert {job.model for job in trace.jobs} <= dict(gandivadays.MODELS).keys()
    told, alike = (
        gandiva.play(scene("days", part=0.16, load=0.3, local=local), 1).figures
        for local in (True, False)
    )
    assert told["unfinished"] == alike["unfinished"] == 0
    assert alike["jct_min"] <= told["jct_min"]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_finds_what_comes_late_sooner_than_a_queue(seed: int) -> None:
    queue, ours = (multijob.play(STUDY, seed, ours=ours) for ours in (False, True))
    assert 0 < ours.minutes < queue.minutes
    assert ours.suspended > queue.suspended == 0
    assert ours == multijob.play(STUDY, seed, ours=True), "the same seed, the same search"


def test_a_search_that_nobody_qualifies_for_ends_without_one() -> None:
    found = multijob.play(replace(STUDY, position=99, trials=4), 0, ours=True)
    assert found.minutes == 0
    assert len(found.explored) == 4


def test_what_was_played_is_kept_and_told(tmp_path: Path) -> None:
    both = gandivafigures._both("40 GPUs", STUDY)
    results = {each.label: [gandiva.play(each, 0)] for each in both}
    for each in both:
        keep.put(tmp_path, each, 0, results[each.label][0])
        assert keep.get(tmp_path, each, 0) == results[each.label][0]
    experiment = catalogue.EXPERIMENTS["gandiva-multijob"]
    lines = gandivafigures._told(results, "40 GPUs", (200.0, 100.0))
    assert [line.paper for line in lines] == ["200 min", "100 min", "2.00"]
    text = page.page(experiment, results, lines, "1 seed.")
    assert "Configurations that have trained" in text
    assert "skep_lab.experiments.gandiva" in text


@pytest.mark.parametrize("name", [each.name for each in gandivafigures.EXPERIMENTS])
def test_every_line_has_its_settings(name: str) -> None:
    experiment = catalogue.EXPERIMENTS[name]
    scenes = experiment.settings(None)
    labels = [each.label for each in scenes]
    assert len(labels) == len(dict.fromkeys(labels))
    means = (
        "hundred_s",
        "jct_min",
        "makespan_min",
        "busy",
        "busy_coming",
        "useful",
        "minutes",
        "queue_s",
    )
    names = [*means, *(f"{vc}: {each}" for vc in gandiva.TENANTS for each in means)]
    curves = "explored", *(f"{vc}: done" for vc in gandiva.TENANTS)
    played = Played(
        seed=0,
        figures=dict.fromkeys(names, 1.0),
        curves={each: [(0.0, 1.0), (1.0, 2.0)] for each in curves},
    )
    lines = experiment.lines({label: [played] for label in labels})
    assert lines
    assert all(line.spread() != "-" for line in lines)
