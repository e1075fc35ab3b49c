"""The gateway's fold: facts become rows, the same in whatever order the streams arrive."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.ledger.snapshot import Kept, keep
from skep.wire import codec
from skep.wire.admin import DrainNode
from skep.wire.facts import (
    ClusterRefused,
    End,
    EpochBegan,
    JobEnded,
    JobQueued,
    JobRan,
    MemberGone,
    Repeated,
)
from skep.wire.node import MemberStepped, Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import SPEC_BYTES_MAX, Problem, SizeHint
from skep_services.gateway import fold as fold_module
from skep_services.gateway.cells import vcs_view
from skep_services.gateway.fold import Changes, Fold
from skep_services.gateway.holders import users
from skep_services.gateway.rows import ATTEMPTS_KEPT, Job, State
from tests.gateway_kit import Cluster, Told, bound, documents, facts, fresh_fold, job_of, texts
from tests.gateway_walk import STEPS, agrees, walk
from tests.kit import T0, TRACE, at, heartbeat, joined, member, spec

BAD = b'{"name": "x", "vc": "nlp", "command": ["true"], "resorces": {}}'


def one_job() -> Cluster:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.join(joined())
    cluster.submit(spec(size=SizeHint(mini_batches=100)), key="key-1")
    return cluster


# --- one life ------------------------------------------------------------------------------------


def test_a_job_goes_from_submitted_to_its_end() -> None:
    fold = fresh_fold()
    raw = codec.encode(spec())
    fold.apply(codec.Submission(job="j1", vc="nlp", raw=raw, at=at(1), trace=TRACE), at(1))
    row = job_of(fold, "j1").row
    assert (row.state, row.vc, row.submitted_at) == ("submitted", "nlp", at(1))

    cluster = one_job()
    row = job_of(cluster.fold, "j1").row
    assert (row.state, row.place, row.attempt, row.bound_at) == ("bound", "node-1:0", 1, at(1))
    assert (row.name, row.gpus, row.total_steps, row.why) == ("train", 1, 100, "best-fit-one-node")

    cluster.runs("j1")
    assert (row.state, row.started_at) == ("running", at(3))
    assert list(cluster.fold.active) == ["j1"]

    cluster.exits("j1", steps=100, step_ns=5)
    job = job_of(cluster.fold, "j1")
    assert (row.state, row.ended_at, row.steps, row.why) == ("succeeded", at(9), 100, "succeeded")
    assert job.trace == TRACE
    assert job.key == "key-1"
    assert cluster.fold.active == {}
    [attempt] = job.attempts
    assert (attempt.outcome, attempt.ended_why, attempt.ended_at) == (
        "succeeded",
        "succeeded",
        at(9),
    )
    assert (attempt.first_step_at, attempt.steps, attempt.step_ns) == (at(3.5), 100, 5)
    [part] = attempt.members
    assert (part.node, part.devices, part.started_at, part.ended_at) == (
        "node-1",
        ((0,),),
        at(3),
        at(9),
    )
    assert part.outcome == "succeeded"
    assert part.exits[0].code == 0


def test_every_step_of_a_life_is_an_event() -> None:
    cluster = one_job()
    cluster.runs("j1")
    cluster.exits("j1")
    events = cluster.fold.take().events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [(event.kind, event.text) for event in events if event.job == "j1"] == [
        ("admitted", "admitted: train, 1 GPU"),
        ("job-queued", "waits for GPUs"),
        ("job-bound", "placed on node-1:0: the fullest node that holds the whole gang"),
        ("member-ran", "runs on node-1"),
        ("job-ran", "every member runs"),
        ("member-stepped", "first mini-batch on node-1"),
        ("member-gone", "succeeded on node-1"),
        ("job-ended", "succeeded: every process exited with status 0"),
    ]
    assert {event.vc for event in events if event.job} == {"nlp"}
    assert cluster.fold.take().events == []


def test_an_attempt_that_failed_is_kept_and_the_next_one_shown() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.join(joined())
    cluster.submit(spec(retries=1))
    cluster.runs("j1")
    cluster.exits("j1", second=5, outcome=Outcome.EXITED, detail="status 3", steps=7)
    job = job_of(cluster.fold, "j1")
    assert (job.row.state, job.row.attempt, job.row.started_at) == ("bound", 2, None)
    first, second = job.attempts
    assert (first.outcome, first.ended_why, first.ended_at, first.steps) == (
        "requeued",
        "exited-nonzero",
        at(5),
        7,
    )
    assert second.outcome is None
    cluster.runs("j1", attempt=2, second=6)
    cluster.exits("j1", attempt=2, outcome=Outcome.EXITED, detail="status 3")
    assert job.row.state == "failed"
    assert job.detail == "node-1: status 3"
    assert "waits for another attempt" in " ".join(texts(cluster.fold))


def test_a_job_cancelled_in_its_queue_never_had_an_attempt() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    job = cluster.submit(spec())
    assert job_of(cluster.fold, job).row.why == "waits-for-nodes"
    cluster.cancel(job)
    found = job_of(cluster.fold, job)
    assert (found.row.state, found.row.why, found.attempts) == ("cancelled", "cancelled", [])
    assert found.cancel_asked
    assert [text for text in texts(cluster.fold, job) if "cancel" in text] == [
        "cancellation asked for",
        "cancelled: cancelled on request",
    ]


def test_a_job_cancelled_between_attempts_keeps_how_the_last_one_ended() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.join(joined(gpus=1))
    low = cluster.submit(spec(opportunistic=True))
    cluster.runs(low)
    cluster.submit(spec())  # Takes the GPU from the opportunistic job.
    assert job_of(cluster.fold, low).row.state == "stopping"
    cluster.exits(low, second=5, outcome=Outcome.STOPPED)
    assert job_of(cluster.fold, low).row.state == "queued"
    cluster.cancel(low, 6)
    job = job_of(cluster.fold, low)
    assert job.row.state == "cancelled"
    assert [attempt.outcome for attempt in job.attempts] == ["requeued"]


def test_a_refused_submission_is_kept_with_its_problems() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.submit(BAD)
    job = job_of(cluster.fold, "j1")
    assert (job.row.state, job.row.name, job.row.why) == ("refused", "x", "unknown-key")
    assert job.row.ended_at == at(1)
    assert job.problems[0].suggestion == "did you mean `resources`?"
    changes = cluster.fold.take()
    assert changes.specs == {1: BAD}
    assert "$.resorces" in changes.events[-1].text


def test_a_repeated_submission_is_the_original_job() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.submit(spec(), key="same")
    cluster.submit(spec(), key="same")
    assert job_of(cluster.fold, "j2") is job_of(cluster.fold, "j1")
    assert job_of(cluster.fold, "j1").repeated_by == ["j2"]
    cluster.fold.apply(cluster.told[-1][1], T0)  # Told again, it says nothing more.
    assert job_of(cluster.fold, "j1").repeated_by == ["j2"]
    assert list(cluster.fold.active) == ["j1"]


def test_the_spec_is_stored_once_and_the_admitted_one_wins() -> None:
    cluster = one_job()
    stored = cluster.fold.take().specs
    assert msgspec.json.decode(stored[1])["size"] == {"mini_batches": 100}
    cluster.runs("j1")
    assert cluster.fold.take().specs == {}
    raw = codec.Submission(job="j1", vc="nlp", raw=b"{}", at=T0)
    cluster.fold.apply(raw, T0)
    assert cluster.fold.take().specs == {}


def test_what_is_too_large_to_be_a_spec_is_not_stored() -> None:
    fold = fresh_fold()
    raw = b" " * (SPEC_BYTES_MAX + 1)
    fold.apply(codec.Submission(job="j1", vc="nlp", raw=raw, at=T0), T0)
    assert fold.take().specs == {}
    assert job_of(fold, "j1").row.state == "submitted"


# --- GPUs ----------------------------------------------------------------------------------------


def taken(fold: Fold, node: str = "node-1") -> dict[int, tuple[str, int]]:
    there = users(fold.state, fold.state.nodes[node])
    return {index: (one.job, one.rank) for index, (one, *_) in there.items()}


def test_a_gang_holds_its_gpus_until_each_part_is_gone() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=8)
    cluster.join(joined("node-1"))
    cluster.join(joined("node-2"))
    cluster.submit(spec(gpus=2, workers=3))
    row = job_of(cluster.fold, "j1").row
    assert row.place == "node-1:0,1,2,3 node-2:0,1"
    assert taken(cluster.fold) == {0: ("j1", 0), 1: ("j1", 0), 2: ("j1", 1), 3: ("j1", 1)}
    assert taken(cluster.fold, "node-2") == {0: ("j1", 2), 1: ("j1", 2)}
    cluster.runs("j1")
    cluster.exits("j1")
    assert taken(cluster.fold) == taken(cluster.fold, "node-2") == {}


def test_a_lost_node_keeps_its_gpus_taken_until_it_confirms() -> None:
    cluster = one_job()
    cluster.runs("j1")
    cluster.tick(50)  # 40 s without a heartbeat.
    fold = cluster.fold
    assert lost(fold)
    job = job_of(fold, "j1")
    assert (job.row.state, job.row.why) == ("queued", "waits-for-cells")
    assert (job.attempts[0].ended_why, job.attempts[0].members[0].free) == ("node-lost", False)
    assert taken(fold) == {0: ("j1", 0)}
    cluster.heard(heartbeat(), 51)
    assert not lost(fold)
    assert job.row.attempt == 2
    assert taken(fold) == {0: ("j1", 0), 1: ("j1", 0)}
    cluster.exits("j1", attempt=1, second=52, outcome=Outcome.STOPPED)
    assert taken(fold) == {1: ("j1", 0)}
    assert job.attempts[0].members[0].free
    said = " / ".join(texts(fold))
    assert "its GPUs stay taken until the node confirms" in said
    assert "node-1 is back" in said
    assert "node-1 confirmed the end of its part" in said


def lost(fold: Fold) -> bool:
    return fold.state.nodes["node-1"].lost


@given(STEPS)
def test_the_fold_shows_what_the_allocator_knows(steps: list[tuple[str, int, int]]) -> None:
    walk(steps)


# --- any order between streams -----------------------------------------------------------------


def interleaved(told: list[Told], picks: list[int]) -> list[Told]:
    """Return the same events with the order within each stream kept and between them drawn."""
    queues: dict[str, list[Told]] = {}
    for stream, event in told:
        queues.setdefault(stream, []).append((stream, event))
    order: list[Told] = []
    turn = 0
    while queues:
        streams = sorted(queues)
        stream = streams[picks[turn % len(picks)] % len(streams)]
        order.append(queues[stream].pop(0))
        if not queues[stream]:
            del queues[stream]
        turn += 1
    return order


@example(  # What a lost node may still run holds cells, ended as it is, and another needs them.
    [("submit", 0, 1), ("submit", 2, 1), ("cancel", 0, 1), ("lose", 0, 1), ("exit", 0, 1)], [0]
)
@given(STEPS, st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_streams_may_arrive_in_any_order(
    steps: list[tuple[str, int, int]], picks: list[int]
) -> None:
    cluster = walk([("submit", 1, 2), ("start", 0, 1), *steps])
    cluster.submit(BAD)
    cluster.submit(spec(), key="same")
    cluster.submit(spec(), key="same")
    other = fresh_fold()
    for _, event in interleaved(cluster.told, picks):
        other.apply(event, at(0))
    assert documents(other) == documents(cluster.fold)


@pytest.mark.parametrize("first", ["SUBMIT", "ADMISSION", "ALLOC", "NODE"])
def test_one_whole_stream_may_come_before_all_others(first: str) -> None:
    cluster = one_job()
    cluster.runs("j1")
    cluster.exits("j1")
    cluster.submit(BAD)
    other = fresh_fold()
    for _, event in sorted(cluster.told, key=lambda one: one[0] != first):
        other.apply(event, at(0))
    assert documents(other) == documents(cluster.fold)


def test_a_job_only_an_agent_spoke_of_is_not_shown() -> None:
    fold = fresh_fold()
    stepped = MemberStepped(node="node-1", identity="x", job="j9", attempt=1, at=at(4))
    fold.apply(stepped, at(4))
    assert fold.find("j9") is None
    assert fold.active == {}
    later = msgspec.structs.replace(stepped, at=at(3), node="node-2")
    fold.apply(later, at(4))
    queued = JobQueued(job="j9", spec=spec(), submitted_at=at(1))
    fold.apply(facts("allocator", queued, bound("j9")), at(1))
    assert job_of(fold, "j9").attempts[0].first_step_at == at(3)


def test_a_job_has_its_owner_whichever_stream_tells_of_it_first() -> None:
    """Who repeats a submission is answered by it: without an owner the job would be another's."""
    fold = fresh_fold()
    queued = JobQueued(job="j9", spec=spec(), submitted_at=at(1), owner="ann")
    fold.apply(facts("allocator", queued), at(1))
    assert job_of(fold, "j9").row.owner == "ann"


# --- bounds and odd input -------------------------------------------------------------------------


def test_names_that_are_no_job_ids_are_counted_and_left() -> None:
    fold = fresh_fold()
    stepped = MemberStepped(node="node-1", identity="x", job="../etc", attempt=1, at=at(4))
    fold.apply(stepped, at(4))
    fold.apply(facts("allocator", bound("job")), at(1))
    fold.apply(facts("admission", Repeated(job="x", original="y", vc="nlp")), at(1))
    fold.apply(codec.Submission(job="x", vc="nlp", raw=b"", at=T0), T0)
    fold.apply(codec.Unreadable(subject="s", text="t"), T0)
    assert fold.unreadable == 6
    assert fold.find("../etc") is None
    assert fold.find("j01") is None


def test_what_no_reader_needs_leaves_nothing() -> None:
    fold = fresh_fold()
    fold.apply(codec.CancelRequest(vc="nlp", raw=b"", at=T0), T0)
    assert fold.take() == Changes({}, {}, {}, [], [], [], [], [], {})


def test_epochs_and_operators_wishes_are_events() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    cluster.join(joined())
    cluster.tell("ALLOC", facts("allocator", EpochBegan(epoch=2, owner="host-1")))
    cluster.tell("ADMISSION", facts("admission", EpochBegan(epoch=3, owner="host-2")))
    drain = DrainNode(node="node-1")
    cluster.tell("ADMIN", drain)
    cluster.heard(drain, 2)
    cluster.heard(DrainNode(node="node-1", drain=False), 3)
    assert texts(cluster.fold) == [
        "an operator asked to set the virtual clusters nlp",
        "virtual clusters and their cells: nlp nothing",
        "the agent of node-1 started (incarnation 1)",
        "node-1 is in use: 4 GPUs, 64 CPUs",
        "virtual clusters and their cells: nlp 1×cpux4/node",
        "host-1 began epoch 2",
        "host-2 began epoch 3",
        "an operator asked to drain node-1",
        "node-1 takes no further work",
        "node-1 is open for work",
    ]


def test_only_the_newest_attempts_are_kept() -> None:
    fold = fresh_fold()
    queued = JobQueued(job="j1", spec=spec(), submitted_at=at(1))
    fold.apply(facts("allocator", queued), at(1))
    for attempt in range(1, ATTEMPTS_KEPT + 6):
        fold.apply(facts("allocator", bound(attempt=attempt)), at(1))
    attempts = job_of(fold, "j1").attempts
    assert [attempts[0].attempt, len(attempts)] == [6, ATTEMPTS_KEPT]


def test_a_wide_gang_makes_a_short_event() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=8)
    for number in range(1, 7):
        cluster.join(joined(f"node-{number}", 1))
    cluster.submit(spec(workers=6))
    [line] = [text for text in texts(cluster.fold) if text.startswith("placed")]
    assert "node-4:0 and 2 more nodes: no single node" in line


def test_ended_jobs_leave_memory_once_written_and_come_back_when_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_module, "RECENT_MAX", 1)
    store: dict[int, Job] = {}
    cluster = Cluster(Fold(store.get))
    fold = cluster.fold
    cluster.set_vcs(nlp=4)
    cluster.join(joined())
    for number in (1, 2):
        cluster.submit(spec())
        cluster.runs(f"j{number}")
        cluster.exits(f"j{number}")
    fold.forget()
    assert sorted(fold.recent) == ["j1", "j2"]  # Not written yet.
    for job in fold.take().jobs.values():
        store[job.sequence] = msgspec.convert(msgspec.to_builtins(job), Job)
    fold.forget()
    assert sorted(fold.recent) == ["j2"]
    assert job_of(fold, "j1").row.state is State.SUCCEEDED
    assert sorted(fold.recent) == ["j2"]  # Looking at it does not bring it back.
    late = MemberGone(job="j1", attempt=1, node="node-1", outcome=Outcome.SUCCEEDED, detail="late")
    fold.apply(facts("allocator", late), at(20))
    assert fold.recent["j1"].attempts[0].members[0].detail == "late"
    assert fold.find("j3") is None


def test_a_restored_fold_goes_on() -> None:
    cluster = one_job()
    again = fresh_fold()
    again.restore(cluster.fold.active.values(), cluster.fold.heard.values(), 1)
    kept = [codec.encode(piece) for piece in keep(cluster.fold.state)]
    again.restore_state([msgspec.json.decode(piece, type=Kept) for piece in kept], 0)
    ran = JobRan(job="j1", attempt=1, at=at(3))
    again.apply(facts("allocator", ran), at(3))
    assert job_of(again, "j1").row.state == "running"
    end = JobEnded(job="j1", end=End.FAILED, why=Reason.TIME_LIMIT, attempts=1, at=at(9))
    again.apply(facts("allocator", end), at(9))
    [(job, ended_at)] = again.take().ended
    assert (job.row.job, job.row.state, ended_at) == ("j1", State.FAILED, at(9))


def test_parts_are_shown_in_the_order_of_their_ranks() -> None:
    fold = fresh_fold()
    queued = JobQueued(job="j1", spec=spec(workers=2), submitted_at=at(1))
    members = (member("node-2", (0,), first_rank=1), member("node-1", (0,)))
    fold.apply(facts("allocator", queued, bound(members=members)), at(1))
    parts = job_of(fold, "j1").attempts[0].members
    assert [(part.node, part.first_rank) for part in parts] == [("node-1", 0), ("node-2", 1)]


def test_a_cluster_that_cannot_be_is_an_event() -> None:
    fold = fresh_fold()
    wrong = Problem(path="$.vcs", reason=Reason.INFEASIBLE, text="2 racks short")
    fold.apply(facts("allocator", ClusterRefused(problems=(wrong,))), T0)
    [event] = fold.take().events
    assert event.text == "what an operator asked for is refused: $.vcs: 2 racks short"
    assert event.reason == "infeasible"


# --- shared GPUs ---------------------------------------------------------------------------------


def test_who_shares_gpus_with_whom_is_told_and_counted_once() -> None:
    cluster = walk([("submit", 1, 1), ("start", 0, 1), ("submit", 1, 3), ("pack", 0, 1)])
    rows = {name: job_of(cluster.fold, name).row for name in ("j1", "j2")}
    assert (rows["j1"].beside, rows["j2"].beside) == ((), ()), "three workers need three GPUs"
    cluster = walk([("submit", 1, 2), ("start", 0, 1), ("submit", 1, 2), ("pack", 0, 1)])
    rows = {name: job_of(cluster.fold, name).row for name in ("j1", "j2")}
    assert (rows["j1"].beside, rows["j2"].beside) == (("j2",), ("j1",))
    assert (rows["j1"].share, rows["j2"].share, rows["j2"].why) == (0.5, 0.5, "packed")
    assert (rows["j2"].class_in_force, rows["j2"].place) == ("guaranteed", "node-1:0,1")
    assert vcs_view(cluster.fold, "nlp")[0]["used"] == 2
    said = " / ".join(texts(cluster.fold))
    assert "shares GPUs on node-1 with j1, and has 50% of their memory" in said
    cluster.exits("j1", second=50)
    agrees(cluster)
    assert (rows["j2"].beside, rows["j2"].share, rows["j2"].class_in_force) == (
        (),
        None,
        "guaranteed",
    )
    assert vcs_view(cluster.fold, "nlp")[0]["used"] == 2
