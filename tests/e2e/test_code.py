"""Code that travels with jobs, and what they leave, on a cluster of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import SKEP, Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 120.0
SPEC = """\
name: train
code: project
workdir: project/src
script: train.py
outputs: [ckpt/]
"""
TRAIN = """\
import os
print("version 1", os.path.basename(os.getcwd()), os.path.exists("../secret.log"))
os.mkdir("ckpt")
with open("ckpt/model.pt", "wb") as file:
    file.write(b"m" * 3_000_000)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = Embedded(tmp_path_factory.mktemp("own") / "home")
    made.environment["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    try:
        made.up("--nodes", "2", "--gpus", "1", "--vc", "nlp=2", "--port", "0")
        yield made
    finally:
        made.down()


def skep(cluster: Embedded, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SKEP, *words],
        env=cluster.environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_job_runs_what_was_submitted_and_its_outputs_come_back(
    cluster: Embedded, tmp_path: Path
) -> None:
    source = tmp_path / "project" / "src"
    source.mkdir(parents=True)
    (source / "train.py").write_text(TRAIN)
    (tmp_path / "project" / ".skepignore").write_text("*.log\n")
    (tmp_path / "project" / "secret.log").write_text("stays here")
    (tmp_path / "spec.yaml").write_text(SPEC)
    gate = tmp_path / "gate"
    block = skep(
        cluster,
        tmp_path,
        *("run", "-d", "--workers", "2", "--", "sh", "-c"),
        f"until [ -e {gate} ]; do sleep 0.05; done",
    )
    assert block.returncode == 0, block.stderr
    done = skep(cluster, tmp_path, "submit", "-q", "spec.yaml")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    # It waits; whatever becomes of the folder, it runs what was submitted.
    assert cluster.get(f"/v1/jobs/{job}")["state"] == "queued"
    (source / "train.py").write_text("print('version 2')")
    gate.touch()
    assert cluster.ended(job)["state"] == "succeeded"
    assert cluster.log(job) == "version 1 src False\n"

    listed = skep(cluster, tmp_path, "artifacts", job)
    assert listed.stdout.splitlines()[1].split()[:2] == ["ckpt/model.pt", "2.8MiB"], listed
    copied = skep(cluster, tmp_path, "cp", f"{job}:ckpt/model.pt", "here.pt")
    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "here.pt").read_bytes() == b"m" * 3_000_000
    outside = skep(cluster, tmp_path, "cp", f"{job}:../../../cluster.json", "x")
    assert (outside.returncode, outside.stdout) == (2, "")
    assert not (tmp_path / "x").exists()


RETRIED = """\
import json, os, sys
print(sys.argv[1:], os.path.basename(os.environ.get("SKEP_RESUME_FROM", "-")))
if os.environ["SKEP_GEN"] == "1":
    for step in (10, 20):
        os.makedirs(f"out/checkpoint-{step}")
        for name in ("model.safetensors", "optimizer.json"):
            with open(f"out/checkpoint-{step}/{name}", "wb") as file:
                file.write(b"\\2\\0\\0\\0\\0\\0\\0\\0{}" if name[0] == "m" else b"{}")
        if step == 10:
            with open("out/checkpoint-10/trainer_state.json", "w") as file:
                json.dump({"global_step": 10}, file)
    os._exit(3)
"""


def test_a_retry_goes_on_from_the_newest_whole_checkpoint_of_the_attempt_before(
    cluster: Embedded, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RETRIED)
    (tmp_path / "spec.yaml").write_text(
        f"name: train\nworkdir: {tmp_path}\ncommand: [python3, train.py]\n"
        "limits: {retries: 1}\nresume: {args: [--from, '{checkpoint}']}\n"
    )
    done = skep(cluster, tmp_path, "submit", "-q", "spec.yaml")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert cluster.ended(job)["state"] == "succeeded"
    lines = cluster.log(job).splitlines()
    assert len(lines) == 3, lines
    passed, goes_on, said = lines
    assert passed.startswith(f"[skep] resume: passed over: out/checkpoint-20 in {tmp_path}: train")
    assert goes_on.endswith(f"from out/checkpoint-10 in {tmp_path} (transformers, step 10)")
    assert said == f"['--from', '{tmp_path}/out/checkpoint-10'] checkpoint-10"

    (tmp_path / "spec.yaml").write_text("name: train\ncommand: [a]\nresume: later\n")
    refused = skep(cluster, tmp_path, "submit", "-q", "spec.yaml")
    assert refused.returncode == 1
    assert "`resume` must be `auto` or an object, not `later`" in refused.stderr
