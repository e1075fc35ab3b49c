"""SIGKILL each process around an image of a job's processes, in every phase of its life.

    python -m tests.system.kill_images [--only VICTIM/PHASE]

On an embedded cluster of one node, with a CRIU that works here (SKEP_CRIU names one) behind gates.

    asked      CRIU is called, and has not begun
    written    CRIU is through with the image, and the agent does not know it yet
    stored     the image is the job's latest, and the job goes on
    restoring  the job was killed; CRIU is called to bring it back, and has not begun

In each case one process is killed, or all of Skep at once, and the gate is opened. Then the job has
to come to its end, and every loss has to be that of the script alone, to the bit. Nothing of the
job may be left, and nothing of the image may be half done. Prints a row of JSON for each case.
Exits 1 if anything was otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.embedded import SKEP, Embedded, until
from tests.system import process_images
from tests.system.crashes.world import World
from tests.system.kill_services import EVERYTHING, kill_service
from tests.system.process_images import DEADLINE_S, lines, plain, submit

PHASES = ("asked", "written", "stored", "restoring")
JOB, RUNNER = "job", "runner"
NODE = "node-1"
VICTIMS = (JOB, NODE, RUNNER, "allocator", "nats", EVERYTHING)
GATES = """#!/bin/sh
# CRIU, behind gates: while BASE/hold-PLACE is there, it stays at PLACE, and BASE/at-PLACE says so.
stay() {
    [ -e "$BASE/hold-$1" ] || return 0
    : > "$BASE/at-$1"
    while [ -e "$BASE/hold-$1" ]; do sleep 0.02; done
}
BASE=%s
case " $* " in
*/verify-*) ;;  # The agent's own process, by which it sees that CRIU works.
*" dump "*)
    stay asked
    %s "$@"
    code=$?
    stay written
    exit $code
    ;;
*" restore "*) stay restoring ;;
esac
exec %s "$@"
"""

Row = dict[str, Any]


class Case:
    """One job, one image, and one kill."""

    def __init__(self, cluster: Embedded, base: Path, name: str) -> None:
        """Begin the job."""
        self.cluster, self.base, self.name = cluster, base, name
        self.job, self.losses = submit(cluster, base, name)

    def play(self, victim: str, phase: str, wanted: str) -> Row:
        """Play it; return what came of it."""
        began, problems = time.monotonic(), []
        until(lambda: lines(self.losses) >= 20, f"{self.job} trains", DEADLINE_S)
        until(lambda: "checkpoint" in self.row()["can"], f"{self.job} is known", DEADLINE_S)
        hold = self.base / f"hold-{phase}"
        asked = None
        if phase in ("asked", "written"):
            hold.touch()
            words = [*SKEP, "checkpoint", self.job, "--wait", "--json"]
            asked = subprocess.Popen(
                words,
                env=self.cluster.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        else:
            self.cluster.skep("checkpoint", self.job, "--wait")
        if phase == "restoring":
            hold.touch()
            self.kill_job()
        if phase != "stored":
            until((self.base / f"at-{phase}").exists, f"CRIU to be at {phase}", DEADLINE_S)
        self.kill(victim)
        hold.unlink(missing_ok=True)
        (self.base / f"at-{phase}").unlink(missing_ok=True)
        (self.base / f"{self.name}.go").touch()
        ended = self.cluster.ended(self.job, DEADLINE_S)
        said = asked.communicate(timeout=DEADLINE_S)[0] if asked is not None else ""
        if ended["state"] != "succeeded":
            problems.append(f"it {ended['state']}: {self.cluster.log(self.job)[-300:]}")
        elif self.losses.read_text() != wanted:
            problems.append("other losses")
        until(lambda: not self.processes(), "all processes of the job to be gone", DEADLINE_S)
        return {
            "victim": victim,
            "phase": phase,
            "asked": _result(said),
            "ends": [one.get("detail") or one.get("reason") for one in ended["attempts"]],
            "log": [x for x in self.cluster.log(self.job).splitlines() if "[skep]" in x],
            "problems": problems,
            "ok": not problems,
            "seconds": round(time.monotonic() - began, 1),
        }

    def row(self) -> Row:
        """Return the job as the gateway shows it."""
        found: Row = self.cluster.get(f"/v1/jobs/{self.job}")
        return found

    def processes(self) -> list[int]:
        """Return the living processes of the script."""
        mark = f"LOSSES={self.losses}".encode()
        found = []
        for pid, command in self.cluster.processes().items():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if mark in environ and str(process_images.SCRIPT) in command:
                    found.append(pid)
        return found

    def kill_job(self) -> None:
        """End the script as a crash does."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, victim: str) -> None:
        """Kill one process, or all that the supervisor keeps up and the supervisor."""
        match victim:
            case "job":
                self.kill_job()
            case "runner":
                os.kill(World(self.cluster).runner(NODE), signal.SIGKILL)
            case _:
                kill_service(self.cluster, victim)


def _result(said: str) -> str:
    """Return what became of a request, as the command says."""
    try:
        answer = json.loads(said)["jobs"][0]
    except (ValueError, LookupError):
        return said[-100:]
    return str(answer.get("result") or answer.get("error"))


def gates(base: Path) -> Path:
    """Return a CRIU that stays where it is told to."""
    criu = os.environ.get("SKEP_CRIU", "criu")
    path = base / "criu"
    path.write_text(GATES % (base, criu, criu))
    path.chmod(0o700)
    return path


def kill_images(only: str, base: Path) -> list[Row]:
    """Play the cases `VICTIM/PHASE` on a cluster of their own; return a row for each.

    Args:
        only: Which; each part may be `*`.
        base: A folder for the cluster and its jobs.
    """
    wanted = [part or "*" for part in f"{only}/".split("/")[:2]]
    rows: list[Row] = []
    losses = plain(base)
    variables = {**process_images.environment(), "SKEP_CRIU": str(gates(base))}
    cluster = Embedded(base / "home", variables)
    try:
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "v=1", "--port", "0")
        for number, case in enumerate(itertools.product(VICTIMS, PHASES), 1):
            if all(one in ("*", two) for one, two in zip(wanted, case, strict=True)):
                try:
                    row = Case(cluster, base, f"c{number}").play(*case, losses)
                except (TimeoutError, RuntimeError) as error:
                    row = {"case": "/".join(case), "ok": False, "problems": [str(error)]}
                print(json.dumps(row), flush=True)
                rows.append(row)
    finally:
        cluster.down()
    return rows


def main() -> int:
    """Play, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.kill_images")
    parser.add_argument("--only", default="*/*", metavar="VICTIM/PHASE")
    with tempfile.TemporaryDirectory(prefix="skep-kill-") as name:
        rows = kill_images(parser.parse_args().only, Path(name))
    failed = sum(not row["ok"] for row in rows)
    print(json.dumps({"cases": len(rows), "failed": failed}))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
