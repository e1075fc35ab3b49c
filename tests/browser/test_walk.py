"""Every action that the page offers, done in a real browser; the cluster says what came of it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PageAs
from tests.browser.kit import (
    CURVE,
    JOBS,
    act,
    begin_search,
    confirm,
    expect,
    leaves,
    running,
    state,
    submit,
)
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("chromium")]

LONG_MS = 120_000
"""PyTorch starts, and ranks meet: many times slower where the machine does other work, too."""
STARTS = re.compile(r"^j\d+$")


def shown(cluster: Embedded, job: str) -> dict[str, Any]:
    told: dict[str, Any] = cluster.get(f"/v1/jobs/{job}")
    return told


def done(page: Any, verb: str) -> None:
    """Wait until the page says that a change was made."""
    expect(page.get_by_text(f"{verb}: done", exact=True)).to_be_visible(timeout=LONG_MS)


# --- one job -----------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_job_is_resized_stored_and_moved(
    cluster: Embedded, page_as: PageAs, tmp_path: Path
) -> None:
    notes = tmp_path / "steps"
    job = running(
        cluster,
        name="growing",
        script=str(JOBS / "growing.py"),
        elastic={"min": 1, "max": 2},
        env={"STEPS_FILE": str(notes)},
    )
    page = page_as("operator", f"/jobs/{job}")
    resize = page.get_by_role("button", name="Resize", exact=True)
    until(lambda: "resize" in shown(cluster, job)["can"], "it trains")
    page.reload()
    resize.click(timeout=LONG_MS)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("workers").fill("2")
    confirm(page, "Resize", f"skep resize {job} -n 2")
    done(page, "resize")
    assert (shown(cluster, job)["workers"], shown(cluster, job)["gpus"]) == (2, 2)
    act(page, "Checkpoint", f"skep checkpoint {job}")
    done(page, "checkpoint")
    asked = shown(cluster, job)["asks"][-1]
    assert (asked["ask"], asked["result"]) == ("checkpoint", "done"), asked
    before = {node for node, _ in placed(cluster, job)}
    (other,) = {"node-1", "node-2"} - before
    page.get_by_role("button", name="Migrate", exact=True).click()
    page.get_by_role("dialog").get_by_label(re.compile("^nodes")).fill(other)
    confirm(page, "Migrate", f"skep migrate {job} --to {other}")
    done(page, "migrate")
    until(lambda: {node for node, _ in placed(cluster, job)} == {other}, "it is there alone")
    expect(page.get_by_role("main")).to_contain_text(other)
    Path(f"{notes}.stop").touch()
    assert cluster.ended(job)["state"] == "succeeded"
    expect(page.get_by_role("main").get_by_text("succeeded").first).to_be_visible()


def placed(cluster: Embedded, job: str) -> list[tuple[str, int]]:
    gpus = cluster.get("/v1/gpus")["gpus"]
    return [(gpu["node"], gpu["index"]) for gpu in gpus if gpu["taken"] and gpu["job"] == job]


def test_a_suspended_job_gives_its_gpus_away(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, name="trains", script=str(CURVE), args=["0.01", "100000"])
    page = page_as("operator", f"/jobs/{job}")
    page.get_by_role("button", name="Suspend", exact=True).click()
    page.get_by_role("dialog").get_by_label(re.compile("^give its GPUs")).check()
    confirm(page, "Suspend", f"skep suspend {job} --release")
    done(page, "suspend")
    other = running(cluster, name="meanwhile", resources={"gpus": 4})
    assert state(cluster, job) == "suspended"
    cluster.ask("DELETE", f"/v1/jobs/{other}")
    cluster.ended(other)
    act(page, "Resume", f"skep resume {job}")
    done(page, "resume")
    assert state(cluster, job) == "running"


def test_what_waits_is_held_released_and_put_first(cluster: Embedded, page_as: PageAs) -> None:
    running(cluster, name="holds", resources={"gpus": 4})
    job = submit(cluster, name="waits", resources={"gpus": 4}, over_quota="wait")
    page = page_as("operator", f"/jobs/{job}")
    act(page, "Hold", f"skep hold {job}")
    expect(page.get_by_role("button", name="Release", exact=True)).to_be_visible()
    assert shown(cluster, job)["why"] == "held"
    act(page, "Release", f"skep release {job}")
    expect(page.get_by_role("button", name="Hold", exact=True)).to_be_visible()
    assert shown(cluster, job)["why"] != "held"
    page.get_by_role("button", name="Priority", exact=True).click()
    page.get_by_role("dialog").get_by_label(re.compile("^priority")).fill("7")
    confirm(page, "Priority", f"skep set-priority {job} 7")
    until(lambda: shown(cluster, job)["priority"] == 7, "its priority")


def test_what_would_help_may_be_a_priority(cluster: Embedded, page_as: PageAs) -> None:
    running(cluster, name="holds", resources={"gpus": 3}, over_quota="wait", priority=5)
    first = submit(cluster, name="large", resources={"gpus": 4}, over_quota="wait", priority=5)
    job = submit(cluster, name="small", over_quota="wait")
    assert state(cluster, first) == "queued"
    page = page_as("operator", f"/jobs/{job}?tab=why")
    option = page.get_by_role("listitem").filter(has_text="with-a-priority")
    option.get_by_role("button", name="Do it …").click()
    confirm(page, "Set the priority", f"skep set-priority {job}")
    cluster.started(job)
    assert state(cluster, first) == "queued"


def test_an_ended_job_is_submitted_again(cluster: Embedded, page_as: PageAs) -> None:
    job = submit(cluster, ["sh", "-c", "exit 3"], name="fails")
    assert cluster.ended(job)["state"] == "failed"
    page = page_as("operator", f"/jobs/{job}")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    act(page, "Submit again", f"skep requeue {job}")
    again, was = until(lambda: repeats(cluster, "fails"), "two jobs")
    assert was == job
    expect(page.get_by_role("heading", level=1)).to_contain_text(again)
    assert cluster.ended(again)["state"] == "failed"


def repeats(cluster: Embedded, name: str) -> list[str] | None:
    """Return the jobs of a name, the newest first, once there are two or more."""
    rows = cluster.get(f"/v1/jobs?state=all&name={name}&order=newest")["jobs"]
    return [row["job"] for row in rows] if len(rows) > 1 else None


def test_an_edited_job_takes_the_place_of_the_old_one(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, name="first")
    page = page_as("operator", f"/jobs/{job}")
    page.get_by_role("link", name="Edit and submit").click()
    page.get_by_label("Name", exact=True).fill("second")
    page.get_by_label(f"Cancel {job} once this one is accepted").check()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("second")
    assert cluster.ended(job)["state"] == "cancelled"
    (new,) = cluster.get("/v1/jobs?state=active")["jobs"]
    assert (new["name"], new["job"] != job) == ("second", True)


def test_a_spec_is_saved_and_its_fields_follow_it(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("submitter", "/submit")
    page.get_by_label("Workers", exact=True).fill("2")
    page.get_by_role("combobox", name="Class").select_option("opportunistic")
    page.get_by_label("Command", exact=True).fill("true")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as job.json").click()
    spec = json.loads(Path(saved.value.path()).read_text())
    assert (spec["resources"]["workers"], spec["service_class"]) == (2, "opportunistic")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"^j\d+"))
    job = page.url.split("/jobs/")[1]
    ended = cluster.ended(job)
    assert (ended["owner"], ended["service_class"], ended["workers"]) == ("sam", "opportunistic", 2)


def test_a_log_is_followed_and_its_ranks_are_told_apart(
    cluster: Embedded, page_as: PageAs, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    waits = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    says = f'echo "rank $RANK begins"; {waits}; echo "rank $RANK goes on"'
    job = running(cluster, ["sh", "-c", f"{says}; sleep 600"], resources={"gpus": 1, "workers": 2})
    page = page_as("operator", f"/jobs/{job}?tab=logs&rank=all")
    log = page.get_by_role("log")
    for rank in (0, 1):
        expect(log).to_contain_text(f"rank {rank} begins")
    gate.touch()
    for rank in (0, 1):
        expect(log).to_contain_text(f"rank {rank} goes on")
    page.get_by_role("combobox", name="Rank").select_option("1")
    expect(log).to_contain_text("rank 1 goes on")
    expect(log).not_to_contain_text("rank 0")
    assert "rank=1" in page.url


def test_an_output_is_downloaded(cluster: Embedded, page_as: PageAs, tmp_path: Path) -> None:
    job = leaves(cluster, tmp_path, "printf 'weights\\n' > out/a.bin")
    page = page_as("operator", f"/jobs/{job}?tab=files")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download out/a.bin").click()
    assert saved.value.suggested_filename == "a.bin"
    assert Path(saved.value.path()).read_bytes() == b"weights\n"


def test_a_terminal_is_ended_from_the_page(
    cluster: Embedded, page_as: PageAs, tmp_path: Path
) -> None:
    job = running(cluster)
    page = page_as("operator", f"/jobs/{job}?tab=terminal")
    pid = tmp_path / "pid"
    page.get_by_label("Command; empty: a shell").fill(f"echo $$ > {pid}; exec sleep 600")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_text("Connected.")).to_be_visible()
    until(lambda: pid.exists() and pid.read_text().strip(), "the command runs")
    process = Path("/proc", pid.read_text().strip())
    assert process.exists()
    page.get_by_role("button", name="End it", exact=True).click()
    until(lambda: not process.exists(), "the command is over")
    assert state(cluster, job) == "running"


# --- many jobs ---------------------------------------------------------------------------------


def test_many_jobs_are_changed_at_once(cluster: Embedded, page_as: PageAs) -> None:
    trained = [
        running(cluster, name="many", script=str(CURVE), args=["0.01", "100000"]) for _ in range(2)
    ]
    kept = running(cluster, name="kept", resources={"gpus": 2})
    waits = [submit(cluster, name="queue", over_quota="wait") for _ in range(2)]
    page = page_as("operator", "/jobs?q=many")
    chosen = page.get_by_role("group", name="What to do with the chosen jobs")

    def choose(verb: str, line: str, shown_now: int = 2) -> None:
        expect(page.get_by_role("link", name=STARTS)).to_have_count(shown_now)
        page.get_by_label("Choose all that are shown").check()
        expect(chosen).to_contain_text(f"{shown_now} jobs chosen")
        chosen.get_by_role("button", name=verb, exact=True).click()
        confirm(page, verb, line)
        expect(page.get_by_role("dialog")).to_have_count(0)

    choose("Suspend", "skep suspend " + " ".join(sorted(trained, reverse=True)))
    until(lambda: all(state(cluster, job) == "suspended" for job in trained), "each is suspended")
    expect(page.get_by_role("row").filter(has_text="suspended")).to_have_count(2)
    choose("Resume", "skep resume")
    until(lambda: all(state(cluster, job) == "running" for job in trained), "each runs")
    page.get_by_label("Search").fill("queue")
    choose("Hold", "skep hold")
    until(lambda: all(shown(cluster, job)["why"] == "held" for job in waits), "each is held")
    expect(page.get_by_role("row").filter(has_text="held")).to_have_count(2)
    choose("Release", "skep release")
    until(lambda: all(shown(cluster, job)["why"] != "held" for job in waits), "each is released")
    page.get_by_label("Choose all that are shown").check()
    chosen.get_by_role("button", name="Priority", exact=True).click()
    page.get_by_role("dialog").get_by_label(re.compile("^priority")).fill("9")
    confirm(page, "Priority", "skep set-priority")
    until(
        lambda: all(shown(cluster, job)["priority"] == 9 for job in waits), "the priority of each"
    )
    page.get_by_label("Choose all that are shown").check()
    page.get_by_role("button", name="choose none").click()
    expect(chosen).to_have_count(0)
    assert state(cluster, kept) == "running"


def test_ended_jobs_are_submitted_again_at_once(cluster: Embedded, page_as: PageAs) -> None:
    jobs = [submit(cluster, ["true"], name="shorts") for _ in range(2)]
    for job in jobs:
        cluster.ended(job)
    page = page_as("operator", "/jobs?q=shorts&state=succeeded")
    expect(page.get_by_role("link", name=STARTS)).to_have_count(2)
    page.get_by_label("Choose all that are shown").check()
    act(page, "Submit again", "skep requeue")
    until(
        lambda: len(cluster.get("/v1/jobs?state=all&name=shorts")["jobs"]) == 4, "each is repeated"
    )


def test_what_one_of_many_refuses_is_told(cluster: Embedded, page_as: PageAs) -> None:
    jobs = [running(cluster, name="both") for _ in range(2)]
    page = page_as("operator", "/jobs?q=both")
    expect(page.get_by_role("link", name=STARTS)).to_have_count(2)
    page.get_by_label("Choose all that are shown").check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    # Whoever else cancels it first.
    cluster.ask("DELETE", f"/v1/jobs/{jobs[0]}")
    cluster.ended(jobs[0])
    confirm(page, "Cancel", "skep cancel")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(jobs[0])
    assert cluster.ended(jobs[1])["state"] == "cancelled"


def test_a_view_is_kept_opened_and_forgotten(cluster: Embedded, page_as: PageAs) -> None:
    running(cluster, name="one", labels={"team": "vision"})
    running(cluster, name="two")
    page = page_as("operator", "/jobs?q=team%3Dvision&sort=name")
    page.get_by_label("Name of this view").fill("ours")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("link", name=STARTS)).to_have_count(2)
    page.get_by_role("link", name="ours", exact=True).click()
    expect(page.get_by_role("link", name=STARTS)).to_have_count(1)
    assert "sort=name" in page.url
    page.reload()
    page.get_by_role("button", name="Forget the view ours").click()
    expect(page.get_by_role("link", name="ours", exact=True)).to_have_count(0)


def test_jobs_are_sorted_and_walked_by_arrows(cluster: Embedded, page_as: PageAs) -> None:
    jobs = {name: running(cluster, name=name) for name in ("b", "a", "c")}
    page = page_as("operator", "/jobs")
    page.get_by_role("button", name=re.compile("^Name")).click()
    links = page.get_by_role("link", name=STARTS)
    expect(links).to_have_text([jobs["a"], jobs["b"], jobs["c"]])
    page.get_by_role("button", name=re.compile("^Name")).click()
    expect(links).to_have_text([jobs["c"], jobs["b"], jobs["a"]])
    links.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(jobs["b"])


# --- nodes and tenants -------------------------------------------------------------------------


def test_a_gpu_is_quarantined_and_taken_back(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?node=node-2")
    row = page.get_by_role("dialog").get_by_role("row").nth(2)
    row.get_by_role("button", name="quarantine", exact=True).click()
    confirm(page, "Quarantine", "skep gpu quarantine node-2 1")

    def bad() -> list[tuple[str, int]]:
        gpus = cluster.get("/v1/gpus")["gpus"]
        return [(gpu["node"], gpu["index"]) for gpu in gpus if gpu["quarantined"]]

    until(lambda: bad() == [("node-2", 1)], "the GPU counts as bad")
    row.get_by_role("button", name="it is good again").click()
    confirm(page, "It is good again", "skep gpu quarantine node-2 1 --undo")
    until(lambda: not bad(), "the GPU counts as good")


def test_a_window_that_is_open_is_ended(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?node=node-1", timezone_id="Asia/Kolkata")
    page.get_by_role("dialog").get_by_role("button", name="Reserve", exact=True).click()
    dialog = page.get_by_role("dialog", name=re.compile("^Keep nodes"))
    begins = page.evaluate(
        "(() => { const now = new Date(); return new Date(now - now.getTimezoneOffset() * 60000)"
        ".toISOString().slice(0, 16); })()"
    )
    dialog.get_by_label(re.compile("^Begins")).fill(begins)
    dialog.get_by_label("Hours").fill("2")
    dialog.get_by_role("combobox", name="For").select_option("other")
    dialog.get_by_label(re.compile("^Why")).fill("a demonstration")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    expect(dialog).to_have_count(0)
    until(lambda: [one["open"] for one in cluster.get("/v1/windows")["windows"]] == [True], "open")
    (window,) = cluster.get("/v1/windows")["windows"]
    assert (window["nodes"], window["vc"], window["reason"]) == (
        ["node-1"],
        "other",
        "a demonstration",
    )
    expect(page.get_by_role("dialog", name="node-1")).to_contain_text("for othother")
    page.goto(page.url.split("?")[0] + "?tab=windows")
    page.get_by_role("button", name="end it", exact=True).click()
    confirm(page, "End it", f"skep reserve cancel {window['name']}")
    until(lambda: not cluster.get("/v1/windows")["windows"], "it is over")
    expect(page.get_by_text("No node is reserved.")).to_be_visible()


def test_a_node_is_found_among_the_cells(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?node=node-2")
    page.get_by_role("link", name="Among the cells").click()
    where = page.get_by_role("navigation", name="Where this is")
    expect(where.get_by_role("link", name="node-2")).to_have_attribute("aria-current", "page")


def test_nodes_are_searched_and_coloured(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster)
    page = page_as("operator", "/cluster")
    (node,) = {node for node, _ in placed(cluster, job)}
    page.get_by_role("searchbox", name="Search nodes").fill(job)
    nodes = page.get_by_role("list", name="Nodes").get_by_role("listitem")
    expect(nodes).to_have_count(1)
    expect(nodes).to_contain_text(node)
    for by in ("virtual cluster", "use", "state"):
        page.get_by_role("button", name=by, exact=True).click()
        expect(page.get_by_role("button", name=by, exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
        expect(nodes).to_have_count(1)


def test_a_role_is_taken_away(cluster: Embedded, page_as: PageAs) -> None:
    cluster.skep("user", "add", "otto")
    cluster.skep("role", "grant", "otto", "viewer", "--vc", "lab")
    page = page_as("manager", "/tenants/lab?tab=people")
    row = page.get_by_role("table").get_by_role("row").filter(has_text="otto")
    row.get_by_role("button", name="revoke").click()
    confirm(page, "Revoke", "skep role revoke otto --vc lab")
    expect(row).to_have_count(0)
    (otto,) = [one for one in cluster.get("/v1/people")["people"] if one["person"] == "otto"]
    assert otto["roles"] == {}


def test_accounts_are_chosen_and_downloaded(cluster: Embedded, page_as: PageAs) -> None:
    cluster.ended(submit(cluster, ["true"], labels={"project": "=1+1"}))
    page = page_as("operator", "/tenants/lab?tab=accounts")
    page.get_by_role("button", name="project", exact=True).click()
    expect(page.get_by_text("skep report --by project --vc lab")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("=1+1")
    with page.expect_download() as saved:
        page.get_by_role("button", name="download as CSV").click()
    # A spreadsheet would take it for a formula.
    assert "\n'=1+1," in Path(saved.value.path()).read_text()
    page.get_by_label("From", exact=True).fill("2020-01-01")
    page.get_by_label("to", exact=True).fill("2020-01-31")
    expect(
        page.get_by_text("skep report --by project --vc lab --from 2020-01-01 --to 2020-01-31")
    ).to_be_visible()
    expect(page.get_by_role("main")).not_to_contain_text("=1+1")


def test_promises_are_chosen_by_what_became_of_them(page_as: PageAs) -> None:
    page = page_as("viewer", "/tenants/lab?tab=promises")
    page.get_by_role("button", name="broken", exact=True).click()
    expect(page.get_by_text("No promise is broken.")).to_be_visible()
    expect(page.get_by_text("skep promises --vc lab --outcome broken")).to_be_visible()


def test_the_cluster_file_is_downloaded_and_read_again(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/tenants?tab=file")
    box = page.get_by_role("textbox", name=re.compile("^Chains"))
    text = box.input_value()
    with page.expect_download() as saved:
        page.get_by_role("button", name="download", exact=True).click()
    assert Path(saved.value.path()).read_text() == text
    assert text == cluster.get("/v1/cluster-file")["text"]
    box.fill("vcs: {}\n")
    page.get_by_role("button", name="read it again").click()
    expect(box).to_have_value(text)


# --- searches, replays, the ledger, the audit log ----------------------------------------------


def test_a_trial_is_put_last_and_takes_part_again(cluster: Embedded, page_as: PageAs) -> None:
    search = begin_search(cluster, name="ranks")

    def rows() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = cluster.get(f"/v1/searches/{search}")["rows"]
        return told

    until(rows, "a trial")
    page = page_as("operator", "/searches?q=ranks")
    page.get_by_role("link", name=search, exact=True).click()
    page.get_by_role("button", name="demote trial 1").click()
    confirm(page, "Demote", f"skep search demote {search} 1")
    until(lambda: rows()[0]["demoted"], "it is behind all others")
    page.get_by_role("button", name="promote trial 1").click()
    confirm(page, "Promote", f"skep search promote {search} 1")
    until(lambda: not rows()[0]["demoted"], "it takes part again")
    cluster.ask("DELETE", f"/v1/searches/{search}")
    until(lambda: cluster.get(f"/v1/searches/{search}")["state"] == "over", "the search is over")


def test_a_replay_is_cancelled(cluster: Embedded, page_as: PageAs) -> None:
    cluster.ended(submit(cluster, ["true"]))
    page = page_as("operator", "/replay")
    page.get_by_label("Policy of lab").select_option("srtf")
    page.get_by_role("button", name="Replay", exact=True).click()
    # Its process stands still, so that it cannot be done before it is cancelled.
    pid = until(lambda: replaying(cluster), "the process of the replay")
    os.kill(pid, signal.SIGSTOP)
    page.get_by_role("button", name="Cancel", exact=True).click()
    confirm(page, "Cancel it")
    expect(page.get_by_role("status").filter(has_text="cancelled")).to_be_visible()
    newest = cluster.get("/v1/replays")["replays"][0]
    assert (newest["state"], newest["by"]) == ("cancelled", "operator")
    until(lambda: not replaying(cluster), "its process is gone")


def replaying(cluster: Embedded) -> int | None:
    found = [pid for pid, line in cluster.processes().items() if "replay_run" in line]
    return found[0] if found else None


def test_trials_of_policies_are_chosen(page_as: PageAs) -> None:
    page = page_as("operator", "/ledger")
    page.get_by_label("Kind").select_option("pack")
    page.get_by_label("Verdict").select_option("kept")
    page.get_by_label("Only trials of this job").fill("j1")
    page.keyboard.press("Enter")
    expect(
        page.get_by_text("skep ledger --job j1 --kind pack --verdict kept", exact=True)
    ).to_be_visible()
    page.get_by_role("link", name="Show all trials").click()
    expect(page.get_by_text("skep ledger", exact=True)).to_be_visible()


def test_the_audit_log_is_narrowed_by_what_it_shows(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster)
    page = page_as("manager", "/audit")
    assert cluster.ask("DELETE", f"/v1/jobs/{job}").status == 202
    page.get_by_role("button", name="load the latest").click()
    log = page.get_by_role("table", name="Lines of the audit log")
    log.get_by_role("button", name="sam", exact=True).first.click()
    expect(page.get_by_text("skep audit --target sam", exact=True)).to_be_visible()
    page.get_by_role("link", name="all lines").click()
    page.get_by_role("button", name="Only refused").click()
    expect(page.get_by_text("skep audit --refused", exact=True)).to_be_visible()
    page.get_by_role("combobox", name="Since").select_option("1h")
    expect(page.get_by_text("skep audit --refused --since 1h", exact=True)).to_be_visible()


# --- the frame ---------------------------------------------------------------------------------


def test_a_person_logs_in_and_out(house: Embedded, page_as: PageAs, tokens: dict[str, str]) -> None:
    page = page_as("viewer")
    page.get_by_role("button", name="Log out").click()
    token = page.get_by_role("textbox", name="Token")
    token.fill("skep-nothing")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    token.fill(tokens["submitter"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Overview")
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("sam")
    page.get_by_role("button", name="Log out").click()
    page.reload()
    expect(token).to_be_visible()


def test_colours_and_time_zone_are_kept(page_as: PageAs) -> None:
    page = page_as("operator", timezone_id="Asia/Kolkata")
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_label("Time zone").select_option("utc")
    page.reload()
    expect(page.get_by_label("Time zone")).to_have_value("utc")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_line_is_copied(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/jobs", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy: skep ps", exact=True).click()
    expect(page.get_by_text("copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "skep ps"
