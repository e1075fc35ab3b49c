"""Random events of a small cluster, after each of which the gateway shows what is so."""

from __future__ import annotations

from hypothesis import strategies as st

from skep.cells.check import check_cells
from skep.cells.state import Cells
from skep.ledger import sharing
from skep.ledger.job_state import Part
from skep.ledger.snapshot import keep
from skep.wire import codec
from skep.wire.admin import DrainNode, QuarantineGpu
from skep.wire.changes import AskPack, AskUnpack
from skep.wire.node import Manner, MemberChanged, MemberKnown, Outcome, Tier
from skep_services.gateway.cells import cells_view, vcs_view
from skep_services.gateway.fold import Fold
from skep_services.gateway.frozen import frozen
from skep_services.gateway.holders import users
from skep_services.gateway.rows import PLACED
from tests.gateway_kit import Cluster, job_of
from tests.kit import at, heartbeat, joined, spec
from tests.unit.test_allocator_changes import ask


def agrees(cluster: Cluster) -> None:
    """Assert that the fold shows what the allocator knows."""
    machine, fold = cluster.allocator.machine, cluster.fold
    # A job with a reservation still waits.
    states = {
        name: job.state.value.replace("reserved", "queued")
        for name, job in machine.state.jobs.items()
    }
    assert {name: job.row.state.value for name, job in fold.active.items()} == states
    assert fold.misfits == 0
    pieces = [[codec.encode(piece) for piece in keep(each)] for each in (fold.state, machine.state)]
    assert pieces[0] == pieces[1]
    there = [device for node in fold.state.nodes.values() for device in users(fold.state, node)]
    for name, job in machine.state.jobs.items():
        row = job_of(fold, name).row
        assert sorted(row.beside) == sorted(sharing.due(machine.state, job).beside), name
    counted = sum(one["used"] + one["borrowed"] for one in vcs_view(fold, ""))
    assert counted <= len(there), "counted once"
    agree_on_cells(machine.state.cells, fold)


def agree_on_cells(told: Cells, fold: Fold) -> None:
    """Assert that rows and pictures of the cells show what the allocator's cells are."""
    made = fold.state.cells
    check_cells(made)
    shown = [cells_view(each, "") for each in (made, frozen(made))]
    assert shown[0] == shown[1]
    for name, hold in told.holds.items():
        job, _, attempt = name.rpartition(".")
        row = job_of(fold, job).row
        if not hold.claims and row.attempt == int(attempt) and row.state in PLACED:
            assert row.class_in_force == ("guaranteed" if hold.guaranteed else "opportunistic")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "start",
                "exit",
                "fail",
                "cancel",
                "lose",
                "beat",
                "drain",
                "borrow",
                "cells",
                "quarantine",
                "join",
                "pack",
                "pack",
                "unpack",
                "answer",
            ]
        ),
        st.integers(0, 5),
        st.integers(1, 3),
    ),
    max_size=25,
)


def walk(steps: list[tuple[str, int, int]]) -> Cluster:
    """Return a cluster after random events, each possible one of them carried out."""
    cluster = Cluster()
    cluster.set_vcs(nlp=3, vision=2)
    cluster.join(joined("node-1", 2))
    cluster.join(joined("node-2", 2))
    second = 2.0
    for verb, which, size in steps:
        second += 1
        machine = cluster.allocator.machine
        placed = sorted(machine.state.placed)
        job = placed[which % len(placed)] if placed else ""
        node = f"node-{1 + which % 2}"
        match verb:
            case "submit":
                wanted = spec(
                    workers=size,
                    opportunistic=which == 0,
                    priority=which,
                    retries=1,
                    demotable=which % 2 == 1,
                )
                cluster.submit(wanted, second)
            case "borrow":
                cluster.submit(spec(vc="vision", workers=size, over_quota="opportunistic"), second)
            case "cells":
                cluster.set_vcs(second, nlp=which, vision=size)
            case "quarantine":
                bad = QuarantineGpu(node=node, device=size % 2, quarantine=which > 2)
                cluster.tell("ADMIN", bad)
                cluster.heard(bad, second)
            case "join":
                cluster.join(joined("node-3", 2), second)
            case "start" | "exit" | "fail" | "cancel" | "pack" | "unpack" if machine.state.jobs:
                of_jobs(cluster, verb, job, second, which, size)
            case "lose":
                second += 41
                cluster.heard(heartbeat("node-2"), second)
                if machine.wake_at() is not None:
                    cluster.tick(second)
            case "beat":
                cluster.heard(heartbeat(node), second)
            case "drain":
                asked = DrainNode(node=node, drain=size > 1)
                cluster.tell("ADMIN", asked)
                cluster.heard(asked, second)
            case "answer":
                answer_all(cluster, second)
            case _:
                pass  # There is nothing to do it to.
        agrees(cluster)
    return cluster


def answer_all(cluster: Cluster, second: float) -> None:
    """Have every node take the changes that it is told."""
    for job in list(cluster.allocator.machine.state.jobs.values()):
        change = job.change
        for node in list(change.answers) if change is not None else ():
            identity = cluster.allocator.machine.state.nodes[node].joined.identity
            assert change is not None
            cluster.heard(
                MemberChanged(
                    node=node,
                    identity=identity,
                    job=job.job,
                    attempt=job.attempt,
                    order=change.order,
                    at=at(second),
                    manner=Manner.BOUNDARY,
                    released=True,
                ),
                second,
            )


def of_jobs(cluster: Cluster, verb: str, job: str, second: float, which: int, size: int) -> None:
    """Carry out what is about one of the jobs, if there is one; `job` is one that has GPUs."""
    machine = cluster.allocator.machine
    match verb:
        case "start" if job:
            cluster.runs(job, machine.state.jobs[job].attempt, second)
        case "exit" | "fail" if job:
            live = [n for n, p in machine.state.jobs[job].parts.items() if p is not Part.GONE]
            outcome = Outcome.SUCCEEDED if verb == "exit" else Outcome.EXITED
            if live:
                cluster.exits(job, machine.state.jobs[job].attempt, second, outcome)
        case "cancel" if machine.state.jobs:
            cluster.cancel(sorted(machine.state.jobs)[which % len(machine.state.jobs)], second)
        case "pack" if job and machine.state.jobs:
            waits = [
                name for name in sorted(machine.state.jobs) if name not in machine.state.placed
            ]
            wish = AskPack(job=(waits or [job])[size % len(waits or [job])], beside=job)
            cluster.heard(ask(int(second * 10), wish), second)
        case "unpack" if job:
            can = ("suspend", "release") if size > 1 else ()
            for each in machine.state.jobs[job].live:
                identity = machine.state.nodes[each].joined.identity
                known = MemberKnown(
                    node=each,
                    identity=identity,
                    job=job,
                    at=at(second),
                    attempt=machine.state.jobs[job].attempt,
                    tier=Tier.OBSERVED,
                    can=can,
                )
                cluster.heard(known, second)
            cluster.heard(ask(int(second * 10), AskUnpack(job=job)), second)
        case _:
            pass  # There is nothing to do it to.
