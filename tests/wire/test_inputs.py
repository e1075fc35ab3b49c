"""Notes of what was decided on: small, and read back as they were."""

from __future__ import annotations

from skep.perf import outlook
from skep.units import Duration, Instant, seconds
from skep.wire import subjects
from skep.wire.advice import FamilyScale, JobAdvice, JobPace, Outlook, QueueAdvice, ScalePoint
from skep.wire.inputs import NOTE_BYTES_MAX, Input, InputNotes, NotesReader
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat, NodeReport

AT = 1_700_000_000_000_000_000


def at(later: int) -> Instant:
    return Instant(AT + later)


def test_notes_are_read_back_record_by_record() -> None:
    notes, reader = InputNotes(), NotesReader()
    beat = Heartbeat(node="n1", identity="i", at=at(1))
    advice = QueueAdvice(
        at=at(2), expires_at=at(9), jobs=(JobAdvice(job="j1", why=Reason.ARRIVAL),)
    )
    notes.restarted(at(0))
    notes.tick(at(5), led=False)
    notes.tick(at(5), led=True)
    notes.streamed(subjects.NODE, 12, at(7), led=True)
    notes.streamed(subjects.ADMISSION, 3, at(7), led=False)
    notes.heard(beat, at(8))
    notes.heard(advice, at(9))
    taken = notes.take()
    assert reader.read(taken) == [
        Input(at(0), restarted=True),
        Input(at(5), led=False),
        Input(at(5)),
        Input(at(7), stream=subjects.NODE, sequence=12),
        Input(at(7), stream=subjects.ADMISSION, sequence=3, led=False),
        Input(at(8), message=beat),
        Input(at(9), message=advice),
    ]
    assert notes.take() == b""

    again = QueueAdvice(at=at(10), expires_at=at(20), jobs=advice.jobs)
    notes.heard(again, at(10))
    short = notes.take()
    assert len(short) < 60
    assert reader.read(short) == [Input(at(10), message=again)]


def test_advice_is_noted_by_what_is_new_in_it() -> None:
    notes, reader = InputNotes(), NotesReader()
    one, two = (JobAdvice(job=f"j{n}", why=Reason.ARRIVAL) for n in (1, 2))
    three = JobAdvice(job="j3", why=Reason.PREDICTED_SHORTEST, remaining=seconds(7))
    again = JobAdvice(job="j1", why=Reason.PREDICTED_SHORTEST, remaining=seconds(1))
    sizes = []
    for jobs in ((one, two), (two, one, three), (three, two), (again, two), (), (two,)):
        advice = QueueAdvice(at=at(1), expires_at=at(5), jobs=jobs)
        notes.heard(advice, at(2))
        taken = notes.take()
        sizes.append(len(taken))
        assert reader.read(taken) == [Input(at(2), message=advice)]
    assert sizes[2] < sizes[1]

    for job in ("x", "j0", "j01"):
        strange = QueueAdvice(
            at=at(1), expires_at=at(5), jobs=(JobAdvice(job=job, why=Reason.ARRIVAL),)
        )
        notes.heard(strange, at(2))
        assert reader.read(notes.take()) == [Input(at(2), message=strange)]


def test_a_start_tells_which_snapshot_it_was_from() -> None:
    notes = InputNotes()
    notes.snapshot = 70
    notes.restarted(at(0))
    taken = notes.take()
    assert NotesReader().read(taken) == [Input(at(0), restarted=True, snapshot=70)]
    assert NotesReader().start(taken) == 70


def test_a_message_of_a_later_version_is_kept_as_text() -> None:
    notes = InputNotes()
    notes.heard(NodeReport(node="n", at=at(0), jobs=()), at(0))
    (found,) = NotesReader().read(notes.take())
    assert "node-report" in found.unknown


def test_what_is_too_long_for_a_record_is_noted_as_such_and_forgotten() -> None:
    notes, reader = InputNotes(), NotesReader()
    jobs = tuple(JobAdvice(job=f"j{n}", why=Reason.ARRIVAL) for n in range(1, 10_000))
    few = QueueAdvice(at=at(1), expires_at=at(5), jobs=jobs[:2])
    names = "x" * NOTE_BYTES_MAX
    long = Heartbeat(node=names, identity="b", at=at(1))
    for message in (few, QueueAdvice(at=at(1), expires_at=at(5), jobs=jobs), few, long):
        notes.heard(message, at(2))
    assert notes.size < NOTE_BYTES_MAX
    first, second, third, fourth = reader.read(notes.take())
    assert first == third == Input(at(2), message=few)
    assert second.unknown == fourth.unknown == '{"type":"too-long"}'


def test_the_longest_outlook_is_noted_whole() -> None:
    pace = JobPace(
        job="j" + "9" * 18,
        attempt=10**9,
        steps=10**15,
        rate_milli=10**12,
        utilisation=1000,
        memory=10**15,
        remaining=Duration(10**18),
    )
    point = ScalePoint(gpus=10**5, nodes=10**4, step_ns=Duration(10**15))
    family = FamilyScale(family="f" * 64, gpu_type="g" * 20, points=(point,))
    told = Outlook(
        at=at(1), jobs=(pace,) * outlook.JOBS_MAX, families=(family,) * outlook.POINTS_SENT_MAX
    )
    notes = InputNotes()
    notes.heard(told, at(2))
    assert NotesReader().read(notes.take()) == [Input(at(2), message=told)]
