"""Moves between real processes on loopback, and everything that can go wrong on the way.

However a move ends, exactly one process is able to train: the source goes on until its successor
has told it that it holds the state, and the successor never trains without `resume`.
"""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from skep_job.state import transfer
from skep_job.state.transfer import Wire
from tests.move_kit import TOKEN, Job, after, environment_of, job, uninterrupted
from tests.support.job_agent import JobAgent, job_agent
from tests.support.ports import free_port

pytestmark = [pytest.mark.torch, pytest.mark.e2e]

WIDE = ["--hidden", "128", "--window", "4"]
"""Some hundred kilobytes of state, so that a connection can end half way; and moves within windows
of accumulation."""


@pytest.fixture(scope="module")
def whole() -> list[str]:
    return uninterrupted(WIDE)


def move(job: Job, order: int, port: int, token: str = TOKEN) -> None:
    job.order(type="move", order=order, host="127.0.0.1", port=port, token=token)


def as_successor(listener: socket.socket, behave: Callable[[Wire], None]) -> None:
    """Take one connection as a successor would, up to where `behave` takes over."""
    peer, _ = listener.accept()
    with peer:
        wire = Wire(peer)
        wire.prove(TOKEN, "successor", "source")
        behave(wire)


def dies_before_the_state(wire: Wire) -> None:
    """Know the token, and nothing else."""


def dies_half_way(wire: Wire) -> None:
    assert wire.receive()["about"]["step"]
    wire._read(50_000)


def cannot_load(wire: Wire) -> None:
    take_all(wire)
    wire.send({"loaded": False, "error": "no memory left"})


def dies_before_it_answers(wire: Wire) -> None:
    take_all(wire)


def take_all(wire: Wire) -> None:
    from skep_job.state.snapshot import destinations

    layout = wire.receive()["layout"]
    wire.receive_tensors(destinations({}, layout))


@pytest.mark.slow
def test_the_source_trains_on_after_every_failure(whole: list[str], tmp_path: Path) -> None:
    """Until the real move: then the successor has it, and a stale source can do nothing."""
    faults: list[tuple[Callable[[Wire], None], str]] = [
        (dies_before_the_state, "ConnectionResetError|the connection ended half way|BrokenPipe"),
        (dies_half_way, "ConnectionResetError|the connection ended half way|BrokenPipe"),
        (cannot_load, "no memory left"),
        (dies_before_it_answers, "the connection ended half way"),
    ]
    holds = [str(step) for step in range(2, 12)]
    with job_agent() as here, job_agent() as there:
        names, later = environment_of(tmp_path, 3), environment_of(tmp_path, 4, successor=True)
        with job([*WIDE, "--hold", *holds], here, env=names) as source:
            source.hold(2)
            with job(WIDE, there, env=later) as successor:
                move(source, 2, free_port())
                assert "ConnectionRefused" in source.answer("failed", order=2)["error"]
                with socket.create_server(("127.0.0.1", 0)) as listener:
                    port = listener.getsockname()[1]
                    for order, (behave, expected) in enumerate(faults, start=3):
                        source.hold(order)
                        move(source, order, port)
                        as_successor(listener, behave)
                        error = source.answer("failed", order=order)["error"]
                        assert any(part in error for part in expected.split("|")), error
                there.wait_for(1, "ready")
                port = there.of_type("ready")[0]["port"]
                source.hold(7)
                move(source, 7, port, "wrong")
                assert "connection ended" in source.answer("failed", order=7)["error"]
                try_to_pass(port, there)
                source.hold(8)
                suspend_then_move(source, 8, port)
                # It has the state; the source is resumed all the same, as after a change of mind.
                successor.answer("loaded", step=8)
                source.tell(type="resume", order=10)
                assert source.answer("resumed", order=10)["step"] == 8
                source.hold(9)
                source.go()
                source.hold(10)
                source.go()
                source.hold(11)
                move(source, 11, port)
                moved = source.answer("sent", order=11)
                assert (moved["step"], moved["bytes"] > 100_000) == (11, True)
                assert successor.answer("loaded", step=11)["bytes"] == moved["bytes"]
                stale_source(source, successor, tmp_path)
                status, told = successor.finish()
                assert status == 0, told
                assert successor.trained() == after(whole, 11)
            assert source.trained() == whole[: len(source.trained())]


def try_to_pass(port: int, there: JobAgent) -> None:
    """Connect to a successor with everything but the right state; each is turned away."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
    whose = {"job": "j7", "attempt": 3, "rank": 0, "world": 1}
    wrong = [
        (whose | {"job": "j8"}, "the state is of job j8"),
        (whose | {"rank": 1}, "the state is of rank 1"),
        (whose | {"attempt": 4}, "attempt 4 cannot be succeeded by 4"),
    ]
    for about, why in wrong:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            wire = Wire(peer)
            wire.prove(TOKEN, "source", "successor")
            header = {"version": 1, "about": about, "plain": {"tracked": {}}, "layout": {}}
            wire.send(header)
            assert why in wire.receive()["error"]
    with socket.create_connection(("127.0.0.1", port)) as peer:
        Wire(peer).prove(TOKEN, "source", "successor")  # And then it dies.
    there.wait_for(7, "ready")  # One for each that failed, and the first.
    there.tell(transfer_resume(1))
    there.wait_for(1, "failed", order=1)
    assert "no state has arrived" in there.of_type("failed", order=1)[0]["error"]


def transfer_resume(order: int) -> bytes:
    from skep_job.link.frames import encode

    return encode({"type": "resume", "order": order})


def suspend_then_move(source: Job, order: int, port: int) -> None:
    """Move a job that is suspended; it stays so until it is resumed."""
    source.order(type="suspend", order=order)
    source.answer("suspended", order=order)
    source.tell(type="move", order=order + 1, host="127.0.0.1", port=port, token=TOKEN)
    source.answer("sent", order=order + 1)


def stale_source(source: Job, successor: Job, folder: Path) -> None:
    """Have the successor train; whatever is asked of the source then, it writes nothing."""
    successor.tell(type="resume", order=20)
    resumed = successor.answer("resumed", order=20)
    assert (resumed["step"], resumed["pause_ns"] > 0) == (11, True)
    source.tell(type="resume", order=21)
    assert "attempt 4 of this job has trained" in source.answer("failed", order=21)["error"]
    source.process.terminate()
    status, told = source.finish()
    assert (status, told) == (-15, "")
    assert not list(folder.glob("*.safetensors"))


def test_nothing_of_a_wire_is_taken_on_trust() -> None:
    """Damage, another protocol and a wrong token end a transfer on the side that meets them."""
    here, there = socket.socketpair()
    with here, there:
        one, other = Wire.__new__(Wire), Wire.__new__(Wire)
        one._socket, other._socket = here, there
        here.sendall(b"\0\0\0\2\0\0\0\0{}")
        with pytest.raises(transfer.Broken, match="damaged on its way"):
            other.receive()
        here.sendall(b"\xff\xff\xff\xff\0\0\0\0")
        with pytest.raises(transfer.Broken, match="a frame of 4294967295 bytes"):
            other.receive()
        one.send({"a": [1]})
        assert other.receive() == {"a": [1]}


def test_a_successor_without_state_leaves_nothing_behind(tmp_path: Path) -> None:
    """Else its beginning would be taken for the newest state of the job."""
    names = environment_of(tmp_path, 4, successor=True)
    with job_agent() as agent, job([], agent, env=names) as successor:
        successor.answer("ready")
        successor.process.terminate()
        assert successor.finish() == (-15, "")
    assert not list(tmp_path.iterdir())
