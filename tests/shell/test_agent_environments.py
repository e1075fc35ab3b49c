"""A node builds environments of jobs once, keeps them, and removes them; on real processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.machines import agent as machine
from skep.wire import subjects
from skep.wire.caches import AskCaches, KeptHere
from skep.wire.commands import BindJob
from skep.wire.runs import RunExited, RunNotStarted, RunStarted
from skep_services.adapters.devices import CpuSlots
from skep_services.agent import builds
from skep_services.agent.builds import kept_bytes_max
from skep_services.agent.caches import Caches
from skep_services.agent.calls import AgentCalls
from skep_services.ports import Delivery
from skep_services.service import ConfigurationError
from tests.environment_kit import BuildingNode, stand_in
from tests.node_runtimes import process_runtime

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[BuildingNode]:
    state = tmp_path / "state"
    state.mkdir()
    runtime = process_runtime(state)
    made = BuildingNode(runtime, state, state, tmp_path / "tools")
    await made.code.open()

    async def ended(run: object) -> None:
        await made.ended(run)  # type: ignore[arg-type]

    await runtime.open(ended)
    yield made
    await made.code.close()
    await runtime.shutdown(0.0)
    await runtime.close()


def why(refused: str | RunNotStarted) -> str:
    assert isinstance(refused, RunNotStarted), refused
    return refused.detail.removeprefix("the job's environment cannot be built: ")


async def test_two_jobs_of_one_environment_build_it_once_and_a_third_has_it_at_once(
    node: BuildingNode,
) -> None:
    first, second = node.wants("echo installing"), node.wants("echo installing", "j2")
    pythons = await asyncio.gather(node.provide(first), node.provide(second))
    assert pythons[0] == pythons[1]
    assert os.access(str(pythons[0]), os.X_OK)
    assert len(node.told_to_uv.read_text().splitlines()) == 2
    assert node.log().splitlines()[1] == "installing"
    asked = len(node.code.gateway.asked)
    assert await node.provide(node.wants("echo installing", "j3")) == pythons[0]
    assert len(node.code.gateway.asked) == asked
    kept = node.environments.kept()
    assert [one.built for one in kept] == [True]
    assert node.environments.jobs_in(kept[0]) == ("j1", "j2", "j3")


async def test_another_person_and_other_contents_have_another_build(node: BuildingNode) -> None:
    def key(command: BindJob) -> str:
        assert command.environment is not None
        return node.environments._wanted(command, command.environment).key

    def but(**changes: Any) -> str:
        return key(msgspec.structs.replace(command, **changes))

    command = node.wants("echo one")
    assert command.environment is not None
    python = msgspec.structs.replace(command.environment, python="/bin/sh")
    others = [
        but(owner="bob"),
        but(owner=""),
        but(vc="cv"),
        but(env={"PIP_INDEX_URL": "http://x"}),
        but(environment=python),
        key(node.wants("echo two")),
        key(node.wants("echo one", kind="uv")),
    ]
    assert len({key(command), *others}) == 8
    assert but(env={"LR": "0.1"}, job="j9", attempt=2) == key(command)


async def test_a_failure_is_one_line_and_leaves_nothing(node: BuildingNode) -> None:
    refused = await node.provide(node.wants("echo 'ERROR: No matching distribution'; exit 3"))
    assert why(refused) == (
        "uv pip install ended with status 3: ERROR: No matching distribution (its output is in the "
        "job's log)"
    )
    assert not refused.of_node  # type: ignore[union-attr]
    assert node.environments.kept() == []
    assert not list((node.shared / "work").iterdir())
    full = await node.provide(node.wants("echo 'No space left on device'; exit 1"))
    assert isinstance(full, RunNotStarted)
    assert full.of_node


async def test_the_error_of_a_packages_own_build_is_told(node: BuildingNode) -> None:
    script = "echo 'RuntimeError: no CUDA'; echo '[end of output]'; echo 'ERROR: Failed'; exit 1"
    refused = why(await node.provide(node.wants(script)))
    assert refused.startswith("uv pip install ended with status 1: ERROR: Failed (RuntimeError: no")


async def test_what_a_node_lacks_is_said(node: BuildingNode, tmp_path: Path) -> None:
    missing = await node.provide(node.wants("", python="/no/such/python"))
    assert why(missing) == "this node has no interpreter /no/such/python"
    assert why(await node.provide(node.wants("", python="python9"))).endswith("python9")
    none = await node.provide(node.wants("", kind="conda"))
    assert why(none).startswith("this node has none of micromamba, mamba, conda: ask the operator")
    (tmp_path / "tools" / "uv").unlink()
    node.inherited["PATH"] = f"{tmp_path / 'tools'}:/usr/bin:/bin"
    assert why(await node.provide(node.wants("", kind="uv"))).startswith("this node has no `uv`,")


async def test_a_lock_is_synced_and_conda_makes_what_a_file_says(
    node: BuildingNode, tmp_path: Path
) -> None:
    locked = await node.provide(node.wants("", kind="uv"))
    assert isinstance(locked, str)
    told = node.told_to_uv.read_text()
    assert told.startswith("uv sync --frozen --no-install-workspace --python ")
    stand_in(
        tmp_path / "tools",
        "mamba",
        '#!/bin/sh\necho "$*" > "$UV_TOLD"; [ $1 = create ] && exit\n'
        'mkdir -p "$4/bin"; ln -s /bin/true "$4/bin/python"\n',
    )
    made = await node.provide(node.wants("dependencies: []", kind="conda"))
    assert isinstance(made, str)
    words = node.told_to_uv.read_text().split()
    assert words[:3] == ["env", "create", "--prefix"]
    explicit = await node.provide(node.wants("@EXPLICIT", "j2", kind="conda"))
    assert why(explicit).startswith("what was built has no interpreter (bin/python)")
    assert node.told_to_uv.read_text().split()[:2] == ["create", "--prefix"]


async def test_the_last_that_waits_stops_a_build(node: BuildingNode, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    wants = [node.wants(f"echo begun > {gate}; sleep 1000", job) for job in ("j1", "j2")]
    starts = [asyncio.create_task(node.provide(one)) for one in wants]
    await node.building("j1", "j2")
    await asyncio.to_thread(gate.read_text)
    node.environments.cancel("j1.1.0")
    assert why(await starts[0]) == "it was stopped"
    assert not starts[1].done()
    node.environments.cancel("j2.1.0")
    assert why(await starts[1]) == "it was stopped"
    assert await node.runtime.runs() == []
    assert not list((node.shared / "work").iterdir())
    await node.building()


async def test_a_run_that_was_cancelled_before_its_build_begins_none(node: BuildingNode) -> None:
    command = node.wants("sleep 1000")
    node.environments.starting("j1.1.0")
    node.environments.cancel("j1.1.0")
    assert why(await node.environments.provide(command, "j1.1.0")) == "it was stopped"
    assert not node.told_to_uv.exists()


async def test_a_build_is_bounded_in_time_and_size(
    node: BuildingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(builds, "ONE_BYTES_MAX", 1_000_000)
    large = "head -c 2000000 /dev/zero > large; sleep 1000"
    assert why(await node.provide(node.wants(large))) == "it has more than 0 GiB, and was stopped"
    monkeypatch.setattr(builds, "BUILT_WITHIN_S", 0.05)
    slow = why(await node.provide(node.wants("sleep 1000")))
    assert slow == "it took longer than 0 s, and was stopped"
    assert await node.runtime.runs() == []


async def test_an_agent_that_died_amid_a_build_leaves_no_half_environment(
    node: BuildingNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "STOPPED_WITHIN_S", 0.0)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = node.wants(f"echo begun > {gate}; [ -e {tmp_path}/again ] || sleep 1000")
    lost = asyncio.create_task(node.provide(command))
    await asyncio.to_thread(gate.read_text)
    # The agent is another process now; the run of the first goes on until it is found.
    node.began()
    assert [one.built for one in node.environments.kept()] == [False]
    (run,) = await node.runtime.runs()
    assert isinstance(run, RunStarted)
    assert builds.builds(run.token)
    await node.environments.listed(run)
    (tmp_path / "again").touch()
    found = asyncio.create_task(node.provide(command))
    await asyncio.to_thread(gate.read_text)
    python = await found
    assert isinstance(python, str)
    kept = node.environments.kept()
    assert [one.built for one in kept] == [True]
    assert python == str(node.environments._folder(kept[0]) / "env" / "bin" / "python")
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)


async def test_what_no_job_uses_goes_and_what_one_uses_stays(
    node: BuildingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in ("j1", "j2"):
        assert isinstance(await node.provide(node.wants(f"echo {job} > $4.txt", job)), str)
    assert await node.environments.sweep() == []
    node.alive = {"j2": True}
    node.environments.bytes_max = 0
    gone = await node.environments.sweep()
    assert len(gone) == 1
    (left,) = node.environments.kept()
    assert node.environments.jobs_in(left) == ("j2",)
    assert [path.name for path in (node.shared / "work").iterdir()] == [f"env-{left.key}"]
    node.began()
    assert await node.environments.discard(left.key) == "j2 may run in it"
    node.alive = {}
    monkeypatch.setattr(builds, "KEEP_S", -1.0)
    assert await node.environments.sweep() == [left.key]
    assert await node.environments.discard(left.key) == "there is no such environment on this node"
    assert await node.environments.discard("../x") == "there is no such environment on this node"


async def test_a_node_answers_what_it_keeps_and_removes_it(node: BuildingNode) -> None:
    await node.provide(node.wants("echo one"))
    heard: asyncio.Queue[Delivery] = asyncio.Queue()
    await node.code.bus.listen("_INBOX.test.2", heard.put)
    caches = Caches(node.code.bus, node.environments)

    async def ask(payload: bytes) -> KeptHere:
        await caches.answer(Delivery(subjects.caches("node-1"), payload, reply="_INBOX.test.2"))
        return msgspec.json.decode((await heard.get()).payload, type=KeptHere)

    (one,) = (await ask(b"{}")).environments
    assert (one.vc, one.owner, one.kind, one.jobs) == ("nlp", "ada", "requirements", ("j1",))
    remove = msgspec.json.encode(AskCaches(remove=one.key))
    assert (await ask(remove)).refused == "j1 may run in it"
    assert "$.remove" in (await ask(b'{"remove": "../../etc"}')).refused
    node.alive = {}
    answer = await ask(remove)
    assert (answer.environments, answer.refused) == ((), "")


async def test_the_bound_of_a_node_is_a_number() -> None:
    assert kept_bytes_max({}) == builds.KEPT_BYTES_MAX
    assert kept_bytes_max({"SKEP_ENVIRONMENT_BYTES": "5"}) == 5
    with pytest.raises(ConfigurationError, match="SKEP_ENVIRONMENT_BYTES is '5G': it must be"):
        kept_bytes_max({"SKEP_ENVIRONMENT_BYTES": "5G"})


async def test_a_start_waits_for_its_environment_and_a_stop_ends_the_wait(tmp_path: Path) -> None:
    state, gate = tmp_path / "state", tmp_path / "gate"
    state.mkdir()
    os.mkfifo(gate)
    runtime = process_runtime(state)
    node = BuildingNode(runtime, state, state, tmp_path / "tools")
    await node.code.open()
    said: asyncio.Queue[object] = asyncio.Queue()

    async def next_of(kind: type) -> Any:
        async with asyncio.timeout(60):
            while not isinstance(found := await said.get(), kind):
                pass
        return found

    slots = CpuSlots(4, "cpu")
    calls = AgentCalls(node.code.bus, runtime, slots, state, node.inherited, said.put_nowait)
    await calls.open(said.put)
    command = node.wants(f"echo begun > {gate}; [ -e {tmp_path}/again ] || sleep 1000")
    show = "import os, sys; print(sys.executable == os.environ['VIRTUAL_ENV'] + '/bin/python')"
    command = msgspec.structs.replace(command, argv=("python", "-c", show))
    start = machine.StartRank("j1.1.0", command, command.ranks[0])
    calls.start(start, said.put)
    seen = await next_of(machine.BuildsSeen)
    assert [(one.job, one.attempt, one.text) for one in seen.building] == [("j1", 1, "")]
    await asyncio.to_thread(gate.read_text)
    calls.start(machine.StopRun("j1.1.0", 0.0), said.put)
    refused = await next_of(RunNotStarted)
    assert refused.detail == "the job's environment cannot be built: it was stopped"

    (tmp_path / "again").touch()
    calls.start(start, said.put)
    await asyncio.to_thread(gate.read_text)
    assert (await next_of(RunStarted)).token == "j1.1.0"
    assert (await next_of(RunExited)).code == 0
    assert node.log().splitlines()[-1] == "True"
    await runtime.shutdown(0.0)
    await calls.close()
    await node.code.close()
