"""The gateway is killed while pages are open: they come back, and show what happened meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.conftest import PageAs
from tests.browser.kit import confirm, expect, running, state
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]


@contextmanager
def gateway_away(cluster: Embedded) -> Iterator[None]:
    """Kill the gateway, and keep it from coming back for now."""
    supervisor, gateway = cluster.entry("supervisor")["pid"], cluster.entry("gateway")["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(gateway, signal.SIGKILL)
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)
    cluster.wait_back("gateway", gateway)


def test_every_page_shows_what_happened_meanwhile(
    cluster: Embedded, page_as: PageAs, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo over; exit 3"
    job = running(cluster, ["sh", "-c", script], name="ends")
    paths = {
        "overview": "/",
        "jobs": "/jobs?q=ends",
        "job": f"/jobs/{job}",
        "events": f"/jobs/{job}?tab=events",
        "cells": "/cluster?tab=cells&find=node-1",
        "nodes": f"/cluster?q={job}",
        "tenant": "/tenants/lab",
        "logs": f"/jobs/{job}?tab=logs",
    }
    pages = {name: page_as("operator", path) for name, path in paths.items()}
    for page in pages.values():
        expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    expect(pages["logs"].get_by_role("log")).to_contain_text("begun")
    processes = job_processes(cluster, script)
    assert processes
    with gateway_away(cluster):
        for page in pages.values():
            expect(page.get_by_text("reconnecting")).to_be_visible()
        gate.touch()
        until(lambda: not any(Path("/proc", str(pid)).exists() for pid in processes), "its end")
    for page in pages.values():
        expect(page.get_by_role("status").filter(has_text="live")).to_be_visible(timeout=60_000)
    assert cluster.ended(job)["state"] == "failed"
    expect(pages["jobs"].get_by_role("link", name=job, exact=True)).to_have_count(0)
    expect(pages["job"].get_by_role("main").get_by_text("failed").first).to_be_visible()
    expect(pages["events"].get_by_role("main")).to_contain_text("failed")
    expect(pages["nodes"].get_by_text("No node matches.")).to_be_visible()
    expect(pages["logs"].get_by_role("log")).to_contain_text("over")
    expect(pages["tenant"].get_by_role("main")).to_contain_text("No cell is bound")
    expect(pages["overview"].get_by_role("link", name=re.compile(r"^0\s*jobs run"))).to_be_visible()
    cells = pages["cells"].get_by_role("main")
    expect(cells.get_by_role("row").filter(has_text=job)).to_have_count(0)


def job_processes(cluster: Embedded, script: str) -> list[int]:
    return [pid for pid, line in cluster.processes().items() if script in line]


def test_an_action_that_did_not_arrive_is_told_and_done_again(
    cluster: Embedded, page_as: PageAs
) -> None:
    job = running(cluster, name="kept")
    page = page_as("operator", f"/jobs/{job}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    with gateway_away(cluster):
        expect(page.get_by_text("reconnecting")).to_be_visible()
        confirm(page, "Cancel")
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("gateway")
    assert state(cluster, job) == "running"
    confirm(page, "Cancel")
    assert cluster.ended(job)["state"] == "cancelled"
    expect(page.get_by_role("main").get_by_text("cancelled").first).to_be_visible()


def test_a_terminal_says_that_its_gateway_died(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, name="entered")
    page = page_as("operator", f"/jobs/{job}?tab=terminal")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_text("Connected.")).to_be_visible()
    with gateway_away(cluster):
        expect(page.get_by_text("Not running.")).to_be_visible()
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_text("Connected.")).to_be_visible()


def test_a_page_that_is_opened_while_it_is_away_comes_up_with_it(
    cluster: Embedded, page_as: PageAs
) -> None:
    job = running(cluster, name="there")
    page = page_as("operator", "/jobs")
    with gateway_away(cluster):
        page.get_by_role("link", name="Ledger").click()
        expect(page.get_by_role("alert")).to_contain_text("gateway")
        page.get_by_role("link", name="Jobs", exact=True).click()
        # What was known stays in view.
        expect(page.get_by_role("link", name=job, exact=True)).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Ledger").click()
    expect(page.get_by_role("alert")).to_have_count(0)
