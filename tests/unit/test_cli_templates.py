"""`skep template set`, and commands that begin from a template."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli.main import main
from tests.cli_kit import FakeGateway, fake_gateway

Run = Callable[..., tuple[int, str, str]]
SMOKE: dict[str, Any] = {
    "name": "smoke",
    "vc": "nlp",
    "spec": {
        "script": "/srv/smoke.py",
        "args": ["--fast"],
        "python": "/srv/bin/python",
        "workdir": "/srv",
        "priority": 4,
        "resources": {"gpus": 2, "gpu_type": "cpu"},
    },
    "fixed": ["resources.gpu_type"],
    "about": "",
    "of": "managers",
    "by": "ann",
}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_VC", "nlp")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(tmp_path)
        made.on("GET /v1/templates", {"templates": [SMOKE]})
        made.on("POST /v1/jobs", {"job": "j11", "accepted": True}, 201)
        made.on("PUT /v1/templates/nlp/small", {"vc": "nlp", "name": "small", "accepted": True})
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def sent(gateway: FakeGateway) -> Any:
    (asked,) = [each for each in gateway.asked if each.method == "POST"]
    return asked.json()


def test_run_is_what_the_template_says(gateway: FakeGateway, run: Run) -> None:
    code, out, err = run("run", "-d", "--no-check", "--template", "smoke")
    assert (code, out) == (0, "j11\n"), err
    assert sent(gateway) == {**SMOKE["spec"], "name": "smoke", "vc": "nlp"} | {
        "from_template": "smoke"
    }


def test_options_go_before_the_template(gateway: FakeGateway, run: Run) -> None:
    words = ("--gpus", "1", "--priority", "0", "--name", "mine", "--retries", "2")
    code, _, err = run("run", "-d", "--template", "smoke", *words, "--", "nvidia-smi", "-L")
    assert code == 0, err
    tree = sent(gateway)
    assert tree["resources"] == {"gpus": 1, "gpu_type": "cpu"}
    assert (tree["name"], tree["priority"], tree["limits"]) == ("mine", 0, {"retries": 2})
    assert tree["command"] == ["nvidia-smi", "-L"]
    assert not {"script", "args"} & tree.keys()


def test_what_the_template_fixes_is_refused(gateway: FakeGateway, run: Run) -> None:
    for command in ("run", "shell", "notebook"):
        code, _, err = run(command, "-d", "--template", "smoke", "--gpu-type", "a100")
        assert code == 1
        assert "`resources.gpu_type` is fixed by the template `smoke`" in err
    code, _, err = run("run", "-d", "--template", "smok", "--", "true")
    assert code == 1
    assert "its virtual cluster has no template `smok`; there are: smoke" in err
    assert not [each for each in gateway.asked if each.method == "POST"]


def test_a_shell_and_a_notebook_keep_their_own_command(gateway: FakeGateway, run: Run) -> None:
    code, _, err = run("shell", "-d", "--template", "smoke")
    assert code == 0, err
    tree = sent(gateway)
    assert tree["command"][:3] == ["python3", "-m", "skep_job.terminal"]
    assert (tree["workdir"], tree["name"]) == ("/srv", "shell")
    assert tree["resources"] == {"gpus": 2, "gpu_type": "cpu"}
    assert "script" not in tree


def test_a_run_without_a_template_asks_for_one_gpu(gateway: FakeGateway, run: Run) -> None:
    code, _, err = run("run", "-d", "--", "true")
    assert code == 0, err
    assert sent(gateway) == {
        "name": "true",
        "vc": "nlp",
        "command": ["true"],
        "resources": {"gpus": 1, "workers": 1},
        "workdir": os.getcwd(),
    }


def test_a_template_is_set_from_a_file(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("spec:\n  command: true\n  gpus: 1\n")
    assert run("template", "set", "small", str(path))[:2] == (0, "template small of nlp is set\n")
    assert gateway.asked[-1].json() == {"spec": {"command": True, "gpus": 1}}

    problem = {"path": "$.template.spec.gpus", "reason": "unknown-key", "text": "unknown key"}
    gateway.refuse("PUT /v1/templates/nlp/small", 422, "unknown-key", "no", problems=[problem])
    code, _, err = run("template", "set", "small", str(path))
    assert (code, f"{path}:3: $.template.spec.gpus: unknown key" in err) == (1, True), err


@pytest.mark.parametrize(
    "content, text",
    [
        ("spec: 3", "a template has `spec:`"),
        ("- a", "a template has `spec:`"),
        ("spec: {}\nfixd: []", ":2: unknown key `fixd`"),
        ("spec: {}\n---\nspec: {}", "one template at a time"),
        ("", "no job in it"),
    ],
)
def test_a_wrong_file_is_refused(
    gateway: FakeGateway, run: Run, tmp_path: Path, content: str, text: str
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(content)
    code, _, err = run("template", "set", "small", str(path))
    assert code in (1, 2)
    assert text in err
    assert not gateway.asked


def test_verbs_take_what_they_take(gateway: FakeGateway, run: Run) -> None:
    for words in (("ls", "a"), ("show",), ("set", "a"), ("rm",), ("rm", "a", "b")):
        code, _, err = run("template", *words)
        assert code == 2
        assert f"`skep template {words[0]}` takes" in err
    code, out, _ = run("template", "ls", "--json")
    assert json.loads(out) == {"templates": [SMOKE]}
