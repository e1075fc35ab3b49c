"""The pages of services in a real browser: the list, one service, and its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import expect
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

SCRIPT = Path(__file__).parents[1] / "e2e" / "jobs" / "serving.py"
WIDTHS = (400, 800, 1300)


@pytest.fixture
def service(cluster: Embedded) -> str:
    """Begin a service with one replica that is ready and was asked."""
    spec = {
        "name": "llm",
        "vc": "lab",
        "job": {"command": [sys.executable, str(SCRIPT), "one"]},
        "health": "/health",
        "replicas_max": 3,
        "requests_per_s": 20,
        "latency_ms": 400,
        "drain": 1,
    }
    begun = cluster.ask("POST", "/v1/services", json.dumps(spec).encode())
    name: str = begun.body["service"]
    until(lambda: cluster.get(f"/v1/services/{name}")["ready"] == 1, "a replica that is ready")
    for _ in range(9):
        assert cluster.ask("GET", "/v1/services/lab.llm/http/x").status == 200
    return name


def look(page: Any) -> None:
    """Assert that a page fits each width, and that nothing of it is out of anybody's reach."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert axe(page) == [], width


def test_a_service_is_listed_shown_and_stopped(
    cluster: Embedded, page_as: PageAs, service: str
) -> None:
    page = page_as("operator", "/services")
    row = page.get_by_role("row").filter(has_text="llm")
    expect(row).to_contain_text("1 of 1")
    look(page)
    row.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(service)
    (replica,) = cluster.get(f"/v1/services/{service}")["rows"]
    table = page.get_by_role("region", name="Replicas")
    expect(table.get_by_role("link", name=replica["job"])).to_be_visible()
    expect(page.get_by_text("each replica is to answer 20")).to_be_visible()
    look(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop it").click()
    expect(page.get_by_text("It is over: all replicas have ended.")).to_be_visible()
    page.goto(page.url.rsplit("/", 1)[0])
    expect(page.get_by_text("No service matches.")).to_be_visible()


def test_who_may_only_look_is_not_offered_to_stop_it(
    cluster: Embedded, page_as: PageAs, service: str
) -> None:
    page = page_as("viewer", f"/services/{service}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(service)
    expect(page.get_by_role("region", name="Replicas")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    cluster.ask("DELETE", f"/v1/services/{service}")
    until(lambda: cluster.get(f"/v1/services/{service}")["state"] == "over", "its end")
