"""What `skep fair`, `skep why` and `skep reserve` say of people and windows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from skep.ledger import fold
from skep.ledger.state import ClusterState
from skep.units import NS_PER_SECOND
from skep.wire.admin import SetVcs
from skep.wire.cluster import FairShare, PersonLimits, VirtualCluster
from skep.wire.windows import ReserveNodes, Window, WindowBooked
from skep_services.cli import exits, shares
from skep_services.gateway.callers import Only
from skep_services.gateway.live import Live
from skep_services.gateway.shares import fair_view, window_line, windows_view
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, job_of, texts
from tests.kit import T0, at, joined, spec

NOW = at(3700)


def cluster_of(**entry: object) -> Cluster:
    """Return a cluster of one node with two GPUs, all of them of a VC that shares by person."""
    cluster = Cluster()
    asked = SetVcs(vcs={"nlp": VirtualCluster(gpus=2, **entry)})  # type: ignore[arg-type]
    cluster.tell("ADMIN", asked)
    cluster._record("ADMISSION", "admission", cluster.admission(asked, 0), 0)
    cluster._record("ALLOC", "allocator", cluster.allocator(asked, 0), 0)
    cluster.join(joined("node-1", 2))
    return cluster


def said(cluster: Cluster, job: str) -> list[str]:
    live = Live(cluster.fold, NOW)
    told = explain(job_of(cluster.fold, job), cluster.fold, live, NOW)
    return [one["text"] for one in told["reasons"]]


def test_fair_shows_usage_part_and_order_and_why_says_it_in_a_line() -> None:
    fair = FairShare(half_life=7 * 86_400, weights={"ada": 2.0})
    cluster = cluster_of(fair_share=fair, limits=PersonLimits(running=5))
    cluster.submit(spec(gpus=2, labels={"user": "bob"}))
    cluster.runs("j1", second=100)
    cluster.submit(spec(gpus=2, labels={"user": "bob"}), 200)
    cluster.submit(spec(gpus=2, labels={"user": "ada"}), 201)

    (vc,) = fair_view(cluster.fold.state, NOW, "")

    assert vc["half_life_s"] == 7 * 86_400
    assert vc["limits"] == {"running": 5, "gpus": None, "queued": None}
    rows = [(row["order"], row["person"], row["weight"], row["times"]) for row in vc["people"]]
    assert rows == [(1, "ada", 2.0, 0.0), (2, "bob", 1.0, 3.0)]
    assert vc["people"][1]["used_gpu_s"] == pytest.approx(7390, rel=0.01)
    line = "fair share: bob has used 3.0 times its part; ada comes first; half-life 7 d"
    assert line in said(cluster, "j2")
    assert fair_view(cluster.fold.state, NOW, "cv") == []


def test_why_names_the_limit_and_the_window() -> None:
    cluster = cluster_of(limits=PersonLimits(running=1))
    cluster.submit(spec(labels={"user": "ada"}))
    cluster.submit(spec(labels={"user": "ada"}))
    assert said(cluster, "j2")[0].startswith("its person has as much as one may")

    begins = at(8000)
    window = Window(name="fans", nodes=("node-1",), begins=begins, ends=at(9000), reason="new fans")
    cluster.tell("ADMIN", ReserveNodes(window=window))
    cluster.heard(ReserveNodes(window=window), 5)
    cluster.submit(spec(time=20_000, labels={"user": "bob"}), 6)

    assert [row["name"] for row in windows_view(cluster.fold.state)] == ["fans"]
    assert windows_view(cluster.fold.state)[0]["jobs"] == ["j1"]
    assert any("window fans (maintenance) of node-1" in text for text in said(cluster, "j3"))
    assert any("it leaves node-1 when this begins" in text for text in said(cluster, "j1"))
    assert any("booked: window fans" in text for text in texts(cluster.fold))


def test_a_window_of_another_vc_is_not_shown() -> None:
    state = ClusterState()
    for name, vc in (("fans", ""), ("own", "nlp"), ("theirs", "vision")):
        window = Window(
            name=name, nodes=("node-1",), begins=at(8000), ends=at(9000), vc=vc, reason="a merger"
        )
        fold.apply(state, WindowBooked(window=window, at=at(5)))

    def names(sees: Only) -> set[str]:
        return {row["name"] for row in windows_view(state, sees)}

    assert names(("nlp", "cv")) == names("nlp") == {"fans", "own"}
    assert names(()) == {"fans"}
    assert names("") == {"fans", "own", "theirs"}
    theirs = state.windows["theirs"]
    assert window_line(theirs, "nlp").startswith(
        "window theirs (reserved for another VC) of node-1"
    )
    assert "merger" not in window_line(theirs, "nlp")
    assert window_line(theirs, "vision").endswith(": a merger")


def arguments(*words: str) -> Namespace:
    parser = ArgumentParser()
    shares.options_reserve(parser)
    return parser.parse_args(["create", *words])


def test_a_command_line_becomes_a_window() -> None:
    words = ("--nodes", "a, b", "--from", "2026-12-01T08:00Z", "--for", "4h", "--maintenance")

    window = shares.window_of(arguments(*words), T0)

    assert window["name"] == "w-20261201-0800-a"
    assert window["nodes"] == ["a", "b"]
    assert window["ends"] - window["begins"] == 4 * 3600 * NS_PER_SECOND
    assert window["begins"] == 1_796_112_000 * NS_PER_SECOND


@pytest.mark.parametrize(
    "words, text",
    [
        (("--for", "4h", "--maintenance"), "which nodes?"),
        (("--nodes", "a", "--for", "4h"), "what for?"),
        (("--nodes", "a", "--maintenance"), "for how long?"),
        (("--nodes", "a", "--maintenance", "--for", "soon"), "for how long?"),
        (("--nodes", "a", "--maintenance", "--for", "4h", "--from", "Monday"), "is no time"),
        (
            ("--nodes", "a", "--maintenance", "--for", "4h", "--from", "2026-12-01T08:00"),
            "another instant in each time zone",
        ),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(exits.CommandError, match=text.replace("?", r"\?")):
        shares.window_of(arguments(*words), T0)
