"""Mechanism by phase by victim: whatever dies while a part changes, it is answered and stands so.

The happening number at which something dies goes through all of them, so every state that lies
between two effects is met: with the agent dying, and with either rank.
"""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.wire.commands import (
    Change,
    ChangeJob,
    Checkpoint,
    Move,
    RankPlan,
    Resize,
    Resume,
    Share,
    Suspend,
    Target,
)
from skep.wire.node import Manner
from skep.wire.part_facts import Stand
from tests import effort
from tests.kit import bind, plans, stop
from tests.rank_world import World

CAN = ("checkpoint", "migrate", "release", "resize", "share", "suspend")
ONE, TWO = "j1.1.0", "j1.1.1"
GANG = bind(ranks=plans((0,), (1,)), world=2)
TARGETS = tuple(Target(rank=rank, host="h", port=9, token="s") for rank in (0, 1))
GROWN = Resize(
    generation=1,
    world=3,
    ranks=(*GANG.ranks, RankPlan(rank=2, local_rank=2, devices=(2,))),
    master_address="10.0.0.1",
    master_port=1,
)
SHRUNK = Resize(
    generation=1, world=1, ranks=GANG.ranks[:1], master_address="10.0.0.1", master_port=1
)

MECHANISMS: dict[str, tuple[Change, ...]] = {
    "suspend": (Suspend(), Resume()),
    "release": (Suspend(release=True), Resume()),
    "checkpoint": (Checkpoint(),),
    "move": (Move(targets=TARGETS), Resume()),
    "move suspended": (Suspend(release=True), Move(targets=TARGETS), Resume()),
    "move undone": (Suspend(), Move(targets=TARGETS), Suspend(), Resume()),
    "grow": (GROWN,),
    "shrink": (SHRUNK,),
    "share": (Share(share=0.5, beside=("j2",)), Share()),
    "share asleep": (Suspend(release=True), Share(share=0.25, beside=("j2",)), Resume()),
}
TOGETHER = ("suspend", "release", "checkpoint", "share")
"""What several processes of a rank can do as one."""

CRASH_AT_MAX = 140
"""Happenings that a mechanism may take: every one of the first so many is a moment to die in."""
STRIDE = 3
"""The distance between the moments that `make test-all` takes; `make test` takes fewer."""


def judge(world: World) -> None:
    """Assert that part, trees and ranks agree, once nothing is under way."""
    world.run(lambda: not (world.calls or world.answers))
    if world.exited is not None:
        world.run(lambda: not world.ranks)
        return
    part = world.part
    assert part.changing is None
    frozen = {token: rank.frozen for token, rank in world.ranks.items()}
    assert set(frozen.values()) == {part.stands_frozen}, (frozen, part.stand)
    if part.stand is Stand.SUSPENDED:
        assert all(rank.stands is not None for rank in world.ranks.values())
        assert len({rank.steps for rank in world.ranks.values()}) == 1
    if part.stand is Stand.RUNNING:
        assert part.share_due is False
        shares = {rank.share for rank in world.ranks.values()}
        assert shares == {part.command.share}, (shares, part.command)
        assert world.training(), "\n".join(world.story[-80:])
    world.decide.check_replay()
    again = world.decide.make()
    for fact in world.decide.machine.snapshot():
        again.apply(fact)
    again.check()


def play(
    mechanism: str, at: int, victim: Callable[[World], None], seed: int, parts: int = 1
) -> World:
    """Do what a mechanism consists of, and let the victim die at happening `at`."""
    world = World(GANG, CAN, seed, parts)
    world.run(lambda: len(world.ranks) == 2 * parts and world.part.known is not None)
    assert world.training()
    return play_on(world, MECHANISMS[mechanism], at, victim)


def play_on(
    world: World, changes: tuple[Change, ...], at: int, victim: Callable[[World], None]
) -> World:
    dies_at = world.turns + at
    for change in changes:
        command = world.ask(change)
        world.send(command)
        dead = False
        while world.answer_to(command) is None and world.exited is None:
            if not dead and world.turns >= dies_at:
                dead = True
                victim(world)
            world.turn(command)
        if dead:
            dies_at = 10**9
        if world.exited is not None:
            break
        judge(world)
    return world


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_undisturbed_every_mechanism_does_what_it_is_for(mechanism: str) -> None:
    for seed in range(5):
        world = play(mechanism, 10**8, World.crash, seed)
        assert [one.manner for one in world.told] == [Manner.BOUNDARY] * len(world.told)
        judge(world)
        assert world.part.stand is Stand.RUNNING
        ranks = {"grow": 3, "shrink": 1}.get(mechanism, 2)
        world.run(partial(_has_ranks, world, ranks))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_agent_dies(mechanism: str) -> None:
    for at in range(0, CRASH_AT_MAX, effort.stride(STRIDE)):
        world = play(mechanism, at, World.crash, seed=at)
        judge(world)
        assert world.exited is None or world.part.broken


def test_a_successor_that_is_suspended_stands_whenever_the_agent_dies() -> None:
    """It has its state and is the job, of somebody who had it stand: it trains when resumed."""
    moved = bind(ranks=plans((0,), (1,)), world=2, awaits="secret")
    for at in range(0, CRASH_AT_MAX, effort.stride(STRIDE)):
        world = World(moved, CAN, seed=at)
        world.run(partial(_has_told, world, "started", "known", "ready"))
        for rank in world.ranks.values():
            rank.load()
        world.run(partial(_has_told, world, "loaded"))
        play_on(world, (Suspend(release=True), Resume()), at, World.crash)
        assert {one.manner for one in world.told} == {Manner.BOUNDARY}
        assert world.part.stand is Stand.RUNNING


@pytest.mark.parametrize("token", [ONE, TWO])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_rank_dies(mechanism: str, token: str) -> None:
    for at in range(0, CRASH_AT_MAX, effort.stride(STRIDE)):
        world = play(mechanism, at, lambda world: world.kill(token), seed=at)
        judge(world)
        if world.exited is not None:
            assert not world.ranks


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_it_is_stopped_and_the_agent_dies(mechanism: str) -> None:
    def stops(world: World) -> None:
        world.order += 1
        world.send(stop(order=world.order))
        if world.turns % 2:
            world.crash()

    for at in range(0, CRASH_AT_MAX, effort.stride(STRIDE)):
        world = play(mechanism, at, stops, seed=at)
        judge(world)
        if world.exited is not None:
            assert not world.ranks


@pytest.mark.parametrize("mechanism", TOGETHER)
def test_ranks_of_several_processes_do_it_too(mechanism: str) -> None:
    for seed in range(5):
        world = play(mechanism, 10**8, World.crash, seed, parts=2)
        assert [one.manner for one in world.told] == [Manner.BOUNDARY] * len(world.told)
        assert world.part.known.known.can == ("checkpoint", "release", "share", "suspend")


@pytest.mark.parametrize("victim", [World.crash, World.cut])
@pytest.mark.parametrize("mechanism", TOGETHER)
def test_among_several_processes_the_agent_dies_or_one_is_cut_off(
    mechanism: str, victim: Callable[[World], None]
) -> None:
    for at in range(0, CRASH_AT_MAX, effort.stride(STRIDE)):
        world = play(mechanism, at, victim, seed=at, parts=2)
        assert world.exited is None
        judge(world)


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    Suspend(),
                    Suspend(release=True),
                    Resume(),
                    Checkpoint(),
                    Move(targets=TARGETS),
                    Share(share=0.5, beside=("j2",)),
                    Share(),
                ]
            ),
            st.lists(st.integers(0, 60), max_size=3),
        ),
        max_size=6,
    ),
)
@settings(deadline=None)
def test_any_changes_with_any_crashes(seed: int, steps: list[tuple[Change, list[int]]]) -> None:
    world = World(GANG, CAN, seed)
    world.run(lambda: len(world.ranks) == 2 and world.part.known is not None)
    for change, crashes in steps:
        command = world.ask(change)
        world.send(command)
        for pause in crashes:
            for _ in range(pause):
                world.turn(command)
            world.crash()
        world.run(partial(_is_answered, world, command), command)
        judge(world)
    assert world.changed(Resume()) is not None
    judge(world)
    assert world.part.stand is Stand.RUNNING


def _has_told(world: World, *names: str) -> bool:
    return all(getattr(world.part, name) is not None for name in names)


def _has_ranks(world: World, count: int) -> bool:
    return len(world.ranks) == count


def _is_answered(world: World, command: ChangeJob) -> bool:
    return world.answer_to(command) is not None
