"""The advisor service: `skep.machines.advisor` on real ports."""

from __future__ import annotations

import os

# Fits are of small matrices: threads of the linear algebra that wait for one another take five
# times the processor time, and more where a container has one processor of many. numpy reads this
# when it is imported, so it is set here, before any module of the service is.
os.environ.setdefault("OMP_NUM_THREADS", "1")
