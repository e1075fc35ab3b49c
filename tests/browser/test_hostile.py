"""What tenants and jobs write, on every page that shows it: it is text, and breaks no layout."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from skep.units import NS_PER_SECOND
from tests.browser.conftest import PageAs
from tests.browser.kit import ATTACK, expect, leaves, running, submit
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

BACKWARDS = "\u202e"
"""Right-to-left override: what follows it in the same paragraph is drawn backwards."""
LINK = "javascript:window.attacked=1"
LONG = "w" * 90
NAMES = (ATTACK, f"'\"><svg/onload=window.attacked=1>{LINK}", LONG)
REPORTS = f"""\
import time
import skep_job
run = skep_job.init()
while True:
    time.sleep(0.05)
    run.report(**{{{ATTACK!r}: 0.5, "loss": 0.1}})
    run.step()
"""
PRINTS = [
    ATTACK,
    f"\x1b[31m{ATTACK}\x1b[0m",
    f"\x1b]8;;{LINK}\x07click\x1b]8;;\x07",
    f"\x1b]0;title\x07\x1b[2J\x1b[999;999H{BACKWARDS}drawn",
    f"wandb: View run at https://wandb.ai/x{ATTACK}",
    f"wandb: View run at {LINK}",
    "x" * 20_000,
]
WIDTHS = (390, 1440)

LEAKS = """
() => {
  const wrong = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    if (!text.data.includes("\\u202e")) continue;
    let box = text.parentElement;
    const style = (one) => getComputedStyle(one);
    // Text in boxes of its own cannot turn its neighbours around.
    while (box && style(box).display.startsWith("inline") && style(box).unicodeBidi === "normal")
      box = box.parentElement;
    if (!box.textContent.trim().endsWith(text.data.trim())) wrong.push(box.textContent);
  }
  return wrong;
}
"""
"""What follows a text that is drawn backwards, in the same paragraph."""


def look(page: Any, path: str, shows: str = "") -> None:
    """Open a page at each width: nothing ran, nothing sticks out, nothing is turned around."""
    root = "/".join(page.url.split("/")[:3])
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(root + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)
        if shows:
            expect(page.get_by_role("main")).to_contain_text(shows)
        assert page.evaluate("window.attacked") is None, path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        assert page.evaluate(LEAKS) == [], (path, width)
        assert page.locator("a[href^='javascript']").count() == 0, path


def test_names_labels_and_values(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator")
    for name in NAMES:
        job = running(
            cluster,
            name=name[:100],
            labels={"user": name[:60], "note": f"{BACKWARDS}{name}"[:60]},
            env={"NOTE": f"{BACKWARDS}{name}"},
        )
        waits = submit(cluster, name=name[:100], resources={"gpus": 4}, over_quota="wait")
        for path in ("/", "/jobs?state=all", "/cluster", "/cluster?tab=cells&find=node-1"):
            look(page, path)
        for tab in ("", "why", "events", "spec", "blame", "trace", "files", "logs", "curves"):
            look(page, f"/jobs/{job}?tab={tab}", job)
        look(page, f"/jobs/{waits}?tab=why", waits)
        look(page, f"/submit?from={job}")
        look(page, "/tenants/lab?tab=accounts&by=user")
        for one in (job, waits):
            cluster.ask("DELETE", f"/v1/jobs/{one}")
            cluster.ended(one)


def test_dialogs_and_the_palette(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, name=ATTACK[:60] + "w" * 40)
    page = page_as("operator", f"/jobs/{job}", width=390)
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(ATTACK[:40])
    assert dialog.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("onerror")
    expect(page.get_by_role("option").filter(has_text=job)).to_be_visible()
    assert page.get_by_role("dialog").evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert page.evaluate("window.attacked") is None


def test_logs(cluster: Embedded, page_as: PageAs, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(PRINTS) + "\n")
    job = running(cluster, ["sh", "-c", f"cat {tmp_path}/log; sleep 600"])
    page = page_as("operator")
    look(page, f"/jobs/{job}?tab=logs", ATTACK)
    log = page.get_by_role("log")
    expect(log).to_contain_text("drawn")
    assert "\x1b" not in log.inner_text()
    assert log.locator("a").count() == 0
    look(page, f"/jobs/{job}?tab=logs&grep=onerror", ATTACK)
    look(page, f"/jobs/{job}?tab=files")
    look(page, f"/jobs/{job}?tab=events")
    assert page.title() == f"{job} · Skep"


def test_what_a_job_measures_and_why_it_fails(
    cluster: Embedded, page_as: PageAs, tmp_path: Path
) -> None:
    script = tmp_path / "reports.py"
    script.write_text(REPORTS)
    job = running(cluster, script=str(script))
    page = page_as("operator")
    until(lambda: cluster.get(f"/v1/jobs/{job}")["steps"], "something is reported")
    look(page, f"/jobs/{job}?tab=curves", "loss")
    for command in ([f"/{ATTACK}"], ["sh", "-c", f"printf '%s' '{ATTACK}' >&2; exit 3"]):
        failed = submit(cluster, command)
        assert cluster.ended(failed)["state"] == "failed"
        for tab in ("", "why", "events", "logs"):
            look(page, f"/jobs/{failed}?tab={tab}", failed)
    look(page, "/jobs?state=failed")


def test_outputs(cluster: Embedded, page_as: PageAs, tmp_path: Path) -> None:
    names = ["<img src=x onerror=window.attacked=1>", f"{BACKWARDS}gpj.exe", LONG, LINK]
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    job = leaves(
        cluster, tmp_path, f'while read -r name; do : > "out/$name"; done < {tmp_path}/names'
    )
    page = page_as("operator")
    look(page, f"/jobs/{job}?tab=files", names[0])
    with page.expect_download() as saved:
        page.get_by_role("button", name=f"Download out/{LINK}").click()
    assert saved.value.suggested_filename.endswith("window.attacked=1")


def test_searches(cluster: Embedded, page_as: PageAs) -> None:
    spec = {
        "name": ATTACK[:100],
        "vc": "lab",
        "metric": "accuracy",
        "direction": "maximize",
        "job": {"command": ["sh", "-c", "sleep 600"]},
        "space": {"kind": {"choice": [ATTACK, f"{BACKWARDS}x", LONG]}},
        "budget": {"trials": 3},
        "parallel": 3,
    }
    key = {"Idempotency-Key": "hostile"}
    reply = cluster.ask("POST", "/v1/searches", json.dumps(spec).encode(), headers=key)
    assert reply.status == 201, reply
    search = reply.body["search"]
    until(lambda: len(cluster.get(f"/v1/searches/{search}")["rows"]) == 3, "three trials")
    page = page_as("operator")
    look(page, "/searches", search)
    look(page, f"/searches/{search}", "3 trials")
    cluster.ask("DELETE", f"/v1/searches/{search}")
    until(lambda: cluster.get(f"/v1/searches/{search}")["state"] == "over", "the search is over")


def test_people_reasons_and_templates(cluster: Embedded, page_as: PageAs) -> None:
    cluster.skep("user", "add", "mallory", "--full-name", f"{BACKWARDS}{ATTACK}")
    cluster.skep("role", "grant", "mallory", "viewer", "--vc", "lab")
    page = page_as("operator")
    look(page, "/tenants/lab?tab=people", ATTACK)
    page.get_by_role("row").filter(has_text="mallory").get_by_role("button", name="revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("mallory")
    page.keyboard.press("Escape")
    template = {"spec": {"resources": {"gpus": 1}}, "about": f"{BACKWARDS}{ATTACK}"}
    reply = cluster.ask("PUT", "/v1/templates/lab/note", json.dumps(template).encode())
    assert reply.status < 300, reply
    look(page, "/tenants/lab?tab=settings", "onerror")
    begins = time.time_ns() + 3600 * NS_PER_SECOND
    window = {
        "name": "w-note",
        "nodes": ["node-2"],
        "begins": begins,
        "ends": begins + 3600 * NS_PER_SECOND,
        "vc": "",
        "reason": ATTACK,
    }
    reply = cluster.ask("POST", "/v1/admin/reserve", json.dumps({"window": window}).encode())
    assert reply.status < 300, reply
    until(lambda: cluster.get("/v1/windows")["windows"], "a window is booked")
    look(page, "/cluster?tab=windows", "onerror")
    look(page, "/cluster")
    look(page, "/audit")
    cluster.ask("POST", "/v1/admin/unreserve", b'{"name": "w-note"}')
    until(lambda: not cluster.get("/v1/windows")["windows"], "no window is booked")
    assert cluster.ask("DELETE", "/v1/templates/lab/note").status < 300


def test_addresses(cluster: Embedded, page_as: PageAs) -> None:
    """Links that somebody sends: what is in them is text, too."""
    page = page_as("operator")
    for path in (
        f"/jobs?q={ATTACK}&state={ATTACK}&vc={ATTACK}&sort={ATTACK}",
        f"/jobs/{ATTACK.replace('/', '%2F')}",
        f"/jobs/j1?tab={ATTACK}",
        f"/searches/{ATTACK.replace('/', '%2F')}",
        f"/tenants/{ATTACK.replace('/', '%2F')}",
        f"/cluster?tab=cells&chain={ATTACK}&cell={ATTACK}",
        f"/ledger?job={ATTACK}&kind=pack",
        f"/replay?r={ATTACK}",
        f"/audit?actor={ATTACK}",
        f"/submit?from={ATTACK}",
        "/jobs/%E0%A4%A",
    ):
        look(page, path)


@pytest.mark.parametrize("name", [f"a{BACKWARDS}b", "a\x1b[31mb", "a\nb", "w" * 300])
def test_what_no_name_may_be_is_refused_in_the_form(page_as: PageAs, name: str) -> None:
    page = page_as("submitter", "/submit")
    spec = {"name": name, "vc": "lab", "command": ["true"]}
    page.get_by_label("Spec as JSON").fill(json.dumps(spec))
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"\$\.name: `name` must be 1 to \d+ printable")
    )
