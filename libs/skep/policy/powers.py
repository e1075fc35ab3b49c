"""What a policy may do to jobs and what it goes by: what a fair comparison has to name."""

from __future__ import annotations

from typing import Literal

import msgspec

PriorityRule = Literal["takes", "first", "ignored"]


class Powers(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may do to running jobs, and what it knows of jobs.

    The defaults are those of an order of the queue. What the jobs themselves can do (be suspended,
    be elastic) is not part of it: a policy that suspends has to stop jobs that cannot.
    """

    suspends: bool = False
    """Takes the GPUs of running jobs for others of the same priority, which wait again or stand."""
    moves: bool = False
    """Moves running jobs to other GPUs."""
    packs: bool = False
    """Puts jobs on GPUs that another job uses at the same time."""
    resizes: bool = False
    """Gives running elastic jobs another number of workers."""
    passes: bool = False
    """Tries the jobs of a queue behind one that does not fit: a large one may wait longer."""
    priority: PriorityRule = "first"
    """Of a higher priority: it takes GPUs from running jobs of a lower one, it only comes first
    among those that wait, or it does not count."""
    run_times: bool = False
    """Goes by the run times that owners say."""
    rates: bool = False
    """Goes by measured rates and what is predicted from them."""
