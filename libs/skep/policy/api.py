"""What a scheduling policy is: options, and a pure function from a view to a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from skep.policy.plan import Plan
from skep.policy.powers import Powers
from skep.policy.view import VcView
from skep.units import Duration

NUMBER_MAX = 1e12
"""The largest number that an option may be, and its negative the least: 30,000 years in seconds."""


Planner = Callable[[VcView], Plan]
"""A function that makes a plan from a view."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of a VC. Its fields are its options, with their defaults.

    Options are numbers, text, truth values and tuples of them, so that a cluster file can hold
    them. `skep.policy.registry.make` refuses numbers that are not finite or beyond NUMBER_MAX.
    `__post_init__` may raise ValueError for other values that make no sense.
    """

    name: ClassVar[str]
    """Its name in the cluster file."""
    source: ClassVar[str]
    """Paper and section."""

    @property
    def sees_nodes(self) -> bool:
        """Return whether its view has to hold every node, which costs time in a large cluster."""
        return False

    @property
    def only_orders(self) -> bool:
        """Return whether its plan is one turn for each waiting job, on any nodes, and nothing else.

        Such a plan withholds no job, changes no running job, sets no `look_at`, and a job that does
        not fit blocks no other. While nothing comes free, no new plan is made.
        """
        return False

    @property
    def sees_rates(self) -> bool:
        """Return whether it uses measurements and predictions of jobs: simulations skip it."""
        return False

    @property
    def sees_cells(self) -> bool:
        """Return whether its view has to hold the free cells of its VC, by level."""
        return False

    @property
    def counts_holds(self) -> bool:
        """Return whether its view has to hold how often each job was withheld."""
        return False

    @property
    def answers_within(self) -> Duration | None:
        """Return how long it waits for the model that advises it; None: none does.

        What it sees is told to its model, and its view has what that says (`VcView.advised`).
        """
        return None

    @property
    def powers(self) -> Powers:
        """Return what its plans may ask for, and what it goes by: comparisons name it."""
        return Powers(rates=self.sees_rates)

    @property
    def probes(self) -> bool:
        """Return whether all elastic jobs of its VC may be probed, not only those that allow it."""
        return False

    keeps_promises: ClassVar[bool] = False
    """Whether it gives promised jobs their GPUs in time: admission promises nothing otherwise."""

    def plan(self, view: VcView) -> Plan:
        """Return what is to happen in the VC.

        The function is pure: equal views give equal plans.
        """
        raise NotImplementedError

    def planner(self) -> Planner:
        """Return a function that plans as `plan` does.

        The function may keep state from one view to the next, to save work.
        """
        return self.plan
