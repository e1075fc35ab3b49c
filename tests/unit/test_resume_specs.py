"""`resume` in a spec: what is refused, what a node is told, what people are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skep.machines.base import Send
from skep.wire import talk
from skep.wire.changes import MemberLearned
from skep.wire.commands import BindJob, ResumeOrder
from skep.wire.node import MemberKnown, Outcome, Tier
from skep.wire.parse import parse_tree
from skep.wire.part_facts import PartKnown
from skep.wire.spec import Resume
from skep.wire.volumes import Mount
from skep_services.agent.resuming import IN_IMAGE, Folders, before
from skep_services.cli.run import resume_of
from tests.change_kit import GANG, running, said
from tests.kit import admitted, allocator, at, bind, exited, facts_of, joined, started

DIGEST = "a" * 64
SCRIPT = {"name": "train", "vc": "nlp", "script": "t.py"}
PLAIN = Folders("/home-of/me", "/state/checkpoints/j1", False, {}, Path("/lib"))


def parsed(**more: Any) -> Any:
    """Return how `resume` was read, or each problem in one line."""
    found = parse_tree({**SCRIPT, **more})
    if isinstance(found, list):
        return [f"{each.path}: {each.text}" for each in found]
    return found.resume


def test_auto_is_short_for_an_object() -> None:
    assert parsed(resume="auto") == parsed(resume={"auto": True}) == Resume(auto=True)
    assert parsed() is None
    assert resume_of(["auto", "ckpt/*.pt"]) == {"auto": True, "find": ["ckpt/*.pt"]}
    assert resume_of([]) == {}


@pytest.mark.parametrize(
    "more, line",
    [
        ({"resume": "yes"}, "$.resume: `resume` must be `auto` or an object, not `yes`"),
        ({"resume": True}, "$.resume: `resume` must be `auto` or an object, not `True`"),
        ({"resume": {"finds": []}}, "$.resume.finds: unknown key `finds`"),
        (
            {"resume": {"find": ["../other/*.pt"]}},
            "$.resume.find[0]: `../other/*.pt` is no pattern in the job's folder or a volume: it "
            "has an empty part, `.` or `..`",
        ),
        (
            {"resume": {"find": ["/etc/*"]}},
            "$.resume.find[0]: `/etc/*` is no pattern in the job's folder or a volume: it begins "
            "with `/`",
        ),
        (
            {"resume": {"find": ["scratch:x/*.pt"]}},
            "$.resume.find[0]: `scratch:x/*.pt`: the job asks for no volume `scratch`",
        ),
        ({"resume": {"find": ["a"] * 17}}, "$.resume.find: `find` must be at most 16 patterns"),
        (
            {"resume": {"args": ["--from"]}},
            "$.resume.args: `args` must have `{checkpoint}`, the path of what was found",
        ),
        (
            {"resume": "auto", "args": ["--from", "{checkpoint}"]},
            "$.args: `{checkpoint}` has no value in a first attempt: it stands in `resume.args` "
            "alone",
        ),
        (
            {"resume": {"args": ["{checkpoint}"]}, "script": None, "command": "./train"},
            "$.resume.args: `args` cannot be added to a command of one line, which a shell reads",
        ),
        (
            {"resume": "auto", "code": DIGEST},
            "$.resume: with `code`, the folder of an attempt is removed when it ends, and its "
            "checkpoints",
        ),
        (
            {"resume": "auto", "elastic": {"min": 1, "max": 1}},
            "$.resume: `resume` finds checkpoints of libraries; a job with `elastic` has "
            "Skep's own",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(more: dict[str, Any], line: str) -> None:
    assert parsed(**more) == [line]


def test_attempts_after_the_first_that_ran_look_for_checkpoints() -> None:
    decide = allocator(joined())
    (first,) = _bound(decide(admitted(1, retries=3, resume=Resume(args=("{checkpoint}",)))))
    assert first.resume is None
    # It ended before it ran: there is nothing to find.
    (second,) = _bound(decide(exited("j1", outcome=Outcome.EXITED)))
    assert second.resume is None
    decide(started("j1", 2))
    (third,) = _bound(decide(exited("j1", 2, outcome=Outcome.EXITED)))
    assert third.resume == ResumeOrder(since=at(5), args=("{checkpoint}",))
    decide(started("j1", 3, at=at(60)))
    (fourth,) = _bound(decide(exited("j1", 3, outcome=Outcome.EXITED)))
    assert fourth.resume == third.resume


def test_an_agent_tells_what_a_rank_says_it_goes_on_from() -> None:
    decide = running(can=None)
    note = "from out/checkpoint-10 in attempt 1 (transformers, step 10)"
    decide(said(talk.Hello, 0, pid=10, token="j1.1.0"))
    decide(said(talk.Hello, 1, pid=11, token="j1.1.1"))
    decide(said(talk.Can, 0, can=("suspend",), resumed=note))
    (fact,) = facts_of(decide(said(talk.Can, 1, can=("suspend",))))
    assert isinstance(fact, PartKnown)
    assert fact.known.resumed == note
    assert facts_of(decide(said(talk.Can, 0, can=("suspend",), resumed=note))) == []

    seat = allocator(joined())
    seat(admitted(1))
    seat(started("j1"))
    known = MemberKnown(
        node="node-1",
        identity="id-node-1",
        job="j1",
        attempt=1,
        tier=Tier.OBSERVED,
        can=(),
        at=at(6),
        resumed=note,
    )
    learned = [each for each in facts_of(seat(known)) if isinstance(each, MemberLearned)]
    assert [each.resumed for each in learned] == [note]


def _bound(effects: list[Any]) -> list[BindJob]:
    sent = [each.message for each in effects if isinstance(each, Send)]
    return [each for each in sent if isinstance(each, BindJob)]


def _asked(command: BindJob, folders: Folders, **order: Any) -> dict[str, Any]:
    argv = before(command, ResumeOrder(since=at(5), **order), ("prog",), folders)
    assert argv[-1] == "prog"
    asked: dict[str, Any] = json.loads(argv[-2])
    return asked


def test_a_node_looks_in_the_folders_of_the_job_alone() -> None:
    alone = bind(attempt=3)
    plain = _asked(alone, PLAIN)
    assert [each["path"] for each in plain["places"]] == ["/home-of/me", "/state/checkpoints/j1"]
    code = bind(attempt=3, code=DIGEST, workdir="src", outputs=("out/",))
    works = {1: "/w/j1/1", 2: "/w/j1/2"}
    kept = _asked(code, PLAIN._replace(works=works, workdir="/w/j1/3/src"))
    assert kept["places"][:2] == [
        {
            "path": f"/w/j1/{n}/src",
            "label": f"attempt {n}",
            "now": "/w/j1/3/src",
            "starts": ["out/"],
        }
        for n in (2, 1)
    ]
    mounts = (Mount(name="scratch", path="/mnt/s", target="/data", mode="rw"),)
    shared = _asked(bind(mounts=mounts), PLAIN, find=("scratch:a/*.pt",), auto=True)
    place = {"path": "/data", "label": "volume scratch", "now": "/data", "patterns": ["a/*.pt"]}
    assert shared["places"] == [place]
    assert (shared["auto"], shared["since"]) == (True, at(5))


def test_a_gang_on_several_nodes_looks_only_where_all_find_the_same() -> None:
    gang = bind(nodes=2, world=2)
    none = _asked(gang, PLAIN)
    assert (none["places"], "only from a volume" in none["hint"]) == ([], True)
    shared = _asked(gang, PLAIN._replace(shared=True))
    assert [each["path"] for each in shared["places"]] == ["/state/checkpoints/j1"]
    elsewhere = _asked(bind(code=DIGEST, outputs=("out/",)), PLAIN)
    assert "no earlier attempt left a folder on this node" in elsewhere["hint"]


def test_an_image_without_python_still_runs_its_command() -> None:
    argv = before(bind(image="i"), ResumeOrder(since=at(5)), ("prog",), PLAIN)
    assert argv[: len(IN_IMAGE)] == IN_IMAGE
    assert GANG.resume is None
