"""Pictures of every page and tab of the page before a busy cluster, to be looked at one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._busy import GUESTS, VCS, Busy
from benchmarks._sample import say
from benchmarks.pages import OPERATOR

WIDTHS = ((1440, 1300), (1024, 1300), (390, 1300))
SCHEMES = ("light", "dark")
SETTLES_MS, DRAWS_MS = 1_000, 250
UNTIL = """() => new Promise((done) => {{
  const look = () => {{ if ({}) done(); else setTimeout(look, 50); }};
  look();
}})"""
"""Waits within the page: its policy forbids what Playwright waits by, the evaluation of a text."""
SETTLED = "!document.querySelector('main#page').innerText.includes('Loading')"
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-all": "/jobs?state=all&sort=name",
    "jobs-nothing": "/jobs?q=no-such-job",
    "job": "/jobs/{running}",
    "job-curves": "/jobs/{running}?tab=curves",
    "job-logs": "/jobs/{running}?tab=logs",
    "job-events": "/jobs/{running}?tab=events",
    "job-blame": "/jobs/{running}?tab=blame",
    "job-files": "/jobs/{running}?tab=files",
    "job-terminal": "/jobs/{running}?tab=terminal",
    "job-trace": "/jobs/{running}?tab=trace",
    "job-spec": "/jobs/{running}?tab=spec",
    "job-waits": "/jobs/{waiting}",
    "job-why": "/jobs/{waiting}?tab=why",
    "job-failed": "/jobs/{failed}",
    "job-none": "/jobs/j99999999",
    "submit": "/submit",
    "cluster": "/cluster",
    "cluster-vc": "/cluster?by=vc",
    "cluster-use": "/cluster?by=use",
    "cluster-bad": "/cluster?q=bad",
    "cluster-node": "/cluster?node=n0003",
    "cells": "/cluster?tab=cells",
    "cells-rack": "/cluster?tab=cells&chain=v100&cell=rack 0",
    "cells-node": "/cluster?tab=cells&chain=v100&find=n0003",
    "windows": "/cluster?tab=windows",
    "tenants": "/tenants",
    "tenants-file": "/tenants?tab=file",
    "tenant": f"/tenants/{VCS[1]}",
    "tenant-people": f"/tenants/{GUESTS}?tab=people",
    "tenant-accounts": f"/tenants/{VCS[1]}?tab=accounts",
    "tenant-promises": f"/tenants/{VCS[1]}?tab=promises",
    "tenant-settings": f"/tenants/{GUESTS}?tab=settings",
    "searches": "/searches?state=all",
    "search-rungs": "/searches/s1",
    "search-many": "/searches/s2",
    "search-over": "/searches/s3",
    "ledger": "/ledger",
    "policies": "/policies",
    "policies-models": "/policies?tab=models",
    "policies-estimates": "/policies?tab=estimates",
    "policies-speeds": "/policies?tab=speeds",
    "replay": "/replay",
    "audit": "/audit",
    "nowhere": "/nowhere",
}
GO = "(to) => { history.pushState(null, '', to); dispatchEvent(new Event('popstate')); }"
WIDE = "document.documentElement.scrollWidth"


async def take(browser: Any, url: str, feed: Busy, folder: Path, only: str) -> dict[str, Any]:
    """Take the pictures; return how many, and which pages are wider than their window.

    Args:
        browser: Chromium.
        url: The gateway's address.
        feed: What happens in the cluster.
        folder: Where the pictures go: `NAME-WIDTH-SCHEME.png`.
        only: Take those pages whose names have this text.
    """
    jobs = {
        "running": feed.running[len(feed.running) // 2].job,
        "waiting": f"j{feed.jobs - 5}",
        "failed": feed.failed[-1] if feed.failed else "j1",
    }
    width, height = WIDTHS[0]
    page = await browser.new_page(viewport={"width": width, "height": height})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    await page.goto(f"{url}/#token={OPERATOR}")
    await page.wait_for_selector("a.tile b")
    count, wide = 0, []
    for name, path in PAGES.items():
        if only not in name:
            continue
        say(name)
        await page.set_viewport_size({"width": width, "height": height})
        await page.evaluate(GO, path.format(**jobs))
        await page.wait_for_timeout(SETTLES_MS)
        await page.evaluate(UNTIL.format(SETTLED))
        for each, high in WIDTHS:
            await page.set_viewport_size({"width": each, "height": high})
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                await page.wait_for_timeout(DRAWS_MS)
                await page.screenshot(path=folder / f"{name}-{each}-{scheme}.png")
                count += 1
            if (found := await page.evaluate(WIDE)) > each:
                wide.append(f"{name}: {found} px at {each} px")
    await page.close()
    return {"pictures_count": count, "too_wide": wide, "errors": wrong}
