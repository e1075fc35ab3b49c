"""The cluster's page and the tenants' in a real browser: cells, actions, and the cluster file."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import PageAs, axe
from tests.browser.kit import confirm, expect, running
from tests.support.embedded import Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.needs("chromium")]

NODES, GPUS = 1000, 8
SMOOTH_MS = 100
TABS = ("people", "accounts", "promises", "settings")


def test_cells_are_zoomed_into_down_to_a_gpu(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster)
    borrower = running(cluster, vc="other", resources={"gpus": 4}, service_class="opportunistic")
    page = page_as("operator", "/cluster?tab=cells")
    where = page.get_by_role("navigation", name="Where this is")
    place = cluster.get(f"/v1/jobs/{borrower}")["place"].partition(":")[0]
    page.get_by_role("list", name=re.compile("^Cells of")).get_by_role("link").filter(
        has_text=place
    ).click()
    expect(where.get_by_role("link", name=place)).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("row").filter(has_text=borrower)).to_contain_text("borrowed")
    expect(page.get_by_role("main")).to_contain_text(f"{borrower} of othother would leave")
    page.get_by_role("list", name=re.compile("^Cells of")).get_by_role("link").first.click()
    expect(page.get_by_role("main")).to_contain_text("Owner")
    assert "cell=" in page.url
    page.go_back()
    expect(where.get_by_role("link", name=place)).to_have_attribute("aria-current", "page")
    assert not axe(page)
    assert cluster.get(f"/v1/jobs/{job}")["state"] == "running"


def test_a_tenant_reads_no_name_of_another_in_the_cells(cluster: Embedded, page_as: PageAs) -> None:
    job = running(cluster, vc="other", name="theirs")
    page = page_as("viewer", "/cluster?tab=cells")
    expect(page.get_by_role("main")).to_contain_text("another virtual cluster")
    expect(page.get_by_role("link", name=job, exact=True)).to_have_count(0)
    assert page.get_by_role("button", name="Reserve nodes").count() == 0


def test_a_node_is_drained_and_opened_again(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?node=node-1")
    page.get_by_role("button", name="Drain", exact=True).click()
    confirm(page, "Drain", "skep node drain node-1")
    undrain = page.get_by_role("button", name="Undrain", exact=True)
    expect(undrain).to_be_visible()
    undrain.click()
    confirm(page, "Undrain", "skep node undrain node-1")
    expect(page.get_by_role("button", name="Drain", exact=True)).to_be_visible()
    viewer = page_as("viewer", "/cluster?node=node-1")
    expect(viewer.get_by_role("dialog")).to_contain_text("node-1")
    expect(viewer.get_by_role("button", name="Drain")).to_have_count(0)


def test_nodes_are_reserved_and_given_up(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("operator", "/cluster?tab=windows")
    page.get_by_role("button", name="Reserve nodes").click()
    page.get_by_label("Nodes, with commas between").fill("nowhere")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("there is no node 'nowhere'")
    page.get_by_label("Nodes, with commas between").fill("node-2")
    expect(dialog).to_contain_text("skep reserve create --nodes node-2")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    until(lambda: cluster.get("/v1/windows")["windows"] or None, "a window is booked")
    page.reload()
    page.get_by_role("button", name="give it up").click()
    confirm(page, "Give it up", "skep reserve cancel w-")
    until(lambda: not cluster.get("/v1/windows")["windows"] or None, "no window is booked")


def test_the_cluster_file_is_checked_planned_and_applied(
    cluster: Embedded, page_as: PageAs
) -> None:
    job = running(cluster, resources={"gpus": 2})
    page = page_as("operator", "/tenants?tab=file")
    box = page.get_by_role("textbox", name=re.compile("^Chains"))
    first = box.input_value()
    apply = page.get_by_role("button", name="Apply", exact=True)
    box.fill("vcs:\n  lab: {gpu: 1}\n")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_role("button", name="line 2")).to_be_visible()
    expect(apply).to_be_disabled()
    box.fill("vcs:\n  lab: {gpus: 1}\n  other: {gpus: 4}\n")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("row").filter(has_text=job)).to_contain_text("goes on as opportunistic")
    apply.click()
    confirm(page, "Apply", "skep vc apply")
    expect(page.get_by_role("main")).to_contain_text("It is in force.")
    assert [one["gpus"] for one in cluster.get("/v1/vcs")["vcs"]] == [1, 4]
    assert not axe(page)
    box.fill(first)
    page.get_by_role("button", name="Plan", exact=True).click()
    apply.click()
    confirm(page, "Apply", "skep vc apply")
    expect(page.get_by_role("main")).to_contain_text("It is in force.")
    assert cluster.get(f"/v1/jobs/{job}")["state"] == "running"
    viewer = page_as("viewer", "/tenants?tab=file")
    expect(viewer.get_by_role("heading", name="What each owns and uses")).to_be_visible()


def test_a_manager_gives_and_takes_roles_in_its_vc_only(cluster: Embedded, page_as: PageAs) -> None:
    page = page_as("manager", "/tenants/lab?tab=people")
    page.get_by_role("combobox", name="Person").fill("vera")
    page.get_by_role("combobox", name=re.compile("^Role")).select_option("submitter")
    page.get_by_role("button", name="Grant", exact=True).click()
    confirm(page, "Grant", "skep role grant vera submitter --vc lab")
    expect(page.get_by_role("row").filter(has_text="vera")).to_contain_text("submitter")
    cluster.skep("role", "grant", "vera", "viewer", "--vc", "lab")
    viewer = page_as("viewer", "/tenants/lab?tab=people")
    expect(viewer.get_by_role("heading", name="Roles")).to_be_visible()
    expect(viewer.get_by_role("button", name="Grant")).to_have_count(0)
    other = page_as("manager", "/tenants/other")
    expect(other.get_by_role("alert")).to_contain_text("there is no virtual cluster other")


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(
    "tab", ["", "?tab=people", "?tab=accounts", "?tab=promises", "?tab=settings"]
)
def test_a_tenants_page_is_accessible(page_as: PageAs, tab: str, width: int) -> None:
    page = page_as("operator", f"/tenants/lab{tab}", width=width)
    expect(page.get_by_role("link", name="Cells")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not [one for one in axe(page) if one["where"] != [".brand"]]


def test_a_thousand_nodes_stay_smooth(page_as: PageAs) -> None:
    page = page_as("operator", "/cluster")
    state = page.evaluate(
        "fetch('/v1/state', {headers: {Authorization:"
        " `Bearer ${sessionStorage.getItem('skep-token')}`}})"
        ".then((answer) => answer.json())"
    )
    columns = {name: table["columns"] for name, table in state["tables"].items()}
    node = dict(zip(columns["nodes"], state["tables"]["nodes"]["rows"][0], strict=True))
    gpu = dict(zip(columns["gpus"], state["tables"]["gpus"]["rows"][0], strict=True))
    vcs = ("lab", "other")
    names = [f"gpu-{number}" for number in range(NODES)]
    state["tables"]["nodes"]["rows"] = [
        list({**node, "node": name, "gpus": GPUS}.values()) for name in names
    ]
    state["tables"]["gpus"]["rows"] = [
        list(
            {
                **gpu,
                "gpu": f"{name}/{index}",
                "node": name,
                "index": index,
                "state": "held",
                "job": f"j{place}",
                "vc": vcs[place % 2],
                "borrowed": index == 0,
            }.values()
        )
        for place, name in enumerate(names)
        for index in range(GPUS)
    ]
    page.route(re.compile(r"/v1/state\?"), lambda route: route.fulfill(json=state))
    page.route("**/v1/state/changes*", lambda route: None)
    page.reload()
    expect(page.get_by_text("1,000 nodes, 8,000 GPUs")).to_be_visible()
    # What the page's own thread works for each interaction, however busy the machine is.
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked_ms(act: str) -> float:
        def spent() -> float:
            told = session.send("Performance.getMetrics")["metrics"]
            found = {one["name"]: one["value"] for one in told}
            return 1000 * float(found["TaskDuration"])

        before = spent()
        page.evaluate(
            f"new Promise((done) => {{ {act}; requestAnimationFrame(() => setTimeout(done)); }})"
        )
        return spent() - before

    click = (
        "[...document.querySelectorAll('button')].find((one) => one.textContent === '{}').click()"
    )
    took = {name: worked_ms(click.format(name)) for name in ("virtual cluster", "use", "state")}
    for step in range(3):
        took[f"scroll {step}"] = worked_ms("scrollBy(0, 800)")
    assert max(took.values()) < SMOOTH_MS, took
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(page.get_by_role("link", name="gpu-999")).to_be_visible()
    assert page.locator(".node").count() < 100
