"""The OpenAPI document says what the gateway serves, and nothing of it comes from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire.changes import ASKS
from skep.wire.search import SearchSpec, parse_search_tree
from skep.wire.service import ServiceSpec, parse_service_tree
from skep_services.gateway import answers, openapi
from skep_services.gateway.operations import CHOICES, OPERATIONS
from tests.gateway_kit import House, error, opened, submitted
from tests.search_kit import tree
from tests.shell.test_gateway_rights import routes

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        yield made


async def test_every_route_is_in_the_document_and_nothing_else(house: House) -> None:
    of_page = {"/{page}", "/{page}/{rest}", "/{file}"}
    served = {one for one in routes(house) if one[1] not in of_page}
    asks = {("POST", f"/v1/jobs/{{job}}/{verb}") for verb in ASKS}
    served = (served - {("POST", "/v1/jobs/{job}/{ask}")}) | asks
    assert set(OPERATIONS) == served, "describe the route in gateway/operations.py"
    assert {path for _, path in OPERATIONS if path.endswith("{do}")} == set(CHOICES)


async def test_every_reference_leads_somewhere_and_everything_has_an_example() -> None:
    document = json.loads(json.dumps(openapi.document()))

    def walk(tree: Any) -> None:
        if isinstance(tree, dict):
            if "$ref" in tree:
                level = document
                for part in tree["$ref"].removeprefix("#/").split("/"):
                    level = level[part]
            for each in tree.values():
                walk(each)
        elif isinstance(tree, list):
            for each in tree:
                walk(each)

    walk(document)
    names = [one["operationId"] for each in document["paths"].values() for one in each.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    for (method, path), operation in OPERATIONS.items():
        assert (operation.body is None) == (operation.example is None), (method, path)
        if operation.body is SearchSpec:
            assert isinstance(parse_search_tree(operation.example), SearchSpec)
        elif operation.body is ServiceSpec:
            assert isinstance(parse_service_tree(operation.example), ServiceSpec)
        elif operation.body is not None and operation.tag not in ("changes", "secrets"):
            msgspec.convert(operation.example, operation.body)
        answer = operation.answer
        if isinstance(answer, type) and issubclass(answer, msgspec.Struct):
            msgspec.convert(openapi.example(answer), answer)


async def test_it_is_served_with_a_page_that_asks_nobody(house: House) -> None:
    told = await house.nobody.get("/v1/openapi.json")
    assert told["openapi"] == "3.1.0"
    assert told == json.loads(msgspec.json.encode(openapi.document()))
    async with house.nobody.open("/v1/docs") as answer:
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        text = await answer.text()
    assert not re.search(r"<script|<link|<img|src=|@import|url\(", text)
    for _, path in OPERATIONS:
        assert path in text, path


async def test_a_wrong_method_is_told_which_are_right(house: House) -> None:
    async with house.session.delete(house.base + "/v1/jobs", headers=house.op.headers) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")
        assert error(await answer.json())[0] == "method-not-allowed"


async def test_answers_are_what_the_document_says(house: House) -> None:
    """Each answer has every field that its struct has, and no other."""
    job = await submitted(house)
    search = (await house.op.json("POST", "/v1/searches", 201, tree(sampler="client")))["search"]
    body = {"params": {"lr": 0.1}, "outside": True}
    await house.op.json("POST", f"/v1/searches/{search}/trials", 201, body)
    await house.caught_up()
    shown: dict[str, Any] = {
        "/v1/jobs": answers.JobList,
        f"/v1/jobs/{job}": answers.JobDetail,
        f"/v1/jobs/{job}/curve": answers.Curve,
        f"/v1/jobs/{job}/events": answers.EventList,
        "/v1/searches": answers.SearchList,
        f"/v1/searches/{search}": answers.SearchDetail,
        "/v1/nodes": answers.NodeList,
        "/v1/gpus": answers.GpuList,
        "/v1/vcs": answers.VcList,
        "/v1/report": answers.Report,
    }
    for path, kind in shown.items():
        told = await house.op.get(path)
        read = msgspec.to_builtins(msgspec.convert(told, kind))
        missing = {"following", "spec"}  # Some VCs have no `following`; specs leave out defaults.
        assert _keys(told, missing) == _keys(read, missing), path


def _keys(tree: Any, passed: set[str]) -> Any:
    """Return the keys of objects in a tree, without those that are passed over."""
    if isinstance(tree, dict):
        return {key: _keys(value, passed) for key, value in tree.items() if key not in passed}
    if isinstance(tree, (list, tuple)):
        return [_keys(each, passed) for each in tree]
    return None


async def test_a_refused_request_about_a_search_is_refused_again_at_once(house: House) -> None:
    """What the bus takes for a repetition reaches no service, and yet has its answer."""
    search = (await house.op.json("POST", "/v1/searches", 201, tree(sampler="client")))["search"]
    path = f"/v1/searches/{search}/trials/9/demote"
    for _ in range(2):
        told = await house.op.json("POST", path, 404, b"", Idempotency_Key="same")
        assert error(told)[0] == "unknown-trial"


async def test_spec_examples_would_be_admitted(house: House) -> None:
    example = OPERATIONS["POST", "/v1/jobs"].example
    assert (await house.op.json("POST", "/v1/jobs", 201, {**example, "vc": "nlp"}))["accepted"]
