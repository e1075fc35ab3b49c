"""What a test needs that a machine may lack, said once, by a marker.

    @pytest.mark.needs("root", "iptables")            # on a test or a class
    pytestmark = [pytest.mark.needs("torch")]         # on a file
    @pytest.mark.docker, @pytest.mark.torch           # imply the engine and PyTorch
    needs.require("engine")                           # inside a fixture or a test
    needs.skip("no ... here")                         # when it shows only on the way

A need is a key of `PROBES` or, if it is none, a program that is looked for on PATH. A test whose
need is missing is skipped before its fixtures are made, and the end of the run has one line for
each missing thing: `skipped 12 tests: iptables is not installed`. What continuous integration
provides (`IN_CI`) may not be missing there: with CI set, its absence fails the test.

Without any need a test must pass for a plain user on a machine that has only Python, make and git
(and what `make setup` installs).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from skep_services.adapters.devices import DeviceError, NvmlGpus
from skep_services.adapters.docker_engine import Engine, EngineGoneError

IMAGES = ("skep-base:bookworm", "python:3.11-slim-bookworm")
"""Images that have what the tests' jobs need: a shell, its usual tools and Python."""

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("SKEP_SHARED_DATA", ROOT.parent / "shared" / "data"))
"""The folder of public traces and measurements; no part of the repository."""

_NO_DATA = "the public traces are not here (SKEP_SHARED_DATA)"

IN_CI = frozenset({"root", "engine", "torch", "sklearn", "lab"})
"""What `.ci/run` provides."""


def _root() -> str:
    return "" if os.geteuid() == 0 else "they need root"


def _namespaces() -> str:
    """Return why this process may not make network and mount namespaces, if so."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "true"], check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else "network and mount namespaces may not be made here"


def _torch() -> str:
    return _module("torch", "PyTorch")


def _sklearn() -> str:
    return _module("sklearn", "scikit-learn")


def _lab() -> str:
    absent = [name for name in ("numba", "gymnasium") if not importlib.util.find_spec(name)]
    return f"{absent[0]} is not installed (the extra lab)" if absent else ""


def _ray() -> str:
    return "" if importlib.util.find_spec("ray") else "Ray is not installed (the extra ray)"


def _gpu() -> str:
    """Return why there is no GPU to test on, if so. With SKEP_GPU_SUITE=cpu a fake one will do."""
    if os.environ.get("SKEP_GPU_SUITE") == "cpu":
        return ""
    try:
        NvmlGpus()
    except DeviceError:
        return "no NVIDIA GPU with its driver and nvidia-ml-py"
    return ""


def _module(name: str, called: str) -> str:
    return "" if importlib.util.find_spec(name) else f"{called} is not installed"


def _data() -> str:
    return "" if (DATA / "pollux").is_dir() else _NO_DATA


def _engine() -> str:
    with closing(Engine("test")) as engine:
        try:
            found = any(engine.has_image(name) for name in IMAGES)
        except EngineGoneError:
            return "no container engine answers"
    return "" if found else f"the container engine has none of the images {', '.join(IMAGES)}"


def data_file(name: str) -> str:
    """Return the path of a file of public data; skip the test where it is not."""
    if not (DATA / name).exists():
        skip(_NO_DATA)
    return str(DATA / name)


PROBES: Mapping[str, Callable[[], str]] = {
    "root": _root,
    "namespaces": _namespaces,
    "engine": _engine,
    "torch": _torch,
    "sklearn": _sklearn,
    "lab": _lab,
    "ray": _ray,
    "ldap3": lambda: "" if importlib.util.find_spec("ldap3") else "ldap3 is not installed",
    "textual": lambda: _module("textual", "Textual (the extra tui)"),
    "playwright": lambda: _module("playwright", "Playwright (the extra browser)"),
    "nbclient": lambda: _module("nbclient", "nbclient and ipykernel (the extra dev)"),
    "data": _data,
    "gpu": _gpu,
}
"""Each returns why its need is missing, or nothing."""

IMPLIED = {"docker": "engine", "gpu": "gpu", "torch": "torch"}
"""Markers that say which tests to choose, and by that what they need."""


@functools.cache
def missing(need: str) -> str:
    """Return why a need is not met on this machine; an empty text if it is met."""
    if need in PROBES:
        return PROBES[need]()
    return "" if shutil.which(need) else f"{need} is not installed"


def require(*needed: str) -> None:
    """Skip the test unless every need is met; fail it if CI should have provided the need."""
    for need in needed:
        if why := missing(need):
            if os.environ.get("CI") and need in IN_CI:
                pytest.fail(f"continuous integration lacks what it provides: {why}", pytrace=False)
            skip(why)


def skip(why: str) -> NoReturn:
    """Skip the test, or the file that is being imported, for a reason that others may share."""
    pytest.skip(why, allow_module_level=True)


def of_item(item: pytest.Item) -> list[str]:
    """Return what a test needs by its markers, each once; some other markers imply a need."""
    implied = [need for mark, need in IMPLIED.items() if item.get_closest_marker(mark)]
    said = [need for mark in item.iter_markers("needs") for need in mark.args]
    return list(dict.fromkeys([*said, *implied]))


def summary(reasons: Iterable[str]) -> list[str]:
    """Return a line for each reason for which tests were skipped, the most frequent first."""
    lines = []
    for why, count in Counter(reasons).most_common():
        tests = "1 test" if count == 1 else f"{count} tests"
        lines.append(f"skipped {tests}: {why}")
    return lines
