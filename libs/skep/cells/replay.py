"""Run a script of events on cells: where jobs are bound, which they preempt, why they wait.

The decisions are the allocator's, without its jobs and agents. A victim stops at once (or when the
script says so) and waits again. Waiting jobs are tried again after every event, the most important
first, then in order of arrival. A job that runs opportunistically as its VC lacks cells returns to
its VC's cells as soon as those cover it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from skep.cells.decide import placement
from skep.cells.decide.bad_cells import AT_ONCE
from skep.cells.decide.cover import find_cover
from skep.cells.decide.explain import explain_wait
from skep.cells.decide.reconfigure import reconfigure
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.cells.legal import impossible
from skep.cells.script import (
    Bad,
    Delete,
    Event,
    Heal,
    Reconfigure,
    Restart,
    Script,
    Stopped,
    Submit,
    Why,
)
from skep.cells.snapshot import CellsSnapshot, restore_cells, take_snapshot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.parse import nearest
from skep.wire.reasons import Reason

Outcome = dict[str, Any]
"""The result of one event, as JSON: `outcome` and what belongs to it; `then` what followed."""


class Replay:
    """The cells, and the jobs of a script. `watch` is called with the cells after each event."""

    def __init__(self, script: Script, watch: Callable[[Cells], None] | None = None) -> None:
        """Begin with every GPU healthy and idle.

        Args:
            script: The cluster, and whether victims stop at once.
            watch: Is called with the cells after each event.
        """
        self.cells = Cells(script.cluster, AT_ONCE)
        self.stay = script.victims == "stay"
        self.watch = watch
        self.jobs: dict[AttemptId, Submit] = {}
        """In order of arrival: jobs that wait, run, or have GPUs reserved."""
        self.waiting: dict[AttemptId, None] = {}
        """Those of them that wait."""
        self._then: list[Outcome] = []

    def step(self, event: Event) -> Outcome:
        """Apply one event and return its result."""
        self._then = []
        outcome = self._happen(event)
        self._follow()
        if self._then:
            outcome["then"] = self._then
        if self.watch is not None:
            self.watch(self.cells)
        return {"event": event.__struct_config__.tag, **outcome}

    # --- events --------------------------------------------------------------------------------

    def _happen(self, event: Event) -> Outcome:
        match event:
            case Submit():
                return self._submit(event)
            case Delete():
                return self._delete(event)
            case Stopped():
                return self._stopped(event)
            case Why():
                return self._why(event)
            case Bad() | Heal():
                return self._health(event)
            case Restart():
                return self._restart()
            case Reconfigure():
                return self._reconfigure(event)

    def _submit(self, event: Submit) -> Outcome:
        result: Outcome = {"job": event.job}
        if event.job in self.jobs:
            return result | _refused(Reason.REPEATED, "a job of this name is there already")
        request = event.request()
        refusal = impossible(self.cells.cluster, request)
        if refusal is not None and not self._may_borrow(event):
            return result | _refused(*refusal)
        made = self._try(request)
        if made is None and event.over_quota == "refuse" and request.guaranteed:
            why = explain_wait(self.cells, request)
            return result | _refused(Reason.OVER_QUOTA, why.text)
        self.jobs[event.job] = event
        return result | (made or self._borrow(event) or self._wait(request))

    def _may_borrow(self, event: Submit) -> bool:
        """Return whether a job that its VC's cells can never serve may run opportunistically."""
        idle = event.request()._replace(priority=OPPORTUNISTIC)
        borrows = event.over_quota == "opportunistic" and event.service_class == "guaranteed"
        return borrows and not event.pinned and impossible(self.cells.cluster, idle) is None

    def _delete(self, event: Delete) -> Outcome:
        if event.job not in self.jobs:
            return {"job": event.job} | self._unknown(event.job)
        hold = self.cells.holds.get(event.job)
        was = "waited" if hold is None else "claimed" if hold.claims else "ran"
        if event.job in self.cells.off_chain:
            was = "ran"
        if event.node and was != "ran":
            return {"job": event.job} | _refused(Reason.BAD_VALUE, "this job does not run")
        self.cells.release(event.job, event.node)
        result = {"job": event.job, "outcome": "deleted", "was": was}
        if event.node:
            result["node"] = event.node
            if event.job in self.cells.holds or event.job in self.cells.off_chain:
                return result
        del self.jobs[event.job]
        self.waiting.pop(event.job, None)
        return result

    def _stopped(self, event: Stopped) -> Outcome:
        hold = self.cells.holds.get(event.job)
        if event.job not in self.jobs:
            return {"job": event.job} | self._unknown(event.job)
        if hold is None or hold.claims:
            return {"job": event.job} | _refused(Reason.BAD_VALUE, "this job does not run")
        self.cells.release(event.job)
        self.waiting[event.job] = None
        return {"job": event.job, "outcome": "stopped"}

    def _why(self, event: Why) -> Outcome:
        if event.job not in self.jobs:
            return {"job": event.job} | self._unknown(event.job)
        hold = self.cells.holds.get(event.job)
        if hold is not None:
            result = "reserved" if hold.claims else "bound"
            return {"job": event.job} | self._bound(hold, result)
        if event.job in self.cells.off_chain:
            return {"job": event.job, "outcome": "astray"}
        return {"job": event.job} | self._wait(self.jobs[event.job].request())

    def _unknown(self, job: AttemptId) -> Outcome:
        return _refused(Reason.UNKNOWN_JOB, f"no job `{job}`", nearest(job, list(self.jobs)))

    def _health(self, event: Bad | Heal) -> Outcome:
        nodes = [cell.node for chain in self.cells.cluster.chains.values() for cell in chain.nodes]
        if event.node not in nodes:
            text = f"no node `{event.node}` in any chain"
            return {"node": event.node} | _refused(
                Reason.UNKNOWN_NODE, text, nearest(event.node, nodes)
            )
        bad = isinstance(event, Bad)
        self.cells.set_bad(event.node, event.gpus, bad=bad)
        jobs = [
            job
            for job, hold in self.cells.holds.items()
            if not hold.claims and event.node in self._nodes(hold)
        ]
        result: Outcome = {"node": event.node, "outcome": "bad" if bad else "healthy"}
        if event.gpus is not None:
            result["gpus"] = list(event.gpus)
        if bad and jobs:
            result["runs_there"] = jobs
        return result | {"bears": self._bears()}

    def _restart(self) -> Outcome:
        raw = msgspec.json.encode(take_snapshot(self.cells))
        before = self.cells
        self.cells = restore_cells(msgspec.json.decode(raw, type=CellsSnapshot), AT_ONCE)
        same = _guaranteed(before) == _guaranteed(self.cells)
        return {"outcome": "restarted", "jobs": len(self.cells.holds), "same": same}

    def _reconfigure(self, event: Reconfigure) -> Outcome:
        if event.cluster == self.cells.cluster:
            return {"outcome": "reconfigured", "jobs": {}, "bears": self._bears()}
        self.cells, changes = reconfigure(self.cells, event.cluster)
        fates: dict[str, list[AttemptId]] = {}
        for change in changes:
            fates.setdefault(change.fate, []).append(change.job)
            if change.fate == "released":
                self.waiting[change.job] = None
        for job in self.waiting:
            refusal = impossible(self.cells.cluster, self.jobs[job].request())
            if refusal is not None:
                self._then.append({"job": job} | _reasoned("never", *refusal))
        return {"outcome": "reconfigured", "jobs": fates, "bears": self._bears()}

    # --- what follows --------------------------------------------------------------------------

    def _follow(self) -> None:
        """Bind what is ready, promote, and try waiting jobs again, until nothing changes."""
        # Each round binds, promotes or reserves for a job more important than those it stops.
        for _ in range(len(self.jobs) + 1):
            before = len(self._then)
            self._bind_ready()
            self._promote()
            order = [event for job, event in self.jobs.items() if job in self.waiting]
            for event in sorted(order, key=lambda event: -event.request().priority):
                self._retry(event)
            if len(self._then) == before:
                return

    def _bind_ready(self) -> None:
        for job, hold in list(self.cells.holds.items()):
            if hold.claims and self._broke(hold):
                self.cells.release(job)
                self.waiting[job] = None
                self._then.append({"job": job, "outcome": "released"})
            elif hold.claims and self.cells.claim_is_free(job):
                self.cells.occupy(job)
                self._then.append({"job": job} | self._bound(hold))

    def _broke(self, hold: CellHold) -> bool:
        """Return whether reserved GPUs have turned bad: the job is planned anew."""
        bad = self.cells.chains[hold.chain].bad
        return any(leaf in bad for spot in hold.spots for leaf in spot.leaves)

    def _promote(self) -> None:
        order = sorted(self.cells.holds.values(), key=lambda hold: -hold.asked)
        for hold in order:
            if hold.priority < hold.asked and not hold.claims:
                spots = find_cover(self.cells, hold)
                if spots is not None:
                    self.cells.promote(hold.job, [spot.level for spot in spots])
                    self._then.append({"job": hold.job} | self._bound(hold, "promoted"))

    def _retry(self, event: Submit) -> None:
        if event.job not in self.waiting:
            return
        made = self._try(event.request()) or self._borrow(event)
        if made is not None:
            self.waiting.pop(event.job, None)
            self._then.append({"job": event.job, **made})

    def _try(self, request: Request) -> Outcome | None:
        """Place a job if that is possible now, and return the result."""
        where = placement.find_placement(self.cells, request, self._loss)
        if where is None:
            return None
        hold = self.cells.carry_out(request, where)
        result: Outcome = {}
        if where.cancels:
            result["cancels"] = list(where.cancels)
            self.waiting.update(dict.fromkeys(where.cancels))
        if where.demoted:
            result["demotes"] = list(where.demoted)
        if not where.victims:
            return self._bound(hold) | result
        result = {"preempts": list(where.victims)} | result
        if self.stay:
            return self._bound(hold, "reserved") | result
        for job in where.victims:
            self.cells.release(job)
            self.waiting[job] = None
        self.cells.occupy(request.job)
        return self._bound(hold) | result

    def _borrow(self, event: Submit) -> Outcome | None:
        """Run a guaranteed job opportunistically for the time being, if it allows that."""
        request = event.request()
        if event.over_quota != "opportunistic" or not request.guaranteed or request.pin:
            return None
        where = placement.find_placement(self.cells, request._replace(priority=OPPORTUNISTIC))
        if where is None:
            return None
        hold = CellHold(request, where)
        hold.priority = OPPORTUNISTIC
        self.cells.enter(hold)
        return self._bound(hold)

    def _wait(self, request: Request) -> Outcome:
        why = explain_wait(self.cells, request)
        self.waiting[request.job] = None
        return _reasoned("waits", *why)

    def _loss(self, job: AttemptId) -> float:
        event = self.jobs.get(job)
        if event is None:
            return 0.0
        gpus = float(sum(event.request().sizes))
        return gpus if event.lost is None else event.lost

    # --- results -------------------------------------------------------------------------------

    def _bound(self, hold: CellHold, outcome: str = "bound") -> Outcome:
        chain = self.cells.chains[hold.chain]
        result: Outcome = {"outcome": outcome, "chain": hold.chain}
        if not hold.guaranteed:
            result["opportunistic"] = True
        return result | {
            "workers": [self._worker(chain.topology.name, spot) for spot in hold.spots]
        }

    def _worker(self, name: str, spot: Spot) -> Outcome:
        shape = self.cells.chains[name].topology
        result: Outcome = {
            "node": shape.node(spot.leaves[0]),
            "gpus": sorted(shape.device(leaf) for leaf in spot.leaves),
        }
        if spot.level:
            result["cell"] = shape.address(spot.level, shape.up(spot.leaves[0], spot.level))
        return result

    def _nodes(self, hold: CellHold) -> list[str]:
        shape = self.cells.chains[hold.chain].topology
        return [shape.node(spot.leaves[0]) for spot in hold.spots]

    def _bears(self) -> dict[str, list[str]]:
        """Return the cells with bad GPUs that each VC has to bear."""
        found: dict[str, list[str]] = {}
        for name, chain in self.cells.chains.items():
            bad = [
                cell
                for cell in chain.bad_cells
                if any(leaf in chain.bad for leaf in chain.topology.span(cell.level, cell.index))
            ]
            for cell in bad:
                where = f"{name}: {chain.topology.address(cell.level, cell.index)}"
                found.setdefault(cell.pool.vc, []).append(where)
        return {vc: sorted(cells) for vc, cells in sorted(found.items())}


def run(script: Script, watch: Callable[[Cells], None] | None = None) -> list[Outcome]:
    """Return the result of each event of a script.

    Args:
        script: The script.
        watch: Is called with the cells after each event.
    """
    replay = Replay(script, watch)
    return [replay.step(event) for event in script.events]


def _guaranteed(cells: Cells) -> dict[AttemptId, tuple[str, Placement, bool]]:
    return {
        job: (hold.vc, Placement(hold.chain, hold.spots), hold.claims)
        for job, hold in cells.holds.items()
        if hold.guaranteed
    }


def _refused(reason: Reason, text: str, suggestion: str = "") -> Outcome:
    return _reasoned("refused", reason, text, suggestion)


def _reasoned(outcome: str, reason: Reason, text: str, suggestion: str = "") -> Outcome:
    result: Outcome = {"outcome": outcome, "reason": str(reason), "text": text}
    return result | {"suggestion": suggestion} if suggestion else result
