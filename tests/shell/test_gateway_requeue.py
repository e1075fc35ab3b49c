"""Holding, releasing and requeueing over HTTP: what is done, who may, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skep.wire.roles import Role
from skep.wire.spec import After
from tests.gateway_kit import House, error, opened, submitted

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes()
        yield made


async def test_a_job_is_held_and_released(house: House) -> None:
    job = await submitted(house, hold=True)
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["state"], shown["why"], shown["spec"]["hold"]) == ("queued", "held", True)
    answer = await house.nlp.json("POST", f"/v1/jobs/{job}/release", 202, {})
    assert answer["accepted"] is True
    await house.caught_up()
    assert (await house.op.get(f"/v1/jobs/{job}"))["state"] == "bound"
    told = await house.nlp.json("POST", f"/v1/jobs/{job}/hold", 409, {})
    assert error(told)[0] == "has-gpus"
    assert error(await house.nlp.json("POST", f"/v1/jobs/{job}/hold", 422, {"for": 5})) == (
        "unknown-key",
        ["$.for"],
    )
    await house.vision.json("POST", f"/v1/jobs/{job}/hold", 404, {})


async def test_an_ended_job_is_submitted_again(house: House) -> None:
    first = await submitted(house, name="first")
    job = await submitted(house, name="train", after=After(any=(first,)), begin=1, env={"A": "b"})
    assert error(await house.op.json("POST", f"/v1/jobs/{job}/requeue", 409, {}))[0] == "not-ended"
    house.cluster.cancel(job)
    await house.caught_up()

    answer = await house.op.json("POST", f"/v1/jobs/{job}/requeue", 201, {"hold": True})
    assert (answer["of"], answer["job"], answer["accepted"]) == (job, "j3", True)
    await house.caught_up()
    again = (await house.op.get("/v1/jobs/j3"))["spec"]
    assert (again["name"], again["env"], again["hold"]) == ("train", {"A": "b"}, True)
    assert "after" not in again
    assert "begin" not in again
    assert (await house.op.get(f"/v1/jobs/{job}"))["state"] == "cancelled"


async def test_what_cannot_be_requeued_is_refused(house: House) -> None:
    await house.op.json("POST", "/v1/jobs", 422, {"name": "x", "vc": "nlp"})
    await house.caught_up()
    assert error(await house.op.json("POST", "/v1/jobs/j1/requeue", 409, {}))[0] == "unknown-job"
    assert error(await house.op.json("POST", "/v1/jobs/j99/requeue", 404, {}))[0] == "unknown-job"
    wrong: list[Any] = [{"held": True}, {"hold": 1}, []]
    for body in wrong:
        told = await house.op.json("POST", "/v1/jobs/j1/requeue", 400, body)
        assert error(told)[0] == "bad-value"


async def test_only_who_sees_its_values_requeues_a_job(house: House) -> None:
    ada = await house.as_person("ada", {"nlp": Role.SUBMITTER})
    bob = await house.as_person("bob", {"nlp": Role.SUBMITTER})
    await house.caught_up()
    spec = {"name": "t", "vc": "nlp", "command": "true", "hold": True, "env": {"TOKEN": "x"}}
    job = (await ada.json("POST", "/v1/jobs", 201, spec))["job"]
    await ada.json("DELETE", f"/v1/jobs/{job}", 202)
    await house.caught_up()
    told = await bob.json("POST", f"/v1/jobs/{job}/requeue", 403, {})
    assert error(told)[0] in ("not-its-owner", "role-too-low")
    again = (await ada.json("POST", f"/v1/jobs/{job}/requeue", 201, {}))["job"]
    await house.caught_up()
    assert (await ada.get(f"/v1/jobs/{again}"))["owner"] == "ada"
