"""One cluster on a real GPU for the whole suite, and one line of JSON for each test."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.driver_kit import Host
from tests.gpu import kit

LIMIT_S = 900.0 if kit.CPU else 400.0
"""No test begins after so long: a suite that hangs is not to hold a GPU for hours."""
BEGAN = time.monotonic()

Record = Callable[..., None]


@pytest.fixture(autouse=True)
def time_is_left() -> None:
    if time.monotonic() > BEGAN + LIMIT_S:
        needs.skip(f"the {LIMIT_S:.0f} s of the GPU suite are over")


@pytest.fixture
def record(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[Record]:
    """Collect what a test measures, and print it when the test ends, however it ends."""
    found: dict[str, Any] = {"test": request.node.name}
    began = time.monotonic()

    def add(**more: Any) -> None:
        found.update(more)

    yield add
    rounded = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
    }
    with capsys.disabled():
        print("\ngpu " + json.dumps({**rounded, "seconds": round(time.monotonic() - began, 1)}))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.Reference]:
    reference = kit.Reference(tmp_path_factory.mktemp("reference"))
    try:
        yield reference
    finally:
        reference.close()


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, reference: kit.Reference
) -> Iterator[kit.Cluster]:
    cluster = kit.Cluster(tmp_path_factory.mktemp("gpu") / "home")
    try:
        cluster.begin()  # PyTorch starts meanwhile.
        device = reference.device()
        if device != kit.DEVICE:
            needs.skip(f"PyTorch has no CUDA here: it trains on {device}")
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def side(tmp_path_factory: pytest.TempPathFactory, cluster: kit.Cluster) -> Iterator[kit.Cluster]:
    """Return a second cluster on the same GPU, with all that an operator has to allow."""
    folder = tmp_path_factory.mktemp("side")
    path = os.environ.get("PATH", "")
    if kit.CPU:
        path = f"{Host(folder, pid=0).tool.parent}:{path}"  # A stand-in for cuda-checkpoint.
    allowed = {"SKEP_DRIVER_CHECKPOINT": "allow", "SKEP_PROCESS_CHECKPOINTS": "gpus"}
    named = {name: os.environ[name] for name in ("SKEP_CRIU",) if name in os.environ}
    side = kit.Cluster(folder / "home", SKEP_MPS="on", PATH=path, **allowed, **named)
    try:
        side.begin()
        yield side
    finally:
        side.down()


@pytest.fixture(scope="session")
def opaque(tmp_path_factory: pytest.TempPathFactory, side: kit.Cluster) -> kit.Job:
    """Return a job without mini-batches. It takes Skep 30 s to be sure that there are none."""
    folder = tmp_path_factory.mktemp("opaque")
    files = str(folder / "opaque.notes"), str(folder / "opaque.end")
    script = str(kit.JOBS / "opaque.py")
    command = [sys.executable, "-I", script, *files, str(kit.OPAQUE_BYTES)]
    return kit.Job(side, folder, "opaque", command=command)


@pytest.fixture(scope="session")
def driver() -> kit.Driver:
    return kit.Driver()


@pytest.fixture(scope="class")
def folder(tmp_path_factory: pytest.TempPathFactory, cluster: kit.Cluster) -> Iterator[Path]:
    """A folder for the jobs of a class of tests, which are over when the class is."""
    yield tmp_path_factory.mktemp("jobs")
    cluster.clear()
