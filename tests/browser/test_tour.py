"""The page in a real browser: jobs compared, events of all jobs, volumes, and templates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PageAs, axe
from tests.support.embedded import Embedded, until

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

CURVE = Path(__file__).parents[1] / "e2e" / "jobs" / "curve.py"
ATTACK = "<img src=x onerror=window.attacked=1>"
WIDE = "document.documentElement.scrollWidth"


def submit(cluster: Embedded, name: str, **more: Any) -> str:
    """Submit a job with one GPU as the operator; return its id."""
    spec = {"name": name, "vc": "lab", "resources": {"gpus": 1}, **more}
    reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
    assert reply.status in {201, 202}, reply
    job: str = reply.body["job"]
    return job


def climb(cluster: Embedded, name: str, rate: str) -> str:
    job = submit(cluster, name, script=str(CURVE), args=[rate, "20000"])
    until(lambda: cluster.get(f"/v1/jobs/{job}/curve")["points"], f"a curve of {job}")
    return job


def test_jobs_are_chosen_and_compared(cluster: Embedded, page_as: PageAs) -> None:
    slow = climb(cluster, f"slow {ATTACK}", "0.01")
    fast = climb(cluster, "fast", "0.5")
    page = page_as("viewer", "/jobs")
    for job in (slow, fast):
        page.get_by_label(f"Choose {job}", exact=True).check()
    page.get_by_role("link", name="Compare").click()
    expect(page).to_have_url(re.compile(rf"/compare\?jobs={fast},{slow}|jobs={slow},{fast}"))
    expect(page.get_by_role("img", name=re.compile("accuracy by mini-batch"))).to_be_visible()
    differs = page.get_by_role("region", name="What differs")
    expect(differs.get_by_role("row").filter(has_text="args")).to_contain_text("0.5")
    expect(differs).not_to_contain_text("resources")
    assert page.evaluate("window.attacked") is None
    assert axe(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(WIDE) <= 390


def test_a_comparison_of_one_job_says_what_to_do(cluster: Embedded, page_as: PageAs) -> None:
    del cluster
    page = page_as("viewer", "/compare?jobs=j1")
    expect(page.get_by_role("main")).to_contain_text("Choose two to 5 jobs")
    page = page_as("viewer", "/compare?jobs=j1,j999999")
    expect(page.get_by_role("alert")).to_contain_text("j999999")


def test_events_show_as_they_happen_and_are_searched(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("viewer", "/events")
    job = submit(cluster, "heard", command=["sleep", "600"])
    events = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=job, exact=True))
    expect(events.filter(has_text="admitted: heard")).to_be_visible()
    cluster.ask("DELETE", f"/v1/jobs/{job}")
    expect(events.filter(has_text="cancelled").first).to_be_visible()
    page.get_by_role("searchbox", name="Search").fill("heard admitted")
    expect(events).to_have_count(1)
    expect(page.get_by_text("skep events -f", exact=True)).to_be_visible()
    assert axe(page) == []


def test_volumes_and_templates_of_the_cluster_file_are_shown(
    cluster: Embedded, page_as: PageAs
) -> None:
    short = {"about": f"short {ATTACK}", "spec": {"priority": 3}}
    vcs = {"lab": {"gpus": 4, "templates": {"short": short}}, "other": {"gpus": 4}}
    volumes = {"sets": {"path": "/mnt/sets", "vcs": {"lab": "rw"}}}
    body = {"vcs": vcs, "volumes": volumes}
    reply = cluster.ask("POST", "/v1/admin/vcs", json.dumps(body).encode())
    assert reply.status == 202, reply
    until(lambda: cluster.get("/v1/volumes")["volumes"], "the volume to be in force")
    page = page_as("operator", "/cluster?tab=volumes")
    row = page.get_by_role("row").filter(has_text="sets")
    expect(row).to_contain_text("/mnt/sets")
    expect(row).to_contain_text("to read and write")
    assert axe(page) == []
    page = page_as("submitter", "/submit")
    page.get_by_label("Name", exact=True).fill("templated")
    page.get_by_label("Command", exact=True).fill("sleep 600")
    page.get_by_role("combobox", name=re.compile("Template")).select_option("short")
    expect(page.get_by_label("Spec as JSON")).to_have_value(re.compile('"template": "short"'))
    assert page.evaluate("window.attacked") is None
    assert axe(page) == []
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("templated")
    job = page.url.rpartition("/")[2]
    assert cluster.get(f"/v1/jobs/{job}")["priority"] == 3
