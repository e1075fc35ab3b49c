"""The files of an environment are read at submission, and travel with what they name."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from skep.wire.parse import parse_tree
from skep.wire.spec import JobSpec
from skep_services.cli import code, environments
from skep_services.cli.exits import CommandError

LOCK = """
version = 1
requires-python = ">=3.11"
[[package]]
name = "train"
version = "0.1"
source = { virtual = "." }
[[package]]
name = "part"
source = { editable = "parts/part" }
[[package]]
name = "numpy"
source = { registry = "https://pypi.org/simple" }
"""
MAC = (
    LOCK
    + """
"""
)
LONG = environments.FILE_BYTES_MAX + 1


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    (made / "parts" / "part").mkdir(parents=True)
    (made / "pyproject.toml").write_text("[project]\nname = 'train'\n")
    (made / "parts" / "part" / "pyproject.toml").write_text("[project]\nname = 'part'\n")
    (made / "uv.lock").write_text(LOCK)
    (tmp_path / "outside.txt").write_text("numpy\n")
    monkeypatch.chdir(made)
    return made


def settled(environment: Any = None, given: str = "", **more: Any) -> tuple[dict[str, Any], Any]:
    tree = {"name": "a", "vc": "nlp", "command": "true", **more}
    if environment is not None:
        tree["environment"] = environment
    arguments = Namespace(code=None, environment=given or None, snapshots=None)
    assert not code.settle(tree, arguments)
    return tree, arguments


def refused(environment: Any = None, given: str = "") -> str:
    with pytest.raises(CommandError) as raised:
        settled(environment, given)
    assert "\n" not in raised.value.text
    return raised.value.text


def test_what_a_file_includes_travels_and_nothing_else(project: Path) -> None:
    (project / "requirements.txt").write_text(
        "-r parts/more.txt  # ours\n--constraint=limits.txt\n-f /opt/wheels\n"
        "torch==2.1 \\\n  --hash=sha256:00\nx @ https://host/x.whl\n-i https://host/simple\n"
    )
    (project / "parts" / "more.txt").write_text("-r ../requirements.txt\nnumpy\n")
    (project / "limits.txt").write_text("numpy<2\n")
    tree, arguments = settled({"requirements": "requirements.txt"})
    (taken,) = arguments.snapshots.values()
    assert taken.paths == {"requirements.txt", "parts/more.txt", "limits.txt"}
    assert tree["environment"]["files"] == taken.digest
    assert isinstance(parse_tree(tree), JobSpec)
    # What was submitted is what the digest says, whatever becomes of the file.
    (project / "limits.txt").write_text("numpy<3\n")
    again, _ = settled({"requirements": "requirements.txt"})
    assert again["environment"]["files"] != taken.digest
    assert code._named(tree) == [taken.digest]


def test_a_lock_travels_with_the_projects_that_it_is_of(project: Path) -> None:
    tree, arguments = settled(given="uv.lock", python="python3.12")
    (taken,) = arguments.snapshots.values()
    assert taken.paths == {"uv.lock", "pyproject.toml", "parts/part/pyproject.toml"}
    assert tree["environment"]["python"] == "python3.12"
    assert "python" not in tree
    (project / "parts" / "part" / "pyproject.toml").unlink()
    assert "uv.lock names parts/part/pyproject.toml, which cannot be read" in refused(
        {"uv": "uv.lock"}
    )


@pytest.mark.parametrize(
    "line, told",
    [
        ("-e .", "requirements.txt has `-e .`: no node has that folder; send it as the job's"),
        ("./x.whl", "has `./x.whl`: no node has that file"),
        ("x-1.0-py3-none-any.whl", "no node has that file"),
        ("x @ file:./x", "no node has that file"),
        ("-f wheels", "name the folder by its full path on the nodes"),
        ("-r https://host/r.txt", "what is there may change; put the file beside"),
        ("-r ../outside.txt", "requirements.txt names ../outside.txt, which is not in"),
        ("-r /etc/passwd", "requirements.txt names /etc/passwd, which is not in"),
        ("-rmissing.txt", "names missing.txt, which cannot be read: No such file or directory"),
    ],
)
def test_what_no_node_would_find_is_refused(project: Path, line: str, told: str) -> None:
    (project / "requirements.txt").write_text(f"numpy\n{line}\n")
    assert told in refused({"requirements": "requirements.txt"})


def test_files_that_are_none_are_refused(project: Path) -> None:
    assert refused({"requirements": "no.txt"}).endswith("cannot be read: No such file or directory")
    assert refused({"requirements": "parts"}).endswith("cannot be read: Is a directory")
    (project / "large.txt").write_bytes(b"#" * LONG)
    assert refused({"requirements": "large.txt"}) == (
        "environment.requirements: large.txt has more than 4 MiB"
    )
    os.mkfifo(project / "pipe.txt")
    assert refused({"requirements": "pipe.txt"}) == "environment.requirements: pipe.txt is no file"
    (project / "raw.txt").write_bytes(b"\xff\xfe")
    assert refused({"requirements": "raw.txt"}).endswith("raw.txt is no UTF-8 text")
    assert "name a requirements.txt, a uv.lock or an environment.yml" in refused(given="env.toml")
    (project / "many.txt").write_text("".join(f"-r {n}.txt\n" for n in range(70)))
    for number in range(70):
        (project / f"{number}.txt").touch()
    assert "more than 64 files make it" in refused({"requirements": "many.txt"})


def test_locks_of_another_platform_or_kind_are_refused(project: Path) -> None:
    (project / "uv.lock").write_text("supported-markers = [\"sys_platform == 'darwin'\"]\n" + LOCK)
    assert refused({"uv": "uv.lock"}).startswith(
        "environment.uv: uv.lock is of another platform (sys_platform == 'darwin'), and the nodes"
    )
    (project / "uv.lock").write_text("]")
    assert "uv.lock is no TOML" in refused({"uv": "uv.lock"})
    (project / "uv.lock").write_text("a = 1")
    assert "is no lock of uv" in refused({"uv": "uv.lock"})
    (project / "uv.lock").write_text(LOCK.replace('virtual = "."', 'path = "x.whl"'))
    assert "uv.lock has train at x.whl: no node has that file" in refused({"uv": "uv.lock"})
    assert "pyproject.toml is no uv.lock" in refused({"uv": "pyproject.toml"})


def test_a_file_for_conda_is_read_as_far_as_others_are_named(project: Path) -> None:
    (project / "r.txt").write_text("numpy\n")
    (project / "env.yml").write_text("dependencies: [python=3.12, {pip: [-r r.txt, numpy]}]")
    tree, arguments = settled(given="env.yml")
    (taken,) = arguments.snapshots.values()
    assert taken.paths == {"env.yml", "r.txt"}
    assert tree["environment"]["conda"] == "env.yml"
    (project / "env.txt").write_text("@EXPLICIT\nhttps://host/osx-arm64/python-3.12.conda\n")
    assert refused(given="env.txt") == (
        "environment.conda: env.txt is of platform osx-arm64, and the nodes run Linux"
    )
    (project / "env.txt").write_text("@EXPLICIT\nhttps://host/linux-64/python-3.12.conda\n")
    assert settled(given="env.txt")[0]["environment"]["conda"] == "env.txt"
    (project / "env.yml").write_text("name: x")
    assert refused(given="env.yml").endswith("env.yml has no list of `dependencies`")
    (project / "env.yml").write_text("{")
    assert "env.yml:1 is no YAML" in refused(given="env.yml")


def test_two_kinds_and_no_kind_are_left_to_the_check_of_the_spec(project: Path) -> None:
    both = {"requirements": "a", "uv": "uv.lock"}
    assert settled(both)[0]["environment"] == both
    assert settled({"python": "bin/python"})[0]["environment"] == {
        "python": str(project / "bin" / "python")
    }
    assert settled("x")[0]["environment"] == "x"
