"""Waits for a job that gave its GPUs back because it did nothing, and was asked to return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from skep_services.cli import exits
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ENDED
from skep_services.cli.options import say

LOOK_EVERY_S = 0.3
AGAIN_S = 10.0
"""How long a job may stay suspended without a word, before whoever waits asks anew."""


class Returns:
    """The one wait of everything in this process that waits for one job."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._lock = threading.Lock()
        self._told = False

    def wait(
        self, client: Client, job: str, error: CommandError, wanted: Callable[[], bool]
    ) -> bool:
        """Return whether what failed with an error may be tried again, once the job is back.

        Args:
            client: The gateway; of this thread.
            job: The job.
            error: Why there was no session.
            wanted: Says whether anybody still waits.

        Raises:
            CommandError: It is for another reason, or the job has ended meanwhile.
        """
        if not error.error.get("returns"):
            raise error
        with self._lock:
            until = time.monotonic() + AGAIN_S
            while wanted() and time.monotonic() < until:
                row = client.get(f"/v1/jobs/{quote(job)}")
                if row["state"] == "running":
                    self._told = False
                    return True
                if row["state"] in ENDED:
                    text = f"{job} has ended: it is {row['state']}"
                    raise CommandError(exits.FAILED, text, "not-running")
                if not self._told:
                    self._told = True
                    say(f"{job} did nothing and gave its GPUs back; it was asked to return")
                time.sleep(LOOK_EVERY_S)
        return wanted()
