"""A model is cloned from the log of a real cluster: what its policy did, trained and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tenant
from tests.e2e.test_policy import USUAL, under
from tests.support.embedded import Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.torch]

JOBS = 8


def test_a_model_is_cloned_from_an_exported_log(
    cluster: Embedded, nlp: Tenant, tmp_path: Path
) -> None:
    def told(*words: str) -> Any:
        return json.loads(cluster.skep(*words, "--json"))

    log, pairs, run = (str(tmp_path / name) for name in ("week.jsonl.gz", "pairs", "run"))
    under(cluster, {**USUAL, "nlp": {"gpus": 4, "policy": "srtf"}}, "srtf")
    try:
        wanted = {"resources": {"gpus": 3}, "size": {"run_time": 1}}
        for job in [nlp.accepted(nlp.spec("true", **wanted)) for _ in range(JOBS)]:
            assert cluster.ended(job)["state"] == "succeeded"
    finally:
        under(cluster, USUAL, "fifo")
    cluster.skep("replay", "--export", log)
    cloned = told("learn", "clone", "--from", log, "--out", pairs)
    assert "nlp" in cloned["about"]["vcs"]
    assert cloned["moves"] >= JOBS, "the policy placed each"
    assert cloned["clean"] >= JOBS, "one at a time"
    made = told("learn", "train", "imitate", "--pairs", pairs, "--set", "steps=5", "--out", run)
    name = made["model"]
    cluster.skep("models", "add", f"{run}/{name}.safetensors")
    shown = told("models", "show", name[:12])
    assert (shown["model"], shown["state"]) == (name, "candidate")
    assert shown["about"]["trained_on"].startswith("log week.jsonl.gz"), shown
