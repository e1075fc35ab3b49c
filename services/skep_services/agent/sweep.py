"""Which processes still hold memory of devices that a job has left."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from skep.ids import attempt_id, is_run_of
from skep_services.adapters.devices import DeviceState
from skep_services.agent import mps, proc


def leaks(
    seen: Iterable[DeviceState],
    devices: Sequence[int],
    job: str,
    attempt: int,
    shared: Sequence[int] = (),
    *,
    state: Path,
) -> Sequence[str]:
    """Return in words what a job left on devices: by which process, where, how much.

    A process of another run may be there by right: devices are shared where that is decided. So may
    one of another cluster, whose runs have the same names, and the agent's own MPS server.

    Args:
        seen: The state of all devices.
        devices: The indexes of those that the job has left.
        job: The job's id.
        attempt: The number of its attempt.
        shared: Those that were shared: a process there that does not say whose it is may be the
            partner's.
        state: The agent's state folder.
    """
    texts = []
    for device, one in ((d.index, p) for d in seen if d.index in devices for p in d.processes):
        environ = proc.environ(one.pid)
        token = proc.run_named(environ)
        here = environ.get(proc.NODE_VARIABLE.encode(), os.fsencode(state)) == os.fsencode(state)
        if token and not (here and is_run_of(token, attempt_id(job, attempt))):
            continue
        if mps.is_server(proc.command_line(one.pid), environ, state):
            continue
        if not token and device in shared:
            continue
        whose = f"of {token}" if token else "of no run"
        size = f"{one.memory} bytes" if one.memory >= 0 else "memory"
        texts.append(
            f"process {one.pid} ({proc.command_line(one.pid)}), {whose}, "
            f"holds {size} of device {device}"
        )
    return texts
