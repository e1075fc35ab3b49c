"""What a node keeps for its jobs: checkpoints, room in the host's memory, and no leaks."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skep.machines.agent import PublishEvent, StartRank, SweepDevices, TellRank
from skep.wire import talk
from skep.wire.node import MemberExited, Outcome
from skep.wire.runs import Warm
from skep_services.adapters.devices import CpuSlots, DeviceProcess, DeviceState
from skep_services.agent import calls, checkpoints, memory, mps, warm
from skep_services.agent.checkpoints import Checkpoints, checkpoints_dir
from skep_services.agent.environment import run_plan
from skep_services.agent.sweep import leaks
from skep_services.service import ConfigurationError
from tests.kit import at, bind, plans
from tests.shell.test_agent_parts import Hands

WHO: dict[str, Any] = {"job": "j1", "attempt": 1, "rank": 0}


def test_a_job_is_told_where_it_stores_and_how_much_fits(tmp_path: Path) -> None:
    command = bind(ranks=plans((0,), (1,)))
    start = StartRank("j1.1.0", command, command.ranks[0])
    settings = {"SKEP_HOST_STATE_BYTES": "1000", "SKEP_ADDRESS": "10.0.0.9"}
    env = run_plan(start, tmp_path, CpuSlots(2, "cpu"), settings).env
    assert env["SKEP_CHECKPOINTS"] == str(tmp_path / "checkpoints" / "j1")
    assert env["SKEP_HOST_BYTES"] == "500"
    assert env["PYTHONHASHSEED"] == "0", "sets have one order wherever the job goes on"
    asked = bind(ranks=plans((0,), (1,)), env={"PYTHONHASHSEED": "7"})
    again = run_plan(StartRank("j1.1.0", asked, asked.ranks[0]), tmp_path, CpuSlots(2, "cpu"), {})
    assert again.env["PYTHONHASHSEED"] == "7"
    assert "SKEP_AWAITS" not in env
    start = StartRank("j1.1.0", bind(awaits="secret"), command.ranks[0])
    shared = {**settings, "SKEP_CHECKPOINTS_DIR": "/shared"}
    plan = run_plan(start, tmp_path, CpuSlots(2, "cpu"), shared)
    assert plan.env["SKEP_CHECKPOINTS"] == "/shared/j1"
    assert plan.folders == ("/shared/j1",), "a container sees that of its own job"
    assert (plan.env["SKEP_AWAITS"], plan.env["SKEP_HOST"]) == ("secret", "10.0.0.9")


def test_a_folder_that_an_operator_names_has_to_be_one(tmp_path: Path) -> None:
    assert checkpoints_dir({}) is None
    assert checkpoints_dir({"SKEP_CHECKPOINTS_DIR": str(tmp_path)}) == tmp_path
    for text in ("relative", str(tmp_path / "absent")):
        with pytest.raises(ConfigurationError, match="by its full path, that is writable"):
            checkpoints_dir({"SKEP_CHECKPOINTS_DIR": text})


def test_checkpoints_go_with_success_and_with_age(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, {})
    assert kept.sweep(lambda job: False) == []
    for job in ("j1", "j2", "j3", "j4", "other"):
        kept.provide(job, whole=job == "j1")
        (kept.path(job) / "a.safetensors").touch()
    kept.succeeded("j1")
    kept.succeeded("j2")
    assert (kept.path("j1").exists(), kept.path("j2").exists()) == (False, True)
    old = time.time() - checkpoints.KEEP_SECONDS - 10
    for job in ("j2", "j3", "other"):
        os.utime(kept.path(job) / "a.safetensors", (old, old))
        os.utime(kept.path(job), (old, old))
    assert kept.sweep(lambda job: job == "j3") == ["j2"]
    assert kept.path("j4").exists()
    shared = Checkpoints(tmp_path, {"SKEP_CHECKPOINTS_DIR": str(tmp_path / "checkpoints")})
    assert shared.sweep(lambda job: False) == [], "others may use it"


def test_what_a_job_leaves_in_its_folder_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, {})
    for job in ("j1", "j2"):
        kept.provide(job)
        (kept.path(job) / "loop").symlink_to("loop")
    deep = os.open(kept.path("j1"), os.O_RDONLY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    kept.path("j3").touch()
    old = time.time() - checkpoints.KEEP_SECONDS - 10
    for path in (
        *kept.path("j1").iterdir(),
        *kept.path("j2").iterdir(),
        *kept.path("j").parent.iterdir(),
    ):
        os.utime(path, (old, old), follow_symlinks=False)
    assert kept.sweep(lambda job: False) == ["j1", "j2", "j3"]
    assert list(kept.path("j").parent.iterdir()) == []


def test_the_hosts_budget() -> None:
    assert memory.host_budget({}, 1000) == 500
    assert memory.host_budget({"SKEP_HOST_STATE_BYTES": "0"}, 1000) == 0
    for text in ("-1", "many", "1001"):
        with pytest.raises(ConfigurationError, match="number of bytes up to 1000"):
            memory.host_budget({"SKEP_HOST_STATE_BYTES": text}, 1000)


def test_what_is_free_is_what_can_be_filled_without_swapping(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 100 kB\nMemAvailable:    64 kB\n")
    assert memory.host_bytes_free(str(path)) == 64 * 1024 * 7 // 8
    assert memory.host_bytes_free(str(tmp_path / "none")) == 0
    assert memory.host_bytes_free() > 0


@pytest.mark.asyncio
async def test_ranks_are_told_folder_and_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands(tmp_path)
    told: list[talk.Told] = []
    hands.calls.start(TellRank(talk.ResumeRank(**WHO, order=1)), hands.answers.put)

    def tell(message: talk.Told) -> bool:
        told.append(message)
        return True

    hands.calls.tell = tell
    monkeypatch.setattr(calls, "host_bytes_free", lambda: 1000)
    for message in (
        talk.CheckpointRank(**WHO, order=1, step=3),
        talk.ReleaseRank(**WHO, order=2, max_bytes=600),
        talk.ReleaseRank(**WHO, order=3, max_bytes=400),
        talk.ResumeRank(**WHO, order=4),
    ):
        hands.calls.start(TellRank(message, among=2), hands.answers.put)
    assert told == [
        talk.CheckpointRank(**WHO, order=1, step=3, path=str(tmp_path / "checkpoints" / "j1")),
        talk.ReleaseRank(**WHO, order=2, max_bytes=500),
        talk.ReleaseRank(**WHO, order=3, max_bytes=400),
        talk.ResumeRank(**WHO, order=4),
    ]


@pytest.mark.asyncio
async def test_checkpoints_go_once_the_end_is_told(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    await hands.calls.open(hands.answers.put)
    command = bind()
    await hands.ask(StartRank("j1.1.0", command, command.ranks[0]))
    folder = tmp_path / "checkpoints" / "j1"
    assert folder.is_dir()
    for number, outcome in enumerate((Outcome.EXITED, Outcome.SUCCEEDED)):
        exited = MemberExited(
            node="n1", identity="i", job="j1", attempt=1, outcome=outcome, at=at(1)
        )
        await hands.ask(PublishEvent(number, "skep.v1.node.n1.exited", f"i:{number}", exited))
        assert folder.exists() is (outcome is Outcome.EXITED)
    await hands.calls.close()


@pytest.mark.asyncio
async def test_where_no_checkpoint_can_be_kept_nothing_starts(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    command = bind()
    answer = await hands.ask(StartRank("j1.1.0", command, command.ranks[0]))
    assert answer.detail.startswith(f"{tmp_path}/checkpoints")
    assert hands.runtime.plans == []


def test_who_holds_memory_of_a_device_that_a_job_left_is_named(tmp_path: Path) -> None:
    own = DeviceProcess(os.getpid(), 4096)
    seen = (DeviceState(0, processes=(own,)), DeviceState(1, processes=(own,)))
    (text,) = leaks(seen, (0,), "j1", 1, state=tmp_path)
    assert text.startswith(f"process {os.getpid()} (")
    assert text.endswith("of no run, holds 4096 bytes of device 0")
    assert leaks(seen, (2,), "j1", 1, state=tmp_path) == []
    (text,) = leaks(
        (DeviceState(0, processes=(DeviceProcess(os.getpid()),)),), (0,), "j1", 1, state=tmp_path
    )
    assert text.endswith("holds memory of device 0")


@pytest.mark.parametrize(
    "name, environ, named",
    [
        ("cat", {"SKEP_RUN": "j1.1.0", "SKEP_NODE_STATE": "ours"}, True),
        ("cat", {"SKEP_RUN": "j1.1.0"}, True),
        ("cat", {"SKEP_RUN": "j1.1.0", "SKEP_NODE_STATE": "another"}, False),
        ("cat", {"SKEP_RUN": "j1.2.0", "SKEP_NODE_STATE": "ours"}, False),
        (mps.SERVER, {mps.PIPES: "ours/mps/pipe"}, False),
        (mps.SERVER, {mps.PIPES: "another/mps/pipe"}, True),
        ("cat", {mps.PIPES: "ours/mps/pipe"}, True),
    ],
)
def test_what_is_on_a_device_by_right_is_not_left_behind(
    tmp_path: Path, name: str, environ: dict[str, str], named: bool
) -> None:
    told = {key: value.replace("ours", str(tmp_path)) for key, value in environ.items()}
    with subprocess.Popen(
        [name], executable="cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=told, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdout.read(1)  # Its environment is not told while it begins.
        seen = (DeviceState(0, processes=(DeviceProcess(process.pid, 7),)),)
        assert len(leaks(seen, (0,), "j1", 1, state=tmp_path)) == named
        process.stdin.close()


@pytest.mark.asyncio
async def test_devices_are_swept_after_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hands = Hands(tmp_path)
    state = DeviceState(0, processes=(DeviceProcess(os.getpid(), 7),))
    hands.calls._devices.look = lambda: (state,)  # type: ignore[method-assign]
    await hands.calls.open(hands.answers.put)
    hands.calls.start(SweepDevices("j1", 1, (0,)), hands.answers.put)
    for task in list(hands.calls._tasks.values()):
        if "_clean" in repr(task):
            await task
    assert "after j1 attempt 1: process" in caplog.text
    await hands.calls.close()


def test_an_operator_says_how_many_warm_processes_there_are(tmp_path: Path) -> None:
    assert warm.bounds({}) is None
    assert warm.bounds({"SKEP_WARM_PROCESSES": "0"}) is None
    found = warm.bounds({"SKEP_WARM_PROCESSES": "3", "SKEP_WARM_IDLE_S": "9"})
    assert found == Warm(processes=3, bytes=warm.BYTES_DEFAULT, idle_s=9)
    for name, text in (
        ("SKEP_WARM_PROCESSES", "many"),
        ("SKEP_WARM_PROCESSES", "65"),
        ("SKEP_WARM_BYTES", "0"),
        ("SKEP_WARM_IDLE_S", "-1"),
    ):
        with pytest.raises(ConfigurationError, match=f"{name} is .*: it must be a whole number"):
            warm.bounds({name: text})


def test_only_scripts_without_secrets_are_forked(tmp_path: Path) -> None:
    argv = ("@python", "-m", "skep_job", "train.py")
    settings = {"SKEP_WARM_PROCESSES": "1"}

    def asked(accounts: bool = False, **more: Any) -> Warm | None:
        command = bind(**{"argv": argv, "workdir": "/w", "vc": "lab", "owner": "ada", **more})
        start = StartRank("j1.1.0", command, command.ranks[0])
        return run_plan(start, tmp_path, CpuSlots(1, "cpu"), settings, accounts=accounts).warm

    found = asked()
    assert found is not None
    assert (found.whose, found.script) == (("lab", "ada"), "/w/train.py")
    assert asked(accounts=True) is None
    for more in (
        {"env": {"SKEP_WARM": "0"}},
        {"secrets": {"TOKEN": "token"}},
        {"image": "python:3"},
        {"argv": ("python", "train.py")},
        {"argv": ("@python", "-m", "skep_job.ps.launch", "train.py")},
    ):
        assert asked(**more) is None, more
    settings.clear()
    assert asked() is None, "without a word of the operator there is none"
