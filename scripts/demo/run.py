"""The demo: a cluster on this machine, six jobs through it, a killed allocator, and two tenants.

    python scripts/demo/run.py [--out DIR] [--keep]

Starts two agents with four slots each, publishes six specs with a plain NATS client, shows them
live, kills the allocator half way, and checks every outcome. Then one tenant floods the cluster,
and the other's gang must start all the same. Exits 1 if anything was not as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.demo import tenants
from scripts.demo.specs import ACCURACY_MIN, SPECS, TRAINS
from scripts.demo.timeline import svg

HERE = Path(__file__).parent
SKEP = str(Path(sys.executable).parent / "skep")
LIMIT_S = 150.0
KILL_AT_SHARE = 0.35
"""The allocator dies once the longest job has done this share of its work."""
REFRESH_S = 0.5
SERVICES = {"admission", "allocator", "agent", "introspector", "advisor", "gateway"}
ENDS = {"succeeded", "failed", "cancelled", "refused"}
BOLD, DIM, RED, GREEN, PLAIN = (
    ("\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m") if sys.stdout.isatty() else [""] * 5
)


class Demo:
    """One run of the demo in a temporary home."""

    def __init__(self, home: Path, out: Path) -> None:
        """Prepare; pictures and the summary go to `out`."""
        self.home, self.out = home, out
        # Without cached compiled files, a killed service would be away while it is compiled again.
        self.env = {**os.environ, "SKEP_HOME": str(home), "PYTHONDONTWRITEBYTECODE": ""}
        self.jobs: dict[str, str] = {}
        self.verdicts: dict[str, Any] = {}
        self.waits: dict[str, float] = {}
        """Milliseconds from submitted to running, of jobs that had to have room made."""
        self.kills: list[tuple[int, int]] = []
        self.drawn = 0
        self.spoke_at = 0.0

    def run(self) -> list[str]:
        """Run it all; return what was not as expected."""
        began = time.monotonic()
        self.say("starting a cluster: 2 agents with 4 slots each")
        self.skep("up", "--nodes", "2", "--gpus", "4", "--vc", "vision=4", "--vc", "nlp=4")
        self.about = json.loads((self.home / "cluster.json").read_text())
        self.say(f"the cluster is up after {time.monotonic() - began:.1f} s; publishing six specs")
        for name, spec in SPECS.items():
            self.publish(name, spec)
        self.watch(time.monotonic() + LIMIT_S)
        documents = {name: self.get(f"/v1/jobs/{job}") for name, job in self.jobs.items()}
        problems = self.check(documents)
        self.out.mkdir(parents=True, exist_ok=True)
        problems += tenants.flood(self)
        self.summary(documents, time.monotonic() - began)
        self.picture(documents)
        return problems

    # --- talking to the cluster ----------------------------------------------------------------

    def skep(self, *words: str) -> str:
        """Run the `skep` command; its words to people go to the screen."""
        done = subprocess.run(
            [SKEP, *words], env=self.env, check=False, text=True, stdout=subprocess.PIPE
        )
        if done.returncode:
            fail(f"demo: `skep {' '.join(words)}` failed with {done.returncode}")
        return done.stdout

    def get(self, path: str) -> Any:
        """Return a JSON document of the gateway."""
        # The address is the cluster's own, written by `skep up`.
        request = urllib.request.Request(self.about["gateway"]["url"] + path)  # noqa: S310
        token = self.about["gateway"]["tokens"]["operator"]
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read())

    def publish(
        self, name: str, spec: dict[str, Any], meanwhile: Callable[[], None] = lambda: None
    ) -> Any:
        """Publish a spec with the plain client, `meanwhile` just before, and keep the verdict."""
        nats, vc = self.about["nats"], spec["vc"]
        user = f"vc-{vc}"
        client = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "publish.py"),
                nats.get("tenants") or nats["url"],
                user,
                nats["users"][user],
                vc,
                f"demo-{name}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stderr is not None
        connected = client.stderr.readline()
        meanwhile()
        answer, trouble = client.communicate(json.dumps(spec))
        if client.returncode:
            fail(f"demo: publishing {name} failed:\n{connected}{trouble}")
        told = json.loads(answer)
        self.jobs.setdefault(name, f"j{told['sequence']}")
        self.verdicts.setdefault(name, told["verdict"])
        good = told["verdict"]["accepted"]
        word = f"{GREEN}admitted{PLAIN}" if good else f"{RED}refused{PLAIN}"
        self.say(
            f"  {name:13} j{told['sequence']:<3} durable after "
            f"{told['acknowledged_ms']:5.2f} ms, {word}"
        )
        for problem in told["verdict"].get("problems", ()):
            hint = problem.get("suggestion", "")
            self.say(f"  {'':13} {problem['path']}: {problem['text']}; {hint}")
        return told

    def say(self, text: str) -> None:
        """Print a line above the table."""
        print(text, flush=True)
        self.drawn = 0

    # --- the live part -------------------------------------------------------------------------

    def watch(self, deadline: float) -> None:
        """Show the jobs until all have ended; kill the allocator half way."""
        while True:
            rows = {row["name"]: row for row in self.get("/v1/jobs?state=all")["jobs"]}
            self.draw(list(rows.values()))
            mine = [rows[name] for name in SPECS if name in rows]
            if len(mine) == len(SPECS) and all(row["state"] in ENDS for row in mine):
                return
            if not self.kills and _share(rows.get("digits-mlp")) > KILL_AT_SHARE:
                self.kill_allocator()
            if time.monotonic() > deadline:
                waiting = [row["name"] for row in mine if row["state"] not in ENDS]
                fail(f"demo: not ended within {LIMIT_S:.0f} s: {', '.join(waiting)}")
            time.sleep(REFRESH_S)

    def kill_allocator(self) -> None:
        """SIGKILL the allocator; publish a duplicate meanwhile; wait until it schedules again."""
        pid = self.pid()
        killed = 0

        def kill() -> None:
            nonlocal killed
            self.say(
                f"{BOLD}killing the allocator (pid {pid}) with SIGKILL{PLAIN}; a job is "
                "submitted while it is gone"
            )
            killed = time.time_ns()
            os.kill(pid, signal.SIGKILL)

        probe = {
            "name": "probe",
            "vc": "nlp",
            "command": ["true"],
            "service_class": "opportunistic",
        }
        told = self.publish("probe", probe, kill)
        job = self.get(f"/v1/jobs/j{told['sequence']}?wait=ended&timeout_s=20")
        again = job["attempts"][0]["bound_at"] if job["attempts"] else time.time_ns()
        self.kills.append((killed, again))
        self.say(
            f"{BOLD}scheduling again {(again - killed) / 1e9:.2f} s after the kill{PLAIN} "
            f"(pid {self.pid()}); training never stopped"
        )

    def pid(self) -> int:
        """Return the allocator's process."""
        known = json.loads((self.home / "pids.json").read_text())["allocator"]
        return int(known["pid"] if isinstance(known, dict) else known)

    def draw(self, rows: list[Any]) -> None:
        """Draw the table: in place on a terminal, every few seconds in a log."""
        if not sys.stdout.isatty():
            if time.monotonic() - self.spoke_at < 5:
                return
            self.spoke_at = time.monotonic()
        lines = [
            f"{BOLD}{'JOB':5} {'NAME':13} {'VC':7} {'STATE':10} {'PLACE':24} {'DONE':>6} "
            f"{'RATE/s':>8} {'ETA':>6}{PLAIN}"
        ]
        for row in sorted(rows, key=lambda row: int(row["job"][1:])):
            rate = f"{row['rate_milli'] / 1000:.1f}" if row["rate_milli"] else ""
            eta = f"{row['eta_s']:.0f} s" if row["eta_s"] is not None else ""
            done = f"{100 * _share(row):.0f} %" if row["total_steps"] and row["steps"] else ""
            lines.append(
                f"{row['job']:5} {row['name']:13} {row['vc']:7} {row['state']:10} "
                f"{row['place'] or row['why'] or '':24} {done:>6} {rate:>8} {eta:>6}"
            )
        if self.drawn and sys.stdout.isatty():
            print(f"\x1b[{self.drawn}A\x1b[J", end="")
        print("\n".join(lines), flush=True)
        self.drawn = len(lines)

    # --- the verdict ---------------------------------------------------------------------------

    def check(self, jobs: dict[str, Any]) -> list[str]:
        """Return everything that is not as it should be."""
        problems: list[str] = []

        def expect(what: str, found: Any, wanted: Any) -> None:
            if found != wanted:
                problems.append(f"{what}: {found!r}, expected {wanted!r}")

        for name in TRAINS:
            expect(f"state of {name}", jobs[name]["state"], "succeeded")
            expect(f"attempts of {name}", len(jobs[name]["attempts"]), 1)
            jobs[name]["accuracy"] = self.accuracy(name)
            if not (jobs[name]["accuracy"] or 0) >= ACCURACY_MIN:
                problems.append(f"accuracy of {name}: {jobs[name]['accuracy']}")
            total = jobs[name]["total_steps"]
            if abs(jobs[name]["steps"] - total) > 0.02 * total:
                problems.append(f"mini-batches of {name}: {jobs[name]['steps']}, not {total}")
        expect("state of fails-twice", jobs["fails-twice"]["state"], "failed")
        expect("attempts of fails-twice", len(jobs["fails-twice"]["attempts"]), 2)
        expect("state of misspelt", jobs["misspelt"]["state"], "refused")
        problem = self.verdicts["misspelt"]["problems"][0]
        expect("path of the mistake", problem["path"], "$.resources.gpu")
        expect("suggestion", problem.get("suggestion"), "did you mean `gpus`?")
        expect("kills of the allocator", len(self.kills), 1)
        again = self.publish("digits-mlp", SPECS["digits-mlp"])
        expect("the same key again", again["verdict"]["job"], self.jobs["digits-mlp"])
        trace = self.get(f"/v1/jobs/{self.jobs['digits-ddp']}/trace")
        jobs["digits-ddp"]["trace_document"] = trace
        expect("services in the trace", {span["service"] for span in trace["spans"]}, SERVICES)
        expect("traces of one job", len({span["trace_id"] for span in trace["spans"]}), 1)
        return problems

    def accuracy(self, name: str) -> float | None:
        """Return the accuracy a training job printed at its end."""
        text = self.skep("logs", self.jobs[name])
        found = re.findall(r"final accuracy=([0-9.]+)", text)
        return float(found[-1]) if found else None

    def summary(self, jobs: dict[str, Any], took_s: float) -> None:
        """Print what came of every job."""
        self.say(
            f"\n{BOLD}{'NAME':13} {'STATE':10} {'ACCURACY':>8} {'WAIT':>8} {'RATE/s':>8} "
            f"{'ATTEMPTS':>8}  TRACE{PLAIN}"
        )
        for name, job in jobs.items():
            first = job["attempts"][0] if job["attempts"] else None
            wait = (
                f"{(first['started_at'] - job['submitted_at']) / 1e6:.0f} ms"
                if first and first["started_at"]
                else ""
            )
            ran_s = (
                (job["ended_at"] - job["started_at"]) / 1e9
                if job["ended_at"] and job["started_at"]
                else 0
            )
            rate = f"{job['steps'] / ran_s:.1f}" if job["steps"] and ran_s else ""
            accuracy = f"{job['accuracy']:.4f}" if job.get("accuracy") else ""
            trace = job["trace"].split("-")[1] if "-" in (job["trace"] or "") else job["trace"]
            self.say(
                f"{name:13} {job['state']:10} {accuracy:>8} {wait:>8} {rate:>8} "
                f"{len(job['attempts']):>8}  {trace or ''}"
            )
        for killed, again in self.kills:
            self.say(
                f"allocator killed once; scheduling again after {(again - killed) / 1e9:.2f} s"
            )
        for name, wait_ms in self.waits.items():
            self.say(f"{name} ran {wait_ms:.0f} ms after it was submitted to a full cluster")
        self.say(f"the demo took {took_s:.0f} s")

    def picture(self, jobs: dict[str, Any]) -> None:
        """Write the timeline and the summary."""
        title = "Skep demo: six jobs, two nodes, one killed allocator"
        (self.out / "timeline.svg").write_text(svg(list(jobs.values()), self.kills, title))
        (self.out / "summary.json").write_text(
            json.dumps({"jobs": jobs, "kills": self.kills, "waits_ms": self.waits})
        )
        self.say(f"timeline: {self.out / 'timeline.svg'}; cells: {self.out / 'cells.svg'}")


def fail(text: str) -> NoReturn:
    """End the demo: the text says what went wrong."""
    raise SystemExit(text)


def _share(row: Any) -> float:
    """Return how much of its work a job has done, 0 to 1; an ended one has done all."""
    if row is None:
        return 0.0
    if row["state"] in ENDS:
        return 1.0
    return min((row["steps"] or 0) / row["total_steps"], 1.0) if row["total_steps"] else 0.0


def main() -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where files go")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="skep-demo-"))
    demo = Demo(home, arguments.out)
    try:
        problems = demo.run()
    finally:
        if arguments.keep:
            print(f"the cluster goes on: SKEP_HOME={home}")
        else:
            subprocess.run(
                [SKEP, "down", "--now"], env=demo.env, check=False, stdout=subprocess.DEVNULL
            )
            shutil.rmtree(home, ignore_errors=True)
    for problem in problems:
        print(f"{RED}not as expected:{PLAIN} {problem}")
    print("demo: everything was as expected" if not problems else "demo: FAILED")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
