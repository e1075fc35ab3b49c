"""`scontrol show hostnames` inside a job: the names of a list of nodes, a line for each."""

from __future__ import annotations

import os
import re
import sys

from skep_job.slurm.tasks import warn

FAILED = 1
NAMES_MAX = 10_000
PART = re.compile(r"(?P<before>[^\[\],]*)(?:\[(?P<inside>[0-9,-]+)\](?P<after>[^\[\],]*))?(?:,|$)")


def hostnames(text: str) -> list[str]:
    """Return the names of a list such as `gpu[01-03,7],login`.

    Raises:
        ValueError: It is no such list, or too long a one.
    """
    names: list[str] = []
    position = 0
    while position < len(text):
        match = PART.match(text, position)
        if match is None or match.end() == position:
            raise ValueError(text)
        position = match.end()
        if match["inside"] is None:
            names += [match["before"]] if match["before"] else []
            continue
        for piece in match["inside"].split(","):
            low, mark, high = piece.partition("-")
            last = int(high if mark else low)
            if last - int(low) + len(names) > NAMES_MAX:
                raise ValueError(text)
            numbers = (str(each).zfill(len(low)) for each in range(int(low), last + 1))
            names += [f"{match['before']}{number}{match['after'] or ''}" for number in numbers]
    return names


def main(words: list[str]) -> int:
    """Answer `scontrol show hostnames [LIST]`; return the exit code.

    Args:
        words: The command line.
    """
    if words[:1] != ["show"] or words[1:2] not in (["hostnames"], ["hostname"]) or len(words) > 3:
        warn("scontrol: error: inside a job there is `scontrol show hostnames [LIST]` alone")
        return FAILED
    text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = hostnames(text)
    except ValueError:
        warn(f"scontrol: error: no list of nodes: {text[:80]!r}")
        return FAILED
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0
