"""Volumes and links over HTTP: each caller sees what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway_kit import error, opened, submitted

pytestmark = pytest.mark.asyncio


async def test_volumes_and_links(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        asked = {
            "vcs": {"nlp": {"gpus": 2}, "vision": {"gpus": 2}},
            "volumes": {
                "sets": {"path": "/mnt/sets"},
                "own": {"path": "/mnt/own", "vcs": {"nlp": "rw"}, "nfs": "filer:/own"},
            },
        }
        wrong = {**asked, "volumes": {"sets": {"path": "/etc"}}}
        refused = error(await house.op.json("POST", "/v1/admin/vcs", 422, wrong))
        assert refused == ("bad-value", ["$.volumes.sets.path"])
        await house.op.json("POST", "/v1/admin/vcs", 202, asked)
        await house.caught_up()
        rows = (await house.op.get("/v1/volumes"))["volumes"]
        assert [(one["volume"], one["vcs"]) for one in rows] == [
            ("sets", {"nlp": "ro", "vision": "ro"}),
            ("own", {"nlp": "rw"}),
        ]
        rows = (await house.vision.get("/v1/volumes"))["volumes"]
        assert [(one["volume"], one["vcs"], one["variable"]) for one in rows] == [
            ("sets", {"vision": "ro"}, "SKEP_VOLUME_SETS")
        ]
        assert error(await house.vision.get("/v1/volumes?vc=nlp", 403))[0] == "wrong-vc"

        job = await submitted(house, command=("tensorboard", "--logdir", "runs"), volumes=("own",))
        (mount,) = (await house.op.get(f"/v1/jobs/{job}"))["spec"]["mounts"]
        assert mount == {
            "name": "own",
            "path": "/mnt/own",
            "target": "/mnt/own",
            "mode": "rw",
            "mounted": True,
        }
        found = await house.nlp.get(f"/v1/jobs/{job}/links")
        assert found["links"] == [{"kind": "tensorboard", "by": "command", "folder": "runs"}]
        assert not found["log"]  # No agent answers here.
        await house.vision.get(f"/v1/jobs/{job}/links", 404)
