"""What the ranks of jobs do about what their agent tells them: stop, give memory back, go on, move.

A rank makes a mini-batch every STEP of virtual time, on every node alike, so that a gang stands at
one step only if all its ranks were told the same one. What it stands at survives its agent; to a
new one it says hello, what it can do, and how it stands. What a job can do is the fourth word of
its command line:

    opaque        it does not speak: its agent freezes it wherever it is
    resident      it stops between two mini-batches
    releases      and gives its device memory back
    rebinds       and goes on with other devices of its node
    stores        and writes checkpoints
    both          and both
    moves         and goes on elsewhere, too
    grows         it stops and goes on elsewhere, and its gang grows and shrinks
    fails         it says that it can, and mostly fails
"""

from __future__ import annotations

from typing import Any

from skep.ids import run_token
from skep.machines.agent import (
    FreezeRun,
    OpenStore,
    RankSaid,
    RunFrozen,
    RunSignalled,
    RunThawed,
    SignalRun,
    StoreOpened,
    SweepDevices,
    TellRank,
    ThawRun,
)
from skep.sim.processes import STEP, Host, Listener, Run
from skep.sim.timeline import MILLISECOND, SECOND
from skep.sim.violation import require
from skep.wire.talk import (
    Answer,
    Can,
    Checkpointed,
    CheckpointRank,
    Failed,
    Hello,
    Loaded,
    MoveRank,
    Past,
    Ready,
    Released,
    ReleaseRank,
    Rescaled,
    RescaleRank,
    Resumed,
    ResumeRank,
    Said,
    Sent,
    Shared,
    ShareRank,
    Suspended,
    SuspendRank,
    Told,
)

CAN: dict[str, tuple[str, ...]] = {
    "resident": ("suspend",),
    "releases": ("suspend", "release"),
    "rebinds": ("suspend", "release", "rebind"),
    "stores": ("suspend", "checkpoint"),
    "both": ("suspend", "release", "checkpoint", "share"),
    "moves": ("suspend", "release", "checkpoint", "migrate", "share"),
    "grows": ("suspend", "release", "migrate", "resize", "share"),
    "fails": ("suspend", "release", "checkpoint", "migrate", "resize", "share", "rebind"),
}

STATE_BYTES = 1 << 20
FAILS_ALONE = 0.15
"""How often a node's ranks of a job that fails do not change with the others."""
PATIENCE = 20 * SECOND
"""How long a rank waits for the others, once it was told to change the size of its gang."""
AT_A_STEP = SuspendRank | MoveRank | CheckpointRank | RescaleRank
"""What a rank does after a mini-batch that all ranks of its gang were told."""


def serve(host: Host, agent: Listener, request: Any) -> None:
    """Carry out an agent's request about runs that stay alive.

    Args:
        host: The machine of the runs.
        agent: The connection that the answer goes to.
        request: What the agent asks for.

    Raises:
        AssertionError: A bug: the request is of no kind that is known here.
    """
    match request:
        case TellRank(message=message):
            run = host.runs.get(run_token(message.job, message.attempt, message.rank))
            if run is not None and run.live and run.tier in CAN:
                hear(host, run, message)
        case FreezeRun(token=token):
            run = host.runs.get(token)
            if run is not None and run.live:
                host.freeze(run)
            host.tell(agent, RunFrozen(token))
        case ThawRun(token=token):
            run = host.runs.get(token)
            if run is not None and run.live and run.frozen:
                host.thaw(run)
                unheard, run.unheard = run.unheard, []
                for message in unheard:
                    hear(host, run, message)
            host.tell(agent, RunThawed(token))
        case SignalRun(token=token, order=order):
            run = host.runs.get(token)
            if run is not None and run.live and run.signalled < order:
                run.signalled = order
                run.signals += 1
                require(run.signals == 1, "I24", f"{token} is warned of its limit twice")
            host.tell(agent, RunSignalled(token))
        case OpenStore():
            host.tell(agent, StoreOpened(request.job, request.attempt))
        case SweepDevices():
            pass  # These processes leave nothing.
        case _:
            raise AssertionError(request)


def greet(host: Host, run: Run) -> None:
    """Say everything about a rank to an agent that has not heard it: on every connection."""
    if not run.live or run.tier not in CAN or run.frozen:
        return
    say(host, run, Hello(job=run.job, attempt=run.attempt, rank=run.rank, token=run.token))
    can = CAN[run.tier]
    tier = "cooperative" if "migrate" in can or "resize" in can else "observed"
    say(host, run, Can(job=run.job, attempt=run.attempt, rank=run.rank, can=can, tier=tier))
    if run.awaits and not (run.joins and run.begun):
        say(host, run, Ready(job=run.job, attempt=run.attempt, rank=run.rank, port=30_000))
    if run.loaded:
        say(host, run, Loaded(job=run.job, attempt=run.attempt, rank=run.rank, step=run.loaded))
    if run.standing and run.said is not None:
        say(host, run, run.said)


def say(host: Host, run: Run, message: Said) -> None:
    """Say something to the agent that is connected, if one is."""
    host.say(RankSaid(message))


def hear(host: Host, run: Run, message: Told) -> None:
    """Take what the agent tells a rank: an order once, its answer as often as it is asked."""
    if run.frozen:
        run.unheard.append(message)
        return
    if message.order < run.order:
        return
    if message.order == run.order:
        if run.said is not None and run.said.order == message.order:
            say(host, run, run.said)
        return
    if run.meets is not None and not _waits(run):
        _refuse(host, run.meets)  # It is withdrawn.
    run.order, run.meets = message.order, None
    here = run.step(host.now)
    wanted = getattr(message, "step", 0)
    stops = isinstance(message, AT_A_STEP) and not run.standing and not _waits(run)
    if stops and wanted and here >= wanted:
        answer(
            host,
            run,
            Past(job=run.job, attempt=run.attempt, rank=run.rank, order=message.order, step=here),
        )
        return
    steps = max(1, wanted - here) if stops else 0
    delay = steps * STEP + int(host.chance() * 5 * MILLISECOND)
    host.later(steps * STEP if steps else delay, _act, host, run, message)


def _act(host: Host, run: Run, message: Told) -> None:
    """Do what a rank was told, unless something else was told meanwhile."""
    if not run.live or run.order != message.order:
        return
    if run.frozen:
        run.order = message.order - 1
        run.unheard.append(message)
        return
    said = _done(host, run, message)
    if said is not None:
        answer(host, run, said)


def _rescaled(host: Host, run: Run, message: RescaleRank, failed: Failed | None) -> Answer | None:
    """Take a vote on a change of size, or change the size; `failed` is the answer if it fails."""
    if not message.agree:
        return failed or _regroup(host, run, message)
    run.meets = message
    if run.tier == "fails" and host.chance() < 0.2:
        _refuse(host, message)
    host.later(PATIENCE, _give_up, host, run, message)
    _meet(host, message)
    return None


def _done(host: Host, run: Run, message: Told) -> Answer | None:
    who: dict[str, Any] = {
        "job": run.job,
        "attempt": run.attempt,
        "rank": run.rank,
        "order": message.order,
    }
    fails = run.tier == "fails" and host.chance() < 0.6
    here = run.step(host.now)
    failed = Failed(**who, what="it", error="it fails")
    match message:
        case SuspendRank():
            if fails and not run.standing:
                return failed
            host.stand(run)
            return Suspended(**who, step=run.step(host.now))
        case ReleaseRank():
            if fails or not run.standing:
                return failed
            run.released = True
            return Released(**who, moved=STATE_BYTES, residue=0)
        case RescaleRank():
            return _rescaled(host, run, message, failed if fails else None)
        case ResumeRank() if _waits(run):
            return failed  # It waits for its place in the gang, not for this.
        case ResumeRank(devices=devices):
            # One that is to go on elsewhere fails more often: there is less room than where it was.
            moves = devices != run.devices
            if fails and run.standing and host.chance() < (0.8 if moves else 0.3):
                return failed
            require(
                not moves or (run.standing and "rebind" in CAN[run.tier]),
                "I15",
                f"{run.token} is on {run.devices} and is to go on with {devices}",
            )
            run.devices = devices
            host.go_on(run)
            return Resumed(**who, step=here)
        case CheckpointRank():
            return failed if fails else Checkpointed(**who, step=here, bytes=STATE_BYTES)
        case ShareRank(share=share):
            return failed if fails else Shared(**who, share=share, used=STATE_BYTES)
        case MoveRank(token=token):
            stood = run.standing
            host.stand(run)
            if fails or not _send(host, run, token):
                if not stood:
                    host.go_on(run)
                return failed
            return Sent(**who, step=here, bytes=STATE_BYTES)


def _meet(host: Host, plan: RescaleRank) -> None:
    """Have a gang change its size once all ranks are there; not at all if one voted against it."""
    everybody = [
        (there, run)
        for there in host.others_and_self()
        for run in there.live_runs()
        if (run.job, run.attempt) == (plan.job, plan.attempt) and not run.leaves
    ]
    here = [
        (there, run)
        for there, run in everybody
        if run.meets is not None and run.meets.generation == plan.generation
    ]
    if (plan.job, plan.attempt, plan.generation) in host.refused:
        for there, run in here:
            _disperse(there, run)
        return
    gang = [run for _, run in everybody if not _waits(run)]
    stay = [run for _, run in here if run.meets is not None and not run.meets.leaves]
    if any(run.meets is None or run.meets.generation != plan.generation for run in gang):
        return
    if len(stay) != plan.world or any(run.frozen for _, run in here):
        return
    # All ranks of a node or none: else its agent would end them all.
    failing = [
        there for there in dict.fromkeys(there for there, _ in here) if host.chance() < FAILS_ALONE
    ]
    for there, run in here:
        told, run.meets = run.meets, None
        assert told is not None
        if run.tier == "fails" and there in failing:
            answer(there, run, _failed(run, told, "it fails when the others do not"))
        else:
            answer(there, run, _regroup(there, run, told))


def _regroup(host: Host, run: Run, plan: RescaleRank) -> Answer:
    """Have a rank be of another gang, or leave it."""
    step = run.step(host.now)
    run.generation = plan.generation
    if plan.leaves:
        host.leave(run)
    elif _waits(run):
        host.go_on(run)
    return Rescaled(
        job=run.job,
        attempt=run.attempt,
        rank=run.rank,
        order=plan.order,
        generation=plan.generation,
        step=step,
    )


def _failed(run: Run, plan: RescaleRank, error: str) -> Failed:
    return Failed(
        job=run.job,
        attempt=run.attempt,
        rank=run.rank,
        order=plan.order,
        what="rescale",
        error=error,
    )


def _refuse(host: Host, plan: RescaleRank) -> None:
    """Vote against a change of size: the ranks that are there for it hear so."""
    host.refused[plan.job, plan.attempt, plan.generation] = None
    _meet(host, plan)


def _disperse(host: Host, run: Run) -> None:
    plan, run.meets = run.meets, None
    assert plan is not None
    answer(host, run, _failed(run, plan, "it was refused"))


def _give_up(host: Host, run: Run, plan: RescaleRank) -> None:
    """End a rank's patience with ranks that are not there."""
    if run.live and run.meets is plan:
        _refuse(host, plan)


def _waits(run: Run) -> bool:
    """Return whether a rank has no place in its gang yet."""
    return run.joins and not run.begun


def answer(host: Host, run: Run, said: Answer) -> None:
    """Say what became of an order, and remember it."""
    run.said = said
    say(host, run, said)


def _send(host: Host, run: Run, secret: str) -> bool:
    """Give a rank's successor its state; return whether it has it."""
    for there in host.others_and_self():
        for other in there.live_runs():
            if other.awaits == secret and other.rank == run.rank and not there.gone:
                other.loaded = run.loaded if run.awaits and not run.begun else run.step(host.now)
                greet(there, other)
                return True
    return False
