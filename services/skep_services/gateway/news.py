"""What may be shown otherwise than before: noted as facts are folded, taken by what shows it.

Noting too much costs a comparison, and noting too little is mended by a look at everything now
and then. Nothing grows while it is not taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from skep.ledger.history import EVERYWHERE, nodes_of

NOTED_MAX = 50_000
"""Names that are noted; beyond it everything counts as touched."""


class Touched(NamedTuple):
    """Jobs and nodes that may be shown otherwise; `everything`: all of them that there are."""

    jobs: list[str]
    nodes: list[str]
    everything: bool


class News:
    """Names of jobs and nodes, until they are taken."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._jobs: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._everything = False

    def __bool__(self) -> bool:
        """Return whether there is anything."""
        return bool(self._jobs or self._nodes or self._everything)

    def job(self, name: str) -> None:
        """Note a job."""
        self._jobs[name] = None
        if len(self._jobs) > NOTED_MAX:
            self._jobs, self._everything = {}, True

    def fact(self, fact: Any) -> None:
        """Note the nodes that a fact of the allocator may have changed."""
        for name in nodes_of(fact):
            self._nodes[name] = None
        if isinstance(fact, EVERYWHERE) or len(self._nodes) > NOTED_MAX:
            self._everything = True

    def take(self) -> Touched:
        """Return what was noted, and begin anew."""
        touched = Touched(list(self._jobs), list(self._nodes), self._everything)
        self._jobs, self._nodes, self._everything = {}, {}, False
        return touched
