"""Cells over HTTP: what is asked and refused, planned, put in force and shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway_kit import CHAINS, QUOTA, House, error, opened, submitted

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


async def test_cells_are_described_planned_and_applied(house: House) -> None:
    await house.with_nodes()
    low = await submitted(house, opportunistic=True)
    high = await submitted(house, gpus=2)
    asked = {
        "vcs": {"vision": {"pinned": ["mine"]}, "nlp": {"cells": [{**QUOTA, "count": 1}]}},
        "chains": CHAINS,
        "pins": {"mine": {"chain": "cpu", "level": "node", "index": 1}},
    }
    planned = await house.op.json("POST", "/v1/cells/plan", 200, asked)
    fates = {one["job"]: (one["fate"], one["place"]) for one in planned["jobs"]}
    assert fates == {low: ("opportunistic", "node-1:0"), high: ("demoted", "node-2:0,1")}
    assert planned["missing"] == []
    assert [(one["vc"], one["before"]["gpus"], one["after"]["gpus"]) for one in planned["vcs"]] == [
        ("nlp", 4, 2),
        ("vision", 0, 2),
    ]
    refused = await house.nlp.json("POST", "/v1/cells/plan", 403, asked)
    assert error(refused)[0] == "forbidden"

    await house.op.json("POST", "/v1/admin/vcs", 202, asked)
    await house.caught_up()
    shown = await house.op.get(f"/v1/jobs/{high}")
    assert (shown["service_class"], shown["class_in_force"]) == ("guaranteed", "opportunistic")
    why = await house.op.get(f"/v1/jobs/{high}/why")
    assert "it borrows its GPUs" in why["reasons"][1]["text"]

    [chain] = (await house.op.get("/v1/cells?chain=cpu"))["chains"]
    [rack] = chain["cells"]
    assert (rack["address"], rack["gpus"], rack["borrowed"]) == ("left", 4, 3)
    mine = rack["children"][1]
    assert (mine["owner"], mine["pin"], mine["job"], mine["borrowed"]) == (
        "vision",
        "mine",
        high,
        2,
    )
    assert error(await house.op.get("/v1/cells?chain=x", 404))[0] == "unknown-chain"

    usage = await house.vision.get("/v1/vcs/vision/usage")
    [cell] = usage["bound"]
    assert cell["address"] == "left/node-2"
    hidden = {"job": "?", "vc": "?", "beside": []}
    assert cell["jobs"] == [{**hidden, "gpus": 2, "borrowed": True, "reserved": False}]
    assert error(await house.vision.get("/v1/vcs/nlp/usage", 404))[0] == "unknown-vc"
    every = (await house.op.get("/v1/usage"))["vcs"]
    assert [(one["vc"], len(one["borrowers"])) for one in every] == [("nlp", 2), ("vision", 0)]
    async with house.op.open("/v1/cells.svg") as answer:
        assert answer.content_type == "image/svg+xml"
        assert f"({high})" in await answer.text()


async def test_a_gpu_in_quarantine_is_bad_until_it_is_taken_back(house: House) -> None:
    await house.with_nodes()
    unknown = await house.op.json(
        "POST", "/v1/admin/quarantine", 404, {"node": "node-1", "device": 7}
    )
    assert "it has 0, 1" in unknown["error"]["text"]
    for quarantine in (True, False):
        body = {"node": "node-1", "device": 1, "quarantine": quarantine}
        await house.op.json("POST", "/v1/admin/quarantine", 202, body)
        await house.caught_up()
        gpus = (await house.op.get("/v1/gpus"))["gpus"]
        assert [gpu["quarantined"] for gpu in gpus] == [False, quarantine, False, False]
        [chain] = (await house.op.get("/v1/cells"))["chains"]
        assert chain["cells"][0].get("bad") == (1 if quarantine else None)


async def test_the_cluster_file_is_read_checked_and_set(house: House) -> None:
    await house.with_nodes()
    first = await house.op.get("/v1/cluster-file")
    same = await house.op.json("POST", "/v1/cluster-file/check", 200, {"text": first["text"]})
    assert (same["problems"], same["digest"], same["joined"]) == ([], first["digest"], 4)
    await house.op.json("POST", "/v1/cells/plan", 200, same["asked"])
    wrong = await house.op.json(
        "POST", "/v1/cluster-file/check", 200, {"text": "vcs:\n  nlp: {gpu: 1}\n"}
    )
    assert (wrong["asked"], [one["line"] for one in wrong["problems"]]) == (None, [2])

    text = "vcs:\n  nlp: {gpus: 2}\n  vision: {gpus: 9}\n"
    other = await house.op.json("POST", "/v1/cluster-file/check", 200, {"text": text})
    assert (other["owned"], other["joined"]) == (11, 4)
    await house.op.json("POST", "/v1/admin/vcs", 202, other["asked"])
    await house.caught_up()
    shown = await house.op.get("/v1/cluster-file")
    assert "vision: {gpus: 9}" in shown["text"]
    assert shown["digest"] == other["asked_digest"] != first["digest"]

    assert error(await house.nlp.get("/v1/cluster-file", 403))[0] == "forbidden"
    refused = await house.nlp.json("POST", "/v1/cluster-file/check", 403, {"text": ""})
    assert error(refused)[0] == "forbidden"
    long = {"text": "#" * 300_000}
    refused = await house.op.json("POST", "/v1/cluster-file/check", 422, long)
    assert "length <= 262144" in refused["error"]["text"]
