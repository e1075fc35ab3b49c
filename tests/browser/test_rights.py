"""What a role must not do: the page does not offer it, and the gateway refuses it when asked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import PageAs
from tests.browser.kit import begin_search, expect, running, state, submit
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("chromium")]

PAGES = (
    "/",
    "/jobs?state=all",
    "/jobs/{job}",
    "/jobs/{job}?tab=why",
    "/jobs/{job}?tab=logs",
    "/jobs/{job}?tab=files",
    "/jobs/{job}?tab=terminal",
    "/jobs/{waits}?tab=why",
    "/submit?from={job}",
    "/cluster",
    "/cluster?node=node-1",
    "/cluster?tab=cells",
    "/cluster?tab=windows",
    "/tenants",
    "/tenants?tab=file",
    "/tenants/lab",
    "/tenants/lab?tab=people",
    "/searches",
    "/searches/{search}",
    "/ledger",
    "/policies",
    "/replay",
    "/audit",
)
CHANGES = frozenset(
    [
        "Suspend",
        "Resume",
        "Checkpoint",
        "Migrate",
        "Resize",
        "Priority",
        "Hold",
        "Release",
        "Cancel",
        "Submit",
        "Reserve",
        "Drain",
        "Undrain",
        "quarantine",
        "Grant",
        "revoke",
        "Check",
        "Plan",
        "Apply",
        "Replay",
        "Open",
        "Download",
    ]
) | {
    "Submit again",
    "Do it …",
    "Reserve nodes",
    "give it up",
    "end it",
    "What would become of it?",
    "demote trial 1",
    "Edit and submit",
    "Edit the cluster file",
}
"""Every button and link of the page that does something to the cluster, or begins it."""
SPEC = {"name": "x", "vc": "lab", "command": ["true"]}
WINDOW = {
    "name": "w-x",
    "nodes": ["node-1"],
    "begins": 4_000_000_000_000_000_000,
    "ends": 4_000_003_600_000_000_000,
    "vc": "",
    "reason": "",
}
REPLAY = {"since": 1, "until": 2, "policies": {"lab": {"name": "srtf"}}}
VIEWER_MUST_NOT: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/jobs", SPEC),
    ("POST", "/v1/plan", SPEC),
    ("DELETE", "/v1/jobs/{job}", None),
    ("POST", "/v1/jobs/{job}/suspend", {}),
    ("POST", "/v1/jobs/{job}/resume", {}),
    ("POST", "/v1/jobs/{job}/checkpoint", {}),
    ("POST", "/v1/jobs/{job}/migrate", {}),
    ("POST", "/v1/jobs/{job}/resize", {"workers": 2}),
    ("POST", "/v1/jobs/{waits}/priority", {"priority": 9}),
    ("POST", "/v1/jobs/{waits}/hold", {}),
    ("POST", "/v1/jobs/{waits}/release", {}),
    ("POST", "/v1/jobs/{ended}/requeue", {}),
    ("GET", "/v1/jobs/{job}/logs", None),
    ("GET", "/v1/jobs/{job}/outputs", None),
    ("GET", "/v1/jobs/{job}/links", None),
    ("DELETE", "/v1/searches/{search}", None),
    ("POST", "/v1/searches/{search}/trials/1/demote", None),
    ("POST", "/v1/admin/drain", {"node": "node-1", "drain": True}),
    ("POST", "/v1/admin/quarantine", {"node": "node-1", "device": 0, "quarantine": True}),
    ("POST", "/v1/admin/reserve", {"window": WINDOW}),
    ("POST", "/v1/admin/unreserve", {"name": "w-x"}),
    ("POST", "/v1/admin/vcs", {"vcs": {}}),
    ("GET", "/v1/cluster-file", None),
    ("POST", "/v1/cluster-file/check", {"text": "vcs: {}"}),
    ("POST", "/v1/cells/plan", {"vcs": {}}),
    ("POST", "/v1/roles/grant", {"person": "vera", "role": "manager", "vc": "lab"}),
    ("POST", "/v1/roles/revoke", {"person": "mia", "role": "viewer", "vc": "lab"}),
    ("GET", "/v1/replays", None),
    ("POST", "/v1/replays", REPLAY),
    ("DELETE", "/v1/replays/r1", None),
)
"""What the pages of others ask for."""
ASK = """
async ([method, path, body, token]) => {
  const answer = await fetch(path, {
    method,
    headers: {Authorization: `Bearer ${token}`},
    ...(body && {body: JSON.stringify(body)}),
  });
  return answer.status;
}
"""


def things(cluster: Embedded) -> dict[str, str]:
    """Make one of each thing that pages are about, all of the operator."""
    job = running(cluster, name="theirs", resources={"gpus": 2}, env={"KEY": "hidden-value"})
    waits = submit(cluster, name="waits", resources={"gpus": 4}, over_quota="wait")
    ended = submit(cluster, ["true"], name="ended", service_class="opportunistic")
    cluster.ended(ended)
    search = begin_search(cluster, budget={"trials": 1}, parallel=1)
    until(lambda: cluster.get(f"/v1/searches/{search}")["rows"], "a trial")
    return {"job": job, "waits": waits, "ended": ended, "search": search}


def end(cluster: Embedded, search: str) -> None:
    cluster.ask("DELETE", f"/v1/searches/{search}")
    until(lambda: cluster.get(f"/v1/searches/{search}")["state"] == "over", "the search is over")


def offered(page: Any) -> set[str]:
    """Return the names of the buttons and links that change something."""
    names = page.evaluate(
        "[...document.querySelectorAll('main button, main a.button')]"
        ".map((one) => (one.ariaLabel ?? one.textContent).trim())"
    )
    return set(CHANGES) & set(names)


def opened(page: Any, path: str) -> Any:
    page.goto("/".join(page.url.split("/")[:3]) + path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)
    return page


def test_a_viewer_changes_nothing(
    cluster: Embedded, page_as: PageAs, tokens: dict[str, str]
) -> None:
    made = things(cluster)
    page = page_as("viewer")
    for path in PAGES:
        opened(page, path.format(**made))
        assert offered(page) == set(), path
        expect(page.get_by_text("hidden-value")).to_have_count(0)
    for method, path, body in VIEWER_MUST_NOT:
        where = path.format(**made)
        status = page.evaluate(ASK, [method, where, body, tokens["viewer"]])
        assert status in {403, 404}, (method, where, status)
        # It is there, and somebody may: what refuses a viewer is its role.
        if method == "GET" and "replays" not in path:
            assert cluster.ask(method, where).status == 200, where
    assert state(cluster, made["job"]) == "running"
    assert cluster.get(f"/v1/jobs/{made['waits']}")["priority"] == 0
    end(cluster, made["search"])


def test_a_submitter_changes_its_own_only(
    cluster: Embedded, page_as: PageAs, tokens: dict[str, str]
) -> None:
    made = things(cluster)
    page = page_as("submitter", "/submit")
    page.get_by_label("Command", exact=True).fill("sleep 600")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"^j\d+"))
    own = page.url.split("/jobs/")[1]
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    opened(page, f"/jobs/{made['job']}")
    assert offered(page) <= {"Edit and submit"}
    expect(page.get_by_role("link", name="Terminal")).to_have_count(0)
    for method, path, body in (
        ("DELETE", f"/v1/jobs/{made['job']}", None),
        ("POST", f"/v1/jobs/{made['job']}/suspend", {}),
        ("POST", f"/v1/jobs/{made['waits']}/priority", {"priority": 9}),
        ("DELETE", f"/v1/searches/{made['search']}", None),
        ("POST", "/v1/admin/drain", {"node": "node-1", "drain": True}),
        ("POST", "/v1/roles/grant", {"person": "sam", "role": "manager", "vc": "lab"}),
    ):
        assert page.evaluate(ASK, [method, path, body, tokens["submitter"]]) == 403, path
    opened(page, "/jobs")
    page.get_by_label("Choose all that are shown").check()
    chosen = page.get_by_role("group", name="What to do with the chosen jobs")
    chosen.get_by_role("button", name="Cancel", exact=True).click()
    # Of all that were chosen, it may cancel one.
    expect(page.get_by_role("dialog")).to_contain_text(f"skep cancel {own}")
    page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()
    assert cluster.ended(own)["state"] == "cancelled"
    assert state(cluster, made["job"]) == "running"
    end(cluster, made["search"])
    assert cluster.get(f"/v1/searches/{made['search']}")["why"] == "cancelled"


def test_an_operator_is_offered_everything(cluster: Embedded, page_as: PageAs) -> None:
    """What the other tests say of viewers is about names that there are."""
    made = things(cluster)
    page = page_as("operator")
    seen = set()
    for path in (*PAGES, "/jobs/{ended}", "/jobs/{search}"):
        if path != "/jobs/{search}":
            seen |= offered(opened(page, path.format(**made)))
    missing = CHANGES - seen
    # Offered in states that a job is not in here, by forms that are open, or in dialogs.
    assert missing <= {
        "Resume",
        "Checkpoint",
        "Migrate",
        "Resize",
        "Release",
        "Undrain",
        "give it up",
        "end it",
        "revoke",
        "Reserve",
        "Download",
        "Do it …",
    }, missing
    end(cluster, made["search"])


def test_a_role_that_is_taken_away_shows_nothing_more(cluster: Embedded, page_as: PageAs) -> None:
    """The page of somebody whose role ends says so, and does not go on to show what it had."""
    job = running(cluster, name="secretive")
    cluster.skep("user", "add", "una")
    cluster.skep("role", "grant", "una", "viewer", "--vc", "lab")
    page = page_as("viewer", "/jobs")
    token = cluster.skep("token", "create", "browser", "--person", "una").strip()
    page.evaluate("(token) => sessionStorage.setItem('skep-token', token)", token)
    page.reload()
    expect(page.get_by_role("link", name=job, exact=True)).to_be_visible()
    cluster.skep("role", "revoke", "una", "--vc", "lab")
    page.reload()
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.get_by_role("link", name=job, exact=True)).to_have_count(0)
