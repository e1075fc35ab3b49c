"""What a scheduling policy is: options, and a pure function from a view to a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from skep.policy.plan import Plan
from skep.policy.view import VcView

NUMBER_MAX = 1e12
"""The largest number that an option may be, and its negative the least: 30,000 years in seconds."""


Planner = Callable[[VcView], Plan]
"""What makes a plan of a view."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of a VC. Its fields are its options, with their defaults.

    Options are numbers, text, truth values and tuples of them, so that they can stand in the
    cluster file; whoever makes a policy from one refuses what is not finite or beyond NUMBER_MAX.
    `__post_init__` may raise ValueError for another value that makes no sense.
    """

    name: ClassVar[str]
    """What it is called in the cluster file."""
    source: ClassVar[str]
    """Paper and section."""

    @property
    def sees_nodes(self) -> bool:
        """Return whether its view is to hold every node: that costs time in a large cluster."""
        return False

    @property
    def only_orders(self) -> bool:
        """Return whether its plan is a turn for each that waits, on any nodes, and nothing else.

        That is, nobody is held, nobody who runs is touched, it does not ask to be asked again, and
        one that does not fit holds up nobody. While nothing comes free such a plan is not made.
        """
        return False

    @property
    def sees_rates(self) -> bool:
        """Return whether it goes by what is measured and predicted of jobs: simulations skip it."""
        return False

    @property
    def sees_cells(self) -> bool:
        """Return whether its view is to tell which of its VC's cells are free, by level."""
        return False

    counts_holds: ClassVar[bool] = False
    """Whether its view is to tell how often each job was held (`JobView.held`)."""

    def plan(self, view: VcView) -> Plan:
        """Return what is to happen. Pure: the same view, the same plan."""
        raise NotImplementedError

    def planner(self) -> Planner:
        """Return what plans as `plan` does: it may keep what it found out from view to view."""
        return self.plan
