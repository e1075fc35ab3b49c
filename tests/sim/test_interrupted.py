"""Ctrl-C at a terminal, of what takes long: a valid report of what there is until then."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,vc\n"
ROWS = "".join(f"{n},1,{n},1,r,9,0,A\n" for n in range(8_000))
LATE = "8000,1,0,1,r,9,0,A\n"
"""Out of order, so that something is said before any run begins."""
PATIENCE_S = 60.0
UNDER_WAY = r" [1-9]\d*%"
SEED_DONE = r"[1-9]\d* of \d+ runs done"


class Played:
    """A command under way: what it says comes by a terminal, what it tells into a pipe."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.terminal = terminal
        self.said = ""

    def until(self, pattern: str) -> None:
        """Wait for words on the terminal."""
        while not re.search(pattern, self.said):
            assert select.select([self.terminal], [], [], PATIENCE_S)[0], self.said
            self.said += os.read(self.terminal, 4096).decode(errors="replace")

    def interrupt(self) -> tuple[int, Any]:
        """Press Ctrl-C, which reaches every process; return the exit code and the JSON told."""
        os.killpg(self.process.pid, signal.SIGINT)
        told, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, json.loads(told)


@contextmanager
def played(folder: Path, *words: str) -> Iterator[Played]:
    """Run a command in a session of its own, with a terminal for its progress."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "skep_services", *words, "--json", "--out", "out"],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        try:
            yield Played(process, ours)
        finally:
            os.close(ours)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "words, not_run",
    [
        (("run", "--cluster", "1x8"), []),
        (
            (
                "compare",
                "--cluster",
                "1x8",
                "--cluster",
                "2x8",
                "--cluster",
                "3x8",
                "--processes",
                "1",
            ),
            ["2x8", "3x8"],
        ),
        (("sweep", "--cluster", "1x8", "--seeds", "3", "--processes", "2"), ["1x8 · seed 2"]),
    ],
    ids=["run", "compare", "sweep"],
)
def test_what_was_simulated_until_then_is_reported(
    tmp_path: Path, words: tuple[str, ...], not_run: list[str]
) -> None:
    (tmp_path / "long.csv").write_text(HEAD + ROWS)
    with played(tmp_path, "sim", *words, "--trace", "long.csv") as command:
        command.until(UNDER_WAY)
        code, tree = command.interrupt()
    assert (code, tree["interrupted"], tree["not_run"]) == (130, True, not_run)
    assert {each["cut"] for each in tree["runs"]} == {"interrupted"}
    assert all(each["measures"]["all"]["unfinished"] > 0 for each in tree["runs"])
    assert json.loads((tmp_path / "out/results.json").read_text())["interrupted"]
    html = (tmp_path / "out/report.html").read_text()
    assert "<b>Interrupted.</b>" in html
    ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    ET.fromstring((tmp_path / "out/summary.svg").read_text())


def test_a_ctrl_c_while_the_processes_begin_is_none_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(HEAD + ROWS + LATE)
    words = (
        "compare",
        "--trace",
        "long.csv",
        "--cluster",
        "1x8",
        "--cluster",
        "2x8",
        "--processes",
        "2",
    )
    with played(tmp_path, "sim", *words) as command:
        command.until("earlier than the row before")
        code, tree = command.interrupt()
        assert "Traceback" not in command.said
    assert (code, tree["interrupted"]) == (130, True)


@pytest.mark.nightly
def test_an_experiment_reports_the_seeds_that_are_whole(tmp_path: Path) -> None:
    words = ("experiment", "hived-fig6a", "--seeds", "3-90", "--days", "0.2", "--processes", "1")
    with played(tmp_path, *words) as command:
        command.until(SEED_DONE)
        code, tree = command.interrupt()
    assert (code, tree["interrupted"]) == (130, True)
    assert tree["seeds"] == list(range(3, 3 + len(tree["seeds"])))
    assert all(len(line["ours"]) == len(tree["seeds"]) >= 1 for line in tree["figures"])
    assert json.loads((tmp_path / "out/hived-fig6a.json").read_text()) == tree
    html = (tmp_path / "out/hived-fig6a.html").read_text()
    assert "Interrupted" in html
    ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
