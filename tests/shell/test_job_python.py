"""The interpreter that a job names: it runs the script, and needs no Skep of its own."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from skep.wire.commands import AGENT_PYTHON
from skep.wire.node import MemberExited, Outcome
from tests.live_node import LiveNode

TELLS = """
import importlib.util, json, os, shutil, sys
print(json.dumps({
    "prefix": sys.prefix,
    "first": shutil.which("python"),
    "skep": importlib.util.find_spec("skep") is not None,
    "observed": "skep_job.observe.reporter" in sys.modules,
}))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return a virtual environment with nothing in it."""
    folder = tmp_path / "theirs"
    words = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(words, check=True, timeout=60)
    return folder


@pytest.mark.asyncio
async def test_a_script_runs_on_an_interpreter_without_skep(
    tmp_path: Path, environment: Path
) -> None:
    python = environment / "bin" / "python"
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    node = LiveNode(tmp_path)
    await node.begin()
    try:
        argv = (AGENT_PYTHON, "-m", "skep_job", str(script))
        await node.send(node.job("x", argv=argv, python=str(python)))
        ended = await node.event(MemberExited)
        log = (node.state / "logs/j1/1/rank0.log").read_text()
    finally:
        await node.close()
    assert ended.outcome is Outcome.SUCCEEDED, log
    assert json.loads(log) == {
        "prefix": str(environment),
        "first": str(python),
        "skep": False,
        "observed": True,
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "python, detail",
    [
        ("/nowhere/bin/python", "executable /nowhere/bin/python does not exist on this node"),
        ("python9.99", "executable python9.99 was not found in PATH"),
    ],
)
async def test_a_node_without_the_interpreter(tmp_path: Path, python: str, detail: str) -> None:
    node = LiveNode(tmp_path)
    await node.begin()
    try:
        await node.send(node.job("counter.py", python=python))
        ended = await node.event(MemberExited)
    finally:
        await node.close()
    assert ended.outcome is Outcome.NOT_STARTED
    assert detail in ended.detail


PRETENDS = """
import os, runpy, sys
entry, sys.version_info = sys.argv[1], (3, 6, 15)
sys.argv = [entry, "train.py", "--lr", "1"]
def execv(program, words):
    print(json_of([program == sys.executable, *words[1:]]), flush=True)
    os._exit(0)
from json import dumps as json_of
os.execv = execv
runpy.run_path(entry, run_name="__main__")
"""


def test_a_python_too_old_for_the_jobs_end_runs_the_script_itself() -> None:
    spec = importlib.util.find_spec("skep_job")
    assert spec is not None
    assert spec.origin is not None
    entry = Path(spec.origin).parent / "__main__.py"
    for path in (entry, Path(spec.origin)):  # What such a Python reads before it is known.
        ast.parse(path.read_text(), feature_version=(3, 6))
        assert "from __future__" not in path.read_text()
    done = subprocess.run(
        [sys.executable, "-c", PRETENDS, str(entry)],
        env={"SKEP_SOCK": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == [True, "train.py", "--lr", "1"]
    assert done.stderr == "skep_job: not observed: this is Python 3.6, older than 3.10\n"
