"""What every node runtime promises of commands that people run in its runs."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from skep_services.ports import Entered, EnterPlan, NodeRuntime, NotEntered
from tests.adapters.test_node_runtime import KINDS, NODES
from tests.node_runtimes import Node, started, until

pytestmark = [pytest.mark.adapters, pytest.mark.asyncio]

WITHIN_S = 20.0
READ = 32 * 1024


@pytest_asyncio.fixture(params=KINDS)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    async with NODES[request.param](tmp_path) as made:
        yield made


async def entered(runtime: NodeRuntime, *argv: str, token: str = "a", **more: object) -> Entered:
    """Start a command that must start."""
    plan = EnterPlan(token=token, argv=argv, **more)  # type: ignore[arg-type]
    answer = await runtime.enter(plan)
    assert not isinstance(answer, NotEntered), answer
    return answer


async def why_not(runtime: NodeRuntime, *argv: str, token: str = "a") -> str:
    """Start a command that must not start, and return why."""
    answer = await runtime.enter(EnterPlan(token=token, argv=argv))
    assert isinstance(answer, NotEntered)
    return answer.detail


async def output(one: Entered) -> tuple[str, str]:
    """Return all that a command says until its end: output and errors."""
    said = {1: b"", 2: b""}
    async with asyncio.timeout(WITHIN_S):
        while (piece := await one.read(READ)) is not None:
            said[piece[0]] += piece[1]
    return said[1].decode(), said[2].decode()


async def heard(one: Entered, pattern: str) -> str:
    """Return what a command says until it has said a pattern."""
    said = ""
    async with asyncio.timeout(WITHIN_S):
        while not re.search(pattern, said):
            piece = await one.read(READ)
            assert piece is not None, said
            said += piece[1].decode()
    return said


async def test_a_command_is_run_as_the_run_is(node: Node) -> None:
    runtime = await node.open()
    told = "id -u; id -g; pwd; echo $SKEP_RUN; echo $SKEP_SOCK; umask; grep Cap /proc/self/status"
    plan = node.shell("a", f"{told}; exec {node.sleeper(1)}")
    await started(runtime, plan)
    await node.words("a", 10)
    # It is no rank, and cannot speak for one.
    await started(
        runtime,
        node.plan(
            "b",
            "sh",
            "-c",
            f"exec {node.sleeper(2)}",
            env={"SKEP_SOCK": "x", "PATH": os.environ["PATH"]},
        ),
    )
    one = await entered(runtime, "sh", "-c", f"{told}; echo apart >&2; exit 7")
    assert await output(one) == (node.log("a"), "apart\n")
    assert (one.code, one.run_over) == (7, False)
    other = await entered(runtime, "sh", "-c", "echo ${SKEP_SOCK-none}", token="b")
    assert await output(other) == ("none\n", "")
    one.close()
    other.close()


async def test_input_comes_to_its_end_and_a_flood_waits(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", node.sleeper(1)))
    one = await entered(runtime, "sh", "-c", "wc -c; cat /dev/zero")
    await one.write(b"x" * 300_000)
    one.end_input()
    assert "300000\n" in await heard(one, "300000\n")
    one.close()  # While it floods: it is hung up on.
    again = await entered(runtime, "cat", "/proc/self/cmdline")
    assert (await output(again))[0] == "cat\0/proc/self/cmdline\0"
    again.close()


async def test_a_terminal_has_a_size_and_ends_with_its_session(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", node.sleeper(1)))
    one = await entered(runtime, "sh", terminal=True, rows=7, columns=33)
    await one.write(b"stty size; test -t 2 && echo term''inal\n")
    assert "7 33" in await heard(one, "terminal")
    await one.resize(50, 120)
    await one.write(b"stty size\n")
    await heard(one, "50 120")
    await one.write(node.sleeper(2).encode() + b"\n")
    await until(lambda: node.sleeps(2))
    one.close()
    await until(lambda: not node.sleeps(2))
    assert node.sleeps(1)


async def test_a_run_that_ends_by_itself_says_how_to_its_sessions(node: Node) -> None:
    if node.image:
        pytest.skip("containers have no shell to attach to")
    runtime = await node.open()
    waits = f"trap 'exit 4' USR1; {node.sleeper(1)} & wait $!"
    run = await started(runtime, node.shell("a", waits))
    one = await entered(runtime, "sh", "-c", "echo on; sleep 600")
    await heard(one, "on\n")
    await until(lambda: node.sleeps(1))
    os.kill(run.pid, signal.SIGUSR1)
    assert await output(one) == ("", "")
    assert (one.run_over, one.run_code) == (True, 4)
    one.close()


async def test_it_ends_with_the_run_and_is_not_what_the_run_left(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", f"{node.sleeper(1)} & wait $!; exit 4"))
    one = await entered(runtime, "sh", "-c", f"trap '' TERM HUP; echo on; {node.sleeper(2)}; true")
    await heard(one, "on\n")
    assert "not-running" in await why_not(runtime, "true", token="nobody")
    if not node.image:  # In a container a shell says it, with the exit code 127.
        assert "nosuch" in await why_not(runtime, "nosuch")
    await until(lambda: node.sleeps(2))
    await runtime.stop("a", 0.0)
    assert await output(one) == ("", "")
    assert one.run_over
    end = await node.end_of("a")
    assert end.leftovers == 0
    assert not node.sleeps(2)
    assert "not-running" in await why_not(runtime, "true")
    one.close()


async def test_it_is_frozen_with_the_run(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", node.sleeper(1)))
    one = await entered(runtime, "sh", "-c", "while read line; do echo $line; done")
    await one.write(b"before\n")
    await heard(one, "before\n")
    assert await runtime.freeze("a") == ""
    assert "job-suspended" in await why_not(runtime, "true")
    await one.write(b"behind\n")
    assert await runtime.thaw("a") == ""
    await heard(one, "behind\n")
    one.close()
