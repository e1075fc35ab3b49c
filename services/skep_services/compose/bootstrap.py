"""`python -m skep_services.compose.bootstrap`: make the streams, three copies each, and the VCs.

Runs once, before the services, and is harmless to repeat. `SKEP_HOME` names the folder in which
`skep_services.compose.init` put `cluster.json`, `SKEP_NATS_URL` the bus as seen from here, and
`SKEP_STATE` the folder that remembers which streams were made: one of them gone is an alarm.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from skep_services.adapters.nats_streams import DriftedStreamError
from skep_services.compose.init import SERVERS
from skep_services.ports import MissingStreamError, RefusedError
from skep_services.supervisor import boot
from skep_services.supervisor.config import Cluster
from skep_services.supervisor.run import say

PATIENCE_S = 60.0
"""An election takes 4 to 9 s; what is wrong after this stays wrong."""
PAUSE_S = 1.0

EXIT_FAILED = 1
EXIT_CONFIGURATION = 64
EXIT_LOG = 72


def main() -> int:
    """Make the streams and the VCs.

    Returns:
        The exit code: 0: they are there; 1: they could not be made within PATIENCE_S; 64: bad
        configuration; 72: a stream is gone or not as planned.
    """
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
    began = time.monotonic()
    while True:
        try:
            await boot.prepare(state, cluster, replicas=len(SERVERS))
        except (MissingStreamError, DriftedStreamError) as error:
            say("the streams are not as they should be", error=str(error))
            return EXIT_LOG
        except (RefusedError, ConnectionError) as error:
            # Servers that have only just met refuse a stream for want of three to place it on.
            say("not prepared yet", error=str(error))
            if time.monotonic() - began > PATIENCE_S:
                return EXIT_FAILED
            await asyncio.sleep(PAUSE_S)
        else:
            say("prepared", replicas=len(SERVERS))
            return 0


if __name__ == "__main__":
    sys.exit(main())
