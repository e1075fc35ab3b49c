"""Bugs planted on purpose: each must be found, or a net has a hole.

python -m skep.sim.planted              plant each in turn; exit 1 if one is not found
python -m skep.sim.planted --json       the same as JSON
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from skep.cells import sets
from skep.cells.chain import ChainState
from skep.cells.decide import rebind
from skep.cells.forest import Draft
from skep.cells.nodes import NodeState
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.ledger.snapshot import NodeKept
from skep.machines.admission import AdmissionMachine
from skep.machines.agent import AgentMachine
from skep.machines.agent.parts import PartState
from skep.machines.allocator import AllocatorMachine, outbox, soft, upkeep
from skep.machines.allocator.changes import (
    change_ends,
    making_room,
    migration,
    resize_ends,
    resume_places,
    suspension,
)
from skep.machines.allocator.placement import job_cells, placing
from skep.machines.allocator.policies import policy_plans, policy_views, trials
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Send
from skep.sim.driver import Process
from skep.sim.history import run_seed
from skep.sim.world import Settings
from skep.wire import codec
from skep.wire.changes import MemberAnswered, Result
from skep.wire.commands import Resume
from skep.wire.facts import MemberGone, StopTaken
from skep.wire.node import Manner
from skep.wire.reasons import Reason

SEEDS_MAX = 120
"""Within how many histories a planted bug must show."""


class Plant(msgspec.Struct, frozen=True):
    """A bug: what is put in whose place. `breaks` are the invariants it may show by."""

    name: str
    owner: Any
    attribute: str
    wrong: Any
    breaks: tuple[str, ...]


class Finding(msgspec.Struct):
    """In which history a bug was found, after how many, and what broke; all empty if it was not."""

    bug: str
    invariant: str = ""
    seeds: int = 0
    text: str = ""


def _publishes_first(self: Process) -> None:
    while self._effects:
        effect = self._effects.popleft()
        if isinstance(effect, Send):
            payload = codec.encode(effect.message)
            self._network.send(self, effect.subject, payload, effect.headers, "early")
        else:
            self.wiring.carry_out(self, effect.command)  # type: ignore[union-attr]
    _append_next(self)


def _acknowledges_first(self: Process, stream: str, message: Any) -> None:
    self.positions[stream] = message.sequence
    _read(self, stream, message)


def _remembers_no_key(self: AdmissionMachine, job: str, vc: str, key: str, owner: str = "") -> None:
    del key
    _answered(self, job, vc, "", owner)


def _frees_at_once(self: Transaction, fact: Any) -> None:
    if isinstance(fact, MemberGone) and not fact.free:
        fact = msgspec.structs.replace(fact, free=True)
    _record(self, fact)


def _keeps_no_floor(self: AgentMachine, command: Any, now: Any) -> None:
    floor, self.floor = self.floor, 0
    _bind(self, command, now)
    self.floor = max(floor, self.floor)


def _stops_the_known_only(self: AgentMachine, command: Any, now: Any) -> None:
    if (command.job, command.attempt) in self.parts:
        _stop(self, command, now)


def _forgets_stops(self: AgentMachine) -> list[Any]:
    return [fact for fact in _agent_snapshot(self) if not isinstance(fact, StopTaken)]


def _forgets_a_node(self: AllocatorMachine) -> list[Any]:
    kept = _allocator_snapshot(self)
    first = next((entry for entry in kept if isinstance(entry, NodeKept)), None)
    return [entry for entry in kept if entry is not first]


def _idle_whoever_claims(self: ChainState, leaf: int) -> bool:
    return self.user[leaf] is None and leaf not in self.bad


def _owes_once(machine: Any, job: Any, node: Any, epoch: int) -> Any:
    told = _owed(machine, job, node, epoch)
    if told is None or told.order in _told_once:
        return None
    _told_once[told.order] = None
    return told


def _refuses_nothing(_told: Any) -> dict[str, str]:
    return {}


def _any_home(state: Any, job: Any) -> str:
    return str(job.chain) if job.chain in state.cells.chains else ""


def _told_nothing(_member: Any) -> tuple[Any, ...]:
    return ()


def _goes_anywhere(_job: Any) -> bool:
    return True


def _takes_all(chain: Any, level: int, index: int, below: int) -> list[int]:
    del below
    return [leaf for leaf in chain.topology.span(level, index) if leaf not in chain.bad]


def _commits_early(machine: Any, job: Any, successor: Any, now: Any) -> None:
    _send(machine, job, successor, now)
    if job.change is not None and job.change.answers:
        successor.loaded = successor.loaded or dict.fromkeys(successor.members, 1)
        for name, answer in job.change.answers.items():
            if answer is None:
                told = MemberAnswered(
                    job=job.job,
                    attempt=job.attempt,
                    node=name,
                    order=job.change.order,
                    manner=Manner.BOUNDARY,
                )
                machine.record(told)
    migration.conclude(machine, job, now)


def _moves_apart(machine: Any, job: Any, successor: Any, now: Any) -> None:
    migration._send(machine, job, successor, now)


def _wakes_up(machine: Any, job: Any, now: Any, why: Any, detail: str = "") -> None:
    outbox.drop(machine, job, now, why, detail)
    migration._tell(machine, job, Resume(), now, undoing=True, detail=detail)


def _resizes_anyhow(machine: Any, job: Any, _refused: str, now: Any) -> None:
    _conclude(machine, job, "", now)


def _takes_all_along(cells: Any, job: AttemptId, node: str) -> None:
    hold = cells.sets[job]
    if job != hold.job:
        _part(cells, job, node)
        return
    for name in hold.partners:
        del cells.sets[name]
    hold.partners = {}
    cells.release(job, node)


def _counts_each(self: Any, request: Any, on: AttemptId, leaves: Any) -> None:
    _share(self, request, on, leaves)
    self.recount(self.hold_of(on), 1)


def _says_it_left(machine: Any, _job: Any, asked: Any, now: Any, *_: Any) -> None:
    if asked is not None:
        change_ends.over(machine, asked, Result.DONE, now)


def _places_the_held(machine: Any, planned: Any, plan: Any, _turns: Any, now: Any) -> None:
    for hold in plan.holds:
        placing.serve(machine, machine.state.jobs[hold.job], Reason.BY_POLICY, now, 10, ())


def _does_nothing(*_: Any) -> None:
    """Stand where something should be done."""


_append_next, _read = Process._append_next, Process.read
_answered, _record = AdmissionMachine._answered, Transaction.record
_bind, _stop = AgentMachine._bind, AgentMachine._stop
_agent_snapshot, _allocator_snapshot = AgentMachine.snapshot, AllocatorMachine.snapshot

_owed, _send, _conclude = change_ends.owed, migration._send, resize_ends.conclude
_part, _share = sets.leave_set, Cells.share
_told_once: dict[int, None] = {}

PLANTS = (
    Plant("publish before durable", Process, "_append_next", _publishes_first, ("I2", "I4", "I9")),
    Plant(
        "position acknowledged before the effect",
        Process,
        "read",
        _acknowledges_first,
        ("I1", "I10", "I7"),
    ),
    Plant("lost timer: commands not repeated", soft.Soft, "set_timer", _does_nothing, ("I10",)),
    Plant(
        "lost timer: commands forgotten in a restart", upkeep, "restarted", _does_nothing, ("I10",)
    ),
    Plant("no deduplication of keys", AdmissionMachine, "_answered", _remembers_no_key, ("I9",)),
    Plant("no floor at the agent", AgentMachine, "_bind", _keeps_no_floor, ("I0", "I2", "I4")),
    Plant("GPUs of a lost node count as free", Transaction, "record", _frees_at_once, ("I2", "I4")),
    Plant(
        "a name taken back is used before it is clear",
        NodeState,
        "usable",
        property(lambda node: not (node.lost or node.drained)),
        ("I2",),
    ),
    Plant(
        "a stop for an unknown attempt is not kept",
        AgentMachine,
        "_stop",
        _stops_the_known_only,
        ("I10",),
    ),
    Plant(
        "an agent's snapshot leaves something out",
        AgentMachine,
        "snapshot",
        _forgets_stops,
        ("I0", "I7"),
    ),
    Plant(
        "the allocator's snapshot leaves a node out",
        AllocatorMachine,
        "snapshot",
        _forgets_a_node,
        ("I0", "I7"),
    ),
    Plant(
        "cells are split without regard to what others own", Draft, "_safe", lambda _: True, ("I0",)
    ),
    Plant("claimed GPUs count as idle", ChainState, "is_idle", _idle_whoever_claims, ("I0", "I2")),
    Plant("cells stay bound when nobody uses them", ChainState, "_unused", _does_nothing, ("I0",)),
    Plant("a change is told once and never again", change_ends, "owed", _owes_once, ("I10",)),
    Plant(
        "a part that refused counts as suspended",
        suspension,
        "refusals",
        _refuses_nothing,
        ("I12",),
    ),
    Plant(
        "a suspended job returns to GPUs that others use",
        job_cells,
        "home",
        _any_home,
        ("I0", "I2", "I12"),
    ),
    Plant(
        "a suspended job goes on with GPUs that others use",
        rebind,
        "available_leaves",
        _takes_all,
        ("I0", "I2", "I12"),
    ),
    Plant(
        "who goes on with other GPUs is not told with which",
        resume_places,
        "plans",
        _told_nothing,
        ("I2", "I4"),
    ),
    Plant(
        "a job goes on with other GPUs that never said it can",
        resume_places,
        "moves",
        _goes_anywhere,
        ("I15",),
    ),
    Plant(
        "a job moves before its successor has its state",
        migration,
        "_send",
        _commits_early,
        ("I0", "I13"),
    ),
    Plant(
        "a gang on several nodes moves without standing first",
        migration,
        "_ready",
        _moves_apart,
        ("I0", "I10", "I13"),
    ),
    Plant(
        "a job that was suspended goes on when its move fails",
        migration,
        "undo",
        _wakes_up,
        ("I0", "I12"),
    ),
    Plant(
        "a successor that is given up is forgotten", outbox, "drop", _does_nothing, ("I0", "I13")
    ),
    Plant(
        "a gang is smaller while those who leave are still there",
        PartState,
        "leaving",
        property(lambda _: False),
        ("I2", "I4"),
    ),
    Plant(
        "a gang that could not change its size has changed it",
        resize_ends,
        "conclude",
        _resizes_anyhow,
        ("I0", "I12", "I14"),
    ),
    Plant(
        "what a set holds goes with who brought it",
        sets,
        "leave_set",
        _takes_all_along,
        ("I0", "I2"),
    ),
    Plant("a set is counted once for each of its jobs", Cells, "share", _counts_each, ("I0",)),
    Plant("a job is said to be unpacked and stays", making_room, "leave", _says_it_left, ("I16",)),
    Plant(
        "a policy's jobs are also served by their queue",
        policy_views,
        "rules",
        lambda *_: False,
        ("I17",),
    ),
    Plant("who is held by a policy is placed", policy_plans, "_hold", _places_the_held, ("I17",)),
    Plant("a trial without a verdict stays open", trials, "review", _does_nothing, ("I18",)),
    Plant("a move that is undone stays", trials, "_goes_back", lambda *_: "", ("I18",)),
    Plant("processes are never stopped", AgentMachine, "_stop_ranks", _does_nothing, ("I10",)),
)

NO_FENCE = "no fence at the log"


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Put a bug in place while the context lasts."""
    right = vars(plant.owner)[plant.attribute]
    try:
        setattr(plant.owner, plant.attribute, plant.wrong)
        yield
    finally:
        setattr(plant.owner, plant.attribute, right)


def find(bug: str, settings: Settings, seeds_max: int = SEEDS_MAX, first: int = 0) -> Finding:
    """Return a history in which an invariant breaks.

    Args:
        bug: What the bug is called.
        settings: How histories are run.
        seeds_max: How many seeds are tried, from 0 on.
        first: The seed that is tried before the others.

    Returns:
        The finding; its `invariant` is empty if none breaks.
    """
    for seed in dict.fromkeys((first, *range(seeds_max))):
        result = run_seed(seed, settings)
        if result.violation:
            text = result.violation.strip().splitlines()[-1]
            return Finding(bug, result.invariant, seed + 1, text)
    return Finding(bug)


def find_all(seeds_max: int, tell: Callable[[Finding], None]) -> list[Finding]:
    """Plant every bug in turn, the missing fence first.

    Args:
        seeds_max: How many seeds are tried for each.
        tell: Is called with each finding.
    """
    found = [find(NO_FENCE, Settings(fence=False), seeds_max)]
    tell(found[0])
    for plant in PLANTS:
        with planted(plant):
            found.append(find(plant.name, Settings(), seeds_max))
        tell(found[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 0 if every bug was found."""
    parser = argparse.ArgumentParser(
        prog="python -m skep.sim.planted", description="Plant bugs, and find them."
    )
    parser.add_argument(
        "--seeds-max",
        type=int,
        default=SEEDS_MAX,
        metavar="N",
        help=f"histories to look through ({SEEDS_MAX})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    found = find_all(options.seeds_max, _nothing if options.json else _tell)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    return 0 if all(finding.invariant for finding in found) else 1


def _tell(finding: Finding) -> None:
    if finding.invariant:
        where = f"{finding.invariant:4} in history {finding.seeds:2}"
        print(f"{finding.bug:48} {where}: {finding.text[:120]}", flush=True)
    else:
        print(f"{finding.bug:48} NOT FOUND", flush=True)


def _nothing(_: Finding) -> None:
    """Say nothing before the end."""


if __name__ == "__main__":
    sys.exit(main())
