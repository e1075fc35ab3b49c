"""Where a job shows its training, by what it says itself: nothing that could forge anything."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from skep.wire.links import LINKS_MAX, links, sound_url
from skep.wire.spec import JobSpec
from skep_job.observe import board_folders


def found(log: str = "", **spec: Any) -> list[str]:
    job = JobSpec(name="a", vc="nlp", **{"command": ("true",), **spec})
    return [one.url or one.folder for one in links(job, [log])]


@pytest.mark.parametrize(
    "line, wanted",
    [
        (
            "wandb: 🚀 View run sunny-1 at https://wandb.ai/a/b/runs/c",
            "https://wandb.ai/a/b/runs/c",
        ),
        (
            "\x1b[34mwandb\x1b[0m: View run \x1b[33mx\x1b[0m at: \x1b[4mhttp://h:80/r\x1b[0m",
            "http://h:80/r",
        ),
        ("wandb: ⭐️ View project at https://wandb.ai/a/b", "https://wandb.ai/a/b"),
        ("TensorBoard 2.20.0 at http://localhost:6006/ (Press CTRL+C)", "http://localhost:6006/"),
        ("[skep] tensorboard: /work/runs/x y", "/work/runs/x y"),
        ("wandb: View run at javascript:alert(1)", ""),
        ("wandb: View run at file:///etc/passwd", ""),
        ("wandb: View run at https://wandb.ai@evil.example/x", ""),
        ("wandb: View run at https://wandb.ai:99999/x", ""),
        ("wandb: View run at https://h/\x07x", ""),
        ("wandb: View run at https://h/\u202egnp.exe", ""),
        ("wandb: View run at https://h/'onclick='x", ""),
        ("wandb: View run at https://h/" + "x" * 600, ""),
        ("wandb: View run at https:///x", ""),
        ("I say: View run at https://wandb.ai/a/b", ""),
        ("x" * 5000 + "wandb: View run at https://wandb.ai/a", ""),
        ("[skep] tensorboard: --reload", ""),
        ("[skep] tensorboard: /work/\x9b31m", ""),
    ],
)
def test_a_line_of_the_log(line: str, wanted: str) -> None:
    assert found(f"before\n{line}\nafter\n") == ([wanted] if wanted else [])


def test_variables_and_commands() -> None:
    env = {"WANDB_ENTITY": "acme", "WANDB_PROJECT": "a/b c"}
    assert found(env=env) == ["https://wandb.ai/acme/a%2Fb%20c"]
    run = {**env, "WANDB_RUN_ID": "r1", "WANDB_BASE_URL": "https://wandb.acme.example/"}
    assert found(env=run) == ["https://wandb.acme.example/acme/a%2Fb%20c/runs/r1"]
    assert found(env={**env, "WANDB_MODE": "offline"}) == []
    assert found(env={**env, "WANDB_BASE_URL": "javascript:x"}) == []
    assert found(command=("tensorboard", "--logdir", "runs")) == ["runs"]
    assert found(command="tensorboard --logdir=a --port 1") == ["a"]
    assert found(command=None, script="t.py", args=("--logdir", "--x")) == []
    many = "".join(f"wandb: View run at https://h/{n}\n" for n in range(100))
    assert len(found(many * 2)) == LINKS_MAX


def test_an_address_is_ascii_and_whole() -> None:
    assert sound_url("https://wandb.ai/a?b=1#c")
    for text in ("https://h/{x}", "https://h/`x`", "https://h/<b>", 'https://h/"', "https://ü/x"):
        assert not sound_url(text)


def test_a_writer_of_events_says_its_folder_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class SummaryWriter:
        def __init__(self, log_dir: Any) -> None:
            self.log_dir = log_dir

    module = ModuleType("tensorboardX.writer")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX.writer", module)
    monkeypatch.setattr(board_folders, "_told", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    board_folders.watch()
    for folder in ("/runs/a", "/runs/a", "/runs/b\n", None, *(f"/runs/{n}" for n in range(20))):
        SummaryWriter(folder)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[skep] tensorboard: /runs/a"
    assert len(said) == board_folders.FOLDERS_MAX
    assert "/runs/a" in found("\n".join(said))
