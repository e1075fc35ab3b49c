"""A short run of the chaos suite, so that it stays able to attack, and its promises hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.needs("root", "namespaces", "ip", "iptables", "mkfs.ext4", "mount", "fsfreeze"),
]

SECONDS_MAX = 300
JOBS, FAULTS = 24, 7
KINDS = "kill,crash-loop,pause,partition,delay,duplicate,kill-everything"
DONE_MIN = 5
"""Of the faults that seed draws; one that finds its component dead does nothing."""


def test_a_short_chaos_breaks_no_promise(tmp_path: Path) -> None:
    told, drawn = tmp_path / "report.json", tmp_path / "timeline.svg"
    command = [sys.executable, "-m", "scripts.chaos", "--seed", "30", "--jobs", f"{JOBS}",
               "--faults", f"{FAULTS}", "--minutes", "0.35", "--kinds", KINDS,
               "--json", str(told), "--out", str(drawn)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(told.read_text())
    assert report["violations"] == []
    assert report["problems"] == []
    assert report["jobs"]["acknowledged"] == JOBS
    assert report["faults"]["planned"] == FAULTS
    assert report["faults"]["done"] >= DONE_MIN
    assert drawn.read_text().startswith("<svg")
