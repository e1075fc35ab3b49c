"""How the servers of a cluster are, as seen from one of them."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skep_services.pki.files import client_context
from skep_services.servers import files
from skep_services.servers.files import Member, ServerFile
from skep_services.supervisor import home as folder

ANSWER_WITHIN_S = 2.0
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


def _server(file: ServerFile, member: Member, context: ssl.SSLContext) -> dict[str, Any]:
    ports = member.ports
    meets = NOBODY
    if file.size > 1:
        meets = _answers(member.url("https", ports.servers) + "/v1/ca", context)
    return {
        "name": member.name,
        "hosts": list(member.hosts),
        "meets": meets,
        "gateway": _health(member.url("https", ports.gateway) + "/v1/health", context),
        "bus": _listens(member.hosts[0], ports.bus),
    }


def _answers(url: str, context: ssl.SSLContext) -> str:
    try:
        _get(url, context)
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError):
        return AWAY
    return OK


def _health(url: str, context: ssl.SSLContext) -> str:
    try:
        said = json.loads(_get(url, context))
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except (OSError, ValueError):
        return AWAY
    if said.get("ok"):
        return OK
    silent = [name for name, one in said.get("services", {}).items() if not one.get("ok")]
    return f"silent: {', '.join(silent)}"


def _listens(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), ANSWER_WITHIN_S):
            return OK
    except OSError:
        return AWAY


def _get(url: str, context: ssl.SSLContext) -> bytes:
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=ANSWER_WITHIN_S) as answer:
        data: bytes = answer.read()
    return data
