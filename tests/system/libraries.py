"""What can be done to jobs of common libraries: `python -m tests.system.libraries --python PYTHON`.

PYTHON is an interpreter that has torch and the libraries; scripts of libraries that it lacks are
left out, and named. Scripts of others, which are not here (`THIRD`), are played from `--third
FOLDER` with clones of their repositories, or from the library that has them. Each script runs as it
is outside Skep, and then as jobs of a live cluster of two nodes: one is suspended, suspended with
its state moved away, stored and resized, one is moved to the other node, and one is stored and
killed. A cell is `yes` only if the change was done and the weights are those of the run outside, to
the bit. Scripts whose size can change are resized in a job of their own, several times, and its
losses are compared (`library_sizes`). Prints a JSON object for each script, and a table. With
`TRAIN_ON=cuda` in the environment, and one GPU, the scripts that know it train there, on two nodes
that share it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.embedded import SKEP, Embedded, until
from tests.system.library_others import JOBS, KERAS, OFFLINE, THIRD, Example, found
from tests.system.library_sizes import BOUND, difference, losses
from tests.system.library_table import CELLS, Row, key_of, merged, table

HERE = Path(__file__).parent
PLAIN = HERE / "compat_jobs"
DEADLINE_S = 300.0
EARLY = 4
"""Mini-batches after which a change is asked for: within the first epoch of every script."""
OBSERVED = "no line of Skep's"
NOT_OFFERED = "size-not-offered"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
HAS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def _plain(name: str, what: str, counted: int, *before: str) -> Example:
    return Example(name, "torch", PLAIN / "plain.py", (what,), counted, before, line=False)


def _of(file: str, library: str, name: str, counted: int, **more: Any) -> Example:
    title = name.replace("_", " ")
    return Example(title, library, JOBS / f"{file}.py", (name,), counted, **more)


DEEPSPEED = {"DS_ACCELERATOR": "cpu"}
HF: dict[str, Any] = {"file": "hf", "library": "transformers", "env": OFFLINE}
TRL: dict[str, Any] = {"file": "trl_train", "library": "trl", "env": OFFLINE}
FIT: dict[str, Any] = {"file": "lightning_fit", "library": "lightning"}

EXAMPLES = (
    _plain("plain", "plain", 200),
    _plain("accumulation", "accumulation", 50),
    _plain("GradScaler", "scaler", 180),
    _plain("GAN 5:1", "gan", 200),
    _plain("torch.compile", "compile", 200),
    _plain("torchrun, 2 processes", "ranks", 100, *TORCHRUN, "2"),
    Example(
        "accelerate, own loop", "accelerate", PLAIN / "with_accelerate.py", (), 100, line=False
    ),
    Example("Lightning as it is", "lightning", PLAIN / "with_lightning.py", (), 200, line=False),
    Example(
        "Trainer as it is",
        "transformers",
        PLAIN / "with_transformers.py",
        (),
        200,
        env=OFFLINE,
        line=False,
    ),
    _of(**HF, name="bert", counted=120),
    _of(**HF, name="gpt2", counted=100),
    _of(**HF, name="stream", counted=120),
    _of(**HF, name="t5", counted=120),
    _of(**HF, name="vit", counted=120),
    _of(**HF, name="bert_ranks", counted=120, workers=2)._replace(name="bert, 2 ranks"),
    _of(**HF, name="bert_sizes", counted=120, workers=2, sizes=(1, 2))._replace(
        name="bert, 2 ranks, elastic"
    ),
    _of(**TRL, name="sft", counted=120),
    _of(**TRL, name="sft_sizes", counted=120, workers=2, sizes=(4, 1, 2))._replace(
        name="sft, 2 ranks, elastic"
    ),
    _of(**{**TRL, "library": "peft"}, name="lora", counted=120),
    _of(**TRL, name="dpo", counted=120),
    _of(**TRL, name="reward", counted=120),
    _of(**TRL, name="grpo", counted=60),
    _of(**FIT, name="plain", counted=120),
    _of(**FIT, name="validated", counted=120),
    _of(**FIT, name="gan", counted=120),
    _of(**FIT, name="workers", counted=120),
    _of(**FIT, name="ranks", counted=60, workers=2),
    Example("accelerate, one line", "accelerate", JOBS / "accelerate_loop.py", (), 240),
    _of("keras_fit", "keras", "sequential", 120, env=KERAS),
    _of("keras_fit", "keras", "functional", 120, env=KERAS),
    _of("fabric_loop", "lightning", "Fabric_as_it_is", 120, line=False),
    _of("fabric_loop", "lightning", "Fabric_five_lines", 120),
    _of("ignite_engine", "pytorch-ignite", "Engine_as_it_is", 120, line=False),
    _of("deepspeed_loop", "deepspeed", "ZeRO_0", 120, env=DEEPSPEED, line=False),
    _of("deepspeed_loop", "deepspeed", "ZeRO_1", 120, env=DEEPSPEED, line=False),
    _of("stateful_recipe", "torchdata", "recipe_five_lines", 240),
    _of("loaders", "torchdata", "StatefulDataLoader", 120),
    _of("loaders", "mosaicml-streaming", "StreamingDataLoader", 120),
    _of("loaders", "webdataset", "WebDataset", 120),
    *THIRD,
)


class Failed(Exception):  # noqa: N818  what became of a change
    """A change was not done, or a job did not end well: the reason."""


class Job:
    """A script as a job of the cluster."""

    def __init__(self, cluster: Embedded, base: Path, example: Example, python: str) -> None:
        self.cluster, self.example = cluster, example
        self.slow = Path(tempfile.mkdtemp(dir=base)) / "slow"
        self.slow.touch()
        spec = {
            "name": example.library,
            "command": [python, *example.argv()],
            "resources": {"workers": example.workers, "gpus": 1},
            "limits": {"retries": 1},
            **({"elastic": {"min": 1, "max": 4}} if example.sizes else {}),
            "env": environment(example, python) | {"SLOW_FILE": str(self.slow)},
        }
        file = self.slow.with_name("job.json")
        file.write_text(json.dumps(spec))
        self.job = cluster.skep("submit", "-q", str(file)).strip()

    @property
    def row(self) -> dict[str, Any]:
        """Return what the gateway says of it."""
        row: dict[str, Any] = self.cluster.get(f"/v1/jobs/{self.job}")
        return row

    def trains(self, more: int = EARLY) -> None:
        """Return once it has made some more mini-batches."""
        before = self.row["steps"]

        def look() -> bool:
            row = self.row
            if row["state"] in {"succeeded", "failed", "cancelled"}:
                raise Failed(f"it {row['state']}: {self.log()[-400:]}")
            return bool(row["steps"] >= before + more)

        until(look, f"{self.job} to train", DEADLINE_S)

    def can(self, what: str) -> bool:
        """Return whether it can do something, once it has said what it can."""
        return what in self.row["can"]

    def ask(self, *words: str) -> dict[str, Any]:
        """Ask for a change, and return what came of it."""
        done = subprocess.run(
            [*SKEP, words[0], "--wait", "--json", *words[1:], self.job],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)["jobs"][0]
        if done.returncode:
            raise Failed(why(answer))
        return answer

    def finish(self) -> str:
        """Let it train at its own speed; return the line of its result."""
        self.slow.unlink(missing_ok=True)
        ended = self.cluster.ended(self.job, DEADLINE_S)
        if ended["state"] != "succeeded":
            raise Failed(f"it {ended['state']}: {self.log()[-400:]}")
        return result(self.log())

    def kill(self) -> None:
        """End its processes as a crash would."""
        mark = f"SLOW_FILE={self.slow}".encode()
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid():
                try:
                    ours = mark in Path("/proc", name, "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if ours:
                    os.kill(int(name), signal.SIGKILL)

    def log(self) -> str:
        """Return what its first rank printed."""
        return self.cluster.log(self.job)


def why(answer: dict[str, Any]) -> str:
    """Return why a change was not done, in a few words."""
    error = answer.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error.get("reason"))
    return str(answer.get("detail") or answer.get("why") or answer.get("result") or answer)


def result(text: str) -> str:
    """Return the line with the hash of the weights."""
    return "".join(line for line in text.splitlines() if line.startswith("result "))


def environment(example: Example, python: str) -> dict[str, str]:
    """Return the environment of a script."""
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    same = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # Sums in one order, also on a GPU.
    return {"OMP_NUM_THREADS": "1", "PATH": path, **same, **train_on(), **example.env}


def train_on() -> dict[str, str]:
    """Return what says to the scripts that know it where they train: `TRAIN_ON`, else on CPUs."""
    return {name: os.environ[name] for name in ("TRAIN_ON",) if name in os.environ}


def outside(example: Example, python: str) -> str:
    """Run a script outside Skep, each rank as a process; return what its first rank printed."""
    libs = str(HERE.parent.parent / "libs")
    own = {k: v for k, v in os.environ.items() if not k.startswith("SKEP_")}
    given = environment(example, python)
    own |= {**given, "PYTHONPATH": f"{libs}:{given.get('PYTHONPATH', '')}"}
    ranks = []
    for rank in range(example.workers):
        more: dict[str, object] = {}
        if example.workers > 1:
            more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": example.workers}
            more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29517}
        ranks.append(
            subprocess.Popen(
                [python, *example.argv()],
                env=own | {name: str(value) for name, value in more.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise Failed(f"it fails outside Skep: {said[0][1][-400:]}")
    return said[0][0]


def stands(job: Job, expected: str, cells: dict[str, str]) -> None:
    """Try what is done to a job in place, and compare what it comes to."""

    def suspend(*how: str) -> None:
        job.ask("suspend", *how)
        job.ask("resume")

    job.trains()
    attempt(cells, "suspend", suspend)
    job.trains()
    attempt(cells, "release", lambda: suspend("--release"))
    job.trains()
    attempt(cells, "checkpoint", lambda: job.ask("checkpoint"))
    if not job.example.sizes:
        more = str(job.example.workers + 1)
        attempt(cells, "resize", lambda: job.ask("resize", "--workers", more))
    if job.finish() != expected:
        for name in ("suspend", "release", "checkpoint"):
            if cells[name] == "yes":
                cells[name] = "no: other bits"
    steps = job.row["steps"]
    cells["seen"] = "yes" if steps == job.example.counted else f"no: {steps} mini-batches"


def moves(job: Job, expected: str, cells: dict[str, str]) -> None:
    """Move a job to other nodes."""
    job.trains()
    before = job.row["place"]
    attempt(cells, "migrate", lambda: job.ask("migrate"))
    if cells["migrate"] != "yes":
        return
    if job.row["place"] == before:
        cells["migrate"] = "no: it is where it was"
        return
    moved = job.row["attempt"]
    came_to = job.finish()
    if job.row["attempt"] != moved:
        cells["migrate"] = "no: it failed behind the move, and began again"
    elif came_to != expected:
        cells["migrate"] = "no: other bits"


def resizes(job: Job, expected: str, cells: dict[str, str]) -> None:
    """Change the size of a job while it trains, and compare its losses with those of one size."""
    refused = job.example.workers + 1
    job.trains()
    try:
        job.ask("resize", "--workers", str(refused))
    except Failed as failed:
        if "ask for" not in str(failed) and NOT_OFFERED not in str(failed):
            raise
    else:
        reason = f"it was given {refused} workers, which do not divide its global batch"
        raise Failed(reason)
    for size in job.example.sizes:
        job.trains()
        attempt(cells, "resize", functools.partial(job.ask, "resize", "--workers", str(size)))
        if cells["resize"] != "yes":
            return
    job.trains()
    job.finish()
    apart = difference(losses(expected), losses(job.log()))
    cells["loss_difference"] = f"{apart:.2g}"
    if apart > BOUND:
        cells["resize"] = f"no: losses differ by {apart:.2g} of them"


def recovers(job: Job, expected: str, cells: dict[str, str]) -> None:
    """Kill a job behind a checkpoint."""
    job.trains()
    if not job.can("checkpoint"):
        cells["recover"] = f"no: {OBSERVED}, it begins from the start"
        return
    job.ask("checkpoint")
    job.kill()
    until(lambda: job.row["attempt"] > 1, f"another attempt of {job.job}", DEADLINE_S)
    came_to = job.finish()
    if came_to != expected:
        cells["recover"] = "no: other bits"
    elif "going on after mini-batch" not in job.log():
        cells["recover"] = "no: it began from the start"
    else:
        cells["recover"] = "yes"


def attempt(cells: dict[str, str], name: str, change: Callable[[], object]) -> None:
    """Try a change, and note whether it was done."""
    try:
        change()
    except Failed as failed:
        cells[name] = f"no: {failed}"
    else:
        cells[name] = "yes"


def play(cluster: Embedded, base: Path, example: Example, python: str) -> dict[str, Any]:
    """Fill the row of a script."""
    cells = dict.fromkeys(CELLS, "no: not tried")
    began = time.monotonic()
    try:
        printed_outside = outside(example, python)
    except Failed as failed:
        return {"script": example.name, "library": example.library, "error": str(failed)}
    expected = result(printed_outside)
    parts = [(stands, "stands"), (moves, "migrate"), (recovers, "recover")]
    if example.sizes:
        parts.append((resizes, "resize"))
    for part, of in parts:
        job = Job(cluster, base, example, python)
        try:
            part(job, printed_outside if part is resizes else expected, cells)
        except (Failed, TimeoutError, ValueError) as failed:
            cells.setdefault("error", f"{of}: {failed}")
        finally:
            if job.row["state"] not in {"succeeded", "failed", "cancelled"}:
                cluster.ask("POST", f"/v1/jobs/{job.job}/cancel", b"{}")
                job.slow.unlink(missing_ok=True)
                cluster.ended(job.job, DEADLINE_S)
    took = round(time.monotonic() - began, 1)
    return {"script": example.name, "library": example.library, **cells, "took_s": took}


def printed(files: list[Path]) -> list[Row]:
    """Return the rows that earlier runs printed; later ones win."""
    lines = [line for each in files for line in each.read_text().splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith('{"script"')]
    return list({key_of(row): row for row in rows if "seen" in row}.values())


def put(page: Path | None, rows: list[Row]) -> None:
    """Print the table, and put the rows into the table of a page, which keeps its others."""
    order = [(each.library, each.name) for each in EXAMPLES]
    print(table(sorted(rows, key=lambda row: order.index(key_of(row)))))
    if page is not None:
        page.write_text(merged(page.read_text(), rows, order))


def main() -> int:
    """Play every script; return 1 if one could not be played."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.libraries")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--python", help="has torch and the libraries")
    source.add_argument(
        "--printed", type=Path, nargs="+", help="files with rows that were printed: only the table"
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], help="scripts with one of these in library and name"
    )
    parser.add_argument("--page", type=Path, help="a page whose table takes the rows in")
    parser.add_argument("--third", type=Path, help="a folder with clones of scripts of others")
    options = parser.parse_args()
    if options.printed:
        put(options.page, printed(options.printed))
        return 0
    names = sorted({each.library for each in EXAMPLES})
    has = json.loads(subprocess.check_output([options.python, "-c", HAS, *names], text=True))
    rows: list[Row] = []
    left_out = sorted(name for name in names if has[name] is None)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        if train_on().get("TRAIN_ON", "cpu") == "cpu":
            cluster.up("--nodes", "2", "--gpus", "2", "--vc", "nlp=4", "--port", "0")
        else:  # Both nodes have the GPUs of this machine.
            cluster.up("--nodes", "2", "--device", "cuda", "--vc", "nlp=2", "--port", "0")
        try:
            for example in EXAMPLES:
                title = f"{example.library} {example.name}"
                if has[example.library] is None or not any(one in title for one in options.only):
                    continue
                there = found(example, options.third, Path(folder), options.python)
                if isinstance(there, str):
                    left_out.append(f"{title}: {there}")
                    continue
                row = play(cluster, Path(folder), there, options.python)
                row["library"] = f"{example.library} {has[example.library]}"
                rows.append(row)
                print(json.dumps(row), flush=True)
        finally:
            cluster.down()
    put(options.page, [row for row in rows if "seen" in row])
    failed = [row["script"] for row in rows if "error" in row]
    print(json.dumps({"scripts": len(rows), "failed": failed, "left out": left_out}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
