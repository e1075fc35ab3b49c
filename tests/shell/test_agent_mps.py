"""The agent and NVIDIA's MPS: a stand-in for its control program records how it is called."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from skep_services.agent.mps import PROGRAM, Mps
from skep_services.service import ConfigurationError
from tests.kit import bind

STAND_IN = """#!/bin/sh
said=$(cat)
echo "$* < $said ; $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> {calls}
running={folder}/running
case "$*$said" in
    get_server_list) [ -e $running ] || {{ echo "Cannot find MPS control daemon"; exit 1; }} ;;
    -d) {start} ;;
    quit) rm $running ;;
esac
"""


class Node:
    """A state folder, and a program on PATH."""

    def __init__(self, folder: Path, start: str = ": > $running") -> None:
        self.state, self.calls_file = folder / "state", folder / "calls"
        self.environment = {"SKEP_MPS": "on", "SKEP_DEVICE": "cuda", "PATH": f"{folder}:/bin"}
        self.program = folder / PROGRAM
        self.program.write_text(STAND_IN.format(calls=self.calls_file, folder=folder, start=start))
        self.program.chmod(0o755)

    def mps(self, **more: str) -> Mps:
        return Mps(self.state, {**self.environment, **more})

    def calls(self) -> list[str]:
        """Return what the program was told: words, and what it read."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        where = f"{self.state}/mps/pipe {self.state}/mps/log"
        assert all(line.endswith(where) for line in lines), lines
        return [line.partition(" ;")[0] for line in lines]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_daemon_is_started_found_again_and_ended(node: Node) -> None:
    async def live() -> None:
        first = node.mps()
        await first.open()
        assert not first.trouble
        assert node.calls() == [" < get_server_list", "-d < "]
        await first.close(busy=True)  # Jobs go on, and with them what serves them.
        second = node.mps()
        await second.open()
        assert node.calls()[2:] == [" < get_server_list"]
        await second.close(busy=False)
        assert node.calls()[3:] == [" < quit"]

    asyncio.run(live())


def test_only_ranks_that_share_a_device_are_clients(node: Node) -> None:
    mps = node.mps()
    asyncio.run(mps.open())
    assert mps.variables(bind()) == {}
    assert mps.variables(bind(share=0.333)) == {
        "CUDA_MPS_PIPE_DIRECTORY": f"{node.state}/mps/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{node.state}/mps/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33",
    }
    # The threads of a job that asked for a share of a GPU go by that, not by its memory.
    threads = mps.variables(bind(share=0.75, gpu_share=200))
    assert threads["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"


@pytest.mark.parametrize(
    "change, says",
    [
        ({"PATH": "/nowhere"}, f"{PROGRAM} is not on PATH"),
        ({"SKEP_DEVICE": "fake"}, "the devices of this node are fake, not cuda"),
    ],
)
def test_why_there_is_none_is_said(
    node: Node, change: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    mps = node.mps(**change)
    with caplog.at_level(logging.WARNING):
        asyncio.run(mps.open())
    assert says in mps.trouble
    assert f"packed jobs run without MPS: {mps.trouble}" in caplog.text
    assert mps.variables(bind(share=0.5)) == {}
    asyncio.run(mps.close(busy=False))
    assert node.calls() == []


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    node = Node(tmp_path, start="echo 'no device to serve' >&2; exit 3")
    mps = node.mps()
    asyncio.run(mps.open())
    assert mps.trouble == f"{PROGRAM} exited with 3: no device to serve"
    asyncio.run(mps.close(busy=False))
    assert node.calls()[-1] == "-d < "


def test_it_is_off_unless_it_is_asked_for(node: Node) -> None:
    for setting in ("", "off"):
        mps = node.mps(SKEP_MPS=setting)
        asyncio.run(mps.open())
        assert mps.variables(bind(share=0.5)) == {}
    assert node.calls() == []
    with pytest.raises(ConfigurationError, match="must be `on` or `off`"):
        node.mps(SKEP_MPS="yes")
