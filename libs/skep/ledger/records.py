"""What the ledger remembers of GPUs, trials, moves and ended jobs. Kept in snapshots."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep.units import Duration, Instant, after, seconds
from skep.wire.facts import End
from skep.wire.reasons import Reason
from skep.wire.trials import Kind, TrialBegun


class JobOutcome(NamedTuple):
    """How a job or an array ended, and in which VC it was."""

    vc: str
    end: End


class PipelineKey(NamedTuple):
    """Which pipeline a job is of: names are apart for each VC, and for each owner in it."""

    vc: str
    owner: str
    name: str


class PipelineJobs(msgspec.Struct):
    """The unfinished jobs of a pipeline with `max_parallel`.

    Those that are let in are in their queue, hold GPUs or are suspended; the others are deferred.
    """

    let_in: dict[str, None] = {}
    deferred: dict[str, None] = {}


class MoveCosts(msgspec.Struct):
    """What was measured of each."""

    pauses: dict[str, list[int]] = {}
    """By job, by VC and family, by `vc:` and VC: how long moves took, oldest first."""
    came: dict[str, Instant] = {}
    """By VC: when its latest guaranteed job was submitted."""


class Suspicion(msgspec.Struct):
    """What attempts that are over say about GPUs, which are named `node/device`."""

    signs: dict[str, dict[str, int]] = {}
    """By GPU: the jobs that failed there since one last ran well, and when (wall-clock ns)."""
    failed: dict[str, list[list[str]]] = {}
    """By job: the GPUs of attempts that failed so."""
    ran: dict[str, list[list[str]]] = {}
    """By job: the GPUs of attempts that ran well."""
    ruled: dict[str, int] = {}
    """GPUs quarantined by the rule, each with how many jobs spoke against it."""
    told: dict[str, str] = {}
    """By GPU: what it said of itself when it was quarantined for that the last time."""


COOLS = seconds(3600.0)
"""How long what was not worth it is not tried again between jobs of the same families of a VC."""


class Cooling(msgspec.Struct, frozen=True):
    """What is not tried again before `until`: it was no success `times` times in a row."""

    kind: Kind
    families: tuple[str, ...]
    until: Instant
    times: int = 1

    @property
    def known(self) -> Instant:
        """Return until when it is remembered that it was no success."""
        return after(self.until, Duration(COOLS << self.times))


class Undo(msgspec.Struct):
    """What has yet to be put back of a job: a guest leaves its host, a gang has `workers` again."""

    trial: int
    kind: Kind
    attempt: int
    why: Reason
    workers: int = 0
    servers: int = 0
    refused: int = 0
    """How often its ranks would not."""


class Probe(msgspec.Struct):
    """A size of a gang that was measured, or is, and what that takes.

    `workers`, `gpus` and `nodes` are the place, `takes` the GPUs of the larger of both sizes.
    `until` is when it ends at the latest, `ended` when the gang had its own size again, or was no
    more (0: it has not). `void`: nothing came of it.
    """

    trial: int
    job: str
    family: str
    gpu_type: str
    workers: int
    gpus: int
    nodes: int
    takes: int
    at: Instant
    until: Instant
    ended: Instant = Instant(0)
    void: bool = False


class Tries(msgspec.Struct):
    """What is known of trials: durable."""

    latest: int = 0
    open: dict[int, TrialBegun] = {}
    of_job: dict[str, int] = {}
    """The open trial of each job that is in one."""
    done: dict[int, Instant] = {}
    """By open trial of a move or a growth: since when the job runs as it is to be measured."""
    cooling: dict[str, dict[str, Cooling]] = {}
    """By VC, by kind and families: what is not tried again for now."""
    begun: dict[str, list[Instant]] = {}
    """By job, VC or pair: when trials were begun, oldest first, of the last hour."""
    solo: dict[str, int] = {}
    """By unfinished job that was packed on trial: its rate on GPUs of its own."""
    undoing: dict[str, Undo] = {}


class Probes(msgspec.Struct):
    """The probes of 24 hours: durable."""

    of_vc: dict[str, list[Probe]] = {}
    """By VC, the oldest first; also those that began earlier and have not ended."""
    open: dict[int, Probe] = {}
    """By trial: those that have not ended."""
