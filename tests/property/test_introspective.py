"""What holds of Gandiva's introspective mode, whatever the view and whatever the verdicts.

Plans are carried out here at once: packs, moves and growths are on trial until all that are open
have a verdict, drawn at random. Time stands still, so all that is ever done has to come to an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skep.policy.capacity import FreeCapacity
from skep.policy.gandiva.rules import ACTIONS_MAX, family
from skep.policy.plan import Action, Migrate, Pack, Plan, Resize, Suspend, Unpack
from skep.policy.registry import make
from skep.policy.view import HOLDING, JobView, NodeView, Phase, TrialView, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.reasons import Reason
from tests.effort import examples
from tests.policy_kit import NOW, brief, job, told, view

GIB = 2**30
ALL = ("suspend", "release", "rebind", "migrate", "resize")
LONG = Instant(NOW + seconds(3600))
SLICE = seconds(60)
"""What the policy gives each job at a time: the default."""
PLANS_MAX = 40
"""Far beyond what a few jobs can be tried together."""


@st.composite
def views(draw: st.DrawFn) -> VcView:
    """Draw up to three servers with jobs on them, suspended ones, packs, trials and new ones."""
    size, count = draw(st.sampled_from([(2, 1), (2, 2), (4, 1), (4, 2), (2, 3)]))
    free = {f"n{number + 1}": size for number in range(count)}
    jobs: list[JobView] = []
    calm = draw(st.booleans())
    for number in range(draw(st.integers(1, 4 if calm else 7))):
        jobs += _draw(draw, f"j{number + 1}", free, CALM if calm else BUSY)
    quiet = draw(st.sampled_from([Instant(0), Instant(NOW - seconds(10))]))
    return _seen(jobs, count, size, quiet_since=quiet)


CALM = (*[Phase.RUNNING] * 5, Phase.WAITING)
BUSY = (Phase.RUNNING, Phase.RUNNING, Phase.AWAY, Phase.AWAY, Phase.WAITING)


def _draw(
    draw: st.DrawFn, name: str, free: dict[str, int], phases: tuple[Phase, ...]
) -> list[JobView]:
    gpus = draw(st.sampled_from([1, 1, 1, 2, 4]))
    phase = draw(st.sampled_from(phases))
    rate = draw(st.sampled_from([0, *[4000] * 5]))
    since = Instant(NOW - seconds(draw(st.sampled_from([5, 30, 90]))))
    steps_at = Instant(NOW - seconds(draw(st.sampled_from([1, 700]))))
    fields: dict[str, Any] = {
        "can": draw(st.sampled_from([ALL, ALL, ALL, ALL[:3], ("suspend",)])),
        "rate_milli": rate,
        "utilisation": draw(st.sampled_from([-1, 0, 100, 500, 500])),
        "memory": draw(st.sampled_from([0, 4 * GIB, 4 * GIB, 9 * GIB])),
        "rates": draw(st.sampled_from([(), ((1, 4000), (2, 7800), (3, 8000), (4, 9900))])),
        "slowdown": draw(st.sampled_from([(), ((1, 1000), (2, 1600), (3, 2000))])),
        "pause": draw(st.sampled_from([Duration(0), seconds(2)])),
        "steps": 100,
        "steps_at": steps_at,
        "trial": draw(st.sampled_from([0] * 6 + [7])),
    }
    each = job(
        name,
        gpus,
        elastic=(1, 4),
        needs=draw(st.sampled_from([None, 9000])),
        priority=draw(st.sampled_from([0, 0, 0, 0, 5])),
        ran=300,
    )
    on = _on(draw, gpus, free, holds=phase is Phase.RUNNING)
    if phase is Phase.WAITING or on is None:
        new = replace(each, phase=Phase.WAITING, waiting_since=since)
        return [replace(new, began_at=Instant(0), served=Duration(0))]
    each = replace(each, phase=phase, nodes=on, since=since, waiting_since=since, **fields)
    if phase is Phase.AWAY:
        return _stands(draw, replace(each, trial=0))
    if len(on) > 1 or not draw(st.booleans()):
        return [each]
    guest = replace(each, job=f"{name}0", sequence=each.sequence * 100, partners=(name,))
    pair = {"proven_milli": 1600} if not each.trial and draw(st.booleans()) else {}
    mates = [name, guest.job] if pair else ["", ""]
    return [
        replace(each, partners=(guest.job,), proven_partner=mates[1], **pair),
        replace(guest, proven_partner=mates[0], **pair),
    ]


def _stands(draw: st.DrawFn, each: JobView) -> list[JobView]:
    """Return a job that stands, perhaps with another one beside which it went well."""
    if len(each.nodes) > 1 or draw(st.booleans()):
        return [each]
    mate = replace(
        each,
        job=f"{each.job}0",
        sequence=each.sequence * 100,
        proven_partner=each.job,
        proven_milli=1600,
    )
    return [replace(each, proven_partner=mate.job, proven_milli=1600), mate]


def _on(
    draw: st.DrawFn, gpus: int, free: dict[str, int], *, holds: bool
) -> tuple[tuple[str, int], ...] | None:
    nodes = draw(st.permutations(sorted(free)))
    on, left = [], gpus
    for node in nodes:
        has = min(free[node] if holds else 4, left, draw(st.sampled_from([0, 1, 1, 2, 4])))
        on += [(node, has)] if has else []
        left -= has
    if left:
        return None
    for node, has in on if holds else ():
        free[node] -= has
    return tuple(on)


# --- a cluster in which everything takes no time ----------------------------------------------


def _seen(jobs: Sequence[JobView], count: int, size: int, **more: Any) -> VcView:
    """Return a view in which packs hold their GPUs once, with GPUs of 16 GiB."""
    ordered = tuple(sorted(jobs, key=lambda each: each.sequence))
    holds = [each for each in ordered if each.phase in HOLDING]
    second = {
        each.job
        for each in holds
        for other in holds
        if each.job in other.partners and other.sequence < each.sequence
    }
    made = view([each for each in ordered if each.job not in second], nodes=count, size=size)
    nodes = tuple(replace(node, gpu_memory=16 * GIB) for node in made.nodes)
    return replace(made, jobs=ordered, **{"nodes": nodes, **more})


class Cluster:
    """Carries plans out."""

    def __init__(self, seen: VcView) -> None:
        self.seen, self.trials, self.cooling = seen, 100, list(seen.cooling)
        self.kinds: dict[int, str] = {}

    def _make(self, jobs: dict[str, JobView]) -> None:
        self.seen = _seen(
            list(jobs.values()),
            len(self.seen.nodes),
            self.seen.node_gpus,
            cooling=tuple(self.cooling),
            quiet_since=self.seen.quiet_since,
        )

    def do(self, plan: Plan) -> None:
        for action in plan.actions:
            jobs = {each.job: each for each in self.seen.jobs}
            self._act(action, jobs)
            self._make(jobs)
        for turn in plan.turns:
            jobs = {each.job: each for each in self.seen.jobs}
            place = self._room().fit(jobs[turn.job], turn.nodes or None)
            if place is not None:
                jobs[turn.job] = replace(
                    jobs[turn.job], phase=Phase.RUNNING, nodes=place, since=NOW, began_at=NOW
                )
                self._make(jobs)

    def _room(self) -> FreeCapacity:
        alone = [each for each in self.seen.jobs if each.phase in HOLDING]
        hidden = {name for each in alone for name in each.partners if name > each.job}
        kept = tuple(each for each in self.seen.jobs if each.job not in hidden)
        return FreeCapacity(replace(self.seen, jobs=kept), [each for each in alone if each in kept])

    def _act(self, action: Action, jobs: dict[str, JobView]) -> None:
        each = jobs[action.job]
        away = {"phase": Phase.AWAY, "waiting_since": NOW, "since": NOW, "partners": ()}
        match action:
            case Suspend() | Unpack():
                self._leave(each, jobs)
                jobs[each.job] = replace(each, trial=0, **away)
                if isinstance(action, Suspend):
                    noted = {"owed": action.owed, "owed_at": NOW, "owed_ran": each.ran(NOW)}
                    ran = Duration(each.ran(NOW))
                    jobs[each.job] = replace(jobs[each.job], served=ran, **noted)
                else:
                    self._part(each, jobs)
            case Pack(beside=beside):
                host = jobs[beside]
                assert host.nodes == each.nodes
                number = self._begin("pack", action.trial)
                jobs[each.job] = replace(
                    each, phase=Phase.RUNNING, since=NOW, partners=(beside,), trial=number
                )
                jobs[beside] = replace(host, partners=(each.job,), trial=number)
            case Migrate(nodes=nodes):
                place = self._room().fit(each, nodes)
                assert place is not None, action
                number = self._begin("defrag" if action.defrag else "migrate", action.trial)
                jobs[each.job] = replace(each, nodes=place, since=NOW, trial=number)
            case Resize(workers=workers):
                ((node, _),) = each.nodes
                gpus = each.gpus // each.workers * workers
                jobs[each.job] = replace(
                    each,
                    workers=workers,
                    gpus=gpus,
                    nodes=((node, gpus),),
                    trial=self._begin("grow", action.trial),
                )
            case _:
                raise AssertionError(action)

    def _begin(self, kind: str, trial: bool) -> int:
        self.trials += trial
        self.kinds[self.trials] = kind
        return self.trials if trial else 0

    def _leave(self, each: JobView, jobs: dict[str, JobView]) -> None:
        for name in each.partners:
            rest = tuple(other for other in jobs[name].partners if other != each.job)
            jobs[name] = replace(jobs[name], partners=rest, trial=0)

    def _part(self, each: JobView, jobs: dict[str, JobView]) -> None:
        for name in (each.job, each.proven_partner):
            if name in jobs:
                jobs[name] = replace(jobs[name], proven_partner="", proven_milli=0)

    def judge(self, kept: bool) -> bool:
        """Have the oldest open trial of this cluster be over; return whether there was one."""
        opened = sorted({each.trial for each in self.seen.jobs if each.trial in self.kinds})
        if not opened:
            return False
        kind = self.kinds[opened[0]]
        jobs = {each.job: each for each in self.seen.jobs}
        tried = [each for each in self.seen.jobs if each.trial == opened[0]]
        for each in tried:
            jobs[each.job] = replace(each, trial=0)
        if not kept:
            named = tuple(sorted(family(each) for each in tried))
            self.cooling.append(TrialView(kind, named, LONG))
        if kind == "pack" and len(tried) == 2:
            first, second = tried
            if kept:
                for each, other in ((first, second), (second, first)):
                    jobs[each.job] = replace(
                        jobs[each.job], proven_partner=other.job, proven_milli=1600
                    )
            else:
                self._leave(second, jobs)
                jobs[second.job] = replace(
                    jobs[second.job], phase=Phase.AWAY, partners=(), waiting_since=NOW, since=NOW
                )
        if kind == "grow" and not kept:
            (each,) = tried
            one = each.gpus // each.workers
            jobs[each.job] = replace(
                jobs[each.job], workers=1, gpus=one, nodes=((each.nodes[0][0], one),)
            )
        self._make(jobs)
        return True


# --- laws ----------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(seen=views(), data=st.data())
def test_plans_are_legal_leave_trials_alone_and_come_to_an_end(
    seen: VcView, data: st.DataObject
) -> None:
    policy, cluster = make("gandiva", {"introspect": True, "idle_s": 60}), Cluster(seen)
    story: list[str] = []
    for _ in range(PLANS_MAX):
        seen = cluster.seen
        plan = policy.plan(seen)
        story.append(f"{brief(seen)} -> {told(plan)}: {plan.actions}")
        assert policy.plan(seen) == plan
        assert plan.look_at is None or plan.look_at > seen.now
        legal(plan, seen)
        cluster.do(plan)
        if not (plan.turns or plan.actions) and not cluster.judge(kept=data.draw(st.booleans())):
            return
    raise AssertionError("\n".join(story))


def legal(plan: Plan, seen: VcView) -> None:
    """Assert that a plan does what can be done, to each job one thing, and few of a kind."""
    jobs = {each.job: each for each in seen.jobs}
    nodes = {node.node: node for node in seen.nodes}
    names = [each.job for each in (*plan.actions, *plan.turns)]
    names += [each.beside for each in plan.actions if isinstance(each, Pack)]
    assert len(names) == len(set(names)), plan
    for turn in plan.turns:
        assert jobs[turn.job].phase in (Phase.WAITING, Phase.AWAY)
    for kind in (Pack, Migrate):
        tries = [each for each in plan.actions if isinstance(each, kind) and each.trial]
        assert len(tries) <= ACTIONS_MAX
    for action in plan.actions:
        each = jobs[action.job]
        assert not each.trial or _gives_way(action, each, seen), (action, plan)
        match action:
            case Suspend():
                assert each.phase is Phase.RUNNING
                assert "release" in each.can
            case Pack():
                _packs(action, each, jobs[action.beside], nodes)
            case Unpack():
                assert each.partners
            case Migrate():
                assert each.phase is Phase.RUNNING
                assert action.trial
                assert "migrate" in each.can
                assert not each.partners
            case Resize():
                _resizes(action, each, nodes)
            case _:
                raise AssertionError(action)


def _gives_way(action: Action, each: JobView, seen: VcView) -> bool:
    """Return whether it gives back what it has grown by, or jobs wait to which a trial gives way.

    Those have a higher priority, or are new and have waited for a slice.
    """
    if isinstance(action, Resize):
        return action.why is Reason.GPUS_NEEDED and action.workers < each.workers
    late = seen.now - SLICE
    return isinstance(action, Suspend) and any(
        other.spec.priority > each.spec.priority
        or (not other.began_at and other.waiting_since <= late)
        for other in seen.jobs
        if other.phase in (Phase.WAITING, Phase.AWAY)
    )


def _packs(action: Pack, each: JobView, host: JobView, nodes: dict[str, NodeView]) -> None:
    assert (each.phase, host.phase) == (Phase.AWAY, Phase.RUNNING)
    assert each.nodes == host.nodes
    assert not each.partners
    assert not host.partners
    assert (each.gpus, each.spec.priority) == (host.gpus, host.spec.priority)
    assert not host.trial
    if action.trial:
        (node, _), *_ = host.nodes
        assert 0 < each.memory + host.memory <= nodes[node].gpu_memory
        assert min(each.rate_milli, host.rate_milli) > 0
    else:
        assert each.proven_partner == host.job


def _resizes(action: Resize, each: JobView, nodes: dict[str, NodeView]) -> None:
    assert each.phase is Phase.RUNNING
    assert "resize" in each.can
    assert 1 <= action.workers <= 4
    assert not each.partners
    more = action.workers - each.workers
    assert action.trial is (more > 0)
    assert more * (each.gpus // each.workers) <= nodes[each.nodes[0][0]].free
    assert more > 0 or action.workers >= each.spec.resources.workers


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(views(), st.integers(-20, 700)), min_size=2, max_size=5))
def test_what_is_kept_of_other_views_changes_no_plan(seen: list[tuple[VcView, int]]) -> None:
    policy = make("gandiva", {"introspect": True, "idle_s": 5, "defrag_free": 0.25})
    kept = policy.planner()
    for shown, after in seen:
        late = replace(shown, now=Instant(NOW + seconds(after)))
        assert kept(late) == policy.plan(late)
