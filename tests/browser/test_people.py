"""Logging in at a provider, the people and their tokens, in a real browser."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests import oidc_kit
from tests.browser.conftest import PEOPLE, WITHIN_MS, axe
from tests.support.embedded import Embedded

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def issuer() -> Iterator[oidc_kit.Issuer]:
    """A provider in a thread of its own: the browser's driver has the loop of this one."""
    loop, opened = asyncio.new_event_loop(), oidc_kit.opened()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(30)
    ending = opened.__aexit__(None, None, None)
    asyncio.run_coroutine_threadsafe(ending, loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, issuer: oidc_kit.Issuer) -> Iterator[Embedded]:
    """A cluster that the provider sends browsers back to."""
    folder, port = tmp_path_factory.mktemp("people"), _free_port()
    oidc = folder / "oidc.json"
    settings = {
        "issuer": issuer.issuer,
        "client_id": oidc_kit.CLIENT,
        "groups": {"ml": {"lab": "submitter"}},
        "add_people": True,
        "names_are_fixed": True,
        "pages": [f"http://127.0.0.1:{port}"],
    }
    oidc.write_text(json.dumps(settings))
    cluster = Embedded(folder / "home", {"SKEP_OIDC": str(oidc)})
    try:
        cluster.up("--gpus", "4", "--vc", "lab=4", "--port", str(port), "--people")
        for person, role in PEOPLE.items():
            cluster.skep("user", "add", person)
            cluster.skep("role", "grant", person, role, "--vc", "lab")
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(WITHIN_MS)
    yield context.new_page()
    context.close()


def test_a_person_logs_in_at_the_provider_and_out(
    house: Embedded, issuer: oidc_kit.Issuer, page: Any
) -> None:
    url, issuer.claims = house.about["gateway"]["url"], {"groups": ["ml"]}
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}/jobs?state=running")
    page.get_by_role("button", name="Log in at").wait_for()
    assert axe(page) == []
    page.get_by_role("button", name="Log in at").click()
    page.wait_for_selector("main#page h1")
    # It is where it wanted to be, and neither the code nor the token is in the address.
    assert page.url == f"{url}/jobs?state=running"
    token = page.evaluate("sessionStorage.getItem('skep-token')")
    assert not any(token in address for address in asked)
    page.goto(f"{url}/me")
    page.get_by_text("this page", exact=True).wait_for()
    assert axe(page) == []
    # A link of somebody else does not end the session, nor begin another one.
    page.goto(f"{url}/login?code=evil&state=guess")
    page.wait_for_selector("main#page h1")
    assert page.evaluate("sessionStorage.getItem('skep-token')") == token
    page.get_by_role("button", name="Log out").click()
    page.wait_for_selector("main.login")
    assert page.evaluate("sessionStorage.length") == 0
    (told,) = (row for row in _tokens(house, "ada") if token.split("_")[1] == row["token"])
    assert told["state"] == "revoked"
    page.goto(f"{url}/login?code=evil&state=guess")
    page.get_by_role("alert").get_by_text("did not begin in this tab").wait_for()
    assert page.url == f"{url}/"


def test_an_operator_adds_a_person_and_takes_it_away(house: Embedded, page_as: Any) -> None:
    page = page_as("operator", "/people")
    page.get_by_label("Name of the person, as it is in commands").fill("nora")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("skep user add nora").wait_for()
    _confirm(page, "Add")
    page.wait_for_url("**/people/nora")
    page.get_by_role("button", name="Grant", exact=True).click()
    _confirm(page, "Grant")
    page.get_by_role("cell", name="submitter").wait_for()
    page.get_by_label("What the new token is for").fill("her laptop")
    page.get_by_role("button", name="Make a token").click()
    _confirm(page, "Make it")
    shown = page.get_by_role("dialog", name="The token her laptop", exact=True)
    text = shown.locator("code").first.inner_text()
    page.get_by_role("button", name="Done").click()
    (made,) = _tokens(house, "nora")
    assert (made["token"] in text, made["name"]) == (True, "her laptop")
    assert axe(page) == []
    page.get_by_role("button", name="Revoke her laptop").click()
    _confirm(page, "Revoke")
    page.get_by_text("no token that is valid").wait_for()
    assert _tokens(house, "nora")[0]["state"] == "revoked"
    for verb in ("Disable", "Enable", "Remove"):
        page.get_by_role("button", name=verb, exact=True).click()
        _confirm(page, verb)
    page.wait_for_url("**/people")
    assert "nora" not in {row["person"] for row in house.get("/v1/people")["people"]}


def test_what_one_may_not_do_is_not_offered(house: Embedded, page_as: Any) -> None:
    page = page_as("viewer", "/me")
    page.get_by_label("What the new token is for").wait_for()
    assert page.get_by_role("link", name="People").count() == 0
    assert page.get_by_role("button", name="Grant").count() == 0
    manager = page_as("manager", "/people/vera", width=390)
    manager.get_by_role("button", name="Grant").wait_for()
    assert manager.get_by_role("button", name="Disable").count() == 0
    assert manager.get_by_label("What the new token is for").count() == 0
    assert manager.evaluate("document.documentElement.scrollWidth") <= 390


def _confirm(page: Any, verb: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()


def _tokens(house: Embedded, person: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = house.get(f"/v1/tokens?person={person}")["tokens"]
    return found


def test_use_over_time_is_drawn_for_each_virtual_cluster(page_as: Any) -> None:
    page = page_as("viewer", "/tenants/lab?tab=use&range=month")
    page.get_by_role("button", name="the last 30 days").wait_for()
    page.get_by_role("heading", name="GPUs held by its jobs").wait_for()
    assert axe(page) == []
    page.goto(page.url.split("/tenants")[0] + "/tenants?tab=use")
    page.get_by_role("link", name="lab").first.wait_for()
