"""What a gang keeps in the memory of its nodes goes with its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until

pytestmark = pytest.mark.e2e


@pytest.mark.nightly
def test_copies_of_a_cancelled_job_are_removed_on_every_node(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    command = f"echo $SKEP_REPLICAS > {tmp_path}/$RANK; touch $SKEP_REPLICAS/copy; sleep 1000"
    wanted = {"workers": 2, "gpus": 4}
    job = nlp.accepted(
        nlp.spec(["sh", "-c", command], resources=wanted, service_class="opportunistic")
    )
    cluster.started(job)
    notes = tmp_path / "0", tmp_path / "1"
    until(lambda: all(each.exists() and each.read_text() for each in notes), "both parts to begin")
    folders = [Path(each.read_text().strip()) for each in notes]
    assert len({*folders}) == 2
    until(lambda: all((each / "copy").exists() for each in folders), "copies")
    nlp.cancel(job)
    until(lambda: not any(each.exists() for each in folders), "the copies to go", 30.0)
