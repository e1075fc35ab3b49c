"""Has the jobs go on that `skep down` kept in memory, once the cluster is up again."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from skep_services.supervisor import kept
from skep_services.supervisor.config import Cluster
from skep_services.supervisor.run import say

NODES_LOOK_EVERY_S = 0.2
ANSWER_WITHIN_S = 20.0
"""A change is answered in milliseconds; a gateway that has just started takes longer."""
REPEATED_FOR_S = 120.0
"""How long a wish is repeated that was not answered: a restart of the gateway takes seconds."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The gateway is on this machine: a proxy in the environment is not for it."""


async def go_on(home: str, cluster: Cluster) -> None:
    """Have kept jobs go on, once every node of the cluster has joined."""
    found = kept.read(home)
    if found == kept.Kept():
        return
    await _joined(cluster)
    for job in found.resume:
        await _post(cluster, f"/v1/jobs/{job}/resume", {})
    for node in found.undrain:
        await _post(cluster, "/v1/admin/drain", {"node": node, "drain": False})
    kept.forget(home)


async def _joined(cluster: Cluster) -> None:
    """Return once all nodes of a cluster are there."""
    wanted = {node.name for node in cluster.nodes}
    while True:
        try:
            rows = (await asyncio.to_thread(_ask, cluster, "GET", "/v1/nodes"))["nodes"]
        except (OSError, ValueError, http.client.HTTPException):
            rows = []  # The gateway is not up yet.
        if wanted <= {row["node"] for row in rows if row["state"] in {"up", "drained"}}:
            return
        await asyncio.sleep(NODES_LOOK_EVERY_S)


async def _post(cluster: Cluster, path: str, wish: dict[str, Any]) -> None:
    """Ask the gateway for something; again if it does not answer, but not if it refuses."""
    ends_at = time.monotonic() + REPEATED_FOR_S
    while True:
        try:
            await asyncio.to_thread(_ask, cluster, "POST", path, wish)
        except (OSError, ValueError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or time.monotonic() > ends_at:
                say("kept job not resumed", path=path, error=str(error))
                return
            await asyncio.sleep(NODES_LOOK_EVERY_S)
        else:
            return


def _ask(cluster: Cluster, method: str, path: str, wish: dict[str, Any] | None = None) -> Any:
    """Return what the gateway answers.

    Raises:
        OSError: The gateway does not answer, or refuses.
        ValueError: The answer is not JSON.
    """
    gateway = cluster.gateway
    request = urllib.request.Request(  # noqa: S310 - the address is the cluster's own
        gateway.url + path,
        data=None if wish is None else json.dumps(wish).encode(),
        method=method,
        headers={"Authorization": f"Bearer {gateway.tokens['operator']}"},
    )
    with _DIRECT.open(request, timeout=ANSWER_WITHIN_S) as answer:
        return json.loads(answer.read())
