"""A gateway with a memory bus, held against its OpenAPI document by Schemathesis.

`python -m tests.system.contract` does the same to a cluster of real processes, with more requests.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway_kit import opened, submitted
from tests.system.contract.__main__ import contract

SILENT = "^/v1/plan$"
"""What asks services that are not here, each of whose silences takes seconds."""


@pytest.mark.nightly
@pytest.mark.needs("schemathesis")
@pytest.mark.asyncio
async def test_no_answer_differs_from_the_document(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        await submitted(house, name="first")
        found = await asyncio.to_thread(
            contract, house.base, "op", 1, 1, "", (f"--exclude-path-regex={SILENT}",)
        )
    assert found["ok"], found["output"]
    assert found["generated"] > 1_000
