"""What the code decides, written down before its shape changes, and compared after.

    python -m tests.corpus [--seeds 2000] [--first 0]    compare; exit 1 if anything is different
    python -m tests.corpus --write                       write down what this code does
    python -m tests.corpus --only worlds|policies        one of the two

`worlds.gz` has a line for each history of the fault simulator: its seed, the number of records in
the fact logs, a digest of their bytes, and a digest of the allocator's state after each of its
records. `policies.json` has digests of what `skep sim` prints and writes for every policy, from
`tests.corpus.same_bytes`. A change of the code's shape leaves all of them as they are. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skep.sim.history import live
from skep.sim.logs import FactLog
from skep.sim.violation import ViolationError
from skep.sim.world import Settings, World
from tests.fold_kit import digests

HERE = Path(__file__).parent
WORLDS = HERE / "worlds.gz"
POLICIES = HERE / "policies.json"
DIGEST_CHARS = 16
"""Enough to tell two histories apart; the file stays small."""
CHECK_EVERY = 1000
"""Steps between two checks of the invariants, which `make seeds` checks far more often."""
STATE_LOG = "allocator"
PROGRESS_EVERY_S = 5.0
SEEDS = 2000


class History(NamedTuple):
    """One history. The digests are hexadecimal."""

    seed: int
    records: int
    facts: str
    states: str

    @classmethod
    def read(cls, text: str) -> History:
        """Return a line of the file.

        Raises:
            ValueError: it is not such a line.
        """
        seed, records, facts, states = text.split()
        return cls(int(seed), int(records), facts, states)

    def __str__(self) -> str:
        return " ".join(map(str, self))


def history(seed: int) -> History:
    """Return what happens in the history of a seed.

    Raises:
        ViolationError: An invariant broke; it has a note that names the seed.
    """
    played = World(seed, Settings(check_every=CHECK_EVERY))
    try:
        live(played)
    except ViolationError as violation:
        violation.add_note(
            f"in the history of seed {seed}: `python -m skep.sim.run --story {seed}` shows it"
        )
        raise
    logs = {name: role.log for name, role in sorted(played.roles.items()) if role.log is not None}
    facts = hashlib.sha256()
    for name, log in logs.items():
        facts.update(f"{name} {len(log.payloads)}\n".encode())
        for payload in log.payloads:
            facts.update(payload + b"\n")
    return History(
        seed,
        sum(len(log.payloads) for log in logs.values()),
        facts.hexdigest()[:DIGEST_CHARS],
        _states(logs[STATE_LOG]),
    )


def _states(log: FactLog) -> str:
    """Return a digest of the allocator's state after each record of its log."""
    whole = hashlib.sha256()
    for each in digests([record.facts for record in log.replay()]):
        whole.update(each.encode())
    return whole.hexdigest()[:DIGEST_CHARS]


def worlds(seeds: range, processes: int) -> Iterator[History]:
    """Yield the histories of some seeds, in order; say on stderr how far it is."""
    at = time.monotonic()
    with multiprocessing.Pool(processes) as pool:
        for done, line in enumerate(pool.imap(history, seeds, chunksize=4), start=1):
            if time.monotonic() - at > PROGRESS_EVERY_S:
                at = time.monotonic()
                sys.stderr.write(f"{done:,} of {len(seeds):,} seeds\n")
            yield line


def read_worlds(path: Path = WORLDS) -> dict[int, History]:
    """Return the stored histories by seed.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a history.
    """
    lines = map(History.read, gzip.decompress(path.read_bytes()).decode().splitlines())
    return {line.seed: line for line in lines}


def policies() -> dict[str, str]:
    """Return a digest of each output of `skep sim` for every policy, by its name."""
    command = [sys.executable, "-m", "tests.corpus.same_bytes", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)["sha256"]
    return found


def compare(seeds: range, processes: int, only: str) -> dict[str, Any]:
    """Return what is different from what is stored."""
    found: dict[str, Any] = {}
    if only != "policies":
        known = read_worlds()
        seen = [line for line in worlds(seeds, processes) if line.seed in known]
        found["seeds"] = len(seen)
        found["records"] = sum(line.records for line in seen)
        found["different seeds"] = [line.seed for line in seen if known[line.seed] != line]
    if only != "worlds":
        stored, now = json.loads(POLICIES.read_text()), policies()
        found["outputs"] = len(now)
        found["different outputs"] = sorted(
            name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name)
        )
    return found


def write(seeds: range, processes: int, only: str) -> dict[str, Any]:
    """Store what this code does."""
    if only != "policies":
        text = "".join(f"{line}\n" for line in worlds(seeds, processes))
        WORLDS.write_bytes(gzip.compress(text.encode(), mtime=0))
    if only != "worlds":
        POLICIES.write_text(json.dumps(policies(), indent=1) + "\n")
    return {"written": len(seeds)}


def main() -> int:
    """Write or compare; return the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many ({SEEDS})")
    parser.add_argument("--processes", type=int, default=2, help="at once (2)")
    parser.add_argument("--only", choices=("worlds", "policies"), default="")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    act = write if chosen.write else compare
    found = act(seeds, chosen.processes, chosen.only)
    print(json.dumps(found))
    return 1 if found.get("different seeds") or found.get("different outputs") else 0


if __name__ == "__main__":
    sys.exit(main())
