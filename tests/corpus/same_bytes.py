"""The same trace and seed give the same bytes: whatever strings hash to, however many processes.

    python -m tests.corpus.same_bytes [--jobs 60] [--policy fifo --policy srtf] [--json]

Every policy plays one small trace, with noise, costs, hints and models drawn by the seed, in one
`skep sim compare`; one of them also in `skep sim run` and `skep sim sweep`. Policies of `LATER`
have a comparison of their own, so that what was stored before them is compared as it is. Each
command runs with two PYTHONHASHSEEDs, and with one process and two. What it prints as JSON and the
files that it writes (page, picture, numbers, a table of jobs for each run) are compared byte by
byte. Ends with 1 where any differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from skep.policy.registry import POLICIES
from skep.units import seconds
from skep_lab.traces.formats.skep import write
from skep_lab.traces.job import Trace, TraceJob

HASH_SEEDS = (1, 2)
PROCESSES = (1, 2)
SHAPE = "6x4/nlp=3,vision=2,lab=1"
NODES = {"nlp": 3, "vision": 2, "lab": 1}
MODELS = ("resnet50", "vgg16", "lstm", "inception3", "")
MORE = (
    "--seed",
    "7",
    "--models",
    "papers",
    "--noise",
    "0.1",
    "--hints",
    "noisy",
    "--costs",
    "start=30,stop=5,suspend=2,resume=3,migrate=20,resize=10,checkpoint_every=1h",
)

LATER = ("pollux", "elasticflow", "genie", "sized", "deadline", "look-ahead", "hold", "learned")
"""Policies that came after the first stored digests."""

Digests = dict[str, str]
"""What was told or written, by its name."""


def main() -> int:
    """Play, compare, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: every one")
    parser.add_argument("--jobs", type=int, default=60, help="of the trace")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    policies = options.policy or list(POLICIES)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = play(Path(folder), policies, options.jobs)
    different = sorted(
        {
            name
            for digests in found.values()
            for name in digests
            if len({each.get(name) for each in found.values()}) > 1
        }
    )
    first = next(iter(found.values()))
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {
        "same": not different,
        "different": different,
        "policies": policies,
        "variants": list(found),
        "sha256": first,
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(cpu.ru_utime + cpu.ru_stime, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    if options.json:
        print(json.dumps(told, indent=1))
    else:
        for name, digest in first.items():
            print(f"{digest[:16]}  {'DIFFERENT' if name in different else 'same'}  {name}")
        print(
            f"{len(first)} outputs of {len(policies)} policies, {len(found)} times: "
            f"{'the same bytes' if not different else f'{len(different)} differ'} "
            f"({told['cpu_s']} s of processors)"
        )
    return 1 if different else 0


def drawn(jobs: int) -> Trace:
    """Return jobs of three tenants that ask for more than there is, of every kind that is known."""
    rng, made, at_s = random.Random("same bytes"), [], 0
    for number in range(jobs):
        at_s += rng.randint(0, 40)
        vc = rng.choice(list(NODES))
        workers = rng.choice((1, 1, 2, 4))
        elastic = rng.random() < 0.3
        made.append(
            TraceJob(
                id=f"s{number}",
                at=seconds(at_s),
                run_time=seconds(rng.randint(30, 900)),
                gpus=workers,
                workers=workers,
                vc=vc,
                user=f"u{rng.randint(1, 4)}",
                model=rng.choice(MODELS),
                mini_batches=rng.randint(100, 900),
                batch_size=32,
                priority=rng.choice((0, 0, 0, 5)),
                opportunistic=rng.random() < 0.2,
                deadline=seconds(at_s + 2000) if rng.random() < 0.3 else None,
                workers_min=1 if elastic else 0,
                workers_max=4 if elastic else 0,
                demands=(rng.random(), rng.random(), rng.random()),
            )
        )
    return Trace(name="drawn", jobs=tuple(made))


def play(folder: Path, policies: Sequence[str], jobs: int) -> dict[str, Digests]:
    """Return the digests of everything that comes out, by variant."""
    (folder / "t.jsonl").write_text("".join(write(drawn(jobs))), encoding="utf-8")
    here = ("--trace", "t.jsonl", "--cluster", SHAPE, "--json")
    first = [name for name in policies if name not in LATER]
    later = [name for name in policies if name in LATER]
    one = ["--policy", (first or later)[-1]]
    commands = {
        "run": ("run", *here, *MORE, *one, "--audit"),
        "sweep": ("sweep", *here, *MORE[2:], *one, "--seeds", "3-4"),
    }
    compared = {"compare": first, "later": later}
    for name, each in compared.items():
        if len(each) > 1:
            wanted = [word for policy in each for word in ("--policy", policy)]
            commands[name] = ("compare", *here, *MORE, *wanted)
    found: dict[str, Digests] = {}
    for hash_seed in HASH_SEEDS:
        for processes in PROCESSES:
            digests: Digests = {}
            for name, words in commands.items():
                out = f"{name}-{hash_seed}-{processes}"
                told = skep(
                    folder, hash_seed, "sim", *words, "--processes", str(processes), "--out", out
                )
                digests[f"{name} --json"] = hashlib.sha256(told).hexdigest()
                for file in sorted(Path(folder, out).iterdir()):
                    digest = hashlib.sha256(file.read_bytes()).hexdigest()
                    label = _label(file.name, compared.get(name, ()))
                    digests[f"{name} {label}"] = digest
            found[f"PYTHONHASHSEED={hash_seed} --processes {processes}"] = digests
    return found


def _label(file: str, policies: Sequence[str]) -> str:
    """Return a file's name, and whose jobs it has where these policies are compared."""
    number = file.removeprefix("jobs-").removesuffix(".csv")
    if not policies or not number.isdecimal():
        return file
    return f"{file} ({policies[int(number) - 1]})"


def skep(folder: Path, hash_seed: int, *words: str) -> bytes:
    """Run a command of `skep` in a process of its own and return what it prints."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-m", "skep_services", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stderr.decode(errors="replace"))
        sys.exit(f"skep {' '.join(words)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
