"""A cluster with jobs that note their mini-batches, and a look at the bus while they train."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import nats

from skep.units import Instant
from skep.wire import codec, subjects
from tests.support.embedded import Embedded, until
from tests.system.introspect.rates import Steps
from tests.system.introspect.wires import Wires

JOBS = Path(__file__).parent / "jobs"
VC = "team"
GIB = 2**30
MEMORY = 16 * GIB
PATIENCE_S = 120.0


class Seen(NamedTuple):
    """A message that was heard, and when (wall-clock ns)."""

    at: int
    subject: str
    message: Any


class Job:
    """A job of the run, by the name it was given."""

    def __init__(self, live: Live, name: str, job: str) -> None:
        self.live, self.name, self.job = live, name, job
        self.notes, self._end = live.notes(name), live.end(name)

    def steps(self) -> Steps:
        """Return when its mini-batches ended so far; of a gang, those of its first rank."""
        path = self.notes if self.notes.exists() else Path(f"{self.notes}.0")
        return Steps.noted(path.read_text() if path.exists() else "")

    def trains(self, more: int = 3) -> None:
        """Return once it has made more mini-batches."""
        before = len(self.steps().ends)
        until(lambda: len(self.steps().ends) >= before + more, f"{self.name} trains", PATIENCE_S)

    @property
    def row(self) -> dict[str, Any]:
        """Return what the gateway says of it."""
        row: dict[str, Any] = self.live.cluster.get(f"/v1/jobs/{self.job}")
        return row

    def finish(self) -> None:
        """Have it end after the mini-batch in progress."""
        self._end.touch()


class Live:
    """One run in a folder of its own."""

    def __init__(self, cluster: Embedded, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.jobs: dict[str, Job] = {}

    def notes(self, name: str) -> Path:
        return self.folder / f"{name}.notes"

    def end(self, name: str) -> Path:
        return self.folder / f"{name}.end"

    def submit(self, name: str, spec: Mapping[str, Any], vc: str = VC) -> Job:
        """Hand a job in; return it at once."""
        whole = {"name": name, "vc": vc, **spec}
        reply = self.cluster.ask(
            "POST",
            "/v1/jobs",
            json.dumps(whole).encode(),
            headers={"Content-Type": "application/json"},
        )
        if reply.status >= 300:
            text = f"{name}: {reply.status}: {reply.body}"
            raise RuntimeError(text)
        self.jobs[name] = Job(self, name, reply.body["job"])
        return self.jobs[name]

    def gang(
        self, name: str, *words: object, env: Mapping[str, str] | None = None, **spec: Any
    ) -> Job:
        """Hand in the training of several ranks, with further words on its command line."""
        args = [str(self.notes(name)), "--until", str(self.end(name)), *map(str, words)]
        return self.submit(
            name,
            {
                "script": str(JOBS / "gang.py"),
                "args": args,
                "env": {"OMP_NUM_THREADS": "1", **(env or {})},
                **spec,
            },
        )

    def hold(self, name: str, workers: int = 1, **spec: Any) -> Job:
        """Hand in a job that keeps its GPUs and does nothing, until it is told to end."""
        wait = f"until [ -e {self.end(name)} ]; do sleep 0.1; done"
        resources = {"workers": workers, "gpus": 1}
        return self.submit(name, {"command": wait, "resources": resources, **spec})

    def train(self, name: str, load: Mapping[str, float], *, steps: int = 0, vc: str = VC) -> Job:
        """Hand in the plain training, with what it does to a fake GPU."""
        args = [str(self.notes(name)), "--until", str(self.end(name)), "--steps", str(steps)]
        return self.submit(
            name,
            {
                "script": str(JOBS / "train.py"),
                "args": args,
                "env": {"SKEP_FAKE_LOAD": json.dumps(load), "OMP_NUM_THREADS": "1"},
            },
            vc,
        )

    def facts(self) -> list[tuple[int, Any]]:
        """Return the allocator's facts so far, each with its record's time (ns)."""
        return [*asyncio.run(self.cluster.facts(subjects.ALLOC))]


class Ears:
    """Hears findings, verdicts, open trials and commands, in a thread."""

    SUBJECTS = (
        subjects.FINDINGS,
        subjects.TRIALS_OPEN,
        subjects.ADVICE_OUTLOOK,
        f"{subjects.PREFIX}.cmd.*",
    )

    def __init__(self, about: Any) -> None:
        self._about = about
        self.seen: list[Seen] = []
        self._over: Callable[[], object] = lambda: None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(PATIENCE_S):
            text = "the bus cannot be heard"
            raise TimeoutError(text)
        return self

    def __exit__(self, *_: object) -> None:
        self._over()
        self._thread.join()

    async def _listen(self) -> None:
        users = self._about["nats"]["users"]
        client = await nats.connect(
            self._about["nats"]["url"].split(","),
            user="operator",
            password=users["operator"],
            inbox_prefix=b"_INBOX.operator",
        )

        async def hear(message: Any) -> None:
            at = Instant(time.time_ns())
            with contextlib.suppress(ValueError):
                told = codec.read(message.subject, message.data, message.headers or {}, 0, at)
                self.seen.append(Seen(at, message.subject, told))

        for subject in self.SUBJECTS:
            await client.subscribe(subject, cb=hear)
        await client.flush()
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        self._over = lambda: loop.call_soon_threadsafe(over.set)
        self._ready.set()
        await over.wait()
        await client.close()


@contextlib.contextmanager
def running(
    vcs: Mapping[str, Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
    chains: Mapping[str, Any] | None = None,
    wires: Wires | None = None,
) -> Iterator[tuple[Live, Ears]]:
    """Run a cluster of these virtual clusters and nodes, as a cluster file says them."""
    with tempfile.TemporaryDirectory(prefix="skep-live-") as text:
        folder = Path(text)
        file, told = folder / "cluster.yaml", {"chains": dict(chains)} if chains else {}
        file.write_text(json.dumps({"nodes": list(nodes), "vcs": dict(vcs), **told}))
        more = {"SKEP_GPU_MEMORY": str(MEMORY), **(wires.environment if wires else {})}
        cluster = Embedded(folder / "home", more)
        try:
            if wires is not None:
                threading.Thread(target=_relay, args=(cluster, wires), daemon=True).start()
            cluster.up("--cluster", str(file), "--port", "0")
            with Ears(cluster.about) as ears:
                yield Live(cluster, folder), ears
        finally:
            cluster.down()


def _relay(cluster: Embedded, wires: Wires) -> None:
    """Have the nodes reach the bus as soon as it is known where it will be."""

    def port() -> int:
        try:
            return int(cluster.about["nats"]["url"].rpartition(":")[2] or 0)
        except OSError:
            return 0

    wires.relay(until(port, "the bus has a port"))


def under(policy: str, gpus: int, **options: Any) -> dict[str, Any]:
    """Return a virtual cluster of so many GPUs under a policy with these options."""
    return {"gpus": gpus, "policy": {"name": policy, **options}}


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"introspect: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Return what this ran on."""
    return {"cpus": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 1)}
