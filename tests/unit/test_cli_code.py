"""What `--code` makes of a spec, and sending and copying through gateways that break off."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire.parse import parse_tree
from skep_services.cli import artifacts, code
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from tests.cli_kit import Asked, FakeGateway, Told, fake_gateway

DIGEST = "0" * 64


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    with fake_gateway() as one:
        yield one


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "src" / "train.py").write_text("print()")
    (made / "left.log").touch()
    (made / ".skepignore").write_text("*.log\n")
    monkeypatch.chdir(made)
    return made


def settled(tree: dict[str, Any], given: str | None = None) -> tuple[dict[str, Any], Namespace]:
    arguments = Namespace(code=given, snapshots=None)
    assert code.settle(tree, arguments)
    return tree, arguments


@pytest.mark.parametrize(
    "here, folder, workdir, found",
    [
        (".", ".", None, "."),
        ("src", "..", None, "src"),
        (".", "src", None, "."),
        (".", ".", "src", "src"),
        ("..", "project", None, "."),
        ("..", "project", "project/src", "src"),
    ],
)
def test_a_workdir_becomes_relative_to_the_folder(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    folder: str,
    workdir: str | None,
    found: str,
) -> None:
    monkeypatch.chdir(project / here)
    tree, _ = settled({"code": folder, **({"workdir": workdir} if workdir else {})})
    assert tree["workdir"] == found
    assert len(tree["code"]) == 64


def test_a_script_travels_or_is_refused(project: Path) -> None:
    tree, _ = settled({"code": ".", "script": str(project / "src" / "train.py"), "workdir": "src"})
    assert tree["script"] == "train.py"
    for script, why in (("left.log", "is left out of the snapshot"), ("none.py", "does not exist")):
        with pytest.raises(CommandError, match=why):
            settled({"code": ".", "script": script})
    with pytest.raises(CommandError, match="is not in the folder of `code`"):
        settled({"code": "src", "workdir": "."})


def test_a_spec_without_code_is_left_alone(project: Path) -> None:
    arguments = Namespace(code=None, snapshots=None)
    for given in ({}, {"code": None}, {"code": 5}, {"code": ""}):
        tree: dict[str, Any] = dict(given)
        assert not code.settle(tree, arguments)
        assert tree == given
    assert code.settle({"code": DIGEST}, arguments)
    assert arguments.snapshots is None


@pytest.mark.parametrize(
    "more, path",
    [
        ({"code": "."}, "$.code"),
        ({"code": DIGEST.upper().replace("0", "G")}, "$.code"),
        ({"code": DIGEST, "workdir": "/data"}, "$.workdir"),
        ({"code": DIGEST, "workdir": "a/../.."}, "$.workdir"),
        ({"code": DIGEST, "outputs": ["ok/", "../x"]}, "$.outputs[1]"),
        ({"code": DIGEST, "outputs": ["/etc"]}, "$.outputs[0]"),
        ({"code": DIGEST, "outputs": ["x"] * 33}, "$.outputs"),
        ({"code": DIGEST, "outputs": ["a\0b"]}, "$.outputs[0]"),
        ({"outputs": ["x"]}, "$.outputs"),
        ({"workdir": "src"}, "$.workdir"),
        ({"stdin": "data"}, "$.stdin"),
        ({"stdin": "/da\0ta"}, "$"),
        ({"code": DIGEST, "stdin": "../data"}, "$.stdin"),
        ({"code": DIGEST, "stdin": "/data"}, "$.stdin"),
        ({"code": DIGEST, "stdin": "x", "outputs": ["y"], "workdir": "/data"}, "$.workdir"),
    ],
)
def test_bad_code_outputs_and_input_are_refused_in_one_line(
    more: dict[str, Any], path: str
) -> None:
    problems = parse_tree({"name": "x", "vc": "nlp", "command": "true", **more})
    assert isinstance(problems, list)
    assert path in [problem.path for problem in problems]
    assert all("\n" not in problem.text for problem in problems)


def test_what_is_sent_is_sent_again_to_a_gateway_that_forgot_it(
    project: Path, fake: FakeGateway
) -> None:
    """The gateway dies once amid the sending: what it took was not named by a snapshot yet."""
    (project / "big").write_bytes(os.urandom(5_120_000))
    tree, arguments = settled({"code": ".", "vc": "nlp"})
    kept: dict[str, bytes] = {}
    died: list[int] = []

    def put(asked: Asked) -> Told:
        chunks = [digest for digest, _ in json.loads(asked.body)["chunks"]]
        missing = [digest for digest in dict.fromkeys(chunks) if digest not in kept]
        return Told(201, {"kept": not missing, "missing": missing})

    def post(asked: Asked) -> Told:
        if kept and not died:
            kept.clear()
            died.append(1)
            return Told(201, cut=True, pieces=[])
        at = 0
        while at < len(asked.body):
            (size,) = struct.unpack_from(">I", asked.body, at)
            data = asked.body[at + 4 : at + 4 + size]
            kept[hashlib.sha256(data).hexdigest()] = data
            at += 4 + size
        return Told(201, {"chunks": 1})

    fake.routes = {f"PUT /v1/code/nlp/{tree['code']}": put, "POST /v1/code/nlp": post}
    code.send(Client(Target(fake.url, "t", "")), [tree], arguments)
    assert died
    assert sum(map(len, kept.values())) > 5_000_000
    asked = len(fake.asked)
    code.send(Client(Target(fake.url, "t", "")), [tree], arguments)
    assert len(fake.asked) == asked + 1


def test_a_full_store_is_one_line_and_nothing_is_submitted(
    project: Path, fake: FakeGateway
) -> None:
    tree, arguments = settled({"code": ".", "vc": "nlp"})
    body = {"error": {"reason": "code-full", "text": "VC nlp has 1024 MiB of code", "problems": []}}
    fake.routes = {f"PUT /v1/code/nlp/{tree['code']}": lambda asked: Told(409, body)}
    with pytest.raises(CommandError) as raised:
        code.send(Client(Target(fake.url, "t", "")), [tree], arguments)
    assert raised.value.error["reason"] == "code-full"
    assert raised.value.text == "VC nlp has 1024 MiB of code"


class Outputs:
    """A gateway with one file, whose connection is cut after some bytes."""

    def __init__(self, fake: FakeGateway, content: bytes, cut_after: int) -> None:
        self.content, self.cut_after, self.digest = content, cut_after, ""
        self.offsets: list[int] = []
        base = "GET /v1/jobs/j3/outputs"
        nodes = [{"node": "n1", "away": False, "more": False, "files": [["o/m", 9, 1]]}]
        listed = {"job": "j3", "attempt": 1, "nodes": nodes}
        fake.routes = {
            base: lambda asked: Told(200, listed),
            f"{base}/file": self.file,
            f"{base}/digest": lambda asked: Told(
                200, {"sha256": self.digest or hashlib.sha256(content).hexdigest()}
            ),
        }

    def file(self, asked: Asked) -> Told:
        offset = int(asked.query.get("offset", "0"))
        self.offsets.append(offset)
        rest = self.content[offset : offset + self.cut_after]
        headers = {"Skep-Size": str(len(self.content)), "Skep-Token": "t1"}
        return Told(pieces=[rest], headers=headers, cut=offset + len(rest) < len(self.content))


def copied(source: str, target: Path) -> int:
    arguments = Namespace(
        source=source, target=str(target), attempt=None, node=None, rank=0, json=True, home=None
    )
    return artifacts.run_cp(arguments)


@pytest.fixture
def named(fake: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    monkeypatch.setenv("SKEP_API", fake.url)
    monkeypatch.setenv("SKEP_TOKEN", "t")
    return fake


def test_a_copy_that_is_cut_off_goes_on_where_it_was(named: FakeGateway, tmp_path: Path) -> None:
    outputs = Outputs(named, b"abcdefghij", 4)
    assert copied("j3:o/m", tmp_path) == 0
    assert (tmp_path / "m").read_bytes() == b"abcdefghij"
    assert outputs.offsets == [0, 4, 8]
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


def test_a_copy_that_an_earlier_command_began_is_gone_on_with(
    named: FakeGateway, tmp_path: Path
) -> None:
    outputs = Outputs(named, b"abcdefghij", 100)
    (tmp_path / "m.t1.skep-part").write_bytes(b"abcde")
    copied("j3:o/m", tmp_path)
    assert (tmp_path / "m").read_bytes() == b"abcdefghij"
    assert outputs.offsets == [0, 5]


def test_a_copy_that_is_not_what_the_node_has_is_thrown_away(
    named: FakeGateway, tmp_path: Path
) -> None:
    Outputs(named, b"abcdefghij", 100).digest = DIGEST
    with pytest.raises(CommandError, match="o/m came corrupt"):
        copied("j3:o/m", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source, target, text",
    [
        ("j3:../x", ".", "is no path in the job's folder"),
        ("j3:/etc/passwd", ".", "is no path in the job's folder"),
        ("j3:", ".", "is no path in the job's folder"),
        ("j3:x", "j4:y", "copying from job to job is not built"),
        ("x", "j3:../y", "is no path in the job's folder"),
        ("x", "j3:/etc/y", "is no path in the job's folder"),
        ("-", "j3:y", "standard input has no length"),
        ("j3:x", "-", "--json is not for a copy to standard output"),
        ("x", "y", "write JOB:PATH"),
    ],
)
def test_bad_places_are_refused_in_one_line(
    named: FakeGateway, source: str, target: str, text: str
) -> None:
    with pytest.raises(CommandError, match=text) as raised:
        copied(source, Path(target))
    assert "\n" not in raised.value.text
