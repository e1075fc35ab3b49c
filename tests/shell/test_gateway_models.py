"""What was measured of models, over HTTP: by model, and to each tenant its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep.wire import subjects
from skep.wire.facts import EpochBegan
from skep.wire.profile import ProfileMeasured
from tests.gateway_kit import House, opened
from tests.kit import at
from tools.proto_examples import PROFILE_FACTS

DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


def fact(job: str, family: str, vc: str, **more: int) -> ProfileMeasured:
    example = next(each for each in PROFILE_FACTS if isinstance(each, ProfileMeasured))
    return msgspec.structs.replace(example, job=job, family=family, vc=vc, **more)


@pytest.mark.asyncio
async def test_models_are_told_with_what_they_borrow(house: House) -> None:
    facts = [
        EpochBegan(epoch=1, owner="a"),
        fact("j1", "resnet", "nlp"),
        fact("j1", "resnet", "nlp", gpus=4, p50_ns=5_000_000),
        fact("j2", "other", "nlp", p50_ns=22_000_000),
        fact("j3", "secret", "vision"),
    ]
    house.cluster.store_record(subjects.PROFILE_FACTS, facts, at(1))
    await house.restart()
    listed = (await house.op.get("/v1/models"))["models"]
    assert [one["model"] for one in listed] == ["other", "resnet", "secret"]
    assert [point["gpus"] for point in listed[1]["measured"]] == [2, 4]
    assert all(one["borrowed"] == [] for one in listed)

    (other,) = (await house.nlp.get("/v1/models/other"))["models"]
    assert other["borrowed_from"] == {
        "model": "resnet",
        "gpu_type": "V100",
        "why": "same-fingerprint",
        "text": "borrowed from resnet: its parameters have the same shapes",
        "distance": 0.0,
    }
    (borrowed,) = other["borrowed"]
    assert (borrowed["gpus"], borrowed["step_ns"]) == (4, 10_000_000), "twice as slow as resnet"
    assert other["measured"][0]["p50_ns"] == 22_000_000
    assert other["fingerprint"]["parameters"] == 25_557_032


@pytest.mark.asyncio
async def test_a_tenant_sees_only_what_its_own_jobs_took(house: House) -> None:
    facts = [fact("j1", "resnet", "nlp"), fact("j3", "secret", "vision")]
    house.cluster.store_record(subjects.PROFILE_FACTS, facts, at(1))
    await house.restart()
    assert [one["model"] for one in (await house.nlp.get("/v1/models"))["models"]] == ["resnet"]
    await house.nlp.get("/v1/models/secret", 404)
    await house.nlp.get("/v1/models?vc=vision", 403)
    await house.nobody.get("/v1/models", 401)
    (mine,) = (await house.vision.get("/v1/models/secret"))["models"]
    assert mine["borrowed_from"] is None, "it has the same parameters as what it may not see"
    assert (await house.op.get("/v1/models?vc=vision"))["models"][0]["model"] == "secret"
    await house.op.get("/v1/models/nothing", 404)


@pytest.mark.asyncio
async def test_what_is_no_record_is_passed_over(house: House) -> None:
    await house.cluster.bus.publish(subjects.PROFILE_FACTS, b"{", "k", {})
    await house.restart()
    assert (await house.op.get("/v1/models"))["models"] == []
