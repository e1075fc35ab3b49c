"""The published schedulers on small clusters: who runs is who the papers say."""

from typing import Any

import msgspec
import pytest

from skep.policy import registry
from skep.policy.parts import portions
from skep.policy.registry import POLICIES, make
from skep.policy.schedulers.tiresias import Gittins
from skep.policy.view import JobView, Phase, VcView
from skep.units import Instant, seconds
from skep.wire.reasons import Reason
from tests.policy_kit import NOW, begin, job, leave, shown, told, view


def plan(name: str, seen: VcView, **options: Any) -> str:
    return told(shown(make(name, options), seen))


def test_srtf_stops_the_longest_for_a_shorter_one() -> None:
    seen = view(
        [
            job("j1", 4, on=[("n1", 4)], needs=1000, ran=100, since=100),
            job("j2", 4, on=[("n2", 4)], needs=1000, ran=700, since=700),
            job("j3", 2, needs=500),
        ]
    )
    assert plan("srtf", seen) == "-j1 +j3@n1"


def test_srtf_leaves_who_is_nearly_done() -> None:
    seen = view(
        [job("j1", 8, on=[("n1", 4), ("n2", 4)], needs=1000, ran=900), job("j2", needs=200)]
    )
    assert plan("srtf", seen) == ""


def test_srtf_puts_unknown_lengths_last() -> None:
    seen = view([job("j1", 8), job("j2", 8, needs=5000)])
    assert plan("srtf", seen, places=False) == "+j2"


def test_srsf_counts_gpus() -> None:
    seen = view([job("j1", 8, needs=100), job("j2", 1, needs=700)])
    assert plan("srsf", seen, places=False) == "+j2"
    assert plan("srtf", seen, places=False) == "+j1"


def test_a_priority_comes_before_any_length() -> None:
    seen = view([job("j1", 8, needs=100), job("j2", 8, needs=700, priority=1)])
    assert plan("srtf", seen, places=False) == "+j2"


def test_nobody_is_stopped_for_a_gang_that_would_not_fit() -> None:
    """Six GPUs are free, but the gang wants one node, and who is on them comes before it."""
    seen = view(
        [
            job("j1", on=[("n1", 1)], needs=10),
            job("j2", on=[("n2", 1)], needs=10),
            job("j3", 4, hard=True, needs=50),
            job("j4", 2, needs=90),
        ]
    )
    assert plan("srtf", seen) == "+j4@n1 ?j3"


def test_who_comes_after_a_gang_makes_room_and_goes_elsewhere() -> None:
    """All six fit, though not where they are: the last of the order is the one that moves."""
    seen = view(
        [
            job("j1", on=[("n1", 1)], needs=100),
            job("j2", on=[("n2", 1)], needs=200),
            job("j3", 4, hard=True, needs=50),
        ]
    )
    assert plan("srtf", seen) == "-j2 +j3@n2"


def test_who_cannot_go_elsewhere_is_seen_where_he_stands() -> None:
    """Node 2 has room, and is no use to it: it would go home, and stop whoever is there."""
    home = job("j1", 4, phase=Phase.AWAY, on=[("n1", 4)], needs=900)
    first = job("j2", 4, on=[("n1", 4)], needs=100)
    assert plan("srtf", view([home, first])) == "?j1"
    mobile = msgspec.structs.replace(home, can=("suspend", "release", "migrate"))
    assert plan("srtf", view([mobile, first])) == "+j1@n2"
    later = job("j2", 4, on=[("n1", 4)], needs=1000)
    assert plan("srtf", view([home, later])) == "-j2 +j1@n1"


def test_victims_that_are_stopping_are_not_stopped_again() -> None:
    seen = view(
        [
            job("j1", 4, phase=Phase.STOPPING, on=[("n1", 4)], needs=1000),
            job("j2", 4, on=[("n2", 4)], needs=900),
            job("j3", 4, needs=50),
        ]
    )
    assert plan("srtf", seen) == "+j3@n1"
    assert plan("srtf", seen, places=False) == "+j3"


def test_a_suspended_or_reserved_job_keeps_its_gpus() -> None:
    seen = view(
        [
            job("j1", 4, phase=Phase.SUSPENDED, on=[("n1", 4)], needs=1000),
            job("j2", 4, phase=Phase.RESERVED, on=[("n2", 4)], needs=900),
            job("j3", 4, needs=50),
        ]
    )
    assert plan("srtf", seen) == ""


def test_who_borrows_is_neither_counted_nor_stopped() -> None:
    seen = view(
        [job("j1", 8, needs=500), job("j2", 2, needs=900, phase=Phase.RUNNING, borrows=True)]
    )
    assert plan("srtf", seen, places=False) == "+j1"


def test_tiresias_demotes_at_the_threshold() -> None:
    """1,625 s on two GPUs are 3,250 GPU-seconds: the job falls behind a new one."""
    old = job("j1", 2, on=[("n1", 2)], ran=1625, since=1625)
    seen = view([old, job("j2", 2)], nodes=1, size=2)
    assert plan("tiresias-l", seen) == "-j1 +j2@n1"
    younger = msgspec.structs.replace(old, since=Instant(NOW - seconds(1624)))
    early = shown(make("tiresias-l"), view([younger, job("j2", 2)], nodes=1, size=2))
    assert told(early) == ""
    assert early.look_at == NOW + seconds(1)


def test_tiresias_serves_a_queue_in_the_order_of_beginning() -> None:
    begun = job("j2", ran=10, began_at=Instant(NOW - 5))
    seen = view([job("j1"), begun], nodes=1, size=1)
    assert plan("tiresias-l", seen) == "+j2@n1"
    young = job("j3", on=[("n1", 1)], ran=5, since=5)
    assert plan("tiresias-l", view([begun, young], nodes=1, size=1)) == ""


def test_tiresias_promotes_who_starves() -> None:
    """It ran 4,000 s and has waited 8,000: with the knob at 2 it is as good as new."""
    waiting = job("j1", ran=4000, waiting_since=Instant(NOW - seconds(8000)))
    other = job("j2", on=[("n1", 1)], ran=5000, since=5000)
    seen = view([waiting, other], nodes=1, size=1)
    assert plan("tiresias-l", seen, starvation=2) == "-j2 +j1@n1"
    late = shown(make("tiresias-l", {"starvation": 3, "places": False}), seen)
    assert told(late) == ""
    assert late.look_at == NOW + seconds(4000)


def test_who_starved_is_not_stopped_while_he_starts() -> None:
    """Its start would undo itself, for ever."""
    waited = Instant(NOW - seconds(8001))
    starts = job("j1", on=[("n1", 1)], phase=Phase.STARTING, ran=4000, waiting_since=waited)
    young = job("j2", waiting_since=Instant(NOW - seconds(10)))
    assert plan("tiresias-l", view([starts, young], nodes=1, size=1), starvation=2) == ""
    # Who stood with its GPUs waited for none.
    stood = job("j1", on=[("n1", 1)], ran=4001, since=1, waiting_since=waited, stood=True)
    assert plan("tiresias-l", view([stood, young], nodes=1, size=1), starvation=2) == "-j1 +j2@n1"


def test_no_gpu_is_lost_between_parts() -> None:
    assert portions(100, {"a": 0.29, "b": 0.71}) == {"a": 29, "b": 71}
    assert portions(8, dict.fromkeys("abc", 1.0)) == {"a": 3, "b": 3, "c": 2}


def test_the_gittins_index_of_two_kinds_of_jobs() -> None:
    """Half of the jobs need 10, half need 1,000: after 10 it is clear which one it is."""
    index = Gittins([10, 10, 1000, 1000], 100)
    assert index.at(0) == pytest.approx(2 / (2 * 10 + 2 * 100))
    assert index.at(10) == 0
    assert index.at(900) == pytest.approx(1 / 100)
    assert index.at(1000) < 0


def test_tiresias_g_takes_up_who_is_nearly_done() -> None:
    """LAS would go on with the younger job; the sample says that the older one ends at 1,000."""
    seen = view([job("j1", ran=900), job("j2", ran=200)], nodes=1, size=1)
    options = {"samples": [10, 10, 1000, 1000], "quantum": 100}
    assert plan("tiresias-g", seen, **options) == "+j1@n1"
    assert plan("tiresias-g", seen, quantum=100) == "+j2@n1"


def test_tiresias_g_learns_from_those_that_ended() -> None:
    ended = tuple([seconds(10)] * 5 + [seconds(1000)] * 5)
    seen = view([job("j1", ran=900), job("j2", ran=200)], nodes=1, size=1, ended=ended)
    assert plan("tiresias-g", seen, quantum=100) == "+j1@n1"


def test_las_changes_at_rounds_only() -> None:
    jobs = [job("j1", on=[("n1", 1)], ran=500, since=500), job("j2", ran=100)]
    within = view(jobs, nodes=1, size=1)
    assert plan("las", within) == "+j2"  # it waits for a GPU: none is free
    begins = view(jobs, nodes=1, size=1, now=Instant(NOW // seconds(360) * seconds(360)))
    assert plan("las", begins) == "-j1 +j2@n1"
    assert shown(make("las"), begins).look_at == begins.now + seconds(360)


def test_las_has_no_rounds_where_no_job_waits() -> None:
    runs = job("j1", on=[("n1", 1)], ran=500, since=500)
    for now in (NOW // seconds(360) * seconds(360), NOW):
        assert shown(make("las"), view([runs], nodes=1, size=2, now=Instant(now))).look_at is None
        both = view([runs, job("j2")], nodes=1, size=2, now=Instant(now))
        assert shown(make("las"), both).look_at is not None


def test_las_weighs_what_jobs_ran_until_their_round_began() -> None:
    """Else whoever runs passes the other within the window, and a plan in it undoes the last."""
    begins = Instant(NOW // seconds(360) * seconds(360))
    waits = job("j1", ran=360)
    runs = job("j2", on=[("n1", 1)], since=0, served=seconds(0))
    for late in (0, 3, 6):
        ran = msgspec.structs.replace(runs, since=Instant(begins - seconds(358)))
        seen = view([waits, ran], nodes=1, size=1, now=Instant(begins + seconds(late)))
        assert plan("las", seen) == "", late
        leaves = msgspec.structs.replace(
            ran, since=Instant(begins - seconds(500)), phase=Phase.STOPPING
        )
        assert plan("las", msgspec.structs.replace(seen, jobs=(waits, leaves))) == "+j1@n1", late
        never = msgspec.structs.replace(leaves, since=Instant(0))
        assert plan("las", msgspec.structs.replace(seen, jobs=(waits, never))) == "", late


@pytest.mark.parametrize("fill", [True, False])
def test_las_tells_those_whose_turn_it_is_not_that_others_come_first(fill: bool) -> None:
    """At a round's beginning too: a job that is held there and not afterwards is news each time."""
    jobs = [job("j1", on=[("n1", 1)], since=10, ran=10), job("j2", ran=100), job("j3", ran=200)]
    begins = Instant(NOW // seconds(360) * seconds(360))
    at_first = shown(make("las", {"fill": fill}), view(jobs, nodes=1, size=1, now=begins))
    later = shown(make("las", {"fill": fill}), view(jobs, nodes=1, size=1))
    assert told(at_first) == ""
    assert told(later) == ("+j2 +j3" if fill else "")
    assert at_first.behind is later.behind is Reason.WAITS_BEHIND


def test_las_gives_turns_to_the_first_and_to_those_that_could_fit() -> None:
    runs, wide = job("j1", on=[("n1", 1)], since=10, ran=10), job("j2", 2, ran=10)
    others = [wide, *(job(f"j{number}", ran=20) for number in range(3, 500))]
    full = shown(make("las"), view([runs, *others], nodes=1, size=1))
    assert [turn.job for turn in full.turns] == [each.job for each in others[:200]]
    free = shown(make("las"), view([runs, *others[1:], wide], nodes=1, size=2))
    assert [turn.job for turn in free.turns] == [each.job for each in others]


def test_orders_of_sched2() -> None:
    seen = view([job("j1", 4, needs=100), job("j2", 1, needs=300), job("j3", 2, needs=90)])
    assert plan("sif", seen) == "+j3 +j1 +j2"
    assert plan("lrf", seen) == "+j2 +j3 +j1"
    assert plan("spf", seen) == "+j3 +j2 +j1"


def test_dsif_holds_for_locality_three_times() -> None:
    """Two GPUs are free on two nodes: the pair is held back, and those behind it are not."""
    others = [job("j1", 3, on=[("n1", 3)]), job("j2", 3, on=[("n2", 3)])]
    seen = view([*others, job("j3", 2, needs=10), job("j4", 1, needs=20)])
    assert plan("dsif", seen) == "+j4 ?j3"
    tired = view([*others, job("j3", 2, needs=10, held=3), job("j4", 1, needs=20)])
    assert plan("dsif", tired) == "+j3 +j4"


def test_dsif_holds_for_what_its_own_jobs_may_leave_only() -> None:
    """The VC has two GPUs on each node and nobody runs: nothing will ever come free."""
    seen = view([job("j1", 4, needs=10)], nodes=2, size=4)
    nodes = tuple(msgspec.structs.replace(node, free=2) for node in seen.nodes)
    assert plan("dsif", msgspec.structs.replace(seen, nodes=nodes, free=4)) == "+j1"


def test_saf_knows_what_the_placement_costs() -> None:
    """Ideally the pair is shorter, but on two nodes it takes three times as long."""
    others = [job("j1", 3, on=[("n1", 3)]), job("j2", 3, on=[("n2", 3)])]
    pair = job("j3", 2, needs=10, slowdown=((1, 1000), (2, 3000)))
    assert plan("saf", view([*others, pair, job("j4", 1, needs=20)])) == "+j4 +j3"
    assert plan("sif", view([*others, pair, job("j4", 1, needs=20)])) == "+j3 +j4"


def test_packing_as_in_figure_2() -> None:
    """A job that fits goes to the fullest server; one that does not takes the emptiest first."""
    there = [job("j1", 3, on=[("n1", 3)]), job("j2", 2, on=[("n2", 2)])]
    assert plan("packing", view([*there, job("j3", 2)], nodes=3)) == "+j3@n2"
    assert plan("packing", view([*there, job("j3", 5)], nodes=3)) == "+j3@n3,n1"
    assert plan("packing", view([*there, job("j3", 6)], nodes=3)) == "+j3@n3,n2"


def test_who_waits_behind_the_first_of_packing_is_told_so() -> None:
    assert plan("packing", view([job("j1", 9), job("j2", 1)])) == "+j1 ?j2"


def test_packing_passes_over_servers_without_processors_or_memory() -> None:
    full, other = view([job("j1", on=[("n1", 1)])]).nodes
    used_up = msgspec.structs.replace(full, cpus_free=1, memory=64, memory_free=1)
    seen = view([job("j1", on=[("n1", 1)]), job("j2", 2, cpus=1)], nodes=2)
    seen = msgspec.structs.replace(seen, nodes=(used_up, other))
    assert plan("packing", seen) == "+j2@n2"


def test_packing_puts_a_gang_that_wants_one_server_on_no_two() -> None:
    there = [job("j1", 3, on=[("n1", 3)]), job("j2", 3, on=[("n2", 3)])]
    seen = view([*there, job("j3", 2, hard=True), job("j4")])
    assert plan("packing", seen) == "+j3 ?j4"
    assert plan("packing", seen, strict=False) == "+j3 +j4@n1"


def test_a_pinned_cell_is_for_the_jobs_that_name_it() -> None:
    """Three GPUs of n1 are a pinned cell: nobody else is sent there, or makes room in it."""
    big = {"big": {"n1": 3}}
    seen = view([job("j1", 2), job("j2", 2, pin="big"), job("j3", 1, pin="big")], pins=big)
    assert plan("packing", seen) == "+j1@n2 +j2@n1 +j3@n1"
    there = [job("j1", 2, on=[("n1", 2)], pin="big", needs=900), job("j2", 4, on=[("n2", 4)])]
    assert plan("srtf", view([*there, job("j3", 2, needs=5)], pins=big)) == "-j2 +j3@n2"
    assert plan("srtf", view([*there, job("j3", 2, needs=5)], pins=big), places=False) == "-j2 +j3"
    assert plan("srtf", view([*there, job("j3", 2, needs=5, pin="big")], pins=big)) == "-j1 +j3@n1"
    assert plan("gandiva", view([*there, job("j3", 2)], pins=big)) == ""
    assert plan("gandiva", view([*there, job("j3", pin="big")], pins=big)) == "+j3@n1"
    seen = view([*there, job("j3", 2, pin="big")], pins=big)
    assert plan("dsif", seen) == "+j3"  # Who is in the other cells cannot bring it closer.


def test_drf_serves_whoever_has_the_least() -> None:
    """One has GPUs, the other processors: what counts is the larger part of each."""
    seen = view(
        [
            job("j1", 2, on=[("n1", 2)], labels={"user": "ada"}),
            job("j2", 1, on=[("n1", 1)], labels={"user": "bob"}, cpus=32),
            job("j3", 1, labels={"user": "bob"}),
            job("j4", 1, labels={"user": "ada"}),
        ]
    )
    assert plan("drf", seen) == "+j4 +j3"


def test_tetris_prefers_what_fits_and_is_short() -> None:
    seen = view([job("j1", 1, needs=100), job("j2", 4, workers=1, needs=100)], nodes=1)
    assert plan("tetris", seen, shortness=0) == "+j2 +j1"
    assert plan("tetris", seen, shortness=9) == "+j1 +j2"


def test_tetris_puts_unknown_lengths_last() -> None:
    assert plan("tetris", view([job("j1"), job("j2", needs=1000)])) == "+j2 +j1"


def test_tetris_gives_an_elastic_job_its_best_size() -> None:
    """Four workers are the fastest; two have the best ratio of speed to cost."""
    rates = ((1, 1000), (2, 1900), (3, 2200), (4, 2300))
    seen = view([job("j1", 1, on=[("n1", 1)], elastic=(1, 4), rates=rates)])
    assert plan("tetris", seen, size="performance") == "j1=4"
    assert plan("tetris", seen, size="cost") == "j1=2"
    assert plan("tetris", seen) == ""


def test_optimus_grows_whoever_gains_the_most() -> None:
    """Of three more workers the steep one gets two: the flat one's first gains more."""
    steep = ((1, 1000), (2, 2000), (3, 3000), (4, 4000))
    flat = ((1, 1000), (2, 1100), (3, 1150), (4, 1160))
    jobs = [
        job("j1", 1, on=[("n1", 1)], needs=1000, elastic=(1, 4), rates=flat),
        job("j2", 1, on=[("n2", 1)], needs=1000, elastic=(1, 4), rates=steep),
    ]
    begins = Instant(NOW // seconds(600) * seconds(600))
    assert plan("optimus", view(jobs, now=begins)) == "j1=4 j2=4"
    tight = view([*jobs, job("j3", 3)], now=begins)
    assert plan("optimus", tight) == "j1=2 j2=3 +j3"
    assert plan("optimus", view(jobs)) == ""


def test_a_family_has_its_part_only() -> None:
    seen = view(
        [
            job("j1", 3, on=[("n1", 3)], family="cnn"),
            job("j2", 2, family="cnn"),
            job("j3", 1, family="cnn"),
            job("j4", 2, family="rnn"),
        ]
    )
    assert plan("capacity-per-model", seen) == "+j4 ?j2 ?j3"
    assert plan("capacity-per-model", seen, shares=[["cnn", 3], ["rnn", 1]]) == "+j2 +j3 +j4"


def test_who_needs_more_than_its_familys_part_is_told_so_and_holds_up_nobody() -> None:
    seen = view([job("j1", 5, family="cnn"), job("j2", 4, family="cnn"), job("j3", family="rnn")])
    made = make("capacity-per-model", {"shares": [["cnn", 1], ["gan", 1]]}).plan(seen)
    assert told(made) == "+j2 ?j1 ?j3"
    assert [(hold.why, hold.needs) for hold in made.holds] == [
        (Reason.LARGER_THAN_SHARE, "5 GPUs, and 4 are for 'cnn'"),
        (Reason.LARGER_THAN_SHARE, "1 GPUs, and 0 are for 'rnn'"),
    ]


def test_min_min_and_weighted_fair() -> None:
    """The second was submitted an hour later and is shorter by so much that it is due first."""
    late = Instant(NOW - seconds(3600))
    seen = view(
        [
            job("j1", needs=4000, submitted_at=Instant(NOW - seconds(7200))),
            job("j2", needs=1000, submitted_at=late),
        ]
    )
    assert plan("min-min", seen) == "+j2 +j1"
    assert plan("weighted-fair", seen, weight=0.9) == "+j1 +j2"


def test_yarn_takes_back_what_a_queue_has_beyond_its_part() -> None:
    """Whoever is preempted is on the node where the fewest GPUs have to be cleared, not younger."""
    queues = {"queues": [["a", 1], ["b", 1]]}
    mine = {"queue": "a"}
    seen = view(
        [
            job("j1", 2, on=[("n1", 2)], labels=mine),
            job("j2", 1, on=[("n2", 1)], labels=mine),
            job("j3", 1, on=[("n2", 1)], labels=mine),
            job("j4", 2, on=[("n1", 2)], labels=mine),
            job("j5", 4, hard=True, labels={"queue": "b"}),
        ]
    )
    assert plan("yarn-cs", seen, **queues) == "-j3 -j2 +j5@n2"
    assert plan("yarn-cs", seen) == ""


def test_yarn_is_first_come_first_served_within_a_queue() -> None:
    seen = view([job("j1", 6, on=[("n1", 4), ("n2", 2)]), job("j2", 4), job("j3", 1)])
    assert plan("yarn-cs", seen) == ""


def halves(*jobs: JobView, nodes: int = 2, size: int = 4) -> list[str]:
    """Return what two queues with equal parts lead to, until all who are stopped have left."""
    policy = make("yarn-cs", {"queues": [["a", 1], ["b", 1]], "label": "user"})
    seen = view(jobs, nodes=nodes, size=size)
    plans = [shown(policy, seen)]
    leaving = list(plans[0].actions)
    while leaving:
        seen = leave(begin(plans[-1], seen), leaving.pop(0))
        plans.append(shown(policy, seen))
    return [told(each) for each in plans]


def queued_as(name: str, gpus: int, user: str, **more: Any) -> JobView:
    return job(name, gpus, labels={"user": user}, **more)


def test_yarn_stops_nobody_else_while_a_plan_is_carried_out() -> None:
    """Who had to leave has the first of what is his queue's; priorities have their own parts."""
    back = [
        queued_as("j1", 1, "a", on=[("n1", 1)]),
        queued_as("j3", 2, "b", priority=5, hard=True),
        queued_as("j4", 2, "a", on=[("n2", 2)]),
        queued_as("j5", 1, "b", on=[("n3", 1)], phase=Phase.RESERVED),
        queued_as("j6", 1, "b"),
    ]
    assert halves(*back, nodes=3, size=2) == ["-j1 +j3@n1", "+j3@n1 +j1@n3"]
    lower = [
        queued_as("j1", 4, "a", on=[("n1", 4)]),
        queued_as("j2", 8, "b", workers=4, priority=5),
        queued_as("j3", 4, "b", on=[("n2", 4)]),
        queued_as("j7", 2, "a", priority=5),
    ]
    assert halves(*lower) == ["-j3 +j7@n2", "+j7@n2"]
    spread = [
        queued_as("j2", 3, "a", priority=5),
        queued_as("j4", 2, "a", workers=1, on=[("n1", 2)]),
        queued_as("j5", 2, "b", workers=1),
        queued_as("j7", 3, "a", on=[("n2", 3)]),
    ]
    assert halves(*spread) == ["-j4 +j2@n1,n2 +j5@n1", "+j5@n1"]


def test_gandiva_keeps_sizes_apart() -> None:
    """A pair goes where pairs are, then to an empty node, then anywhere (algorithm 1)."""
    pair, single = job("j1", 2, on=[("n1", 2)]), job("j2", 1, on=[("n2", 1)])
    assert plan("gandiva", view([pair, single, job("j3", 2)], nodes=3)) == "+j3@n1"
    assert plan("gandiva", view([pair, single, job("j3", 4)], nodes=3)) == "+j3@n3"
    assert plan("gandiva", view([pair, single, job("j3", 3)], nodes=2)) == "+j3@n2"


def test_gandiva_places_a_job_while_another_is_on_a_node_that_is_not_shown() -> None:
    """A VC sees the nodes where it can have something: not one where others have it all."""
    assert plan("gandiva", view([job("j1", 1, on=[("n9", 1)]), job("j2")], nodes=1)) == "+j2@n1"


def test_gandiva_takes_turns_when_there_are_too_many() -> None:
    there = [
        job("j1", on=[("n1", 1)], ran=100, since=100),
        job("j2", on=[("n1", 1)], ran=30, since=30),
    ]
    seen = view([*there, job("j3")], nodes=1, size=2)
    assert plan("gandiva", seen) == "-j1 +j3@n1"
    fresh = view(
        [there[1], job("j3"), job("j4", on=[("n1", 1)], ran=10, since=10)], nodes=1, size=2
    )
    waits = shown(make("gandiva"), fresh)
    assert told(waits) == ""
    assert waits.look_at == NOW + seconds(30)


def test_gandiva_stops_nobody_who_cannot_be_suspended() -> None:
    there = job("j1", on=[("n1", 1)], ran=100, since=100, can=())
    assert plan("gandiva", view([there, job("j2")], nodes=1, size=1)) == ""


@pytest.mark.parametrize("name", sorted(registry.POLICIES))
def test_every_policy_says_where_it_is_from(name: str) -> None:
    policy = make(name)
    assert policy.source
    assert (type(policy).__doc__ or "").strip()


@pytest.mark.parametrize(
    "name, options, text",
    [
        ("tiresias-l", {"thresholds": [5, 3]}, "each more than the one before"),
        ("tiresias-l", {"starvation": -1}, "0 or more"),
        ("tiresias-l", {"thresholds": []}, "at least one"),
        ("tiresias-l", {"thresholds": [float("inf")]}, "thresholds.*finite"),
        ("tiresias-l", {"starvation": float("nan")}, "starvation.*finite"),
        ("tiresias-l", {"starvation": -1e300}, "starvation.*finite"),
        ("tiresias-g", {"quantum": 1e-10}, "quantum is GPU-seconds, 1 or more"),
        ("tiresias-g", {"samples": [1, float("nan")]}, "samples.*finite"),
        ("tiresias-g", {"samples": [3, -5]}, "samples are GPU-seconds, 0 or more: not -5"),
        ("yarn-cs", {"queues": [["a", 1], ["a", 1]]}, "queues name 'a' twice"),
        ("yarn-cs", {"label": ""}, "it is empty"),
        ("drf", {"by": ""}, "it is empty"),
        ("capacity-per-model", {"shares": [["a", 1], ["a", 2]]}, "shares name 'a' twice"),
        ("min-min", {"factor": -1}, "factor is a multiple"),
        ("weighted-fair", {"factor": -1}, "factor is a multiple"),
        ("las", {"round_s": 0}, "round_s is seconds, 1 or more"),
        ("las", {"round_s": 1e-10}, "round_s is seconds, 1 or more"),
        ("las", {"round_s": float("inf")}, "round_s.*finite"),
        ("dsif", {"delays": -1}, "0 or more"),
        ("weighted-fair", {"weight": 2}, "0 to 1"),
        ("capacity-per-model", {"shares": [["cnn", 0]]}, "more than 0"),
        ("capacity-per-model", {"shares": [["cnn", float("nan")]]}, "shares.*finite"),
        ("yarn-cs", {"queues": [["a", -1]]}, "more than 0"),
        ("gandiva", {"slice_s": 0.5}, "slice_s is seconds, 1 or more"),
        ("gandiva", {"weights": [["a", 0]]}, "more than 0"),
        ("gandiva", {"weights": [["a", 1], ["a", 2]]}, "weights name 'a' twice"),
        ("gandiva", {"label": ""}, "it is empty"),
        ("tetris", {"shortness": -1}, "0 or more"),
        ("optimus", {"every_s": 1e-10}, "every_s is seconds, 1 or more"),
        ("srtf", {"placse": True}, "did you mean places"),
        ("tiresas-l", {}, "did you mean tiresias-l"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    name: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(registry.NoPolicy, match=text):
        make(name, options)


@pytest.mark.parametrize(
    "name", [name for name, kind in POLICIES.items() if kind.__module__.startswith("skep.policy.")]
)
def test_a_job_on_a_node_that_nobody_can_use_is_no_obstacle(name: str) -> None:
    """As where a node has gone bad, or others own it since, while the job still runs there."""
    there = job("j1", on=[("n9", 1)], since=10, ran=10)
    plan = make(name).plan(view([there, job("j2"), job("j3", 2)]))
    assert {turn.job for turn in plan.turns} <= {"j2", "j3"}
