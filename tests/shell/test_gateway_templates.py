"""Templates of managers over HTTP: who may, what is refused, and that they outlive a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skep.wire.roles import Role
from tests.gateway_kit import House, error, opened

pytestmark = pytest.mark.asyncio
SPEC = {"command": "true", "priority": 3}
ONE = "/v1/templates/nlp/small"


async def listed(house: House, path: str = "/v1/templates") -> list[Any]:
    rows = (await house.nlp.get(path))["templates"]
    return [(row["name"], row["of"], row.get("by", "")) for row in rows]


async def test_managers_set_and_remove_templates(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        vcs: dict[str, Any] = {"nlp": {"gpus": 2}, "vision": {"gpus": 2}}
        vcs["nlp"]["templates"] = {"mine": {"spec": {"command": "echo"}}}
        await house.op.json("POST", "/v1/admin/vcs", 202, {"vcs": vcs})
        ann = await house.as_person("ann", {"nlp": Role.MANAGER})
        sam = await house.as_person("sam", {"nlp": Role.SUBMITTER})
        await house.caught_up()

        answer = await ann.json("PUT", ONE, 200, {"spec": SPEC, "about": "short"})
        assert answer == {"vc": "nlp", "name": "small", "accepted": True}
        assert await listed(house) == [("mine", "operator", ""), ("small", "managers", "ann")]
        assert (await house.vision.get("/v1/templates"))["templates"] == []
        assert error(await house.vision.get("/v1/templates?vc=nlp", 403))[0] == "wrong-vc"

        job = {"name": "t", "vc": "nlp", "template": "small"}
        made = await sam.json("POST", "/v1/jobs", 201, job)
        await house.caught_up()
        shown = (await house.op.get(f"/v1/jobs/{made['job']}"))["spec"]
        assert (shown["from_template"], shown["priority"]) == ("small", 3)

        told = error(await sam.json("PUT", ONE, 403, {"spec": SPEC}))
        assert told[0] == "role-too-low"
        assert error(await house.vision.json("PUT", ONE, 403, {"spec": SPEC}))[0] == "wrong-vc"
        wrong = error(await ann.json("PUT", ONE, 422, {"spec": {"gpus": 1}}))
        assert wrong == ("unknown-key", ["$.template.spec.gpus"])
        mine = "/v1/templates/nlp/mine"
        assert error(await ann.json("PUT", mine, 409, {"spec": SPEC}))[0] == "template-of-operator"
        assert error(await ann.json("DELETE", mine, 409))[0] == "template-of-operator"
        nosuch = await ann.json("DELETE", "/v1/templates/nlp/nosuch", 404)
        assert error(nosuch)[0] == "unknown-template"
        assert error(await ann.json("PUT", "/v1/templates/nlp/a%20b", 400, {}))[0] == "bad-value"
        unknown = await house.op.json("PUT", "/v1/templates/none/a", 404, {"spec": {}})
        assert error(unknown)[0] == "unknown-vc"

        await house.restart()
        assert await listed(house, "/v1/templates?vc=nlp") == [
            ("mine", "operator", ""),
            ("small", "managers", "ann"),
        ]
        await house.nlp.json("DELETE", ONE, 200)
        await house.caught_up()
        await house.restart()
        assert await listed(house) == [("mine", "operator", "")]
