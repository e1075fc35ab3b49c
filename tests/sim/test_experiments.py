"""HiveD's experiments: quotas by hand, one small comparison, and the command around them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from skep.units import Duration, in_seconds, seconds
from skep_lab.experiments import catalogue, hived
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.quota import RULES, QuotaRun, Rules
from skep_lab.experiments.quotagandiva import GandivaRun
from skep_lab.experiments.quotalas import LasRun
from skep_lab.experiments.setting import Setting
from skep_lab.experiments.setting import play as outcome_of
from skep_lab.traces.generators import hived as workload
from skep_lab.traces.job import TraceJob
from skep_services.cli import exits
from skep_services.cli.main import main
from skep_services.engines.deal import Ear, Engine
from skep_services.engines.processes import Processes
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task
from skep_services.experiments import keep, page, play
from tests.workload_kit import GAVEL

DEAF = Ear(lambda _place, _data: None, lambda _parts: None, lambda _text: None)
RUN_ALL = play.run_all
DRAWN = cache(workload.generate)
SMALL = workload.Options(days=2, part=0.02)


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each workload once: that a seed draws the same is tested with the generators."""
    monkeypatch.setattr(workload, "generate", DRAWN)


def came_of(task: play.Task) -> hived.Outcome | Played:
    return outcome_of(task.setting_of(), task.seed)


def job(
    vc: str, at: float, length: float, gpus: int, workers: int = 1, within: str = ""
) -> TraceJob:
    return TraceJob(
        id=f"{vc}@{at:g}",
        at=seconds(at),
        run_time=seconds(length),
        gpus=gpus,
        workers=workers,
        vc=vc,
        within=within,
    )


def played(*jobs: TraceJob, nodes: int = 2, **quota: int) -> QuotaRun:
    run = QuotaRun(jobs, quota, nodes, Duration(0))
    run.run()
    assert all(end is not None for end in run.ended)
    return run


def waits(run: QuotaRun | GandivaRun) -> list[float]:
    return [in_seconds(Duration(each)) for each in run.waited]


def test_eight_gpus_are_waited_for_though_they_are_free_on_two_nodes() -> None:
    jobs = [job("a", 0, 100, 5), job("a", 0, 50, 5), job("b", 10, 10, 6)]
    assert waits(played(*jobs, a=10, b=6)) == [0, 0, 40]


def test_a_soft_gang_takes_what_is_free_and_one_node_if_one_is() -> None:
    jobs = [job("a", 0, 100, 5), job("a", 0, 50, 5), job("b", 10, 10, 6, 6, "node")]
    assert waits(played(*jobs, a=10, b=6)) == [0, 0, 0]
    jobs = [job("a", 0, 100, 4), job("b", 1, 10, 8, 8, "node"), job("a", 2, 10, 4)]
    assert waits(played(*jobs, a=8, b=8)) == [0, 0, 0]


def test_who_is_within_the_quota_preempts_where_the_fewest_gpus_go() -> None:
    jobs = [job("b", 0, 100, 8), job("b", 1, 100, 2), job("a", 10, 50, 8)]
    run = played(*jobs, a=16, b=0)
    assert run.preempted_gpus == 2
    assert waits(run) == [0, 50, 0], "the 8 GPUs of the first stay, the 2 wait for the third's"


def test_what_was_preempted_goes_on_where_it_was_and_before_later_jobs() -> None:
    jobs = [job("b", 0, 100, 8), job("a", 60, 50, 8), job("b", 70, 10, 8)]
    run = played(*jobs, nodes=1, a=8, b=0)
    assert waits(run) == [50, 0, 80]
    assert [in_seconds(Duration(end or 0)) for end in run.ended] == [150, 110, 160]


def test_a_low_job_is_promoted_when_the_quota_has_room_and_is_safe_then() -> None:
    jobs = [job("a", 0, 20, 8), job("a", 0, 100, 8), job("b", 10, 10, 8), job("b", 30, 10, 8)]
    run = played(*jobs, a=8, b=8)
    assert waits(run) == [0, 10, 0, 0], "the second gives way at 10, and comes back at 20"
    jobs = [job("a", 0, 20, 8), job("a", 0, 100, 8), job("b", 30, 10, 8), job("b", 30, 10, 8)]
    run = played(*jobs, a=8, b=16)
    assert run.preempted_gpus == 0
    assert waits(run) == [0, 0, 0, 10], "at 20 it is promoted: nobody clears its node at 30"


def test_the_first_of_a_queue_holds_up_its_own_tenant_only() -> None:
    jobs = [
        job("a", 0, 100, 5),
        job("a", 0, 50, 5),
        job("b", 1, 10, 8),
        job("b", 2, 10, 1),
        job("c", 3, 10, 1),
    ]
    assert waits(played(*jobs, a=10, b=9, c=1))[2:] == [49, 48, 0]


def test_a_small_comparison_has_every_arm_and_is_the_same_again() -> None:
    told: list[str] = []
    first = hived.compare(3, 12, SMALL, tell=told.append)
    assert told == ["private", "quota", "cells"]
    assert first == hived.compare(3, 12, SMALL)
    assert first != hived.compare(4, 12, SMALL, arms=("quota",))
    assert list(first.tenants) == list(workload.TENANTS)
    assert first.left_out > 0, "res-a has one GPU here, and larger jobs"
    assert first.anomalies["cells"] == 0
    assert set(first.completion_s) == {"private", "quota", "cells"}
    assert all(0 <= level <= 1 for arm in first.fragmentation.values() for _, level in arm)


def test_tenants_without_jobs_and_tenants_that_left_are_no_trouble() -> None:
    gone = tuple(vc for vc in workload.TENANTS if vc not in ("res-d", "prod-b"))
    found = hived.compare(0, 12, workload.Options(days=2, part=0.02, without=gone))
    assert list(found.tenants) == ["res-d", "prod-b"]
    assert not any(found.anomalies.values())


def test_under_quotas_a_tenant_that_asks_for_little_waits_for_the_others() -> None:
    """The paper's anomaly: among jobs of 1 GPU no whole node is left."""
    jobs = [job("b", 0, (100, 1000)[number % 2], 1) for number in range(24)]
    jobs.append(job("a", 200, 10, 8))
    run = played(*jobs, nodes=3, a=8, b=16)
    assert waits(run) == [0] * 24 + [800], "12 jobs are left, 4 on every node, all within the quota"
    assert waits(played(jobs[-1], nodes=1, a=8)) == [0]


def test_rules_that_the_paper_leaves_open() -> None:
    jobs = [job("a", 0, 20, 8), job("a", 0, 100, 8), job("b", 30, 10, 8), job("b", 30, 10, 8)]
    low = QuotaRun(jobs, {"a": 8, "b": 16}, 2, Duration(0), Rules(promote=False))
    low.run()
    assert low.preempted_gpus == 8, "it is as low at 30 as it was"
    wait = QuotaRun(jobs[:2], {"a": 8, "b": 8}, 2, Duration(0), Rules(beyond=False))
    wait.run()
    assert waits(wait) == [0, 20]
    jobs = [
        job("a", 0, 200, 8),
        job("b", 0, 200, 8),
        job("a", 0, 50, 8),
        job("b", 1, 10, 8),
        job("a", 2, 10, 8),
        job("c", 3, 10, 8),
    ]
    order = QuotaRun(jobs, {"a": 32, "b": 16, "c": 8}, 3, Duration(0), Rules(least_used=True))
    order.run()
    assert waits(order)[3:] == [69, 58, 47], "c has nothing, a a quarter, and b half of its quota"


def las(*jobs: TraceJob, nodes: int = 2, **quota: int) -> LasRun:
    run = LasRun(jobs, quota, nodes, Duration(0))
    run.run()
    assert all(end is not None for end in run.ended)
    return run


def test_under_tiresias_with_quotas_who_was_served_least_is_first_in_his_tenant() -> None:
    """At 3,250 GPU-seconds a job goes to the second queue, and gives way to new ones."""
    jobs = [job("a", 0, 1000, 8), job("a", 500, 100, 8)]
    run = las(*jobs, nodes=1, a=8)
    assert [in_seconds(Duration(each)) for each in run.waited] == [100, 0]
    assert [in_seconds(Duration(end or 0)) for end in run.ended] == [1100, 600]
    jobs = [job("a", 0, 400, 8), job("a", 100, 100, 8)]
    assert [in_seconds(Duration(each)) for each in las(*jobs, nodes=1, a=8).waited] == [0, 300]


def test_under_tiresias_with_quotas_what_is_beyond_gives_way() -> None:
    jobs = [job("b", 0, 100, 8), job("b", 1, 100, 2), job("a", 10, 50, 8)]
    run = las(*jobs, a=16, b=0)
    assert run.preempted_gpus == 2
    assert [in_seconds(Duration(each)) for each in run.waited] == [0, 50, 0]
    jobs = [job("a", 0, 100, 5), job("a", 0, 50, 5), job("b", 10, 10, 6)]
    assert [in_seconds(Duration(each)) for each in las(*jobs, a=10, b=6).waited] == [0, 0, 40]


def turns(*jobs: TraceJob, nodes: int = 2, rules: Rules = RULES, **quota: int) -> GandivaRun:
    run = GandivaRun(jobs, quota, nodes, Duration(0), rules)
    run.run()
    assert all(end is not None for end in run.ended)
    return run


def test_under_gandiva_with_quotas_a_tenants_jobs_take_turns_and_going_on_costs_a_second() -> None:
    jobs = [job("a", 0, 1200, 8), job("a", 600, 1200, 8)]
    run = turns(*jobs, nodes=1, a=8)
    assert [in_seconds(Duration(each)) for each in run.waited] == [1200, 602]
    assert [in_seconds(Duration(end or 0)) for end in run.ended] == [2402, 2404]
    large = [job("a", 0, 9000, 4), job("a", 1, 9000, 4), job("a", 2, 9000, 4), job("a", 3, 600, 8)]
    assert in_seconds(Duration(turns(*large, nodes=1, a=8).waited[3])) < 3000


def test_under_gandiva_with_quotas_who_is_beyond_gives_way_and_goes_on_elsewhere() -> None:
    jobs = [job("b", 0, 100, 8), job("b", 1, 100, 2), job("a", 10, 50, 8), job("c", 10, 300, 6)]
    run = turns(*jobs, a=8, b=0, c=8)
    assert waits(run)[2:] == [0, 0]
    assert (run.preempted_gpus, run.moves) == (8, 2), "the 2 go on beside the 6, and then the 8"
    wait = turns(*jobs[:1], job("a", 1, 50, 8), a=8, b=8, nodes=2, rules=Rules(beyond=False))
    assert waits(wait) == [0, 0]


def test_under_gandiva_with_quotas_a_server_is_cleared_for_who_needs_it_whole() -> None:
    small = [job("b", 0, 100, 7), job("b", 0, 5000, 1), job("b", 0, 5000, 6)]
    run = turns(*small, job("a", 200, 50, 8), a=8, b=14)
    assert run.moves == 1
    assert waits(run)[3] == 0
    assert in_seconds(Duration(run.ended[1] or 0)) == 5003.5


def test_what_is_sampled_tells_the_high_from_the_low() -> None:
    jobs = [job("a", 0, 100, 4), job("a", 0, 100, 8)]
    run = QuotaRun(jobs, {"a": 4, "b": 12}, 2, seconds(50))
    run.run()
    assert [each.no_affinity for each in run.samples] == [0, 0.5, 0.5]
    assert [(each.taken, each.high) for each in run.samples] == [(0, 0), (12, 4), (12, 4)]


def test_private_clusters_can_be_the_quotas_scheduler_too() -> None:
    both = ("private", "quota")
    found = hived.compare(3, 12, SMALL, arms=both, plain=True)
    slow = hived.compare(3, 12, SMALL, arms=both)
    assert found.completion_s["quota"] == slow.completion_s["quota"]
    assert found.completion_s["private"] == pytest.approx(slow.completion_s["private"], rel=0.1)
    assert 0 < found.high <= found.utilisation["quota"]


def test_what_was_kept_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hived.compare(3, 12, SMALL, arms=("private", "quota"), plain=True)
    setting = Setting("any", 12, SMALL, ("private", "quota"), plain=True)
    keep.put(tmp_path / "kept", setting, 3, one)
    assert keep.get(tmp_path / "kept", setting._replace(label="another"), 3) == one
    assert keep.get(tmp_path / "kept", setting, 4) is None
    assert keep.get(tmp_path / "kept", setting._replace(nodes=13), 3) is None
    assert keep.get(tmp_path / "none", setting, 3) is None
    small = catalogue.EXPERIMENTS["hived-fig6a"]._replace(settings=lambda _: [setting])
    monkeypatch.setitem(catalogue.EXPERIMENTS, "hived-fig6a", small)
    todo = play.tasks(small, [3], None)
    found = play.run_all(todo, Processes(1), DEAF, Stop(), tmp_path / "kept")
    assert found == {todo[0]: one}
    monkeypatch.setattr(keep, "_program", lambda *, plain: b"another")
    assert keep.get(tmp_path / "kept", setting, 3) is None


def test_static_cells_are_as_many_gpus_in_chains_of_their_own() -> None:
    fixed = hived.static(12)
    assert sum(len(chain.nodes) for chain in fixed.chains.values()) <= 12 + 4
    assert {quota.chain for vc in fixed.vcs.values() for quota in vc.cells} == set(fixed.vcs)


def test_every_experiment_has_settings_with_labels_of_their_own() -> None:
    for each in catalogue.EXPERIMENTS.values():
        labels = [setting.label for setting in each.settings(1.0)]
        assert len(set(labels)) == len(labels), each.name


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make an experiment small, and run it in this process."""
    monkeypatch.chdir(tmp_path)
    small = catalogue.EXPERIMENTS["hived-fig6a"]._replace(
        settings=lambda days: [
            Setting("279 nodes: cells", 12, workload.Options(days=days or 2, part=0.02)),
            Setting(
                "279 nodes: quotas",
                12,
                workload.Options(days=days or 2, part=0.02),
                ("private", "quota"),
                plain=True,
            ),
        ]
    )
    monkeypatch.setitem(catalogue.EXPERIMENTS, "hived-fig6a", small)
    monkeypatch.setattr(
        play,
        "run_all",
        lambda todo, _engine, _ear, _stop, _folder: {task: came_of(task) for task in todo},
    )


@pytest.mark.usefixtures("tiny")
def test_an_experiment_tells_and_writes_a_report_that_loads_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["experiment", "hived-fig6a", "--seeds", "3-3", "--days", "2", "--out", "report"]
    assert main([*words, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["experiment"] == "hived-fig6a"
    worse = [
        line for line in tree["figures"] if line["what"] == "cells: tenants worse off than alone"
    ]
    assert [line["ours"] for line in worse] == [[0]]
    assert json.loads(Path("report/hived-fig6a.json").read_text()) == tree
    html = Path("report/hived-fig6a.html").read_text()
    assert "200 min" in html
    assert "<svg" in html
    assert not re.search(r'(?:src|href)="(?!#|data:)|url\((?!#)|@import|<script', html)
    ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", html))
    ET.fromstring(Path("report/hived-fig6a.svg").read_text())
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "FIGURE" in out
    assert "1 seed" in out


def test_a_tenants_delay_is_drawn_by_setting_with_its_spread() -> None:
    both = [hived.compare(seed, 12, SMALL, plain=True) for seed in (3, 4)]
    for name, rows in (("hived-fig9", "25% soft"), ("hived-load-shapes", "and prod-d")):
        experiment = catalogue.EXPERIMENTS[name]
        results = {each.label: both for each in experiment.settings(1.0)}
        assert all(len(line.ours) == 2 for line in experiment.lines(results))
        first = page.pictures(experiment, results)[0]
        assert ">" + rows + "<" in first
        assert "quota, most" in first
        assert ("cells, most" in first) == (name == "hived-fig9")


def test_the_small_nodes_of_gandiva_hold_four() -> None:
    jobs = [job("a", 0, 100, 3), job("a", 0, 50, 2)]
    run = GandivaRun(jobs, {"a": 4}, 1, Duration(0), Rules(node_gpus=4, slice_s=60))
    run.run()
    assert waits(run)[1] > 0


@pytest.mark.parametrize(
    "words, said",
    [
        (["hived-fig77"], "hived-fig7"),
        (["hived-fig7", "--days", "0"], "above 0"),
        (["hived-fig7", "--seeds", "x"], "x"),
        (["genie-measured"], "SKEP_SHARED_DATA names no folder with gavel/"),
    ],
)
def test_wrong_words_are_refused_with_a_hint(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKEP_SHARED_DATA", raising=False)
    assert main(["experiment", *words]) == exits.USAGE
    assert said in capsys.readouterr().err


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [
        *catalogue.EXPERIMENTS
    ]


@pytest.mark.usefixtures("tiny")
def test_an_interrupted_experiment_reports_whole_seeds_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(
        todo: list[play.Task], _engine: Engine, _ear: Ear, stop: Stop, _folder: object
    ) -> dict[play.Task, hived.Outcome | Played]:
        stop.asked = True
        return {task: came_of(task) for task in todo[:3]}

    monkeypatch.setattr(play, "run_all", some)
    code = main(["experiment", "hived-fig6a", "--seeds", "3-5", "--days", "2"])
    assert code == exits.INTERRUPTED
    assert "Interrupted: 1 of 3 seeds" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_one_interrupted_before_a_seed_is_whole_writes_a_report_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(
        _todo: object, _engine: Engine, _ear: Ear, stop: Stop, _folder: object
    ) -> dict[object, object]:
        stop.asked = True
        return {}

    Path("gavel").mkdir()
    Path("gavel/isolated_throughput.csv").write_text(GAVEL)
    monkeypatch.setenv("SKEP_SHARED_DATA", ".")
    monkeypatch.setattr(play, "run_all", none)
    for name in catalogue.EXPERIMENTS:
        assert main(["experiment", name, "--out", "none", "--json"]) == exits.INTERRUPTED
        tree = json.loads(capsys.readouterr().out)
        assert (tree["interrupted"], tree["seeds"], tree["figures"]) == (True, [], [])
        html = Path(f"none/{name}.html").read_text()
        assert "0 of 10 seeds are whole" in html
        ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", html))


class InHere:
    """An engine that runs tasks in this process, whether they watch or not."""

    def run(self, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        for place, task in enumerate(tasks):
            ear.take(place, play.work(task.inputs, lambda _: not stop.asked))


@pytest.mark.usefixtures("tiny")
def test_what_comes_of_a_run_travels_unchanged_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "run_all", RUN_ALL)
    todo = play.tasks(catalogue.EXPERIMENTS["hived-fig6a"], [3], 2.0)
    found = play.run_all(todo, InHere(), DEAF, Stop(), tmp_path)
    assert found == {task: came_of(task) for task in todo}
    assert found == play.run_all(todo, Processes(1), DEAF, Stop(), tmp_path), "nothing runs again"


def test_a_seed_counts_if_all_its_settings_were_run() -> None:
    one = hived.compare(3, 12, SMALL, arms=("cells",))
    settings = catalogue.EXPERIMENTS["hived-fig10"].settings(1.0)
    todo = play.tasks(catalogue.EXPERIMENTS["hived-fig10"], [0, 1], 1.0)
    found = play.results(settings, dict.fromkeys(todo[:3], one))
    assert {label: len(outcomes) for label, outcomes in found.items()} == {
        "dynamic: cells": 1,
        "static": 1,
    }
    assert page.page(catalogue.EXPERIMENTS["hived-fig10"], found, [], "").startswith("<!DOCTYPE")
