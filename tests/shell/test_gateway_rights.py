"""Every route of the gateway, tried by every role: the answers are what the table says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from skep.access.rights import RIGHTS, Action, Scope, may
from skep.wire.roles import Role
from skep_services.gateway.api import is_open
from skep_services.gateway.route_rights import ACTIONS
from tests.gateway_kit import Client, House, opened
from tests.kit import spec
from tests.search_kit import tree

pytestmark = pytest.mark.asyncio

SERVICE = {"name": "llm", "vc": "nlp", "job": {"command": "serve"}}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/jobs"): spec(),
    ("POST", "/v1/plan"): spec(),
    ("POST", "/v1/searches"): tree(sampler="client"),
    ("POST", "/v1/jobs/{job}/{ask}"): {},
    ("POST", "/v1/searches/{search}/trials"): {"outside": True},
    ("POST", "/v1/searches/{search}/trials/{trial}"): {"step": 1, "value": 1.0},
    ("POST", "/v1/services"): SERVICE,
    ("PUT", "/v1/services/{service}"): SERVICE,
    ("POST", "/v1/services/{service}/scale"): {"replicas": 2},
    ("POST", "/v1/admin/vcs"): {"vcs": {"nlp": {"gpus": 4}, "vision": {"gpus": 0}}},
    ("POST", "/v1/cells/plan"): {"vcs": {"nlp": {"gpus": 4}, "vision": {"gpus": 0}}},
    ("POST", "/v1/admin/drain"): {"node": "node-1"},
    ("POST", "/v1/admin/quarantine"): {"node": "node-1", "device": 0},
}
ELSEWHERE = {
    ("POST", "/v1/roles/{do}"),
    ("POST", "/v1/bus-keys"),
    ("DELETE", "/v1/caches/{node}/{key}"),
}
"""Tried by tests of their own: they ask services that are not here."""
ROLES: tuple[Role | None, ...] = (None, *Role)


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        yield made


def routes(house: House) -> list[tuple[str, str]]:
    """Return method and path of every route that is served."""
    runner = house.gateway._runner
    assert runner is not None
    application = runner.app
    assert isinstance(application, web.Application)
    return sorted(
        {
            (route.method, route.resource.canonical)
            for route in application.router.routes()
            if route.resource is not None and route.method not in {"HEAD", "OPTIONS"}
        }
    )


async def test_every_route_has_a_right(house: House) -> None:
    served = {one for one in routes(house) if not is_open(one[1])}
    assert served == set(ACTIONS)
    # What is about one job or VC is held against it; the rest of the cluster needs its own right.
    assert {RIGHTS[action].scope for action in ACTIONS.values()} >= {Scope.JOB, Scope.VC}


async def status(client: Client, method: str, path: str, body: Any) -> int:
    """Return the status of an answer; one that goes on is not waited for."""
    data = None if body is None else client_body(body)
    async with client.session.request(
        method, client.base + path, data=data, headers=client.headers
    ) as answer:
        return answer.status


def client_body(body: Any) -> bytes:
    from skep.wire import codec

    return bytes(codec.encode(body))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("own", [True, False])
async def test_each_role_may_what_the_table_says(
    house: House, role: Role | None, own: bool
) -> None:
    """A refusal is 403 and names its reason; whatever else an answer is, it is none of rights."""
    owner = await house.as_person("ann", {"nlp": Role.MANAGER})
    job = (await owner.json("POST", "/v1/jobs", 201, spec()))["job"]
    search = (await owner.json("POST", "/v1/searches", 201, tree(sampler="client")))["search"]
    service = (await owner.json("POST", "/v1/services", 201, SERVICE))["service"]
    await house.caught_up()
    name = "ann" if own else "bob"
    if role is Role.OPERATOR:
        client = await house.as_person(name, operator=True)
    else:
        client = await house.as_person(name, {"nlp": role} if role is not None else None)
    house.cluster.deaf = True  # Nothing that one route asks for is there for the next one.
    for (method, route), action in sorted(ACTIONS.items()):
        if RIGHTS[action].scope is Scope.PERSON or (method, route) in ELSEWHERE:
            continue
        ruling = may(action, role, own=own or action in {Action.SUBMIT, Action.SEARCH}, vc="nlp")
        path = route.format(
            job=job,
            search=search,
            service=service,
            path="x",
            ask="suspend",
            vc="nlp",
            trial="1",
            do="add" if route.startswith("/v1/people") else "demote",
            model="m",
            token="t",
            kind="node",
            name="node-1",
            digest="0" * 64,
            replay="r1",
        )
        body = BODIES.get((method, route))
        if ruling.allowed and method != "GET":
            continue  # Admission is deaf: that it lets it through is for the attack tests.
        async with asyncio.timeout(20):
            got = await status(client, method, path, body)
        assert (got == 403) == (not ruling.allowed), (method, path, role, got)
