"""What every node runtime promises."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep_services.ports import NodeRuntime, RunExited, RunStarted
from tests.launcher_kit import launcher_node
from tests.node_runtimes import (
    NODE_VARIABLE,
    PATH,
    Node,
    alive,
    docker_node,
    process_node,
    refused,
    started,
    suspended,
    until,
)

pytestmark = pytest.mark.adapters

NODES = {"process": process_node, "docker": docker_node, "launcher": launcher_node}
KINDS = [
    "process",
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("launcher", marks=pytest.mark.needs("root")),
]

# A job that ignores SIGTERM, and says so once it does.
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.2; done"

# A job that leaves a detached daemon (own session, parent gone) and says so once the daemon is the
# program it wants to be: that closes the pipe.
DAEMON = """
import os
reader, writer = os.pipe()
if os.fork():
    os.close(writer)
    os.wait()
else:
    os.setsid()
    if daemon := os.fork():
        os.close(writer)
        os.read(reader, 1)
        print("ready", flush=True)
    else:
        os.execvpe("sleep", "SLEEPER".split(), ENVIRONMENT)
"""


@pytest_asyncio.fixture(params=KINDS)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    async with NODES[request.param](tmp_path) as one:
        yield one


# --- starting and ending --------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_exit_status_and_identity(node: Node) -> None:
    runtime = await node.open()
    before = time.time_ns()
    run = await started(runtime, node.shell("a", "until [ -e go ]; do sleep 0.02; done; exit 3"))
    (node.folder / "go").touch()
    end = await node.end_of("a")
    assert end == RunExited("a", 3, end.at, 0)
    assert before <= run.at <= end.at <= time.time_ns()
    assert run.pid > 1
    assert run.start_ticks > 0
    assert list(await runtime.runs()) == [end]


@pytest.mark.asyncio
async def test_death_by_signal_is_minus_its_number(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", "kill -USR1 $$"))
    assert (await node.end_of("a")).code == -signal.SIGUSR1


@pytest.mark.asyncio
async def test_output_of_both_kinds_is_appended_to_the_log(node: Node) -> None:
    runtime = await node.open()
    node.write_log("a", "earlier\n")
    await started(runtime, node.shell("a", "echo out; echo err >&2; cat"))
    assert (await node.end_of("a")).code == 0, "stdin is empty"
    assert node.log("a") == "earlier\nout\nerr\n"


@pytest.mark.asyncio
async def test_a_fresh_run_shows_nothing_of_another_one_of_its_token(node: Node) -> None:
    runtime = await node.open()
    node.write_log("a", "another job's\n")
    plan = node.shell("a", "echo own")
    await started(runtime, msgspec.structs.replace(plan, fresh=True))
    await node.end_of("a")
    assert node.log("a") == "own\n"


@pytest.mark.asyncio
async def test_environment_and_workdir_are_the_plans(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_AGENT", "1")
    runtime = await node.open()
    workdir = node.folder / "wörk dir"
    workdir.mkdir()
    # The engine takes text only, and says so (below).
    odd = "ö" if node.image else b"\xff".decode(errors="surrogateescape")
    env = {"A": "1", "EMPTY": "", "ODD": odd, "PATH": "/usr/bin:/bin"}
    script = 'pwd; printf "%s|" "$A" "$EMPTY" "${EMPTY-unset}" "$ODD" "$OF_THE_AGENT"'
    await started(runtime, node.plan("a", "sh", "-c", script, env=env, workdir=workdir))
    await node.end_of("a")
    assert node.log_path("a").read_bytes() == os.fsencode(f"{workdir}\n1|||{odd}||")


@pytest.mark.asyncio
async def test_same_token_starts_once(node: Node) -> None:
    runtime = await node.open()
    plan = node.shell("a", "echo once")
    runs = await asyncio.gather(*(started(runtime, plan) for _ in range(5)))
    await node.end_of("a")
    later = await runtime.start(plan)
    assert [*runs, later] == [runs[0]] * 6
    assert node.log("a") == "once\n"


@pytest.mark.asyncio
async def test_fifty_at_once(node: Node) -> None:
    runtime = await node.open()
    tokens = [f"t{number}" for number in range(50)]
    await asyncio.gather(*(started(runtime, node.plan(token, "true")) for token in tokens))
    ends = [await node.end_of(token) for token in tokens]
    assert [(end.token, end.code) for end in ends] == [(token, 0) for token in tokens]
    assert [len(node.ends[token]) for token in tokens] == [1] * 50


# --- what cannot be started -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_missing_programs_and_folders_are_named(node: Node) -> None:
    runtime = await node.open()
    folder = node.folder
    (folder / "text").write_text("echo no interpreter line\n")
    (folder / "skep-script").write_text("#!/nowhere/python\n")
    (folder / "skep-script").chmod(0o755)
    (folder / "bytes").write_bytes(b"\x00\x01")
    (folder / "bytes").chmod(0o755)
    path = {"PATH": f"/usr/bin:{folder}"}
    gone = folder / "gone"
    plans = {
        "executable absent was not found in PATH: /usr/bin:": node.plan("a", "absent", env=path),
        f"executable {gone}/x does not exist": node.plan("b", f"{gone}/x"),
        f"executable {folder}/train.sh does not exist": node.plan("c", "./train.sh"),
        f"{folder}/text is not executable: chmod +x": node.plan("d", "./text"),
        "asks for the interpreter /nowhere/python,": node.plan("e", "skep-script", env=path),
        f"{folder}/bytes is neither a program nor": node.plan("f", "bytes", env=path),
        f"executable {folder} is a folder": node.plan("g", str(folder)),
        f"workdir {gone} does not exist": node.plan("h", "true", workdir=gone),
        f"workdir {folder}/text is not a folder": node.plan("i", "true", workdir=folder / "text"),
    }
    for expected, plan in plans.items():
        assert expected in await refused(runtime, plan)
    assert list(await runtime.runs()) == []
    assert node.ends == {}


@pytest.mark.asyncio
async def test_what_exec_cannot_take_is_refused(node: Node) -> None:
    runtime = await node.open()
    assert "cannot be passed to exec" in await refused(runtime, node.plan("a", "true", "a\0b"))
    plan = node.plan("b", "true", env={"A=B": "1", "PATH": "/bin"})
    assert "cannot be passed to exec" in await refused(runtime, plan)
    assert "too large" in await refused(runtime, node.plan("c", "true", "x" * 300_000))


@pytest.mark.asyncio
async def test_log_that_cannot_be_written_is_named(node: Node) -> None:
    runtime = await node.open()
    node.log_path("a").parent.write_text("a file where the folder should be")
    detail = await refused(runtime, node.plan("a", "true"))
    assert detail == f"log {node.log_path('a')} cannot be written: Not a directory"


@pytest.mark.asyncio
async def test_token_that_could_not_start_may_be_tried_again(node: Node) -> None:
    runtime = await node.open()
    await refused(runtime, node.plan("a", "./job"))
    (node.folder / "job").write_text("#!/bin/sh\nexit 4\n")
    (node.folder / "job").chmod(0o755)
    await started(runtime, node.plan("a", "./job"))
    assert (await node.end_of("a")).code == 4


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_stop_lets_a_job_finish_within_its_grace(node: Node) -> None:
    runtime = await node.open()
    script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    await started(runtime, node.shell("a", script))
    await node.words("a")
    await runtime.stop("a", 30.0)
    await runtime.stop("a", 30.0)
    assert (await node.end_of("a")).code == 7
    assert "saved" in node.log("a")


@pytest.mark.asyncio
async def test_stop_kills_what_ignores_it(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", STUBBORN))
    await node.words("a")
    before = time.monotonic()
    await runtime.stop("a", 0.3)
    assert (await node.end_of("a")) == RunExited(
        "a", -signal.SIGKILL, node.ends["a"][0].at, asked=True
    )
    assert 0.3 <= time.monotonic() - before < 5.0


@pytest.mark.asyncio
async def test_shorter_grace_overrules_a_longer_one(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", STUBBORN))
    await node.words("a")
    await runtime.stop("a", 300.0)
    await runtime.stop("a", 0.0)
    assert (await node.end_of("a")).code == -signal.SIGKILL


@pytest.mark.asyncio
async def test_stop_reaches_a_frozen_job(node: Node) -> None:
    runtime = await node.open()
    script = "trap 'exit 7' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done"
    run = await started(runtime, node.shell("a", script))
    await until(lambda: suspended(run.pid))
    await runtime.stop("a", 30.0)
    assert (await node.end_of("a")).code == 7


@pytest.mark.asyncio
async def test_stop_of_unknown_and_ended_runs_is_harmless(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.plan("a", "true"))
    await node.end_of("a")
    await runtime.stop("a", 0.0)
    await runtime.stop("unheard-of", 0.0)
    assert len(node.ends["a"]) == 1


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_stop_ends_the_whole_tree(node: Node) -> None:
    runtime = await node.open()
    script = f"(setsid {node.sleeper(1)} & {node.sleeper(2)} & wait) & wait"
    await started(runtime, node.shell("a", script))
    await until(lambda: node.sleeps(1) and node.sleeps(2))
    await runtime.stop("a", 10.0)
    end = await node.end_of("a")
    assert end.code == -signal.SIGTERM
    assert not node.sleeps(1)
    assert not node.sleeps(2)


# Sixteen processes, each of which forks, leaves its session and ends, over and over. They give up
# by themselves, long after a test that catches them is over.
HOPPERS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 15
main = os.getpid()
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
print("ready", flush=True)
while os.getpid() != main and time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
time.sleep(15)
"""


@pytest.mark.asyncio
async def test_stop_is_faster_than_forks(node: Node) -> None:
    runtime = await node.open()
    calm = await started(runtime, node.plan("calm", "sleep", "1000"))
    await started(runtime, node.python("a", HOPPERS))
    await node.words("a", 16)
    before = time.monotonic()
    await runtime.stop("a", 0.0)
    await node.end_of("a")
    assert time.monotonic() - before < 10.0
    assert node.marked_with("a") == []
    assert alive(calm.pid)


@pytest.mark.asyncio
async def test_what_is_forked_in_answer_to_sigterm_is_killed_too(node: Node) -> None:
    runtime = await node.open()
    answer = "trap 'sleep 1000 & sleep 1000 & echo forked; wait' TERM"
    await started(runtime, node.shell("a", f"{answer}; echo ready; sleep 1000 & wait"))
    await node.words("a")
    await runtime.stop("a", 1.0)
    end = await node.end_of("a")
    assert end.code is not None
    assert node.marked_with("a") == []


# --- freezing -------------------------------------------------------------------------------------

# A family that counts: a shell, a child in a session of its own, and a grandchild.
FAMILY = """
count() {{ n=0; while :; do n=$((n+1)); echo $n > {0}/$1; sleep 0.01; done; }}
count a & (setsid sh -c '
n=0; while :; do n=$((n+1)); echo $n > {0}/b; sleep 0.01; done' &) ; count c
"""


def counts(folder: Path) -> list[str]:
    return [(folder / name).read_text() if (folder / name).exists() else "" for name in "abc"]


async def counting(folder: Path) -> None:
    """Return once each of the family has counted on from where it is."""
    before = counts(folder)
    await until(
        lambda: all(new and new != old for new, old in zip(counts(folder), before, strict=True))
    )


async def family(node: Node, runtime: NodeRuntime, token: str = "a") -> RunStarted:
    run = await started(runtime, node.shell(token, FAMILY.format(node.folder)))
    await counting(node.folder)
    return run


async def stands_still(node: Node) -> None:
    """Assert that nobody counts: for a while, in which each would have counted ten times."""
    before = counts(node.folder)
    # tidy: allow sleep because there is no event for what does not happen
    await asyncio.sleep(0.1)
    assert counts(node.folder) == before


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_a_frozen_tree_stands_still_and_goes_on(node: Node) -> None:
    runtime = await node.open()
    run = await family(node, runtime)
    for _ in range(2):
        assert await runtime.freeze("a") == ""
        assert await runtime.freeze("a") == ""
        await stands_still(node)
        assert list(await runtime.runs()) == [msgspec.structs.replace(run, frozen=True)]
        assert await runtime.thaw("a") == ""
        assert await runtime.thaw("a") == ""
        await counting(node.folder)
        assert list(await runtime.runs()) == [run]
    await runtime.stop("a", 0.0)
    await node.end_of("a")


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_a_frozen_tree_stays_so_when_the_agent_dies(node: Node) -> None:
    first = await node.open()
    run = await family(node, first)
    assert await first.freeze("a") == ""
    await first.close()
    second = await node.open()
    assert list(await second.runs()) == [msgspec.structs.replace(run, frozen=True)]
    await stands_still(node)
    assert await second.thaw("a") == ""
    await counting(node.folder)
    await second.stop("a", 0.0)
    await node.end_of("a")


@pytest.mark.asyncio
async def test_a_frozen_run_that_is_stopped_has_its_grace(node: Node) -> None:
    runtime = await node.open()
    script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    await started(runtime, node.shell("a", script))
    await node.words("a")
    assert await runtime.freeze("a") == ""
    await runtime.stop("a", 30.0)
    end = await node.end_of("a")
    assert (end.code, end.asked) == (7, True)
    assert "saved" in node.log("a")


@pytest.mark.asyncio
async def test_a_frozen_run_that_ignores_sigterm_is_killed(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", STUBBORN))
    await node.words("a")
    assert await runtime.freeze("a") == ""
    await runtime.stop("a", 0.2)
    assert (await node.end_of("a")).code == -signal.SIGKILL
    assert node.marked_with("a") == []


@pytest.mark.asyncio
async def test_unknown_and_ended_runs_are_frozen_without_a_word(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.plan("a", "true"))
    await node.end_of("a")
    for token in ("a", "unheard-of"):
        assert await runtime.freeze(token) == ""
        assert await runtime.thaw(token) == ""


# --- leftovers ------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("environment", ["os.environ", "{}"])
async def test_detached_daemon_ends_with_the_run(node: Node, environment: str) -> None:
    runtime = await node.open()
    script = DAEMON.replace("ENVIRONMENT", environment).replace("SLEEPER", node.sleeper(1))
    await started(runtime, node.python("a", script))
    end = await node.end_of("a")
    assert await node.words("a") == ["ready"]
    assert end == RunExited("a", 0, end.at, node.leftovers(1), left=end.left)
    assert all(node.sleeper(1) in text for text in end.left)
    assert len(end.left) == node.leftovers(1)
    assert not node.sleeps(1)


@pytest.mark.asyncio
async def test_leftover_that_ignores_sigterm_is_killed(node: Node) -> None:
    runtime = await node.open()
    until_ready = f"until grep -q ready {node.log_path('a')}; do sleep 0.02; done"
    await started(runtime, node.shell("a", f"({STUBBORN}) & {until_ready}"))
    end = await node.end_of("a")
    assert end.code == 0
    assert end.leftovers >= node.leftovers(1)
    assert node.marked_with("a") == []


@pytest.mark.needs("setsid")
@pytest.mark.asyncio
async def test_daemon_of_one_run_does_not_end_with_another(node: Node) -> None:
    runtime = await node.open()
    await started(runtime, node.shell("a", f"(setsid {node.sleeper(1)} &) ; sleep 1000"))
    await until(lambda: node.sleeps(1))
    await started(runtime, node.plan("b", "true"))
    assert (await node.end_of("b")).leftovers == 0
    assert node.sleeps(1)
    await runtime.stop("a", 10.0)
    await node.end_of("a")
    assert not node.sleeps(1)


PARTNER = """echo "$SKEP_DEVICES $SKEP_MEMORY_SHARE"
({sleeper} &)
while sleep 0.02; do echo >> {counts}; done"""


@pytest.mark.asyncio
async def test_partners_on_a_device_stand_still_and_end_without_each_other(node: Node) -> None:
    runtime = await node.open()
    env = {
        "PATH": PATH,
        NODE_VARIABLE: str(node.number),
        "SKEP_DEVICES": "0",
        "SKEP_MEMORY_SHARE": "0.5",
    }
    counts = {token: node.folder / f"{token}.counts" for token in "ab"}
    for number, token in enumerate(counts):
        script = PARTNER.format(sleeper=node.sleeper(number), counts=counts[token])
        await started(runtime, node.plan(token, "sh", "-c", script, env=env))
        assert (await node.words(token))[:2] == ["0", "0.5"]

    async def count(token: str) -> None:
        before = counts[token].stat().st_size if counts[token].exists() else 0
        await until(lambda: counts[token].exists() and counts[token].stat().st_size > before + 2)

    await count("a")
    assert await runtime.freeze("a") == ""
    stands = counts["a"].stat().st_size
    await count("b")
    await runtime.stop("b", 0.0)
    await node.end_of("b")
    assert counts["a"].stat().st_size == stands, "frozen it was, and is"
    await until(lambda: not node.sleeps(1))
    assert node.sleeps(0), "what the other had started is the other's"
    assert [run.token for run in await runtime.runs() if isinstance(run, RunStarted)] == ["a"]
    assert await runtime.thaw("a") == ""
    await count("a")
    await runtime.stop("a", 0.0)
    await node.end_of("a")


# --- the agent's life -----------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_runs_outlive_the_agent_and_so_do_their_ends(node: Node) -> None:
    first = await node.open()
    stays = await started(first, node.plan("stays", "sleep", "1000"))
    script = f"until [ -e {node.folder}/go ]; do sleep 0.02; done; exit 5"
    await started(first, node.shell("ends", script))
    await started(first, node.shell("told", "exit 6"))
    told = await node.end_of("told")
    await first.close()
    (node.folder / "go").touch()
    second = await node.open()
    ended = await node.end_of("ends")
    assert ended.code == 5
    assert list(await second.runs()) == [stays, ended, told]
    await until(lambda: len(node.ends["told"]) == 2)
    assert await second.start(node.plan("stays", "false")) == stays
    await second.stop("stays", 5.0)
    assert (await node.end_of("stays")).code == -signal.SIGTERM


@pytest.mark.asyncio
async def test_forgotten_ends_are_not_told_again(node: Node) -> None:
    first = await node.open()
    for token in ("a", "b"):
        await started(first, node.plan(token, "true"))
        await node.end_of(token)
    await first.forget("a")
    await first.forget("a")
    await first.close()
    second = await node.open()
    await until(lambda: len(node.ends["b"]) == 2)
    assert [run.token for run in await second.runs()] == ["b"]
    assert len(node.ends["a"]) == 1


@pytest.mark.asyncio
async def test_living_run_is_not_forgotten(node: Node) -> None:
    runtime = await node.open()
    run = await started(runtime, node.plan("a", "sleep", "1000"))
    await runtime.forget("a")
    assert list(await runtime.runs()) == [run]


@pytest.mark.asyncio
async def test_two_agents_hear_the_same(node: Node) -> None:
    first, second = await node.open(), await node.open()
    plan = node.plan("a", "sleep", "1000")
    assert await started(first, plan) == await started(second, plan)
    await second.stop("a", 5.0)
    await node.end_of("a")
    await until(lambda: len(node.ends["a"]) == 2)


# --- logs -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_flood_stays_within_its_bound_and_hinders_nobody(node: Node) -> None:
    runtime = await node.open()
    bound = 256 * 1024
    await started(
        runtime,
        node.plan("flood", "sh", "-c", "echo begin; exec yes 0123456789", log_bytes_max=bound),
    )
    await until(lambda: "log limit reached" in node.log("flood"))
    before = time.monotonic()
    run = await runtime.start(node.shell("calm", "echo here"))
    assert isinstance(run, RunStarted)
    assert (await node.end_of("calm")).code == 0
    assert time.monotonic() - before < 10.0
    await runtime.stop("flood", 5.0)
    await node.end_of("flood")
    log = node.log("flood")
    assert len(log) <= bound
    assert log.startswith("begin\n0123456789\n")
    assert "[skep] log limit reached: " in log
    assert node.log("calm") == "here\n"


# A shell without a trap, below it a program with a handler, below that a fork that inherits it.
CATCHES = """
import os, signal, time
def warned(number, frame):
    os.write(1, f"warned {os.getpid() == first}\\n".encode())  # It may come amid a print.
first = os.getpid()
signal.signal(signal.SIGUSR1, warned)
if os.fork():
    os.write(1, b"ready\\n")
while True:  # A signal just before `signal.pause()` would be seen by the next one only.
    time.sleep(0.05)
"""


@pytest.mark.asyncio
async def test_a_signal_reaches_the_uppermost_process_with_a_handler_once(node: Node) -> None:
    runtime = await node.open()
    python = node.python("a", "").argv[0]
    script = f"{python} -I -S -c '{CATCHES}' & wait; wait"
    await runtime.start(node.shell("a", script))
    await until(lambda: "ready" in node.log("a"))
    assert await runtime.signal("a", "USR2", 5) == (
        "none of its processes has a handler for SIGUSR2"
    )
    assert await runtime.signal("a", "USR1", 5) == ""  # An order that was tried is done.
    assert await runtime.signal("a", "USR1", 6) == await runtime.signal("a", "USR1", 6) == ""
    await until(lambda: "warned" in node.log("a"))
    again = await node.open()
    assert await again.signal("a", "USR1", 6) == ""
    assert await again.signal("a", "USR1", 7) == ""
    await until(lambda: node.log("a").count("warned") == 2)
    assert await again.signal("a", "NOSUCH", 8) == "there is no signal 'NOSUCH'"
    assert "ended" in await again.signal("never", "USR1", 1)
    await again.stop("a", 0.0)
    await node.end_of("a")
    assert node.log("a").count("warned True") == 2
    assert node.log("a").count("warned False") == 0
