"""Attack a cluster with faults mixed at random by seed, and check that nothing was lost.

    python -m tests.system.chaos --seed 1 --jobs 300 --faults 40 --minutes 3
    python -m tests.system.chaos --seed 1 --kinds kill,pause     (only these)
    python -m tests.system.chaos --seed 1 --target compose        (containers, after `make image`)
    python -m tests.system.chaos --seed 1 --corrupt              (a damaged store: must stop)

The same seed draws the same faults and the same jobs. When the last fault is undone, everything
has to end within --settle seconds. The picture goes to --out, the report to --json. Exits 1 if a
promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.system.chaos import corrupt, faults, gather, network, picture, workload
from tests.system.chaos.checker import Checker, Violation
from tests.system.chaos.containers import Containers
from tests.system.chaos.evidence import NS, Evidence
from tests.system.chaos.links import Links
from tests.system.chaos.processes import Processes
from tests.system.chaos.replay import Replayer
from tests.system.chaos.target import VCS, Target
from tools import engine

SETTLE_S = 120.0
"""After healing: every timeout of Skep (a lost node's 40 s), and the work that is left."""
GONE_WITHIN_S = 15.0
SHOWN_MAX = 40


class Chaos:
    """One run against one target."""

    def __init__(self, arguments: argparse.Namespace, target: Target) -> None:
        """Draw everything from the seed."""
        self.arguments, self.target = arguments, target
        seconds = arguments.minutes * 60
        self.missing = target.cannot
        able = [kind for kind in faults.KINDS if kind not in target.cannot]
        wanted = arguments.kinds.split(",") if arguments.kinds else able
        kinds = tuple(kind for kind in able if kind in wanted)
        rng = random.Random(arguments.seed)
        self.faults = faults.plan(rng, arguments.faults, seconds, target, kinds)
        wishes = workload.plan(rng, arguments.jobs, seconds, VCS, target.jobs)
        self.links = Links(target.about)
        self.replayer = Replayer(self.links)
        self.workload = workload.Workload(self.links, wishes)
        self.injector = faults.Injector(target, self.replayer)
        self.evidence = Evidence(told=[wish.told for wish in wishes], cuts=self.injector.cuts)
        self.begin = self.healed = 0

    async def run(self) -> dict[str, Any]:
        """Do it all; return the report."""
        await self.replayer.start()
        begin = time.monotonic()
        self.begin = time.monotonic_ns()
        live = asyncio.create_task(self._live(begin))
        work = asyncio.create_task(self.workload.run(begin))
        await self.injector.run(self.faults, begin)
        await self.injector.heal()
        await work
        self.healed = time.monotonic_ns()
        settle_s = self.arguments.settle
        ended_s = await gather.until_ended(self.target, self.evidence, settle_s)
        unanswered = await self.workload.settle(max(10.0, settle_s - ended_s))
        # A client that asked again meanwhile may have made the log longer.
        await gather.until_ended(self.target, self.evidence, max(10.0, settle_s - ended_s))
        self.evidence.unfinished += unanswered
        live.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await live
        await self.links.close()
        self.evidence.alive = await self._alive()
        gather.read_runs(self.target, self.evidence)
        return self._report(ended_s)

    async def _alive(self) -> list[str]:
        """Return the processes of jobs that do not go."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            left = self.target.job_processes()
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.1)

    async def _live(self, begin: float) -> None:
        """Show one line per second, over itself on a terminal."""
        told, end = self.evidence.told, "\r" if sys.stderr.isatty() else "\n"
        every_s = 1 if sys.stderr.isatty() else 15
        while True:
            sent = sum(1 for each in told if each.sent_at)
            acked = sum(1 for each in told if each.acks)
            answered = sum(1 for each in told if each.verdicts)
            now = [
                f"{each.kind} {each.component}" for each in self.injector.injected if not each.ended
            ]
            line = (
                f"chaos {time.monotonic() - begin:4.0f} s: {sent} sent, {acked} acknowledged, "
                f"{answered} answered, {len(self.injector.injected)} of {len(self.faults)} "
                f"faults; now: {', '.join(now) or '-'}"
            )
            print(line[:150].ljust(150 if end == "\r" else 0), end=end, file=sys.stderr, flush=True)
            await asyncio.sleep(every_s)

    def _report(self, ended_s: float) -> dict[str, Any]:
        evidence, injector = self.evidence, self.injector
        violations = Checker(evidence).check()
        done = Counter(each.kind for each in injector.injected if each.done)
        seen = gather.availability(evidence, self.begin, self.healed)
        return {
            "seed": self.arguments.seed,
            "target": self.arguments.target,
            "replay": self._command(),
            "minutes": self.arguments.minutes,
            "jobs": {
                "submitted": len(evidence.told),
                "acknowledged": sum(1 for told in evidence.told if told.acks),
                "by_kind": dict(Counter(told.kind for told in evidence.told)),
                "processes": len(evidence.runs),
                "attempts_beyond_first": len(
                    {(run.job, run.attempt) for run in evidence.runs if run.attempt > 1}
                ),
            },
            "faults": {
                "planned": len(self.faults),
                "done": sum(done.values()),
                "by_class": dict(done.most_common()),
                "not_possible": self.missing,
            },
            "messages_replayed": self.replayer.said,
            "availability": {**seen, "all_ended_s": round(ended_s, 1)},
            "stopped": [
                f"{name}: {state['state']} {state['detail']}"
                for name, state in self.target.states().items()
                if state["state"] != "ready"
            ],
            "problems": injector.problems,
            "violations": [violation._asdict() for violation in violations],
            "history": [
                vars(each)
                | {"began": (each.began - self.begin) / NS, "ended": (each.ended - self.begin) / NS}
                for each in injector.injected
            ],
        }

    def _command(self) -> str:
        chosen = self.arguments
        words = [
            "python -m tests.system.chaos",
            f"--seed {chosen.seed}",
            f"--jobs {chosen.jobs}",
            f"--faults {chosen.faults}",
            f"--minutes {chosen.minutes:g}",
        ]
        if chosen.target != "processes":
            words.append(f"--target {chosen.target}")
        return " ".join([*words, *([f"--kinds {chosen.kinds}"] if chosen.kinds else [])])

    def picture(self) -> str:
        """Return the timeline."""
        title = (
            f"Seed {self.arguments.seed}: {len(self.evidence.told)} jobs, "
            f"{len(self.faults)} faults in {self.arguments.minutes:g} minutes"
        )
        return picture.svg(self.evidence, self.injector.injected, self.begin, self.healed, title)


def table(report: dict[str, Any]) -> str:
    """Return the report as people read it."""
    jobs, hit, seen = report["jobs"], report["faults"], report["availability"]
    lines = [
        f"seed {report['seed']}: {jobs['acknowledged']} of {jobs['submitted']} submissions "
        f"acknowledged, {jobs['processes']} processes, "
        f"{jobs['attempts_beyond_first']} later attempts",
        f"faults: {hit['done']} of {hit['planned']} done: "
        + ", ".join(f"{kind} {count}" for kind, count in hit["by_class"].items()),
        *(f"not possible here: {kind}: {why}" for kind, why in hit["not_possible"].items()),
        f"longest wait for an acknowledgement {seen['ack_wait_s_max']} s (median "
        f"{seen['ack_wait_s_median']} s), longest time without a job starting "
        f"{seen['without_a_start_s_max']} s, all ended {seen['all_ended_s']} s after healing",
        *(f"not running at the end: {text}" for text in report["stopped"]),
        *(f"problem: {text}" for text in report["problems"]),
        f"violations: {len(report['violations'])}",
        *(f"  {each['promise']}: {each['text']}" for each in report["violations"][:SHOWN_MAX]),
        f"again with: {report['replay']}",
    ]
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """Return what the command line says."""
    assert __doc__ is not None
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.system.chaos", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--seed", type=int, default=1, help="draws faults and jobs (default 1)")
    parser.add_argument("--jobs", type=int, default=300, help="submissions (default 300)")
    parser.add_argument("--faults", type=int, default=40, help="faults (default 40)")
    parser.add_argument("--minutes", type=float, default=3, help="they are spread over (default 3)")
    parser.add_argument("--target", choices=("processes", "compose"), default="processes")
    parser.add_argument("--image", default="skep:local", help="of --target compose (`make image`)")
    parser.add_argument("--kinds", default="", help=f"only these: {','.join(faults.KINDS)}")
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_S,
        help="seconds for everything to end in after the last fault",
    )
    parser.add_argument("--corrupt", action="store_true", help="damage one store instead")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the timeline as SVG")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the cluster's folder")
    chosen = parser.parse_args()
    unknown = [kind for kind in chosen.kinds.split(",") if kind and kind not in faults.KINDS]
    if unknown:
        parser.error(f"--kinds {','.join(unknown)}: there are {', '.join(faults.KINDS)}")
    if chosen.corrupt and chosen.target != "processes":
        parser.error("--corrupt damages the store of a single bus server: --target processes")
    return chosen


def deploy(chosen: argparse.Namespace, folder: Path) -> Target:
    """Bring up what is to be attacked. Raises EngineError, RuntimeError, TimeoutError."""
    if chosen.target == "processes":
        return Processes(folder, clock=not chosen.corrupt)
    engine.up(install=False)
    return Containers(folder, chosen.image, clock=True)


def attack(chosen: argparse.Namespace, target: Target) -> tuple[dict[str, Any], str]:
    """Return the report and the picture; nothing of the target is left."""
    try:
        if chosen.corrupt:
            report, drawn = asyncio.run(corrupt.run(target, chosen.seed)), ""
        else:
            chaos = Chaos(chosen, target)
            report = asyncio.run(chaos.run())
            drawn = chaos.picture()
    finally:
        try:
            left = target.stop()
        finally:
            target.unmount()
    report["violations"] += [Violation("orphan", text)._asdict() for text in left]
    return report, drawn


def main() -> int:
    """Run it in a folder of its own, processes in namespaces of their own too."""
    chosen = options()
    # Whoever ends it early finds nothing left either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if os.geteuid() != 0:
        print("error: chaos cuts off networks and disks: run it as root", file=sys.stderr)
        return 2
    if chosen.target == "processes" and not network.in_namespace():
        network.enter([sys.executable, "-m", "tests.system.chaos", *sys.argv[1:]])
        print(
            "error: chaos needs network and mount namespaces of its own: run it as root",
            file=sys.stderr,
        )
        return 2
    with contextlib.ExitStack() as stack:
        folder = chosen.keep
        if folder is None:
            fresh = tempfile.TemporaryDirectory(prefix="skep-chaos-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(fresh))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            target = deploy(chosen, folder.resolve())
        except (engine.EngineError, RuntimeError, TimeoutError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        report, drawn = attack(chosen, target)
    print(corrupt.table(report) if chosen.corrupt else table(report))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    if chosen.out and drawn:
        chosen.out.write_text(drawn)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
