"""What the rules promise in any view: sizes settle, and no gang is spread before its time."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skep.policy.capacity import fewest_nodes
from skep.policy.plan import Resize
from skep.policy.registry import make
from skep.policy.schedulers.hold import ideal
from skep.policy.view import VcView
from skep.units import Instant, seconds
from tests.policy_kit import brief, carry_out, told
from tests.property.test_policies import PLANS_MAX, views


@settings(max_examples=200)
@given(seen=views(), power=st.sampled_from([-1, 0, 1]), pause=st.sampled_from([0, 30]))
def test_sizes_settle_in_an_instant(seen: VcView, power: float, pause: float) -> None:
    jobs = tuple(replace(job, pause=seconds(pause)) for job in seen.jobs)
    seen = replace(seen, now=Instant(seen.now // seconds(300) * seconds(300)), jobs=jobs)
    policy = make("look-ahead", {"power": power, "pause_s": 0})
    story = []
    for _ in range(PLANS_MAX + 1):
        plan = policy.plan(seen)
        story.append(f"{brief(seen)} -> {told(plan)}")
        assert all(isinstance(action, Resize) for action in plan.actions)
        if not plan.actions:
            return
        seen = carry_out(plan, seen)
        assert seen.free >= 0
    raise AssertionError("\n".join(story))


@settings(max_examples=200)
@given(seen=views(), relax=st.sampled_from([0, 5, 100]), narrower=st.booleans())
def test_no_gang_is_spread_before_its_time(seen: VcView, relax: float, narrower: bool) -> None:
    plan = make("hold", {"relax": relax, "drain": 0, "narrower": narrower}).plan(seen)
    jobs = {job.job: job for job in seen.jobs}
    for turn in plan.turns:
        job = jobs[turn.job]
        if turn.workers:
            each = job.gpus // job.workers
            job = replace(job, workers=turn.workers, gpus=turn.workers * each)
        waited = seen.now - job.waiting_since
        close = len(turn.nodes) <= fewest_nodes(job, seen)
        assert close or job.at_home or waited >= relax * ideal(job), f"{brief(seen)} {told(plan)}"
    assert {job.job for job in seen.jobs} >= {hold.job for hold in plan.holds}
