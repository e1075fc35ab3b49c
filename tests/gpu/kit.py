"""One node with real GPUs (or their stand-ins), and the jobs that run on it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skep.units import GIB
from skep_services.adapters.devices import DeviceState, NvmlGpus
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

CPU = os.environ.get("SKEP_GPU_SUITE") == "cpu"
"""A dry run: a fake GPU and PyTorch on the CPU, for machines without a GPU."""
DEVICE = "cpu" if CPU else "cuda"
"""What PyTorch trains on."""
PATIENCE_S = 60.0 if CPU else 40.0
"""For one thing to happen: starting PyTorch takes most of it."""
WIDTH = 64 if CPU else 2048
STATE_BYTES_MIN = 0 if CPU else 4 * 4 * 4 * WIDTH**2
"""What training has on the device: weights, gradients and Adam's two sums of four square layers."""
REFERENCE_STEPS = 3000
OPAQUE_BYTES = GIB
FAKE_MEMORY = 16 * GIB
JOBS = Path(__file__).parent / "jobs"
VC = "team"


class Step(NamedTuple):
    """A mini-batch that a job has noted: `loss` is its bits in hexadecimal digits."""

    attempt: int
    pid: int
    at: float
    loss: str


def read(notes: Path) -> list[Step]:
    """Return what a job has noted."""
    text = notes.read_text() if notes.exists() else ""
    lines = [line.split() for line in text.splitlines() if line.count(" ") == 3]
    return [Step(int(a), int(pid), float(at), loss) for a, pid, at, loss in lines]


class Cluster(Embedded):
    """A cluster of one node with one GPU in use, which belongs to the virtual cluster `team`."""

    def __init__(self, home: Path, **environment: str) -> None:
        fake = {"SKEP_GPU_MEMORY": str(FAKE_MEMORY)} if CPU else {}
        super().__init__(home, {**fake, **environment})
        self.up_s = 0.0

    def begin(self) -> None:
        """Start it, and keep all GPUs but the first out of use."""
        device = ("fake", "1") if CPU else ("cuda", "auto")
        options = ("--nodes", "1", "--device", device[0], "--gpus", device[1])
        self.up_s = self.up(*options, "--vc", f"{VC}=1", "--port", "0")
        for row in self.gpus()[1:]:
            self.skep("gpu", "quarantine", "node-1", str(row["index"]))

    def gpus(self) -> list[dict[str, Any]]:
        """Return what `skep gpu ls` says."""
        rows: list[dict[str, Any]] = json.loads(self.skep("gpu", "ls", "--json"))["gpus"]
        return rows

    def policy(self, name: str, **options: Any) -> None:
        """Have the virtual cluster follow a policy."""
        vcs = {"vcs": {VC: {"gpus": 1, "policy": name, "options": options}}}
        reply = self.ask("POST", "/v1/admin/vcs", json.dumps(vcs).encode())
        assert reply.status == 202, reply

        def look() -> bool:
            return any(row["policy"] == name for row in self.get("/v1/usage")["vcs"])

        until(look, f"{VC} under {name}", PATIENCE_S)

    def clear(self) -> None:
        """Cancel what still runs, and return once it is over."""
        left = [row["job"] for row in self.get("/v1/jobs?state=active")["jobs"]]
        for job in left:
            self.ask("DELETE", f"/v1/jobs/{job}")
        for job in left:
            self.ended(job, PATIENCE_S)


class Job:
    """A job of one worker on one GPU, and what it noted."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, **spec: Any) -> None:
        """Submit `trains.py`, or what `spec` has as `command`, `script` or `args`."""
        self.cluster, self.name = cluster, name
        self.notes, self.end = folder / f"{name}.notes", folder / f"{name}.end"
        more = ["--cooperative"] if spec.pop("cooperative", False) else []
        more += spec.pop("words", [])
        script = str(JOBS / "trains.py")
        args = [str(self.notes), "--until", str(self.end), "--width", str(WIDTH), *more]
        ranks = spec.pop("ranks", 1)
        trains = {"script": script, "args": args}
        if ranks > 1:
            trains = {"command": [sys.executable, *torchrun(ranks), script, *args]}
        what = {} if {"script", "command"} & spec.keys() else trains
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **spec.pop("env", {})}
        if CPU:
            load = {"step_ms": 5, "utilisation": 0.5, "memory": GIB}
            env["SKEP_FAKE_LOAD"] = json.dumps(load)
        self.began = time.monotonic()
        self.job = asyncio.run(self._submit({"name": name, "vc": VC, "env": env, **what, **spec}))

    async def _submit(self, spec: dict[str, Any]) -> str:
        async with bare_client(self.cluster.about, f"vc-{VC}") as client:
            answer = await client.submit(spec)
        assert answer.verdict["accepted"], answer
        return answer.job

    @property
    def row(self) -> dict[str, Any]:
        """Return what the gateway says of it."""
        row: dict[str, Any] = self.cluster.get(f"/v1/jobs/{self.job}")
        return row

    def steps(self) -> list[Step]:
        """Return its mini-batches."""
        return read(self.notes)

    def until(self, look: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Return the first true value; raises with the job's log if it ends or takes too long."""

        def careful() -> Any:
            return look() or (self.row["state"] in {"failed", "cancelled"} and "over")

        try:
            found = until(careful, f"{self.name} to {what}", within_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.row}\n{self.cluster.log(self.job)}") from None
        assert found != "over", f"{self.row}\n{self.cluster.log(self.job)}"
        return found

    def trains(self, more: int = 30) -> list[Step]:
        """Return its next mini-batches, once it has made them."""
        before = len(self.steps())
        self.until(lambda: len(self.steps()) >= before + more, f"train beyond step {before}")
        return self.steps()[before:]

    def is_in(self, state: str) -> None:
        """Return once it is in a state."""
        self.until(lambda: self.row["state"] == state, f"be {state}")

    def can(self, ability: str) -> None:
        """Return once its ranks have said that they can do something."""
        self.until(lambda: ability in self.row["can"], f"be able to {ability}")

    def ask(self, *words: str) -> float:
        """Have something done by the command line; return how many seconds it took."""
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "skep_services",
                words[0],
                "--wait",
                "--json",
                *words[1:],
                self.job,
            ],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        answer = json.loads(done.stdout)["jobs"][0] if done.stdout else {}
        assert answer.get("result") == "done", (words, answer, done.stderr)
        return time.monotonic() - began

    def took(self) -> float:
        """Return how many seconds the last thing asked of it took, without the command's start."""
        last = self.row["asks"][-1]
        return float(last["ended_at"] - last["asked_at"]) / 1e9

    def about(self) -> dict[str, Any]:
        """Return the JSON line that its log begins with."""
        line: dict[str, Any] = json.loads(self.cluster.log(self.job).splitlines()[0])
        return line

    def may_take(self, size: int) -> bool:
        """Return whether the job gets so many bytes of device memory more."""
        answer = self.notes.with_suffix(".answer")
        answer.unlink(missing_ok=True)
        asked = self.notes.with_suffix(".asks")
        asked.write_text(str(size))
        asked.rename(self.notes.with_suffix(".ask"))
        word = self.until(lambda: answer.exists() and answer.read_text(), "ask for memory")
        return bool(word == "given")

    def has_rate(self) -> float:
        """Return its mini-batches in a second as Skep tells them, once it does."""
        self.until(lambda: self.row["rate_milli"], "have a rate")
        return float(self.row["rate_milli"] or 0) / 1000

    def rate(self, seconds: float = 1.5) -> float:
        """Return its mini-batches in a second, by its notes of the next seconds."""
        first = self.trains(2)[-1].at
        self.until(lambda: self.steps()[-1].at >= first + seconds, "train")
        found = self.steps()
        return sum(step.at > first for step in found) / (found[-1].at - first)

    def ends(self, state: str = "succeeded") -> None:
        """Tell it to end, and return once it has."""
        self.end.touch()
        over = self.cluster.ended(self.job, PATIENCE_S)
        assert over["state"] == state, f"{over}\n{self.cluster.log(self.job)}"


def kill(pid: int) -> None:
    """End a process as a crash does."""
    os.kill(pid, signal.SIGKILL)


class Driver:
    """What NVIDIA's driver says of the first GPU; of a fake GPU it is -1 and nothing."""

    def __init__(self) -> None:
        self._nvml = None if CPU else NvmlGpus()

    def look(self) -> DeviceState:
        """Return the state of the GPU."""
        return DeviceState(0) if self._nvml is None else self._nvml.look()[0]

    def on_it(self, pid: int) -> int:
        """Return the bytes that a process has there, 0 if it is not there; -1: unknown."""
        if CPU:
            return -1
        there = {process.pid: process.memory for process in self.look().processes}
        return there.get(pid, 0)

    def falls_to(self, most: int) -> int:
        """Return the memory in use once it is `most` bytes or less."""
        try:
            until(lambda: self.look().memory <= most, "the memory to be free", PATIENCE_S)
        except TimeoutError as error:
            text = f"{error}: {self.look()}, and not {most} bytes"
            raise AssertionError(text) from None
        return self.look().memory


def torchrun(ranks: int) -> tuple[str, ...]:
    """Return the words that start ranks on one node."""
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")


class Reference:
    """The same training alone, outside of everything, as fast as it goes."""

    def __init__(
        self, folder: Path, words: Sequence[str] = (), steps: int = REFERENCE_STEPS, ranks: int = 1
    ) -> None:
        self.notes = folder / "reference.notes"
        until = [str(self.notes), "--until", str(folder / "never"), "--width", str(WIDTH)]
        start = torchrun(ranks) if ranks > 1 else ()
        own = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                *start,
                str(JOBS / "trains.py"),
                *until,
                *words,
                "--steps",
                str(steps),
            ],
            env={**own, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def device(self) -> str:
        """Return what PyTorch trains on, once it is there."""
        assert self.process.stdout is not None
        return str(json.loads(self.process.stdout.readline() or "{}").get("device"))

    def losses(self) -> list[str]:
        """Return its losses, once it has ended."""
        assert self.process.wait(2 * PATIENCE_S) == 0
        return [step.loss for step in read(self.notes)]

    def agrees(self, steps: Sequence[Step], beyond: int = 0) -> int:
        """Return how many mini-batches of a job are those of this training, bit for bit.

        An attempt that went on from a checkpoint begins anywhere in what was trained before.
        `beyond`: so many have to be compared at least.
        """
        whole, compared, first = self.losses(), 0, 0
        for attempt, group in itertools.groupby(steps, key=lambda step: step.attempt):
            losses = [step.loss for step in group]
            assert losses[0] in whole, f"attempt {attempt} begins with a loss of no step"
            first = whole.index(losses[0])
            assert first <= compared, f"attempt {attempt} begins at {first}, after {compared}"
            count = min(len(losses), len(whole) - first)
            assert losses[:count] == whole[first : first + count], f"attempt {attempt} at {first}"
            compared = first + count
        assert compared > beyond, f"{compared} mini-batches were compared: {beyond} are too few"
        return compared

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
