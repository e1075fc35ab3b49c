"""The driver's checkpoint, by a utility in the place of NVIDIA's that fails where it is told to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services.adapters.devices import DeviceProcess
from skep_services.adapters.driver_checkpoint import open_checkpoint
from skep_services.service import ConfigurationError
from tests.driver_kit import Host

pytestmark = pytest.mark.adapters

TOKEN = "j1.1.0"
ALLOW = {"SKEP_DRIVER_CHECKPOINT": "allow"}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SKEP_RUN": TOKEN},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Host(tmp_path, process.pid)


@pytest.mark.asyncio
async def test_it_is_off_unless_it_is_allowed_and_there(host: Host) -> None:
    where = {"PATH": f"{host.folder}:{os.environ['PATH']}"}

    async def opened(**environment: str) -> tuple[bool, str]:
        driver, why = await open_checkpoint(environment, host.folder, host.devices)
        return driver is not None, why

    assert await opened(**where) == (False, "")
    assert await opened(**where, **ALLOW) == (True, "")
    absent, why = await opened(PATH="/nowhere", **ALLOW)
    assert not absent
    assert why.startswith("cuda-checkpoint is not in PATH")
    (host.folder / "help").write_text("--toggle --pid <pid>\n")
    old, why = await opened(**where, **ALLOW)
    assert not old
    assert why.endswith("knows no --action: the driver must be 570 or later")
    with pytest.raises(ConfigurationError, match="SKEP_DRIVER_CHECKPOINT is 'yes'"):
        await opened(**where, SKEP_DRIVER_CHECKPOINT="yes")


@pytest.mark.asyncio
async def test_evicted_and_restored_also_by_an_agent_that_came_back(host: Host) -> None:
    assert await host.checkpoint().evict(TOKEN, (0,), 1000) == (600, "")
    assert (host.calls(), host.state) == (["lock", "checkpoint"], "checkpointed")
    host.devices.on = ()  # The driver lists it no more.
    assert await host.checkpoint().evict(TOKEN, (0,), 1000) == (600, ""), "once is enough"
    assert host.calls() == []
    again = host.checkpoint()
    assert await again.restore(TOKEN) == ""
    assert (host.calls(), host.state) == (["restore", "unlock"], "running")
    assert await again.restore(TOKEN) == "", "there is nothing to restore"
    assert host.calls() == []


@pytest.mark.asyncio
async def test_each_phase_that_fails_is_put_back(host: Host) -> None:
    driver = host.checkpoint()
    for action, asked in (("lock", ["lock"]), ("checkpoint", ["lock", "checkpoint", "unlock"])):
        host.fails(action)
        text = f"cuda-checkpoint could not {action} process {host.pid}: cannot {action}"
        assert await driver.evict(TOKEN, (0,), 1000) == (0, text)
        assert (host.calls(), host.state) == (asked, "running")
        assert await driver.restore(TOKEN) == ""
        assert host.calls() == []
        host.fails(action, at=False)
    await driver.evict(TOKEN, (0,), 1000)
    host.calls()
    for action, left in (("restore", "checkpointed"), ("unlock", "locked")):
        host.fails(action)
        assert f"cannot {action}" in await driver.restore(TOKEN)
        assert host.state == left
        host.fails(action, at=False)
    assert await driver.restore(TOKEN) == ""
    assert host.state == "running"


@pytest.mark.asyncio
async def test_what_cannot_even_be_unlocked_is_unlocked_later(host: Host) -> None:
    driver = host.checkpoint()
    host.fails("checkpoint")
    host.fails("unlock")
    moved, why = await driver.evict(TOKEN, (0,), 1000)
    assert moved == 0
    assert "cannot checkpoint; and it is left locked: " in why
    host.fails("unlock", at=False)
    assert await host.checkpoint().restore(TOKEN) == ""
    assert host.state == "running"


@pytest.mark.asyncio
async def test_only_one_process_on_one_device_that_fits(host: Host) -> None:
    driver, mine = host.checkpoint(), DeviceProcess(host.pid, 600)
    assert "which has 599" in (await driver.evict(TOKEN, (0,), 599))[1]
    assert "this job has 2" in (await driver.evict(TOKEN, (0, 1), 1000))[1]
    assert "does not tell" in (await driver.evict(TOKEN, (7,), 1000))[1]
    assert await driver.evict(TOKEN, (1,), 1000) == (0, ""), "it has nothing there"
    host.devices.on = (mine, mine)
    assert "and 2 are on the device" in (await driver.evict(TOKEN, (0,), 1000))[1]
    host.devices.on = (DeviceProcess(os.getpid(), 600),)
    assert (
        "1 processes on the device are not this job's" in (await driver.evict(TOKEN, (0,), 1000))[1]
    )
    host.devices.on = (DeviceProcess(host.pid),)
    assert "does not say how much" in (await driver.evict(TOKEN, (0,), 1000))[1]
    host.devices.used = 700
    assert host.calls() == []
    assert await driver.evict(TOKEN, (0,), 1000) == (700, ""), "what all of the device holds"
    driver.forget(TOKEN)
    assert not list((host.folder / "evicted").iterdir())
