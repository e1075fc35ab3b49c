"""Ports of this machine for tests: other ones for each of pytest's workers.

What the kernel calls free is free for a moment: it gives the same port to whoever asks next, and a
gang's first rank listens seconds later. So these lie below those that the kernel gives away by
itself, and no two workers have the same.
"""

from __future__ import annotations

import itertools
import os

from skep_services.supervisor.config import PORT_FIRST, PORT_LAST
from skep_services.supervisor.ports import is_free

FIRST, LAST = 10_000, PORT_FIRST - 1


def share(first: int, last: int) -> tuple[int, int]:
    """Return this worker's part of the ports from `first` to `last`."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = (last + 1 - first) // workers
    return first + mine * width, first + (mine + 1) * width - 1


def gangs() -> str:
    """Return where the gangs of this worker's clusters meet, as SKEP_PORTS wants it."""
    first, last = share(PORT_FIRST, PORT_LAST)
    return f"{first}-{last}"


_FIRST, _LAST = share(FIRST, LAST)
# Another run of the tests on this machine begins elsewhere.
_NEXT = itertools.count(os.getpid())


def free_port() -> int:
    """Return a loopback port on which nobody listens, and which was not returned before."""
    count = _LAST + 1 - _FIRST
    ports = (_FIRST + number % count for number in itertools.islice(_NEXT, count))
    return next(port for port in ports if is_free(port))
