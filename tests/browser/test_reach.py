"""Every page, tab and dialog is for everybody: axe-core in both colours, and the keyboard alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import ATTACK, CURVE, expect, running, state, submit
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

TABS = {
    "/jobs/{job}": [
        "why",
        "curves",
        "logs",
        "events",
        "blame",
        "files",
        "terminal",
        "trace",
        "spec",
    ],
    "/jobs/{waits}": ["", "why"],
    "/jobs/{ended}": ["", "why", "blame"],
    "/cluster": ["cells", "windows"],
    "/tenants": ["file"],
    "/tenants/lab": ["", "people", "accounts", "promises", "settings"],
    "/policies": ["models", "estimates", "speeds"],
}
PAGES = (
    "/",
    "/jobs?state=all",
    "/jobs/{job}",
    "/submit?from={job}",
    "/cluster",
    "/cluster?by=vc",
    "/cluster?by=use",
    "/cluster?node=node-1",
    "/cluster?tab=cells&find=node-1",
    "/tenants",
    "/searches",
    "/searches/{search}",
    "/ledger",
    "/policies",
    "/replay",
    "/audit",
    "/nothing",
    "/jobs/j999",
    *(f"{path}?tab={tab}" for path, tabs in TABS.items() for tab in tabs),
)


@pytest.fixture(scope="module")
def things(house: Embedded) -> dict[str, str]:
    """One of each thing that pages are about."""
    running(house, name="holds", resources={"gpus": 2})
    job = running(house, name=ATTACK[:40], script=str(CURVE), args=["0.01", "1000000"])
    waits = submit(house, name="waits", resources={"gpus": 4}, over_quota="wait")
    ended = submit(house, ["sh", "-c", "exit 3"], name="ended")
    house.ended(ended)
    running(house, name="borrows", vc="other", service_class="opportunistic")
    spec = {
        "name": "rates",
        "vc": "other",
        "metric": "accuracy",
        "direction": "maximize",
        "job": {"script": str(CURVE), "args": ["{rate}", "1000000"]},
        "space": {"rate": {"log": [0.001, 1.0]}},
        "budget": {"trials": 2},
        "parallel": 2,
        "method": "asha",
        "rungs": {"first": 10, "last": 1000000, "eta": 3},
    }
    search = house.ask("POST", "/v1/searches", json.dumps(spec).encode()).body["search"]
    until(lambda: len(house.get(f"/v1/searches/{search}")["rows"]) == 2, "trials")
    return {"job": job, "waits": waits, "ended": ended, "search": search}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_and_tab(things: dict[str, str], page_as: PageAs, scheme: str) -> None:
    page = page_as("operator", color_scheme=scheme)
    root = page.url.rstrip("/")
    for path in PAGES:
        page.goto(root + path.format(**things))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert axe(page) == [], path


def button(name: str) -> Callable[[Any], None]:
    return lambda page: page.get_by_role("button", name=name, exact=True).first.click()


def of_the_node(name: str) -> Callable[[Any], None]:
    return lambda page: (
        page.get_by_role("dialog").get_by_role("button", name=name, exact=True).first.click()
    )


def planned(page: Any) -> None:
    button("Plan")(page)
    button("Apply")(page)


def granting(page: Any) -> None:
    page.get_by_role("combobox", name="Person").fill("vera")
    button("Grant")(page)


def chosen(page: Any) -> None:
    page.get_by_label("Choose all that are shown").check()
    button("Cancel")(page)


DIALOGS: dict[str, tuple[str, Callable[[Any], None]]] = {
    **{verb: ("/jobs/{job}", button(verb)) for verb in ("Suspend", "Cancel")},
    **{verb: ("/jobs/{waits}", button(verb)) for verb in ("Priority", "Hold")},
    "Submit again": ("/jobs/{ended}", button("Submit again")),
    "many": ("/jobs", chosen),
    "what if": ("/jobs/{waits}?tab=why", button("Do it …")),
    "drain": ("/cluster?node=node-1", of_the_node("Drain")),
    "quarantine": ("/cluster?node=node-1", of_the_node("quarantine")),
    "reserve": ("/cluster?node=node-1", of_the_node("Reserve")),
    "reserve nodes": ("/cluster?tab=windows", button("Reserve nodes")),
    "apply": ("/tenants?tab=file", planned),
    "grant": ("/tenants/lab?tab=people", granting),
    "revoke": ("/tenants/lab?tab=people", button("revoke")),
    "cancel a search": ("/searches/{search}", button("Cancel")),
    "demote": ("/searches/{search}", button("demote trial 1")),
    "palette": ("/", lambda page: page.keyboard.press("Control+k")),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_dialog(things: dict[str, str], page_as: PageAs, scheme: str) -> None:
    page = page_as("operator", color_scheme=scheme)
    root = page.url.rstrip("/")
    for what, (path, opens) in DIALOGS.items():
        page.goto(root + path.format(**things))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        opens(page)
        expect(page.get_by_role("dialog")).to_be_visible()
        assert axe(page) == [], what
        page.keyboard.press("Escape")
    assert state_of_all(things, page) == [], "a dialog that is left does nothing"


def state_of_all(things: dict[str, str], page: Any) -> list[str]:
    """Return the jobs that are not as they were."""
    root = "/".join(page.url.split("/")[:3])
    page.goto(f"{root}/jobs/{things['job']}")
    expect(page.get_by_role("main").get_by_text("running").first).to_be_visible()
    page.goto(f"{root}/jobs/{things['waits']}")
    expect(page.get_by_role("main").get_by_text("queued").first).to_be_visible()
    return []


def test_the_login_and_the_menu_of_a_phone(page_as: PageAs) -> None:
    for scheme in ("light", "dark"):
        page = page_as("operator", width=390, color_scheme=scheme)
        menu = page.get_by_role("button", name="Overview")
        menu.click()
        expect(menu).to_have_attribute("aria-expanded", "true")
        assert axe(page) == []
        page.get_by_role("link", name="Ledger").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Ledger")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("textbox", name="Token")).to_be_visible()
        assert axe(page) == []


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
