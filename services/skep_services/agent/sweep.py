"""Which processes still hold memory of devices that a job has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skep.ids import attempt_id, is_run_of
from skep_services.adapters.devices import DeviceState
from skep_services.agent import proc


def leaks(
    seen: Iterable[DeviceState],
    devices: Sequence[int],
    job: str,
    attempt: int,
    shared: Sequence[int] = (),
) -> Sequence[str]:
    """Return in words what a job left on devices: by which process, where, how much.

    A process of another run may be there by right: devices are shared where that is decided.

    Args:
        seen: The state of all devices.
        devices: The indexes of those that the job has left.
        job: The job's id.
        attempt: The number of its attempt.
        shared: Those that were shared: a process there that does not say whose it is may be the
            partner's.
    """
    texts = []
    for device, one in ((d.index, p) for d in seen if d.index in devices for p in d.processes):
        token = proc.run_named(proc.environ(one.pid))
        if token and not is_run_of(token, attempt_id(job, attempt)):
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
