"""A short run of the chaos suite, so that it stays able to attack, and its promises hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.needs("root", "namespaces", "ip", "mkfs.ext4", "mount", "umount"),
]

SECONDS_MAX = 300


def run(folder: Path, jobs: int, faults: int, minutes: float, kinds: str) -> int:
    """Run it, check what it reports, and return how many faults it did."""
    told, drawn = folder / "report.json", folder / "timeline.svg"
    command = [
        sys.executable,
        "-m",
        "tests.system.chaos",
        "--seed",
        "30",
        "--jobs",
        f"{jobs}",
        "--faults",
        f"{faults}",
        "--minutes",
        f"{minutes}",
        "--kinds",
        kinds,
        "--json",
        str(told),
        "--out",
        str(drawn),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(told.read_text())
    assert report["violations"] == []
    assert report["problems"] == []
    assert report["jobs"]["acknowledged"] == jobs
    assert report["faults"]["planned"] == faults
    assert drawn.read_text().startswith("<svg")
    count: int = report["faults"]["done"]
    return count


@pytest.mark.nightly
def test_a_short_chaos_breaks_no_promise(tmp_path: Path) -> None:
    network = [] if needs.missing("iptables") else ["partition", "delay", "duplicate"]
    kinds = ["kill", "crash-loop", "pause", *network, "kill-everything"]
    # A fault that finds its component dead does nothing.
    assert run(tmp_path, 24, 7, 0.35, ",".join(kinds)) >= 5
