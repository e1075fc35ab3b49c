"""An array on a live cluster: each task runs once though services die, and failed ones again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Gate, Tenant
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e


def test_services_die_amid_an_array_and_each_task_runs_once(
    cluster: Embedded, nlp: Tenant, gate: Gate, tmp_path: Path
) -> None:
    ran, again = tmp_path / "ran", tmp_path / "again"
    command = (
        f'{gate.wait}; echo "$SKEP_ARRAY_ID $SKEP_ARRAY_INDEX" >> {ran}; '
        f'test "$SKEP_ARRAY_INDEX" != 4 || test -e {again}'
    )
    array = nlp.accepted(nlp.spec(command, array="0-5%2"))
    waits = nlp.accepted(nlp.spec("true", array="7", after={"fail": [array]}))
    gate.reached()
    for name in ("admission", "allocator", "gateway"):
        cluster.wait_back(name, cluster.kill(name))
    gate.open()

    told = cluster.ended(array)
    assert (told["state"], counts(told)) == ("failed", {"total": 6, "succeeded": 5, "failed": 1})
    assert counts(cluster.ended(waits)) == {"total": 1, "succeeded": 1}
    assert sorted(ran.read_text().splitlines()) == [f"{array} {index}" for index in range(6)]
    assert cluster.get(f"/v1/jobs/{array}_3")["task"] == f"{array}[3]"
    assert cluster.log(f"{array}_3") == "here\n"

    again.touch()
    assert cluster.ask("POST", f"/v1/jobs/{array}/retry").status == 202
    until(lambda: counts(cluster.ended(array)) == {"total": 6, "succeeded": 6}, "the retry")
    assert ran.read_text().splitlines()[6:] == [f"{array} 4"]


def counts(told: dict[str, Any]) -> dict[str, int]:
    """Return the counts of an array that are not 0, and no more of it."""
    found = {kind: count for kind, count in told["tasks"].items() if isinstance(count, int)}
    return {kind: count for kind, count in found.items() if count and kind != "most"}
