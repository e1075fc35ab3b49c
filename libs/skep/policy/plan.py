"""What a policy proposes: which jobs to place in which order, and what to do to running jobs.

A plan says all that is to happen in its VC. A waiting job without a turn is withheld, and no other
guaranteed job takes GPUs that the policy leaves free. Opportunistic jobs still borrow them, and
give them back.
"""

from __future__ import annotations

import msgspec

from skep.units import Instant
from skep.wire.learned import AdvisedMove
from skep.wire.reasons import Reason


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Turn(_Part, frozen=True):
    """Place a job that is WAITING or AWAY; `nodes`, if there are any, are the only ones it may use.

    The cells choose the GPUs on these nodes: as few nodes as possible, best fit. The cells may
    refuse the nodes although no job of the VC is in the way (the view shows free GPUs there, or no
    job holds them). Then `nodes` is ignored, and the job goes where the cells have free GPUs. A job
    that is AWAY and cannot migrate returns to its own nodes whatever `nodes` says; while they are
    taken it blocks no other job, also in a strict plan.

    `workers`: an elastic job that is WAITING begins with so many; 0: with those of its spec.
    `workers_per_node`: on none of `nodes` are there more of them; 0: the cells choose. With `nodes`
    that have room for so many each, and as many workers as that makes, every node has the same
    number. Where `nodes` are ignored, this is too.
    """

    job: str
    why: Reason
    nodes: tuple[str, ...] = ()
    workers: int = 0
    workers_per_node: int = 0


class Preempt(_Part, frozen=True, tag="preempt"):
    """Take a job's GPUs: suspend it if possible, else stop it; it waits again.

    A stopped job continues from its latest checkpoint.
    """

    job: str
    why: Reason
    detail: str = ""


class Suspend(_Part, frozen=True, tag="suspend"):
    """Suspend a job at a mini-batch boundary; it waits without GPUs.

    `owed` is its deficit, stored durably for later plans: for how many nanoseconds it should have
    run longer until now (negative: it has run for too long). The time that it runs until the
    boundary is counted later.
    """

    job: str
    why: Reason
    owed: int = 0


class Pack(_Part, frozen=True, tag="pack"):
    """Place a WAITING job on the GPUs of a running one.

    With `trial` it stays there only if the measured rates justify it: the sum of each rate, in
    thousandths of what the job makes alone, has to be more than `needed_milli` (1000: what turns on
    those GPUs give if they cost nothing). The action has no effect while such a trial is not
    allowed.
    """

    job: str
    beside: str
    why: Reason
    trial: bool = False
    needed_milli: int = 1000


class Unpack(_Part, frozen=True, tag="unpack"):
    """Take a job off the GPUs that it shares; it waits again."""

    job: str
    why: Reason


class Migrate(_Part, frozen=True, tag="migrate"):
    """Move a running job to these nodes; without any, to where the cells' rule puts it.

    With `trial` it stays there only if its rate, in thousandths of the rate before, is more than
    `needed_milli`; else it goes back, if there are free GPUs still. `defrag` says that the move
    makes space for another job.
    """

    job: str
    why: Reason
    nodes: tuple[str, ...] = ()
    trial: bool = False
    needed_milli: int = 1000
    defrag: bool = False


class Resize(_Part, frozen=True, tag="resize"):
    """Give a running job another number of workers (and of parameter servers, unless 0).

    With `trial` it keeps them only if its rate, in thousandths of the rate before, is more than
    `needed_milli`.
    """

    job: str
    why: Reason
    workers: int
    servers: int = 0
    trial: bool = False
    needed_milli: int = 1000


Action = Preempt | Suspend | Pack | Unpack | Migrate | Resize


class Withheld(_Part, frozen=True):
    """Why a waiting job is withheld although it might fit."""

    job: str
    why: Reason
    needs: str = ""


class Drawn(_Part, frozen=True):
    """Which of a model's choices was drawn, and how likely that was (`wire.following`)."""

    seed: int
    choice: int
    chance: int
    """Millionths."""
    day: int
    spent: int
    """GPU-nanoseconds of the day, with this one."""
    move: AdvisedMove | None = None
    """What is made instead of the best; None: the best is."""


class Following(_Part, frozen=True):
    """Whether a plan is its VC's model's, or its rule's instead, and why (`learned`)."""

    model: bool
    why: Reason
    drawn: Drawn | None = None


class Plan(_Part, frozen=True):
    """All that a policy asks for: first `actions` are taken, then `turns` in their order.

    With `strict` a job that does not fit blocks all jobs behind it; without, the next one is tried.
    A new plan is made after every event in the VC, so plans should be stable: for the same view, a
    policy proposes the same. `look_at` is when to plan again if no event comes before; None: no
    time is set. `behind` is why waiting jobs wait that the plan does not name; None: the policy
    holds them back. `following` is said by a policy that has a model: what changes of it is a fact.
    """

    turns: tuple[Turn, ...] = ()
    strict: bool = True
    actions: tuple[Action, ...] = ()
    holds: tuple[Withheld, ...] = ()
    look_at: Instant | None = None
    behind: Reason | None = None
    following: Following | None = None
