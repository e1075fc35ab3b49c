"""Pictures of `skep top` on a busy cluster, for docs/how-to/command-line.md.

    python -m tools.top_pictures [--out docs/how-to]

A cluster with fake GPUs is started in a folder of its own, and given jobs that report mini-batches,
arrays and jobs that wait. What Textual draws there at 80, 120 and 200 columns is written as SVG.
The fonts of the web that Textual names are left out: the pictures load nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from skep_services.cli.client import Target, find_target
from skep_services.cli.top.app import Top
from skep_services.cli.top.feed import Feed

OUT = Path(__file__).resolve().parents[1] / "docs" / "how-to"
SIZES = {80: 22, 120: 26, 200: 26}
"""Rows of the terminal by its columns."""
CLUSTER = ("--nodes", "4", "--gpus", "8", "--device", "fake", "--port", "0")
VCS = ("--vc", "vision=16", "--vc", "nlp=16")
TRAIN = """
import sys, time, skep_job
run, pause_s, steps = skep_job.init(), float(sys.argv[1]), int(sys.argv[2])
while run.steps < steps:
    time.sleep(pause_s)
    run.report(loss=1 / (1 + run.steps / 100))
    run.step()
"""
JOBS = (
    ("vit-b16-imagenet", "vision", 8, 0.02, 90_000, 3),
    ("unet-segmentation", "vision", 2, 0.05, 4_000, 2),
    ("detr-coco", "vision", 4, 0.03, 50_000, 2),
    ("llama-lora-r16", "nlp", 8, 0.04, 60_000, 4),
    ("bert-large-squad", "nlp", 4, 0.025, 9_000, 2),
    ("t5-small-summaries", "nlp", 1, 0.01, 120_000, 1),
    ("clip-vit-l14", "vision", 8, 0.05, 30_000, 1),
    ("mixtral-eval", "nlp", 8, 0.05, 30_000, 1),
    ("whisper-finetune", "nlp", 4, 0.05, 30_000, 0),
)
"""Name, virtual cluster, GPUs, pause (seconds), mini-batches and priority of each."""
RUNS_S = 60.0
"""For how long jobs report before the pictures are taken: rates and predictions need some time."""
WITHIN_S = 120.0


def main() -> int:
    """Make the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-top-", ignore_cleanup_errors=True) as home:
        skep(home, "up", *CLUSTER, *VCS)
        try:
            fill(Path(home))
            target = find_target(home)
            for width, height in SIZES.items():
                picture = asyncio.run(drawn(target, width, height))
                path = given.out / f"top-{width}.svg"
                path.write_text(picture, encoding="utf-8")
                print(f"{path}: {len(picture)} bytes")
        finally:
            skep(home, "down", "--now")
    return 0


def skep(home: str, *words: str) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "skep_services", *words, "--home", home],
        check=True,
        text=True,
        capture_output=True,
    )
    return done.stdout


def fill(home: Path) -> None:
    """Have jobs run and wait, and report for a while."""
    script = home / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    specs = [
        {
            "name": name,
            "vc": vc,
            "script": str(script),
            "args": [str(pause_s), str(steps)],
            "resources": {"gpus": gpus},
            "priority": priority,
            "size": {"mini_batches": steps},
        }
        for name, vc, gpus, pause_s, steps, priority in JOBS
    ]
    sweep = {"name": "sweep-lr", "vc": "vision", "command": ["sleep", "900"], "array": "0-11%2"}
    for spec in (*specs, sweep):
        path = home / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        skep(str(home), "submit", str(path), "--no-check", "-q")
    until = time.monotonic() + RUNS_S
    while time.monotonic() < until:
        time.sleep(1.0)


async def drawn(target: Target, width: int, height: int) -> str:
    """Return the screen at a size, as SVG, once it shows why the chosen job is as it is."""
    app = Top(Feed(target, None))
    async with app.run_test(size=(width, height)) as pilot:
        until = time.monotonic() + WITHIN_S
        while not (app._seen.about and app._seen.wish.job == app._chosen):
            assert time.monotonic() < until, "the gateway shows no job"
            await pilot.pause(0.5)
        await pilot.pause(6.0)  # Two rates of each job make a line.
        return plain(app.export_screenshot(title=f"skep top, {width} columns"))


def plain(svg: str) -> str:
    """Return a picture without what it would load from the web."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    svg = svg.replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
