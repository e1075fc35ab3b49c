"""The page in a real browser: searches, the ledger, policies and models, replays, the audit log."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.browser.conftest import WITHIN_MS, PageAs, axe
from tests.browser.kit import ATTACK, begin_search, expect
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

STEPS = 20_000
"""More mini-batches than a trial makes in a test: it runs until it is told not to."""
PAGES = (
    "/searches",
    "/ledger",
    "/policies",
    "/policies?tab=models",
    "/policies?tab=estimates",
    "/policies?tab=speeds",
    "/audit",
    "/replay",
)


def begin(cluster: Embedded, **changes: Any) -> str:
    """Begin a search of four trials, two of them at a time; return its id."""
    asked = {
        "name": "rates",
        "budget": {"trials": 4},
        "method": "asha",
        "rungs": {"first": 10, "last": STEPS, "eta": 3},
        **changes,
    }
    return begin_search(cluster, STEPS, key=f"browser-{asked['name']}", **asked)


def shown(cluster: Embedded, search: str) -> dict[str, Any]:
    told: dict[str, Any] = cluster.get(f"/v1/searches/{search}")
    return told


def test_a_search_is_watched_steered_and_cancelled(cluster: Embedded, page_as: PageAs) -> None:
    # Its first trials run until it is cancelled: none comes as far as the first rung.
    rungs = {"first": STEPS // 2, "last": STEPS, "eta": 2}
    search = begin(cluster, name=f"steered {ATTACK}", rungs=rungs)
    until(
        lambda: sum(bool(row["points"]) for row in shown(cluster, search)["rows"]) >= 2,
        "curves of two trials",
    )
    page = page_as("operator", "/searches")
    page.get_by_role("link", name=search, exact=True).click()
    expect(page.get_by_role("img", name=re.compile("accuracy of .* by mini-batch"))).to_be_visible()
    page.get_by_role("button", name="demote trial 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"skep search demote {search} 1")
    dialog.get_by_role("button", name="Demote", exact=True).click()
    until(lambda: shown(cluster, search)["rows"][0]["demoted"], "the trial to be behind all others")
    expect(page.get_by_role("button", name="promote trial 1")).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"skep search cancel {search}")
    page.get_by_role("button", name="Cancel it").click()
    # Its trials have ten seconds to end.
    over = page.get_by_role("main").get_by_text("over", exact=True).first
    expect(over).to_be_visible(timeout=WITHIN_MS)
    assert shown(cluster, search)["why"] == "cancelled"
    assert page.evaluate("window.attacked") is None


def test_trials_are_chosen_by_a_range_with_the_keyboard(cluster: Embedded, page_as: PageAs) -> None:
    search = begin(cluster, name="chosen")
    until(lambda: len(shown(cluster, search)["rows"]) == 4, "four trials")
    page = page_as("viewer", f"/searches/{search}")
    expect(page.get_by_role("heading", name="4 trials")).to_be_visible()
    expect(page.get_by_role("group", name="Actions").get_by_role("button")).to_have_count(0)
    page.get_by_label("rate from").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("heading", name="1 of 4 trials")).to_be_visible()
    assert "on.rate=100-100" in page.url
    page.get_by_role("button", name="choose all again").click()
    expect(page.get_by_role("heading", name="4 trials")).to_be_visible()
    cluster.ask("DELETE", f"/v1/searches/{search}")
    until(lambda: shown(cluster, search)["state"] == "over", "the search to be over")


def test_a_past_span_is_replayed_from_the_page(cluster: Embedded, page_as: PageAs) -> None:
    spec = {"name": "past", "vc": "lab", "command": ["true"], "resources": {"gpus": 1}}
    for _ in range(3):
        reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
        cluster.ended(reply.body["job"])
    page = page_as("operator", "/replay")
    page.get_by_label("Policy of lab").select_option("srtf")
    expect(
        page.get_by_text(re.compile("skep replay --since .* --policy 'lab=srtf'"))
    ).to_be_visible()
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("heading", name="By virtual cluster")).to_be_visible(timeout=60_000)
    newest = cluster.get("/v1/replays")["replays"][0]
    assert (newest["state"], newest["policies"]) == (
        "done",
        {"lab": {"name": "srtf", "options": {}}},
    )
    outcome = cluster.get(f"/v1/replays/{newest['replay']}")["outcome"]
    assert outcome["was"]["jobs"] == outcome["changed"]["jobs"] >= 3
    page.get_by_label("Jobs that were submitted in").select_option("other")
    page.get_by_label("from (UTC)").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("longer than 31 days")


def test_what_is_not_for_a_role_is_not_offered(cluster: Embedded, page_as: PageAs) -> None:
    pages = page_as("viewer").get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Ledger")).to_be_visible()
    for name in ("Audit", "Replay"):
        expect(pages.get_by_role("link", name=name, exact=True)).to_have_count(0)


def test_the_audit_log_says_who_was_given_which_role(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("manager", "/audit")
    log = page.get_by_role("table", name="Lines of the audit log")
    expect(log).to_contain_text("sam")
    page.get_by_label("To what").fill("nobody")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No line matches.")).to_be_visible()
    expect(page.get_by_text("skep audit --target nobody")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
def test_pages_are_for_everybody(cluster: Embedded, page_as: PageAs, width: int) -> None:
    for path in PAGES:
        page = page_as("operator", path, width=width)
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert axe(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
