"""Checkpoints of libraries that earlier attempts wrote: which is found, and which never."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from skep_job.observe import library_resume
from skep_job.resume import layouts, readable, search
from skep_job.resume.search import Outcome, Place

NS = 10**9
BEGAN = 1_000_000 * NS
ME = os.geteuid()


def torch_file(path: Path, data: bytes = b"\x80\x02}.") -> None:
    """Write what `torch.save` writes: a zip file with the pickle in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", data)
        archive.writestr(f"{path.stem}/data/0", b"w" * 1000)


def safetensors(path: Path, size: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    header = json.dumps(told).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"t" * size)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def dated(path: Path, second: int) -> None:
    """Have everything in a checkpoint written so many seconds after the job began."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(each, ns=(BEGAN + second * NS, BEGAN + second * NS))


def trainer(base: Path, step: int, second: int | None = None) -> Path:
    made = base / f"checkpoint-{step}"
    safetensors(made / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        torch_file(made / name)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    dated(made, step if second is None else second)
    return made


def accelerated(base: Path, number: int) -> Path:
    made = base / f"checkpoint_{number}"
    safetensors(made / "model.safetensors")
    torch_file(made / "optimizer.bin")
    torch_file(made / "random_states_0.pkl")
    (made / "custom_checkpoint_0.pkl").write_bytes(pickle.dumps({"done": number}))
    dated(made, number)
    return made


def lightning(path: Path, second: int, *, optimizer: bool = True) -> Path:
    more = b"optimizer_states" if optimizer else b""
    torch_file(path, b"\x80\x02pytorch-lightning_version " + more + b".")
    dated(path, second)
    return path


def look(base: Path, *patterns: str, **more: Any) -> Outcome:
    place = Place(str(base), "attempt 1", "/now", patterns)
    return search.newest([place], BEGAN, ME, **more)


def name(outcome: Outcome) -> str:
    return "" if outcome.found is None else os.path.basename(outcome.found.path)


@pytest.mark.parametrize(
    "spoil, why",
    [
        (lambda at: (at / "trainer_state.json").unlink(), "written last, is missing"),
        (lambda at: (at / "trainer_state.json").write_text("{"), "trainer_state.json: it cannot"),
        (
            lambda at: (at / "trainer_state.json").write_text('{"global_step": 7}'),
            "trainer_state.json says step 7",
        ),
        (lambda at: cut(at / "model.safetensors"), "model.safetensors: it has"),
        (lambda at: cut(at / "optimizer.pt"), "optimizer.pt: it cannot be read"),
        (lambda at: (at / "optimizer.pt").unlink(), "no state of the optimizer"),
        (lambda at: (at / "model.safetensors").unlink(), "no weights of a model"),
        (lambda at: (at / "rng_state.pth").unlink(), "rng_state.pth is missing, which"),
        (lambda at: (at / "x.tmp").touch(), "x.tmp was not finished"),
        (lambda at: (at / "link").symlink_to("/etc/passwd"), "link is a link"),
        (lambda at: (at / "optimizer.pt").chmod(0o666), "everybody may write to optimizer.pt"),
        (lambda at: os.mkfifo(at / "pipe"), "pipe is neither a file nor a folder"),
        (
            lambda at: (at / "model.safetensors.index.json").write_text(
                '{"weight_map": {"w": "model-2.safetensors"}}'
            ),
            "model-2.safetensors is missing",
        ),
    ],
)
def test_a_half_of_a_checkpoint_is_passed_over_for_the_whole_one_before_it(
    tmp_path: Path, spoil: Any, why: str
) -> None:
    trainer(tmp_path / "out", 10)
    last = trainer(tmp_path / "out", 20)
    assert name(look(tmp_path)) == "checkpoint-20"
    spoil(last)
    for each in [*last.iterdir(), last]:
        os.utime(each, ns=(BEGAN + 20 * NS, BEGAN + 20 * NS), follow_symlinks=False)
    outcome = look(tmp_path)
    assert name(outcome) == "checkpoint-10", outcome
    assert len(outcome.passed) == 1
    assert why in outcome.passed[0]


def test_what_another_run_wrote_before_the_job_began_is_never_taken(tmp_path: Path) -> None:
    trainer(tmp_path, 900, second=-60)
    assert look(tmp_path) == Outcome(None, ())
    trainer(tmp_path, 10)
    assert name(look(tmp_path)) == "checkpoint-10"


def test_files_of_other_users_are_not_taken(tmp_path: Path) -> None:
    trainer(tmp_path, 10)
    outcome = search.newest([Place(str(tmp_path), "workdir", "/now")], BEGAN, ME + 1)
    assert outcome.found is None
    assert f"it is of user {ME}, and the job of user {ME + 1}" in outcome.passed[0]


def test_each_library_is_known_and_the_newest_of_all_is_taken(tmp_path: Path) -> None:
    accelerated(tmp_path / "out", 1)
    accelerated(tmp_path / "out", 2)
    first = look(tmp_path).found
    assert first is not None
    assert (first.kind, first.step, first.now) == ("accelerate", 2, "/now/out/checkpoint_2")
    # Written after what accelerate is known by: only the one before tells that it is missing.
    (tmp_path / "out/checkpoint_2/custom_checkpoint_0.pkl").unlink()
    assert name(look(tmp_path)) == "checkpoint_1"
    lightning(tmp_path / "logs/epoch=1-step=30.ckpt", 30)
    lightning(tmp_path / "logs/weights.ckpt", 40, optimizer=False)
    found = look(tmp_path).found
    assert found is not None
    assert (found.kind, found.step) == ("lightning", 30)


def test_patterns_name_files_and_folders_below_the_place_and_follow_no_link(tmp_path: Path) -> None:
    torch_file(tmp_path / "a/b/step_10.pt")
    torch_file(tmp_path / "a/b/step_20.pt")
    dated(tmp_path / "a/b/step_10.pt", 10)
    dated(tmp_path / "a/b/step_20.pt", 20)
    cut(tmp_path / "a/b/step_20.pt")
    dated(tmp_path / "a/b/step_20.pt", 20)
    outcome = look(tmp_path, "a/*/step_*.pt")
    assert (name(outcome), outcome.found.step) == ("step_10.pt", 10)  # type: ignore[union-attr]
    assert name(look(tmp_path, "**/step_*.pt")) == "step_10.pt"
    assert look(tmp_path, "a/step_*.pt") == Outcome(None, ())
    (tmp_path / "away").symlink_to(tmp_path / "a")
    assert look(tmp_path, "away/b/*.pt") == Outcome(None, ())
    (tmp_path / "notes.txt").write_text("x")
    dated(tmp_path / "notes.txt", 5)
    assert "cannot be verified" in look(tmp_path, "notes.txt").passed[0]


def test_what_is_still_being_written_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "step_10.pt"
    torch_file(path)
    dated(path, 10)

    def writes(_: float) -> None:
        torch_file(path)
        dated(path, 12)

    def now() -> int:
        return BEGAN + 11 * NS

    assert "still being written" in look(tmp_path, "*.pt", now_ns=now, settle=writes).passed[0]
    assert name(look(tmp_path, "*.pt", now_ns=now, settle=lambda _: None)) == "step_10.pt"


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"f{number}").touch()
    monkeypatch.setattr(search, "ENTRIES_MAX", 10)
    assert "only the first 10 names" in look(tmp_path).passed[0]
    monkeypatch.setattr(layouts, "FILES_MAX", 3)
    monkeypatch.setattr(search, "ENTRIES_MAX", 1000)
    trainer(tmp_path, 10)
    assert "more than 3 files" in look(tmp_path).passed[0]


@pytest.mark.parametrize(
    "file, raw, why",
    [
        ("a.pt", b"\x80\x02}.", "no zip file"),
        ("a.safetensors", struct.pack("<Q", 2**40), "its header is cut off"),
        ("a.safetensors", struct.pack("<Q", 2) + b"[]", "no JSON object"),
        ("a.safetensors", struct.pack("<Q", 7) + b'{"w":1}', "nothing of tensor 'w'"),
        ("a.safetensors", b"", "it cannot be read"),
        ("a.pkl", b"\x80\x02}", "it is cut off"),
        ("a.pkl", b"PK", "it cannot be read"),
        ("a.h5", b"CDF", "no HDF5 file"),
        ("a.h5", b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00" + b"\0" * 16 + b"\xff" * 40, "and says"),
        ("a.h5", b"\x89HDF\r\n\x1a\n\x03\x08\x08\x01" + b"\0" * 60, "not closed"),
        ("a.json", b"[" * 100_000, "it cannot be read"),
        ("a.json", b"1", "no JSON object"),
    ],
)
def test_files_of_wrong_forms_are_told_apart(
    tmp_path: Path, file: str, raw: bytes, why: str
) -> None:
    (tmp_path / file).write_bytes(raw)
    assert why in readable.trouble(str(tmp_path / file))


def before(tmp_path: Path, **plan: Any) -> subprocess.CompletedProcess[str]:
    """Run what comes before a command, as the agent does, and the command."""
    from skep_services.agent.resuming import PROGRAM

    library = str(Path(layouts.__file__).parents[2])
    shows = "import os, sys; print(sys.argv[1:], os.environ.get('SKEP_RESUME_FROM'))"
    asked = json.dumps({"attempt": 2, "since": BEGAN, "args": [], **plan})
    return subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", PROGRAM, library, asked),
            *(sys.executable, "-S", "-c", shows, "--lr", "1"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )


def test_the_command_gets_the_checkpoint_and_the_log_says_it(tmp_path: Path) -> None:
    path = trainer(tmp_path / "out", 10)
    (trainer(tmp_path / "out", 20) / "trainer_state.json").unlink()
    place = {"path": str(tmp_path), "label": "attempt 1", "now": "/now"}
    done = before(tmp_path, places=[place], args=["--from", "{checkpoint}"])
    assert done.stdout == f"['--lr', '1', '--from', '{path}'] {path}\n"
    assert done.stderr.splitlines() == [
        "[skep] resume: passed over: out/checkpoint-20 in attempt 1: trainer_state.json, which is "
        "written last, is missing",
        "[skep] resume: attempt 2 goes on from out/checkpoint-10 in attempt 1 (transformers, "
        "step 10)",
    ]


def test_without_a_checkpoint_the_command_begins_from_the_start(tmp_path: Path) -> None:
    done = before(tmp_path, places=[], args=["--from", "{checkpoint}"], hint="why it is so")
    assert done.stdout == "['--lr', '1'] None\n"
    assert done.stderr == "[skep] resume: attempt 2 begins from the start: why it is so\n"
    broken = before(tmp_path)  # The search itself fails: no places.
    assert broken.stdout == "['--lr', '1'] None\n"
    assert (
        broken.stderr == "[skep] resume: the search for a checkpoint failed: KeyError: 'places'\n"
    )


class Trainer:
    """Stands in for the Trainer of transformers."""

    def __init__(self, output_dir: str) -> None:
        self.args = types.SimpleNamespace(output_dir=output_dir)

    def train(self, resume_from_checkpoint: object = None) -> object:
        return resume_from_checkpoint


@pytest.mark.parametrize(
    "output_dir, given, gets",
    [("out", None, "/kept/1/out/checkpoint-10"), ("out", "mine", "mine"), ("other", None, None)],
)
def test_a_trainer_gets_only_what_it_would_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_dir: str, given: object, gets: object
) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = types.ModuleType(library_resume.TRANSFORMERS)
    module.Trainer = type("Trainer", (Trainer,), {"train": Trainer.train})
    monkeypatch.setitem(sys.modules, library_resume.TRANSFORMERS, module)
    library_resume.watch(
        {
            "SKEP_RESUME_FROM": "/kept/1/out/checkpoint-10",
            "SKEP_RESUME_AS": str(tmp_path / "out/checkpoint-10"),
            "SKEP_RESUME_KIND": "transformers",
        }
    )
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not _watches(each)])
    made = module.Trainer(output_dir)
    assert made.train(given) == gets
    assert made.train() is None, "only the first training of a process is offered it"


def _watches(finder: object) -> bool:
    return library_resume.TRANSFORMERS in getattr(finder, "_watched", {})
