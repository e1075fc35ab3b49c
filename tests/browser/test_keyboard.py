"""Jobs are submitted, watched and cancelled by the keyboard alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import PageAs
from tests.browser.kit import expect, running, state
from tests.support.embedded import Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]


def reach(page: Any, name: str, key: str = "Tab", most: int = 80) -> None:
    """Press Tab until something of this name has the focus."""
    focused = ""
    for _ in range(most):
        page.keyboard.press(key)
        focused = page.evaluate(
            "(document.activeElement.labels?.[0]?.querySelector('span')?.textContent"
            " ?? document.activeElement.ariaLabel ?? document.activeElement.textContent).trim()"
        )
        if focused == name:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus on {name} is not seen"
            return
    text = f"{name} is not reached by {most} times {key}; the last was {focused!r}"
    raise AssertionError(text)


def test_submit_watch_and_cancel_by_keyboard_alone(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("submitter")
    page.keyboard.press("Control+k")
    page.keyboard.type("submi")
    expect(page.get_by_role("option", name=re.compile("Submit"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Submit a job")
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_be_visible()
    reach(page, "Name")
    page.keyboard.press("Control+a")
    page.keyboard.type("by hand")
    reach(page, "Command")
    page.keyboard.press("Control+a")
    page.keyboard.type("echo begun; sleep 600")
    reach(page, "What would become of it?")
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile("^It would start now on node-"))).to_be_visible()
    reach(page, "Submit")
    page.keyboard.press("Enter")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("by hand")
    job = page.url.split("/jobs/")[1]
    expect(page.get_by_role("main").get_by_text("running").first).to_be_visible()
    assert state(cluster, job) == "running"
    reach(page, "Logs")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("begun")
    reach(page, "Cancel", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert state(cluster, job) == "running"
    # The focus is where it was before the dialog.
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.keyboard.press("Enter")
    reach(page, "Cancel")
    page.keyboard.press("Enter")
    assert cluster.ended(job)["state"] == "cancelled"
    expect(page.get_by_role("main").get_by_text("cancelled").first).to_be_visible()


def test_a_row_is_chosen_and_its_job_cancelled_by_keyboard(
    cluster: Embedded, page_as: PageAs
) -> None:
    job = running(cluster, name="chosen")
    page = page_as("operator", "/jobs?q=chosen")
    expect(page.get_by_role("link", name=job, exact=True)).to_be_visible()
    reach(page, f"Choose {job}")
    page.keyboard.press("Space")
    reach(page, "Cancel", "Shift+Tab")
    page.keyboard.press("Enter")
    reach(page, "Cancel")
    page.keyboard.press("Enter")
    assert cluster.ended(job)["state"] == "cancelled"


def test_a_terminal_is_left_by_keyboard(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, name="entered")
    page = page_as("operator", f"/jobs/{job}?tab=terminal")
    reach(page, "Open")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Connected.")).to_be_visible()
    page.keyboard.press("Control+Shift+Escape")
    assert page.evaluate("document.activeElement.textContent") == "End it"
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Open", exact=True)).to_be_visible()
