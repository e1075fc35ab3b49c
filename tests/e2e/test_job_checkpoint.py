"""Durable checkpoints of real PyTorch scripts: what goes on from one ends in the same bits."""

import json
import os
import signal
from pathlib import Path

import pytest

from skep_job.state import checkpoint_file
from tests.move_kit import after, environment_of, job, uninterrupted
from tests.support.job_agent import job_agent

pytestmark = [pytest.mark.torch, pytest.mark.e2e]


@pytest.fixture(scope="module")
def whole() -> list[str]:
    return uninterrupted([])


def steps(folder: Path) -> list[int]:
    return sorted(
        checkpoint_file.read_header(path).about["step"] for path in folder.glob("*.safetensors")
    )


@pytest.mark.slow
def test_a_crash_goes_on_from_the_newest_checkpoint_that_is_whole(
    whole: list[str], tmp_path: Path
) -> None:
    with job_agent() as agent:
        with job(
            ["--hold", "5", "11", "14", "16"], agent, env=environment_of(tmp_path, 3)
        ) as first:
            for order, step in enumerate((5, 11, 14), start=1):
                first.hold(step)
                first.order(type="checkpoint", order=order)
                told = first.answer("checkpointed", order=order)
                assert (told["step"], told["bytes"]) == (step, os.path.getsize(told["path"]))
            first.hold(16)
            assert first.answer("fingerprint")["fingerprint"]["batch"] == [8, 6]
            assert whole[: len(first.trained())] == first.trained()
            first.go("crash")
            assert first.finish() == (9, "")
        assert steps(tmp_path) == [11, 14]  # Of which the newer is damaged:
        newest = max(tmp_path.glob("*.safetensors"))
        content = bytearray(newest.read_bytes())
        content[-20] ^= 1
        newest.write_bytes(content)
        with job(["--hold", "12"], agent, env=environment_of(tmp_path, 4)) as second:
            second.hold(12)  # Once more within the second epoch.
            second.order(type="checkpoint", order=4)
            status, told_to_user = second.finish()
    assert status == 0
    assert second.trained() == after(whole, 11)
    lines = told_to_user.splitlines()
    assert "-s000000000014-" in lines[0]
    assert "are not those that were written" in lines[0]
    assert lines[1].startswith("skep_job: going on after mini-batch 11, from ")
    assert steps(tmp_path) == [12, 14]  # The damaged one went before what it replaces could.


def test_what_is_told_to_end_leaves_a_checkpoint(whole: list[str], tmp_path: Path) -> None:
    """Also: checkpoints by the clock, kept in bounds; reports; counts without the hooks."""
    arguments = ["--every", "0.001s", "--hold", "17"]
    with job_agent() as agent:
        with job(arguments, agent, env=environment_of(tmp_path, 1)) as first:
            first.hold(17)
            assert steps(tmp_path) == [15, 16]
            first.process.send_signal(signal.SIGTERM)
            first.go()
            status, told = first.finish()
            assert status == -signal.SIGTERM
            assert "told to end; the state after mini-batch 17 is in" in told
        assert steps(tmp_path) == [16, 17]
        with job([], agent, env=environment_of(tmp_path, 2)) as second:
            status, told = second.finish()
            assert status == 0, told
            assert second.trained() == after(whole, 17)
        agent.wait_for(1, "bye")
        assert agent.of_type("bye")[0]["steps"] == 28 - 17
        assert agent.of_type("stats")[-1]["source"] == "cooperative"
        last = agent.of_type("metrics")[-1]
        assert (last["step"], last["values"]["samples"]) == (28, 8 * 11)


@pytest.mark.nightly
def test_the_order_of_samples_is_the_same_with_workers(tmp_path: Path) -> None:
    arguments = ["--workers", "2", "--generator"]
    whole = uninterrupted(arguments)
    with job_agent() as agent:
        with job(
            [*arguments, "--hold", "10", "11"], agent, env=environment_of(tmp_path, 1)
        ) as first:
            first.hold(10)
            first.order(type="checkpoint", order=1)
            first.hold(11)
            first.go("crash")
            assert first.finish()[0] == 9
        with job(arguments, agent, env=environment_of(tmp_path, 2)) as second:
            status, told = second.finish()
            assert status == 0, told
            assert second.trained() == after(whole, 10)


def test_a_checkpoint_is_a_file_of_a_known_format(tmp_path: Path) -> None:
    """Any reader of safetensors can open it: eight bytes, JSON, then the bytes it describes."""
    with job_agent() as agent, job(["--hold", "1"], agent, env=environment_of(tmp_path, 1)) as made:
        made.hold(1)
        made.order(type="checkpoint", order=1)
        path = Path(made.answer("checkpointed")["path"])
        assert made.finish()[0] == 0
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(content) - 8 - length
    weight = header["model.0.weight"]
    assert (weight["dtype"], weight["shape"]) == ("F32", [8, 6])
    assert "model.5.weight" not in header  # Tied: its tensor is there once.
