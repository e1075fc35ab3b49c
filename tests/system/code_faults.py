"""Code that travels amid faults: `python -m tests.system.code_faults [--runs N]`.

On an embedded cluster: the gateway is killed while a folder is sent; a node's agent and runner are
killed while code is unpacked; a chunk in the store is changed; the store is full. Each time every
accepted job must reach its end with the code that was submitted, or be refused in one line; nothing
else is affected. Prints one line for each trial, and one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from skep.wire import subjects
from tests.support.embedded import SKEP, Embedded, until

MB = 10**6
SIZE = 60 * MB
DEADLINE_S = 180.0
SCRIPT = "cat *.bin | sha256sum | cut -d' ' -f1"


class Trial:
    """A cluster, and folders to send."""

    def __init__(self, cluster: Embedded, base: Path, seed: int) -> None:
        self.cluster, self.base = cluster, base
        self.chance = random.Random(seed)
        self.folders = 0

    def folder(self, size: int = SIZE) -> Path:
        """Return a folder that no cluster has seen."""
        self.folders += 1
        made = self.base / f"folder-{self.folders}"
        made.mkdir()
        for number in range(6):
            (made / f"{number}.bin").write_bytes(self.chance.randbytes(size // 6))
        return made

    def start(self, folder: Path) -> subprocess.Popen[str]:
        """Begin to run a job that says what its code hashes to."""
        words = ["run", "--vc", "nlp", "--code", str(folder), "--", "sh", "-c", SCRIPT]
        return subprocess.Popen(
            [*SKEP, *words],
            env=self.cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def check(self, folder: Path, process: subprocess.Popen[str]) -> str:
        """Return what is wrong with how a job ended; empty: nothing."""
        out, said = process.communicate(timeout=DEADLINE_S)
        content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.bin")))
        if process.returncode or out.strip() != hashlib.sha256(content).hexdigest():
            return f"status {process.returncode}, {out!r}, {said!r}"
        return ""


def gateway_killed(trial: Trial) -> str:
    """Kill the gateway at a random moment of the sending."""
    folder = trial.folder()
    process = trial.start(folder)
    # tidy: allow sleep because the moment of the fault is random
    time.sleep(trial.chance.uniform(0.3, 1.5))
    trial.cluster.kill("gateway")
    return trial.check(folder, process)


def node_killed(trial: Trial) -> str:
    """Kill an agent, its runner and what they run while code is fetched or unpacked."""
    folder = trial.folder()
    process = trial.start(folder)
    node = trial.cluster.home / "node-1"
    until(lambda: any((node / "code").glob("*")) or process.poll() is not None, "it is fetched")
    # tidy: allow sleep because the moment of the fault is random
    time.sleep(trial.chance.uniform(0.0, 0.3))
    for pid in _unpacking(str(node)):
        os.kill(pid, signal.SIGKILL)
    trial.cluster.kill("node-1")
    return trial.check(folder, process)


def _unpacking(node: str) -> list[int]:
    """Return the processes that unpack on a node, and its runner."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = any(word.startswith(node.encode()) for word in words)
        if ours and (b"-c" in words or any(b"runner_process" in word for word in words)):
            found.append(int(place.name))
    return found


def chunk_corrupt(trial: Trial) -> str:
    """Change a chunk in the store: the job fails with one line, and submitted again it runs."""
    folder = trial.folder(6 * MB)
    first = trial.check(folder, trial.start(folder))
    if first:
        return first
    fetched = trial.cluster.home / "node-1" / "code"
    for path in fetched.glob("*"):
        path.unlink()
    data = (folder / "0.bin").read_bytes()[: 512 * 1024]
    subject = subjects.snapshot("chunk", "nlp", hashlib.sha256(data).hexdigest())
    asyncio.run(_publish(trial.cluster, subject, b"other"))
    out, said = trial.start(folder).communicate(timeout=DEADLINE_S)
    if "is lost or corrupt in the store" not in said:
        return f"the corrupt chunk was not told: {out!r}, {said!r}"
    return trial.check(folder, trial.start(folder))


async def _publish(cluster: Embedded, subject: str, payload: bytes) -> None:
    bus = await cluster.bus("gateway")
    try:
        await bus.publish(subject, payload, "", {})
    finally:
        await bus.close()


def store_full(trial: Trial) -> str:
    """Have a small store: a job with code is refused in one line, and nothing else is affected."""
    base = Path(tempfile.mkdtemp(prefix="small-", dir=trial.base))
    (base / "patch").mkdir()
    (base / "patch" / "sitecustomize.py").write_text(SMALL_STORE)
    path = os.pathsep.join([str(base / "patch"), *sys.path])
    small = Embedded(base / "home", {"XDG_CACHE_HOME": f"{base}/cache", "PYTHONPATH": path})
    try:
        small.up("--nodes", "1", "--gpus", "2", "--vc", "nlp=2", "--port", "0")
        of_small = Trial(small, base, trial.folders)
        fits = of_small.folder(6 * MB)
        if wrong := of_small.check(fits, of_small.start(fits)):
            return wrong
        out, said = of_small.start(of_small.folder()).communicate(timeout=DEADLINE_S)
        if "the store of code is full" not in said.splitlines()[0] or out:
            return f"it was not refused as it should be: {out!r}, {said!r}"
        (fits / "0.bin").write_bytes(b"changed")
        words = ["run", "--vc", "nlp", "--", "echo", "runs"]
        if (plain := small.skep(*words)) != "runs\n":
            return f"a job without code was affected: {plain!r}"
        return of_small.check(fits, of_small.start(fits))
    finally:
        small.down()


SMALL_STORE = """\
import sys
if sys.argv[:1] != ["-c"]:
    import msgspec
    from skep_services.adapters import nats_streams
    nats_streams.bootstrap_streams.__defaults__ = (1, tuple(
        msgspec.structs.replace(plan, bytes_max=20_000_000) if plan.name == "CODE" else plan
        for plan in nats_streams.STREAM_PLANS
    ))
"""


TRIALS: dict[str, Callable[[Trial], str]] = {
    "gateway-killed": gateway_killed,
    "node-killed": node_killed,
    "chunk-corrupt": chunk_corrupt,
    "store-full": store_full,
}


def main() -> int:
    """Play all trials; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=TRIALS, action="append")
    given = parser.parse_args()
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as base:
        cluster = Embedded(Path(base, "home"), {"XDG_CACHE_HOME": f"{base}/cache"})
        try:
            cluster.up("--nodes", "1", "--gpus", "2", "--vc", "nlp=2", "--port", "0")
            trial = Trial(cluster, Path(base), given.seed)
            for name in given.only or TRIALS:
                for number in range(given.runs):
                    wrong = TRIALS[name](trial)
                    print(f"{name} {number + 1}: {wrong or 'as it should be'}", flush=True)
                    if wrong:
                        failed.append(name)
        finally:
            cluster.down()
    print(json.dumps({"trials": list(given.only or TRIALS), "runs": given.runs, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
