"""The runner of benchmarks: what it lists, and the one form in which all of them tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "benchmarks")


def test_the_list_has_every_module_with_what_it_measures() -> None:
    told = subprocess.check_output((*COMMAND, "--list"), cwd=ROOT, text=True).splitlines()
    modules = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert [line.split()[0] for line in told] == modules
    assert all(len(line.split()) > 3 for line in told)


def test_an_unknown_name_is_refused() -> None:
    told = subprocess.run(
        (*COMMAND, "nothing"), check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert (told.returncode, told.stdout) == (2, "")
    assert "invalid choice: 'nothing'" in told.stderr


def test_what_is_printed_has_the_schema(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("introspector", "--jobs", "16", "--seconds", "1", "--out", str(out))
    printed = subprocess.check_output((*COMMAND, *words), cwd=ROOT, text=True)
    document = json.loads(printed)
    assert out.read_text(encoding="utf-8") == printed
    assert list(document) == ["benchmark", "commit", "machine", "parameters", "results", "notes"]
    assert document["benchmark"] == "introspector"
    assert document["parameters"] == {"jobs": 16, "seconds": 1, "trials": 0}
    assert all(list(each) == ["name", "value", "unit"] for each in document["results"])
    units = {each["name"]: each["unit"] for each in document["results"]}
    assert units["us_per_job_report"] == "us"
    assert units["tick_ms_median"] == "ms"
    assert units["job_reports_per_core_second"] == "1/s"
    assert units["nodes"] == ""
