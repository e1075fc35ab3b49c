"""A live cluster with people, and a real browser in which each of them is logged in."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.support.embedded import Embedded
from tests.support.shared import left_idle, two_nodes

PEOPLE = {"vera": "viewer", "sam": "submitter", "mia": "manager"}
"""The people of the virtual cluster lab, and their roles."""
NAMES = {role: person for person, role in PEOPLE.items()}
CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)
WITHIN_MS = 20_000
"""Nothing here takes long unless something is wrong, or the machine is far too busy."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Two nodes with four slots each; virtual clusters lab and other with four GPUs each."""
    home = tmp_path_factory.mktemp("browser")
    with two_nodes(Embedded(home), ("lab", "other"), "--people") as cluster:
        for person, role in PEOPLE.items():
            cluster.skep("user", "add", person)
            cluster.skep("role", "grant", person, role, "--vc", "lab")
        yield cluster


@pytest.fixture
def cluster(house: Embedded) -> Iterator[Embedded]:
    """The cluster, idle before the test and after it, whatever the test left running."""
    yield from left_idle(house)


@pytest.fixture(scope="module")
def tokens(house: Embedded) -> dict[str, str]:
    """A token for each role in lab, and the operator's."""
    made = {
        role: house.skep("token", "create", "browser", "--person", person).strip()
        for person, role in PEOPLE.items()
    }
    return {**made, "operator": house.about["gateway"]["tokens"]["operator"]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser. Each file has one of its own, as its event loop must not meet those of others."""
    needs.require("playwright", "chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(CHROMIUM_OPTIONS)
        )
        yield launched
        launched.close()


PageAs = Callable[..., Any]


@pytest.fixture
def page_as(house: Embedded, tokens: dict[str, str], browser: Any) -> Iterator[PageAs]:
    """Open a page as a role: `page_as("viewer", "/jobs")`.

    At the end no page may have met an error in its scripts, or tried what its policy forbids.
    """
    contexts, wrong = [], []

    def opened(
        role: str, path: str = "/", width: int = 1440, height: int = 900, **more: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        context.set_default_timeout(WITHIN_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda told: wrong.append(told.text) if _is_wrong(told) else None)
        # The token is taken out of the address as soon as the page has it.
        page.goto(f"{house.about['gateway']['url']}{path}#token={tokens[role]}")
        page.wait_for_selector("main#page h1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong, wrong


def _is_wrong(told: Any) -> bool:
    """Return whether a line of the console is an error that the page is to blame for."""
    # A gateway that is away, or refuses, is told by the browser as well as by the page.
    return told.type == "error" and "Failed to load resource" not in told.text


def axe(page: Any) -> list[dict[str, Any]]:
    """Return what axe-core finds wrong with a page: its rule, and the elements."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        needs.skip("axe-playwright-python is not installed (the extra browser)")
    script = Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    session = page.context.new_cdp_session(page)
    # The policy of the page forbids scripts of others; a debugger may add one.
    session.send("Runtime.evaluate", {"expression": script})
    told = session.send(
        "Runtime.evaluate",
        {
            "expression": "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa',"
            " 'wcag22aa', 'best-practice']}).then((found) => JSON.stringify(found.violations.map("
            "(one) => ({rule: one.id, help: one.help,"
            " where: one.nodes.map((node) => node.target[0])}))))",
            "awaitPromise": True,
            "returnByValue": True,
        },
    )
    found: list[dict[str, Any]] = json.loads(told["result"]["value"])
    return found
