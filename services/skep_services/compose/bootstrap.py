"""`python -m skep_services.compose.bootstrap`: make the streams, three copies each, and the VCs.

Runs once, before the services, and is harmless to repeat. `SKEP_HOME` names the folder in which
`skep_services.compose.init` put `cluster.json`, `SKEP_NATS_URL` the bus as seen from here, and
`SKEP_STATE` the folder that remembers which streams were made: one of them gone is an alarm.
"""

from __future__ import annotations

import asyncio
import os
import sys

from skep_services.adapters.nats_streams import DriftedStreamError
from skep_services.compose.init import SERVERS
from skep_services.ports import MissingStreamError, RefusedError
from skep_services.supervisor import boot
from skep_services.supervisor.config import Cluster
from skep_services.supervisor.run import say

EXIT_FAILED = 1
EXIT_CONFIGURATION = 64
EXIT_LOG = 72


def main() -> int:
    """Return the exit code: 64 for bad configuration, 72 if a stream is gone or not as planned."""
    needed = ("SKEP_HOME", "SKEP_NATS_URL", "SKEP_STATE")
    home, url, state = (os.environ.get(name, "") for name in needed)
    try:
        cluster = boot.read_cluster(home) if home and url and state else None
    except ValueError as error:
        say("bad configuration", error=str(error))
        return EXIT_CONFIGURATION
    if cluster is None:
        text = f"{', '.join(needed)} must be set, and SKEP_HOME hold cluster.json"
        say("bad configuration", error=text)
        return EXIT_CONFIGURATION
    cluster.nats.url = url
    return asyncio.run(_prepare(state, cluster))


async def _prepare(state: str, cluster: Cluster) -> int:
    boot.marker_path(state).parent.mkdir(parents=True, exist_ok=True)
    try:
        await boot.prepare(state, cluster, replicas=len(SERVERS))
    except (MissingStreamError, DriftedStreamError) as error:
        say("the streams are not as they should be", error=str(error))
        return EXIT_LOG
    except (RefusedError, ConnectionError) as error:
        say("not prepared", error=str(error))
        return EXIT_FAILED
    say("prepared", replicas=len(SERVERS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
