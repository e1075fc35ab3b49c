"""Retries of scripts of real libraries, where these are installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import Embedded
from tests.system import library_retries

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly]

NEEDS = {
    "with_transformers": "transformers",
    "with_lightning": "lightning",
    "with_accelerate": "accelerate",
    "with_torch_save": "torch",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = Embedded(tmp_path_factory.mktemp("own") / "home")
    try:
        made.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
        yield made
    finally:
        made.down()


@pytest.mark.parametrize("case", library_retries.CASES, ids=lambda case: case.script)
def test_losses_are_those_of_a_run_that_was_not_interrupted(
    cluster: Embedded, tmp_path: Path, case: library_retries.Case
) -> None:
    library = NEEDS[case.script]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    result = library_retries.trial(cluster, tmp_path, case, sys.executable)
    assert result["ok"], result
