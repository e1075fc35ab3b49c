"""A server that is made of a backup: it has another machine, and the servers of before are gone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skep_services.servers import files, setup
from skep_services.servers.files import ServerFile

HOSTS_MAX = 16
"""Names and addresses of one server: those of before stay, as names may move to a new machine."""


def adopt(home: str, hosts: Sequence[str], size: int) -> ServerFile:
    """Have a restored state folder be that of the first server of its cluster, on this machine.

    The keys of the cluster stay, so certificates and tokens go on counting. Of three servers
    the streams are yet to come: a bus of three takes them only over the bus.

    Args:
        home: The state folder; nothing runs in it.
        hosts: By what others reach this machine; the names of before count behind them.
        size: How many servers there will be.

    Raises:
        FilesError: There is no server, or a file cannot be written.
    """
    before = files.read_server(home)
    known = files.check_hosts((*hosts, *before.me.hosts))[:HOSTS_MAX]
    me = msgspec.structs.replace(before.me, name="server-1", hosts=known)
    file = msgspec.structs.replace(
        before,
        name=me.name,
        size=size,
        revision=before.revision + 1,
        members=[me],
        awaits_streams=size > 1,
    )
    files.check_retention(file, files.server_path(home))
    setup.renew(home, file, force=True)
    files.write(files.server_path(home), file)
    return file


def streams_came(home: str) -> None:
    """Have the servers of a restored cluster go on: their streams are there.

    Args:
        home: The state folder of one of them; the others ask it.

    Raises:
        FilesError: There is no server, or the file cannot be written.
    """
    file = files.read_server(home)
    if file.awaits_streams:
        changed = msgspec.structs.replace(file, awaits_streams=False, revision=file.revision + 1)
        files.write(files.server_path(home), changed)
