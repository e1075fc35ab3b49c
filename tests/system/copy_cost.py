"""What copies in memory cost a gang's training: mini-batches per second with them and without.

One gang on two nodes, with `replicas_every="auto"`. A time with a copy lasts until the next one is
due, as it would be without this; an equally long one without follows. So each pair has the same
processes, and all that a copy costs is in its first half.
"""

from __future__ import annotations

import bisect
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.elastic_gang import Member
from tests.system.lost_ranks import HOMES, MEMORY, RANKS, start
from tests.system.reshard import LARGE, gang, say

PAIRS, ENOUGH_S = 6, 240.0
"""So many pairs are played, or as many as come within this time, and one at least."""
SAMPLES = 100_000
"""More than it comes to."""


def cost(folder: Path, layers: int) -> dict[str, Any]:
    """Return the rates of each pair, and what a copy takes beside the training.

    Args:
        folder: For what the gang writes.
        layers: Of the model: 12.6 million parameters each.
    """
    options = LARGE | {"sizes": [1, RANKS], "copies": "auto", "samples": SAMPLES, "rests": True}
    options["layers"] = layers
    with (
        tempfile.TemporaryDirectory(prefix="skep-cost-", dir=MEMORY) as memory,
        gang(folder / "cost", stamps=True, **options) as of,
    ):
        of.memory = Path(memory)
        members = start(of, HOMES)
        first = members[0]
        told, until = 0, time.monotonic() + ENOUGH_S
        while len(found := pairs(first)) < (PAIRS if time.monotonic() < until else 1):
            seen = len(first.lines)
            if len(found) > told:
                told = len(found)
                say(str(found[-1]))
            first._wait(lambda seen=seen: len(first.lines) > seen)
        (known,) = first.answers("fingerprint")[:1]
        for member in members:
            member.process.kill()
    copies = [line for member in members for line in member.lines if "copied_s" in line]
    failed = [line["copied_s"] for line in copies if not isinstance(line["copied_s"], float)]
    took = [line["copied_s"] for line in copies if isinstance(line["copied_s"], float)]
    ratios = [one["with_per_s"] / one["without_per_s"] for one in found]
    return {
        "parameters_millions": round(known["fingerprint"]["parameters"] / 1e6, 1),
        "ranks": RANKS,
        "nodes": len(set(HOMES)),
        "pairs": found,
        "with_per_s": round(statistics.median(one["with_per_s"] for one in found), 3),
        "without_per_s": round(statistics.median(one["without_per_s"] for one in found), 3),
        "slower_by_percent": round(100 * (1 - statistics.median(ratios)), 1),
        "copy_s": round(statistics.median(took), 2),
        "stood_ms": round(statistics.median(line["stood_ns"] for line in copies) / 1e6, 1),
        "copies_failed": failed,
    }


def pairs(member: Member) -> list[dict[str, Any]]:
    """Return the pairs that a rank is through with."""
    lines = list(member.lines)
    batches = [line["at"] for line in lines if line.get("stamp") == "batch"]
    marks = [(line["mark"], line["at"]) for line in lines if "mark" in line]
    found = []
    for (kind, began), (_, rests), (_, ended) in zip(marks, marks[1:], marks[2:], strict=False):
        if kind != "copies":
            continue
        done = [bisect.bisect(batches, at) for at in (began, rests, ended)]
        made = done[1] - done[0], done[2] - done[1]
        found.append(
            {
                "seconds": [round(rests - began, 2), round(ended - rests, 2)],
                "mini_batches": list(made),
                "with_per_s": round(made[0] / (rests - began), 3),
                "without_per_s": round(made[1] / (ended - rests), 3),
            }
        )
    return found
