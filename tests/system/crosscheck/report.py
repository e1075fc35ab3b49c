"""The cross-check as Markdown: theirs, ours, ours with switches, and which behaviour is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEAD = """| Run | Theirs | Ours | | With their quirks | | Bare loop | CPU s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of average completion times in seconds, and the reasons below it."""
    lines = [HEAD]
    for row in rows:
        loop = f"{row['reference']['jct_s']:,.3f}" if "reference" in row else "-"
        cpu_s = row["ours"]["cpu_s"] + (row["switched"]["cpu_s"] if row["switches"] else 0)
        lines.append(
            f"| {row['name']} | {row['theirs']['jct_s']:,.3f} | {row['ours']['jct_s']:,.3f}"
            f" | {row['difference_percent']:+.2f} % | {row['switched']['jct_s']:,.3f}"
            f" | {_difference(row)} | {loop} | {cpu_s:.0f} |"
        )
    for row in rows:
        lines += ["", f"**{row['name']}**: {row['why']} Right: {row['right']}"]
        lines += [f"- `{name}`: {what}" for name, what in row["switches"].items()]
    return "\n".join(lines) + "\n"


def _difference(row: dict[str, Any]) -> str:
    if row["exact"]:
        return "equal"
    percent = f"{row['difference_switched_percent']:+.2f} %"
    return percent if row["agrees"] else f"{percent}, DIFFERS"
