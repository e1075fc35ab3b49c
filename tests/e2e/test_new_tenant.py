"""A virtual cluster made while the cluster runs: its people can submit, nobody is cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest

from skep_services.adapters.nats_access import GLOBAL_ACCOUNT, SERVICES_ACCOUNT
from tests.e2e.conftest import Tenant
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e

FILE = """\
vcs:
  nlp: 1
  fresh: 1
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Embedded]:
    cluster = Embedded(tmp_path / "home")
    try:
        cluster.up("--nodes", "1", "--gpus", "2", "--vc", "nlp=2", "--port", "0")
        yield cluster
    finally:
        cluster.down()


def spec(vc: str) -> dict[str, object]:
    return {"name": "test", "vc": vc, "command": ["true"], "resources": {"gpus": 1}}


async def _across_the_change(cluster: Embedded, file: Path) -> list[str]:
    """Submit on one connection before and after a virtual cluster is made; return the jobs."""
    async with bare_client(cluster.about, "vc-nlp") as client:
        before = await client.submit(spec("nlp"))
        await asyncio.to_thread(cluster.skep, "vc", "apply", str(file))
        await asyncio.to_thread(_admitted, cluster)
        async with bare_client(cluster.about, "vc-fresh") as other:
            fresh = await other.submit(spec("fresh"))
        after = await client.submit(spec("nlp"))
    assert not client.violations
    return [answer.job for answer in (before, fresh, after)]


def _admitted(cluster: Embedded) -> None:
    """Return once somebody of the new virtual cluster can log in."""

    async def try_it() -> bool:
        try:
            async with bare_client(cluster.about, "vc-fresh"):
                return True
        except nats.errors.Error:
            return False

    until(lambda: "vc-fresh" in cluster.about["nats"]["users"], "a password for vc-fresh")
    until(lambda: asyncio.run(try_it()), "a login of vc-fresh")


@pytest.mark.nightly
def test_people_of_a_new_virtual_cluster_can_submit(own: Embedded, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    pids = {name: entry["pid"] for name, entry in own.pids().items()}
    jobs = asyncio.run(_across_the_change(own, file))
    assert [own.ended(job)["state"] for job in jobs] == ["succeeded"] * 3
    assert {name: entry["pid"] for name, entry in own.pids().items()} == pids
    assert [entry["restarts"] for entry in own.pids().values()] == [0] * len(pids)
    made = json.dumps(spec("fresh")).encode()
    reply = own.ask("POST", "/v1/jobs", made, who="vc-fresh")
    assert reply.status in (200, 201, 202), reply
    assert own.ended(reply.body["job"])["state"] == "succeeded"
    assert (
        own.ask("POST", "/v1/jobs", json.dumps(spec("nlp")).encode(), who="vc-fresh").status == 403
    )

    credentials = own.about["nats"]["users"]["vc-fresh"], own.about["gateway"]["tokens"]["vc-fresh"]
    own.skep("down", "--now")
    # As a version without accounts left it: the streams are in the server's own account.
    accounts = own.home / "nats" / "store" / "jetstream"
    (accounts / SERVICES_ACCOUNT).rename(accounts / GLOBAL_ACCOUNT)
    own.up()
    assert not (accounts / GLOBAL_ACCOUNT).exists()
    assert own.ended(jobs[0])["state"] == "succeeded"
    about = own.about
    assert (
        about["nats"]["users"]["vc-fresh"],
        about["gateway"]["tokens"]["vc-fresh"],
    ) == credentials
    job = Tenant(own, "fresh").accepted(spec("fresh"))
    assert own.ended(job)["state"] == "succeeded"
