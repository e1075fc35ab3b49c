"""Spec files: several jobs in one, where each key is, and what cannot be read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import exits, specs
from skep_services.cli.exits import CommandError

TWO = """\
# two jobs
name: one
resources:
  gpus: 2
command: [echo, hi]
---
name: two
env: {A: b}
---
"""


def refused(text: str, told: str, code: int = exits.FAILED, source: str = "file.yaml") -> None:
    with pytest.raises(CommandError, match=told) as caught:
        specs.parse(text, source)
    assert caught.value.code == code
    assert source in caught.value.text


def test_yaml_documents_know_their_lines() -> None:
    first, second = specs.parse(TWO, "file.yaml")
    assert first.tree == {"name": "one", "resources": {"gpus": 2}, "command": ["echo", "hi"]}
    assert second.tree == {"name": "two", "env": {"A": "b"}}
    assert first.where("$.resources.gpus") == "file.yaml:4"
    assert first.where("$.resources.gpu") == "file.yaml:3"
    assert first.where("$.command[1]") == "file.yaml:5"
    assert first.where("$.vc") == "file.yaml:2"
    assert second.where("$.env.A") == "file.yaml:8"
    assert specs.Document("x", {}, {}).where("$.a.b") == "x"


def test_yaml_dates_are_text() -> None:
    tree = specs.parse("name: 2026-02-30\nat: 2026-01-01 10:00:00\ncount: 3\non: yes", "f")[0].tree
    assert tree == {"name": "2026-02-30", "at": "2026-01-01 10:00:00", "count": 3, True: True}


def test_json_documents_one_after_another() -> None:
    documents = specs.parse('{"name": "a"}\n {"name": "b"}\n', "file.json")
    assert [document.tree["name"] for document in documents] == ["a", "b"]
    # YAML may begin with a brace as well.
    assert specs.parse("{name: a}", "file.yaml")[0].tree == {"name": "a"}


@pytest.mark.parametrize(
    "text, told",
    [
        ("a: b: c", r"file.yaml:1: not YAML"),
        ("a: [1", "not YAML"),
        ("a: !!python/object:os.system x", "not YAML"),
        ("a: \x01", "not YAML"),
        ("name: a\nname: b", r"file.yaml:2: `name` is given twice, first on line 1"),
        ("env:\n  A: 1\n  A: 2", "`A` is given twice"),
        ("a: &x [*x]", "contains itself"),
        ("a: &a [1]\nb: !!timestamp x", "not YAML"),
        ("a: !!bool x", "not what its tag says"),
        ("a: !!int x", "not what its tag says"),
        ("[" * 700, "nested too deeply"),
        ('a: 1\nb: "\\uD800"', r"file.yaml:2: a text has half of a character"),
        ('a:\n "\\uDFFF": 1', r"file.yaml:2: a text has half of a character"),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_with_its_line(text: str, told: str) -> None:
    refused(text, told)


def test_json_that_cannot_be_read_is_refused_with_its_line() -> None:
    refused('{"a": 1,\n "b" 2}', r"file.json:2: not JSON", source="file.json")
    refused('{"a":' * 100_000, "nested too deeply", source="file.json")
    refused('{"a": 1} {', "file.json:1: not JSON", source="file.json")


def test_nested_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    refused("\n".join(lines), "more than 100000 values with all aliases spelled out")
    merged = specs.parse("base: &b {A: x}\nenv:\n  <<: *b\n  B: y\n", "file.yaml")
    assert merged[0].tree["env"] == {"A": "x", "B": "y"}


def test_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: bom\n")
    assert specs.read(str(path))[0].tree == {"name": "bom"}
    stdin = io.TextIOWrapper(io.BytesIO(b'{"name": "piped"}'))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert specs.read("-")[0].source == "standard input"
    for content, told in [(b"", "no job in it"), (b"---\n", "no job"), (b"\xff\xfe", "not UTF-8")]:
        path.write_bytes(content)
        with pytest.raises(CommandError, match=told) as caught:
            specs.read(str(path))
        assert caught.value.code == exits.FAILED
    monkeypatch.setattr(specs, "FILE_BYTES_MAX", 4)
    path.write_bytes(b"name: x")
    with pytest.raises(CommandError, match="more than 4 bytes"):
        specs.read(str(path))
    for missing in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(CommandError) as caught:
            specs.read(str(missing))
        assert caught.value.code == exits.USAGE


@pytest.mark.parametrize(
    "assignment, tree",
    [
        ("name=x", {"name": "x"}),
        ("resources.gpus=2", {"resources": {"gpus": 2}}),
        ("limits.time=2h", {"limits": {"time": "2h"}}),
        ('command=["a", "b"]', {"command": ["a", "b"]}),
        ("env.A=1", {"env": {"A": "1"}}),
        ("env.a.b=x=y", {"env": {"a.b": "x=y"}}),
        ("labels.team=", {"labels": {"team": ""}}),
        ("resources=null", {"resources": None}),
    ],
)
def test_assignments(assignment: str, tree: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    specs.put(found, assignment)
    assert found == tree


def test_assignments_that_cannot_be() -> None:
    for assignment in ("name", "=x", "a..b=1"):
        with pytest.raises(CommandError, match="KEY=VALUE"):
            specs.put({}, assignment)
    with pytest.raises(CommandError, match="`name` is not an object"):
        specs.put({"name": "x"}, "name.first=y")
    tree: dict[str, Any] = {"limits": None}
    specs.put(tree, "limits.time=1")
    assert tree == {"limits": {"time": 1}}


def test_workdir_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/me")
    for given, settled in [
        ({}, str(tmp_path)),
        ({"workdir": "sub"}, str(tmp_path / "sub")),
        ({"workdir": "~/x"}, "/users/me/x"),
        ({"workdir": "/abs"}, "/abs"),
        ({"workdir": ""}, ""),
        ({"workdir": 3}, 3),
    ]:
        tree: dict[str, Any] = json.loads(json.dumps(given))
        specs.settle_paths(tree)
        assert tree == {"workdir": settled}
