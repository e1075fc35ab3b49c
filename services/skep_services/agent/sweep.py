"""Who still holds memory of devices that a job has left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skep_services.adapters.devices import Holder
from skep_services.agent import proc

TOKEN = b"SKEP_TOKEN"


def leaks(held: Iterable[Holder], job: str, attempt: int) -> Sequence[str]:
    """Return in words what a job left on devices: by whom, where, how much.

    A process of another run may be there by right: devices are shared where that is decided.
    """
    texts = []
    for one in held:
        token = proc.environ(one.pid).get(TOKEN, b"").decode(errors="replace")
        if token and token.rsplit(".", 1)[0] != f"{job}.{attempt}":
            continue
        whose = f"of {token}" if token else "of no run"
        texts.append(
            f"process {one.pid} ({proc.command_line(one.pid)}), {whose}, "
            f"holds {one.bytes} bytes of device {one.device}"
        )
    return texts
