"""Every page, tab and dialog is for everybody: axe-core in both colours, and the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import ATTACK, CURVE, begin_search, expect, running, submit
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
    ended = submit(house, ["sh", "-c", "exit 3"], name="ended")
    house.ended(ended)
    running(house, name="holds", resources={"gpus": 2})
    job = running(house, name=ATTACK[:40], script=str(CURVE), args=["0.01", "1000000"])
    waits = submit(house, name="waits", resources={"gpus": 4}, over_quota="wait")
    running(house, name="borrows", vc="other", service_class="opportunistic")
    rungs = {"first": 100_000, "last": 1_000_000, "eta": 3}
    search = begin_search(house, 1_000_000, vc="other", method="asha", rungs=rungs)
    until(lambda: len(house.get(f"/v1/searches/{search}")["rows"]) == 2, "trials")
    return {"job": job, "waits": waits, "ended": ended, "search": search}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_and_tab(things: dict[str, str], page_as: PageAs, scheme: str) -> None:
    page = page_as("operator", color_scheme=scheme)
    root = page.url.rstrip("/")
    for path in PAGES:
        page.goto(root + path.format(**things))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)
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
