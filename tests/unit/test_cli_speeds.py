"""`skep speeds`: what it lists, prints, draws and refuses."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from skep_lab.simulator.build import of_types
from skep_services import workload_tables
from skep_services.cli.main import main
from skep_services.cli.speeds import splits
from skep_services.simulations.inputs import WrongError
from skep_services.simulations.models import speeds as simulated
from tests import workload_kit as kit

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("SKEP_SHARED_DATA", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["speeds", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder in the form of the public one, without DeepShare's files."""
    folder = tmp_path / "data"
    files = {
        "gavel/isolated_throughput.csv": kit.GAVEL,
        "pollux/traces/bert/placements.csv": kit.PLACEMENTS,
        "pollux/traces/bert/scalability.csv": kit.SCALABILITY,
        "chronus/model_info.json": kit.CHRONUS,
        "dl2/config_speed.csv": kit.DL2,
        "elasticflow/throughputs_A100/gpt2.csv": kit.ELASTICFLOW,
        "synergy/model_profiles.json": kit.SYNERGY,
        "salus/workloads.csv": kit.SALUS,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with gzip.open(folder / "gavel/packed_pairs.csv.gz", "wt", encoding="utf-8") as file:
        file.write(kit.PAIRS)
    return folder


def test_it_lists_models_and_their_tables(run: Run, data: Path) -> None:
    code, out, err = run("--data", str(data))
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert code == 0
    assert rows["resnet50"] == "gavel, salus, figures"
    assert rows["bert"] == "pollux"
    assert "not in" in err
    assert "deepshare/isolated_thp.csv" in err
    listed = json.loads(run("--data", str(data), "--json")[1])
    assert listed["absent"] == {"deepshare": "deepshare/isolated_thp.csv"}
    assert listed["models"]["seq2seq"] == ["dl2"]
    assert {table["table"] for table in listed["tables"]} >= {"gavel", "figures"}


def test_without_a_folder_the_papers_speak(run: Run) -> None:
    code, out, err = run()
    assert code == 0
    assert "vgg16" in out
    assert "bert" not in out
    assert "SKEP_SHARED_DATA or --data" in err


def test_it_prints_the_speeds_of_one(run: Run, data: Path) -> None:
    words = (
        "ResNet-50",
        "--data",
        str(data),
        "--gpus",
        "4",
        "--node-gpus",
        "4",
        "--gpu-type",
        "v100",
        "--batch-size",
        "64",
    )
    code, out, _ = run(*words)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0][:5] == ["GPUS", "ON", "NODES", "SPEED", "AGAINST"]
    assert [line[1] for line in lines[1:7]] == ["1", "2", "1+1", "4", "2+2", "1+1+1+1"]
    assert "Gandiva, Figure 4" in out
    found = json.loads(run(*words, "--with", "A3C", "--json")[1])
    apart = next(row for row in found["placements"] if row["spread"] == [2, 2])
    assert [part["what"] for part in apart["parts"]] == ["workers", "locality", "packing"]
    assert {row["gpu_type"] for row in found["types"]} == {"v100", "k80"}
    assert run("vgg19", "--data", str(data))[0] == 3


def test_it_draws_a_picture_that_stands_by_itself(run: Run, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "bert.svg"
    code, _, err = run("bert", "--data", str(data), "--svg", str(file), "--beside", "<b>")
    assert (code, "wrote" in err) == (0, True)
    root = ET.parse(file).getroot()
    assert root.tag.endswith("svg")
    assert "http" not in file.read_text(encoding="utf-8").replace("http://www.w3.org", "")
    lines = [each for each in root.iter() if each.tag.endswith("path")]
    assert len(lines) == 4  # 2, 4, 8 and 16 GPUs.


def test_what_it_refuses(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean vgg16?" in run("vgg61")[2]
    assert json.loads(run("vgg61", "--json")[1])["error"]["reason"] == "unknown-model"
    assert run("bert", "--gpus", "0")[0] == 2
    assert run("--svg", "x.svg")[0] == 2
    assert "--data names no folder" in run("--data", str(data / "none"))[2]
    monkeypatch.setenv("SKEP_SHARED_DATA", str(data / "none"))
    assert "SKEP_SHARED_DATA names no folder" in run()[2]
    (data / "chronus/model_info.json").write_text("[]", encoding="utf-8")
    code, _, err = run("--data", str(data))
    assert (code, "model_info.json: not what chronus published" in err) == (1, True)


def test_splits_are_even_and_fit_into_nodes() -> None:
    assert splits(8, 4) == [(1,), (2,), (1, 1), (4,), (2, 2), (1,) * 4, (4, 4), (2,) * 4, (1,) * 8]


def test_tables_are_read_by_name(data: Path) -> None:
    read = workload_tables.read(data, ["pollux", "deepshare"])
    assert [table.name for table in read.tables] == ["pollux"]
    assert list(read.absent) == ["deepshare"]
    assert workload_tables.models(data, node_gpus=4).knows("bert")
    assert workload_tables.models(None).sources_of("bert") == ()


def test_simulations_choose_them_by_name(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = of_types({"v100": 2, "k80": 1}, gpus_per_node=4)
    monkeypatch.delenv("SKEP_SHARED_DATA", raising=False)
    resnet = kit.job("ResNet-50 (batch size 64)", 4)
    assert simulated("steady", cluster).speed(resnet, kit.at(4, gpu_type="k80")) == 1
    assert simulated("papers", cluster).unknown((resnet, kit.job("bert"))) == {"bert": 1}
    with pytest.raises(WrongError, match="did you mean"):
        simulated("measurd", cluster)
    with pytest.raises(WrongError, match="`papers` needs none"):
        simulated("measured", cluster)
    monkeypatch.setenv("SKEP_SHARED_DATA", str(data))
    measured = simulated("measured", cluster)
    assert measured.speed(resnet, kit.at(4, gpu_type="v100")) == 1
    assert measured.speed(resnet, kit.at(4, gpu_type="k80")) == pytest.approx(1 / 3)
    # Four nodes hold sixteen GPUs here, as nodes have four.
    assert measured.speed(kit.job("bert", 16), kit.at(4, 4, 4, 4)) == 1
    assert simulated("chronus", cluster).unknown((resnet, kit.job("vgg16"))) == {resnet.model: 1}
    with pytest.raises(WrongError, match="deepshare: not in"):
        simulated("deepshare", cluster)
    (data / "chronus/model_info.json").write_text("[]", encoding="utf-8")
    with pytest.raises(WrongError, match="not what chronus published"):
        simulated("chronus", cluster)
