"""Retries of real libraries' scripts: `python -m tests.system.library_retries --python PYTHON`.

Each script runs once as it is, and once so that its first attempt ends like a crash. The second
attempt must go on from the newest whole checkpoint, and its losses must be those of the run that
was not interrupted. PYTHON has torch, transformers, lightning and accelerate. Prints a line for
each, and one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.embedded import SKEP, Embedded

JOBS = Path(__file__).parent / "retry_jobs"
LOSS = re.compile(r"^LOSS (\d+) (\S+)$", re.MULTILINE)
DEADLINE_S = 300.0


class Case(NamedTuple):
    """A script, where its first attempt ends, how it goes on, and from what."""

    script: str
    dies_at: int
    resume: object
    goes_on: str


CASES = (
    Case("with_transformers", 25, "auto", "from out/checkpoint-20 in attempt 1"),
    Case("with_lightning", 28, "auto", "from out/epoch=2-step=24.ckpt in attempt 1"),
    Case(
        "with_accelerate",
        3,
        {"args": ["--resume", "{checkpoint}"]},
        "from out/checkpoints/checkpoint_2 in attempt 1",
    ),
    Case(
        "with_torch_save",
        27,
        {"find": ["out/step_*.pt"], "args": ["--from", "{checkpoint}"]},
        "from out/step_20.pt in attempt 1",
    ),
)


def spec(case: Case, python: str, *, dies: bool) -> dict[str, Any]:
    """Return the spec of one run of a script."""
    return {
        "name": case.script,
        "code": str(JOBS),
        "workdir": str(JOBS),
        "script": f"{case.script}.py",
        "python": python,
        "outputs": ["out/"],
        "limits": {"retries": 1},
        "env": {
            "HF_HUB_OFFLINE": "1",
            **({"SKEP_TEST_DIES_AT": str(case.dies_at)} if dies else {}),
        },
        **({"resume": case.resume} if dies else {}),
    }


def run(cluster: Embedded, base: Path, tree: dict[str, Any]) -> str:
    """Submit a job, and return its id once it has succeeded."""
    file = base / "job.yaml"
    file.write_text(yaml.safe_dump(tree))
    done = subprocess.run(
        [*SKEP, "submit", "-q", str(file)],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    job = done.stdout.strip()
    ended = cluster.ended(job, DEADLINE_S)
    if ended["state"] != "succeeded":
        sys.exit(f"{tree['name']} {ended['state']}: {cluster.log(job)}")
    return job


def trial(cluster: Embedded, base: Path, case: Case, python: str) -> dict[str, Any]:
    """Run a script both ways; return what came of it."""
    whole = dict(LOSS.findall(cluster.log(run(cluster, base, spec(case, python, dies=False)))))
    job = run(cluster, base, spec(case, python, dies=True))
    log = cluster.log(job)
    again = dict(LOSS.findall(log))
    told = cluster.get(f"/v1/jobs/{job}")["attempts"][-1]["members"][0]["resumed"]
    differ = {
        step: (loss, whole.get(step)) for step, loss in again.items() if whole.get(step) != loss
    }
    return {
        "script": case.script,
        "goes_on": told,
        "losses": f"{len(again)} of {len(whole)} again",
        "differ": differ,
        "ok": told.startswith(case.goes_on) and not differ and 0 < len(again) < len(whole),
        "log": [line for line in log.splitlines() if line.startswith("[skep] resume")],
    }


def main() -> int:
    """Run every script."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.library_retries")
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
        try:
            results = []
            for case in CASES:
                if arguments.only in case.script:
                    results.append(trial(cluster, Path(folder), case, arguments.python))
                    print(json.dumps(results[-1]), flush=True)
        finally:
            cluster.down()
    failed = [each["script"] for each in results if not each["ok"]]
    print(json.dumps({"scripts": len(results), "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
