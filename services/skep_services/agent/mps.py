"""NVIDIA's Multi-Process Service: the kernels of packed jobs run side by side instead of in turns.

Off unless SKEP_MPS is `on`. The agent then keeps one control daemon, with its folders in the state
folder, and ranks that begin on a shared device are its clients, with as many of the device's
threads as their share of its memory. Ranks of a job that asks for a share of a GPU are clients from
the start, with that share of the threads. Any other that began alone stays what it is when it gets
a partner: a process chooses at its start. A fault of one client ends the others on the device,
which is why it is for operators to want.

The daemon outlives the agent, as jobs do; the next agent finds it by its folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from skep.wire.commands import BindJob
from skep_services.service import ConfigurationError

log = logging.getLogger(__name__)

SETTING = "SKEP_MPS"
PROGRAM = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PATIENCE_S = 10.0
"""The control daemon answers within milliseconds; its start takes less than a second."""
OUTPUT_CHARACTERS_MAX = 200


def is_server(command_line: str, environ: Mapping[bytes, bytes], state: Path) -> bool:
    """Return whether a process is the server that the daemon of an agent keeps on its devices.

    Args:
        command_line: With what it was executed.
        environ: Its environment.
        state: The agent's state folder.
    """
    ours = environ.get(PIPES.encode()) == os.fsencode(_folder(state) / "pipe")
    return ours and Path(command_line.partition(" ")[0]).name == SERVER


def _folder(state: Path) -> Path:
    return state / "mps"


class Mps:
    """The control daemon of one agent. `open` before use, `close` after."""

    def __init__(
        self, state: Path, environment: Mapping[str, str], *, accounts: bool = False
    ) -> None:
        """Read the settings.

        Args:
            state: The agent's state folder.
            environment: The agent's environment.
            accounts: Jobs have accounts of their own.

        Raises:
            ConfigurationError: The setting is there, and neither `on` nor `off`.
        """
        setting = environment.get(SETTING, "off") or "off"
        if setting not in {"on", "off"}:
            text = f"{SETTING} is {setting!r}: it must be `on` or `off`"
            raise ConfigurationError(text)
        self.wanted = setting == "on"
        self.trouble = "" if self.wanted else f"{SETTING} is not `on`"
        """Why there is no daemon, empty while there is one."""
        device = environment.get("SKEP_DEVICE", "cpu")
        if self.wanted and device != "cuda":
            self.trouble = f"the devices of this node are {device}, not cuda"
        if self.wanted and accounts:
            self.trouble = "jobs have accounts of their own, and one MPS server serves one account"
        self._search = environment.get("PATH", "")
        self._program = ""
        self._folder = _folder(state)
        self._folders = {
            PIPES: str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    async def open(self) -> None:
        """Find the daemon or start one; what is in the way is logged, and packing does without."""
        if self.wanted and not self.trouble:
            self.trouble = await self._start()
        if self.wanted and self.trouble:
            log.warning("packed jobs run without MPS: %s", self.trouble)

    async def close(self, *, busy: bool) -> None:
        """End the daemon, unless processes that may be its clients go on.

        Args:
            busy: There may be such processes.
        """
        if not self.trouble and not busy:
            failed = await self._call(said="quit")
            if failed:
                log.warning("the MPS control daemon was not ended: %s", failed)

    def folders(self, command: BindJob) -> tuple[str, ...]:
        """Return the folders that a client in a container has to see."""
        return tuple(self._folders.values()) if self.variables(command) else ()

    def variables(self, command: BindJob) -> Mapping[str, str]:
        """Return what makes a rank a client; nothing for one that has its GPUs alone."""
        if self.trouble or not command.share:
            return {}
        of_gpu = command.gpu_share / 1000 or command.share
        percentage = max(1, round(100 * of_gpu))
        return {**self._folders, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}

    async def _start(self) -> str:
        """Return why there is no daemon, an empty text if there is one."""
        self._program = shutil.which(PROGRAM, path=self._search) or ""
        if not self._program:
            return f"{PROGRAM} is not on PATH: it comes with the driver's compute utilities"
        try:
            await asyncio.to_thread(self._make_folders)
        except OSError as error:
            return f"{error.filename} cannot be made: {error.strerror}"
        if not await self._call(said="get_server_list"):
            return ""  # An earlier process of this agent has left it running.
        return await self._call("-d")

    def _make_folders(self) -> None:
        for folder in self._folders.values():
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    async def _call(self, *words: str, said: str = "") -> str:
        """Run the control program; return what is wrong, an empty text if it did as it was told."""
        # The order of the devices is the one that ranks name theirs in.
        environment = {"PATH": self._search, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **self._folders}
        # Into a file: a daemon may hold on to what it was given as output for as long as it lives.
        with (self._folder / "last-call").open("w+b") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    self._program,
                    *words,
                    env=environment,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                return f"{self._program}: {error.strerror}"
            try:
                await asyncio.wait_for(process.communicate(said.encode()), PATIENCE_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                return f"{PROGRAM} did not answer in {PATIENCE_S:g} s"
            if process.returncode == 0:
                return ""
            output.seek(0)
            told = output.read().decode(errors="replace").strip()[-OUTPUT_CHARACTERS_MAX:]
            return f"{PROGRAM} exited with {process.returncode}: {told or 'it says nothing'}"
