"""The page in a real browser, before a busy cluster: how soon it shows, and how smooth it is.

    python -m benchmarks page_browser [--jobs 10000] [--nodes 1000] [--facts 100] [--pictures DIR]

The gateway and its feed are those of `python -m benchmarks pages`; the browser is Chromium without
a window. `first_view` is from the request for the document until the overview has its numbers, and
what came over the wire until then. `shown_ms` is from the instant of a fact until a frame with it
was drawn. `interaction_ms` is from an input until the next frame after the page has done its work:
a letter in the search of the jobs, a click on a column, a turn of the wheel, and the search of the
cluster. `memory_mb` is what the scripts keep, after a collection, with all jobs listed.
`--pictures` takes every page at 1440, 1024 and 390 pixels, light and dark.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles, say
from benchmarks.pages import OPERATOR, STORE, WAITING, Feed, go_on

FIRST_VIEW_MS_MAX = 1_000.0
FIRST_VIEW_BYTES_MAX = 250_000
SHOWN_MS_MAX = 500.0
INTERACTION_MS_MAX = 100.0
MEMORY_MB_MAX = 200.0
WIDTHS = ((1440, 900), (1024, 768), (390, 844))
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "job": "/jobs/{running}",
    "job-why": "/jobs/{waiting}?tab=why",
    "cluster": "/cluster",
}
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Settles once the frame after what was just done is drawn."""
TIMED = f"""async (act) => {{
  const began = performance.now();
  act.forEach(([what, ...with_]) => {{
    if (what === "type") {{
      const input = document.querySelector("input[type=search]");
      input.value = with_[0];
      input.dispatchEvent(new Event("input", {{ bubbles: true }}));
    }}
    if (what === "sort") document.querySelectorAll(".heads button")[with_[0]].click();
    if (what === "scroll") document.querySelector(".rows").scrollTop = with_[0];
  }});
  await {DRAWN};
  return performance.now() - began;
}}"""
SHOWN = """(left) => new Promise((done) => {
  const found = [];
  const look = () => {
    const text = document.querySelector(".live").title;
    found.push(Number(/([0-9]+) ms/.exec(text)[1]));
    if ((left -= 1) > 0) setTimeout(look, 250);
    else done(found);
  };
  look();
})"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--facts", type=int, default=100, help="a second")
    parser.add_argument("--pictures", type=Path, help="also take pictures of all pages")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_measured(given))


async def _measured(given: argparse.Namespace) -> dict[str, Any]:
    feed = Feed(given.nodes)
    for _ in range(given.jobs):
        feed.submit()
    while feed.bound_jobs and len(feed.running) < given.jobs * (WAITING - 1) // WAITING:
        feed.start()
    with tempfile.TemporaryDirectory(prefix="skep-browser-") as folder:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from benchmarks.pages import gateway; gateway()",
            folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            count = sum(kind == STORE for kind, _, _ in feed.records)
            child.stdin.write(b"".join(feed.taken()))
            await child.stdin.drain()
            port = int(await child.stdout.readline())
            while int(await child.stdout.readline()) < count:
                pass
            say(f"{len(feed.machine.state.jobs)} jobs on {given.nodes} nodes")
            feeding = asyncio.create_task(go_on(child.stdin, feed, given.facts))
            try:
                return await _in_browser(f"http://127.0.0.1:{port}", feed, given)
            finally:
                feeding.cancel()
        finally:
            child.kill()
            await child.wait()


async def _in_browser(url: str, feed: Feed, given: argparse.Namespace) -> dict[str, Any]:
    api = importlib.import_module("playwright.async_api")
    async with api.async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(OPTIONS)
        )
        # The gateway encodes its tables when the first page asks: that page is not measured.
        await _first_view(browser, url)
        first = [await _first_view(browser, url) for _ in range(5)]
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(f"{url}/jobs#token={OPERATOR}")
        await page.wait_for_selector("a.opens")
        shown = await page.evaluate(SHOWN, 40)
        interaction: dict[str, list[float]] = {}
        for turn in range(8):
            for name, act in (
                ("search", [["type", "train-" + str(turn)]]),
                ("clear", [["type", ""]]),
                ("sort", [["sort", turn % 4]]),
                ("scroll", [["scroll", 40_000 * turn]]),
            ):
                interaction.setdefault(name, []).append(await page.evaluate(TIMED, act))
        session = await page.context.new_cdp_session(page)
        await session.send("HeapProfiler.collectGarbage")
        memory = await session.send("Runtime.getHeapUsage")
        await page.goto(f"{url}/cluster")
        await page.wait_for_selector(".node, canvas")
        for turn in range(8):
            for name, act in (
                ("cluster search", [["type", f"node-{turn}"]]),
                ("cluster clear", [["type", ""]]),
            ):
                interaction.setdefault(name, []).append(await page.evaluate(TIMED, act))
        if given.pictures is not None:
            await _pictures(browser, url, feed, given.pictures)
        await browser.close()
    views: dict[str, Any] = {
        "ms": percentiles([one["ms"] for one in first], 1),
        "bytes": max(one["bytes"] for one in first),
    }
    memory_mb = round(memory["usedSize"] / 1e6, 1)
    acts = {name: percentiles(values, 1) for name, values in interaction.items()}
    return {
        "jobs": len(feed.machine.state.jobs),
        "nodes": given.nodes,
        "first_view": views,
        "shown_ms": percentiles(shown, 1),
        "interaction_ms": acts,
        "memory_mb": memory_mb,
        "within_limit": views["ms"]["p50"] <= FIRST_VIEW_MS_MAX
        and views["bytes"] <= FIRST_VIEW_BYTES_MAX
        and percentiles(shown, 1)["p99"] <= SHOWN_MS_MAX
        and all(one["p50"] <= INTERACTION_MS_MAX for one in acts.values())
        and memory_mb <= MEMORY_MB_MAX,
    }


async def _first_view(browser: Any, url: str) -> dict[str, float]:
    """Open the overview in an empty browser; return how long it took, and its bytes."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda told: sizes.append(told["encodedDataLength"]))
    began = time.perf_counter()
    await page.goto(f"{url}/#token={OPERATOR}", wait_until="commit")
    await page.wait_for_selector("a.tile b")
    took_ms = (time.perf_counter() - began) * 1000
    told = {"ms": took_ms, "bytes": sum(sizes)}
    await context.close()
    return told


async def _pictures(browser: Any, url: str, feed: Feed, folder: Path) -> None:
    jobs = {"running": feed.running[len(feed.running) // 2].job, "waiting": f"j{feed.jobs - 5}"}
    for width, height in WIDTHS:
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = await context.new_page()
            for name, path in PAGES.items():
                await page.goto(f"{url}{path.format(**jobs)}#token={OPERATOR}")
                await page.wait_for_selector("main#page h1")
                await page.wait_for_timeout(1_000)
                await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
            await context.close()
