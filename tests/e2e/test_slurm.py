"""Slurm's commands on a live cluster: a script is handed in, runs its steps, and is listed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from skep.slurm.layout import NO_GPU
from tests.support.embedded import SKEP, Embedded, until

pytestmark = pytest.mark.e2e

SCRIPT = """#!/bin/sh
#SBATCH -J steps -N 2 --ntasks-per-node=2 --gres=gpu:1 -p nlp
#SBATCH --mail-type=END
echo "$1 of $SLURM_JOB_NAME with $SLURM_NTASKS"
srun -l sh -c 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID"'
scontrol show hostnames | wc -l
exit 7
"""


def slurm(cluster: Embedded, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SKEP, "slurm", *words],
        env=cluster.environment,
        cwd=folder,
        check=False,
        text=True,
        capture_output=True,
    )


def test_a_script_runs_its_steps_on_every_worker_and_is_listed_with_its_exit_code(
    cluster: Embedded, tmp_path: Path
) -> None:
    (tmp_path / "steps.sh").write_text(SCRIPT)
    done = slurm(cluster, tmp_path, "sbatch", "--parsable", "--wait", "steps.sh", "first")
    assert (done.returncode, done.stderr) == (1, "")
    number = done.stdout.strip()
    text = cluster.log(f"j{number}")
    assert text == (tmp_path / f"slurm-{number}.out").read_text()
    first, *tasks, nodes = text.splitlines()
    assert (first, nodes) == ("first of steps with 4", "2")
    assert sorted(tasks) == ["0: 0 0 0", "1: 1 1 0", "2: 2 0 1", "3: 3 1 1"]
    fields = "jobid,jobname,partition,state,exitcode"
    listed = slurm(cluster, tmp_path, "sacct", "-nP", "-j", number, "-o", fields)
    assert listed.stdout == f"{number}|steps|nlp|FAILED|7:0\n"


def test_a_command_is_a_job_whose_exit_code_srun_ends_with(
    cluster: Embedded, tmp_path: Path
) -> None:
    done = slurm(cluster, tmp_path, "srun", "-p", "nlp", "-n2", "-G2", "-l", "echo", "it")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["0: it", "1: it"]
    refused = slurm(cluster, tmp_path, "sbatch", "-p", "nlp", "-w", "n1", "--wrap", "true")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "sbatch: error: --nodelist: Skep chooses the nodes; leave it out\n"
        f"sbatch: error: {NO_GPU}\n"
    )


def test_an_array_is_listed_task_by_task(cluster: Embedded, tmp_path: Path) -> None:
    words = ("--parsable", "-p", "nlp", "-G1", "--array=0-4%1", "--wrap", "sleep 300")
    number = slurm(cluster, tmp_path, "sbatch", *words).stdout.strip()

    def squeue() -> list[str]:
        asked = ("squeue", "-h", "-j", number, "-o", "%i %t")
        return slurm(cluster, tmp_path, *asked).stdout.splitlines()

    until(lambda: f"{number}_0 R" in squeue(), "the first task runs")
    assert slurm(cluster, tmp_path, "scancel", f"{number}_[2-3]").returncode == 0
    until(lambda: squeue() == [f"{number}_[1,4%1] PD", f"{number}_0 R"], "two are taken out")
    held = slurm(cluster, tmp_path, "scontrol", "hold", number)
    begun = f"tasks of j{number} have begun to be jobs: it cannot be held as a whole"
    assert held.stderr.strip() == f"j{number}: {begun}"
    assert slurm(cluster, tmp_path, "scancel", number).returncode == 0
    cluster.ended(f"j{number}")
    listed = slurm(cluster, tmp_path, "sacct", "-nP", "-j", number, "-o", "jobid,state")
    assert listed.stdout == f"{number}_[1-4]|CANCELLED\n{number}_0|CANCELLED\n"


def test_the_commands_are_installed_where_nothing_else_has_their_names(
    cluster: Embedded, tmp_path: Path
) -> None:
    assert slurm(cluster, tmp_path, "install", str(tmp_path / "bin")).returncode == 0
    listed = subprocess.run(
        [tmp_path / "bin" / "squeue", "-h", "-u", "nobody"],
        env=cluster.environment,
        check=False,
        text=True,
        capture_output=True,
    )
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "srun").write_text("#!/bin/sh\n")
    refused = slurm(cluster, tmp_path, "install", str(tmp_path / "theirs"))
    assert refused.returncode == 1
    assert "has another srun" in refused.stderr
