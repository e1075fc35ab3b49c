"""The client of searches over a real gateway's HTTP: every call, and how it says what is wrong."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep_services.ask_tell.client import SearchClient
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from tests.gateway_kit import House, opened
from tests.search_kit import tree


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


def asked_by(house: House, name: str) -> SearchClient:
    client = getattr(house, name)
    token = client.headers["Authorization"].removeprefix("Bearer ")
    return SearchClient(client=Client(Target(client.base, token, "")))


async def wrong(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the reason for which a call is refused."""
    with pytest.raises(CommandError) as refused:
        await asyncio.to_thread(call, *given, **named)
    return str(refused.value.error["reason"])


@pytest.mark.asyncio
async def test_ask_and_tell_over_http(house: House) -> None:
    client, run = asked_by(house, "nlp"), asyncio.to_thread
    name = await run(client.begin, tree(sampler="client"), "once")
    assert await run(client.begin, tree(sampler="client"), "once") == name
    assert await run(client.ask, name, {"lr": 0.1}, outside=True) == (1, {"lr": 0.1})
    number, drawn = await run(client.ask, name)
    assert number == 2
    assert 0.001 <= drawn["lr"] <= 1
    await run(client.tell, name, 1, step=10, value=0.7)
    await run(client.tell, name, 1, over="done")
    await run(client.demote, name, 2)
    shown = await run(client.show, name)
    assert [row["demoted"] for row in shown["rows"]] == [False, True]
    assert (shown["best"]["trial"], shown["best"]["value"]) == (1, 0.7)
    await run(client.promote, name, 2)
    assert not (await run(client.show, name))["rows"][1]["demoted"]
    await run(client.cancel, name)
    client.close()


@pytest.mark.asyncio
async def test_what_is_wrong_has_a_reason(house: House) -> None:
    client, other = asked_by(house, "nlp"), asked_by(house, "vision")
    name = await asyncio.to_thread(client.begin, tree(sampler="client", budget={"trials": 1}))
    assert await wrong(client.begin, tree(metrik="x")) == "unknown-key"
    for call in (client.show, client.cancel, client.ask):
        assert await wrong(call, "s99") == "unknown-search"
    for call in (other.show, other.ask):
        assert await wrong(call, name) == "unknown-search", "it is another tenant's"
    assert await wrong(client.ask, name, {"lr": 7.0}) == "bad-value"
    assert await wrong(client.ask, name, {"lr": "fast"}) == "bad-value"
    assert await wrong(client.ask, name, {"rl": 0.1}) == "unknown-key"
    assert await wrong(client.tell, name, 1, value=0.5) == "unknown-trial"
    await asyncio.to_thread(client.ask, name, {"lr": 0.1}, outside=True)
    assert await wrong(client.ask, name) == "search-ends"
    for value in (math.nan, math.inf, -math.inf):
        assert await wrong(client.tell, name, 1, step=1, value=value) == "bad-value"
    # From a client that is not ours, in what many take for JSON.
    for raw in (b'{"step": 1, "value": NaN}', b'{"step": 1, "value": 1e999}'):
        path = f"/v1/searches/{name}/trials/1"
        told = await house.nlp.json("POST", path, 400, raw)
        assert told["error"]["reason"] == "not-json"
    assert await wrong(client.tell, name, 1, step=-1, value=0.5) == "bad-value"
    assert await wrong(client.tell, name, 1) == "missing-key"
    assert await wrong(client.tell, name, 1, over="finished") in {"bad-value", "wrong-type"}
    assert await wrong(client.demote, name, 1) == "unknown-trial", "it runs outside"
    assert await wrong(client.promote, name, 3) == "unknown-trial"
    client.close()
    other.close()
