"""Orders to a running job: where they are done, how they fence, what is answered again."""

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from skep_job.devices import suspender
from skep_job.devices.suspender import Suspender
from skep_job.link.orders import ANSWERS_MAX, TEXT_CHARACTERS_MAX, Control, Message, describe
from skep_job.observe.step_counter import Tally, after_step
from tests.support.job_agent import DEADLINE_S


class Store:
    """The other place of a state of 7 bytes."""

    moved = 7

    def __init__(self, moves: list[str], trouble: dict[str, Exception]) -> None:
        self._moves = moves
        self._trouble = trouble

    def take_back(self) -> None:
        if "take_back" in self._trouble:
            raise self._trouble.pop("take_back")
        self._moves.append("back")

    def peek(self, storage: object) -> object:
        return storage

    def residue(self) -> int:
        return 3


class Job:
    """A training of which the test makes every step, on a thread of its own once it may stand."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.control = Control(self.tally.reached)
        self.heard: list[Message] = []
        self.changed = threading.Condition()
        self.control.wake = self.hear
        self.moved: list[str] = []
        self.suspender = Suspender(self.tally, self.control, 100, self.release)
        self.suspender.install()
        self.hook = after_step(self.tally, self.control)
        self.trouble: dict[str, Exception] = {}
        self.limit: int | None = None
        self._thread: threading.Thread | None = None

    def hear(self) -> None:
        with self.changed:
            while (message := self.control.unsent()) is not None:
                self.control.sent(message)
                self.heard.append(message)
            self.changed.notify_all()

    def wait_for(self, *kinds: str) -> None:
        """Wait until the last messages are of these kinds."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.kinds()[-len(kinds) :] == [*kinds], 20), (
                self.heard
            )

    def kinds(self) -> list[object]:
        return [message["type"] for message in self.heard]

    def order(self, kind: str, order: int, **fields: object) -> None:
        self.control.take({"type": kind, "order": order, **fields})

    def step(self) -> None:
        """Step on this thread: the test is stuck if the job stands."""
        self.hook(self, (), {})

    def step_away(self) -> None:
        """Step on another thread, which may stand."""
        self._thread = threading.Thread(target=self.step)
        self._thread.start()

    def goes_on(self) -> None:
        assert self._thread is not None
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def release(self, limit: int | None) -> Store:
        self.limit = limit
        if "release" in self.trouble:
            raise self.trouble["release"]
        self.moved.append("away")
        return Store(self.moved, self.trouble)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.control.lose()


def test_a_job_stops_after_the_mini_batch_in_progress(job: Job) -> None:
    job.step()
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    assert job.heard[-1] == {"type": "suspended", "order": 1, "step": 2}
    job.order("resume", 2)
    job.goes_on()
    resumed = job.heard[-1]
    assert resumed["type"] == "resumed"
    assert (resumed["order"], resumed["step"]) == (2, 2)
    assert isinstance(resumed["pause_ns"], int)
    assert not job.control.due


def test_a_clock_is_kept_to_the_mini_batch(job: Job) -> None:
    job.order("suspend", 1, step=3)
    job.step()
    job.step()
    assert job.kinds() == []
    job.step_away()
    job.wait_for("suspended")
    assert job.heard[-1]["step"] == 3
    job.order("resume", 2)
    job.goes_on()


def test_a_clock_that_is_past_is_refused_at_once(job: Job) -> None:
    job.step()
    job.step()
    job.order("suspend", 1, step=2)
    assert job.heard == [{"type": "past", "order": 1, "step": 2}]
    job.step()  # It does not stand.


def test_a_clock_goes_past_when_the_count_jumps(job: Job) -> None:
    job.order("suspend", 1, step=2)
    job.tally.steps = 4
    job.control.boundary(5)
    assert job.heard == [{"type": "past", "order": 1, "step": 5}]


def test_a_clock_in_batches_is_past_once_optimizers_count(job: Job) -> None:
    job.order("suspend", 1, step=9)
    job.order("checkpoint", 1)
    job.tally.first_step = job.control.move_clock
    job.step()
    assert job.kinds()[-1] == "past"


def test_a_resume_withdraws_a_suspend_that_has_not_been_met(job: Job) -> None:
    job.order("suspend", 1, step=50)
    job.order("resume", 2)
    assert job.heard == [{"type": "resumed", "order": 2, "step": 0, "pause_ns": 0}]
    for _ in range(60):
        job.step()


def test_an_order_is_answered_again_and_an_older_one_never(job: Job) -> None:
    job.order("suspend", 5)
    job.step_away()
    job.wait_for("suspended")
    job.order("suspend", 5)
    job.wait_for("suspended", "suspended")
    job.order("resume", 4)
    job.order("suspend", 4)
    assert job.kinds() == ["suspended", "suspended"]
    job.order("resume", 6)
    job.goes_on()
    job.order("resume", 6)
    assert job.kinds()[2:] == ["resumed", "resumed"]


def test_the_stand_is_told_on_a_new_connection(job: Job) -> None:
    job.control.say("can", tier="observed", can=["suspend"])
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    before = len(job.heard)
    job.control.greet()
    job.hear()
    assert job.kinds()[before:] == ["can", "suspended"]
    job.order("resume", 2)
    job.goes_on()
    before = len(job.heard)
    job.control.greet()
    job.hear()
    assert job.kinds()[before:] == ["can"]


def test_release_is_only_for_who_stands(job: Job) -> None:
    job.order("release", 1)
    assert job.heard == [
        {"type": "failed", "order": 1, "what": "release", "error": "not suspended"}
    ]


def test_what_a_job_cannot_do_is_refused_and_what_nobody_knows_passed_over(job: Job) -> None:
    job.order("dance", 1)
    job.order("move", 2, host="h", port=1, token="t")
    assert job.kinds() == ["failed"]
    assert job.heard[0]["error"] == "this job cannot move, or not now"
    job.order("suspend", 3)
    job.step_away()
    job.wait_for("suspended")
    job.order("rescale", 4)
    job.wait_for("failed")
    job.order("resume", 5)
    job.goes_on()


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "suspend"},
        {"type": "suspend", "order": True},
        {"type": "suspend", "order": -1},
        {"type": ["suspend"], "order": 1},
        {"type": "suspend", "order": "1"},
    ],
)
def test_what_is_no_order_is_passed_over(job: Job, message: Message) -> None:
    job.control.take(message)
    job.step()
    assert job.heard == []


def test_a_step_that_is_no_number_is_refused(job: Job) -> None:
    job.order("suspend", 1, step="soon")
    assert job.heard[-1]["error"] == "step is 'soon', expected a whole number from 0"
    job.step()


def test_other_orders_are_done_where_the_job_stands(job: Job) -> None:
    job.control.on("checkpoint", lambda _: job.control.say("checkpointed", order=2))
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    job.order("checkpoint", 2)
    job.wait_for("suspended", "checkpointed")
    job.order("resume", 3)
    job.goes_on()


def test_what_ends_an_inner_wait_ends_the_outer(job: Job) -> None:
    def move(message: Message) -> None:
        job.control.say("sent", order=message["order"])
        job.control.wait("resume")

    job.control.on("move", move)
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    job.order("move", 2)
    job.wait_for("suspended", "sent")
    job.order("resume", 3)
    job.goes_on()
    assert job.kinds()[-1] == "resumed"


def test_a_handler_that_raises_is_told_and_the_job_goes_on(job: Job) -> None:
    def raises(_: Message) -> None:
        raise ValueError("no disk")

    job.control.on("checkpoint", raises)
    job.order("checkpoint", 1)
    job.step()
    assert job.heard[-1] == {
        "type": "failed",
        "order": 1,
        "what": "checkpoint",
        "error": "ValueError: no disk",
    }


def test_a_thread_of_the_engine_is_no_boundary(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.order("suspend", 1)
    stranger = threading._DummyThread.__new__(threading._DummyThread)
    monkeypatch.setattr(threading, "current_thread", lambda: stranger)
    job.step()  # It does not stand.
    assert job.control.due


def test_without_a_reporter_a_job_that_stands_goes_on_with_its_state(job: Job) -> None:
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    job.order("release", 2)
    job.wait_for("released")
    job.control.lose()
    job.goes_on()
    assert job.moved == ["away", "back"]
    job.order("suspend", 3)
    job.step()


def test_a_failed_release_leaves_the_job_suspended(job: Job) -> None:
    job.trouble["release"] = OSError(28, "No space left on device")
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    job.order("release", 2)
    job.wait_for("failed")
    assert job.heard[-1]["error"] == "OSError: [Errno 28] No space left on device"
    del job.trouble["release"]
    job.order("release", 3, max_bytes=50)
    job.wait_for("released")
    assert job.heard[-1] == {"type": "released", "order": 3, "moved": 7, "residue": 3}
    assert job.limit == 50
    job.order("resume", 4)
    job.goes_on()
    assert job.moved == ["away", "back"]


def test_a_resume_without_room_is_refused_and_may_be_asked_again(job: Job) -> None:
    job.order("suspend", 1)
    job.step_away()
    job.wait_for("suspended")
    job.order("release", 1)
    job.wait_for("released")
    assert job.limit == 100
    job.trouble["take_back"] = MemoryError("device")
    job.order("resume", 2)
    job.wait_for("failed")
    assert job.control.stands
    job.order("release", 3)  # It is away already.
    job.wait_for("released")
    job.order("resume", 4)
    job.goes_on()
    assert job.moved == ["away", "back"]


def test_pauses_are_no_part_of_a_mini_batch(job: Job) -> None:
    job.tally.ends.extend([10, 20, 30])
    job.tally.pass_over(1_000)
    assert list(job.tally.ends) == [1_010, 1_020, 1_030]


def test_answers_to_one_order_are_bounded(job: Job) -> None:
    job.order("suspend", 1, step=9)
    for _ in range(3 * ANSWERS_MAX):
        job.control.say("past", order=1, step=9)
    before = len(job.heard)
    job.order("suspend", 1, step=9)
    assert len(job.heard) - before == ANSWERS_MAX


def test_errors_are_told_in_bounded_texts() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Mute()) == "Mute"
    assert describe(ValueError()) == "ValueError: no message"
    with pytest.raises(AssertionError) as failed:
        _fail_silently()
    assert describe(failed.value).startswith("AssertionError: in _fail_silently, test_job_control")
    assert len(describe(ValueError("x" * 9_000))) == TEXT_CHARACTERS_MAX


def test_signals_are_handled_by_the_script_while_it_stands() -> None:
    job = Job()
    seen: list[object] = []

    def handler(*_: object) -> None:
        seen.append(list(job.moved))
        job.order("resume", 3)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        job.order("suspend", 1)

        def hear_and_play() -> None:
            job.hear()
            play(job)

        job.control.wake = hear_and_play
        job.step()  # On the main thread, where handlers run.
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [["away", "back"]]
    assert job.moved == ["away", "back", "away", "back"]
    assert job.kinds() == ["suspended", "released", "resumed"]


def play(job: Job) -> None:
    """Be the agent: release once suspended, send a signal once released."""
    if job.kinds() == ["suspended"]:
        threading.Thread(target=job.order, args=("release", 2)).start()
    elif job.kinds() == ["suspended", "released"]:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_a_signal_that_does_not_wake_the_training_thread_is_handled_all_the_same() -> None:
    """As when it comes after the interpreter's last look for signals and before the wait."""
    control = Control()

    class Told(Exception):  # noqa: N818
        pass

    def handler(*_: object) -> None:
        raise Told

    def tell() -> None:  # To this thread itself, so that the one that waits sleeps on.
        while not control._changed._waiters:  # type: ignore[attr-defined]
            os.sched_yield()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    telling = threading.Thread(target=tell)
    try:
        telling.start()
        with pytest.raises(Told):
            control.wait("resume")
    finally:
        signal.signal(signal.SIGUSR1, before)
        telling.join()


def test_who_has_no_device_gives_nothing_back_and_no_other_is_known_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(suspender, "DRIVER", "/no such library.so")
    store = suspender._release(None)
    assert (store.moved, store.residue(), store.peek("storage")) == (0, 0, "storage")
    store.take_back()
    monkeypatch.setattr(suspender, "DRIVER", "libc.so")
    with pytest.raises(RuntimeError, match="without PyTorch"):
        suspender._release(None)


def _fail_silently() -> None:
    raise AssertionError
