"""Pictures of the page of a busy cluster, for docs/tutorial/the-page.md and the README.

    python -m tools.page_pictures [--out docs/tutorial/page] [--minutes 12] [--only NAME ...]
    python -m tools.page_pictures --look DIR      # every page, three widths, light and dark

A cluster with fake GPUs is started in a folder of its own. People submit PyTorch jobs there: gangs,
an array, a search, jobs that share GPUs on trial, and jobs that wait. After some minutes each page
is opened in Chromium (`pip install playwright`, `apt install chromium`) and kept as WebP.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from playwright.sync_api import sync_playwright

OUT = Path(__file__).resolve().parents[1] / "docs" / "tutorial" / "page"
BYTES_MAX = 150_000
"""No picture has more: a document with twenty is still read on a slow line."""
QUALITIES = (82, 70, 55)
"""Of WebP: the first one that keeps to the bound is taken."""
WITHIN_S = 120.0
SETTLES_MS = 1_500
"""Until charts are drawn and rows have their second rate."""
CLUSTER = {
    "chains": {
        "a100": {"gpu": "a100", "levels": {"pair": 2, "node": 2}, "nodes": "gpu-[1-4]"},
        "h100": {"gpu": "h100", "levels": {"pair": 2, "node": 2}, "nodes": "gpu-[5-6]"},
    },
    "nodes": [
        {
            "name": f"gpu-{number}",
            "gpus": 4,
            "device": "fake",
            "gpu_type": "a100" if number < 5 else "h100",
        }
        for number in range(1, 7)
    ],
    "vcs": {
        "vision": {
            "cells": {"a100/node": 2},
            "templates": {
                "short": {
                    "about": "a try of an hour at most",
                    "fixed": ["priority"],
                    "spec": {"priority": 1, "limits": {"time": "1h"}, "volumes": ["datasets"]},
                }
            },
        },
        "nlp": {"cells": {"a100/node": 2}, "policy": {"name": "look-ahead"}},
        "speech": {
            "cells": {"h100/pair": 1},
            "policy": {"name": "gandiva", "slice_s": 40, "introspect": True},
        },
        "sweeps": {"cells": {"h100/pair": 1, "h100/node": 1}},
    },
    "volumes": {
        "datasets": "/mnt/datasets",
        "scratch": {"path": "/mnt/scratch", "mode": "rw", "nfs": "filer:/export/scratch"},
        "corpora": {"path": "/mnt/corpora", "vcs": {"nlp": "rw", "speech": "ro"}},
    },
}
PEOPLE = {
    "ada": {"vision": "manager", "nlp": "submitter"},
    "ben": {"nlp": "submitter", "vision": "submitter"},
    "eva": {"speech": "submitter", "sweeps": "submitter", "nlp": "viewer"},
}
"""Roles of people by virtual cluster."""
TRAIN = """
import argparse, os, torch, skep_job
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--fails-at", type=int, default=-1)
given = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, given.width), nn.Tanh(), nn.Linear(given.width, 1))
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=given.lr)
run = skep_job.init()
run.track(model=model, optimizer=optimizer)
while run.steps < given.steps:
    x = torch.randn(64, 16)
    wrong = model(x).squeeze(1) - torch.sin(x[:, :4].sum(1))
    loss = wrong.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    accuracy = (wrong.abs() < 0.25).float().mean().item()
    run.report(loss=loss.item(), accuracy=accuracy)
    run.step()
    if run.steps == given.fails_at:
        raise ValueError(f"loss is not finite at mini-batch {run.steps}")
    if run.steps % 25 == 0:
        print(f"mini-batch {run.steps} of {given.steps}: loss {loss.item():.4f}, "
              f"accuracy {accuracy:.3f}", flush=True)
"""


class Training(NamedTuple):
    """A job that trains; `load` is what it does to a fake GPU, `more` what else its spec says."""

    name: str
    vc: str
    person: str
    gpus: int
    steps: int
    step_ms: float
    utilisation: float
    more: dict[str, Any]
    args: tuple[str, ...] = ()


TRAININGS = (
    Training("vit-b16-imagenet", "vision", "ada", 4, 9_000, 250, 0.93, {"priority": 2}),
    Training("unet-segmentation", "vision", "ben", 2, 1_200, 150, 0.71, {}),
    Training("detr-coco", "vision", "ada", 1, 5_000, 200, 0.64, {"labels": {"team": "boxes"}}),
    Training("resnet50-baseline", "vision", "ben", 1, 900, 120, 0.88, {}, ("--fails-at", "300")),
    Training(
        "llama-lora-r16", "nlp", "ben", 2, 12_000, 300, 0.96, {"workers": 2, "finish_by": "3h"}
    ),
    Training("bert-large-squad", "nlp", "ada", 2, 9_000, 180, 0.82, {}),
    Training("t5-small-summaries", "nlp", "ben", 1, 20_000, 90, 0.45, {}),
    Training("mixtral-instruct", "nlp", "ada", 2, 8_000, 400, 0.9, {"workers": 4}),
    Training("wav2vec-base", "speech", "eva", 1, 30_000, 100, 0.12, {}),
    Training("whisper-tiny", "speech", "eva", 1, 30_000, 100, 0.12, {}),
    Training("hubert-probe", "speech", "eva", 1, 30_000, 100, 0.95, {}),
    Training("conformer-xl", "speech", "eva", 1, 30_000, 100, 0.95, {}),
    Training("distil-gpt2", "sweeps", "eva", 2, 9_000, 200, 0.8, {}),
    Training("mt5-ablation", "sweeps", "eva", 1, 9_000, 140, 0.6, {}, ("--lr", "0.01")),
    Training("mt5-ablation-2", "sweeps", "eva", 1, 9_000, 140, 0.6, {}, ("--lr", "0.0005")),
    Training("clip-vit-l14", "vision", "ada", 4, 6_000, 250, 0.9, {"over_quota": "wait"}),
    Training(
        "dino-pretrain", "vision", "ben", 4, 9_000, 250, 0.9, {"workers": 2, "over_quota": "wait"}
    ),
)
SEARCH: dict[str, Any] = {
    "name": "tune-tagger",
    "vc": "sweeps",
    "metric": "accuracy",
    "direction": "maximize",
    "job": {"args": ["--steps", "6000", "--lr={lr}", "--width={width}"]},
    "space": {"lr": {"log": [0.0003, 0.1]}, "width": {"choice": [8, 16, 32, 64]}},
    "budget": {"trials": 24},
    "parallel": 3,
    "method": "asha",
    "rungs": {"first": 200, "last": 5400, "eta": 3},
}
ARRAY = {
    "name": "evaluate",
    "vc": "sweeps",
    "command": "echo fold $SKEP_ARRAY_INDEX; sleep 40",
    "array": "0-39%2",
    "resources": {"gpus": 1},
}


class Picture(NamedTuple):
    """A page as it is kept: its name, its address, and how large it is drawn."""

    name: str
    path: str
    width: int = 1280
    height: int = 800
    scheme: str = "light"


class Cluster:
    """The cluster in a folder, asked through its gateway."""

    def __init__(self, home: Path) -> None:
        """Prepare; `up` starts it."""
        self.home = home
        self.tokens: dict[str, str] = {}

    def skep(self, *words: str) -> str:
        """Run a command; return what it printed. Raises RuntimeError with its words."""
        command = [sys.executable, "-m", "skep_services", *words, "--home", str(self.home)]
        done = subprocess.run(command, check=False, text=True, capture_output=True)
        if done.returncode:
            text = f"skep {' '.join(words)}: {done.stderr or done.stdout}"
            raise RuntimeError(text)
        return done.stdout

    def up(self) -> None:
        """Start it, with its people and their tokens."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / "cluster.yaml"
        file.write_text(json.dumps(CLUSTER), encoding="utf-8")
        (self.home / "train.py").write_text(TRAIN, encoding="utf-8")
        self.skep("up", "--cluster", str(file), "--port", "0", "--people")
        self.tokens["operator"] = self.about["gateway"]["tokens"]["operator"]
        for person, roles in PEOPLE.items():
            self.skep("user", "add", person)
            for vc, role in roles.items():
                self.skep("role", "grant", person, role, "--vc", vc, "--reason", "new colleague")
            made = self.skep("token", "create", "laptop", "--person", person)
            self.tokens[person] = made.strip().splitlines()[-1].strip()

    @property
    def about(self) -> Any:
        """Return the content of `cluster.json`."""
        return json.loads((self.home / "cluster.json").read_text(encoding="utf-8"))

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return str(self.about["gateway"]["url"])

    def ask(self, method: str, path: str, body: Any = None, who: str = "operator") -> Any:
        """Return the gateway's answer. Raises RuntimeError if it refuses."""
        headers = {
            "Authorization": f"Bearer {self.tokens[who]}",
            "Idempotency-Key": f"picture-{time.monotonic_ns()}",
        }
        answer = httpx.request(
            method, self.url + path, json=body, headers=headers, timeout=60, trust_env=False
        )
        if answer.is_error:
            text = f"{method} {path}: {answer.status_code}: {answer.text}"
            raise RuntimeError(text)
        return answer.json()

    def train(self, one: Training) -> str:
        """Submit a job that trains; return its id."""
        more = dict(one.more)
        workers = int(more.pop("workers", 1))
        spec = {
            "name": one.name,
            "vc": one.vc,
            "script": "train.py",
            "workdir": str(self.home),
            "args": ["--steps", str(one.steps), *one.args],
            "resources": {"gpus": one.gpus, "workers": workers},
            "size": {"mini_batches": one.steps},
            "env": load(one.step_ms, one.utilisation),
            **more,
        }
        return str(self.ask("POST", "/v1/jobs", spec, who=one.person)["job"])

    def until(self, look: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
        """Return the first true value of `look`; raises TimeoutError that says what is missing."""
        deadline = time.monotonic() + within_s
        while not (found := look()):
            if time.monotonic() > deadline:
                text = f"not within {within_s:.0f} s: {what}"
                raise TimeoutError(text)
            time.sleep(0.5)
        return found

    def state(self, job: str) -> str:
        """Return the state of a job."""
        return str(self.ask("GET", f"/v1/jobs/{job}")["state"])


def load(step_ms: float, utilisation: float) -> dict[str, str]:
    """Return the variables of a job that keeps a fake GPU as busy as told."""
    told = {"step_ms": step_ms, "utilisation": utilisation, "demand": utilisation}
    return {"SKEP_FAKE_LOAD": json.dumps(told), "OMP_NUM_THREADS": "1"}


def fill(cluster: Cluster) -> dict[str, str]:
    """Give the cluster what it is to be busy with; return the ids by their names."""
    ids = {one.name: cluster.train(one) for one in TRAININGS}
    trial = {
        **SEARCH["job"],
        "script": "train.py",
        "workdir": str(cluster.home),
        "env": load(120, 0.5),
        "resources": {"gpus": 1},
    }
    search = cluster.ask("POST", "/v1/searches", {**SEARCH, "job": trial}, who="eva")
    ids["search"] = str(search["search"])
    ids["array"] = str(cluster.ask("POST", "/v1/jobs", ARRAY, who="eva")["job"])
    nightly = {
        "name": "nightly-tokens",
        "vc": "nlp",
        "command": ["sleep", "60"],
        "begin": "6h",
        "resources": {"gpus": 1},
    }
    ids["deferred"] = str(cluster.ask("POST", "/v1/jobs", nightly, who="ben")["job"])
    return ids


def operate(cluster: Cluster, ids: dict[str, str]) -> None:
    """Do what operators and people do: a window, a bad GPU, a move, a suspension, a priority."""
    window = ("--from", "6h", "--for", "4h", "--maintenance", "--reason", "new fans")
    cluster.skep("reserve", "create", "--nodes", "gpu-4", *window)
    demo = ("--from", "26h", "--for", "2h", "--vc", "speech", "--reason", "demo for visitors")
    cluster.skep("reserve", "create", "--nodes", "gpu-5", *demo)
    for name in ("detr-coco", "t5-small-summaries", "llama-lora-r16"):
        path = f"/v1/jobs/{ids[name]}"
        cluster.until(partial(_trains, cluster, path), f"{name} trains")
    with contextlib.suppress(RuntimeError):  # What a busy cluster refuses is shown as refused.
        cluster.skep("suspend", "--wait", ids["detr-coco"])
        cluster.skep("resume", "--wait", ids["detr-coco"])
    with contextlib.suppress(RuntimeError):
        cluster.skep("migrate", "--wait", ids["t5-small-summaries"])
    cluster.skep("gpu", "quarantine", "gpu-6", "3")


def _trains(cluster: Cluster, path: str) -> bool:
    return bool(cluster.ask("GET", path)["steps"] > 20)


def replayed(cluster: Cluster) -> str:
    """Replay what there was under another policy; return the name of the replay."""
    now = time.time_ns()
    body = {
        "since": now - 3600 * 10**9,
        "until": now,
        "policies": {"vision": {"name": "srtf"}, "nlp": {"name": "fifo"}},
    }
    replay = str(cluster.ask("POST", "/v1/replays", body)["replay"])

    def over() -> bool:
        return bool(cluster.ask("GET", f"/v1/replays/{replay}")["state"] != "running")

    cluster.until(over, "the replay to be done", 300)
    return replay


def pictures(ids: dict[str, str], replay: str) -> list[Picture]:
    """Return the pictures of the tour."""
    waits, trains = ids["clip-vit-l14"], ids["llama-lora-r16"]
    return [
        Picture("overview", "/", height=900),
        Picture("jobs", "/jobs?state=all", height=760),
        Picture("job", f"/jobs/{ids['detr-coco']}", height=900),
        Picture("why", f"/jobs/{waits}?tab=why"),
        Picture("curves", f"/jobs/{trains}?tab=curves", height=900),
        Picture("logs", f"/jobs/{trains}?tab=logs", height=620),
        Picture("blame", f"/jobs/{ids['bert-large-squad']}?tab=blame", height=700),
        Picture("submit", f"/submit?from={trains}"),
        Picture("cluster", "/cluster", height=700),
        Picture("cells", "/cluster?tab=cells&chain=a100", height=760),
        Picture("windows", "/cluster?tab=windows", height=560),
        Picture("tenants", "/tenants", height=560),
        Picture("tenant", "/tenants/vision", height=800),
        Picture("search", f"/searches/{ids['search']}", height=1100),
        Picture("ledger", "/ledger", height=760),
        Picture("policies", "/policies", height=620),
        Picture("estimates", "/policies?tab=estimates", height=700),
        Picture("replay", f"/replay?r={replay}", height=900),
        Picture("compare", f"/compare?jobs={ids['mt5-ablation']},{ids['mt5-ablation-2']}"),
        Picture("events", "/events", height=620),
        Picture("audit", "/audit", height=620),
        Picture("dark", "/", height=900, scheme="dark"),
        Picture("phone", f"/jobs/{trains}", width=390, height=844),
    ]


PAGES = {
    "overview": "/",
    "jobs": "/jobs?state=all",
    "job": "/jobs/{detr-coco}",
    "why": "/jobs/{clip-vit-l14}?tab=why",
    "whyhere": "/jobs/{llama-lora-r16}?tab=why",
    "curves": "/jobs/{llama-lora-r16}?tab=curves",
    "logs": "/jobs/{llama-lora-r16}?tab=logs",
    "events": "/jobs/{detr-coco}?tab=events",
    "blame": "/jobs/{bert-large-squad}?tab=blame",
    "files": "/jobs/{bert-large-squad}?tab=files",
    "terminal": "/jobs/{llama-lora-r16}?tab=terminal",
    "trace": "/jobs/{llama-lora-r16}?tab=trace",
    "spec": "/jobs/{llama-lora-r16}?tab=spec",
    "array": "/jobs/{array}",
    "submit": "/submit?from={llama-lora-r16}",
    "nodes": "/cluster",
    "node": "/cluster?node=gpu-1",
    "chains": "/cluster?tab=cells",
    "cells": "/cluster?tab=cells&chain=a100",
    "windows": "/cluster?tab=windows",
    "volumes": "/cluster?tab=volumes",
    "compare": "/compare?jobs={mt5-ablation},{mt5-ablation-2}",
    "events-all": "/events",
    "tenants": "/tenants",
    "file": "/tenants?tab=file",
    "tenant": "/tenants/vision",
    "searches": "/searches",
    "search": "/searches/{search}",
    "ledger": "/ledger",
    "policies": "/policies",
    "models": "/policies?tab=models",
    "estimates": "/policies?tab=estimates",
    "speeds": "/policies?tab=speeds",
    "replay": "/replay?r={replay}",
    "audit": "/audit",
}
"""Every page with its tabs, by names of jobs."""
WIDTHS = {1440: 900, 1024: 768, 390: 844}
"""Heights by widths at which all pages are looked at."""


def main() -> int:
    """Make the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--look", type=Path, help="every page at three widths, light and dark")
    parser.add_argument("--minutes", type=float, default=12.0, help="for which jobs run before")
    parser.add_argument("--only", nargs="*", default=[], help="names of pictures")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="skep-page-", ignore_cleanup_errors=True) as folder,
        busy(Path(folder) / "home", given.minutes) as (cluster, ids, replay),
    ):
        if given.look:
            look(cluster, {**ids, "replay": replay}, given.look, given.only)
        else:
            chosen = [
                one for one in pictures(ids, replay) if not given.only or one.name in given.only
            ]
            tour(cluster, chosen, given.out)
    return 0


@contextlib.contextmanager
def busy(home: Path, minutes: float) -> Iterator[tuple[Cluster, dict[str, str], str]]:
    """Have a busy cluster; give it, the ids of what runs there, and a replay."""
    cluster = Cluster(home)
    began = time.monotonic()
    try:
        cluster.up()
        ids = fill(cluster)
        operate(cluster, ids)
        while time.monotonic() < began + 60 * minutes:
            time.sleep(1.0)
        yield cluster, ids, replayed(cluster)
    finally:
        cluster.skep("down", "--now")


def tour(cluster: Cluster, chosen: Sequence[Picture], out: Path) -> None:
    """Keep each picture as WebP of at most `BYTES_MAX`."""
    out.mkdir(parents=True, exist_ok=True)
    total = 0
    with browser() as chromium:
        for one in chosen:
            page, path = opened(chromium, cluster, one.width, one.height, one.scheme), one.path
            show(page, path)
            tried = (webp(page, quality) for quality in QUALITIES)
            kept = next((each for each in tried if len(each) <= BYTES_MAX), b"")
            assert kept, f"{one.name} has more than {BYTES_MAX} bytes at any quality"
            total += len(kept)
            (out / f"{one.name}.webp").write_bytes(kept)
            print(f"{out / one.name}.webp: {len(kept)} bytes", flush=True)
            page.context.close()
    print(f"{len(chosen)} pictures, {total} bytes")


def look(cluster: Cluster, ids: dict[str, str], out: Path, only: Sequence[str]) -> None:
    """Keep whole pages at each width, light and dark; say which are wider than the window."""
    out.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for width, height in WIDTHS.items():
            for scheme in ("light", "dark"):
                page = opened(chromium, cluster, width, height, scheme)
                for name, path in PAGES.items():
                    if only and name not in only:
                        continue
                    show(page, re.sub(r"{([^}]+)}", lambda found: ids[found[1]], path))
                    page.screenshot(path=str(out / f"{name}-{width}-{scheme}.png"))
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    if wide > width:
                        print(f"{name} at {width} {scheme}: {wide} wide", flush=True)
                page.context.close()


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Have Chromium."""
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield launched
        launched.close()


def opened(chromium: Any, cluster: Cluster, width: int, height: int, scheme: str) -> Any:
    """Return a page in which the operator is logged in."""
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.on("pageerror", lambda error: print(f"error in the page: {error}", flush=True))
    page.set_default_timeout(WITHIN_S * 1000)
    page.goto(f"{cluster.url}/#token={cluster.tokens['operator']}")
    page.wait_for_selector("main#page h1")
    return page


def show(page: Any, path: str) -> None:
    """Go to an address of the page, and wait until it is drawn."""
    page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/", 3)[2] + path)
    page.wait_for_selector("main#page h1")
    with contextlib.suppress(Exception):  # What loads for longer is drawn as loading.
        page.get_by_text("Loading").first.wait_for(state="hidden", timeout=8_000)
    page.wait_for_timeout(SETTLES_MS)


def webp(page: Any, quality: int) -> bytes:
    """Return what the window shows, as WebP."""
    session = page.context.new_cdp_session(page)
    told = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
    return base64.b64decode(told["data"])


if __name__ == "__main__":
    sys.exit(main())
