"""`pollux`, `elasticflow` and `look-ahead` on real processes: they resize jobs that train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.e2e.test_policy import USUAL, under
from tests.e2e.test_resize import SCRIPT, steps
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.torch]

OPTIONS = {
    # A change costs these jobs little: they are worth it long before they are half a minute old.
    "pollux": {"every_s": 3, "restart_s": 1},
    "elasticflow": {"every_s": 3},
    "look-ahead": {"every_s": 3, "pause_s": 1},
}
"""Rounds are short: a job grows one step in each, and every step is measured for five seconds."""
SAMPLE_S = "0.02"
"""More than a busy machine adds to a mini-batch: else more workers are no faster there."""
DEADLINE_S = 300.0
"""A busy machine takes half a minute to start a worker, and four of them start."""
FEW = 5
"""Mini-batches that show that a worker trains."""
Under = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def policy(cluster: Embedded) -> Under:
    """The shared cluster with a policy in `nlp`, which has four GPUs."""

    @contextmanager
    def put(name: str) -> Iterator[None]:
        ours = {"gpus": 4, "policy": name, "options": OPTIONS[name]}
        under(cluster, {**USUAL, "nlp": ours}, name)
        try:
            yield
        finally:
            for row in cluster.get("/v1/jobs?state=active")["jobs"]:
                cluster.ask("DELETE", f"/v1/jobs/{row['job']}")
            under(cluster, USUAL, "fifo")

    return put


def submitted(nlp: Tenant, notes: Path, most: int, **more: Any) -> str:
    """Submit a job that may have up to so many workers, and begins with one."""
    return nlp.accepted(
        {
            "name": "elastic",
            "vc": nlp.vc,
            "script": str(SCRIPT),
            "elastic": {"min": 1, "max": most},
            "env": {"STEPS_FILE": str(notes), "SAMPLE_S": SAMPLE_S},
            **more,
        }
    )


def workers(cluster: Embedded, job: str) -> int:
    """Return how many workers a job has now."""
    found: int = cluster.get(f"/v1/jobs/{job}")["workers"]
    return found


def ends(cluster: Embedded, job: str, notes: Path) -> list[int]:
    """Have a job end by itself, and return the sizes that it had, in order."""
    Path(f"{notes}.stop").touch()
    assert cluster.ended(job)["state"] == "succeeded"
    made = steps(notes, 0)
    assert [step for step, _ in made] == list(range(1, len(made) + 1)), "each once"
    return list(dict.fromkeys(world for _, world in made))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_job_grows_on_idle_gpus_and_makes_room_for_another(
    name: str, policy: Under, cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with policy(name):
        # How a job scales is learned by its family: without one, only its owner resizes it.
        size = {"run_time": "1h", "family": f"growing-{name}"}
        job = submitted(nlp, first, 4, size=size)
        until(lambda: workers(cluster, job) == 4, f"{name} to have {job} grow", DEADLINE_S)
        until(lambda: len(steps(first, 3)) > FEW, "its last worker to train", DEADLINE_S)
        other = submitted(nlp, second, 4, size=size)
        until(lambda: len(steps(second, 0)) > FEW, f"{other} to train", DEADLINE_S)
        assert workers(cluster, job) + workers(cluster, other) <= 4
        assert "most-gain" in cluster.skep("show", job, "--json")
        sizes = ends(cluster, job, first)
        assert sizes[0] == 1
        assert 4 in sizes
        ends(cluster, other, second)
