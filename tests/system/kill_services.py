"""SIGKILL each process around a service of replicas, in every phase of its life; account for all.

    python -m tests.system.kill_services [--only VICTIM/PHASE]

On an embedded cluster of two nodes. A phase is held by a gate: a replica says that it is ready only
once a file is there.

    begun     both replicas run, and none is ready
    serving   both are ready, and answer
    scaling   a third one runs, and is not ready
    updating  a replica of the next revision runs, and is not ready; the old ones answer
    stopping  the service is to end, and a replica has a request open

In each case one process is killed, or all of Skep at once, and the gate is opened. Then the service
has to be whole (as many ready replicas as wanted, all of the wanted revision, no further job), and
it has to answer; or, stopped, it has to be over, with no job left.
A request may fail only by the codes of a gateway that cannot reach a replica. At the end the
allocator's log is replayed: no invariant may break, and nothing may be left. Prints a row of JSON
for each case. Exits 1 if anything was otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPException
from pathlib import Path
from typing import Any

from skep.wire import codec, subjects
from tests.support.embedded import Embedded, until
from tests.system import cells_account

PHASES = ("begun", "serving", "scaling", "updating", "stopping")
SERVICES = ("searches", "admission", "allocator", "gateway", "nats", "node-1")
REPLICA, EVERYTHING = "replica", "everything"
VICTIMS = (*SERVICES, REPLICA, EVERYTHING)
SCRIPT = Path(__file__).parents[1] / "e2e" / "jobs" / "gated.py"
SERVING = 2
PATIENCE_S = 120.0
EXCUSED = {502, 503, 504}
"""What a gateway answers while it reaches no replica."""

Row = dict[str, Any]


class Calls:
    """Requests one after another, until it is told to stop."""

    def __init__(self, cluster: Embedded, path: str) -> None:
        """Start them."""
        self.answers: Counter[int] = Counter()
        """By status; 0: there was no gateway."""
        self._cluster, self._path = cluster, path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self) -> None:
        while not self._stop.wait(0.01):
            try:
                self.answers[self._cluster.ask("GET", self._path).status] += 1
            except (OSError, HTTPException, ValueError):
                self.answers[0] += 1

    def stop(self) -> Counter[int]:
        """End them; return how many had which status."""
        self._stop.set()
        self._thread.join()
        return self.answers


class Case:
    """One service, and one kill."""

    def __init__(self, cluster: Embedded, folder: Path, number: int) -> None:
        """Prepare; nothing is begun yet."""
        self.cluster, self.name = cluster, f"s{number}"
        self.gate, self.begun = folder / f"{self.name}.gate", folder / f"{self.name}.begun"
        self.service = ""
        self.replicas, self.revision, self.word = SERVING, 1, "one"

    def play(self, victim: str, phase: str) -> Row:
        """Play it; return what came of it."""
        began = time.monotonic()
        self.into(phase)
        calls = Calls(self.cluster, f"/v1/services/lab.{self.name}/http/")
        problems: list[str] = []
        try:
            if phase in ("serving", "scaling", "updating"):
                until(lambda: calls.answers[200] > 2, "answers", PATIENCE_S)
            before = len(self._begun())
            self.kill(victim)
            self.gate.touch()
            if victim == REPLICA and phase != "stopping":
                self.runs(before + 1)
            problems += self.over() if phase == "stopping" else self.whole()
            if phase != "stopping":
                before = calls.answers[200]
                until(lambda: calls.answers[200] > before + 2, "answers again", PATIENCE_S)
        except TimeoutError as error:
            problems.append(str(error))
        answers = calls.stop()
        allowed = {0, 200, *EXCUSED, *((404, 409) if phase == "stopping" else ())}
        problems += [f"an answer of {status}" for status in answers if status not in allowed]
        if self.shown()["state"] != "over":
            self.ask("DELETE", f"/v1/services/{self.service}", {})
            problems += self.over()
        return {
            "victim": victim,
            "phase": phase,
            "answers": {str(status): count for status, count in sorted(answers.items())},
            "problems": problems,
            "ok": not problems,
            "seconds": round(time.monotonic() - began, 1),
        }

    def into(self, phase: str) -> None:
        """Bring the service into a phase."""
        self.service = self.ask("POST", "/v1/services", self.spec())["service"]
        self.runs(SERVING)
        if phase == "begun":
            return
        self.gate.touch()
        problems = self.whole()
        assert not problems, problems
        if phase in ("scaling", "updating"):
            self.gate.unlink()
            self.revision += 1
            if phase == "scaling":
                self.replicas += 1
            else:
                self.word = "two"
            self.ask("PUT", f"/v1/services/{self.service}", self.spec())
            self.runs(SERVING + 1)
        if phase == "stopping":
            path = f"/v1/services/lab.{self.name}/http/slow"
            asked = threading.Thread(target=self._try, args=(path,), daemon=True)
            asked.start()
            until(lambda: "slow" in self._begun(), "the request to be open", PATIENCE_S)
            self.ask("DELETE", f"/v1/services/{self.service}", {})

    def _try(self, path: str) -> None:
        try:
            self.cluster.ask("GET", path)
        except (OSError, HTTPException, ValueError):
            return

    def kill(self, victim: str) -> None:
        """Kill one process, or all that the supervisor keeps up and the supervisor."""
        match victim:
            case "replica":
                os.kill(int(self._begun()[0]), signal.SIGKILL)
            case _:
                kill_service(self.cluster, victim)

    def whole(self) -> list[str]:
        """Return what is wrong with the service once it is whole."""

        def look() -> Row | None:
            found = self.shown()
            ready = found["ready"] == found["wanted"] == self.replicas
            return found if ready and found["revision"] == self.revision else None

        def settled() -> Row | None:
            found = look()
            return (
                found
                if found and not found["updating"] and len(self.jobs()) == self.replicas
                else None
            )

        until(settled, f"{self.name} to be whole", PATIENCE_S)
        return []

    def over(self) -> list[str]:
        """Return what is wrong with the service once it is over."""
        until(lambda: self.shown()["state"] == "over", f"{self.name} to be over", PATIENCE_S)
        return [f"{job} is left" for job in self.jobs()]

    def runs(self, count: int) -> None:
        """Return once so many processes of replicas have begun."""
        until(lambda: len([one for one in self._begun() if one != "slow"]) >= count, "replicas")

    def _begun(self) -> list[str]:
        return self.begun.read_text().split() if self.begun.exists() else []

    def jobs(self) -> list[str]:
        """Return the jobs of the service that have not ended."""
        rows = self.cluster.get("/v1/jobs?state=active")["jobs"]
        return [row["job"] for row in rows if row["name"].startswith(self.name)]

    def shown(self) -> Row:
        """Return the service as the gateway shows it."""
        found: Row = self.cluster.get(f"/v1/services/{self.service}")
        return found

    def spec(self) -> Row:
        """Return what it is now."""
        words = [sys.executable, str(SCRIPT), str(self.gate), str(self.begun), self.word]
        return {
            "name": self.name,
            "vc": "lab",
            "job": {"command": words},
            "replicas": self.replicas,
            "health": "/health",
            "drain": 10,
        }

    def ask(self, method: str, path: str, body: Row) -> Row:
        """Have the gateway do something."""
        reply = self.cluster.ask(method, path, json.dumps(body).encode())
        assert reply.status < 300, reply
        found: Row = reply.body
        return found


def kill_service(cluster: Embedded, victim: str) -> None:
    """Kill a service, or everything and the supervisor; return once it is back."""
    if victim == EVERYTHING:
        for entry in [cluster.entry(name) for name in ("supervisor", *cluster.pids())]:
            os.kill(entry["pid"], signal.SIGKILL)
        cluster.up()
        return
    pid = cluster.entry(victim)["pid"]
    cluster.kill(victim)
    cluster.wait_back(victim, pid)


def kill_services(only: str, folder: Path) -> dict[str, Any]:
    """Play the cases on a cluster of their own; return the report."""
    wanted = [part or "*" for part in f"{only}/".split("/")[:2]]
    cluster, rows = Embedded(folder / "home"), []
    cluster.up("--nodes", "2", "--gpus", "4", "--vc", "lab=8", "--port", "0")
    try:
        for number, (phase, victim) in enumerate(itertools.product(PHASES, VICTIMS), 1):
            if all(one in ("*", two) for one, two in zip(wanted, (victim, phase), strict=True)):
                row = Case(cluster, folder, number).play(victim, phase)
                print(json.dumps(row), flush=True)
                rows.append(row)
        left = list(cells_account.leaks(asyncio.run(_records(cluster))))
    finally:
        cluster.down()
    failed = sum(not row["ok"] for row in rows)
    return {"cases": len(rows), "failed": failed, "left": left}


async def _records(cluster: Embedded) -> list[tuple[Any, ...]]:
    records = []
    for each in await cluster.records(subjects.ALLOC):
        record = codec.read(each.subject, each.payload, each.headers, each.sequence, each.at)
        assert isinstance(record, codec.Facts), record
        records.append(record.facts)
    return records


def main() -> int:
    """Play, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*/*", metavar="VICTIM/PHASE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-kill-") as folder:
        report = kill_services(given.only, Path(folder))
    print(json.dumps(report))
    return 1 if report["failed"] or report["left"] or not report["cases"] else 0


if __name__ == "__main__":
    sys.exit(main())
