"""`python -m skep_services.supervisor HOME`: keeps up the cluster of `HOME/cluster.json`.

Started by `skep up`, which holds the state folder's lock and hands it over as a descriptor named
by `SKEP_LOCK_FD`; the lock is free again when this process is gone, however it goes. So are the
ports of its servers, which are kept by the descriptors in `SKEP_PORT_FDS`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from skep_services.adapters import nats_server
from skep_services.adapters.nats_store import StoreError
from skep_services.supervisor import boot, kept, resuming, retention, tenants
from skep_services.supervisor import home as folder
from skep_services.supervisor.run import EXIT_FAILED, Supervisor, say, write_state
from skep_services.supervisor.table import cluster_plan


def main() -> int:
    """Run until asked to stop; return the exit code.

    Raises:
        Exception: A bug, not the machine's trouble or the store's. `cluster.json` says what it is.
    """
    home = folder.home_folder(sys.argv[1] if len(sys.argv) > 1 else None)
    lock = os.environ.pop("SKEP_LOCK_FD", "")
    if not lock.isdecimal():
        sys.stderr.write("the supervisor is started by `skep up`\n")
        return EXIT_FAILED
    for number in (lock, *os.environ.pop("SKEP_PORT_FDS", "").split()):
        os.set_inheritable(int(number), False)
    try:
        return asyncio.run(_run(home))
    except (OSError, StoreError) as error:
        # The machine's trouble, such as a full disk: where we were is of no help with it.
        text = f"{type(error).__name__}: {error}"
        say("supervisor failed", error=text)
        write_state(home, "failed", text)
        return EXIT_FAILED
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        say("supervisor failed", error=text)
        write_state(home, "failed", text)
        raise


async def _run(home: str) -> int:
    write_state(home, "starting")
    cluster = boot.read_cluster(home)
    if cluster is None:
        text = f"{folder.cluster_path(home)} is gone"
        raise FileNotFoundError(text)
    plan = cluster_plan(cluster, home, str(nats_server.binary()))
    boot.move_streams(home)
    boot.write_files(home, cluster)

    async def admit(reload: Callable[[], None]) -> None:
        await asyncio.gather(
            tenants.watch(home, cluster, reload),
            resuming.go_on(home, cluster),
            retention.watch(home, cluster.retention),
        )

    supervisor = Supervisor(
        home,
        plan,
        prepare=lambda: boot.prepare(home, cluster),
        stop_jobs=lambda: boot.stop_jobs(boot.node_folders(home), kept.read(home).jobs),
        admit=admit,
    )
    return await supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
