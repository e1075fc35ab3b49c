"""The job's side of the protocol against a real socket: frames, settings, link and reporter."""

import itertools
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep_job.link.connection import PATH_BYTES_MAX, Link, LinkLost
from skep_job.link.frames import FRAME_BYTES_MAX, FrameError, FrameReader, encode
from skep_job.link.settings import Settings, Unobserved, read
from skep_job.observe.reporter import FAREWELL_S, QUIET_S, Reporter
from skep_job.observe.step_counter import FAILURE_CHARACTERS_MAX, Tally, after_step
from skep_job.process.memory import memory_bytes
from tests.support.job_agent import JobAgent, job_agent

NEVER_S = 60.0  # A period within which no test ends: what arrives earlier was not the timer.
GIVEN = {"SKEP_SOCK": "/run/skep/n1.sock", "SKEP_JOB": "j7", "SKEP_GEN": "3"}


@pytest.fixture
def agent() -> Iterator[JobAgent]:
    with job_agent() as agent:
        yield agent


Start = Callable[..., tuple[Reporter, Tally]]


@pytest.fixture
def start(agent: JobAgent) -> Iterator[Start]:
    reporters = []

    def start_reporter(report_every_s: float = NEVER_S) -> tuple[Reporter, Tally]:
        tally = Tally()
        settings = Settings(str(agent.path), "j7", 3, 1, 2, "t0ken", report_every_s)
        reporter = Reporter(settings, tally, lambda: 4096)
        tally.wake = reporter.wake
        reporter.start()
        reporters.append(reporter)
        return reporter, tally

    yield start_reporter
    for reporter in reporters:
        reporter.close()


# --- frames -------------------------------------------------------------------------------------


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(), max_size=3)),
    st.lists(st.integers(min_value=0, max_value=200)),
)
def test_messages_survive_any_cutting(messages: list[dict[str, object]], cuts: list[int]) -> None:
    stream = b"".join(map(encode, messages))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    reader = FrameReader()
    received = []
    for begin, end in itertools.pairwise(places):
        received += reader.feed(stream[begin:end])
    assert received == messages


@pytest.mark.parametrize(
    "data, reason",
    [
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "a frame of 65537 bytes; the limit is 65536"),
        (b"\0\0\0\1{", "not JSON"),
        (b"\0\0\0\1\xff", "not JSON"),
        (b"\0\0\0\0", "not JSON"),
        (b"\0\0\xff\xf0" + b"[" * 0xFFF0, "not JSON"),
        (b"\0\0\0\1" + b"1", "a JSON int, expected an object"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        FrameReader().feed(data)


def test_a_message_that_fits_no_frame_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="a message of 70008 bytes"):
        encode({"t": "x" * 70_000})


# --- settings -----------------------------------------------------------------------------------


def test_settings_with_defaults() -> None:
    assert read(GIVEN) == Settings("/run/skep/n1.sock", "j7", 3, 0, 1, "", 1.0)


def test_settings_in_full() -> None:
    more = {"RANK": "3", "WORLD_SIZE": "4", "SKEP_RANK_SECRET": "t", "SKEP_REPORT_S": "0.25"}
    assert read(GIVEN | more) == Settings("/run/skep/n1.sock", "j7", 3, 3, 4, "t", 0.25)


def test_a_relative_socket_path_is_fixed_before_the_script_moves() -> None:
    settings = read(GIVEN | {"SKEP_SOCK": "n1.sock"})
    assert isinstance(settings, Settings)
    assert settings.socket_path == os.path.join(os.getcwd(), "n1.sock")


@pytest.mark.parametrize("text, seconds", [("0", 0.05), ("1e9", 60.0), ("-inf", 0.05)])
def test_the_period_is_kept_within_bounds(text: str, seconds: float) -> None:
    settings = read(GIVEN | {"SKEP_REPORT_S": text})
    assert isinstance(settings, Settings)
    assert settings.report_every_s == seconds


@pytest.mark.parametrize("environ", [{}, {"SKEP_SOCK": ""}, {"SKEP_JOB": "j7"}])
def test_without_a_socket_nothing_is_asked_for(environ: dict[str, str]) -> None:
    assert read(environ) == Unobserved("")


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("SKEP_SOCK", "/run/" + "x" * 81, "the file name in SKEP_SOCK is longer than 80 bytes"),
        ("SKEP_JOB", "", "SKEP_SOCK is set and SKEP_JOB is not"),
        ("SKEP_JOB", "j" * 1_001, "SKEP_JOB is longer than 1000 characters"),
        ("SKEP_RANK_SECRET", "j" * 1_001, "SKEP_RANK_SECRET is longer than 1000 characters"),
        ("SKEP_GEN", "", "SKEP_SOCK is set and SKEP_GEN is not"),
        ("SKEP_GEN", "two", "SKEP_GEN is 'two', expected a whole number from 0"),
        ("SKEP_GEN", "9007199254740993", "SKEP_GEN is '9007199254740993', expected"),
        ("SKEP_GEN", "9" * 5_000, "SKEP_GEN is '9999"),
        ("RANK", "-1", "RANK is '-1', expected a whole number from 0"),
        ("WORLD_SIZE", "1.5", "WORLD_SIZE is '1.5', expected a whole number from 0"),
        ("SKEP_REPORT_S", "soon", "SKEP_REPORT_S is 'soon', expected a number of seconds"),
        ("SKEP_REPORT_S", "nan", "SKEP_REPORT_S is 'nan', expected a number of seconds"),
    ],
)
def test_wrong_settings_are_named(name: str, text: str, why: str) -> None:
    outcome = read(GIVEN | {name: text})
    assert isinstance(outcome, Unobserved)
    assert outcome.why.startswith(why)


# --- link ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 40])
def test_a_path_of_any_length_connects(tmp_path: Path, depth: int) -> None:
    directory = tmp_path.joinpath(*["quite-long"] * depth)
    directory.mkdir(parents=True)
    path = directory / ("s" * 80)
    assert depth == 1 or len(str(path)) > PATH_BYTES_MAX
    before = os.getcwd()
    with JobAgent(path) as agent:
        link = Link(str(path))
        link.send({"type": "hello"})
        agent.wait_until(lambda agent: agent.of_type("hello"))
        link.close()
        agent.wait_until(lambda agent: agent.open_connections == 0)
    assert os.getcwd() == before


def test_nobody_there(tmp_path: Path) -> None:
    for path in (tmp_path / "s", tmp_path / ("x" * 120) / "s"):
        with pytest.raises(LinkLost, match="No such file"):
            Link(str(path))


def test_an_agent_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = Link(str(tmp_path / "s"), send_s=0.01)
        with pytest.raises(LinkLost, match="timed out"):
            send_for_ever(link)
        link.close()


def test_messages_from_the_agent(agent: JobAgent) -> None:
    link = Link(str(agent.path))
    assert link.receive() == []
    agent.wait_until(lambda agent: agent.open_connections)
    agent.tell(encode({"type": "greeting"}))
    wait_readable(link)
    assert link.receive() == [{"type": "greeting"}]
    agent.tell(b"\xff\xff\xff\xff")
    wait_readable(link)
    with pytest.raises(LinkLost, match="the limit is"):
        link.receive()
    agent.stop()
    with pytest.raises(LinkLost, match="closed"):
        link.receive()
    link.close()
    with pytest.raises(LinkLost):
        link.receive()


def send_for_ever(link: Link) -> None:
    while True:
        link.send({"text": "x" * 60_000})


def wait_readable(link: Link) -> None:
    assert select.select([link], [], [], NEVER_S)[0]


# --- reporter -----------------------------------------------------------------------------------


def test_the_first_words(agent: JobAgent, start: Start) -> None:
    start()
    agent.wait_until(lambda agent: len(agent.received) == 2)
    who = {"job": "j7", "attempt": 3, "rank": 1}
    hello, stats = agent.received
    assert hello == {"type": "hello", **who, "pid": os.getpid(), "world": 2, "token": "t0ken"}
    assert 0 < stats.pop("monotonic_ns") <= time.monotonic_ns()
    assert stats == {
        "type": "stats",
        **who,
        "steps": 0,
        "step_ns": 0,
        "last_step_monotonic_ns": 0,
        "source": "none",
        "memory_bytes": 4096,
    }


def test_reports_come_again_and_again(agent: JobAgent, start: Start) -> None:
    start(report_every_s=0.05)
    agent.wait_until(lambda agent: len(agent.of_type("stats")) >= 4)
    sampled = [stats["monotonic_ns"] for stats in agent.of_type("stats")]
    assert sampled == sorted(sampled)
    assert len(agent.of_type("hello")) == 1


def test_the_first_mini_batch_is_reported_at_once(agent: JobAgent, start: Start) -> None:
    _, tally = start()
    agent.wait_until(lambda agent: agent.of_type("stats"))
    optimizer = Tally()
    after_step(tally)(optimizer, (), {})
    agent.wait_until(lambda agent: agent.of_type("stats", steps=1, source="optimizer"))


def test_the_final_count_is_told_by_the_end(agent: JobAgent, start: Start) -> None:
    reporter, tally = start()
    tally.begin_batch()
    reporter.close()
    agent.wait_until(lambda agent: agent.accepted and agent.open_connections == 0)
    *_, stats, bye = agent.received
    assert (stats["type"], stats["steps"], stats["source"]) == ("stats", 1, "dataloader")
    assert bye == {"type": "bye", "job": "j7", "attempt": 3, "rank": 1, "steps": 1}
    reporter.close()  # Once is enough.
    assert len(agent.of_type("bye")) == 1


def test_an_agent_that_comes_back_is_greeted_again(agent: JobAgent, start: Start) -> None:
    _, tally = start()
    tally.fail("test", ValueError("of this test"))
    agent.wait_until(lambda agent: agent.of_type("error"))
    for times in (2, 3):
        agent.stop()
        agent.listen()
        agent.wait_for(times, "error")
        agent.wait_until(lambda agent: agent.received[-1]["type"] == "stats")
        assert [message["type"] for message in agent.received[-3:]] == ["hello", "error", "stats"]
    assert agent.of_type("error")[-1]["error"] == "test: ValueError: of this test"
    assert agent.received[-1]["source"] == "none"


def test_an_agent_that_comes_late(agent: JobAgent, start: Start) -> None:
    agent.stop()
    _, tally = start()
    tally.wake()
    agent.listen()
    agent.wait_until(lambda agent: agent.of_type("stats"))


def test_the_longest_failure_fits_in_a_frame(agent: JobAgent, start: Start) -> None:
    _, tally = start()
    tally.fail("test", ValueError("\U0001f41d" * FAILURE_CHARACTERS_MAX))
    agent.wait_until(lambda agent: agent.of_type("error"))


def test_unknown_messages_are_passed_over_and_broken_ones_end_the_link(
    agent: JobAgent, start: Start
) -> None:
    _, tally = start()
    agent.wait_until(lambda agent: agent.of_type("stats"))
    agent.tell(encode({"type": "surprise", "n": 1}))
    tally.wake()
    agent.wait_until(lambda agent: len(agent.of_type("stats")) == 2)
    assert agent.accepted == 1
    agent.tell(b"\0\0\0\2[]")
    agent.wait_until(lambda agent: len(agent.of_type("hello")) == 2)
    assert agent.accepted == 2


def test_the_end_is_not_held_up_without_an_agent(agent: JobAgent, start: Start) -> None:
    agent.stop()
    reporter, _ = start()
    begin = time.monotonic()
    reporter.close()
    assert time.monotonic() - begin < FAREWELL_S + 5.0  # The margin is for a busy machine.
    assert agent.received == []


def test_the_final_count_finds_an_agent_that_comes_back_in_time(
    agent: JobAgent, start: Start
) -> None:
    agent.stop()
    reporter, _ = start()
    closing = threading.Thread(target=reporter.close)
    closing.start()
    agent.listen()
    closing.join()
    agent.wait_until(lambda agent: agent.of_type("bye"))


@pytest.mark.parametrize("good_reports", [0, 1])
def test_a_fault_of_the_reporter_is_one_line_of_the_log(
    agent: JobAgent, capsys: pytest.CaptureFixture[str], good_reports: int
) -> None:
    memories = iter([1] * good_reports)
    settings = Settings(str(agent.path), "j7", 3, 0, 1, "", 0.05)
    reporter = Reporter(settings, Tally(), memories.__next__)
    reporter.start()
    agent.wait_until(lambda agent: agent.accepted and agent.open_connections == 0)
    reporter.close()
    told = capsys.readouterr().err
    assert told.startswith("skep_job: reports end here: StopIteration: in _report, reporter.py:")
    assert len(told.splitlines()) == 1
    assert len(agent.of_type("stats")) == good_reports


def test_memory_is_the_resident_set_without_cuda() -> None:
    assert memory_bytes() > 1_000_000


class FakeCuda(ModuleType):
    """torch.cuda as seen by a process with two devices."""

    def __init__(self, initialized: bool) -> None:
        super().__init__("torch.cuda")
        self.is_initialized = lambda: initialized
        self.device_count = lambda: 2
        self.memory_allocated = lambda device: 10 + device


def test_memory_is_what_torch_holds_on_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", FakeCuda(initialized=True))
    assert memory_bytes() == 21
    monkeypatch.setitem(sys.modules, "torch.cuda", FakeCuda(initialized=False))
    assert memory_bytes() > 1_000_000
    monkeypatch.setitem(sys.modules, "torch.cuda", ModuleType("torch.cuda"))  # Half imported.
    assert memory_bytes() > 1_000_000


def test_memory_that_cannot_be_asked_for_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(initialized=True)
    cuda.device_count = lambda: 1 // 0
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert memory_bytes() == 0


def test_who_shows_no_mini_batches_is_told_once_what_to_do(
    agent: JobAgent, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    settings = Settings(str(agent.path), "j7", 3, 1, 2, "t0ken", NEVER_S)
    quiet, trains = Tally(), Tally()
    trains.end_backward()
    for tally in (trains, quiet):
        reporter = Reporter(settings, tally, lambda: 4096)
        reporter._tell_of_silence(reporter._began_at + QUIET_S / 2)
        assert capsys.readouterr().err == ""
        for _ in range(2):
            reporter._tell_of_silence(reporter._began_at + QUIET_S)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("skep_job: no mini-batch has been seen so far.")
    assert "run.step() after each mini-batch" in line
