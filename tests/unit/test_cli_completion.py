"""What a shell is offered at the cursor, and that each shell takes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import completing
from skep_services.cli.completion import SCRIPTS
from skep_services.cli.main import COMMANDS, known, main
from tests.cli_kit import Asked, FakeGateway, Told, fake_gateway, row

ROWS = [
    row("j17", name="train"),
    row("j18", name="twice", state="queued"),
    row("j19", name="twice"),
    row("j20", name="$(touch gone)"),
    row("j21", name="t; rm -r x"),
]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")

        def jobs(asked: Asked) -> Told:
            begin, state = asked.query["prefix"], asked.query["state"]
            rows: list[dict[str, Any]] = [row("j3", name="old", state="failed")]
            if state == "active":
                rows = ROWS
            rows = [
                one for one in rows if one["job"].startswith(begin) or one["name"].startswith(begin)
            ]
            return Told(value={"jobs": rows, "total": len(rows)})

        made.on("GET /v1/jobs", jobs)
        made.on("GET /v1/vcs", {"vcs": [{"vc": "nlp"}, {"vc": "vision"}]})
        made.on("GET /v1/nodes", {"nodes": [{"node": "node-1", "state": "up"}]})
        yield made


def answer(given: list[str]) -> list[str]:
    return completing.answer(given, known())


def words(*before: str) -> list[str]:
    kind, *lines = answer(list(before))
    assert kind == completing.WORDS
    return [line.partition("\t")[0] for line in lines]


def test_commands_options_and_values(gateway: FakeGateway) -> None:
    assert set(words("")) == set(COMMANDS)
    assert words("expl") == ["explain"]
    assert words("ps", "--sta") == ["--state"]
    assert words("ps", "--state", "run") == ["running"]
    assert words("ps", "--vc", "") == ["nlp", "vision"]
    assert words("ps", "-o", "job,na") == ["job,name"]
    assert words("gpu", "q") == ["quarantine"]
    assert words("node", "drain", "") == ["node-1"]
    assert words("explain", "peer-f") == ["peer-failed"]
    assert answer(["submit", ""]) == answer(["run", "--", "python", "tr"]) == [completing.FILES]
    assert words("nonsense", "") == []


def test_jobs_by_id_and_by_a_name_that_only_one_has(gateway: FakeGateway) -> None:
    assert words("logs", "j1") == ["j17", "j18", "j19"]
    assert words("logs", "tr") == ["train"]
    assert words("logs", "twice") == []
    assert words("wait", "j17", "j2") == ["j20", "j21"]
    assert words("logs", "ol") == ["old"]
    assert words("cancel", "ol") == []
    query = gateway.last("GET /v1/jobs").query
    assert query == {"state": "active", "prefix": "ol", "order": "newest", "limit": "100"}


def test_a_name_that_a_shell_would_run_is_not_offered(gateway: FakeGateway) -> None:
    told = answer(["logs", ""])
    assert not [line for line in told if "touch" in line or "rm" in line]
    assert words("logs", "$") == words("logs", "t;") == []


def test_errors_offer_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SKEP_API", "http://127.0.0.1:1")
    assert words("logs", "j") == []
    monkeypatch.delenv("SKEP_API")
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))
    assert words("logs", "j") == []
    assert answer([]) == answer([""])


def test_only_shells_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == SCRIPTS["bash"]


BASH = """
source <(skep completion bash)
COMP_WORDS=(skep {words}) COMP_CWORD={at}
_skep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -U compinit; compinit -u -D
compdef() {{ : }}
source <(skep completion zsh)
compadd() {{ print -l -- "${{(@P)argv[-1]}}" }}
words=(skep {words}) CURRENT={at}+1
_skep
"""
FISH = """
skep completion fish | source
complete -C 'skep {words}'
"""


@pytest.mark.parametrize(
    "shell, script",
    [
        pytest.param("bash", BASH, marks=pytest.mark.needs("bash")),
        pytest.param("zsh", ZSH, marks=pytest.mark.needs("zsh")),
        pytest.param("fish", FISH, marks=pytest.mark.needs("fish")),
    ],
)
def test_a_shell_takes_what_it_is_offered(
    gateway: FakeGateway, tmp_path: Path, shell: str, script: str
) -> None:
    command = tmp_path / "skep"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m skep_services "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [shell, "-c", script.format(words="logs j1", at=2)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert found == ["j17", "j18", "j19"], done.stderr
