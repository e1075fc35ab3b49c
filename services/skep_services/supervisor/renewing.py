"""The first step of an upgrade under running jobs: the bus as this version needs it.

    rights and users of this version --> the bus server's configuration --> it reads it again
    streams that this version needs and an earlier one did not have --> made

After that services can be started anew one by one, those of both versions beside one another:
rights and streams only grow from a version to the next.
"""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec

from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.served import ReplicaLate
from skep_services.adapters import nats_access
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.ports import RefusedError
from skep_services.supervisor import boot
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import Cluster
from skep_services.supervisor.table import NATS

LOOK_EVERY_S = 0.05
WITHIN_S = 15.0
TRIED_S = 0.2
"""Until the bus would have refused what it does not allow: nobody answers what it allows."""


class NotRunningError(Exception):
    """There is no running cluster to renew; the text says what to do."""


async def renew(home: str) -> list[str]:
    """Have the running bus of an embedded cluster know the rights and streams of this version.

    Doing it again changes nothing.

    Args:
        home: The state folder.

    Returns:
        The streams that were made.

    Raises:
        NotRunningError: No cluster runs there.
        TimeoutError: The bus does not take the rights over.
        MissingStreamError: A stream is gone.
        DriftedStreamError: A stream is not as it should be.
        ValueError: `cluster.json` cannot be used.
    """
    cluster = boot.read_cluster(home)
    bus: dict[str, int] = (folder.read_json(folder.pids_path(home)) or {}).get(NATS, {})
    if cluster is None or not folder.is_alive(bus):
        text = f"no cluster runs in {home}: there is nothing to renew; `skep up` does it at a start"
        raise NotRunningError(text)
    nodes, vcs = [node.name for node in cluster.nodes], cluster.vcs_with_credentials
    for name, password in nats_access.new_passwords(nodes, vcs).items():
        cluster.nats.users.setdefault(name, password)
    folder.write_json(folder.cluster_path(home), msgspec.to_builtins(cluster))
    boot.write_files(home, cluster)
    os.kill(bus["pid"], signal.SIGHUP)
    async with asyncio.timeout(WITHIN_S):
        while not await _knows(cluster):  # noqa: ASYNC110 - a configuration tells no event
            await asyncio.sleep(LOOK_EVERY_S)
    before = _streams(home)
    await boot.prepare(home, cluster)
    return [name for name in _streams(home) if name not in before]


async def _knows(cluster: Cluster) -> bool:
    """Return whether the bus has the rights of this version: one that only it needs is tried."""
    name = "searches"
    options = LinkOptions(
        servers=tuple(cluster.nats.url.split(",")), identity=name, password=cluster.nats.users[name]
    )
    try:
        link = await Link.connect(options, on_fatal=lambda _: None)
    except (ConnectionError, RefusedError):
        return False
    try:
        # A right of the present table: an earlier one says nothing of late replicas, and this says
        # nothing of one either.
        nothing = ReplicaLate(job="j1", attempt=1, at=Instant(0), bound_ms=0, answered=0, late=0)
        await link.call(subjects.LATE, codec.encode(nothing), {}, TRIED_S)
    except (ConnectionError, RefusedError):
        return False
    finally:
        await link.close()
    return True


def _streams(home: str) -> list[str]:
    found = folder.read_json(str(boot.marker_path(home)))
    return list(found) if isinstance(found, list) else []
