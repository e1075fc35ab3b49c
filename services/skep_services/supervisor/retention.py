"""Has old messages of the streams archived, once a day, where the cluster file asks for it."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping

from skep_services.supervisor.config import Retention
from skep_services.supervisor.run import say

FIRST_S = 600.0
"""After a start: services have taken over by then, and said how far they have read."""
EVERY_S = 86_400.0
WORDS_MAX = 500


def command(home: str, days: int) -> tuple[str, ...]:
    """Return what archives the old messages of a cluster."""
    older = str(days)
    words = ("log", "archive", "--older", older, "--home", home, "--json")
    return (sys.executable, "-m", "skep_services", *words)


async def watch(home: str, retention: Retention, env: Mapping[str, str] = {}) -> None:
    """Archive once a day until cancelled; at once nothing if nothing is to be archived.

    Args:
        home: The state folder.
        retention: How long messages stay.
        env: Variables of the command beside its parent's.
    """
    if not retention.archive_days:
        return
    await asyncio.sleep(FIRST_S)
    while True:
        await archive(home, retention.archive_days, env)
        await asyncio.sleep(EVERY_S)


async def archive(home: str, days: int, env: Mapping[str, str] = {}) -> int:
    """Archive once, and say what came of it; return the exit code.

    Args:
        home: The state folder.
        days: How long messages stay.
        env: Variables of the command beside its parent's.

    Raises:
        CancelledError: It was cancelled; the work is ended.
    """
    process = await asyncio.create_subprocess_exec(
        *command(home, days), stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}
    )
    try:
        out, words = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    code = process.returncode or 0
    if code:
        say("messages not archived", error=words.decode(errors="replace").strip()[-WORDS_MAX:])
    else:
        say("messages archived", told=out.decode(errors="replace").strip()[-WORDS_MAX:])
    return code
