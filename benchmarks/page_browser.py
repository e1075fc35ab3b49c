"""The page in a real browser, before a busy cluster: how soon it shows, and how smooth it is.

    python -m benchmarks page_browser [--jobs 10000] [--nodes 1000] [--facts 100] [--pictures DIR]

The gateway is that of `python -m benchmarks pages`, its cluster that of `benchmarks/_busy.py`;
the browser is Chromium without a window. `first_view` is from the request for the document until
the overview has its numbers, and what came over the wire until then (`all_bytes`: until all jobs,
nodes and GPUs are listed). `shown_ms` is from the instant of a fact (a job was submitted) until a
frame with its row was drawn. `interaction_ms` is from an input until the next frame after the
page has done its work, and `work_ms` the processor time that this took of the page's main thread,
which other work on the machine does not lengthen. `opened_ms` is from a click until what was
opened is there, with all that was asked for it. `memory_mb` is what the scripts keep, after a
collection, with all jobs listed, and `stays_mb` after a look at all pages. `open_pages` are pages
that nobody touches: the requests that each makes besides its stream and the bytes that come, a
second, and how much of a processor it uses. Progress is on standard error.
`--pictures` takes every page and tab at 1440, 1024 and 390 pixels, light and dark.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._busy import Busy
from benchmarks._page_pictures import UNTIL, take
from benchmarks._sample import percentiles, say
from benchmarks.pages import OPERATOR, STORE, go_on
from skep.wire import subjects

FIRST_VIEW_MS_MAX = 1_000.0
FIRST_VIEW_BYTES_MAX = 250_000
SHOWN_MS_MAX = 500.0
INTERACTION_MS_MAX = 100.0
MEMORY_MB_MAX = 200.0
VIEWS, TURNS = 5, 6
SHOWN_S, OPEN_S = 10.0, 5.0
TIMEOUT_MS = 60_000
"""What is not there by then is not there: the benchmark fails, and says what it waited for."""
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
WINDOW = {"width": 1440, "height": 900}
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Settles once the frame after what was just done is drawn."""
TIMED = f"""async ([what, given]) => {{
  const began = performance.now();
  if (what === "type") {{
    const input = document.querySelector("input[type=search]");
    input.value = given;
    input.dispatchEvent(new Event("input", {{ bubbles: true }}));
  }}
  if (what === "sort") document.querySelectorAll(".heads button")[given].click();
  if (what === "scroll") document.querySelector(".rows").scrollTop = given;
  if (what === "jump") scrollTo(0, given);
  if (what === "click") document.querySelector(given).click();
  await {DRAWN};
  return performance.now() - began;
}}"""
FIRST = """new MutationObserver((_, observer) => {
  if (!document.querySelector("a.tile b")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.tilesAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });"""
"""Notes when a frame with the numbers of the overview was drawn."""
LISTED = "performance.getEntriesByType('resource').some((one) => /tables=jobs/.test(one.name))"
VIEWED = """() => {
  const all = [...performance.getEntriesByType("navigation"),
    ...performance.getEntriesByType("resource")];
  const sum = (some) => some.reduce((bytes, one) => bytes + one.transferSize, 0);
  return {
    ms: window.tilesAt,
    bytes: sum(all.filter((one) => one.responseEnd <= window.tilesAt)),
    all_bytes: sum(all),
  };
}"""
SHOWN = """(ms) => new Promise((done) => {
  const seen = {}, until = performance.now() + ms;
  let first = true;
  const look = () => {
    const drawn = [...document.querySelectorAll("a.opens")].slice(0, 20)
      .map((one) => one.textContent).filter((job) => !(job in seen));
    setTimeout(() => {
      for (const job of drawn) seen[job] = first ? 0 : Date.now();
      first = false;
      if (performance.now() < until) requestAnimationFrame(look);
      else done(seen);
    });
  };
  requestAnimationFrame(look);
})"""
"""Which jobs the first rows show, and when a frame with each of them was drawn."""
ACTS: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...] = (
    (
        "jobs",
        "a.opens",
        (
            ("type", "train-{turn}"),
            ("type", ""),
            ("sort", "{turn}"),
            ("sort", 1),
            ("scroll", "{turn}0000"),
        ),
    ),
    (
        "cluster",
        ".node .gpu",
        (("type", "n00{turn}"), ("type", ""), ("jump", "{turn}000"), ("jump", "1{turn}0")),
    ),
)
"""On each page, once what is selected is there: inputs, with the number of the turn in them."""
SWITCHES = (
    ("jobs", "a.page[href='/jobs']", "a.opens"),
    ("a job", "a.opens", "nav.tabs"),
    ("why", "nav.tabs a[href$='tab=why']", "main#page .card"),
    ("cluster", "a.page[href='/cluster']", ".node .gpu"),
    ("cells", "nav.tabs a[href$='tab=cells']", "a.node.cell"),
    ("a rack", "a.node.cell", "ol li:nth-child(2) a[aria-current]"),
    ("a node", "a.node.cell", "ol li:nth-child(3) a[aria-current]"),
    ("tenants", "a.page[href='/tenants']", "main#page .vcname"),
    ("searches", "a.page[href='/searches']", "a.opens"),
    ("overview", "a.page[href='/']", "a.tile b"),
)
"""Pages and cells that are opened one after another: the link, and what shows that it is there."""
OPEN = ("/", "/jobs", "/cluster", "/cluster?tab=cells", "/tenants", "/searches")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--facts", type=int, default=100, help="a second")
    parser.add_argument("--pictures", type=Path, help="take pictures of all pages, and no figures")
    parser.add_argument("--only", default="", help="pictures whose names have this text")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_run(given))


async def _run(given: argparse.Namespace) -> dict[str, Any]:
    say("filling ...")
    feed = Busy(given.nodes)
    feed.fill(given.jobs)
    with tempfile.TemporaryDirectory(prefix="skep-browser-") as folder:
        async with _served(feed, folder, given.facts) as url, _browser() as browser:
            if given.pictures is not None:
                return await take(browser, url, feed, given.pictures, given.only)
            return await _measured(browser, url, feed, given)


@contextlib.asynccontextmanager
async def _served(feed: Busy, folder: str, facts: int) -> AsyncIterator[str]:
    """Have a gateway that knows all that happened, and is told what happens; yield its address."""
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
    feeding = listening = None
    try:
        wanted = (STORE, subjects.ALLOC_FACTS)
        count = sum((kind, subject) == wanted for kind, subject, _ in feed.records)
        say(f"the gateway reads {count} records ...")
        child.stdin.write(b"".join(feed.taken()))
        await child.stdin.drain()
        port = int(await child.stdout.readline())
        while int(await child.stdout.readline()) < count:
            pass
        say(f"{len(feed.machine.state.jobs)} jobs on {len(feed.machine.state.nodes)} nodes")
        feeding = asyncio.create_task(go_on(child.stdin, feed, facts))
        listening = asyncio.create_task(child.stdout.read())
        yield f"http://127.0.0.1:{port}"
        assert not feeding.done(), feeding.result()
    finally:
        for task in (feeding, listening):
            if task is not None:
                task.cancel()
        if child.returncode is None:
            child.kill()
        await child.wait()


@contextlib.asynccontextmanager
async def _browser() -> AsyncIterator[Any]:
    api = importlib.import_module("playwright.async_api")
    async with api.async_playwright() as driver:
        path = shutil.which("chromium")
        browser = await driver.chromium.launch(executable_path=path, args=list(OPTIONS))
        try:
            yield browser
        finally:
            await browser.close()


async def _measured(
    browser: Any, url: str, feed: Busy, given: argparse.Namespace
) -> dict[str, Any]:
    say("first views ...")
    # The gateway encodes its tables when the first page asks: that page is not measured.
    await _first_view(browser, url)
    first = [await _first_view(browser, url) for _ in range(VIEWS)]
    page = await browser.new_page(viewport=WINDOW)
    page.set_default_timeout(TIMEOUT_MS)
    await page.goto(f"{url}/jobs#token={OPERATOR}")
    await page.wait_for_selector("a.opens")
    meter = await Meter.of(page)
    say("facts ...")
    shown = await _shown(page, feed)
    memory_mb = await meter.heap_mb()
    say("inputs ...")
    acts: dict[str, list[Took]] = {}
    for name, there, inputs in ACTS:
        await _go(page, f"/{name}", there)
        for turn in range(1, TURNS + 1):
            for number, (what, value) in enumerate(inputs):
                text = value.format(turn=turn) if isinstance(value, str) else value
                act = [what, int(text) if what in ("sort", "scroll", "jump") else text]
                took = await meter.timed(act)
                acts.setdefault(f"{name} {what} {number + 1}", []).append(took)
    say("pages ...")
    opened: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for name, link, there in SWITCHES:
            await page.wait_for_selector(link)
            began = time.perf_counter()
            acts.setdefault(f"to {name}", []).append(await meter.timed(["click", link]))
            await page.wait_for_selector(there)
            opened.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    say("open pages ...")
    still = {path: await _still(page, meter, path) for path in OPEN}
    stays_mb = await meter.heap_mb()
    views: dict[str, Any] = {
        "ms": percentiles([one["ms"] for one in first], 1),
        "bytes": max(one["bytes"] for one in first),
        "all_bytes": max(one["all_bytes"] for one in first),
    }
    took_ms = {name: percentiles([one.ms for one in all_], 1) for name, all_ in acts.items()}
    shown_ms = percentiles(shown, 1)
    return {
        "jobs": len(feed.machine.state.jobs),
        "nodes": given.nodes,
        "first_view": views,
        "shown_ms": shown_ms,
        "interaction_ms": took_ms,
        "work_ms": {
            name: percentiles([one.work_ms for one in all_], 1) for name, all_ in acts.items()
        },
        "opened_ms": {name: percentiles(each, 1) for name, each in opened.items()},
        "open_pages": still,
        "memory_mb": memory_mb,
        "stays_mb": stays_mb,
        "within_limit": views["ms"]["p50"] <= FIRST_VIEW_MS_MAX
        and views["bytes"] <= FIRST_VIEW_BYTES_MAX
        and shown_ms["p99"] <= SHOWN_MS_MAX
        and all(one["p50"] <= INTERACTION_MS_MAX for one in took_ms.values())
        and max(memory_mb, stays_mb) <= MEMORY_MB_MAX,
    }


class Took(NamedTuple):
    """How long an input took, and how much of the main thread's time."""

    ms: float
    work_ms: float


class Meter:
    """Reads what the browser counts of one page."""

    def __init__(self, page: Any, session: Any) -> None:
        """Read by this session."""
        self._page, self._session = page, session
        self.requests = 0
        self.bytes = 0.0
        session.on("Network.requestWillBeSent", self._sent)
        session.on("Network.dataReceived", self._received)

    @classmethod
    async def of(cls, page: Any) -> Meter:
        """Return a meter of a page."""
        session = await page.context.new_cdp_session(page)
        meter = cls(page, session)
        await session.send("Network.enable")
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        return meter

    def _sent(self, _: Any) -> None:
        self.requests += 1

    def _received(self, told: Any) -> None:
        self.bytes += told["encodedDataLength"] or told["dataLength"]

    async def work_ms(self) -> float:
        """Return the processor time of the page's main thread until now."""
        told = await self._session.send("Performance.getMetrics")
        found = {one["name"]: one["value"] for one in told["metrics"]}
        return float(found["TaskDuration"]) * 1000

    async def timed(self, act: list[Any]) -> Took:
        """Do something as a person does it."""
        before = await self.work_ms()
        ms = float(await self._page.evaluate(TIMED, act))
        return Took(ms, await self.work_ms() - before)

    async def heap_mb(self) -> float:
        """Return what the scripts keep, after a collection."""
        await self._session.send("HeapProfiler.collectGarbage")
        usage = await self._session.send("Runtime.getHeapUsage")
        return round(float(usage["usedSize"]) / 1e6, 1)


async def _go(page: Any, path: str, there: str) -> None:
    """Go to a page as its links do, without loading anew."""
    script = "(to) => { history.pushState(null, '', to); dispatchEvent(new Event('popstate')); }"
    await page.evaluate(script, path)
    await page.wait_for_selector(there)


async def _shown(page: Any, feed: Busy) -> list[float]:
    """Return how long after its fact each job's row was drawn."""
    seen = await page.evaluate(SHOWN, SHOWN_S * 1000)
    jobs = feed.machine.state.jobs
    return [at - jobs[job].submitted_at / 1e6 for job, at in seen.items() if at and job in jobs]


async def _still(page: Any, meter: Meter, path: str) -> dict[str, float]:
    """Return what a page does that nobody touches."""
    await _go(page, path, "main#page h1")
    await asyncio.sleep(2.0)
    requests, had, work, began = (
        meter.requests,
        meter.bytes,
        await meter.work_ms(),
        time.monotonic(),
    )
    await asyncio.sleep(OPEN_S)
    took_s = time.monotonic() - began
    return {
        "requests_per_second": round((meter.requests - requests) / took_s, 2),
        "bytes_per_second": round((meter.bytes - had) / took_s),
        "cores": round((await meter.work_ms() - work) / 1000 / took_s, 3),
    }


async def _first_view(browser: Any, url: str) -> dict[str, float]:
    """Open the overview in an empty browser; return how long it took, and its bytes."""
    context = await browser.new_context(viewport=WINDOW)
    page = await context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    await page.add_init_script(FIRST)
    await page.goto(f"{url}/#token={OPERATOR}", wait_until="commit")
    await page.evaluate(UNTIL.format(f"window.tilesAt && {LISTED}"))
    told: dict[str, float] = await page.evaluate(VIEWED)
    await context.close()
    return told
