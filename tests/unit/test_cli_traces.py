"""`skep traces`: what is printed, written and refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from skep.cells.clusterfile import parse_cluster
from skep.cells.levels import gpus_per_node
from skep_lab.traces.read import FORMATS
from skep_services import trace_files
from skep_services.cli.main import main

Run = Callable[..., tuple[int, str, str]]

HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration,vc\n"
GOOD = f"{HEAD}a,1,0,10,vgg16,3600,nlp\nb,8,7200,10,lm,36000,cv\nc,1,3600,10,vgg16,60,nlp\n"
BAD = f"{GOOD}d,0,1,1,m,5,nlp\ne,2,x,1,m,5,nlp\nf,0,2,1,m,5,nlp\n"
FEW = "hived:nodes=200,without=res-f,part=0.001,days=1"
GAVEL = "A3C\tpython3 main.py\trl\t--n\t0\t600\t2\t1\t-1.000000\t163.057382\n"
SPEEDS = "gpu_type,placement,job_type,num_gpus,iters_per_s\nv100,consolidated,A3C,2,4.0\n"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SKEP_SHARED_DATA", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(("traces", *words))
        out, err = capfd.readouterr()
        return code, out, err

    return run


def write(text: str, name: str = "jobs.csv") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_check_says_what_is_in_a_trace(run: Run) -> None:
    code, out, err = run("check", write(GOOD))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "jobs.csv: format tiresias, 3 jobs over 2.0 h",
        "GPUs of a job: 1 (2), 8 (1)",
        "run time: median 60.0 min, mean 3.7 h, 99th percentile 10.0 h, longest 10.0 h",
        "work: 81 GPU-hours, 40.5 GPUs on average",
        "2 virtual clusters: nlp (2), cv (1)",
        "2 models: vgg16 (2), lm (1)",
        "note: 1 of 3 rows are earlier than the row before; sorted",
    ]


def test_check_says_what_is_wrong_and_fails_unless_it_is_to_be_lenient(run: Run) -> None:
    problems = [
        "problem: num_gpu: asks for no GPU (2 rows: 4, 6); a job that needs none is not simulated",
        "problem: submit_time: is not a number: 'x' (row 5)",
        "6 rows = 3 jobs + 3 that cannot be used",
    ]
    code, out, _ = run("check", write(BAD))
    assert code == 1
    hint = "; --lenient leaves those out (rows count from 1, after the header)"
    assert out.splitlines()[-3:] == [*problems[:2], problems[2] + hint]
    code, out, _ = run("check", "jobs.csv", "--lenient")
    assert (code, out.splitlines()[-3:]) == (0, problems)
    code, out, _ = run("check", "jobs.csv", "--gpus", "4")
    assert "larger than the cluster of 4 GPUs: 'b' asks for 8" in out


def test_check_as_json(run: Run) -> None:
    code, out, _ = run("check", write(BAD), "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["format"], found["jobs"], found["rows_with_problems"]) == ("tiresias", 3, 3)
    assert found["gpus"] == {"1": 2, "8": 1}
    assert found["problems"][0] == {
        "text": "asks for no GPU",
        "column": "num_gpu",
        "count": 2,
        "rows": [4, 6],
        "hint": "a job that needs none is not simulated",
    }


def test_check_of_a_generators_trace(run: Run) -> None:
    code, out, _ = run("check", "gandiva:jobs=50", "--seed", "3")
    assert code == 0
    assert out.startswith("gandiva-3: format generated, 50 jobs")


def test_convert_writes_what_check_reads(run: Run) -> None:
    code, out, err = run("convert", write(GOOD), "--to", "skep", "--out", "mine.jsonl")
    assert (code, out, err) == (0, "mine.jsonl: 3 jobs\n", "")
    assert "format skep, 3 jobs" in run("check", "mine.jsonl")[1]
    code, out, _ = run("convert", "mine.jsonl")
    assert out == Path("mine.jsonl").read_text(encoding="utf-8")


def test_convert_refuses_bad_rows_or_says_what_it_left_out(run: Run) -> None:
    code, _, err = run("convert", write(BAD), "--out", "mine.jsonl")
    assert code == 1
    assert "with --lenient 3 rows are left out, and the other 3 jobs run" in err
    assert err.count("\n") == 1, "one line"
    assert not Path("mine.jsonl").exists()
    code, out, err = run("convert", "jobs.csv", "--out", "mine.jsonl", "--lenient", "--json")
    assert json.loads(out) == {"out": "mine.jsonl", "name": "jobs.csv", "jobs": 3, "left_out": 3}
    assert "left out: num_gpu: asks for no GPU (2 rows: 4, 6)" in err
    code, out, _ = run("convert", "jobs.csv", "--json")
    assert json.loads(out)["error"]["reason"] == "bad-trace"


def test_generate_is_the_same_for_a_seed(run: Run) -> None:
    first = run("generate", "dl2:jobs=20", "--seed", "4")
    assert first[0] == 0
    assert first == run("generate", "dl2:jobs=20", "--seed", "4")
    assert first[1] != run("generate", "dl2:jobs=20", "--seed", "5")[1]


@pytest.mark.parametrize(
    "words, nodes, gpus",
    [("gandiva:jobs=3", 45, 180), ("genie:hours=1", 4, 16), (FEW, 200 - 57, 1144)],
)
def test_generate_writes_the_cluster_as_well(run: Run, words: str, nodes: int, gpus: int) -> None:
    assert run("generate", words, "--out", "t.jsonl", "--cluster", "c.yaml")[0] == 0
    cluster = parse_cluster(yaml.safe_load(Path("c.yaml").read_text(encoding="utf-8")))
    assert not isinstance(cluster, list)
    assert sum(len(chain.nodes) for chain in cluster.chains.values()) == nodes
    total = sum(len(chain.nodes) * gpus_per_node(chain) for chain in cluster.chains.values())
    assert total == gpus


def test_list_names_formats_and_generators(run: Run) -> None:
    _, out, _ = run("list")
    assert all(name in out for name in (*FORMATS, "hived", "load=0.9"))
    listed = json.loads(run("list", "--json")[1])
    assert list(listed["formats"]) == list(FORMATS)
    assert listed["generators"]["genie"]["options"]["per_hour"] == 20.0
    assert "hived" in run("-h")[1]


@pytest.mark.parametrize(
    "words, code, message",
    [
        (("check",), 2, "check needs a file"),
        (("generate",), 2, "generate needs a generator"),
        (("check", "nofile.csv"), 2, "nofile.csv: no such file"),
        (("check", "hve"), 2, "no generator 'hve'; did you mean 'hived'? (and no file hve)"),
        (("generate", "genei"), 2, "did you mean 'genie'?"),
        (("check", "jobs.csv", "--format", "philli"), 1, "did you mean 'philly'?"),
        (("check", "jobs.csv", "--format", "philly"), 1, "no column timestamp, duration"[:19]),
        (("convert", "jobs.csv", "--to", "csv"), 2, "--to csv: only skep is written"),
        (("check", "gavel.trace"), 1, "give measured speeds (--measured)"),
        (("check", "gavel.trace", "--measured", "jobs.csv"), 2, "Gavel's speeds have the columns"),
        (("check", "gavel.trace", "--measured", "."), 2, "neither Gavel's speeds"),
        (("generate", "genie", "--past", "jobs.csv"), 2, "genie draws nothing"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Run, words: tuple[str, ...], code: int, message: str
) -> None:
    write(GOOD)
    write(GAVEL, "gavel.trace")
    found, out, err = run(*words)
    assert message in out + err
    assert found == code


def test_measurements_are_a_file_or_in_the_shared_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(GAVEL, "gavel.trace")
    Path("data/gavel").mkdir(parents=True)
    write(SPEEDS, "data/gavel/isolated_throughput.csv")
    code, out, _ = run("check", "gavel.trace", "--measured", "data/gavel/isolated_throughput.csv")
    assert code == 0
    assert "median 2.5 min" in out
    monkeypatch.setenv("SKEP_SHARED_DATA", "data")
    assert run("check", "gavel.trace")[1] == out


def test_pollux_tables_are_found_in_their_folder(run: Run) -> None:
    folder = Path("pollux/ncf")
    folder.mkdir(parents=True)
    write("placement,local_bsz,step_time,sync_time\n1,32,0.5,0\n", "pollux/ncf/placements.csv")
    write("progress,iteration,metric\n1,60,0\n", "pollux/ncf/validation-32.csv")
    write("name,time,application,num_replicas,batch_size\nx,0,ncf,1,32\n", "w.csv")
    code, out, _ = run("check", "w.csv", "--measured", "pollux")
    assert code == 0
    assert "mean 30 s" in out


def test_packed_files_and_standard_input_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open("jobs.csv.gz", "wt", encoding="utf-8") as file:
        file.write(GOOD)
    assert "3 jobs" in run("check", "jobs.csv.gz")[1]
    with open("jobs.csv.gz", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert len(trace_files.load("-").jobs) == 3
    assert not trace_files.is_generated("-")
