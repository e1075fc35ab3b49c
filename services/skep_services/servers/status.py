"""How the servers of a cluster are, as seen from one of them."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skep_services.pki.files import client_context
from skep_services.servers import files
from skep_services.servers.files import Member, ServerFile
from skep_services.servers.versions import OWN, VersionError, check_meeting
from skep_services.supervisor import home as folder

ANSWER_WITHIN_S = 2.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Ten times the health of a cluster of a thousand nodes."""
OK, AWAY = "ok", "away"
NOBODY = "-"
"""One server meets no other."""


def look(home: str, file: ServerFile) -> dict[str, Any]:
    """Return how each server is: whether its ports answer, and prove themselves.

    Args:
        home: The state folder.
        file: The server that looks.
    """
    context = client_context(Path(files.tls_path(home, files.CA)))
    with ThreadPoolExecutor(max_workers=files.SIZES[-1]) as pool:
        servers = list(pool.map(lambda one: _server(file, one, context), file.members))
    state = "not running"
    cluster = folder.read_cluster(home) or {}
    if folder.supervisor_alive(cluster):
        running = cluster["supervisor"]
        state = str(running.get("error") or running.get("state"))
    working = sum(one["gateway"] == OK and one["bus"] == OK for one in servers)
    return {
        "cluster": file.cluster,
        "server": file.name,
        "size": file.size,
        "state": state,
        # One of three may be away.
        "ok": working > file.size // 2 and state == "running",
        "servers": servers,
    }


def apart(authority: Path, gateways: Iterable[str], who: str) -> str:
    """Return why this version cannot be in one cluster with that of a gateway; empty: it can.

    A gateway that does not answer is passed over: what cannot be asked does not stop a machine.

    Args:
        authority: The file of the authority's certificate.
        gateways: Their addresses.
        who: What asks, for the text: `this node`.
    """
    context = client_context(authority)
    for url in gateways:
        theirs = str(_health(f"{url}/v1/health", context)[1].get("version", ""))
        if theirs:
            try:
                check_meeting(OWN, who, own=theirs)
            except VersionError as error:
                return str(error)
    return ""


def _server(file: ServerFile, member: Member, context: ssl.SSLContext) -> dict[str, Any]:
    ports = member.ports
    gateway, said = _health(member.url("https", ports.gateway) + "/v1/health", context)
    meets = NOBODY
    if file.size > 1:
        meets = _answers(member.url("https", ports.servers) + "/v1/ca", context)
    return {
        "name": member.name,
        "hosts": list(member.hosts),
        "meets": meets,
        "gateway": gateway,
        "bus": _listens(member.hosts[0], ports.bus),
        "version": str(said.get("version", "")),
        "nodes": _node_versions(said),
    }


def _node_versions(said: dict[str, Any]) -> dict[str, str]:
    """Return the versions of the nodes that tell one, as a gateway has them."""
    services = said.get("services")
    found = services.items() if isinstance(services, dict) else ()
    return {
        name.removeprefix("node-"): str(one["version"])
        for name, one in found
        if name.startswith("node-") and isinstance(one, dict) and one.get("version")
    }


def _answers(url: str, context: ssl.SSLContext) -> str:
    try:
        _get(url, context)
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError):
        return AWAY
    return OK


def _health(url: str, context: ssl.SSLContext) -> tuple[str, dict[str, Any]]:
    """Return how a gateway says the cluster is, in words, and what it says."""
    try:
        said = json.loads(_get(url, context))
    except urllib.error.HTTPError as error:
        # A cluster that is not well says so with a status of its own, and how it is all the same.
        said, state = _said(error), f"status {error.code}"
    except (OSError, ValueError):
        return AWAY, {}
    else:
        state = AWAY
    if not isinstance(said, dict):
        return state, {}
    if said.get("ok"):
        return OK, said
    services = said.get("services")
    if not isinstance(services, dict):
        return state, said
    silent = [name for name, one in services.items() if _is_silent(one)]
    return f"silent: {', '.join(silent)}", said


def _is_silent(one: Any) -> bool:
    return not (isinstance(one, dict) and (one.get("ok") or one.get("away")))


def _said(error: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(error.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError):
        return None


def _listens(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), ANSWER_WITHIN_S):
            return OK
    except OSError:
        return AWAY


def _get(url: str, context: ssl.SSLContext) -> bytes:
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=ANSWER_WITHIN_S) as answer:
        data: bytes = answer.read(ANSWER_BYTES_MAX)
    return data
