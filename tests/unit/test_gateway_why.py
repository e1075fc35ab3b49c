"""Why a job waits and what would change it, and what is known for the moment only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.advice import JobAdvice, QueueAdvice
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Submission
from skep.wire.findings import JobRate, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.following import AdviceFollowed, StageSet
from skep.wire.node import Outcome
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import SizeHint
from skep_services.gateway.cells import vcs_view
from skep_services.gateway.following import stage_sentence
from skep_services.gateway.live import RATES_FRESH_FOR, Live, age_s
from skep_services.gateway.rows import State
from skep_services.gateway.texts import describe, describe_finding, describe_node
from skep_services.gateway.views import gpus_view, nodes_view
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, facts, job_of, texts
from tests.kit import T0, at, heartbeat, joined, spec

NOW = at(100)
FOR_CELLS = ("waits-for-cells", "its virtual cluster's cells are in use, or bad")


def cluster_of(gpus: int = 2, nodes: int = 1, vision: int = 0) -> Cluster:
    """Return a cluster in which nlp owns every GPU that vision does not."""
    cluster = Cluster()
    cluster.set_vcs(nlp=gpus * nodes - vision, vision=vision)
    for number in range(1, nodes + 1):
        cluster.join(joined(f"node-{number}", gpus))
    return cluster


def live_of(cluster: Cluster, now: Instant = NOW) -> Live:
    return Live(cluster.fold, now)


def why(cluster: Cluster, job: str, live: Live | None = None) -> dict[str, Any]:
    told = explain(job_of(cluster.fold, job), cluster.fold, live or live_of(cluster), NOW)
    assert told["job"] == job
    return told


def reasons(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["reason"], one["text"], one["needs"]) for one in told["reasons"]]


# --- waiting --------------------------------------------------------------------------------------


def test_the_head_of_a_queue_waits_for_gpus() -> None:
    cluster = cluster_of(gpus=2)
    first = cluster.submit(spec(gpus=2, size=SizeHint(mini_batches=100)))
    cluster.runs(first)
    waits = cluster.submit(spec(gpus=2))
    told = why(cluster, waits)
    assert told["state"] == "queued"
    assert reasons(told)[0][:2] == FOR_CELLS
    assert "0 of 2 GPUs" in reasons(told)[0][2]
    assert "in use: j1 (2 GPUs" in reasons(told)[0][2]
    assert reasons(told)[1:] == [("cells", "nlp owns 1 x cpux2/node: node-1 (j1)", "")]
    assert told["would_change"] == [
        "job j1 ends",
        "cells of 2 more GPUs for VC nlp",
        "submitted as opportunistic, it could use GPUs that are idle",
    ]
    live = live_of(cluster)
    rate = JobRate(job=first, attempt=1, steps=20, rate_milli=1000)
    live.apply(Rates(at=NOW, jobs=(rate,)), NOW)
    assert why(cluster, waits, live)["would_change"][0] == "job j1 ends (in about 80 s)"


def test_several_jobs_have_to_end_for_a_large_one() -> None:
    cluster = cluster_of(gpus=8)
    for _ in range(6):
        cluster.runs(cluster.submit(spec()))
    waits = cluster.submit(spec(gpus=8))
    assert why(cluster, waits)["would_change"][:2] == [
        "jobs j1, j2, j3, j4 and 2 more end",
        "cells of 6 more GPUs for VC nlp",
    ]


def test_free_gpus_can_lie_apart() -> None:
    cluster = cluster_of(gpus=2, nodes=2)
    for _ in range(4):
        cluster.runs(cluster.submit(spec()))
    cluster.exits("j1")
    cluster.exits("j3")  # One GPU is free on each node.
    waits = cluster.submit(spec(gpus=2, gpu_type="cpu"))
    told = why(cluster, waits)
    assert reasons(told)[0][0] == "waits-for-affinity"
    assert "at most 1 on one node" in reasons(told)[0][2]
    assert told["would_change"][0] == "job j2 ends"


def test_an_opportunistic_job_waits_for_whatever_is_idle() -> None:
    cluster = cluster_of(gpus=2, nodes=2, vision=2)
    for vc in ("nlp", "vision"):
        cluster.runs(cluster.submit(spec(gpus=2, vc=vc)))
    waits = cluster.submit(spec(opportunistic=True))
    told = why(cluster, waits)
    assert reasons(told)[0][:2] == ("waits-for-gpus", "not enough GPUs are free")
    assert told["would_change"] == ["1 more free GPU", "job j1 ends"]
    gang = cluster.submit(spec(gpus=2, workers=2, gpu_type="cpu", opportunistic=True, priority=1))
    row = job_of(cluster.fold, gang).row
    row.why = Reason.WAITS_FOR_GPUS
    for node in cluster.fold.state.nodes.values():
        node.holdings.clear()
    apart = "2 free GPUs of type cpu on one node for each of 2 workers"
    assert why(cluster, gang)["would_change"][0] == apart
    row.workers, row.gpus = 1, 2
    assert why(cluster, gang)["would_change"][0] == "2 free GPUs of type cpu on one node"


def test_a_vc_is_told_who_is_in_its_cells_and_not_who_is_elsewhere() -> None:
    cluster = cluster_of(gpus=8, vision=4)
    cluster.runs(cluster.submit(spec(gpus=2)))
    cluster.runs(cluster.submit(spec(gpus=2, vc="vision")))
    waits = cluster.submit(spec(gpus=4))
    told = why(cluster, waits)
    assert reasons(told)[0][:2] == FOR_CELLS
    assert "2 of 4 GPUs" in reasons(told)[0][2]
    assert "in use: j1 (2 GPUs" in reasons(told)[0][2]
    assert reasons(told)[1:] == [("cells", "nlp owns 1 x cpux8/quad: node-1/quad 0 (j1)", "")]
    assert told["would_change"] == [
        "job j1 ends",
        "cells of 2 more GPUs for VC nlp",
        "submitted as opportunistic, it could use GPUs that are idle",
    ]


def test_of_many_jobs_in_a_cell_the_first_are_named() -> None:
    cluster = cluster_of(gpus=8, vision=0)
    for _ in range(6):
        cluster.runs(cluster.submit(spec(gpus=1)))
    told = why(cluster, cluster.submit(spec(gpus=4)))
    assert "(j1, j2, j3, j4, 2 more)" in reasons(told)[1][1]


def test_a_job_that_no_cell_holds_waits_for_other_cells_and_holds_up_nobody() -> None:
    cluster = cluster_of(gpus=4, vision=0)
    cluster.runs(cluster.submit(spec(gpus=4)))
    hopeless = cluster.submit(spec(gpus=4, priority=1))
    cluster.set_vcs(3, nlp=2, vision=2)
    behind = cluster.submit(spec(gpus=2))
    told = why(cluster, hopeless)
    assert reasons(told)[0][0] == "fits-no-cell"
    assert told["would_change"] == [
        "VC nlp owns cells that hold it",
        "it asks for less, and is submitted again",
    ]
    assert reasons(why(cluster, behind))[0][0] != "waits-behind"


def test_a_job_behind_others_is_told_how_many_and_what_the_first_waits_for() -> None:
    cluster = cluster_of(gpus=2)
    cluster.runs(cluster.submit(spec(gpus=2, priority=9)))
    head = cluster.submit(spec(gpus=2, priority=5))
    cluster.submit(spec())
    last = cluster.submit(spec())
    told = why(cluster, last)
    assert reasons(told)[0] == (
        "waits-behind",
        "2 jobs come first in this queue, j2 before all",
        head,
    )
    assert reasons(told)[1][:2] == (
        "waits-for-cells",
        "j2: its virtual cluster's cells are in use, or bad",
    )
    assert told["would_change"][:3] == [
        "the 2 jobs before it start or are cancelled",
        "a priority above 5",
        "job j1 ends",
    ]
    second = why(cluster, "j3")
    assert reasons(second)[0][1] == "1 job comes first in this queue, j2 before all"
    assert second["would_change"][0] == "j2 starts or is cancelled"


def test_advice_changes_who_is_ahead_until_it_expires() -> None:
    cluster = cluster_of(gpus=2)
    cluster.runs(cluster.submit(spec(gpus=2)))
    for _ in range(3):
        cluster.submit(spec(gpus=2))
    live = live_of(cluster)
    order = (
        JobAdvice(job="j4", why=Reason.PREDICTED_SHORTEST, remaining=Duration(5)),
        JobAdvice(job="j2", why=Reason.ARRIVAL),
    )
    live.apply(QueueAdvice(at=NOW, expires_at=after(NOW, seconds(5)), jobs=order), NOW)
    assert live.turns(NOW) == {"j4": 0, "j2": 1}
    assert live.remaining(NOW) == {"j4": 5}
    assert "j4 before all" in reasons(why(cluster, "j2", live))[0][1]
    assert reasons(why(cluster, "j3", live))[0][1].startswith("2 jobs come first")
    assert live.turns(after(NOW, seconds(5))) == {}
    assert live.remaining(after(NOW, seconds(5))) == {}


def test_nodes_that_are_away_are_named() -> None:
    cluster = cluster_of(gpus=2, nodes=2)
    cluster.heard(DrainNode(node="node-1"), 1)
    cluster.heard(heartbeat("node-1"), 40)
    cluster.tick(45)
    waits = cluster.submit(spec(), 46)
    told = why(cluster, waits)
    assert reasons(told)[0][0] == "waits-for-repair"
    owned = "nlp owns 2 x cpux2/node: node-1 (2 of 2 GPUs bad), node-2 (2 of 2 GPUs bad)"
    assert reasons(told)[1] == ("cells", owned, "")
    assert told["would_change"][:2] == ["node-1 is opened for work again", "node-2 comes back"]


def test_a_lost_node_would_help_a_job_that_waits_for_gpus() -> None:
    cluster = cluster_of(gpus=2, nodes=2)
    cluster.heard(heartbeat("node-1"), 40)
    cluster.tick(45)
    cluster.runs(cluster.submit(spec(gpus=2), 46))
    waits = cluster.submit(spec(gpus=2), 47)
    assert why(cluster, waits)["would_change"][:2] == ["job j1 ends", "node-2 comes back"]


def test_victims_are_named() -> None:
    cluster = cluster_of(gpus=1)
    cluster.runs(cluster.submit(spec(opportunistic=True)))
    waits = cluster.submit(spec())
    told = why(cluster, waits)
    assert reasons(told)[0][0] == "waits-for-victims"
    assert told["would_change"] == ["j1 has stopped"]
    cluster.fold.active["j1"].row.state = State.QUEUED
    assert why(cluster, waits)["would_change"] == []  # It has stopped, and nobody has said so yet.
    cluster.fold.active["j1"].row.state = State.STOPPING
    stopping = why(cluster, "j1")
    assert reasons(stopping) == [("preempted", "a guaranteed job needed the GPUs", "")]


def test_a_job_nobody_has_looked_at_yet() -> None:
    cluster = Cluster()
    cluster.fold.apply(Submission(job="j1", vc="nlp", raw=b"{}", at=T0), T0)
    told = why(cluster, "j1")
    assert reasons(told) == [("submitted", "admission has not answered yet", "")]
    cluster = cluster_of()
    # Admission has spoken, the allocator has not.
    job = cluster.submit(spec())
    row = job_of(cluster.fold, job).row
    row.state, row.why, row.needs = row.state.QUEUED, Reason.WAITS_BEHIND, ""
    assert reasons(why(cluster, job)) == [
        ("waits-behind", "it is next; the allocator has not looked at it yet", "")
    ]


def test_what_only_several_chains_hold_waits_for_another_policy() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=4)
    for number, kind in ((1, {"a100": 3}), (2, {"h100": 1})):
        cluster.join(joined(f"node-{number}", kind))
    cluster.runs(cluster.submit(spec(gpu_type="a100")))
    asked = {"gpu_type": "a100|h100", "mixed": True}
    four, two, three = (cluster.submit(spec(workers=count, **asked)) for count in (4, 2, 3))
    assert "in several chains it has place for" in reasons(why(cluster, four))[0][2]
    cluster.set_cluster(SetVcs(vcs={"nlp": VirtualCluster(gpus=4, policy="backfill")}))
    told = why(cluster, four)
    assert reasons(told)[0][:2] == ("mixed-under-policy", TEXT[Reason.MIXED_UNDER_POLICY])
    assert told["would_change"][0] == "VC nlp owns cells of one chain that hold it"
    cluster.runs(two)
    assert reasons(why(cluster, three))[0][0] == "waits-for-cells"
    assert "several chains" not in reasons(why(cluster, three))[0][2]


# --- placed and ended -----------------------------------------------------------------------------


def test_a_running_job_is_told_why_there_and_when_it_stalls() -> None:
    cluster = cluster_of()
    job = cluster.submit(spec())
    cluster.runs(job)
    told = why(cluster, job)
    assert reasons(told) == [
        ("best-fit-one-node", "placed on node-1:0: the fullest node that holds the whole gang", ""),
        ("arrival", "its turn: in order of arrival", ""),
    ]
    live = live_of(cluster)
    live.apply(Stalled(at=NOW, job=job, attempt=1, since=at(90)), NOW)
    assert reasons(why(cluster, job, live))[-1] == ("stalled", "no mini-batch for 10 s", "")
    assert job_of(cluster.fold, job).row.stalled_since == at(90)
    live.apply(Stalled(at=NOW, job=job, attempt=1, since=at(90), over=True), NOW)
    assert job_of(cluster.fold, job).row.stalled_since is None
    said = texts(cluster.fold)[-2:]
    assert said == ["no mini-batch for 10 s", "makes mini-batches again"]


def test_an_ended_job_is_told_how() -> None:
    cluster = cluster_of()
    job = cluster.submit(spec())
    cluster.runs(job)
    cluster.exits(job, outcome=Outcome.EXITED, detail="status 3")
    told = why(cluster, job)
    assert reasons(told) == [
        ("exited-nonzero", "a process exited with a status other than 0", "node-1: status 3")
    ]
    assert told["would_change"] == []


def test_a_refused_job_is_told_what_to_mend() -> None:
    cluster = cluster_of()
    job = cluster.submit(b'{"name": "x", "vc": "nlp", "comand": ["true"]}')
    told = why(cluster, job)
    assert ("unknown-key", "$.comand: unknown key `comand`", "") in reasons(told)
    assert "did you mean `command`?" in told["would_change"]


# --- live -----------------------------------------------------------------------------------------


def test_rates_fill_the_row_of_the_attempt_that_runs() -> None:
    cluster = cluster_of()
    job = cluster.submit(spec(size=SizeHint(mini_batches=100)))
    cluster.runs(job)
    live, row = live_of(cluster), job_of(cluster.fold, job).row
    rate = JobRate(job=job, attempt=1, steps=41, rate_milli=2000, utilisation=700)
    live.apply(Rates(at=NOW, jobs=(rate,)), NOW)
    assert (row.steps, row.rate_milli, row.eta_s) == (41, 2000, 30)
    assert live.utilisation == {job: 700}
    old = JobRate(job=job, attempt=9, steps=1, rate_milli=1)
    live.apply(Rates(at=NOW, jobs=(old, JobRate(job="j9", attempt=1, steps=1, rate_milli=1))), NOW)
    assert (row.steps, row.rate_milli) == (41, 2000)
    live.apply(Rates(at=NOW, jobs=(JobRate(job=job, attempt=1, steps=41, rate_milli=0),)), NOW)
    assert row.eta_s is None


def test_rates_that_are_told_in_several_messages_belong_together() -> None:
    cluster = cluster_of()
    first, second = (cluster.submit(spec()) for _ in range(2))
    cluster.runs(first)
    cluster.runs(second)
    live = live_of(cluster)
    each = [JobRate(job=job, attempt=1, steps=1, rate_milli=1000) for job in (first, second)]
    for rate in each:
        live.apply(Rates(at=NOW, jobs=(rate,)), NOW)
    assert list(live.rates) == list(live.utilisation) == [first, second]
    later = after(NOW, seconds(1))
    live.apply(Rates(at=later, jobs=(each[1],)), later)
    assert list(live.rates) == list(live.utilisation) == [second]


def test_estimates_fade_when_nobody_measures() -> None:
    cluster = cluster_of()
    job = cluster.submit(spec(size=SizeHint(mini_batches=100)))
    cluster.runs(job)
    live, row = live_of(cluster), job_of(cluster.fold, job).row
    live.apply(Rates(at=NOW, jobs=(JobRate(job=job, attempt=1, steps=1, rate_milli=1000),)), NOW)
    etas = []
    for late in (0, 1):
        live.fade(Instant(NOW + RATES_FRESH_FOR + late))
        etas.append(row.eta_s)
    assert etas == [99, None]
    assert (live.rates_at, live.utilisation) == (None, {})


def test_findings_become_events_of_jobs_that_run() -> None:
    cluster = cluster_of()
    job = cluster.submit(spec())
    cluster.runs(job)
    cluster.fold.take()
    live = live_of(cluster)
    live.apply(RateLearned(at=NOW, job=job, attempt=1, rate_milli=12_340), NOW)
    changed = PhaseChanged(at=NOW, job=job, attempt=1, before_milli=12_340, after_milli=500)
    live.apply(changed, NOW)
    live.apply(RateLearned(at=NOW, job="j9", attempt=1, rate_milli=1), NOW)
    live.apply(object(), NOW)
    events = cluster.fold.take().events
    assert [(event.kind, event.text) for event in events] == [
        ("rate-learned", "runs at 12.3 mini-batches/s"),
        ("phase-changed", "rate changed from 12.3 mini-batches/s to 0.5 mini-batches/s"),
    ]
    assert describe_finding(Rates(at=NOW, jobs=())) is None


@pytest.mark.parametrize("ignored", [object(), heartbeat()])
def test_what_is_not_worth_an_event(ignored: object) -> None:
    assert describe(ignored) is None
    assert describe_node(ignored) is None


def test_age() -> None:
    assert age_s(None, NOW) is None
    assert age_s(at(98), NOW) == 2.0
    assert age_s(after(NOW, seconds(1)), NOW) == 0.0


def _no(_: str) -> bool:
    return False


# --- views ----------------------------------------------------------------------------------------


def test_nodes_show_who_speaks_and_what_they_run() -> None:
    cluster = cluster_of(gpus=2, nodes=2, vision=2)
    job = cluster.submit(spec())
    other = cluster.submit(spec(vc="vision", gpus=2))
    live = live_of(cluster, T0)
    live.apply(heartbeat("node-1"), at(10))
    live.apply(heartbeat("node-7"), at(10))
    assert list(live.heard) == ["node-1"]
    first, second = nodes_view(cluster.fold, live, at(11), "", _no)
    assert (first["node"], first["state"], first["gpus"], first["free"]) == ("node-1", "up", 2, 1)
    assert (first["jobs"], first["last_heard_at"], first["gpu_type"]) == ([job], at(10), "cpu")
    assert (second["state"], second["free"], second["jobs"]) == ("silent", 0, [other])
    assert second["last_heard_at"] is None
    [_, masked] = nodes_view(cluster.fold, live, at(11), "nlp", _no)
    assert masked["jobs"] == []
    cluster.heard(DrainNode(node="node-1"), 12)
    cluster.fold.state.nodes["node-2"].lost = True
    states = [node["state"] for node in nodes_view(cluster.fold, live, at(12), "", _no)]
    assert states == ["drained", "lost"]
    # What was removed is not listed once it is lost for good; before, it may have jobs.
    listed = nodes_view(cluster.fold, live, at(12), "", lambda _: True)
    assert [node["node"] for node in listed] == ["node-1"]
    gpus = gpus_view(cluster.fold, live, NOW, "", lambda _: True)
    assert {gpu["node"] for gpu in gpus} == {"node-1"}


def test_an_agents_restart_shows_at_once_and_an_impostor_does_not() -> None:
    cluster = cluster_of()
    live = live_of(cluster)
    cluster.fold.apply(joined(incarnation=5), NOW)
    assert nodes_view(cluster.fold, live, NOW, "", _no)[0]["incarnation"] == 5
    cluster.fold.apply(joined(incarnation=9, identity="another"), NOW)
    assert nodes_view(cluster.fold, live, NOW, "", _no)[0]["incarnation"] == 1
    cluster.fold.apply(joined("node-9", incarnation=1), NOW)  # The allocator has not taken it in.
    assert len(nodes_view(cluster.fold, live, NOW, "", _no)) == 1


def test_gpus_hide_other_tenants_jobs_but_not_that_they_are_taken() -> None:
    cluster = cluster_of(gpus=2)
    job = cluster.submit(spec())
    live = live_of(cluster)
    live.utilisation = {job: 900}
    held, free = gpus_view(cluster.fold, live, NOW, "", _no)
    assert (held["job"], held["vc"], held["rank"], held["utilisation"]) == (job, "nlp", 0, 900)
    assert (free["taken"], free["job"], free["rank"]) == (False, None, None)
    masked, _ = gpus_view(cluster.fold, live, NOW, "vision", _no)
    assert (masked["taken"], masked["job"], masked["vc"], masked["utilisation"]) == (
        True,
        None,
        None,
        None,
    )


MODEL = "ab" * 32


def test_a_job_that_waits_is_told_who_plans_its_vc() -> None:
    cluster = cluster_of(gpus=2)
    cluster.submit(spec(gpus=2))
    waits = cluster.submit(spec(gpus=1))
    said = AdviceFollowed(
        vc="nlp", follows=False, why=Reason.ADVICE_LATE, at=at(9), model=MODEL, rule="hold"
    )
    cluster.tell(subjects.ALLOC, facts("allocator", said, second=9))
    assert reasons(why(cluster, waits))[-1] == (
        "advice-late",
        f"nlp is planned by its rule hold: {TEXT[Reason.ADVICE_LATE]}",
        "",
    )


def test_a_draw_is_no_event() -> None:
    cluster = cluster_of(gpus=2)
    said = AdviceFollowed(vc="nlp", follows=True, why=Reason.ADVISED, at=at(9), model=MODEL)
    drawn = msgspec.structs.replace(said, seed=7, chance=1000, day=1)
    begun, events = cluster.fold.event_seq, list[int]()
    for second, fact in (
        (9, said),
        (10, drawn),
        (11, msgspec.structs.replace(drawn, seed=9)),
        (12, msgspec.structs.replace(drawn, follows=False, why=Reason.ADVICE_LATE, at=at(12))),
    ):
        cluster.tell(subjects.ALLOC, facts("allocator", fact, second=second))
        events.append(cluster.fold.event_seq - begun)
    assert events == [1, 1, 1, 2]


def test_a_stage_tells_its_figures_and_no_reason_twice() -> None:
    stage = StageSet(
        vc="nlp",
        model=MODEL,
        stage="switchback",
        why=Reason.SHADOW_PASSED,
        at=at(8),
        decisions=1200,
        agreed_milli=500,
        pairs=10,
        gain_milli=-12,
        low_milli=-40,
        high_milli=16,
    )
    assert stage_sentence(stage) == (
        "stage switchback: nothing that it would have done in shadow looks worse; "
        "agreed in 50% of 1,200 decisions; -1.2% (-4.0 to +1.6) over 10 comparisons"
    )
    begun = StageSet(vc="nlp", model=MODEL, stage="shadow", why=Reason.STAGE_SHADOW, at=at(8))
    assert stage_sentence(begun) == "stage shadow"


def test_tenants_count_what_they_hold_within_and_outside_their_cells() -> None:
    cluster = cluster_of(gpus=4, vision=1)
    cluster.submit(spec(gpus=2))
    cluster.submit(spec(opportunistic=True))
    cluster.submit(spec(gpus=2))
    cluster.submit(spec(vc="vision"))
    more = {"weight": 1.0, "jobs_max": 1_000_000, "policy": "fifo", "options": {}}
    more["templates"] = {}
    assert vcs_view(cluster.fold, "") == [
        {
            "vc": "nlp",
            "gpus": 3,
            "asked": 3,
            **more,
            "used": 2,
            "borrowed": 1,
            "running": 2,
            "suspended": 0,
            "queued": 1,
        },
        {
            "vc": "vision",
            "gpus": 1,
            "asked": 1,
            **more,
            "used": 1,
            "borrowed": 0,
            "running": 1,
            "suspended": 0,
            "queued": 0,
        },
    ]
    assert [row["vc"] for row in vcs_view(cluster.fold, "vision")] == ["vision"]
