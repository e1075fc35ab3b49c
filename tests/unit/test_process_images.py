"""Images of processes on disk: what is refused, what is cut off, and as what a process is back."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from skep.wire.runs import RunPlan
from skep_job.link.apart import Apart
from skep_job.link.settings import Settings
from skep_services.adapters import process_checkpoint as made
from skep_services.adapters.process_checkpoint import Image, ProcessCheckpoints
from skep_services.agent import open_files, restored_run
from skep_services.cli.stake import at_stake, lost_by_cancel
from skep_services.service import ConfigurationError
from tests.kit import bind

IMAGE = Image(
    folder="processes-a",
    job="j1",
    attempt=1,
    pid=2**22 + 1,
    at=1,
    bytes=10,
    output="",
    files=(),
    kernel=os.uname().release,
    criu="4.2",
)
SETTINGS = Settings("/old", "j1", 1, 0, 1, "before", 1.0)
PLAN = RunPlan(
    token="j1.2.0",
    argv=("train",),
    env={"SKEP_SOCK": "/s"},
    workdir="/",
    log_path="l",
    log_bytes_max=1,
)


def store(folder: Path, image: Image = IMAGE) -> Path:
    (folder / "processes-a").mkdir(exist_ok=True)
    (folder / made.MANIFEST).write_bytes(msgspec.json.encode(image))
    return folder


def again(folder: Path, attempt: int = 2) -> tuple[RunPlan, str]:
    command = bind(attempt=attempt)
    return ProcessCheckpoints(("criu",), "4.2").restored(PLAN, command, folder, "secret")


def test_an_attempt_begins_from_the_image_of_an_earlier_one(tmp_path: Path) -> None:
    plan, trouble = again(store(tmp_path))
    assert trouble == ""
    order = json.loads(plan.argv[4])
    assert plan.argv[3] == restored_run.__file__
    assert plan.argv[5:] == ("train",), "what it becomes if the processes do not come back"
    assert order["images"] == str(tmp_path / "processes-a")
    told = Apart(str(tmp_path / made.IDENTITY), 600).back(SETTINGS)
    assert told == SETTINGS._replace(attempt=2, secret="secret", socket_path="/s")


@pytest.mark.parametrize(
    "image, why",
    [
        ({"kernel": "1.0"}, "it was made on kernel 1.0"),
        ({"criu": "3.17"}, "CRIU 3.17 made it, and here is 4.2"),
        ({"attempt": 2}, "it is of attempt 2 of j1"),
        ({"job": "j7"}, "it is of attempt 1 of j7"),
        ({"gpus": ("GPU-1",)}, "it was made on GPU-1, and this attempt has no GPU"),
        ({"folder": "processes-b"}, "which is not there"),
        ({"folder": "../../etc"}, "which is not there"),
    ],
)
def test_an_image_that_does_not_fit_is_not_used(
    tmp_path: Path, image: dict[str, object], why: str
) -> None:
    plan, trouble = again(store(tmp_path, msgspec.structs.replace(IMAGE, **image)))
    assert plan is PLAN
    assert why in trouble


@pytest.mark.parametrize("text", [b"", b"{", b'{"folder": 1}', b"[]", b"\xff" * 100])
def test_a_damaged_manifest_is_not_used(tmp_path: Path, text: bytes) -> None:
    (store(tmp_path) / made.MANIFEST).write_bytes(text)
    plan, trouble = again(tmp_path)
    assert plan is PLAN
    assert made.MANIFEST in trouble


def test_a_first_attempt_has_none(tmp_path: Path) -> None:
    assert again(tmp_path) == (PLAN, "")


def test_a_value_that_means_nothing_ends_the_agent(tmp_path: Path) -> None:
    async def opened(**variables: str) -> tuple[ProcessCheckpoints | None, str]:
        return await made.open_process_checkpoints(variables, tmp_path)

    with pytest.raises(ConfigurationError, match="it must be `allow`, `gpus`, or not set"):
        asyncio.run(opened(SKEP_PROCESS_CHECKPOINTS="1"))
    assert asyncio.run(opened()) == (None, "")
    found, why = asyncio.run(opened(SKEP_PROCESS_CHECKPOINTS="allow", SKEP_CRIU="no-such", PATH=""))
    assert (found, why) == (None, "no-such is not in PATH: install CRIU, or name it in SKEP_CRIU")
    found, why = asyncio.run(opened(SKEP_PROCESS_CHECKPOINTS="allow", SKEP_CRIU="/bin/true"))
    assert found is None
    assert "does not say its version" in why


@pytest.mark.parametrize(
    "variables, why",
    [
        ({"allow": "allow"}, "jobs here are on GPUs, and SKEP_PROCESS_CHECKPOINTS is `allow`"),
        ({"allow": "gpus"}, "cuda-checkpoint is not in PATH: install it"),
    ],
)
def test_jobs_on_gpus_are_stored_only_where_that_is_said(
    tmp_path: Path, variables: dict[str, str], why: str
) -> None:
    wanted = {"SKEP_PROCESS_CHECKPOINTS": variables["allow"], "SKEP_CRIU": "/bin/true", "PATH": ""}
    found, said = asyncio.run(made.open_process_checkpoints(wanted, tmp_path, {}))
    assert found is None
    assert why in said


def test_memory_of_gpus_has_to_fit_into_the_memory_of_the_host(tmp_path: Path) -> None:
    images = ProcessCheckpoints(("/bin/false",), "4.2")
    gpus = made.OnGpus(("GPU-1",), 1 << 60)
    done = asyncio.run(images.dump(os.getpid(), tmp_path, "j1", 1, gpus=gpus))
    assert "of GPU memory do not fit: the host has" in done.trouble
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_counts_wrongly_after_it_came_back_is_noticed() -> None:
    assert made._miscounted(b"1\n2\n3\n", b"[skep] goes on\n3\n4\n") == ""
    assert "counts on from [1]" in made._miscounted(b"1\n2\n3\n", b"1\n2\n")
    assert "counts on from [9]" in made._miscounted(b"1\n2\n3\n", b"9\n")


def test_a_full_disk_refuses_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "KEEP_FREE", 1 << 62)
    images = ProcessCheckpoints(("/bin/false",), "4.2")
    done = asyncio.run(images.dump(os.getpid(), tmp_path, "j1", 1))
    assert "do not fit" in done.trouble
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_the_image_before_it(tmp_path: Path) -> None:
    store(tmp_path)
    images = ProcessCheckpoints(("/bin/false",), "4.2")
    done = asyncio.run(images.dump(os.getpid(), tmp_path, "j1", 1))
    assert done.trouble == "CRIU could not store the processes: it ended with status 1"
    assert made.image_in(tmp_path) == (IMAGE, "")
    assert [path.name for path in tmp_path.glob("processes-*")] == ["processes-a"]


@pytest.mark.parametrize(
    "sums, why",
    [({}, "/bin/false ended with status 1"), ({"pages.img": [3, 7]}, "pages.img is damaged")],
)
def test_processes_that_do_not_come_back_begin_from_the_start(
    tmp_path: Path, sums: dict[str, list[int]], why: str
) -> None:
    grown = tmp_path / "metrics"
    grown.write_text("12345")
    order = {
        "images": str(tmp_path),
        "criu": ["/bin/false"],
        "environment": {},
        "pid": 2**22 + 1,
        "output": "",
        "files": [[str(grown), 3, grown.stat().st_ino]],
        "sums": sums,
        "text": "the image",
    }
    words = [*made.PYTHON, restored_run.__file__, json.dumps(order), "/bin/echo", "begins"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "begins\n"
    said = "[skep] the image does not come back, the attempt begins from the start: "
    assert done.stderr.startswith(said)
    assert done.stderr.endswith(f"{why}\n")
    assert len(grown.read_text()) == (5 if sums else 3)


def test_files_are_listed_that_are_not_only_appended_to(tmp_path: Path) -> None:
    # Another process: tests before this one may have closed this one's files to its own user.
    holder = subprocess.Popen(
        ["/bin/sh", "-c", "exec 8>w 9>>a; printf abc >&8; echo; read line"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert open_files.main([str(holder.pid), str(tmp_path / "list")]) == 0
        assert holder.stdin is not None
        holder.stdin.close()
    listed = {path: size for path, size, _ in json.loads((tmp_path / "list").read_text())}
    assert listed[str(tmp_path / "w")] == 3
    assert str(tmp_path / "a") not in listed


@pytest.mark.parametrize(
    "text", ["", "[]", '{"attempt": 2}', '{"attempt": "2", "secret": "s", "path": "p"}', "x" * 5000]
)
def test_a_process_stays_apart_until_it_is_told_or_has_waited(tmp_path: Path, text: str) -> None:
    path = tmp_path / "identity"
    path.write_text(text)
    assert Apart(str(path), 600).back(SETTINGS) is None
    assert Apart(str(path), 0).back(SETTINGS) == SETTINGS


def test_what_a_stop_loses_is_said_before() -> None:
    now = time.time_ns()
    row = {"state": "running", "started_at": now - 60 * 10**9, "can": [], "tier": "observed"}
    assert "is lost: nothing stores it" in at_stake(row, now)
    assert "(1m00s) is lost" in lost_by_cancel(row, now)
    stored = {**row, "can": ["checkpoint"]}
    assert at_stake(stored, now).startswith("an image of its processes")
    assert "library's own checkpoint" in at_stake({**row, "spec": {"resume": {}}}, now)
    assert at_stake({**stored, "tier": "cooperative"}, now).startswith("its state is stored")
    assert lost_by_cancel(stored, now) == at_stake({**row, "state": "queued"}, now) == ""
