"""Facts in words: one line for each, for `skep events`, the page and the event stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from skep.units import NS_PER_SECOND
from skep.wire import (
    array,
    array_gate,
    changes,
    facts,
    findings,
    held_up,
    moves,
    node,
    packs,
    profile,
    promises,
    resizes,
    trials,
    windows,
)
from skep.wire.admin import Admin, DrainNode, QuarantineGpu, SetVcs
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import Member
from skep.wire.following import AdviceFollowed
from skep.wire.reasons import TEXT, Reason
from skep.wire.reports import Building
from skep.wire.template_facts import TemplateSet
from skep_services.gateway.following import sentence
from skep_services.gateway.shares import window_line

NODES_NAMED = 4
VICTIMS_NAMED = 4
BLAMING_NAMED = 4
PROBLEMS_NAMED = 4
"""Nodes of a place named in an event; a gang of a thousand nodes still makes one line."""


class Line(NamedTuple):
    """What is said about a fact, and what it is about."""

    text: str
    attempt: int = 0
    node: str = ""
    reason: str = ""


def place_of(members: tuple[Member, ...]) -> str:
    """Return where a gang runs: `node-1:0,1 node-2:0`."""
    return " ".join(
        f"{member.node}:{','.join(str(one) for devices in member.devices for one in devices)}"
        for member in members
    )


def describe(fact: Any) -> Line | None:
    """Return the line for a fact of admission or the allocator; None for those not worth one."""
    match fact:
        case facts.MemberRan(node=on, attempt=attempt):
            return Line(f"runs on {on}", attempt, on)
        case facts.JobQueued():
            return Line("waits for GPUs")
        case facts.JobBound():
            return _bound(fact)
        case facts.JobRan(attempt=attempt):
            return Line("every member runs", attempt)
        case facts.MemberGone():
            return _gone(fact)
        case facts.JobEnded(why=why, end=end, attempts=attempts):
            return Line(f"{end}: {_why(why, fact.detail)}", attempts, reason=why)
        case facts.Admitted(spec=spec):
            share = spec.resources.share
            size = f"{share / 1000:g} of a GPU" if share else _gpus(spec.gpus)
            return Line(f"admitted: {spec.name}, {size}")
        case changes.JobPrioritised(priority=priority):
            return Line(f"waits with priority {priority}")
        case facts.JobWaits(why=why, needs=needs):
            return Line(f"waits: {_why(why, needs)}", reason=why)
        case facts.JobDeferred(why=why, needs=needs):
            return Line(f"waits outside of its queue: {_why(why, needs)}", reason=why)
        case facts.JobEligible():
            return Line("enters its queue")
        case facts.JobRequeued(why=why, attempt=attempt):
            retry = "" if fact.counted else ", which costs no retry"
            return Line(
                f"waits for another attempt{retry}: {_why(why, fact.detail)}", attempt, reason=why
            )
        case facts.JobStopping(why=why, attempt=attempt):
            return Line(f"is being stopped: {_why(why, fact.detail)}", attempt, reason=why)
        case facts.GhostGone(node=on, attempt=attempt):
            return Line(f"{on} confirmed the end of its part", attempt, on)
        case _:
            return (
                _about_promises(fact) or _about_changes(fact) or _about_cells(fact) or _seldom(fact)
            )


def _about_promises(fact: Any) -> Line | None:
    match fact:
        case promises.PromiseJudged(judged=judged) | promises.PromiseMade(judged=judged):
            return Line(judged.text, reason=judged.why)
        case promises.PromiseBroken(why=why, detail=detail):
            return Line(f"its promise is broken: {_why(why, detail)}", reason=why)
        case promises.PromiseKept():
            return Line("its promise is kept", reason=Reason.IN_TIME)
        case _:
            return None


def _about_changes(fact: Any) -> Line | None:
    match fact:
        case changes.ChangeAsked(ask=ask):
            return Line(f"{changes.name_of(ask)} asked for", reason=Reason.REQUESTED)
        case changes.AskOver(ask=ask, result=result, why=why) if why is not None:
            text = f"{changes.name_of(ask)} {result}: {_why(why, fact.detail)}"
            return Line(text, reason=why)
        case changes.MemberLearned(node=on, tier=tier, can=can, attempt=attempt):
            goes_on = f"; goes on {fact.resumed}" if fact.resumed else ""
            return Line(f"{tier} on {on}: {', '.join(can) or 'nothing more'}{goes_on}", attempt, on)
        case changes.JobChanging(attempt=attempt, goal=goal, undoing=undoing, why=why):
            verb = f"{goal} is being undone" if undoing else f"{goal} begins"
            more = f", round {fact.round}" if fact.round > 1 else ""
            return Line(f"{verb}{more}: {_why(why, fact.detail)}", attempt, reason=why)
        case changes.JobChanged(attempt=attempt, goal=goal, result=result, why=why):
            more = " and its GPUs given back" if fact.released else ""
            pause = f" after a pause of {fact.pause_ns / 1e6:.0f} ms" if fact.pause_ns else ""
            where = "" if goal is changes.Goal.WARN else f" at mini-batch {fact.step}"
            text = f"{goal} {result}{more}{where}{pause}"
            return Line(f"{text}: {_why(why, fact.detail)}", attempt, reason=why)
        case _:
            return _about_moves(fact) or _about_sizes(fact)


def _about_moves(fact: Any) -> Line | None:
    match fact:
        case moves.SuccessorBound(attempt=attempt, members=members):
            return Line(f"makes ready on {_place(members)}, to go on there", attempt)
        case moves.SuccessorReady(attempt=attempt, node=on):
            return Line(f"is ready on {on} and waits for its state", attempt, on)
        case moves.SuccessorLoaded(attempt=attempt, node=on, step=step):
            return Line(f"has its state on {on}, as of mini-batch {step}", attempt, on)
        case moves.JobMoved(attempt=attempt, source=source, step=step):
            return Line(
                f"goes on as attempt {attempt} from mini-batch {step}; attempt {source} is stopped",
                attempt,
            )
        case moves.SuccessorDropped(attempt=attempt, why=why, detail=detail):
            return Line(f"does not move: {_why(why, detail)}", attempt, reason=why)
        case _:
            return None


def _about_sizes(fact: Any) -> Line | None:
    match fact:
        case resizes.GangWidened(attempt=attempt, member=more):
            return Line(f"gets {_place((more,))} beside its own", attempt, more.node)
        case resizes.GangNarrowed(attempt=attempt, node=on, workers=workers):
            return Line(f"keeps the GPUs of {workers} workers on {on}", attempt, on)
        case changes.GpusRegained(attempt=attempt, members=()):
            return Line("has the GPUs it ran on again", attempt)
        case changes.GpusRegained(attempt=attempt, members=members):
            return Line(f"goes on with {_place(members)}, borrowed", attempt)
        case packs.GpusShared(attempt=attempt, node=on, beside=beside, told=told):
            named = " ".join(job for job, _ in beside)
            return Line(
                f"shares GPUs on {on} with {named}, and has {told:.0%} of their memory",
                attempt,
                on,
                Reason.PACKED,
            )
        case trials.TrialBegun() | trials.TrialOver():
            return _about_trials(fact)
        case _:
            return None


def trial_jobs(fact: trials.TrialBegun | trials.TrialOver) -> tuple[str, ...]:
    """Return the jobs that a trial touches."""
    if isinstance(fact, trials.TrialOver):
        return fact.jobs
    return tuple(before.job for before in fact.jobs)


def _about_trials(fact: trials.TrialBegun | trials.TrialOver) -> Line:
    if isinstance(fact, trials.TrialBegun):
        named = " and ".join(trial_jobs(fact))
        if fact.kind is trials.Kind.PROBE:
            sizes = f"{fact.workers} to {fact.grown} workers on {', '.join(fact.nodes)}"
            return Line(f"probe {fact.trial} begins: {named} from {sizes}", reason=fact.why)
        if fact.why is Reason.LATENCY_ABOVE:
            return Line(f"trial {fact.trial}: {named}, judged by latency", reason=fact.why)
        return Line(f"trial {fact.trial} begins: {fact.kind} {named}", reason=fact.why)
    if fact.why is Reason.PROBED and fact.after:
        (each,) = fact.after
        rate = f"{_rate(each.rate_milli)} ({fact.gain_milli / 10:+.0f} %)"
        return Line(f"probe {fact.trial} measured {rate} of {each.job}", reason=fact.why)
    gain = ""
    if fact.after:
        gain = (
            f", {fact.gain_milli / 10:+.1f} % ({fact.low_milli / 10:+.1f} to"
            f" {fact.high_milli / 10:+.1f})"
        )
    return Line(
        f"trial {fact.trial} {fact.verdict}{gain}: {_why(fact.why, fact.detail)}", reason=fact.why
    )


def _about_cells(fact: Any) -> Line | None:
    match fact:
        case facts.CellsReserved(attempt=attempt, members=members, victims=victims):
            named = " ".join(victims[:VICTIMS_NAMED])
            more = len(victims) - VICTIMS_NAMED
            named += f" and {more} more" if more > 0 else ""
            until = f" until {named} made room" if named else ""
            return Line(
                f"{_place(members)}{types_of(members)} reserved for it{until}",
                attempt,
                reason=Reason.WAITS_FOR_VICTIMS,
            )
        case facts.ReservationDropped(attempt=attempt, why=why):
            return Line(f"lost what was reserved for it: {TEXT[why]}", attempt, reason=why)
        case facts.JobDemoted(attempt=attempt, why=why, detail=detail):
            return Line(f"goes on as opportunistic: {_why(why, detail)}", attempt, reason=why)
        case facts.JobPromoted(attempt=attempt):
            return Line("goes on as guaranteed, on its VC's cells", attempt)
        case facts.GpuQuarantined(node=on, device=device, quarantine=quarantine, why=why):
            state = "counts as bad" if quarantine else "is good again"
            return Line(
                f"GPU {device} of {on} {state}: {_why(why, fact.detail)}", node=on, reason=why
            )
        case held_up.GangHeldUp(attempt=attempt, node=on, why=why):
            return Line(held_text(fact), attempt, on, reason=why)
        case held_up.PlaceBlamed(node=on, why=why):
            return Line(blamed_text(fact), node=on, reason=why)
        case facts.CellsAlarm(rule=rule):
            state = "ALARM over" if fact.over else "ALARM"
            return Line(f"{state}: {alarm_text(fact)}", reason=rule)
        case AdviceFollowed(why=why):
            return Line(sentence(fact), reason=why)
        case facts.CellsSet(cluster=cluster, fates=fates):
            owned = "; ".join(f"{vc} {cells_text(one)}" for vc, one in sorted(cluster.vcs.items()))
            demoted = sum(fate.fate == "demoted" for fate in fates)
            text = f"virtual clusters and their cells: {owned or 'none'}"
            jobs = "1 job goes" if demoted == 1 else f"{demoted} jobs go"
            return Line(text + (f" ({jobs} on as opportunistic)" if demoted else ""))
        case _:
            return None


def alarm_text(alarm: facts.CellsAlarm) -> str:
    """Return what of the cells is broken, where, and the VCs that it concerns."""
    others = f", concerns {' '.join(alarm.vcs)}" if alarm.vcs else ""
    where = ", ".join(part for part in (alarm.chain, alarm.where) if part)
    return f"{TEXT[alarm.rule]} ({where}: {alarm.text}{others})"


def cells_text(vc: VirtualCluster) -> str:
    """Return what a VC owns: `2×v100/node 1×v100/socket big`."""
    parts = [f"{one.count}×{one.chain}/{one.level}" for one in vc.cells]
    return " ".join([*parts, *vc.pinned]) or "nothing"


def _seldom(fact: Any) -> Line | None:
    match fact:
        case facts.ClusterRefused(problems=problems):
            text = "; ".join(f"{one.path}: {one.text}" for one in problems[:PROBLEMS_NAMED])
            return Line(
                f"what an operator asked for is refused: {text}",
                reason=problems[0].reason if problems else "",
            )
        case facts.Refused(problems=problems):
            text = "; ".join(f"{one.path}: {one.text}" for one in problems)
            return Line(f"refused: {text}", reason=problems[0].reason if problems else "")
        case facts.Repeated(original=original):
            return Line(f"repeats {original}", reason=Reason.REPEATED)
        case facts.CancelAsked():
            return Line("cancellation asked for", reason=Reason.CANCELLED)
        case facts.NodeAdded(joined=joined):
            text = f"{joined.node} is in use: {_gpus(len(joined.gpus))}, {joined.cpus} CPUs"
            return Line(text, node=joined.node)
        case facts.NodeDrained(node=on, drain=drain):
            text = "takes no further work" if drain else "is open for work"
            return Line(f"{on} {text}", node=on)
        case facts.NodeLost(node=on):
            return Line(f"{on} is lost: {TEXT[Reason.NODE_LOST]}", node=on, reason=Reason.NODE_LOST)
        case facts.NodeBack(node=on):
            return Line(f"{on} is back", node=on)
        case facts.NodeClean(node=on):
            return Line(f"{on} runs nothing of its earlier owner", node=on)
        case windows.WindowBooked(window=window):
            return Line(f"booked: {window_line(window)}")
        case windows.WindowRefused(name=name, why=why, text=text):
            return Line(f"window {name} is refused: {text}", reason=why)
        case windows.WindowBegan(name=name):
            return Line(f"window {name} begins")
        case windows.WindowEnded(name=name, cancelled=cancelled):
            return Line(f"window {name} {'is cancelled' if cancelled else 'is over'}")
        case facts.EpochBegan(epoch=epoch, owner=owner):
            return Line(f"{owner} began epoch {epoch}")
        case _:
            return _of_array(fact)


def _of_array(fact: Any) -> Line | None:
    match fact:
        case array.ArrayAdmitted(spec=spec):
            return Line(f"is an array of the tasks {spec.array}")
        case array.TasksCancelled(why=why) if why is not None:
            return None  # The allocator said why.
        case array.TasksCancelled(tasks=tasks, whole=whole):
            named = "the array" if whole else f"task {tasks}"
            return Line(f"cancellation of {named} asked for", reason=Reason.CANCELLED)
        case array_gate.ArrayDeferred(why=why, needs=needs):
            return Line(f"waits before its tasks begin: {_why(why, needs)}", reason=why)
        case array_gate.ArrayEligible():
            return Line("its tasks begin as there is room")
        case array_gate.ArrayBroken(detail=detail):
            why = Reason.DEPENDENCY_NEVER_SATISFIED
            return Line(f"is cancelled: {_why(why, detail)}", reason=why)
        case array.TasksRetried(tasks=tasks):
            return Line(f"the tasks {tasks} are begun again", reason=Reason.REQUESTED)
        case TemplateSet(vc=vc, name=name, template=template, by=by):
            what = "removed" if template is None else "set"
            return Line(f"template {name} of {vc} is {what} by {by or 'its virtual cluster'}")
        case array.ArrayOver(succeeded=succeeded, failed=failed, cancelled=cancelled):
            counts = f"{succeeded} succeeded, {failed} failed, {cancelled} were cancelled"
            return Line(f"all tasks have ended: {counts}")
        case _:
            return None


def describe_node(event: Any) -> Line | None:
    """Return the line for an agent's event, or None where the allocator's facts say it too."""
    match event:
        case node.MemberStepped(node=on, attempt=attempt):
            return Line(f"first mini-batch on {on}", attempt, on)
        case node.NodeJoined(node=on, incarnation=incarnation):
            return Line(f"the agent of {on} started (incarnation {incarnation})", node=on)
        case _:
            return None


def describe_admin(message: Admin) -> Line:
    """Return the line for what an operator asked."""
    match message:
        case SetVcs(vcs=vcs):
            return Line(f"an operator asked to set the virtual clusters {', '.join(sorted(vcs))}")
        case DrainNode(node=on, drain=drain):
            return Line(f"an operator asked to {'drain' if drain else 'open'} {on}", node=on)
        case QuarantineGpu(node=on, device=device, quarantine=quarantine):
            verb = "quarantine" if quarantine else "take back"
            return Line(f"an operator asked to {verb} GPU {device} of {on}", node=on)
        case windows.ReserveNodes(window=window):
            return Line(f"an operator asked for {window_line(window)}")
        case windows.CancelWindow(name=name):
            return Line(f"an operator asked to cancel window {name}")


def describe_finding(finding: findings.Finding) -> Line | None:
    """Return the line for what the introspector saw; None for the rates of every second."""
    match finding:
        case findings.RateLearned(rate_milli=rate, attempt=attempt):
            return Line(f"runs at {_rate(rate)}", attempt)
        case findings.PhaseChanged(before_milli=before, after_milli=after, attempt=attempt):
            return Line(f"rate changed from {_rate(before)} to {_rate(after)}", attempt)
        case findings.Stalled(over=True, attempt=attempt):
            return Line("makes mini-batches again", attempt)
        case findings.Stalled(at=at, since=since, attempt=attempt):
            hang = hang_text(finding)
            silent = f"no mini-batch for {(at - since) / NS_PER_SECOND:.0f} s"
            return Line(f"{silent}: {hang}" if hang else silent, attempt)
        case findings.Rates() | findings.Measured() | trials.Judged() | profile.Profiled():
            return None
        case held_up.GangSlowed():
            return None  # The allocator's fact says it, with the GPUs.


def held_text(fact: held_up.GangHeldUp) -> str:
    """Return which rank holds its gang up, where, and by how much."""
    gpus = ", ".join(map(str, fact.devices))
    on = f"{fact.node}, GPU {gpus}" if gpus else fact.node
    if fact.over:
        return f"rank {fact.rank} on {on} holds its gang up no more"
    if fact.why is Reason.RANK_HUNG:
        return f"the gang waited for rank {fact.rank} on {on}"
    loader = " with its data loader" if fact.why is Reason.LOADER_SLOW else ""
    return (
        f"the gang trains {fact.slower_milli / 1000:.1f} x slower for rank {fact.rank} on {on}: it "
        f"spends {_length(fact.own_ns)} of a mini-batch on its own{loader}, the median of the gang "
        f"is {_length(fact.usual_ns)}"
    )


def blamed_text(fact: held_up.PlaceBlamed) -> str:
    """Return what is blamed, and for what."""
    what = fact.node if fact.device < 0 else f"GPU {fact.device} of {fact.node}"
    if not fact.blamed:
        return f"{what} is blamed no more"
    jobs = ", ".join(fact.jobs[:BLAMING_NAMED])
    more = len(fact.jobs) - BLAMING_NAMED
    named = f"{jobs} and {more} more" if more > 0 else jobs
    return f"{what} is blamed: {fact.findings} times a rank there was slow or hung ({named})"


def _length(length_ns: int) -> str:
    """Return a part of a mini-batch."""
    if length_ns >= NS_PER_SECOND:
        return f"{length_ns / NS_PER_SECOND:.1f} s"
    return f"{length_ns / 1e6:.0f} ms" if length_ns >= 10**7 else f"{length_ns / 1e6:.1f} ms"


def hang_text(stalled: findings.Stalled) -> str:
    """Return what keeps a job that makes no mini-batches; empty if that is not known."""
    on = f", on {', '.join(stalled.nodes)}" if stalled.nodes else ""
    return f"{stalled.text} ({stalled.code}{on})" if stalled.text else ""


def describe_building(building: Building, node: str) -> Line:
    """Return the line for a node that builds an attempt's environment, or fetches its image."""
    what = "fetches its image" if building.text else "builds its environment"
    return Line(f"{node} {what}", building.attempt, node)


def _bound(fact: facts.JobBound) -> Line:
    on = fact.members[0].node if len(fact.members) == 1 else ""
    own = any(member.levels for member in fact.members) or fact.why is Reason.PACKED
    borrows = "" if own else ", borrowed"
    place = f"{_place(fact.members)}{types_of(fact.members)}"
    text = f"placed on {place}{borrows}: {TEXT[fact.why]}"
    return Line(text, fact.attempt, on, fact.why)


def _place(members: tuple[Member, ...]) -> str:
    more = len(members) - NODES_NAMED
    return place_of(members[:NODES_NAMED]) + (f" and {more} more nodes" if more > 0 else "")


class OfGang(Protocol):
    """One node's part of a gang, as a fact or a row has it."""

    @property
    def gpu_type(self) -> str:
        """The type of its GPUs, of a mixed gang."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its ranks."""


def types_of(members: Sequence[OfGang]) -> str:
    """Return the types of a mixed gang and its ranks on each: ` (ranks 0-2 a100, 3 h100)`.

    Args:
        members: Its parts in the order of its ranks; parts of one type may lie between others.
    """
    runs: list[tuple[str, list[int]]] = []
    for member in members:
        if member.gpu_type and runs and runs[-1][0] == member.gpu_type:
            runs[-1][1].extend(member.numbers)
        elif member.gpu_type:
            runs.append((member.gpu_type, list(member.numbers)))
    parts = [
        f"{min(each)}-{max(each)} {kind}" if len(each) > 1 else f"{each[0]} {kind}"
        for kind, each in runs[:NODES_NAMED]
    ]
    more = len(runs) - NODES_NAMED
    further = f" and {more} more runs of ranks" if more > 0 else ""
    return f" (ranks {', '.join(parts)}{further})" if parts else ""


def _gone(fact: facts.MemberGone) -> Line:
    held = "" if fact.free else "; its GPUs stay taken until the node confirms"
    detail = f" ({fact.detail})" if fact.detail else ""
    return Line(f"{fact.outcome} on {fact.node}{detail}{held}", fact.attempt, fact.node)


def _why(reason: Reason, detail: str) -> str:
    return f"{TEXT[reason]} ({detail})" if detail else TEXT[reason]


def _rate(rate_milli: int) -> str:
    return f"{rate_milli / 1000:.3g} mini-batches/s"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
