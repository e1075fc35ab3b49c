"""Two ranks with DistributedDataParallel are checkpointed, ended, begun again and moved as one.

They accumulate gradients, so that between two reductions each has its own.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.move_kit import TOKEN, Job, environment_of, job
from tests.support.job_agent import JobAgent, job_agent
from tests.support.ports import free_port

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

STEPS = 7 * 40
"""Enough for several agreements, of which there is one in 64 mini-batches at least."""


@contextlib.contextmanager
def gang(agents: list[JobAgent], env: dict[str, str], *arguments: str) -> Iterator[list[Job]]:
    """Yield two ranks, each with an agent of its own, as on two nodes."""
    port = str(free_port())
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, agent in enumerate(agents):
            names = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            names |= {"MASTER_PORT": port, **env}
            made = job(["--ranks", "--epochs", "40", "--window", "3", *arguments], agent, env=names)
            ranks.append(stack.enter_context(made))
        yield ranks


@pytest.mark.nightly
def test_a_gang_stops_after_one_mini_batch_and_goes_on(tmp_path: Path) -> None:
    """Each rank hears of an order when it likes; all do it after the same mini-batch."""
    with contextlib.ExitStack() as stack:
        here = [stack.enter_context(job_agent()) for _ in range(2)]
        there = [stack.enter_context(job_agent()) for _ in range(2)]
        with gang(here, environment_of(tmp_path, 1), "--hold", "6", "99") as first:
            for rank in first:
                rank.hold(6)
            # Each node counts its orders by itself, and names the mini-batch that it expects.
            first[0].order(type="checkpoint", order=1, step=7)
            first[1].order(type="checkpoint", order=3, step=9)
            steps = {rank.answer("checkpointed")["step"] for rank in first}
            assert len(steps) == 1
            for rank in first:
                rank.hold(99)
            first[1].process.send_signal(signal.SIGTERM)  # One alone: both end.
            for rank in first:
                rank.go()
            assert [rank.finish()[0] for rank in first] == [-signal.SIGTERM] * 2
        ended = max(
            int(path.name.split("-s")[1][:12])
            for path in tmp_path.iterdir()
            if path.suffix == ".safetensors"
        )
        assert ended >= 99
        with gang(here, environment_of(tmp_path, 2), "--hold", str(ended + 3)) as second:
            later = environment_of(tmp_path, 3, successor=True)
            with gang(there, later) as third:
                doors = [rank.answer("ready")["port"] for rank in third]
                for rank in second:
                    rank.hold(ended + 3)
                for rank, port in zip(second, doors, strict=True):
                    rank.order(type="move", order=2, host="127.0.0.1", port=port, token=TOKEN)
                steps = {rank.answer("sent", order=2)["step"] for rank in second}
                steps |= {rank.answer("loaded")["step"] for rank in third}
                (moved,) = steps
                for rank in third:
                    rank.tell(type="resume", order=3)
                for rank in third:
                    status, told = rank.finish()
                    assert status == 0, told
                for number, rank in enumerate(second):
                    assert not rank.is_over()  # They wait to be ended.
                    rank.process.terminate()
                    assert rank.finish() == (-signal.SIGTERM, went_on(tmp_path, ended, number))
        for number in range(2):
            whole = first[number].trained(), second[number].trained(), third[number].trained()
            losses = [line for part in whole for line in part if line.startswith("loss")]
            assert [int(line.split()[1]) for line in losses] == list(range(1, STEPS + 1))
        ends = [rank.trained()[-1].split()[-1] for rank in third]
    uninterrupted_ends(tmp_path, ends, first, second, third)
    assert moved >= ended + 3


def went_on(folder: Path, step: int, rank: int) -> str:
    """Return the one line that a rank tells its reader: where it went on."""
    name = f"a00001-s{step:012}-r{rank}of2.safetensors"
    return f"skep_job: going on after mini-batch {step}, from {folder / name}\n"


def uninterrupted_ends(tmp_path: Path, ends: list[str], *parts: list[Job]) -> None:
    """Compare with a gang that nobody disturbed, to the last bit."""
    with job_agent() as one, job_agent() as other:
        with gang([one, other], environment_of(tmp_path / "alone", 1)) as alone:
            for rank in alone:
                status, told = rank.finish()
                assert status == 0, told
        for number in range(2):
            said = [line for part in parts for line in part[number].trained()]
            assert said == alone[number].trained()
        assert ends == [rank.trained()[-1].split()[-1] for rank in alone]
