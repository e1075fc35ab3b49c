"""`skep replay` of an export: as it was, what would have been, and what is no log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skep_services import replaying
from skep_services.adapters import exported
from skep_services.cli import exits
from skep_services.cli.main import main
from skep_services.simulations.sources import load
from tests.replay_kit import export, history

SEED = 14


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "log.jsonl.gz"
    export(history(SEED), path)
    return path


@pytest.fixture(autouse=True)
def _as_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have services read every fact of others and be as impatient as they were in the history."""
    roles = history(SEED).roles
    for name, service in replaying.SERVICES.items():
        make = roles[name].machine if name in roles else service.make
        monkeypatch.setitem(replaying.SERVICES, name, service._replace(wants={}, make=make))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["replay", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_log_replays_to_the_same_decisions(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(capsys, "--from", str(log))
    assert code == exits.OK
    for name in ("admission", "allocator"):
        found = told["services"][name]
        assert found["equal"] == found["decisions"] > 20, name
        assert found["differences"] == []
        assert 0 < told["bytes"][name]["noted"] < told["bytes"][name]["log"]
    assert main(["replay", "--from", str(log)]) == exits.OK
    assert "equal" in capsys.readouterr().out


def test_another_policy_shows_in_decisions_and_in_what_comes_of_them(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = history(SEED).roles["allocator"].process
    machine: Any = process.machine if process is not None else None
    vc = next(iter(machine.state.cells.cluster.vcs))
    words = ("--from", str(log), "--policy", f"{vc}=srtf", "--differences", "2")
    code, told = run(capsys, *words)
    assert code == exits.OK, "the history itself is as it was"
    found = told["what_if"]
    assert found["changes"] == [f"policy {vc}=srtf"]
    assert found["decisions"]["different"] >= len(found["decisions"]["differences"]) > 0
    assert found["runs"]["live"]["jobs"] == found["runs"]["changed"]["jobs"] > 0
    assert main(["replay", *words]) == exits.OK
    assert "would have been others" in capsys.readouterr().out


def test_a_log_is_a_trace(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, copy = tmp_path / "trace.jsonl", tmp_path / "copy.jsonl"
    code, told = run(capsys, "--from", str(log), "--trace", str(out), "--export", str(copy))
    assert code == exits.OK
    written = load(str(out), form=None, seed=0, lenient=False, home=None)
    straight = load(str(copy), form=None, seed=0, lenient=False, home=None)
    assert len(written.jobs) == told["trace"]["jobs"] > 0
    assert written.jobs == straight.jobs
    assert exported.read(copy) == exported.read(log)


@pytest.mark.parametrize(
    "words, code",
    [
        (("--policy", "nobody=fifo"), exits.USAGE),
        (("--policy", "srft"), exits.USAGE),
        (("--since", "yesterday"), exits.USAGE),
        (("--since", "1h", "--until", "2h"), exits.USAGE),
    ],
)
def test_what_makes_no_sense_is_refused(
    log: Path, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--from", str(log), *words]) == code
    assert capsys.readouterr().err


def test_what_is_no_log_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--from", str(tmp_path / "none")]) == exits.FAILED
    other = tmp_path / "other.jsonl"
    other.write_text("[]\n")
    assert main(["replay", "--from", str(other)]) == exits.FAILED
    assert "line 1" in capsys.readouterr().err
    assert main(["replay", "--home", str(tmp_path)]) == exits.UNREACHABLE


def test_a_packed_log_with_any_bit_flipped_is_an_export_error_or_reads(
    log: Path, tmp_path: Path
) -> None:
    packed, whole = tmp_path / "log.jsonl.gz", exported.read(log)
    exported.write(packed, whole)
    raw, refused = packed.read_bytes(), []
    for at in range(10, len(raw), max(1, len(raw) // 64)):
        packed.write_bytes(raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :])
        try:
            exported.read(packed)
        except exported.ExportError as error:
            refused.append(str(error))
    assert refused
    assert all(str(packed) in text for text in refused)


def test_a_damaged_log_is_said(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(tmp_path / "x.jsonl")
    found = exported.read(log)
    del found["ALLOC"][3]
    exported.write(lines, found)
    assert main(["replay", "--from", str(lines)]) == exits.FAILED
    assert "ALLOC" in capsys.readouterr().err
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(log.read_bytes()[:5000])
    assert main(["replay", "--from", str(cut)]) == exits.FAILED
