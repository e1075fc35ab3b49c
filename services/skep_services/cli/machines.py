"""What `skep doctor` looks at on a server and on a node of a cluster of real machines."""

from __future__ import annotations

import email.utils
import fcntl
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli.checks import CLOCK_SKEW_S_MAX, FAIL, OK, WARN, Check
from skep_services.supervisor import home as folder

if TYPE_CHECKING:
    from skep_services.servers.address import Place
    from skep_services.servers.files import NodeFile, ServerFile

REACHED_WITHIN_S = 3.0


def machine_of(home: str) -> str:
    """Return what a state folder is of: `server`, `node`, or empty for another cluster."""
    from skep_services.servers import files

    if files.has_server(home):
        return "server"
    return "node" if files.has_node(home) else ""


def server_checks(home: str) -> Iterator[Check]:
    """Yield what can be said of a server beside its processes: the others, and their ports."""
    from skep_services.servers import files, sources
    from skep_services.servers.files import FilesError

    try:
        file = files.read_server(home)
    except FilesError as error:
        yield Check("server", FAIL, str(error), "restore the file, or have this server join again")
        return
    missing = file.size - len(file.members)
    if missing:
        todo = "skep server token, and `skep server join` on the others"
        yield Check("servers", FAIL, f"{missing} of {file.size} have not joined yet", todo)
    else:
        yield Check("servers", OK, f"{file.name} of {file.size}, cluster {file.cluster}")
    yield from _ports(file)
    yield sources_check(file, sources.read(home))


def sources_check(file: ServerFile, seen: Sequence[str]) -> Check:
    """Look from where people's programs may come to the bus: by the doors of the servers only.

    Args:
        file: The servers.
        seen: Addresses from which servers came, besides those that they are called by.
    """
    from skep_services.servers import sources

    found = sources.networks(file, seen)
    if not found:
        text = "people's programs may come past the door: not every server has an address as --host"
        todo = "skep server rotate-certs --host ADDRESS, on each server that has a name only"
        return Check("sources", WARN, text, todo)
    shown = [one.rpartition("/")[0] for one in found if one not in sources.LOOPBACK]
    return Check("sources", OK, f"people's programs come by the doors at {', '.join(shown)}")


def _ports(file: ServerFile) -> Iterator[Check]:
    from skep_services.servers.address import Place

    for one in file.members:
        ports = {"gateway": one.ports.gateway, "bus": one.ports.bus}
        if file.size > 1:
            ports |= {"routes": one.ports.routes, "servers": one.ports.servers}
        closed = [
            f"{part} ({port})"
            for part, port in ports.items()
            if _trouble(Place(one.hosts[0], port))
        ]
        name = f"ports of {one.name}"
        if closed:
            text = f"{one.hosts[0]} is not reached at {', '.join(closed)}"
            todo = f"is {one.name} up, and open in the firewall? (skep server ports)"
            # One of three may be away.
            level = FAIL if one.name == file.name or file.size == 1 else WARN
            yield Check(name, level, text, todo)
        else:
            yield Check(name, OK, f"{one.hosts[0]}: {', '.join(ports)}")


def node_checks(home: str) -> Iterator[Check]:
    """Yield what can be said of a node: its identity, the servers, its agent."""
    from skep_services.servers import files
    from skep_services.servers.files import FilesError

    try:
        file = files.read_node(home)
    except FilesError as error:
        yield Check("node", FAIL, str(error), "restore the file, or have this node join again")
        return
    yield Check("node", OK, f"{file.name} of cluster {file.cluster}, at {file.address}")
    yield _identity(home, file)
    yield from _gateways(home, file)
    yield from _bus(file)
    yield _agent(home)


def _identity(home: str, file: NodeFile) -> Check:
    from skep_services.adapters import nats_access, nats_jwt
    from skep_services.servers import files

    path = files.creds_path(home, nats_access.node_identity(file.name))
    try:
        read = nats_jwt.read_credentials(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError, nats_jwt.TokenError) as error:
        return Check("identity", FAIL, f"{path}: {error}", "have this node join again")
    left_s = nats_jwt.claims_of(read.token).exp - time.time()
    if left_s <= 0:
        todo = "skep node renew; `skep node run` does it in time"
        return Check("identity", FAIL, f"expired {-left_s / 86_400:.0f} days ago", todo)
    return Check("identity", OK, f"valid for {left_s / 86_400:.0f} days")


def _gateways(home: str, file: NodeFile) -> Iterator[Check]:
    from skep_services.pki.files import TlsError, client_context
    from skep_services.servers import files, nodejoin

    try:
        context = client_context(Path(files.tls_path(home, files.CA)))
    except TlsError as error:
        yield Check("gateway", FAIL, str(error), "have this node join again")
        return
    for place in nodejoin.places_of(file.gateways):
        yield from _gateway(place, context)


def _gateway(place: Place, context: ssl.SSLContext) -> Iterator[Check]:
    from skep_services.servers.address import hostport
    from skep_services.servers.versions import OWN, VersionError, check_meeting

    where = hostport(*place)
    link = http.client.HTTPSConnection(*place, timeout=REACHED_WITHIN_S, context=context)
    try:
        link.request("GET", "/v1/health")
        answer = link.getresponse()
        date, said = answer.headers.get("Date", ""), _read(answer.read())
    except (OSError, http.client.HTTPException) as error:
        todo = "is that server up, and open in the firewall? (skep server ports)"
        yield Check("gateway", FAIL, f"{where}: {error}", todo)
        return
    finally:
        link.close()
    yield Check("gateway", OK, where)
    if date:
        skew = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
        if abs(skew) > CLOCK_SKEW_S_MAX:
            todo = "set both clocks by NTP: certificates and leases follow them"
            yield Check("clock skew", FAIL, f"{skew:+.0f} s between {where} and here", todo)
        else:
            yield Check("clock skew", OK, f"{where}: none to speak of")
    theirs = str(said.get("version", ""))
    try:
        check_meeting(OWN, "this node", own=theirs or OWN)
    except VersionError as error:
        yield Check("version", FAIL, str(error), "one release after the other, servers first")
    else:
        yield Check("version", OK, f"{OWN} here, {theirs or 'not told'} there")


def _read(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except ValueError:
        said = {}
    return said if isinstance(said, dict) else {}


def _bus(file: NodeFile) -> Iterator[Check]:
    from skep_services.servers import nodejoin
    from skep_services.servers.address import hostport

    places = nodejoin.places_of(file.bus)
    for place in places:
        trouble = _trouble(place)
        if trouble:
            todo = "is that server up, and open in the firewall? (skep server ports)"
            level = WARN if len(places) > 1 else FAIL
            yield Check("bus", level, f"{hostport(*place)}: {trouble}", todo)
        else:
            yield Check("bus", OK, hostport(*place))


def _trouble(place: Place) -> str:
    try:
        with socket.create_connection(place, REACHED_WITHIN_S):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _agent(home: str) -> Check:
    """Look whether `skep node run` holds the folder's lock."""
    todo = "systemctl start skep-node (or: skep node run)"
    try:
        lock = os.open(folder.lock_path(home), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Check("agent", FAIL, "it never ran here", todo)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Check("agent", OK, "kept up by `skep node run`")
    finally:
        os.close(lock)
    return Check("agent", FAIL, "not running", todo)
