"""`skep sim`: small traces from the command line to the report."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skep.units import Instant, seconds
from skep_lab.live_log.live_run import Lived
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import Costs
from skep_lab.traces.job import RowProblem, Trace, TraceJob
from skep_services.cli.main import main
from skep_services.cli.progress import Progress
from skep_services.simulations import plots, pool, report, sources
from skep_services.simulations.inputs import policy
from skep_services.simulations.order import play

Run = Callable[..., tuple[int, str, str]]

HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,vc\n"
ROWS = "".join(
    f"{n},{gpus},{at},10,resnet50,{length},0,{vc}\n"
    for n, (gpus, at, length, vc) in enumerate(
        [
            (8, 0, 100, "A"),
            (8, 10, 100, "A"),
            (1, 20, 10, "A"),
            (4, 0, 50, "B"),
            (4, 5, 50, "B"),
            (4, 10, 50, "B"),
            (2, 90, 30, "B"),
        ]
    )
)
CLUSTER = """\
chains:
  v100: {gpu: v100, levels: {node: 8}, nodes: "n-[1-3]"}
vcs:
  A: {cells: {v100/node: 1}}
  B: {cells: {v100/node: 1}}
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(HEAD + ROWS)
    Path("cluster.yaml").write_text(CLUSTER)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["sim", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


HERE = ("--trace", "jobs.csv", "--cluster", "cluster.yaml", "--processes", "1")


def test_one_run_is_told_as_a_whole_by_tenant_and_by_size(run: Run) -> None:
    code, out, err = run("run", *HERE)
    assert code == 0
    assert "makespan" in out
    assert re.search(r"JCT, mean +\d+\.\d\d s", out)
    assert re.search(r"\nA +3 +160 s", out), "100, 190 and 190 s"
    assert re.search(r"\nB +4 +55 s", out), "50, 50, 90 and 30 s"
    assert "5-8 GPUs" in out
    assert "starts and ends" in err


def test_json_has_every_measure_and_is_the_same_every_time(run: Run) -> None:
    code, out, _ = run("run", *HERE, "--json")
    tree = json.loads(out)
    assert code == 0
    assert (tree["jobs"], tree["interrupted"], len(tree["runs"])) == (7, False, 1)
    one = tree["runs"][0]
    assert one["measures"]["all"]["jct_s"]["mean"] == pytest.approx((480 + 220) / 7)
    assert one["measures"]["by_vc"]["A"]["queue_s"]["mean"] == pytest.approx((90 + 180) / 3)
    assert one["vc_gpus"] == {"A": 8, "B": 8}
    assert "cpu_s" not in one
    assert run("run", *HERE, "--json")[1] == out


def test_vcs_share_one_queue_where_nobody_divided_the_cluster(run: Run) -> None:
    _, out, _ = run("run", "--trace", "jobs.csv", "--cluster", "1x8", "--json")
    measures = json.loads(out)["runs"][0]["measures"]
    assert measures["makespan_s"] > 250, "one node, and first come, first served"
    assert list(measures["by_vc"]) == ["A", "B"], "tenants are told all the same"


def test_several_processes_come_to_the_same(run: Run) -> None:
    words = (
        "sweep",
        "--trace",
        "jobs.csv",
        "--cluster",
        "cluster.yaml",
        "--seeds",
        "2",
        "--policy",
        "fifo",
        "--policy",
        "backfill",
        "--json",
    )
    one = run(*words, "--processes", "1")
    several = run(*words, "--processes", "2")
    assert one[:2] == several[:2]
    tree = json.loads(one[1])
    assert [each["label"] for each in tree["runs"]] == [
        "fifo · seed 0",
        "fifo · seed 1",
        "backfill · seed 0",
        "backfill · seed 1",
    ]
    assert [(each["label"], each["seeds"]) for each in tree["swept"]] == [
        ("fifo", [0, 1]),
        ("backfill", [0, 1]),
    ]
    assert tree["swept"][0]["spreads"]["jct_mean_s"]["deviation"] == 0


def test_a_comparison_has_a_column_for_each(run: Run) -> None:
    code, out, _ = run(
        "compare", "--trace", "jobs.csv", "--cluster", "1x8", "--cluster", "9x8", "--processes", "1"
    )
    assert code == 0
    assert re.search(r"^MEASURE +1x8 +9x8", out, re.MULTILINE)


def test_what_if_is_told_before_and_after_with_the_difference(run: Run) -> None:
    code, out, _ = run("compare", *HERE, "--what-if", "A.nodes+=1")
    assert code == 0
    assert "A gets 1 node of v100: 1 spare, 0 new" in out
    assert re.search(r"A +queueing, mean +90\.00 s +26\.67 s +-63\.33 s \(-70\.4%\)", out)
    assert "the same for B\n" in out
    wrong = run("compare", *HERE, "--what-if", "C.nodes+=1")
    assert wrong[0] == 2
    assert "no VC is called 'C'" in wrong[2]


def test_an_audit_finds_nobody_worse_than_alone(run: Run) -> None:
    _, out, _ = run("run", *HERE, "--audit", "--json")
    tenants = json.loads(out)["runs"][0]["audit"]["tenants"]
    assert [tenants[vc]["windows_worse"] for vc in ("A", "B")] == [0, 0]
    assert [tenants[vc]["jobs"] for vc in ("A", "B")] == [3, 4]
    assert tenants["A"]["shared_s"] == tenants["A"]["private_s"] == pytest.approx(90)
    code, _, err = run("run", "--trace", "jobs.csv", "--cluster", "3x8", "--audit")
    assert code == 2
    assert "a cluster with VCs" in err


def test_the_cluster_that_runs_here_is_a_trace_and_a_cluster(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that have not ended are told, and do not keep the others from being simulated."""
    jobs = tuple(
        TraceJob(id=f"j{n}", at=seconds(0), run_time=seconds(60), gpus=8, vc="A") for n in range(2)
    )
    trace = Trace(name="live", jobs=jobs, problems=(RowProblem(3, "has not ended: 'j3'"),))
    cluster = uniform(2, 8, vcs={"A": 1})
    result = RunResult(trace="live", cluster="", policy="", seed=0, gpus=16, node_gpus=8, jobs=())
    here = Lived(
        begin=Instant(0), trace=trace, result=result, cluster=cluster, costs=Costs(), ids=()
    )
    monkeypatch.setattr(sources, "live", lambda home: here)
    code, out, err = run(
        "compare",
        "--trace",
        "live",
        "--cluster",
        "live",
        "--processes",
        "1",
        "--what-if",
        "A.nodes+=1",
    )
    assert code == 0
    assert re.search(r"queueing, mean +30\.00 s +0\.00 s", out)
    assert "has not ended" in err


def test_without_a_cluster_here_live_says_how_to_get_one(run: Run) -> None:
    code, _, err = run("run", "--trace", "live", "--cluster", "2x8", "--home", "nobody")
    assert code == 4
    assert "no cluster runs in" in err


# --- what is wrong --------------------------------------------------------------------------------


def test_rows_that_cannot_run_end_it_or_are_left_out_and_told(run: Run) -> None:
    Path("bad.csv").write_text(HEAD + ROWS + "7,0,95,1,r,10,0,A\n8,64,96,1,r,10,0,B\n")
    code, out, err = run("run", "--trace", "bad.csv", "--cluster", "cluster.yaml", "--json")
    assert code == 1
    assert json.loads(out)["error"]["reason"] == "bad-trace"
    code, out, err = run(
        "run",
        "--trace",
        "bad.csv",
        "--cluster",
        "cluster.yaml",
        "--lenient",
        "--json",
        "--out",
        "told",
    )
    assert code == 0
    tree = json.loads(out)
    assert (tree["jobs"], len(tree["problems"])) == (7, 2)
    assert "2 rows left out" in err
    assert "Rows that were left out: 2" in Path("told/report.html").read_text()


@pytest.mark.parametrize(
    "words, what",
    [
        (("run", "--trace", "none.csv", "--cluster", "2x8"), "no such file"),
        (("run", "--trace", "jobs.csv", "--cluster", "two"), "Write it as 80x8"),
        (("run", *HERE, "--policy", "fifo", "--policy", "fifo"), "run takes one --policy"),
        (("compare", *HERE), "compare what?"),
        (("compare", *HERE, "--policy", "fifo", "--policy", "fifo"), "asked for twice"),
        (("run", *HERE, "--policy", "fifa"), "did you mean fifo?"),
        (("run", *HERE, "--what-if", "A.nodes+=1"), "--what-if belongs to compare"),
        (("run", *HERE, "--models", "stedy"), "did you mean steady?"),
        (("run", *HERE, "--until", "soon"), "write a length of time"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(run: Run, words: list[str], what: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert what in err


def test_a_run_in_which_no_job_ended_is_told_all_the_same(run: Run) -> None:
    code, out, err = run("run", *HERE, "--until", "1s", "--out", "cut")
    assert code == 0
    assert re.search(r"jobs that ended +0", out)
    assert "7 jobs not finished" in err
    parsed(Path("cut/report.html").read_text())
    assert run("compare", *HERE, "--until", "1s", "--what-if", "A.nodes+=1")[0] == 0


def test_a_run_that_is_ended_early_says_so(run: Run) -> None:
    code, out, err = run("run", *HERE, "--until", "1m", "--out", "cut")
    assert code == 0
    assert re.search(r"jobs not finished +\d", out)
    assert "ended at --until" in err
    assert "ended at --until" in Path("cut/report.html").read_text()


def test_a_run_whose_process_dies_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORK", "tests.engine_kit:dies")
    code, _, err = run(
        "compare", "--trace", "jobs.csv", "--cluster", "1x8", "--cluster", "2x8", "--processes", "2"
    )
    assert code == 1
    assert "ended without a result" in err


# --- progress -------------------------------------------------------------------------------------


def test_progress_tells_the_part_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 10.0])
    progress = Progress(["a", "b"], lambda: next(times))
    assert progress.line([0.5, 0.0]) == (
        "██████··················  25%  about 30s left  0 of 2 runs done: a 50%"
    )
    assert "10s so far" in progress.line([0.0, 0.0])


# --- the report -----------------------------------------------------------------------------------


def parsed(text: str) -> ET.Element:
    """Return a page as XML, which it is but for its document type."""
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_the_report_is_well_formed_and_loads_nothing(run: Run) -> None:
    run("compare", *HERE, "--what-if", "A.nodes+=1;A.policy=backfill", "--audit", "--out", "out")
    text = Path("out/report.html").read_text()
    root = parsed(text)
    names_of = [name.rpartition("}")[2] for element in root.iter() for name in element.attrib]
    outside = [name for name in names_of if name in ("href", "src", "srcset", "data", "action")]
    assert not outside
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "image", "use"}
    assert not re.search(r"url\(|@import", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") >= 7
    for told in (
        "A gets 1 node of v100",
        "Sharing safety: now",
        "0 anomalies",
        "SCHED², eq. 2",
        "jobs.csv",
        "seeds",
        "decisions",
    ):
        assert told in text
    ET.fromstring(Path("out/summary.svg").read_text())
    tree = json.loads(Path("out/results.json").read_text())
    assert len(tree["runs"][0]["series"]["at"]) > 100
    lines = Path("out/jobs-1.csv").read_text().splitlines()
    assert lines[1] == "0,A,8,0,0,100,0,100,0,0,"
    assert len(lines) == 8


def test_what_others_wrote_is_escaped(run: Run) -> None:
    Path("jobs.csv").write_text(HEAD + ROWS.replace(",A\n", ",<script>&\n"))
    run("run", "--trace", "jobs.csv", "--cluster", "2x8", "--out", "out")
    text = Path("out/report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;&amp;" in text
    parsed(text)


def test_a_sweep_tells_the_spread(run: Run) -> None:
    _, out, _ = run(
        "sweep",
        "--trace",
        "sched2:jobs=20",
        "--cluster",
        "1x8",
        "--seeds",
        "3",
        "--out",
        "out",
        "--processes",
        "1",
    )
    assert re.search(r"JCT, mean +[\d,.]+ s ± [1-9][\d,.]+ s", out), "every seed is another trace"
    assert "Over the seeds" in Path("out/report.html").read_text()


def test_spread_is_that_of_a_sample() -> None:
    assert report.spread([1.0, 2.0, 3.0]) == report.Spread(2.0, 1.0, 1.0, 3.0)
    assert report.spread([4.0]) == report.Spread(4.0, 0.0, 4.0, 4.0)


def test_plots_of_nothing_or_of_one_value_are_plots() -> None:
    empty = plots.lines("t", [], plots.seconds_text, plots.part_text)
    assert "nothing to draw" in empty
    flat = plots.lines(
        "t", [plots.Line("a", [(0.0, 0.0)])], plots.seconds_text, plots.part_text, x_log=True
    )
    bars = plots.bars("t", ["x", "y"], [plots.Bars("a", [None, 0.0])], plots.number_text)
    for picture in (empty, flat, bars, plots.stacked("t", [flat, bars])):
        ET.fromstring(picture)
    assert [plots.seconds_text(value) for value in (30, 90, 5400, 200_000)] == [
        "30s",
        "1.5m",
        "1.5h",
        "2.31d",
    ]


def test_jobs_can_do_the_same_in_every_run_of_a_comparison(run: Run) -> None:
    job = {"at": 0, "run_time": 1000, "gpus": 8, "priority": 0}
    urgent = {"at": 100, "run_time": 100, "gpus": 8, "priority": 5}
    lines = [{"skep_trace": 1, "name": "two", "jobs": 2, "notes": []}]
    lines += [
        {**one, "id": str(n), **{key: one[key] * 10**9 for key in ("at", "run_time")}}
        for n, one in enumerate((job, urgent))
    ]
    Path("two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--trace", "two.jsonl", "--cluster", "1x8", "--processes", "1", "--json")
    alone = json.loads(run("run", *words)[1])["runs"][0]["measures"]["all"]
    assert (alone["preempted"], alone["lost_s"]) == (1, 100)
    code, out, err = run("compare", *words, "--policy", "fifo", "--policy", "srtf")
    assert code == 0
    assert "jobs can be suspended in every run, also under fifo" in err
    tree = json.loads(out)
    assert "fifo" in tree["settings"]["alike"]
    lost = [one["measures"]["all"]["lost_s"] for one in tree["runs"]]
    assert lost == [0, 0], "it was suspended in both"
    assert (
        "alike"
        not in json.loads(run("compare", *words, "--policy", "fifo", "--policy", "backfill")[1])[
            "settings"
        ]
    )


def test_a_run_that_was_cut_does_not_look_best(run: Run) -> None:
    words = ("compare", "--trace", "jobs.csv", "--cluster", "1x8", "--cluster", "9x8")
    code, out, _ = run(*words, "--until", "200s")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("JCT, mean of the"))
    assert re.search(r"mean of the 3 jobs that ended in every run +[\d.]+ s +[\d.]+ s", row)
    plain = next(line for line in out.splitlines() if line.startswith("JCT, 99 %"))
    assert re.search(r"JCT, 99 % +- +[\d.]+ s", plain), "only of the run that came to its end"


def test_jobs_of_different_traces_are_not_compared(run: Run) -> None:
    words = ("sweep", "--trace", "sched2:jobs=20", "--cluster", "1x8", "--processes", "1")
    for seeds, told in (("1", True), ("2", False)):
        policies = ("--policy", "fifo", "--policy", "srtf")
        code, _, _ = run(*words, *policies, "--seeds", seeds, "--until", "1h", "--out", "cut")
        assert code == 0
        page = Path("cut/report.html").read_text()
        assert ("jobs that ended in every run" in page) is told


@pytest.mark.parametrize("verb", ["sim", "traces"])
def test_a_truncated_file_is_refused_in_one_line(
    run: Run, verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    packed = gzip.compress((HEAD + ROWS * 500).encode())
    Path("cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    Path("bad.csv.gz").write_bytes(packed[:20] + b"\xff" * 20 + packed[40:])
    for name in ("cut.csv.gz", "bad.csv.gz"):
        if verb == "sim":
            code, out, err = run("run", "--trace", name, "--cluster", "1x8")
        else:
            code = main(["traces", "check", name])
            out, err = capfd.readouterr()
        assert (code, out) == (2, "")
        assert f"{name}: not a whole gzip file" in err
        assert err.count("\n") == 1


# --- like for like --------------------------------------------------------------------------------


def test_what_differs_between_policies_stands_in_the_head_of_the_table(run: Run) -> None:
    policies = ("--policy", "fifo", "--policy", "srtf", "--policy", "sif")
    words = ("compare", "--trace", "jobs.csv", "--cluster", "2x8", *policies, "--processes", "1")
    code, out, _ = run(*words, "--out", "out")
    assert code == 0
    table = out.partition("MEASURE")[2].splitlines()
    assert re.fullmatch(r"suspends running jobs for others +no +yes +no", table[1])
    assert re.fullmatch(r"passes over a job that does not fit +no +yes +no", table[2])
    assert re.fullmatch(r"goes by run times that owners tell +no +yes +yes", table[3])
    assert table[4].startswith("JCT, mean ")
    for told in (
        "the same 7 jobs, all of one priority",
        "jobs can be suspended",
        "starts, stops and changes of jobs cost no time (--costs)",
        "owners tell run times exactly",
        "no policy moves jobs that are not suspended, packs jobs",
    ):
        assert f"in every run: {told}" in out
    page = Path("out/report.html").read_text()
    assert "suspends running jobs for others" in page
    assert "no policy moves jobs" in page
    terms = json.loads(Path("out/results.json").read_text())["terms"]
    assert terms["runs"] == ["fifo", "srtf", "sif"]
    assert {each["key"]: each["values"] for each in terms["differ"]}["run_times"] == [
        "no",
        "yes",
        "yes",
    ]


def test_what_a_priority_is_worth_is_named_where_there_are_priorities(run: Run) -> None:
    jobs = [
        {"id": str(n), "at": n * 10**9, "run_time": 10**11, "gpus": 8, "priority": n % 2}
        for n in range(4)
    ]
    head = {"skep_trace": 1, "name": "four", "jobs": 4}
    Path("four.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [head, *jobs]))
    policies = ("--policy", "fifo", "--policy", "sif", "--policy", "drf")
    words = ("compare", "--trace", "four.jsonl", "--cluster", "1x8", "--processes", "1")
    code, out, _ = run(*words, *policies, "--costs", "suspend=5")
    assert code == 0
    assert re.search(r"a higher priority +takes GPUs +waits first +does not count", out)
    assert "the same 4 jobs with the same priorities: 0 (2), 1 (2)" in out
    assert "what changes of jobs cost: suspend 5 s" in out


def test_clusters_that_differ_are_named(run: Run) -> None:
    words = ("compare", "--trace", "jobs.csv", "--cluster", "cluster.yaml", "--cluster", "9x8")
    _, out, _ = run(*words, "--processes", "1")
    assert re.search(r"cluster +cluster.yaml, 2 VCs +9x8, one queue", out)


def test_a_run_that_waits_for_ever_is_stuck_although_until_was_given(run: Run) -> None:
    """A family's part is 8 of 16 GPUs: a job of 16 never runs."""
    rows = "0,8,0,10,resnet50,100,0,A\n1,16,10,10,vgg16,100,0,A\n"
    Path("large.csv").write_text(HEAD + rows)
    words = ("--trace", "large.csv", "--cluster", "2x8", "--processes", "1", "--out", "out")
    policy = ("--policy", 'capacity-per-model:shares=[["resnet50",1],["vgg16",1]]')
    code, _, err = run("run", *words, *policy, "--until", "365d")
    assert code == 0
    assert "ended while jobs waited for what never came" in err
    assert json.loads(Path("out/results.json").read_text())["runs"][0]["cut"] == "stuck"
    run("run", *words, *policy, "--until", "50s")
    assert json.loads(Path("out/results.json").read_text())["runs"][0]["cut"] == "until"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_no_column_beside_complete_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The second of three runs is interrupted; the third never begins."""
    begun: list[str] = []

    def interrupted(order: Any, trace: Trace, speeds: Any, watch: Any) -> Any:
        begun.append(order.label)
        if len(begun) == 2:
            os.kill(os.getpid(), number)
        return play(order, trace, speeds, watch)

    monkeypatch.setattr("skep_services.simulations.pool.play", interrupted)
    policies = ("--policy", "fifo", "--policy", "backfill", "--policy", "srtf")
    words = ("compare", "--trace", "jobs.csv", "--cluster", "1x8", *policies)
    code, out, err = run(*words, "--processes", "1", "--out", "out")
    assert code == 130
    assert re.search(r"^MEASURE +fifo$", out, re.MULTILINE)
    assert "backfill was interrupted when 0 of 7 jobs had ended: it is not compared" in err
    assert "never begun: srtf" in err
    page = Path("out/report.html").read_text()
    assert "backfill was interrupted" in page
    assert "<th>backfill</th>" not in page
    tree = json.loads(Path("out/results.json").read_text())
    assert [each["cut"] for each in tree["runs"]] == ["", "interrupted"]


def test_a_sweep_tells_differences_seed_by_seed(run: Run) -> None:
    words = ("sweep", "--trace", "sched2:jobs=20", "--cluster", "1x8", "--processes", "1")
    policies = ("--policy", "fifo", "--policy", "sif")
    code, out, _ = run(*words, *policies, "--seeds", "5", "--out", "out")
    assert code == 0
    assert "difference from fifo, seed by seed" in out
    assert re.search(r"queueing, mean +-[\d,.]+ s \[-[\d,.]+ s, -?[\d,.]+ s\] \(-[\d.]+%\)", out)
    assert "seed by seed the same jobs, 100 of 5 seeds" in out
    tree = json.loads(Path("out/results.json").read_text())
    one = tree["paired"][0]
    assert (one["label"], one["base"], one["seeds"]) == ("sif", "fifo", [0, 1, 2, 3, 4])
    by = {(run["label"], run["seed"]): run["measures"]["all"]["jct_s"] for run in tree["runs"]}
    mean = sum(
        by[f"sif · seed {n}", n]["mean"] - by[f"fifo · seed {n}", n]["mean"] for n in range(5)
    )
    assert one["differences"]["jct_mean_s"]["mean"] == pytest.approx(mean / 5)
    assert "Differences from fifo" in Path("out/report.html").read_text()
    assert (
        run(*words, *policies, "--seeds", "5", "--json")[1]
        == run(*words, *policies, "--seeds", "5", "--json")[1]
    )


@pytest.mark.parametrize(
    "more, told",
    [
        ((), "seeds change nothing"),
        (("--noise", "0.1"), "seeds change only the speeds"),
        (("--hints", "noisy"), "seeds change only the hints"),
    ],
)
def test_a_sweep_of_a_file_says_what_seeds_change(
    run: Run, more: tuple[str, ...], told: str
) -> None:
    words = ("sweep", "--trace", "jobs.csv", "--cluster", "1x8", "--processes", "1", "--seeds", "2")
    _, out, err = run(*words, *more, "--json")
    assert told in err
    assert told in json.loads(out)["remarks"][0]


def test_held_out_traces_are_other_ones_and_are_told(run: Run) -> None:
    words = ("run", "--trace", "sched2:jobs=20", "--cluster", "1x8", "--json")
    one, other = (json.loads(run(*words, *more)[1]) for more in ((), ("--held-out",)))
    assert one["runs"][0]["measures"] != other["runs"][0]["measures"]
    assert other["runs"][0]["seed"] == 1_000_000_000
    assert "no training draws" in other["remarks"][0]
    code, out, err = run("run", *HERE, "--held-out", "--json")
    assert code == 0
    assert json.loads(out)["jobs"] == 3, "of seven, those after the first four"
    assert "begin in an empty cluster" in err
    code, _, err = run(*words, "--seed", "1000000007")
    assert code == 2
    assert "write --held-out --seed 7" in err


# --- pictures -------------------------------------------------------------------------------------


def test_plots_have_titles_on_axes_and_runs_are_told_apart_without_colours() -> None:
    points = [(float(x), float(x)) for x in range(1, 40)]
    names = [f"run {number}" for number in range(8)]
    drawn = [plots.Line(name, points) for name in names]
    text = plots.lines(
        "t",
        drawn,
        plots.seconds_text,
        plots.number_text,
        x_log=True,
        x_title="time since submission",
        y_title="jobs",
    )
    picture = ET.fromstring(text)
    words = [each.text for each in picture.iter() if each.tag.endswith("text")]
    assert {"t", "time since submission (log scale)", "jobs", *names} <= set(words)
    strokes = re.findall(r'<path [^>]*?(stroke-dasharray="[^"]*")?><title>', text)
    marks = [re.sub(r"#\w{6}", "", plots.mark(place, 0, 0)) for place in range(len(names))]
    assert len(set(zip(strokes, marks, strict=True))) == len(names)
    assert text.count("<circle") == text.count("<polygon") / 3 > 8, "on lines and beside names"


def test_what_is_zero_has_a_place_on_a_logarithmic_axis() -> None:
    points = [(0.0, 0.5), (100.0, 0.75), (1000.0, 1.0)]
    text = plots.lines(
        "t", [plots.Line("a", points)], plots.seconds_text, plots.part_text, x_log=True, y_max=1
    )
    assert ">0</text>" in text
    dots = plots.dots("t", ["a", "b"], [plots.Bars("x", [0.0, 60.0])], plots.seconds_text)
    assert ">0</text>" in dots
    assert ET.fromstring(dots) is not None


def test_words_below_an_axis_do_not_overlap() -> None:
    points = [(1.0, 0.5), (90_000_000.0, 1.0)]
    text = plots.lines(
        "t", [plots.Line("a", points)], plots.seconds_text, plots.part_text, x_log=True, y_max=1
    )
    found = re.findall(r'<text x="([\d.]+)" y="262\.0"[^>]*>([^<]+)<', text)
    spans = [(float(x) - len(words) * 3, float(x) + len(words) * 3) for x, words in found]
    assert len(spans) > 4
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans))


def test_a_report_has_no_panel_in_which_there_is_nothing(run: Run) -> None:
    """One tenant, one size of job, and no job waits."""
    Path("calm.csv").write_text(HEAD + "0,1,0,10,r,100,0,A\n1,1,10,10,r,100,0,A\n")
    run("compare", "--trace", "calm.csv", "--cluster", "1x8", "--cluster", "2x8", "--out", "out")
    text = Path("out/report.html").read_text()
    assert "nothing to draw" not in text
    assert "Job completion time" in text
    for absent in ("Jobs that wait", "Queueing time", "by tenant", "by size", "What GPUs do"):
        assert absent not in text


def test_tenants_are_rows_and_narrow_pages_have_cards(run: Run) -> None:
    run("compare", *HERE, "--policy", "fifo", "--policy", "srtf", "--out", "out")
    text = Path("out/report.html").read_text()
    tenants = text.partition("<h2>Tenants</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<tr><th>(\w)</th>", tenants) == ["A", "B"]
    assert re.findall(r'data-label="(\w+)"', tenants) == ["fifo", "srtf", "fifo", "srtf"]
    assert "@media (max-width: 600px)" in text
    run("run", *HERE, "--out", "one")
    alone = Path("one/report.html").read_text().partition("<h2>Tenants</h2>")[2]
    assert re.findall(r"<tr><th>(\w)</th>", alone.partition("</table>")[0]) == ["A", "B"]


# --- files that cannot be read --------------------------------------------------------------------

WHOLE = (HEAD + ROWS).encode()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("verb", ["sim", "traces"])
def test_standard_input_may_be_packed(
    run: Run,
    verb: str,
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("in").write_bytes(gzip.compress(WHOLE) if packed else WHOLE)
    with open("in") as file:
        monkeypatch.setattr("sys.stdin", file)
        if verb == "sim":
            code, out, _ = run("run", "--trace", "-", "--cluster", "2x8", "--json")
        else:
            code = main(["traces", "check", "-", "--json"])
            out, _ = capfd.readouterr()
    assert code == 0
    assert json.loads(out)["jobs"] == 7


@pytest.mark.parametrize("by_stdin", [False, True])
@pytest.mark.parametrize(
    "content, told",
    [
        (gzip.compress(WHOLE, mtime=0)[:60], "not a whole gzip file"),
        (gzip.compress(WHOLE, mtime=0)[:5], "not a whole gzip file"),
        (b"PK\x03\x04" + WHOLE, "is packed by zip: unpack it, or pack it by gzip"),
        (bz2.compress(WHOLE), "is packed by bzip2"),
        (lzma.compress(WHOLE), "is packed by xz"),
        (WHOLE.decode().encode("utf-16"), "is text in UTF-16: store it as UTF-8"),
        (bytes(range(256)), "is no text"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    run: Run, by_stdin: bool, content: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in").write_bytes(content)
    with open("in", encoding="latin-1") as file:
        monkeypatch.setattr("sys.stdin", file)
        name = "-" if by_stdin else "in"
        code, out, err = run("run", "--trace", name, "--cluster", "2x8")
    assert (code, out) == (2, "")
    assert err.startswith(f"skep sim: --trace {'standard input' if by_stdin else 'in'}: {told}")
    assert err.count("\n") == 1


def test_a_packed_file_needs_no_name_that_says_so(run: Run) -> None:
    Path("packed.csv").write_bytes(gzip.compress(WHOLE))
    code, out, _ = run("run", "--trace", "packed.csv", "--cluster", "2x8", "--json")
    assert (code, json.loads(out)["jobs"]) == (0, 7)


def test_what_cannot_be_opened_is_refused_in_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    Path("folder").mkdir()
    words = ("run", "--cluster", "2x8", "--trace")
    assert run(*words, "folder") == (
        2,
        "",
        "skep sim: --trace folder: cannot be read: Is a directory\n",
    )
    monkeypatch.setattr("sys.stdin", None)
    assert run(*words, "-")[2] == "skep sim: --trace standard input is closed: name a file\n"
    code, _, err = run(*words, "jobs.csv", "--out", "jobs.csv")
    assert code == 2
    assert err.endswith("skep sim: --out jobs.csv: no folder can be made there: File exists\n")
    monkeypatch.setattr("skep_services.trace_files._opened", denied)
    assert run(*words, "jobs.csv") == (
        2,
        "",
        "skep sim: --trace jobs.csv: cannot be read: Permission denied\n",
    )


def test_a_table_that_ends_within_a_row_may_be_cut_off(run: Run) -> None:
    Path("cut.csv").write_bytes(WHOLE[:-12])
    code, _, err = run("run", "--trace", "cut.csv", "--cluster", "2x8")
    assert code == 1
    said = "has 5 values, not 8 (row 7); the file ends within it: is it cut off? with --lenient"
    assert err == f"skep sim: cut.csv: {said} the row is left out, and the other 6 jobs run\n"
    head = '{"skep_trace": 1, "name": "t", "jobs": 2}\n'
    Path("cut.jsonl").write_text(head + '{"id": "a", "at": 0, "run_time": 1, "gpus": 1}\n')
    code, _, err = run("run", "--trace", "cut.jsonl", "--cluster", "2x8")
    assert code == 1
    assert "says that it has 2 jobs, and has 1; is the file cut off?" in err
    assert "with --lenient what is there runs: 1 job" in err


def test_lists_of_pairs_are_options_of_a_policy() -> None:
    _, options = policy('yarn-cs:queues=[["a",1],["b",2.5]],label=user')
    assert options == {"queues": [["a", 1], ["b", 2.5]], "label": "user"}
