"""The agent's hands: devices, environments, calls, the jobs' socket, and pieces of logs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from skep.machines import agent as machine
from skep.units import Instant
from skep.wire.commands import AGENT_PYTHON, BindJob, EnvironmentOrder, RankPlan
from skep.wire.node import MemberStarted
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunNotStarted, RunPlan, RunStarted
from skep_job.devices import fake_gpus
from skep_services.adapters import devices
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.adapters.node_runtimes import NodeRuntimes
from skep_services.agent import proc, vacant
from skep_services.agent.calls import NODE_FAULT_PAUSE_S, AgentCalls, port_is_taken
from skep_services.agent.environment import (
    container_folders,
    job_library_path,
    log_path,
    provide_job_library,
    run_plan,
    terminal_programs_in_images,
)
from skep_services.agent.jobs import JobSocket
from skep_services.agent.log_times import LogTimes
from skep_services.agent.logs import ENDED_HEADER, SIZE_HEADER, LogPieces
from skep_services.agent.rank_access import RankAccess
from skep_services.ports import Entered, EnterPlan, NotEntered
from skep_services.service import ConfigurationError, NameTakenError

DEADLINE_S = 120.0
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
PLAN = RankPlan(rank=2, local_rank=1, devices=(0, 3))


def bind(**more: Any) -> BindJob:
    """Return a command for two of four ranks."""
    settings = {
        "order": 3,
        "epoch": 1,
        "settled": 0,
        "node": "n1",
        "identity": "i",
        "job": "j7",
        "attempt": 2,
        "name": "train",
        "vc": "nlp",
        "argv": ("prog", "arg"),
        "world": 4,
        "ranks": (RankPlan(rank=1, local_rank=0, devices=(1,)), PLAN),
        "node_rank": 1,
        "nodes": 2,
        "master_address": "10.0.0.1",
        "master_port": 20001,
        "env": {"LR": "0.1"},
        "trace": TRACE,
    }
    return BindJob(**{**settings, **more})


def start(**more: Any) -> machine.StartRank:
    """Return the call that starts the second rank here."""
    return machine.StartRank("j7.2.2", bind(**more), PLAN)


def nvml(registered: list[tuple[int, int]]) -> SimpleNamespace:
    """Return a management library with two devices, to which something happens."""

    class NVMLError(Exception):
        value = 15

    def processes(handle: int) -> list[Any]:
        if handle:
            raise NVMLError
        return [SimpleNamespace(pid=7, usedGpuMemory=9), SimpleNamespace(pid=8, usedGpuMemory=None)]

    happened = [
        SimpleNamespace(device=1, eventType=8, eventData=79),
        SimpleNamespace(device=1, eventType=8, eventData=31),
        SimpleNamespace(device=0, eventType=2, eventData=0),
        SimpleNamespace(device=1, eventType=8, eventData=79),
    ]

    def wait(events: str, milliseconds: int) -> Any:
        assert (events, milliseconds) == ("the set", 0)
        if not happened:
            raise NVMLError
        return happened.pop(0)

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_ERROR_GPU_IS_LOST=15,
        nvmlEventTypeXidCriticalError=8,
        nvmlEventTypeDoubleBitEccError=2,
        nvmlEventSetCreate=lambda: "the set",
        nvmlDeviceGetSupportedEventTypes=lambda handle: 31,
        nvmlDeviceRegisterEvents=lambda handle, types, _: registered.append((handle, types)),
        nvmlEventSetWait_v2=wait,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetRemappedRows=lambda handle: (0, 1, 0, handle),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200" if handle else "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(
            total=150_000_000_000 + handle, used=10 + handle
        ),
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50 + handle),
    )


class TestDevices:
    def test_slots_share_the_hosts_memory(self) -> None:
        slots = devices.CpuSlots(4, "cpu")
        assert [gpu.index for gpu in slots.gpus()] == [0, 1, 2, 3]
        assert sum(gpu.memory for gpu in slots.gpus()) <= devices.host_memory()
        assert slots.visible((1, 2)) == {"CUDA_VISIBLE_DEVICES": "", "SKEP_DEVICES": "1,2"}
        assert slots.in_container((1, 2)) == slots.visible((1, 2))
        assert slots.names((1, 2)) == ()
        assert slots.look() == ()

    def test_a_containers_memory_is_its_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = devices.host_memory()
        limit = tmp_path / "memory.max"
        monkeypatch.setattr(devices, "MEMORY_LIMITS", (str(tmp_path / "none"), str(limit)))
        for text, seen in (("1048576\n", 1048576), ("max\n", whole), (str(2**62), whole)):
            limit.write_text(text)
            assert devices.host_memory() == seen

    @pytest.mark.parametrize(
        "wish, text",
        [
            ({"SKEP_GPUS": "many"}, "must be a number"),
            ({"SKEP_GPUS": "0"}, "ask for 1 to"),
            ({"SKEP_GPUS": "1000"}, "ask for 1 to"),
            ({"SKEP_DEVICE": "fake", "SKEP_GPU_MEMORY": "lots"}, "number of bytes"),
            ({"SKEP_DEVICE": "tpu"}, "must be `cpu`, `fake` or `cuda`"),
        ],
    )
    def test_wishes_that_cannot_be(self, wish: dict[str, str], text: str, tmp_path: Path) -> None:
        with pytest.raises(devices.DeviceError, match=text):
            devices.open_devices(wish, tmp_path)

    def test_slots_by_default(self, tmp_path: Path) -> None:
        found = devices.open_devices({"SKEP_GPUS": "2", "SKEP_GPU_TYPE": "slot"}, tmp_path)
        assert [gpu.type for gpu in found.gpus()] == ["slot", "slot"]

    def test_without_bindings_it_says_what_to_install(
        self, monkeypatch: Any, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with pytest.raises(devices.DeviceError, match="install the `cuda` extra"):
            devices.open_devices({"SKEP_DEVICE": "cuda"}, tmp_path)

    def test_nvml_without_a_driver_or_gpu(self, monkeypatch: Any) -> None:
        class NVMLError(Exception):
            pass

        def refuse() -> None:
            raise NVMLError("Driver Not Loaded")

        library = SimpleNamespace(NVMLError=NVMLError, nvmlInit=refuse)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        with pytest.raises(devices.DeviceError, match="nvidia-smi"):
            devices.NvmlGpus()
        library.nvmlInit = lambda: None
        library.nvmlDeviceGetCount = lambda: 0
        with pytest.raises(devices.DeviceError, match="sees no GPU"):
            devices.NvmlGpus()

    def test_nvml_inventory(self, monkeypatch: Any, tmp_path: Path) -> None:
        registered: list[tuple[int, int]] = []
        library = nvml(registered)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        found = devices.open_devices({"SKEP_DEVICE": "cuda"}, tmp_path)
        assert [(gpu.type, gpu.uuid) for gpu in found.gpus()] == [
            ("nvidia-h200", "GPU-0"),
            ("nvidia-h200", "GPU-1"),
        ]
        first, second = found.look()
        assert first.processes == (devices.DeviceProcess(7, 9), devices.DeviceProcess(8, -1))
        assert (first.utilisation, first.memory) == (500, 10)
        assert registered == [(0, 10), (1, 10)]
        # 31 is a job's own fault: it says nothing about the device.
        assert first.trouble == ("lost memory cells",)
        assert (second.utilisation, second.memory, second.processes) == (510, 11, ())
        assert second.trouble == (
            "the driver lost the device",
            "remapping a row of its memory failed",
            "XID 79, seen 2 times",
        )
        assert found.look()[0].trouble == ("lost memory cells",), "and stays so"
        assert found.visible((1,))["CUDA_VISIBLE_DEVICES"] == "1"
        assert found.names((1,)) == ("GPU-1",)
        # A container sees the devices it was given, and counts them from 0.
        inside = found.in_container((1,))
        assert (inside["CUDA_VISIBLE_DEVICES"], inside["SKEP_DEVICES"]) == ("0", "1")
        assert found.in_container((7, 2, 5))["CUDA_VISIBLE_DEVICES"] == "2,0,1"


class TestEnvironment:
    def test_what_torchrun_users_expect(self, tmp_path: Path) -> None:
        inherited = {"PATH": "/bin", "HOME": "/h", "SKEP_NATS_PASSWORD": "secret"}
        plan = run_plan(start(), tmp_path, devices.CpuSlots(4, "cpu"), inherited)
        assert plan.argv == ("prog", "arg")
        assert plan.workdir == str(tmp_path)
        assert plan.log_path == str(log_path(tmp_path, "j7", 2, 2))
        wanted = {
            "RANK": "2",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "20001",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "SKEP_JOB": "j7",
            "SKEP_GEN": "2",
            "LR": "0.1",
            "SKEP_RUN": "j7.2.2",
            "SKEP_DEVICES": "0,3",
            "TRACEPARENT": TRACE,
            "HOME": "/h",
        }
        assert {name: plan.env.get(name) for name in wanted} == wanted
        assert plan.env["PATH"] == f"{Path(sys.executable).parent}:/bin"
        assert "secret" not in plan.env.values(), "the agent's credentials stay with the agent"

    def test_a_single_worker_is_no_gang_unless_asked_for(self, tmp_path: Path) -> None:
        slots = devices.CpuSlots(4, "cpu")
        alone = run_plan(start(distributed=False), tmp_path, slots, {}).env
        assert not [
            name
            for name in alone
            if name.startswith(
                (
                    "RANK",
                    "WORLD",
                    "LOCAL_",
                    "MASTER",
                    "TORCHELASTIC",
                    "NODE_RANK",
                    "GROUP_",
                    "ROLE_",
                )
            )
        ]
        assert (alone["SKEP_RANK"], alone["SKEP_WORLD"]) == ("2", "4")

    def test_the_spec_goes_before_what_does_not_identify_the_rank(self, tmp_path: Path) -> None:
        slots = devices.CpuSlots(4, "cpu")
        mine = {"MASTER_PORT": "29500", "OMP_NUM_THREADS": "8", "SKEP_VC": "vision", "RANK": "7"}
        forged = {"SKEP_RANK": "7", "SKEP_JOB": "j1", "SKEP_DEVICES": "0,1,2,3", "SKEP_RUN": "j1"}
        told = run_plan(start(env={**mine, **forged}), tmp_path, slots, {}).env
        assert {name: told[name] for name in mine} == mine
        assert {name: told[name] for name in forged} == {
            "SKEP_RANK": "2",
            "SKEP_JOB": "j7",
            "SKEP_DEVICES": "0,3",
            "SKEP_RUN": "j7.2.2",
        }

    def test_ranks_on_parameter_servers_know_how_many_and_their_secret(
        self, tmp_path: Path
    ) -> None:
        slots = devices.CpuSlots(4, "cpu")
        assert "SKEP_PS_TOKEN" not in run_plan(start(), tmp_path, slots, {}).env
        served = run_plan(start(servers=2, secret="a1"), tmp_path, slots, {}).env
        assert (served["SKEP_PS_SERVERS"], served["SKEP_PS_TOKEN"]) == ("2", "a1")
        own = start(servers=2, secret="a1", env={"SKEP_PS_TOKEN": "b2"})
        assert run_plan(own, tmp_path, slots, {}).env["SKEP_PS_TOKEN"] == "b2"

    def test_an_environment_that_was_built_comes_first(self, tmp_path: Path) -> None:
        slots = devices.CpuSlots(4, "cpu")
        order = EnvironmentOrder(kind="uv", path="uv.lock", files="f")
        told = run_plan(
            start(environment=order, python="/e/env/bin/python"), tmp_path, slots, {"PATH": "/bin"}
        ).env
        assert told["VIRTUAL_ENV"] == "/e/env"
        assert told["PATH"].startswith("/e/env/bin:")
        conda = msgspec.structs.replace(order, kind="conda")
        found = run_plan(start(environment=conda, python="/e/env/bin/python"), tmp_path, slots, {})
        assert found.env["CONDA_PREFIX"] == "/e/env"

    def test_every_python_of_a_command_watches_for_training(self, tmp_path: Path) -> None:
        slots = devices.CpuSlots(4, "cpu")
        plan = run_plan(start(env={"PYTHONPATH": "/mine"}), tmp_path, slots, {})
        folder, theirs = plan.env["PYTHONPATH"].split(":")
        assert sorted(path.name for path in Path(folder).glob("*.py")) == ["sitecustomize.py"]
        assert theirs == "/mine"
        # What launchers inside the command do not change.
        assert (plan.env["SKEP_RANK"], plan.env["SKEP_WORLD"]) == ("2", "4")
        # In a container it comes before what the image or the job sets, which only it can see.
        inside = run_plan(start(image="a:1", env={"PYTHONPATH": "/mine"}), tmp_path, slots, {})
        assert inside.env["PYTHONPATH"] == "/mine"
        library = job_library_path(tmp_path)
        assert inside.python_path == f"{library}/skep_job/start_up"
        notebook = start(image="a:1", argv=("python3", "-m", "skep_job.notebook", "--idle", "60"))
        found = run_plan(notebook, tmp_path, slots, {})
        assert found.python_path == f"{library}/skep_job/start_up:{library}"
        provide_job_library(tmp_path)
        programs = terminal_programs_in_images(tmp_path)
        assert {"copy.py", "forward.py"} <= {each.name for each in programs.iterdir()}

    def test_containers_see_what_the_operator_names(self, tmp_path: Path) -> None:
        slots = devices.CpuSlots(4, "cpu")
        named = {"SKEP_CONTAINER_FOLDERS": "/data:/opt/venv", "SKEP_CHECKPOINTS_DIR": "/kept"}
        plan = run_plan(start(image="a:1"), tmp_path, slots, named)
        assert plan.folders == ("/kept/j7", "/data", "/opt/venv")
        assert plan.folders_to_read == (str(job_library_path(tmp_path)), str(tmp_path / "sock"))
        for text in ("data", "/data:/..", "/"):
            with pytest.raises(ConfigurationError, match="SKEP_CONTAINER_FOLDERS"):
                container_folders({"SKEP_CONTAINER_FOLDERS": text})

    def test_scripts_run_on_the_agents_interpreter(self, tmp_path: Path) -> None:
        command = start(argv=(AGENT_PYTHON, "-m", "skep_job", "t.py"), workdir="/w", trace="")
        plan = run_plan(command, tmp_path, devices.CpuSlots(4, "cpu"), {})
        assert plan.argv == (sys.executable, "-m", "skep_job", "t.py")
        assert plan.workdir == "/w"
        assert "TRACEPARENT" not in plan.env

    def test_container_has_its_images_paths_and_what_was_asked_for(self, tmp_path: Path) -> None:
        inherited = {"PATH": "/bin", "HOME": "/h", "TZ": "UTC", "SKEP_NATS_PASSWORD": "secret"}
        plan = run_plan(start(image="a:1"), tmp_path, devices.CpuSlots(4, "cpu"), inherited)
        assert (plan.image, plan.gpus, plan.argv) == ("a:1", (), ("prog", "arg"))
        assert plan.log_path == str(log_path(tmp_path, "j7", 2, 2))
        wanted = {"RANK": "2", "LR": "0.1", "SKEP_DEVICES": "0,3", "TZ": "UTC", "USER": "skep"}
        assert {name: plan.env.get(name) for name in wanted} == wanted
        assert "PATH" not in plan.env
        assert plan.env.get("HOME") != "/h"
        assert "secret" not in plan.env.values()

    def test_script_in_a_container_runs_on_the_images_python(self, tmp_path: Path) -> None:
        command = start(
            argv=(AGENT_PYTHON, "-m", "skep_job", "t.py"), image="a:1", env={"PYTHONPATH": "/mine"}
        )
        plan = run_plan(command, tmp_path, devices.CpuSlots(4, "cpu"), {})
        assert plan.argv == ("python3", "-m", "skep_job", "t.py")
        assert plan.env["PYTHONPATH"] == "/mine"
        library = plan.python_path
        provide_job_library(tmp_path)
        provide_job_library(tmp_path)
        command_line = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path[:] = [*sys.path, {library!r}]; "
            "import skep_job, skep_ps; print(skep_job.__file__, skep_ps.__file__)",
        ]
        printed = subprocess.run(command_line, capture_output=True, text=True, check=True).stdout
        assert printed.split() == [
            f"{library}/skep_job/__init__.py",
            f"{library}/skep_ps/__init__.py",
        ]


class Runtime:
    """A runtime that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.plans: list[RunPlan] = []
        self.trouble: RunNotStarted | None = None
        self.on_exit: Callable[[RunExited], Awaitable[None]] | None = None

    async def open(self, on_exit: Callable[[RunExited], Awaitable[None]]) -> None:
        self.on_exit = on_exit

    async def runs(self) -> Sequence[RunStarted | RunExited]:
        return [RunStarted("j1.1.0", 5, 6, Instant(7))]

    async def start(self, plan: RunPlan) -> RunStarted | RunNotStarted:
        self.asked.append(("start", plan.token))
        self.plans.append(plan)
        if self.trouble is not None:
            return self.trouble
        return RunStarted(plan.token, 1, 2, Instant(3))

    async def stop(self, token: str, grace_s: float) -> None:
        self.asked.append(("stop", token, grace_s))

    async def freeze(self, token: str) -> str:
        self.asked.append(("freeze", token))
        return "" if token != "bad" else "no engine"

    async def thaw(self, token: str) -> str:
        self.asked.append(("thaw", token))
        return ""

    async def signal(self, token: str, name: str, order: int) -> str:
        self.asked.append(("signal", token, name, order))
        return ""

    async def enter(self, plan: EnterPlan) -> Entered | NotEntered:
        return NotEntered("not-built")

    async def forget(self, token: str) -> None:
        if token == "bad":
            raise OSError("the runner is gone")
        self.asked.append(("forget", token))

    async def close(self) -> None:
        self.asked.append("close")


class Hands:
    """Agent calls on a memory bus, with what they answered."""

    def __init__(self, tmp_path: Path) -> None:
        self.broker = MemoryBroker(ManualClock())
        self.broker.add_stream("NODE", ("skep.v1.node.*.*",))
        self.runtime = Runtime()
        self.fatal: list[Exception] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        bus = MemoryBus(self.broker, "node-n1", self.fatal.append)
        self.calls = AgentCalls(
            bus, self.runtime, devices.CpuSlots(4, "cpu"), tmp_path, {}, self.fatal.append
        )

    async def ask(self, command: Any) -> Any:
        self.calls.start(command, self.answers.put)
        return await asyncio.wait_for(self.answers.get(), DEADLINE_S)


@pytest.mark.asyncio
async def test_a_run_that_has_nothing_on_its_devices_leaves_them_without_the_driver(
    tmp_path: Path,
) -> None:
    hands = Hands(tmp_path)
    assert await hands.ask(machine.EvictRun("j1.1.0", (0,), 0)) == machine.RunEvicted(
        "j1.1.0", 0, ""
    )
    assert await hands.ask(machine.RestoreRun("j1.1.0")) == machine.RunRestored("j1.1.0", "")
    # What the driver took before it was switched off is not given back by anything else.
    (tmp_path / "evicted").mkdir()
    (tmp_path / "evicted" / "j1.1.0").touch()
    told = await hands.ask(machine.RestoreRun("j1.1.0"))
    assert told.trouble.startswith("the driver's checkpoint is off")


def test_what_a_run_has_on_its_devices_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = devices.CpuSlots(2, "cpu")
    assert vacant.trouble_of(slots, (0, 1), "j1.1.0") == ""
    fake = devices.FakeGpus(slots, tmp_path / "gpus", 1 << 30)
    assert vacant.trouble_of(fake, (0,), "j1.1.0") == ""
    load = fake_gpus.FakeLoad(step_s=0.1, memory=1 << 20)
    used = fake_gpus.Accelerator(str(tmp_path / "gpus"), 0, load)
    pid = os.getpid()
    assert vacant.trouble_of(fake, (0, 1), "j1.1.0") == f"another's process {pid} uses device 0"
    monkeypatch.setattr(proc, "run_named", lambda _: "j1.1.0")
    assert vacant.trouble_of(fake, (0, 1), "j1.1.0") == f"its process {pid} uses device 0"
    assert vacant.trouble_of(fake, (1,), "j1.1.0") == ""
    used.close()

    class Silent(devices.CpuSlots):
        """Devices that have files, and whose driver says nothing."""

        def nodes(self, devices: Sequence[int]) -> tuple[str, ...]:
            return ("/dev/nvidia0",)

    silent = Silent(1, "cuda")
    said = vacant.trouble_of(silent, (0,), "j1.1.0")
    assert said == "device 0 does not tell which processes use it"
    monkeypatch.setattr(silent, "look", lambda: (devices.DeviceState(0),))
    assert vacant.trouble_of(silent, (0,), "j1.1.0") == ""
    with (tmp_path / "nvidia0").open("w"):
        monkeypatch.setattr(vacant, "DEVICE_FILES", str(tmp_path / "nvidia"))
        assert vacant.trouble_of(silent, (0,), "j1.1.0") == f"its process {pid} has a device open"


@pytest.mark.asyncio
async def test_library_that_cannot_be_copied_starts_no_container(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "lib").write_text("a file where the folder should be")
    answer = await hands.ask(start(image="a:1"))
    assert isinstance(answer, RunNotStarted)
    assert answer.detail.startswith(f"{tmp_path}/lib")
    assert hands.runtime.plans == []


@pytest.mark.asyncio
async def test_the_nodes_own_fault_is_told_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, pauses = Hands(tmp_path), list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    text = "log /l cannot be written: No space left on device"
    for trouble in (RunNotStarted("j7.2.2", text, of_node=True), RunNotStarted("j7.2.2", "no a")):
        hands.runtime.trouble = trouble
        assert await hands.ask(start()) == trouble
    assert pauses == [NODE_FAULT_PAUSE_S], "a fault of the job is told at once"
    monkeypatch.undo()

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "mkdir", full)
    monkeypatch.setattr("skep_services.agent.calls.NODE_FAULT_PAUSE_S", 0.0)
    answer = await hands.ask(start())
    assert isinstance(answer, RunNotStarted)
    assert (answer.of_node, "No space left on device" in answer.detail) == (True, True)


@pytest.mark.asyncio
async def test_a_plan_with_an_image_goes_to_the_containers() -> None:
    processes, containers = Runtime(), Runtime()
    both = NodeRuntimes(processes, containers)

    async def ended(run: RunExited) -> None:
        raise AssertionError(run)

    await both.open(ended)
    assert processes.on_exit is containers.on_exit is ended
    plain = RunPlan(token="p", argv=("a",), env={}, workdir="/", log_path="/l", log_bytes_max=1)
    await both.start(plain)
    await both.start(msgspec.structs.replace(plain, token="c", image="a:1"))
    await both.stop("c", 1.0)
    assert await both.freeze("c") == await both.thaw("c") == ""
    await both.forget("p")
    assert len(await both.runs()) == 2
    await both.close()
    asked = [("stop", "c", 1.0), ("freeze", "c"), ("thaw", "c"), ("forget", "p"), "close"]
    assert processes.asked == [("start", "p"), *asked]
    assert containers.asked == [("start", "c"), *asked]


@pytest.mark.asyncio
async def test_calls_reach_the_runtime_and_the_stream(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    await hands.calls.open(hands.answers.put)
    assert await hands.ask(start()) == RunStarted("j7.2.2", 1, 2, Instant(3))
    listed = await hands.ask(machine.ListRuns())
    assert listed == machine.RunsListed((RunStarted("j1.1.0", 5, 6, Instant(7)),))
    told = MemberStarted(node="n1", identity="i", job="j7", attempt=2, at=Instant(1), trace=TRACE)
    event = machine.PublishEvent(4, "skep.v1.node.n1.started", "i:4", told)
    assert await hands.ask(event) == machine.Published(4)
    stored = hands.broker.stream("NODE").messages
    assert [(one.subject, one.headers["traceparent"]) for one in stored] == [
        ("skep.v1.node.n1.started", TRACE)
    ]
    assert hands.runtime.on_exit is not None
    await hands.runtime.on_exit(RunExited("j7.2.2", 0, Instant(9)))
    assert hands.answers.get_nowait() == RunExited("j7.2.2", 0, Instant(9))
    hands.calls.start(machine.StopRun("t", 1.5), hands.answers.put)
    hands.calls.start(machine.ForgetRun("t"), hands.answers.put)
    await hands.ask(machine.ListRuns())
    assert hands.runtime.asked[1:] == [("stop", "t", 1.5), ("forget", "t")]
    frozen = await hands.ask(machine.FreezeRun("t"))
    assert frozen == machine.RunFrozen("t")
    assert await hands.ask(machine.FreezeRun("bad")) == machine.RunFrozen("bad", "no engine")
    assert await hands.ask(machine.ThawRun("t")) == machine.RunThawed("t")
    await hands.calls.close()
    assert hands.fatal == []


@pytest.mark.asyncio
async def test_what_ends_the_agent(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.calls.start(machine.ExitProcess("name taken"), hands.answers.put)
    assert isinstance(hands.fatal[0], NameTakenError)
    hands.calls.start(machine.ForgetRun("bad"), hands.answers.put)
    await hands.ask(machine.ListRuns())
    assert isinstance(hands.fatal[1], OSError)
    with pytest.raises(AssertionError, match="cannot"):
        hands.calls.start("nonsense", hands.answers.put)


@pytest.mark.asyncio
async def test_a_taken_rendezvous_port_is_told_before_anything_starts(
    tmp_path: Path, free_port: int
) -> None:
    hands, port = Hands(tmp_path), free_port
    with socket.create_server(("", port)):
        assert port_is_taken(port)
        first = RankPlan(rank=0, local_rank=0, devices=(0,))
        command = machine.StartRank("j7.2.0", bind(master_port=port), first)
        answer = await hands.ask(command)
    assert isinstance(answer, RunNotStarted)
    assert answer.detail.startswith(machine.PORT_BUSY)
    assert hands.runtime.asked == []
    assert not port_is_taken(port)


def frame(**message: Any) -> bytes:
    """Return a job's message as it travels."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


WHO = {"job": "j7", "attempt": 2, "rank": 1}
STATS = {
    "type": "stats",
    **WHO,
    "steps": 5,
    "step_ns": 10,
    "monotonic_ns": 1_000,
    "last_step_monotonic_ns": 900,
    "source": "optimizer",
    "memory_bytes": 64,
}


def access() -> RankAccess:
    """Return the node's access to its one run, which is this process."""
    known = RankAccess(b"k" * 32)
    ticks = proc.start_ticks(os.getpid())
    assert ticks is not None
    known.listed([RunStarted("j7.2.1", os.getpid(), ticks, Instant(0))])
    return known


HELLO = frame(type="hello", **WHO, pid=1, token=RankAccess(b"k" * 32).secret("j7.2.1"))


@pytest.mark.asyncio
async def test_jobs_say_how_far_they_are(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 30)
    state.mkdir()
    clock = ManualClock(Instant(5_000))
    events: asyncio.Queue[Any] = asyncio.Queue()
    jobs = JobSocket(state, clock, events.put, access())
    (state / "jobs.sock").write_text("left by an earlier agent")
    await jobs.open()
    folder = os.open(state, os.O_PATH)
    reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/jobs.sock")
    os.close(folder)
    writer.write(HELLO + frame(**STATS) + frame(type="unheard of", news=1))
    writer.write(frame(type="error", **WHO, error="odd") + frame(type="bye", **WHO, steps=9))
    hello = await asyncio.wait_for(events.get(), DEADLINE_S)
    assert (hello.message.token, hello.message.pid) == ("", 1)
    first = await asyncio.wait_for(events.get(), DEADLINE_S)
    expected = RankProgress(rank=1, steps=5, step_ns=10, last_step_at=Instant(4_900), memory=64)
    assert first == machine.RankStats("j7", 2, expected)
    assert (await asyncio.wait_for(events.get(), DEADLINE_S)).message.error == "odd"
    last = await asyncio.wait_for(events.get(), DEADLINE_S)
    assert (last.progress.steps, last.progress.memory) == (9, 64)
    writer.write(frame(type="suspended", **WHO, order="one"))
    told = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert b"cannot be read: Expected `int`, got `str`" in told, "garbage ends the connection"
    writer.close()
    await jobs.close()


@pytest.mark.asyncio
async def test_giant_messages_and_unset_times(tmp_path: Path) -> None:
    events: asyncio.Queue[Any] = asyncio.Queue()
    jobs = JobSocket(tmp_path, ManualClock(), events.put, access())
    await jobs.open()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "jobs.sock"))
    unset = frame(**{**STATS, "last_step_monotonic_ns": 0})
    writer.write(HELLO + unset + struct.pack(">I", 2**31))
    assert (await asyncio.wait_for(events.get(), DEADLINE_S)).message.pid == 1
    assert (await asyncio.wait_for(events.get(), DEADLINE_S)).progress.last_step_at == 0
    assert b"a message of 2147483648 bytes" in await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    await jobs.close()


@pytest.mark.asyncio
async def test_pieces_of_logs(tmp_path: Path) -> None:
    broker = MemoryBroker(ManualClock())
    errors: list[Exception] = []
    bus = MemoryBus(broker, "node-n1", errors.append)
    path = log_path(tmp_path, "j7", 2, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")
    times = LogTimes(tmp_path, tmp_path / "log-times")
    pieces = LogPieces(bus, tmp_path, lambda job, attempt: (job, attempt) == ("j7", 2), times)
    await bus.listen("skep.v1.logs.n1", pieces.answer)

    async def ask(payload: bytes) -> tuple[bytes, str, str]:
        answer = await bus.request("skep.v1.logs.n1", payload, {}, DEADLINE_S)
        assert answer is not None
        return answer.payload, answer.headers[SIZE_HEADER], answer.headers[ENDED_HEADER]

    def wish(**more: Any) -> bytes:
        return json.dumps({"job": "j7", "attempt": 2, "rank": 1, **more}).encode()

    assert await ask(wish(offset=4, limit=3)) == (b"456", "10", "0")
    assert await ask(wish(offset=99)) == (b"", "10", "0")
    assert await ask(wish(ago_s=60, limit=0)) == (b"", "10", "0")
    assert await ask(wish(attempt=3)) == (b"", "-1", "1")
    assert await ask(wish(job="../../etc")) == (b"", "-1", "1")
    assert await ask(b"not json") == (b"", "-1", "1")
    # A job can put something else in the place of its log.
    path.unlink()
    (tmp_path / "rank-key").write_bytes(b"a secret")
    path.symlink_to(tmp_path / "rank-key")
    assert await ask(wish()) == (b"", "-1", "0")
    path.unlink()
    os.mkfifo(path)
    assert await ask(wish()) == (b"", "-1", "0")
    await bus.send("skep.v1.logs.n1", wish(), {})
    await bus.close()
    assert errors == []
