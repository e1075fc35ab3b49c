"""A stand-in for NVIDIA's cuda-checkpoint, and for the devices whose processes it is used on."""

from __future__ import annotations

from pathlib import Path

from skep_services.adapters.devices import CpuSlots, DeviceProcess, DeviceState
from skep_services.adapters.driver_checkpoint import DriverCheckpoint

UTILITY = r"""#!/bin/sh
# What cuda-checkpoint 570 does, without CUDA: every call in `calls`, the state of a pid in a file.
here=$(dirname "$0")
[ "$1" = --help ] && { cat "$here/help"; exit 0; }
echo "$*" >>"$here/calls"
case $1 in --get-state) what=state pid=$3 ;; --action) what=$2 pid=$4 ;; esac
now=$(cat "$here/$pid" 2>/dev/null || echo running)
[ $what = state ] && { echo "$now"; exit 0; }
[ -e "$here/fails-$what" ] && { echo "cannot $what"; exit 1; }
case $now-$what in
running-lock) next=locked ;;
locked-checkpoint) next=checkpointed ;;
checkpointed-restore) next=locked ;;
locked-unlock) next=running ;;
*) echo "process is $now"; exit 1 ;;
esac
echo $next >"$here/$pid"
"""
HELP = "--get-state --pid <pid>\n--action lock | checkpoint | restore | unlock --pid <pid>\n"


class Devices(CpuSlots):
    """Devices that tell who is on them."""

    def __init__(self) -> None:
        super().__init__(2, "fake")
        self.on: tuple[DeviceProcess, ...] = ()
        self.used = -1

    def look(self) -> tuple[DeviceState, ...]:
        return (DeviceState(0, memory=self.used, processes=self.on), DeviceState(1))


class Host:
    """A machine with the utility, and a process that is on the first of its devices."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder, self.pid, self.devices = folder, pid, Devices()
        self.is_on_device(pid)
        self.tool = folder / "cuda-checkpoint"
        self.tool.write_text(UTILITY)
        self.tool.chmod(0o755)
        (folder / "help").write_text(HELP)

    def is_on_device(self, pid: int) -> None:
        """Have the driver say so."""
        self.pid, self.devices.on = pid, (DeviceProcess(pid, 600),)

    def checkpoint(self) -> DriverCheckpoint:
        """Return what an agent has that begins anew."""
        return DriverCheckpoint(str(self.tool), self.folder / "evicted", self.devices)

    def fails(self, action: str, *, at: bool = True) -> None:
        """Have an action fail from now on, or not any more."""
        path = self.folder / f"fails-{action}"
        path.touch() if at else path.unlink()

    def calls(self) -> list[str]:
        """Return the actions that were asked for since this was asked last."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [words[1] for line in lines if (words := line.split())[0] == "--action"]

    @property
    def state(self) -> str:
        """Return how the process stands for the driver."""
        path = self.folder / str(self.pid)
        return path.read_text().strip() if path.exists() else "running"
