"""What the crash matrix consists of: mechanisms, phases, who dies, and what has to come of it.

Pure. A phase is reached exactly, whatever the machine's speed: whoever would take the next step is
stopped (SIGSTOP) before it can, and what must have happened by then is waited for in the logs on
the bus, in an agent's journal, in what the jobs note, or among the kernel's sockets. Then the
victim is killed, and whoever else was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Cell(NamedTuple):
    """One crash."""

    mechanism: str
    phase: str
    victim: str

    def __str__(self) -> str:
        """Return how `--only` names it."""
        return "/".join(self)


class Came(NamedTuple):
    """What came of a cell: the request's result, and what became of the attempt it was about."""

    result: str
    fate: str

    def __str__(self) -> str:
        """Return it as the table shows it."""
        return f"{self.result}, {self.fate}"


SAME, MOVED, RESTARTED, ENDED = "same attempt", "moved", "restarted", "ended"
"""Fates. `restarted`: another attempt, from its latest checkpoint; an observed script begins anew.
`ended`: cancelled, as somebody wished."""

Steps = tuple[str, ...]

_ASKED: dict[str, Steps] = {
    "asked": ("stop admission", "ask"),
    "recorded": ("stop allocator", "ask", "see change-asked"),
}


def _one(holds: str) -> dict[str, Steps]:
    """Return the phases of a change in one round; `holds` keeps a part from carrying it out."""
    taken = (f"stop {holds}", "ask", "see taken")
    return {
        **_ASKED,
        "ordered": ("stop agent", "ask", "see job-changing"),
        "taken": taken,
        "answered": (*taken, "stop allocator", f"go {holds}", "see member-changed"),
        "committed": ("ask", "see job-changed"),
    }


_MOVING: Steps = ("stop source", "ask", "see taken")
_LOADED: Steps = (
    *_MOVING,
    "stop allocator",
    "go source",
    "see member-loaded",
    "see member-changed",
)
_READY: Steps = ("stop source-agent", "ask", "see successor-ready")

MIGRATE: dict[str, Steps] = {
    **_ASKED,
    "bound": ("stop successor-agent", "ask", "see successor-bound"),
    "starting": ("ask", "see successor-begun", "stop successor"),
    "ready": _READY,
    "moving": _MOVING,
    "sending": (*_READY, "stop successor", "go source-agent", "see source-connected"),
    "loaded": _LOADED,
    "moved": (
        *_LOADED,
        "stop source-agent",
        "stop successor-agent",
        "go allocator",
        "see job-moved",
    ),
}

GROW: dict[str, Steps] = {
    **_ASKED,
    "widened": ("stop agent", "ask", "see job-changing"),
    "starting": ("ask", "see newcomer-begun", "stop newcomer"),
    "meeting": ("stop survivor", "ask", "see newcomer-connected"),
    "answered": (
        "stop survivor",
        "ask",
        "see taken",
        "stop allocator",
        "go survivor",
        "see member-changed",
    ),
    "committed": ("ask", "see job-changed"),
}

SHRINK: dict[str, Steps] = {
    **{name: steps for name, steps in _one("survivor").items() if name != "committed"},
    "narrowed": ("ask", "see gang-narrowed"),
}


class Mechanism(NamedTuple):
    """A change of a running job of a `kind` (`tests/e2e/jobs/trajectory.py`).

    It is asked for with `ask`, after what is in `before` was done (it is suspended already, say).
    """

    kind: str
    ask: Mapping[str, object]
    before: tuple[Mapping[str, object], ...]
    phases: Mapping[str, Steps]
    ranks: tuple[str, ...] = ("job",)
    """Its processes that may die."""
    agents: tuple[str, ...] = ("agent",)
    warm: bool = False
    """The process that begins in it is forked from a warm process, which may die too."""


SUSPEND: Mapping[str, object] = {"ask": "suspend"}
RELEASE: Mapping[str, object] = {"ask": "suspend", "release": True}
RESUME: Mapping[str, object] = {"ask": "resume"}
TWO: Mapping[str, object] = {"ask": "resize", "workers": 2}

MECHANISMS: dict[str, Mechanism] = {
    "suspend": Mechanism("cooperative", SUSPEND, (), _one("job")),
    "release": Mechanism("cooperative", RELEASE, (), _one("job")),
    "resume": Mechanism("cooperative", RESUME, (SUSPEND,), _one("runner")),
    "resume-released": Mechanism("cooperative", RESUME, (RELEASE,), _one("runner")),
    "checkpoint": Mechanism("cooperative", {"ask": "checkpoint"}, (), _one("job")),
    # Each rank writes its part beside the training, and copies it to the other node's memory.
    "checkpoint-sharded": Mechanism(
        "sharded", {"ask": "checkpoint"}, (TWO,), _one("survivor"), ("survivor",)
    ),
    "migrate": Mechanism(
        "cooperative",
        {"ask": "migrate"},
        (),
        MIGRATE,
        ("source", "successor"),
        ("source-agent", "successor-agent"),
    ),
    "grow": Mechanism(
        "elastic", {"ask": "resize", "workers": 3}, (TWO,), GROW, ("survivor", "newcomer")
    ),
    "shrink": Mechanism(
        "elastic", {"ask": "resize", "workers": 1}, (TWO,), SHRINK, ("survivor", "leaver")
    ),
    "warm-migrate": Mechanism(
        "warm",
        {"ask": "migrate"},
        (),
        MIGRATE,
        ("source", "successor"),
        ("source-agent", "successor-agent"),
        warm=True,
    ),
    "plain-release": Mechanism("plain", RELEASE, (), _one("job")),
    "plain-resume": Mechanism("plain", RESUME, (RELEASE,), _one("runner")),
}

EVERYTHING, CANCEL, WARM = "everything", "cancel", "warm-process"
SERVICES = ("admission", "allocator", "nats", "gateway")


def victims(mechanism: str, phase: str) -> Iterator[str]:
    """Yield who may die in a phase: ranks, then agents and runner, services, all; and a cancel."""
    about = MECHANISMS[mechanism]
    for rank in about.ranks:
        if _exists(rank, phase):
            yield rank
    yield from about.agents
    if about.warm:
        yield from (WARM, EVERYTHING, CANCEL)
        return  # Services stand by it as they do by other migrations.
    if mechanism != "migrate":
        yield "runner"
    yield "allocator"
    yield "nats"
    if phase in _ASKED:
        yield "admission"
    if phase in ("asked", list(about.phases)[-1]):
        yield "gateway"
    yield EVERYTHING
    yield CANCEL


def _exists(rank: str, phase: str) -> bool:
    """Tell whether a process is there in a phase."""
    if rank == "successor":
        return phase not in ("asked", "recorded", "bound")
    if rank == "newcomer":
        return phase not in ("asked", "recorded", "widened")
    if rank == "leaver":
        return phase not in ("answered", "narrowed")
    return not (rank == "source" and phase == "moved")


def cells() -> list[Cell]:
    """Return the whole matrix."""
    return [
        Cell(mechanism, phase, victim)
        for mechanism, about in MECHANISMS.items()
        for phase in about.phases
        for victim in victims(mechanism, phase)
    ]


def chosen(only: str) -> list[Cell]:
    """Return the cells of `MECHANISM[/PHASE[/VICTIM]]`, of which each part may be `*`.

    Raises ValueError for a pattern that names no cell.
    """
    wanted = [part or "*" for part in only.split("/")]
    found = [
        cell
        for cell in cells()
        if all(part in ("*", name) for part, name in zip(wanted, cell, strict=False))
    ]
    if not found or len(wanted) > len(Cell._fields):
        text = f"{only}: no such cell; mechanisms are {', '.join(MECHANISMS)}"
        raise ValueError(text)
    return found


# --- what has to come of it ----------------------------------------------------------------------

UNSETTLED = ("refused", "overtaken", "done")
"""Whether a request reaches an attempt that ends, none, or the next, depends on who is first."""


def allowed(cell: Cell) -> frozenset[Came]:
    """Return what may come of a cell."""
    about, victim, phase = MECHANISMS[cell.mechanism], cell.victim, cell.phase
    if victim == CANCEL:
        # Where the request is over already, that stands; else either may be judged first.
        over = phase in ("committed", "narrowed")
        results = ("done",) if over else (*UNSETTLED, "undone")
        return frozenset(Came(result, ENDED) for result in results)
    if victim in about.ranks:
        return _killed_rank(cell)
    moved = MOVED if about.phases is MIGRATE else SAME
    if phase in ("moving", "sending") and victim in ("source-agent", EVERYTHING):
        # The agent that comes back does not know whether the state arrived: the source has it.
        return frozenset([Came("undone", SAME)])
    return frozenset([Came("done", moved)])


def _killed_rank(cell: Cell) -> frozenset[Came]:
    victim, phase = cell.victim, cell.phase
    if victim in ("successor", "newcomer") and not _settled(cell):
        return frozenset([Came("undone", SAME)])
    if victim == "source" and phase == "loaded":
        return frozenset([Came("done", MOVED)])
    if phase in _ASKED:
        return frozenset(Came(result, RESTARTED) for result in UNSETTLED)
    if victim == "successor":
        # It is the job; whether it had gone on by then is not known to whoever kills it.
        return frozenset(Came(result, RESTARTED) for result in ("done", "overtaken"))
    if _settled(cell):
        return frozenset([Came("done", RESTARTED)])
    return frozenset([Came("overtaken", RESTARTED)])


def _settled(cell: Cell) -> bool:
    """Tell whether every node has answered: what is then recorded is that it is done."""
    return cell.phase in ("answered", "loaded", "committed", "narrowed", "moved")
