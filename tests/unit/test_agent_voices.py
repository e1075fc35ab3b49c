"""Several processes of one rank are heard as one."""

from typing import Any

import pytest

from skep.machines.agent.rank_processes import Voices, merged
from skep.wire import talk
from skep.wire.reports import RankProgress
from skep.wire.talk import Said

TOKEN = "j1.1.0"
WHO: dict[str, Any] = {"job": "j1", "attempt": 1, "rank": 0}


def by(part: int, kind: type[Any], **fields: Any) -> Any:
    return kind(**WHO, part=part, **fields)


def two() -> Voices:
    """Return the voices of a rank whose two processes have greeted."""
    voices = Voices()
    for part in range(2):
        hello = by(part, talk.Hello, token=TOKEN, parts=2)
        assert voices.heard(TOKEN, hello) == hello
    return voices


def both_say(kind: type[Any], one: dict[str, Any], other: dict[str, Any]) -> Said | None:
    voices = two()
    assert voices.heard(TOKEN, by(0, kind, **one)) is None, "the other one has not said it"
    return voices.heard(TOKEN, by(1, kind, **other))


def test_a_process_alone_is_its_rank() -> None:
    voices = Voices()
    for message in (by(0, talk.Hello, token=TOKEN), by(0, talk.Suspended, order=1, step=2)):
        assert voices.heard(TOKEN, message) is message
    assert voices.count(TOKEN) == 1
    assert not voices.stands(TOKEN)


def test_a_rank_can_do_what_all_its_processes_can_do_as_one() -> None:
    can = ("suspend", "release", "checkpoint", "migrate", "rebind", "resize", "share")
    one, other = {"tier": "cooperative", "can": can}, {"tier": "observed", "can": can[:2]}
    assert both_say(talk.Can, one, one) == by(
        0, talk.Can, tier="cooperative", can=("checkpoint", "release", "share", "suspend")
    )
    assert both_say(talk.Can, one, other) == by(
        0, talk.Can, tier="observed", can=("release", "suspend")
    )


@pytest.mark.parametrize(
    "kind, one, other, sum_",
    [
        (talk.Suspended, {"step": 7}, {"step": 7}, {"step": 7}),
        (talk.Past, {"step": 7}, {"step": 9}, {"step": 9}),
        (
            talk.Released,
            {"moved": 3, "residue": 1},
            {"moved": 4, "residue": 2},
            {"moved": 7, "residue": 3},
        ),
        (talk.Released, {"moved": 3, "residue": 1}, {"moved": 4}, {"moved": 7, "residue": -1}),
        (
            talk.Resumed,
            {"step": 7, "pause_ns": 4},
            {"step": 7, "pause_ns": 5},
            {"step": 7, "pause_ns": 5},
        ),
        (
            talk.Shared,
            {"share": 0.5, "used": 2},
            {"share": 0.5, "used": 3},
            {"share": 0.5, "used": 5},
        ),
        (
            talk.Checkpointed,
            {"step": 7, "bytes": 2, "path": "a"},
            {"step": 7, "bytes": 3, "path": "a"},
            {"step": 7, "bytes": 5, "path": "a"},
        ),
    ],
)
def test_all_have_answered_once_each_has(
    kind: type[Any], one: dict[str, Any], other: dict[str, Any], sum_: dict[str, Any]
) -> None:
    assert both_say(kind, {"order": 3, **one}, {"order": 3, **other}) == by(
        0, kind, order=3, **sum_
    )


def test_who_stands_elsewhere_than_the_others_has_failed_to_stop() -> None:
    said = both_say(talk.Suspended, {"order": 3, "step": 7}, {"order": 3, "step": 8})
    text = "its processes stand after different mini-batches: [7, 8]"
    assert said == by(0, talk.Failed, order=3, what="suspend", error=text)


def test_one_failure_is_that_of_all_and_says_if_others_did_it() -> None:
    voices = two()
    voices.heard(TOKEN, by(0, talk.Resumed, order=3, step=7))
    failed = by(1, talk.Failed, order=3, what="resume", error="no memory")
    assert voices.heard(TOKEN, failed) == by(
        0, talk.Failed, order=3, what="resume", error="process 1: no memory", partly=True
    )


def test_answers_to_different_orders_are_no_answer() -> None:
    voices = two()
    assert voices.heard(TOKEN, by(0, talk.Suspended, order=3, step=7)) is None
    assert voices.stands(TOKEN)
    assert voices.heard(TOKEN, by(1, talk.Resumed, order=4, step=7)) is None
    assert voices.heard(TOKEN, by(1, talk.Suspended, order=3, step=7)) is None, "overtaken"
    resumed = voices.heard(TOKEN, by(0, talk.Resumed, order=4, step=7))
    assert resumed == by(0, talk.Resumed, order=4, step=7)
    assert not voices.stands(TOKEN)


def test_a_process_that_comes_back_says_again_how_it_stands() -> None:
    voices = two()
    for part in range(2):
        voices.heard(TOKEN, by(part, talk.Suspended, order=3, step=7))
    voices.heard(TOKEN, by(1, talk.Hello, token=TOKEN, parts=2))
    assert voices.heard(TOKEN, by(1, talk.Can, can=("suspend",))) is None
    again = voices.heard(TOKEN, by(1, talk.Suspended, order=3, step=7))
    assert again == by(0, talk.Suspended, order=3, step=7)
    voices.drop(TOKEN)
    assert voices.count(TOKEN) == 1


def test_processes_that_are_of_no_number_are_heard_as_any_other() -> None:
    voices = two()
    stranger = by(2, talk.Suspended, order=3, step=7)
    assert voices.heard(TOKEN, stranger) is None
    for hello in (by(0, talk.Hello, token=TOKEN, parts=1), by(5, talk.Hello, parts=3)):
        voices.heard(TOKEN, hello)
        assert voices.count(TOKEN) == 1


def test_a_rank_is_as_far_as_its_slowest_process() -> None:
    ahead = RankProgress(rank=0, steps=9, step_ns=5, memory=10, values={"loss": 1.0}, values_step=8)
    behind = RankProgress(rank=0, steps=8, step_ns=6, memory=20)
    assert merged([ahead]) == ahead
    assert merged([ahead, behind]) == RankProgress(
        rank=0, steps=8, step_ns=6, memory=30, values={"loss": 1.0}, values_step=8
    )
