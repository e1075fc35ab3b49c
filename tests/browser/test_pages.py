"""The page in a real browser: what each role sees and may do, and what comes of it in the cluster.

It is driven by the keyboard or by what a person sees (roles and names), never by the structure of
the document.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import ATTACK, WAIT, expect, state, submit
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("chromium")]


def test_a_job_shows_as_it_starts_and_can_be_cancelled(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/jobs")
    job = submit(cluster, WAIT, name="soon")
    row = page.get_by_role("row").filter(has_text="soon")
    expect(row).to_contain_text("running")
    row.get_by_role("link", name=job, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(job)
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"skep cancel {job}")
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("main").get_by_text("cancelled").first).to_be_visible()
    assert cluster.ended(job)["state"] == "cancelled"


def test_many_jobs_are_cancelled_at_once(cluster: Embedded, page_as: PageAs) -> None:
    jobs = [submit(cluster, WAIT, name=f"many-{n}") for n in range(3)]
    kept = submit(cluster, WAIT, name="kept")
    page = page_as("operator", "/jobs?q=many-")
    expect(page.get_by_role("link", name=re.compile(r"^j\d+$"))).to_have_count(3)
    page.get_by_label("Choose all that are shown").check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()
    for job in jobs:
        assert cluster.ended(job)["state"] == "cancelled"
    assert state(cluster, kept) == "running"


def test_a_filter_is_in_the_address(cluster: Embedded, page_as: PageAs) -> None:
    submit(cluster, WAIT, name="one", labels={"team": "vision"})
    submit(cluster, WAIT, name="two")
    page = page_as("operator", "/jobs")
    page.get_by_label("Search").fill("team=vision")
    expect(page.get_by_role("link", name=re.compile(r"^j\d+$"))).to_have_count(1)
    assert "q=team%3Dvision" in page.url
    page.reload()
    expect(page.get_by_role("link", name=re.compile(r"^j\d+$"))).to_have_count(1)


def test_a_viewer_is_offered_nothing_that_it_may_not_do(
    cluster: Embedded, page_as: PageAs, tokens: dict[str, str]
) -> None:
    job = submit(cluster, WAIT)
    cluster.started(job)
    page = page_as("viewer", f"/jobs/{job}")
    actions = page.get_by_role("group", name="Actions")
    expect(page.get_by_role("heading", level=1)).to_contain_text(job)
    expect(actions.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("link", name="Logs")).to_have_count(0)
    # It is refused, too, whatever a page offers.
    told = page.evaluate(
        "([job, token]) => fetch(`/v1/jobs/${job}`, {method: 'DELETE', headers: {Authorization:"
        " `Bearer ${token}`}}).then((answer) => answer.status)",
        [job, tokens["viewer"]],
    )
    assert told == 403
    assert state(cluster, job) == "running"
    manager = page_as("manager", f"/jobs/{job}")
    expect(manager.get_by_role("button", name="Cancel", exact=True)).to_be_visible()


def test_another_tenants_jobs_are_not_shown(cluster: Embedded, page_as: PageAs) -> None:
    job = submit(cluster, WAIT, name="theirs", vc="other")
    mine = submit(cluster, WAIT, name="ours")
    cluster.started(job)
    page = page_as("viewer", "/jobs")
    expect(page.get_by_role("link", name=mine, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=job, exact=True)).to_have_count(0)


def test_what_tenants_write_is_text(cluster: Embedded, page_as: PageAs) -> None:
    job = submit(
        cluster, ["sh", "-c", f"echo '{ATTACK}'; sleep 600"], name=ATTACK[:60], labels={"note": "x"}
    )
    cluster.started(job)
    page = page_as("operator", "/jobs")
    expect(page.get_by_text(ATTACK[:20]).first).to_be_visible()
    for tab in ("", "?tab=logs", "?tab=events", "?tab=spec"):
        page.goto(page.url.split("/jobs")[0] + f"/jobs/{job}{tab}")
        expect(page.get_by_text(ATTACK[:20]).first).to_be_visible()
    assert page.evaluate("window.attacked") is None


def test_the_page_goes_on_after_the_gateway_was_killed(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/jobs")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    entry = cluster.entry("gateway")
    os.kill(entry["pid"], signal.SIGKILL)
    expect(page.get_by_text("reconnecting")).to_be_visible()
    cluster.wait_back("gateway", entry["pid"])
    job = submit(cluster, WAIT, name="afterwards")
    expect(page.get_by_role("link", name=job, exact=True)).to_be_visible()


def test_by_keyboard_alone(cluster: Embedded, page_as: PageAs) -> None:
    job = submit(cluster, WAIT, name="by-keyboard")
    cluster.started(job)
    page = page_as("operator", "/")
    page.keyboard.press("Control+k")
    page.keyboard.type("by-keyboard")
    expect(page.get_by_role("option", name=re.compile("by-keyboard"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(job)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Cancel":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Cancel":
            break
    page.keyboard.press("Enter")
    assert cluster.ended(job)["state"] == "cancelled"


def test_a_node_is_drained_from_the_page(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?node=node-2")
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    confirm = page.get_by_role("dialog", name=re.compile("^Drain"))
    expect(confirm).to_contain_text("skep node drain node-2")
    confirm.get_by_role("button", name="Drain", exact=True).click()
    nodes = {}

    def drained() -> bool:
        nodes.update({one["node"]: one["state"] for one in cluster.get("/v1/nodes")["nodes"]})
        return bool(nodes["node-2"] == "drained")

    until(drained, "node-2 is drained")
    page.get_by_role("dialog").get_by_role("button", name="Undrain", exact=True).click()
    confirm = page.get_by_role("dialog", name=re.compile("^Undrain"))
    confirm.get_by_role("button", name="Undrain", exact=True).click()
    until(lambda: not drained(), "node-2 is up again")
    viewer = page_as("viewer", "/cluster?node=node-2")
    expect(
        viewer.get_by_role("dialog").get_by_role("button", name="Drain", exact=True)
    ).to_have_count(0)


PAGES = (
    "/",
    "/jobs",
    "/jobs/{job}",
    "/submit",
    "/cluster",
    "/cluster?node=node-1",
    "/cluster?tab=cells",
    "/tenants",
    "/tenants/lab",
    "/searches",
    "/ledger",
    "/policies",
    "/replay",
    "/events",
    "/people",
    "/audit",
    "/me",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_out_of_reach(cluster: Embedded, page_as: PageAs, scheme: str) -> None:
    job = submit(cluster, WAIT)
    cluster.started(job)
    page = page_as("operator", "/", color_scheme=scheme)
    home = page.url.rstrip("/")
    wrong = {}
    for path in PAGES:
        page.goto(home + path.format(job=job))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("live").first).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        wrong[path] = axe(page)
    assert not any(wrong.values()), wrong


def test_what_is_out_of_reach_is_found(page_as: PageAs) -> None:
    page = page_as("operator", "/jobs")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert "button-name" in {one["rule"] for one in axe(page)}


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_no_page_is_wider_than_its_window(cluster: Embedded, page_as: PageAs, width: int) -> None:
    job = submit(cluster, WAIT, name="a-name-that-is-long-" * 3)
    cluster.started(job)
    page = page_as("operator", "/", width=width)
    for path in ("/", "/jobs", f"/jobs/{job}", "/cluster", "/tenants", "/searches", "/policies"):
        page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/", 3)[2] + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
