"""What nodes are told: every command follows from the state, and is repeated until answered."""

from __future__ import annotations

from skep.cells.nodes import Attempt, NodeState
from skep.ledger import size_facts
from skep.ledger.job_state import GIVES_WAY, JobState, Part, State, Successor
from skep.ledger.state import ClusterState
from skep.machines.allocator import timers
from skep.machines.allocator.changes import change_ends, ranks
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Send
from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.commands import (
    AGENT_PYTHON,
    BindJob,
    ChangeJob,
    ClearNode,
    EnvironmentOrder,
    ResumeOrder,
    StopJob,
)
from skep.wire.facts import JobStopping
from skep.wire.moves import SuccessorDropped
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec

RESEND_AFTER = seconds(2)
"""How long a command may stay unanswered before it is repeated: many times an agent's usual answer
(a few milliseconds), and far below a person's patience."""
GRACE_S = 10.0
"""What a job gets between SIGTERM and SIGKILL: long enough to write a checkpoint of some 100 MB."""
PREEMPT_GRACE_S = 5.0


def limit(tx: Transaction, job: JobState, now: Instant) -> None:
    """Arm the time limit of an attempt that runs; what it was suspended for does not count.

    Likewise the signal that comes before it, if it has not come in this attempt, and the next time
    that its state is to be stored.

    Args:
        tx: Timers are set, in place of earlier ones; those that the job's spec asks for.
        job: It runs.
        now: The time of the decision.
    """
    if isinstance(job.spec.checkpoint_every, int) and tx.settings.stores_by_time:
        at = after(now, seconds(job.spec.checkpoint_every))
        tx.soft.set_timer(timers.CheckpointTime(job.job, job.attempt), at)
    if isinstance(job.spec.limits.time, int):
        # A clock that was set back since, or while it stood, would make the limit as much longer.
        began_at = min(after(job.ran_at, Duration(job.suspended_ns)), now)
        ends_at = after(began_at, seconds(job.spec.limits.time))
        tx.soft.set_timer(timers.TimeLimit(job.job, job.attempt), ends_at)
        warn = job.spec.limits.warn
        if warn is not None and isinstance(warn.before, int) and not job.warned:
            at = Instant(ends_at - seconds(warn.before))
            tx.soft.set_timer(timers.LimitWarning(job.job, job.attempt), at)


# --- commands ----------------------------------------------------------------------------------


def stop(tx: Transaction, job: JobState, why: Reason, now: Instant, detail: str = "") -> None:
    """End an attempt, and what was to be changed of it: told to every node with a part of it.

    Args:
        tx: A fact and commands are added.
        job: It has an attempt that is not over.
        why: Why it is stopped; decides how long its processes get to end in.
        now: The time of the decision.
        detail: What is the matter, in words; may be empty.
    """
    abandon(tx, job, now)
    tx.record(
        JobStopping(
            job=job.job,
            attempt=job.attempt,
            order=tx.state.order + 1,
            why=why,
            at=now,
            detail=detail,
            trace=job.trace,
        )
    )
    for name in job.parts:
        command(tx, name, job.job, job.attempt, now)


def abandon(tx: Transaction, job: JobState, now: Instant) -> None:
    """End whatever was to be changed of an attempt.

    Args:
        tx: Facts are added, and commands to the nodes of a successor.
        job: The attempt of this job.
        now: The time of the decision.
    """
    drop(tx, job, now, Reason.OVERTAKEN)
    change_ends.overtake(tx, job, now)


def drop(tx: Transaction, job: JobState, now: Instant, why: Reason, detail: str = "") -> None:
    """Stop a successor, if there is one.

    Args:
        tx: A fact and commands are added.
        job: The job that the successor is of.
        now: The time of the decision.
        why: Why it is stopped.
        detail: What is the matter, in words; may be empty.
    """
    successor = job.successor
    if successor is None:
        return
    tx.record(
        SuccessorDropped(
            job=job.job,
            attempt=successor.attempt,
            why=why,
            at=now,
            order=tx.state.order + 1,
            detail=detail,
        )
    )
    tx.soft.cancel_timer(timers.SuccessorDeadline(job.job, successor.attempt))
    for name in successor.members:
        command(tx, name, job.job, successor.attempt, now)


def command(tx: Transaction, name: str, job_name: str, attempt: int, now: Instant) -> None:
    """Tell a node what it has not answered about an attempt, and look again later.

    It adds nothing if nothing is owed, so a timer may come late or twice.

    Args:
        tx: A command is added, and a timer is set.
        name: The node.
        job_name: The job.
        attempt: The number of its attempt.
        now: The time of the decision.
    """
    node = tx.state.nodes[name]
    key: Attempt = (job_name, attempt)
    message = _owed(tx.state, node, key)
    if message is not None and not node.lost:
        tx.effects.append(Send(subjects.command(name), message, _headers(tx.state, job_name)))
        tx.soft.set_timer(timers.Resend(name, job_name, attempt), after(now, RESEND_AFTER))


def clear(tx: Transaction, name: str, now: Instant) -> None:
    """Have a node's new owner end what is left of an earlier time there, if that is owed.

    Args:
        tx: A command is added, and a timer is set.
        name: The node.
        now: The time of the decision.
    """
    node = tx.state.nodes[name]
    if node.clearing and not node.lost:
        message = ClearNode(
            order=node.clearing, epoch=tx.state.epoch, node=name, identity=node.joined.identity
        )
        tx.effects.append(Send(subjects.command(name), message))
        tx.soft.set_timer(timers.ClearNode(name), after(now, RESEND_AFTER))


def _headers(state: ClusterState, job_name: str) -> dict[str, str]:
    """Return the headers of a command: the trace of its job."""
    job = state.jobs.get(job_name)
    return {subjects.TRACE_HEADER: job.trace} if job is not None and job.trace else {}


def _owed(
    state: ClusterState, node: NodeState, key: Attempt
) -> BindJob | StopJob | ChangeJob | None:
    """Return the command a node has not answered about an attempt, or None."""
    name = node.joined.node
    if key in node.ghosts:
        return _stop_command(state, node, key, node.ghosts[key], 0.0)
    job = state.jobs.get(key[0])
    if job is not None and job.succeeds(key[1]):
        assert job.successor is not None
        listens = name in job.successor.doors
        return None if listens else _bind_command(state, job, name, job.successor)
    if job is None or job.attempt != key[1] or job.parts.get(name, Part.GONE) is Part.GONE:
        return None
    if job.state is State.STOPPING:
        grace_s = PREEMPT_GRACE_S if job.stopped_why in GIVES_WAY else GRACE_S
        return _stop_command(state, node, key, job.order, grace_s)
    if job.parts[name] is Part.BOUND:
        return _bind_command(state, job, name, job)
    return change_ends.owed(state, job, node, state.epoch)


def _stop_command(
    state: ClusterState, node: NodeState, key: Attempt, order: int, grace_s: float
) -> StopJob:
    """Return the command that ends a part of an attempt."""
    return StopJob(
        order=order,
        epoch=state.epoch,
        settled=node.settled(state.order),
        node=node.joined.node,
        identity=node.joined.identity,
        job=key[0],
        attempt=key[1],
        grace_s=grace_s,
        joins=node.holdings[key].came,
    )


def _bind_command(
    state: ClusterState, job: JobState, name: str, made: JobState | Successor
) -> BindJob:
    """Return the command that begins a part of an attempt."""
    node, member = state.nodes[name], made.members[name]
    first = next(member for member in made.members.values() if member.first_rank == 0)
    joins, world = 0, job.size
    if isinstance(made, JobState) and (joins := size_facts.came(state, made, name)):
        world = 1 + max(one.numbers[-1] for one in made.members.values())
    plans = ranks.plans(member, world)
    return BindJob(
        order=joins or made.order,
        epoch=state.epoch,
        settled=node.settled(state.order),
        node=name,
        identity=member.identity,
        job=job.job,
        attempt=made.attempt,
        name=job.spec.name,
        vc=job.spec.vc,
        argv=argv(job.spec),
        ranks=plans,
        world=world,
        node_rank=list(made.members).index(name),
        nodes=len(made.members),
        master_address=state.nodes[first.node].joined.address,
        master_port=made.port,
        env=job.spec.env,
        workdir=job.spec.workdir or "",
        trace=job.trace,
        image=job.spec.runtime.image if job.spec.runtime is not None else "",
        awaits=f"generation-{joins}" if joins else _awaited(made),
        share=0.0 if isinstance(made, Successor) else made.told[0],
        beside=() if isinstance(made, Successor) else made.told[1],
        joins=joins,
        servers=job.spec.ps.servers if job.spec.ps is not None else 0,
        secret=job.secret,
        distributed=job.spec.is_distributed,
        python=job.spec.python or _interpreter(job.spec),
        owner=job.owner,
        secrets=job.spec.secrets,
        secret_files=job.spec.secret_files,
        code=job.spec.code,
        outputs=job.spec.outputs,
        environment=_environment(job.spec),
        pull=job.spec.runtime is not None and job.spec.runtime.pull == "missing",
        login=job.spec.runtime.login if job.spec.runtime is not None else "",
        mounts=job.spec.mounts,
        gpu_share=job.spec.resources.share,
        idle_s=_idle_s(state, job.spec),
        hung_s=hung_s(job.spec),
        stdin=job.spec.stdin,
        resume=_resume(job) if made is job and not joins else None,
    )


def _resume(job: JobState) -> ResumeOrder | None:
    """Return what an attempt looks for that is not the first one to run."""
    wanted = job.spec.resume
    if wanted is None or not job.first_ran_at:
        return None
    return ResumeOrder(since=job.first_ran_at, find=wanted.find, args=wanted.args, auto=wanted.auto)


def _idle_s(state: ClusterState, spec: JobSpec) -> int:
    """Return after how long of doing nothing an agent is to say so; 0: never."""
    vc = state.cells.cluster.vcs.get(spec.vc)
    return vc.idle.suspend_after if vc is not None and vc.idle is not None else 0


def hung_s(spec: JobSpec) -> int:
    """Return after how many seconds without a mini-batch a job hangs; 0: never."""
    return spec.restart_hung if isinstance(spec.restart_hung, int) else 0


def argv(spec: JobSpec) -> tuple[str, ...]:
    """Return the command line of every worker of a job.

    Returns:
        Words; the first is AGENT_PYTHON for a script, which stands for an interpreter.
    """
    if spec.script is not None:
        module = "skep_job" if spec.ps is None else "skep_job.ps.launch"
        return (AGENT_PYTHON, "-m", module, spec.script, *spec.args)
    if isinstance(spec.command, str):
        return ("/bin/sh", "-c", spec.command)
    assert spec.command is not None, spec
    return spec.command


def _interpreter(spec: JobSpec) -> str:
    """Return the interpreter that is a job's whole environment; empty: it has another one."""
    given = spec.environment
    return given.python if given is not None and not given.named else ""


def _environment(spec: JobSpec) -> EnvironmentOrder | None:
    """Return what the nodes of a job build for it."""
    given = spec.environment
    if given is None or not given.named:
        return None
    kind, path = given.named[0]
    return EnvironmentOrder(kind=kind, path=path, files=given.files, python=given.python)


def _awaited(made: JobState | Successor) -> str:
    """Return the secret with which a successor awaits the state; else empty."""
    return made.secret if isinstance(made, Successor) else ""
