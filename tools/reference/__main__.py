"""Write the reference in docs/reference from the code.

    python -m tools.reference            write it
    python -m tools.reference --check    exit 1 if a page is not as it should be

The page of environment variables is written by hand, and compared with the code either way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.reference import commands, lives, pages, rights, slurm, variables

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "change-life.svg": lives.change_picture,
    "commands.md": commands.text,
    "facts.md": pages.fact_tags,
    "job-life.svg": lives.job_picture,
    "job-spec.md": pages.spec,
    "lives.md": lives.text,
    "metrics.md": pages.metrics,
    "policies.md": pages.policies,
    "reasons.md": pages.reason_codes,
    "rights.md": rights.text,
    "slurm.md": slurm.text,
    "streams.md": pages.streams,
}
VARIABLES = "variables.md"


def main() -> int:
    """Write or check the pages; return 1 if one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    wrong = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(f"{path}: run make reference")
    page = (FOLDER / VARIABLES).read_text(encoding="utf-8")
    wrong += [f"{FOLDER / VARIABLES}: {each}" for each in variables.problems(ROOT, page)]
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
