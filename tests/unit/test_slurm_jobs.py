"""What options of Slurm become in a job's spec, and why others are refused: one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from skep.slurm import script
from skep.slurm.jobs import PLAN, SCRIPT, Submission, batch_job, command_job
from skep.slurm.layout import NO_GPU
from skep.slurm.options import SBATCH, SRUN, Fate, RefusedError, parse
from skep.wire.parse import parse_tree

GPU = "--gres=gpu:1"


def at(environment: Mapping[str, str] | None = None, **more: Any) -> Submission:
    told: dict[str, Any] = {
        "folder": "/data",
        "environment": environment or {},
        "partitions": {},
        "looks_secret": lambda env: [name for name in env if "TOKEN" in name],
        "node_gpus": lambda: (8, 8),
        "host": "login",
        "key": "unguessable",
    }
    return Submission(**(told | more))


def mapped(*words: str, text: str = "#!/bin/sh\n", **more: Any) -> tuple[dict[str, Any], list[str]]:
    given, rest = parse("sbatch", SBATCH, words)
    found = batch_job({**script.directives(text), **given}, text, rest or ["a.sh"], at(**more))
    return found.tree, found.notes


def refused(*words: str, text: str = "#!/bin/sh\n", **more: Any) -> tuple[str, ...]:
    with pytest.raises(RefusedError) as caught:
        mapped(*words, text=text, **more)
    return caught.value.lines


def plan_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(tree["env"][PLAN])
    return plan


def test_a_script_with_long_and_short_options_is_a_job_that_can_be_submitted() -> None:
    text = """#!/bin/bash
#SBATCH --job-name="two words" # a comment
# SBATCH --time=5
##SBATCH -N 9

#SBATCH -N2 --ntasks-per-node=4 -p team --gres gpu:a100:4
#SBATCH -c 8 --mem=64G -t 1-02:03
#SBATCH --comment 'it is' -D run
echo begin
#SBATCH -N 7
"""
    tree, notes = mapped("-t", "30", "train.sh", "x", "y z", text=text)
    assert notes == []
    env = tree.pop("env")
    assert env[SCRIPT] == text
    assert tree == {
        "name": "two words",
        "workdir": "/data/run",
        "vc": "team",
        "command": ["python3", "-m", "skep_job.slurm.batch", "x", "y z"],
        "resources": {
            "gpus": 4,
            "workers": 2,
            "gpu_type": "a100",
            "cpus": 32,
            "memory": 64 * 2**30,
        },
        "limits": {"time": 1800},
        "labels": {"comment": "it is"},
        "distributed": True,
    }
    assert not isinstance(parse_tree(tree | {"env": env}), list)
    plan = json.loads(env[PLAN])
    assert (plan["nodes"], plan["tasks"], plan["cpus_per_task"]) == (2, 8, 8)
    assert plan["output"] == "slurm-%j.out"
    assert plan["key"] == "unguessable"


@pytest.mark.parametrize(
    "words, resources, tasks",
    [
        (["--gpus=4"], {"gpus": 4, "workers": 1}, 1),
        (["-G8", "-N2"], {"gpus": 4, "workers": 2}, 2),
        (["--gpus-per-task=1", "-n4", "--ntasks-per-node=2"], {"gpus": 2, "workers": 2}, 4),
        (["--gpus=8", "--gpus-per-task=2"], {"gpus": 8, "workers": 1}, 4),
        (["--gpus-per-node=v100:2", "--ntasks-per-gpu=2"], {"gpus": 2, "workers": 1}, 4),
        (["--gres=gpu", "-C", "a100|v100"], {"gpus": 1, "workers": 1}, 1),
        (["--gres=gpu:2", "--cpus-per-gpu=4"], {"gpus": 2, "workers": 1, "cpus": 8}, 1),
        ([GPU, "-n2", "-c3", "--mem-per-cpu=1G"], {"cpus": 6, "memory": 6 * 2**30}, 2),
        (["--gres=gpu:2", "--mem-per-gpu=512"], {"memory": 2**30}, 1),
        ([GPU, "-N", "1-1", "--mem=0"], {"gpus": 1, "workers": 1}, 1),
    ],
)
def test_gpus_tasks_processors_and_memory(
    words: list[str], resources: dict[str, int], tasks: int
) -> None:
    tree, _ = mapped(*words)
    assert {name: tree["resources"].get(name) for name in resources} == resources
    assert plan_of(tree)["tasks"] == tasks


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-2:03", 93780),
        ("1-2:03:04", 93784),
        ("0", None),
        ("UNLIMITED", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    tree, _ = mapped(GPU, "-t", text)
    assert tree.get("limits", {}).get("time") == seconds


@pytest.mark.parametrize(
    "text, warn",
    [
        ("USR1@300", {"signal": "USR1", "before": 300}),
        ("B:SIGUSR2", {"signal": "USR2", "before": 60}),
        ("TERM@300", None),
        ("10@300", None),
        ("USR1@1800", None),
    ],
)
def test_a_signal_before_the_limit_is_the_jobs_own(text: str, warn: dict[str, Any] | None) -> None:
    tree, _ = mapped(GPU, "-t", "30", f"--signal={text}", "train.sh")
    assert tree["limits"].get("warn") == warn
    assert plan_of(tree)["signal"].get("told", False) is (warn is not None)
    assert not isinstance(parse_tree({**tree, "vc": "team"}), list)


def test_arrays_dependencies_and_times_become_the_keys_of_the_spec() -> None:
    tree, _ = mapped(
        GPU, "-a", "0-9%2", "-d", "afterok:17:j18,afterany:19,afternotok:20", "-H",
        "--begin", "now+2hours",
    )  # fmt: skip
    assert tree["array"] == "0-9%2"
    assert tree["after"] == {"ok": ["j17", "j18"], "any": ["j19"], "fail": ["j20"]}
    assert tree["hold"] is True
    assert tree["begin"] == "2h"
    assert plan_of(tree)["output"] == "slurm-%A_%a.out"
    assert mapped(GPU, "-b", "2031-01-20T12:34")[0]["begin"] == "2031-01-20T12:34:00"
    assert mapped(GPU, "-b", "now+2weeks")[0]["begin"] == "14d"
    assert "begin" not in mapped(GPU, "-b", "now")[0]


def test_options_of_the_command_line_win_over_the_environment_and_the_script() -> None:
    text = "#!/bin/sh\n#SBATCH --gres=gpu:1 -J script\n"
    assert mapped(text=text)[0]["name"] == "script"
    assert mapped("-J", "line", text=text)[0]["name"] == "line"


def test_harmless_options_are_noted() -> None:
    tree, notes = mapped(GPU, "--mail-type=END", "--hint=nomultithread")
    assert notes == [
        "--hint: Skep binds no processors",
        "--mail-type: no mail is sent; `skep wait` tells when it has ended",
    ]
    assert tree["name"] == "a.sh"


BAD: list[tuple[list[str], str]] = [
    (["--frobnicate"], "sbatch: unrecognized option '--frobnicate'"),
    (["-y"], "sbatch: invalid option -- 'y'"),
    (["--ntasks-per=2"], "sbatch: option '--ntasks-per=2' is ambiguous; possibilities: "
     "'--ntasks-per-core' '--ntasks-per-gpu' '--ntasks-per-node' '--ntasks-per-socket'"),
    (["--time"], "sbatch: option '--time' requires an argument"),
    (["-t"], "sbatch: option requires an argument -- 't'"),
    (["--hold=yes"], "sbatch: option '--hold' doesn't allow an argument"),
    ([], NO_GPU),
    (["--gres=gpu:0"], NO_GPU),
    (["--gres=gpu:2,shard:1"], "--gres=gpu:2,shard:1: Skep gives GPUs, and no 'shard'"),
    (["--gres=gpu:a:b:2"], "--gres=gpu:a:b:2: GPUs as N, TYPE:N or TYPE, of one type"),
    (["--gres=gpu:17"], "--gres=gpu:17: 17 GPUs on one node, of at most 16; say --nodes"),
    (["-G", "7", "-N", "2"], "--gpus=7: 2 nodes have the same number each"),
    (["--gres=gpu:2", "--gpus-per-node=4"],
     "the GPUs of a node: --gres=gpu:2 is 2 a node, --gpus-per-node=4 is 4 a node"),
    (["--gres=gpu:a100:1", "-C", "v100"], "--constraint=v100: the GPUs are to be a100"),
    ([GPU, "-C", "a100&ib"], "--constraint=a100&ib: a type of GPUs, or several as a100|v100"),
    ([GPU, "-N", "1-4"], "--nodes=1-4: one number; a job here has as many as it asks for"),
    ([GPU, "-n", "99999999999"], "--ntasks=99999999999: a number from 1 on"),
    ([GPU, "-N2", "--ntasks-per-node=2", "-n5"], "--ntasks=5: 2 nodes of 2 tasks have 4"),
    ([GPU, "-N99999"], "--nodes, --ntasks: at most 8192 nodes, 131072 tasks"),
    ([GPU, "-t", "tomorrow"], "--time=tomorrow: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S"),
    ([GPU, "--mem=lots"], "--mem=lots: a number with K, M, G or T, such as 64G"),
    ([GPU, "--mem=1G", "--mem-per-cpu=1G"], "one of --mem, --mem-per-cpu"),
    ([GPU, "-d", "after:17"], "--dependency=after:17: after: a start is nothing that a job waits "
     "for; say afterok, afterany or afternotok"),
    ([GPU, "-d", "afterok:17?afterok:18"],
     "--dependency=afterok:17?afterok:18: a job waits for all of them (`,`), not for any"),
    ([GPU, "-d", "afterok"], "--dependency=afterok: afterok:ID, afterany:ID or afternotok:ID"),
    ([GPU, "-d", "afterok:x"], "Invalid job id specified: 'x' (a number such as 17)"),
    ([GPU, "-b", "teatime"],
     "--begin=teatime: now+2hours, or a time such as 2031-01-20T12:34:00"),
    ([GPU, "--signal=USR1"], "--signal: it comes before the time limit: say --time too"),
    ([GPU, "-t1", "--signal=R:USR1"],
     "--signal=R:USR1: [B:]SIGNAL[@SECONDS], such as B:USR1@120"),
    ([GPU, "-p", "a,b"], "--partition=a,b: one partition; a job here is of one virtual cluster"),
    ([GPU, "-q", "high"],
     "--qos=high: Skep has priorities, and no QOS: leave it out, or say which priority it is: "
     "SKEP_SLURM_QOS=high=100"),
    ([GPU, "--priority=1001"], "--priority=1001: 0 to 1000"),
    ([GPU, "--no-requeue"], "--no-requeue: a job whose node is lost begins again"),
    ([GPU, "-x", "n1"], "--exclude: Skep chooses the nodes; leave it out"),
    ([GPU, "--exclusive=user"],
     "--exclusive=user: a node is shared, or one job has all of its GPUs"),
]  # fmt: skip


@pytest.mark.parametrize("words, line", BAD, ids=[" ".join(words) for words, _ in BAD])
def test_what_cannot_be_is_refused_in_one_line(words: list[str], line: str) -> None:
    assert refused(*words) == (line,)


def test_every_reason_is_told_at_once() -> None:
    assert refused("-w", "n1", "-t", "x") == (
        "--nodelist: Skep chooses the nodes; leave it out",
        NO_GPU,
        "--time=x: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S",
    )


@pytest.mark.parametrize("words", [["--gres=gpu:8"], [GPU], ["--gpus-per-task=1"], []])
def test_a_job_that_is_alone_has_all_gpus_of_its_nodes(words: list[str]) -> None:
    tree, notes = mapped(*words, "--exclusive")
    assert tree["resources"]["gpus"] == 8
    told = [] if words == ["--gres=gpu:8"] else ["--exclusive: it gets all 8 GPUs of each node"]
    assert notes == told
    assert plan_of(tree)["gpus_per_task"] == ("--gpus-per-task=1" in words)


@pytest.mark.parametrize(
    "nodes, line",
    [
        ((), "--exclusive: there is no node with GPUs at the moment"),
        (
            (8, 4),
            "--exclusive: a job is alone on a node whose GPUs it has all, and nodes have different "
            "numbers: say --gpus-per-node=8",
        ),
    ],
)
def test_a_job_cannot_be_alone_where_nobody_knows_what_it_would_have(
    nodes: tuple[int, ...], line: str
) -> None:
    assert refused("--exclusive", node_gpus=lambda: nodes) == (line,)


def test_what_asks_for_no_gpu_gets_what_is_said_of_all() -> None:
    tree, notes = mapped("-N2", "-n4", gpus=1)
    assert tree["resources"] == {"gpus": 1, "workers": 2}
    assert notes == ["it asks for no GPU: it gets 1 on each node, by SKEP_SLURM_GPUS"]
    assert mapped("--gres=gpu:2", gpus=1)[0]["resources"]["gpus"] == 2


def test_a_script_that_hands_in_others_is_to_be_run() -> None:
    text = "#!/bin/sh\n# sbatch is called here\nfirst=$(sbatch --parsable a.sh)\n"
    assert refused(text=text) == (
        "it hands in other scripts, and says nothing of itself: run it, as `sh a.sh`, with the "
        "commands of `skep slurm install` in PATH",
    )
    assert mapped(GPU, text=text)[0]["resources"]["gpus"] == 1
    assert refused(text="#!/bin/sh\n# sbatch this\n") == (NO_GPU,)


def test_a_qos_is_a_priority_if_it_is_said_which() -> None:
    qualities = {"high": 100, "*": 1}
    assert mapped(GPU, "-q", "high", qualities=qualities)[0]["priority"] == 100
    assert mapped(GPU, "-q", "long", qualities=qualities)[0]["priority"] == 1
    assert mapped(GPU, "-q", "high", "--priority=7", qualities=qualities)[0]["priority"] == 7
    assert "priority" not in mapped(GPU, "-q", "normal", qualities=qualities)[0]


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "Batch script is empty!"),
        ("echo hi\n", "This does not look like a batch script: the first line must start with #!"),
        ("#!/bin/sh\r\n", "Batch script contains DOS line breaks"),
        ("#!/bin/sh\0", "The batch script contains a NUL"),
        ("#!/bin/sh\n" + "#" * 50_000, "The batch script has more than 48 KiB"),
        ("#!/bin/sh\n\n#SBATCH --bogus\n", "line 3: sbatch: unrecognized option '--bogus'"),
        ("#!/bin/sh\n#SBATCH -J 'x\n", "line 2: a quote ' is not closed"),
        ("#!/bin/sh\n#SBATCH train.py\n", "line 2: 'train.py' is no option"),
        ("#!/bin/sh\n#SBATCH hetjob\n", "line 2: hetjob: a job here is one kind of worker"),
    ],
)
def test_what_is_no_batch_script_is_refused(text: str, line: str) -> None:
    (told,) = refused(GPU, text=text)
    assert told.startswith(line)


def test_variables_of_the_submission_are_passed_on_but_for_secrets_and_the_terminals() -> None:
    env = {
        "LR": "0.1",
        "PATH": "/mine",
        "PYTHONPATH": "/lib",
        "HF_TOKEN": "x",
        "SLURM_JOB_ID": "3",
        "SSH_TTY": "/dev/pts/1",
        "HOME": "/home",
    }
    tree, notes = mapped(GPU, environment=env)
    assert {name: tree["env"][name] for name in tree["env"] if not name.startswith("SKEP")} == {
        "LR": "0.1"
    }
    assert plan_of(tree)["env"] == {"PATH": "/mine", "PYTHONPATH": "/lib"}
    assert notes == ["not passed on, because they look like secrets: HF_TOKEN"]
    tree, notes = mapped(GPU, "--export=NONE,HF_TOKEN,A=1,ABSENT", environment=env)
    assert {name: tree["env"].get(name) for name in ("HF_TOKEN", "A", "LR", "ABSENT")} == {
        "HF_TOKEN": "x",
        "A": "1",
        "LR": None,
        "ABSENT": None,
    }
    assert notes == []


def test_partitions_are_virtual_clusters_by_other_names() -> None:
    assert mapped(GPU, "-p", "gpu", partitions={"gpu": "team", "*": "all"})[0]["vc"] == "team"
    assert mapped(GPU, "-p", "debug", partitions={"gpu": "team", "*": "all"})[0]["vc"] == "all"


def test_a_command_of_srun_is_a_job_of_its_tasks() -> None:
    given, words = parse("srun", SRUN, [GPU, "-n2", "-l", "-K", "python", "-V"])
    tree = command_job(given, words, at()).tree
    assert tree["command"] == ["python3", "-m", "skep_job.slurm.batch", "python", "-V"]
    plan = plan_of(tree)
    assert (plan["step"], plan["label"], plan["kill"], plan["tasks"]) == (True, True, True, 2)
    assert plan["output"] == ""
    with pytest.raises(RefusedError, match="srun what"):
        command_job(given, [], at())


def test_each_option_is_there_once_and_says_what_becomes_of_it() -> None:
    for table in (SBATCH, SRUN):
        names = [option.name for option in table]
        shorts = [option.short for option in table if option.short]
        assert len(set(names)) == len(names)
        assert len(set(shorts)) == len(shorts)
        assert all(option.text for option in table)
    refusing = [[f"--{each.name}=1"] for each in SBATCH if each.fate is Fate.REFUSED]
    flags = {each.name for each in SBATCH if each.takes == "nothing"}
    for (word,) in refusing:
        name = word[2:-2]
        (line,) = refused(GPU, f"--{name}" if name in flags else word)
        assert line.startswith(f"--{name}: ")
