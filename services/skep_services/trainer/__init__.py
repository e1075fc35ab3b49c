"""The trainer: a process beside a cluster that tunes learned models on the jobs it had."""

from __future__ import annotations

import os

# One thread: what it does has no hurry, and nothing else on the machine is to be slower for it.
# numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
