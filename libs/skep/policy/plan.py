"""What a policy proposes: whom to place in which order, and what to do to those that run.

A plan says everything that is to happen in its VC: a waiting job that is in no turn is held, and
nothing else takes the GPUs that are free behind the policy's back (opportunistic jobs borrow them,
and give them back, as ever).
"""

from __future__ import annotations

import msgspec

from skep.units import Instant
from skep.wire.reasons import Reason


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Turn(_Part, frozen=True):
    """Place a job that is WAITING or AWAY; `nodes`, if there are any, are the only ones it may use.

    Where on them is the cells' own rule: as few nodes as possible, best fit. Nodes that the cells
    refuse with no job of the VC in the way (the view shows room, or nobody is there) are passed
    over: the job goes where the cells have room, as if none had been named. A job that is AWAY and
    cannot migrate returns to its own nodes whatever is named; while they are taken it holds up
    nobody, also in a strict plan.
    """

    job: str
    why: Reason
    nodes: tuple[str, ...] = ()


class Preempt(_Part, frozen=True, tag="preempt"):
    """Take a job's GPUs: it is suspended if it can be, else stopped, and waits again.

    A job that is stopped goes on from its latest checkpoint.
    """

    job: str
    why: Reason
    detail: str = ""


class Suspend(_Part, frozen=True, tag="suspend"):
    """Suspend a job at a mini-batch boundary; it waits without GPUs.

    `owed` is noted durably for the plans to come: how much longer it should have run until now, in
    nanoseconds (negative: it has run for too long). What it runs until the boundary comes after.
    """

    job: str
    why: Reason
    owed: int = 0


class Pack(_Part, frozen=True, tag="pack"):
    """Place a job that is WAITING on the GPUs of another one that runs.

    On `trial` it stays there only if their rates show that this is worth it: the sum of each rate,
    in thousandths of what the job makes alone, has to be more than `needed_milli` (1000: what turns
    on those GPUs give if they cost nothing). Nothing happens where it may not be tried now.
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

    On `trial` it stays there only if its rate, in thousandths of what it was before, is more than
    `needed_milli`; else it goes back, if there is room still. `defrag` names what it is for.
    """

    job: str
    why: Reason
    nodes: tuple[str, ...] = ()
    trial: bool = False
    needed_milli: int = 1000
    defrag: bool = False


class Resize(_Part, frozen=True, tag="resize"):
    """Give a running job another number of workers (and of parameter servers, unless 0).

    On `trial` it keeps them only if its rate, in thousandths of what it was before, is more than
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
    """Say why a waiting job is held although it might fit."""

    job: str
    why: Reason
    needs: str = ""


class Plan(_Part, frozen=True):
    """First `actions` are taken, then `turns` in their order.

    With `strict` a job that does not fit holds up all behind it; without, the next one is tried.
    A plan is made anew after everything that happens in the VC, so it had better be stable: told
    the same, a policy proposes the same. `look_at`: when to ask again if nothing happens before.
    """

    turns: tuple[Turn, ...] = ()
    strict: bool = True
    actions: tuple[Action, ...] = ()
    holds: tuple[Withheld, ...] = ()
    look_at: Instant | None = None
