"""What is kept of a job and of a cluster as rows of numbers: seconds, GPUs, ratios.

A row of a job has RAW numbers and changes only when something happens to the job. A row of a
cluster has CLUSTER numbers. Times are seconds since the epoch, or of any other clock as long as all
of them are. Whoever trains a model makes the same rows from a simulated cluster.
"""

from __future__ import annotations

from math import log2

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

PHASES = ("waiting", "reserved", "starting", "running", "suspended", "away", "stopping")
"""The number of a phase is its place here."""
WAITING, RESERVED, STARTING, RUNNING, SUSPENDED, AWAY, STOPPING = range(len(PHASES))
UNKNOWN = -1.0
"""Of a time that is not predicted."""
SIZES = 6
"""Sizes of a job that a row holds: those that an action may choose, and those looked ahead to."""
NODE_MAX = 16
"""A node with more free GPUs counts as one with so many."""

(
    PHASE,
    EACH,  # GPUs of one worker
    WORKERS,  # that it has, or asks for
    LEAST,
    MOST,
    SUBMITTED,
    SINCE,  # when it entered its phase
    SERVED,  # how long it had run by then
    LEFT,  # how long it still had to run at SINCE, at its size; UNKNOWN
    DOUBT,  # of its predictions, as a fraction; 0: unknown
    NODES,  # on how many it is
    RESIZABLE,
    BORROWS,
    PAUSE,  # how long it stands still when it is moved; 0: unknown
    SLOW_NEAR,  # its time on one node more than needed, over that on the fewest; 0: unknown
    SLOW_FAR,  # the same on FAR_NODES nodes
    FAR_NODES,
    SLOW_NOW,  # the same where it is
) = range(18)
SIZE = 18
"""The first of SIZES sizes it may have, fewest workers first; 0: no more."""
RATE = SIZE + SIZES
"""The first of the SIZES rates there, in any unit; 0: unknown."""
RAW = RATE + SIZES

(
    GPUS,
    FREE,
    NODE_GPUS,  # of a whole node
    NODE_COUNT,
    WHOLE,  # nodes with all GPUs free
    HISTORY,  # for how many seconds arrivals were followed
    ARRIVED,  # jobs in the last hour
    ARRIVED_BEFORE,  # jobs in the hour before
    ARRIVED_WORK,  # GPU-seconds of the jobs that came in the last hour, as far as known
    # Of waiting jobs: how many, their GPUs, GPU-seconds that they need as far as known, of how many
    # that is known, and the sum of seconds since they came.
    QUEUED_JOBS,
    QUEUED_GPUS,
    QUEUED_WORK,
    QUEUED_KNOWN,
    QUEUED_AGE,
    # The same of jobs with GPUs.
    HELD_JOBS,
    HELD_GPUS,
    HELD_WORK,
    HELD_KNOWN,
    HELD_AGE,
    JOBS,  # waiting or with GPUs
) = range(20)
ROOM = 20
"""The first of NODE_MAX + 1 counts: nodes with 0, 1, ... free GPUs."""
CLUSTER = ROOM + NODE_MAX + 1

HOUR = 3600.0


def sizes_of(least: int, most: int, workers: int) -> list[int]:
    """Return the sizes of a job that its row holds, fewest workers first.

    They are both ends, the powers of two between, and its present size. If there are too many,
    those nearest to its present size remain. Sizes of one worker more and less are left out on
    purpose: a job would find others each time that it changes, and follow errors of their rates.

    Args:
        least: The fewest workers that it may have.
        most: The most.
        workers: Those that it has, or asks for.
    """
    if least >= most:
        return [workers]
    found = {workers, least, most}
    found.update(2**power for power in range(most.bit_length()) if least < 2**power < most)
    nearest = sorted(found, key=lambda each: (abs(log2(each / workers)), each))
    return sorted(nearest[:SIZES])
