"""Windows: what is refused, which jobs keep away, who leaves when one begins, and what is over."""

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.perf.fitted import FitsKept
from skep.policy.windows import WINDOWS_MAX, known_length, problem
from skep.units import Instant, after, seconds
from skep.wire.admin import SetVcs
from skep.wire.facts import JobBound, JobRequeued, JobStopping
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import SizeHint
from skep.wire.windows import (
    CancelWindow,
    ReserveNodes,
    Window,
    WindowBegan,
    WindowBooked,
    WindowEnded,
    WindowRefused,
)
from tests.kit import (
    Driver,
    admitted,
    allocator,
    at,
    exited,
    facts_of,
    heartbeat,
    joined,
    spec,
    started,
    vcs,
)


def window(begins: float, ends: float, **changes: object) -> Window:
    given = {"name": "fans", "nodes": ("node-1",), "begins": at(begins), "ends": at(ends)}
    return Window(**(given | changes))  # type: ignore[arg-type]


def heard(driver: Driver[AllocatorMachine], second: float) -> None:
    """Have both nodes speak, so that neither counts as lost."""
    for name in ("node-1", "node-2"):
        driver(heartbeat(name), second)


def two_nodes() -> Driver[AllocatorMachine]:
    driver = allocator(joined("node-1", gpus=2), joined("node-2", gpus=2))
    driver(SetVcs(vcs=vcs(nlp=4, cv=0)))
    return driver


@pytest.mark.parametrize(
    "asked, why",
    [
        (window(-500, 100), Reason.WINDOW_PAST),
        (window(10, 10), Reason.WINDOW_PAST),
        (window(10, 32 * 86_400), Reason.WINDOW_TOO_LONG),
        (window(400 * 86_400, 400 * 86_400 + 9), Reason.WINDOW_TOO_FAR),
        (window(10, 20, nodes=("node-9",)), Reason.UNKNOWN_NODE),
        (window(10, 20, nodes=("node-1", "node-1")), Reason.DUPLICATE_NODE),
        (window(10, 20, nodes=()), Reason.BAD_VALUE),
        (window(10, 20, vc="speech"), Reason.UNKNOWN_VC),
        (window(10, 20, name="no name"), Reason.BAD_VALUE),
        (window(50, 70), Reason.WINDOWS_OVERLAP),
        (window(90, 99, name="other"), Reason.NAME_TAKEN),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(asked: Window, why: Reason) -> None:
    driver = two_nodes()
    driver(ReserveNodes(window=window(60, 80, name="other")), 0)

    (refused,) = facts_of(driver(ReserveNodes(window=asked), 0))

    assert isinstance(refused, WindowRefused)
    assert refused.why is why
    assert "\n" not in refused.text


def test_the_same_window_again_changes_nothing_and_there_are_only_so_many() -> None:
    driver = two_nodes()
    (booked,) = facts_of(driver(ReserveNodes(window=window(60, 80)), 0))
    assert isinstance(booked, WindowBooked)

    assert facts_of(driver(ReserveNodes(window=window(60, 80)), 1)) == []
    many = {str(number): window(1, 2) for number in range(WINDOWS_MAX)}
    wrong = problem(window(60, 80), Instant(0), many, ("node-1",), ())
    assert wrong is not None
    assert wrong.why is Reason.TOO_MANY_WINDOWS


def test_a_job_that_would_run_into_a_window_goes_elsewhere_or_waits() -> None:
    driver = two_nodes()
    driver(ReserveNodes(window=window(60, 80)), 0)

    for number in (1, 2, 3):
        driver(admitted(number, gpus=2, time=100), number)
    driver(admitted(4, gpus=2, time=20), 4)

    jobs = driver.machine.state.jobs
    assert list(jobs["j1"].members) == ["node-2"]
    assert jobs["j2"].waits == (Reason.WAITS_FOR_WINDOW, "fans")
    assert list(jobs["j4"].members) == ["node-1"]  # It is over by then, and passes the others.


def test_jobs_leave_when_a_window_begins_and_the_node_is_back_after_it() -> None:
    driver = two_nodes()
    for number in (1, 2):
        driver(admitted(number, gpus=2), 0)
        driver(started(f"j{number}", node=f"node-{number}"), 1)
    driver(ReserveNodes(window=window(7200, 7300)), 2)
    driver(admitted(3, gpus=2), 3)

    heard(driver, 7199)

    begun = facts_of(driver.tick(7200))

    assert WindowBegan(name="fans", at=at(7200)) in begun
    stopped = [fact for fact in begun if isinstance(fact, JobStopping)]
    assert [(fact.job, fact.why) for fact in stopped] == [("j1", Reason.MAINTENANCE)]
    gone = facts_of(driver(exited("j1", outcome=Outcome.STOPPED), 7201))
    again = [fact for fact in gone if isinstance(fact, JobRequeued)]
    assert [(fact.why, fact.counted) for fact in again] == [(Reason.MAINTENANCE, False)]
    assert not [fact for fact in gone if isinstance(fact, JobBound)]

    heard(driver, 7299)
    over = facts_of(driver.tick(7300))
    assert WindowEnded(name="fans", at=at(7300)) in over
    assert [fact.job for fact in over if isinstance(fact, JobBound)] == ["j1"]


def test_a_window_of_a_vc_is_for_its_jobs() -> None:
    driver = allocator(joined("node-1", gpus=2), joined("node-2", gpus=2))
    driver(SetVcs(vcs=vcs(nlp=2, cv=2)))
    driver(ReserveNodes(window=window(0, 100, vc="cv", nodes=("node-1", "node-2"))), 0)

    driver(admitted(1, vc="nlp", gpus=2), 1)
    driver(admitted(2, vc="cv", gpus=2), 2)

    jobs = driver.machine.state.jobs
    assert jobs["j2"].attempt == 1
    assert jobs["j1"].waits == (Reason.WAITS_FOR_WINDOW, "fans")
    over = facts_of(driver(CancelWindow(name="fans"), 50))
    assert [fact.job for fact in over if isinstance(fact, JobBound)] == ["j1"]


def test_a_restart_knows_the_windows() -> None:
    driver = two_nodes()
    driver(ReserveNodes(window=window(60, 80)), 0)

    driver.restart(10)

    assert driver.machine.wake_at() is not None
    heard(driver, 59)
    assert WindowBegan(name="fans", at=at(60)) in facts_of(driver.tick(60))
    assert driver.machine.state.nodes["node-1"].usable is False
    heard(driver, 79)
    driver.tick(80)
    assert driver.machine.state.nodes["node-1"].usable


def test_what_is_known_of_a_length_is_the_limit_or_nine_in_ten_like_it() -> None:
    fits = FitsKept()
    assert known_length(spec(), 0, fits) is None
    assert known_length(spec(time=60), 0, fits) == seconds(60)
    told = spec(time=600, size=SizeHint(run_time=10.0))
    long = known_length(told, 0, fits)
    assert long is not None
    assert after(Instant(0), seconds(10)) < long < seconds(60)
