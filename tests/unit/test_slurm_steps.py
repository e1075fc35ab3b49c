"""Steps inside a job: how tasks are dealt out, what they are told, and who may join."""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from skep_job.slurm import frames, plan
from skep_job.slurm.scontrol import hostnames
from skep_job.slurm.steps import Leader, follow

KEY = "unguessable"
WITHIN_S = 60.0


def two_nodes(tasks: int = 3) -> dict[str, Any]:
    return {"nodes": 2, "tasks": tasks, "gpus": 2, "key": KEY, "gpus_per_task": 1}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def request(*argv: str, **more: Any) -> dict[str, Any]:
    return {"argv": [sys.executable, "-S", *argv], "env": {}, "folder": "/", **more}


async def run_steps(tmp_path: Path, *requests: dict[str, Any]) -> list[tuple[int, dict[int, str]]]:
    """Return the exit code of each step, and what its tasks wrote."""
    address = ("127.0.0.1", free_port())
    leader = Leader(two_nodes(), address)
    other = asyncio.create_task(follow(two_nodes(), 1, address))
    await leader.open(str(tmp_path / "steps"))
    found = []
    for each in requests:
        wrote: dict[int, str] = {}

        async def tell(message: dict[str, Any], into: dict[int, str] = wrote) -> None:
            for name in ("out", "err"):
                if name in message:
                    text = base64.b64decode(message[name]).decode()
                    into[message["task"]] = into.get(message["task"], "") + text
            if "error" in message:
                into[-1] = message["error"]

        found.append((await leader.run(each, tell), wrote))
    await leader.close()
    assert await other == 0
    return found


def test_a_step_runs_its_tasks_on_all_workers(tmp_path: Path) -> None:
    names = "PROCID LOCALID NODEID NTASKS"
    tell = f"import os; print(*(os.environ['SLURM_' + n] for n in '{names}'.split()))"
    steps = run_steps(
        tmp_path,
        request("-c", tell),
        request("-c", tell, tasks=1),
        request("-c", "import os, sys; sys.exit(int(os.environ['SLURM_PROCID']))", tasks=4),
        request("-c", tell, nodelist=["elsewhere"]),
    )
    whole, one, failing, wrong = asyncio.run(asyncio.wait_for(steps, WITHIN_S))
    assert whole == (0, {0: "0 0 0 3\n", 1: "1 1 0 3\n", 2: "2 0 1 3\n"})
    assert one == (0, {0: "0 0 0 1\n"})
    assert failing[0] == 3
    assert wrong == (1, {-1: "node 'elsewhere' is not in this job: 127.0.0.1,127.0.0.1"})


def test_a_program_that_is_not_there_ends_its_task(tmp_path: Path) -> None:
    order = request() | {"argv": ["/nowhere/program"]}
    ((code, wrote),) = asyncio.run(asyncio.wait_for(run_steps(tmp_path, order), WITHIN_S))
    assert code == 127
    assert wrote[0] == "srun: error: /nowhere/program: No such file or directory\n"


def test_a_stranger_is_told_nothing(tmp_path: Path) -> None:
    async def attempt() -> None:
        address = ("127.0.0.1", free_port())
        leader = Leader(two_nodes(), address)
        opening = asyncio.create_task(leader.open(str(tmp_path / "steps")))
        with pytest.raises(frames.FrameError, match="does not know the key"):
            await follow(two_nodes() | {"key": "guessed"}, 1, address)
        assert not opening.done()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await leader.close()

    asyncio.run(asyncio.wait_for(attempt(), WITHIN_S))


def test_a_worker_obeys_no_leader_without_the_key() -> None:
    async def attempt() -> None:
        async def pose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await frames.send(writer, {"nonce": "x"})
            hello = await frames.receive(reader)
            assert hello is not None
            # What the worker showed is no proof of a leader.
            await frames.send(writer, {"proof": hello["proof"]})
            writer.close()
            await writer.wait_closed()

        port = free_port()
        async with await asyncio.start_server(pose, "127.0.0.1", port):
            with pytest.raises(frames.FrameError, match="the leader does not know the key"):
                await follow(two_nodes(), 1, ("127.0.0.1", port))

    asyncio.run(asyncio.wait_for(attempt(), WITHIN_S))


@pytest.mark.parametrize(
    "tasks, nodes, counts, text",
    [(4, 2, [2, 2], "2(x2)"), (5, 2, [3, 2], "3,2"), (2, 3, [1, 1, 0], "1(x2),0")],
)
def test_tasks_are_spread_in_blocks(tasks: int, nodes: int, counts: list[int], text: str) -> None:
    blocks = plan.spread(tasks, nodes)
    assert [len(block) for block in blocks] == counts
    assert [task for block in blocks for task in block] == list(range(tasks))
    assert plan.repeated(counts) == text


@pytest.mark.parametrize(
    "pattern, name",
    [
        ("slurm-%j.out", "slurm-17.out"),
        ("%x-%4j_%A.%a", "run-0017_17.4294967294"),
        ("%%j%u", "%jada"),
        ("out\\%j", "out%j"),
        ("%J.%s.%t", "17.2.2.5"),
    ],
)
def test_names_of_files_of_output(pattern: str, name: str) -> None:
    env = {"SKEP_JOB": "j17", "USER": "ada"}
    more = {"step": "2", "task": "5"} if "%s" in pattern else {}
    assert plan.file_name(pattern, env, "run", **more) == name


def test_a_task_of_an_array_has_slurms_variables() -> None:
    env = {"SKEP_JOB": "j7[3]", "SKEP_ARRAY_ID": "j7", "SKEP_ARRAY_INDEX": "3"}
    told = plan.script_environment(env, {"nodes": 1, "tasks": 1, "gpus": 1}, ["n"], "/tmp/x")
    assert (told["SLURM_ARRAY_JOB_ID"], told["SLURM_ARRAY_TASK_ID"]) == ("7", "3")
    assert plan.file_name("%A_%a", told, "run") == "7_3"


def test_lists_of_nodes() -> None:
    assert hostnames("gpu[01-03,7],login") == ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert hostnames("10.0.0.1,10.0.0.2") == ["10.0.0.1", "10.0.0.2"]
    for bad in ("n[1-999999]", "n[1-", "n]"):
        with pytest.raises(ValueError, match="n"):
            hostnames(bad)
