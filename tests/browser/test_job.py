"""The page of a job in a real browser: what it shows, and what is done from it."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import ATTACK, CURVE, WAIT, expect, running, submit
from tests.support.embedded import DIRECT, Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

PAINTED = r"printf '\033[31mred\033[0m plain\n\033]0;title\007%s\n%05000d\n' '" + ATTACK + "' 7"


def trains(cluster: Embedded) -> str:
    """Submit a job that reports an accuracy for a long time; return its id once it runs."""
    return running(cluster, name="trains", script=str(CURVE), args=["0.01", "100000"])


def test_rates_and_curves_show_with_what_was_decided(cluster: Embedded, page_as: PageAs) -> None:
    job = trains(cluster)
    page = page_as("operator", f"/jobs/{job}?tab=curves")
    rates = page.get_by_role("img", name=re.compile(f"^Rate of {job} .* latest [1-9]"))
    expect(rates).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(f"^accuracy of {job}"))).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("placed on")
    assert axe(page) == []


def test_a_change_says_what_it_came_to(cluster: Embedded, page_as: PageAs) -> None:
    job = trains(cluster)
    page = page_as("operator", f"/jobs/{job}")
    page.get_by_role("button", name="Suspend", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"skep suspend {job}")
    dialog.get_by_role("button", name="Suspend", exact=True).click()
    expect(page.get_by_text("suspend: done", exact=True)).to_be_visible()
    assert cluster.get(f"/v1/jobs/{job}")["state"] == "suspended"
    page.get_by_role("button", name="Resume", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_text("resume: done", exact=True)).to_be_visible()
    told = page.get_by_role("listitem").filter(has_text="suspend done at mini-batch")
    expect(told).to_be_visible()


def test_what_would_start_a_job_is_done_from_its_page(cluster: Embedded, page_as: PageAs) -> None:
    first = submit(cluster, WAIT, name="holds", resources={"gpus": 4})
    cluster.started(first)
    job = submit(cluster, WAIT, name="waits", resources={"gpus": 4}, over_quota="wait")
    page = page_as("operator", f"/jobs/{job}?tab=why")
    option = page.get_by_role("listitem").filter(has_text="as-opportunistic")
    option.get_by_role("button", name="Do it …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('+ service_class: "opportunistic"')
    dialog.get_by_role("button", name=re.compile("^Submit it so")).click()
    expect(page.get_by_role("heading", level=1)).not_to_contain_text(job)
    expect(page.get_by_role("main").get_by_text("running").first).to_be_visible()
    assert cluster.ended(job)["state"] == "cancelled"


def test_a_log_is_text_with_colours(cluster: Embedded, page_as: PageAs) -> None:
    job = submit(cluster, ["sh", "-c", f"{PAINTED}; sleep 600"], name="prints")
    cluster.started(job)
    page = page_as("operator", f"/jobs/{job}?tab=logs")
    log = page.get_by_role("log")
    expect(log.get_by_text("red", exact=True)).to_have_class("ansi-bad")
    expect(log).to_contain_text(ATTACK)
    expect(log).to_contain_text("1,000 characters more")
    assert page.evaluate("window.attacked") is None
    assert "\x1b" not in log.inner_text()
    page.get_by_role("searchbox").fill("PLAIN")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("1 line with “PLAIN”")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download", exact=True).click()
    assert saved.value.suggested_filename == f"{job}-rank0.log"
    assert Path(saved.value.path()).read_text() == cluster.log(job)


def test_a_job_is_planned_submitted_and_edited(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("submitter", "/submit")
    page.get_by_label("Name", exact=True).fill(ATTACK[:40])
    page.get_by_label("Command", exact=True).fill("sleep 600")
    page.get_by_role("button", name="What would become of it?").click()
    expect(page.get_by_text(re.compile("^It would start now on node-"))).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(ATTACK[:40])
    page.get_by_role("link", name="Edit and submit").click()
    spec = page.get_by_label("Spec as JSON")
    expect(spec).to_have_value(re.compile("sleep 600"))
    wrong = {"name": "x", "vc": "lab", "colour": "red"}
    spec.fill(json.dumps(wrong))
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("$.colour: unknown key `colour`")
    spec.fill("{")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert").last).to_contain_text("This is no JSON")


def test_a_terminal_in_a_running_job(cluster: Embedded, page_as: PageAs, tmp_path: Path) -> None:
    # The shell reads no start-up file: this home has none.
    job = submit(cluster, WAIT, name="entered", env={"HOME": str(tmp_path)})
    cluster.started(job)
    page = page_as("operator", f"/jobs/{job}?tab=terminal")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_text("Connected.")).to_be_visible()
    # A colour by its parts is what the policy of the page would refuse as a style.
    page.keyboard.type("printf '\\033[38;2;255;99;0m%s\\033[0m\\n' $((6*7))$SKEP_JOB\n")
    expect(page.locator(".xterm-accessibility-tree")).to_contain_text(f"42{job}")
    assert axe(page) == []
    page.keyboard.type("exit 3\n")
    expect(page.get_by_text("It ended with exit code 3.")).to_be_visible()


def test_a_terminal_is_not_offered_to_a_viewer(
    cluster: Embedded, page_as: PageAs, tokens: dict[str, str]
) -> None:
    job = submit(cluster, WAIT, name="closed")
    cluster.started(job)
    page = page_as("viewer", f"/jobs/{job}?tab=terminal")
    expect(page.get_by_role("link", name="Terminal")).to_have_count(0)
    offered = base64.urlsafe_b64encode(tokens["viewer"].encode()).decode().rstrip("=")
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": f"skep.terminal, skep.bearer.{offered}",
    }
    url = f"{cluster.about['gateway']['url']}/v1/jobs/{job}/terminal"
    with pytest.raises(urllib.error.HTTPError) as refused:
        DIRECT.open(urllib.request.Request(url, headers=headers), timeout=20)
    assert refused.value.code == 403
    refused.value.close()


@pytest.mark.parametrize("tab", ["why", "logs", "events", "blame", "files", "trace", "spec"])
def test_no_part_of_it_is_out_of_reach(cluster: Embedded, page_as: PageAs, tab: str) -> None:
    job = submit(cluster, WAIT, name=ATTACK[:60])
    cluster.started(job)
    page = page_as("operator", f"/jobs/{job}?tab={tab}", width=390)
    expect(page.get_by_role("link", name=re.compile("."), exact=False).first).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.attacked") is None
