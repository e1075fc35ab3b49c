"""Subjects: built by functions, taken apart by `parse`, and what tenants may have answered to."""

import pytest

from skep.wire import subjects
from skep.wire.subjects import Parsed


@pytest.mark.parametrize(
    "subject, parsed",
    [
        (subjects.submit("nlp"), Parsed("submit", "nlp", "")),
        (subjects.cancel("nlp"), Parsed("cancel", "nlp", "")),
        (subjects.submit("nlp", "ann"), Parsed("submit", "nlp", "ann")),
        (subjects.cancel("nlp", "ann"), Parsed("cancel", "nlp", "ann")),
        (subjects.ask("nlp", "ann"), Parsed("ask", "nlp", "ann")),
        (subjects.search("nlp", "ann"), Parsed("search", "nlp", "ann")),
        (subjects.admin("vcs"), Parsed("admin", "vcs", "")),
        (subjects.node_event("node-1", "joined"), Parsed("node", "node-1", "joined")),
        (subjects.command("node-1"), Parsed("cmd", "node-1", "")),
        (subjects.heartbeat("node-1"), Parsed("heartbeat", "node-1", "")),
        (subjects.report("node-1"), Parsed("report", "node-1", "")),
        (subjects.finding("stall"), Parsed("finding", "stall", "")),
        (subjects.span("agent"), Parsed("span", "agent", "")),
        (subjects.logs("node-1"), Parsed("logs", "node-1", "")),
        (subjects.health("node-node-1"), Parsed("health", "node-node-1", "")),
        (subjects.ADMISSION_FACTS, Parsed("fact", "admission", "")),
        (subjects.ALLOC_FACTS, Parsed("fact", "allocator", "")),
        (subjects.ADVICE_QUEUE, Parsed("advice", "queue", "")),
    ],
)
def test_every_subject_can_be_taken_apart(subject: str, parsed: Parsed) -> None:
    assert subjects.parse(subject) == parsed


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "skep",
        "skep.v1.submit",
        "skep.v2.submit.a",
        "other.v1.submit.a",
        "skep.v1.node.a.b.c",
        "skep.v1.submit..ann",
        "skep.v1.submit.nlp.",
        "skep.v1.submit.nlp.ann.x",
        "_INBOX.x.y.z",
    ],
)
def test_other_subjects_are_not_ours(subject: str) -> None:
    assert subjects.parse(subject) is None


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    return len(wanted) == len(given) and all(
        w in {"*", g} for w, g in zip(wanted, given, strict=True)
    )


@pytest.mark.parametrize(
    "subject, stream",
    [
        (subjects.submit("nlp"), subjects.SUBMIT),
        (subjects.cancel("nlp"), subjects.SUBMIT),
        (subjects.search("nlp"), subjects.SUBMIT),
        (subjects.submit("nlp", "ann"), subjects.SUBMIT),
        (subjects.search("nlp", "ann"), subjects.SUBMIT),
        (subjects.admin("drain"), subjects.ADMIN),
        (subjects.node_event("node-1", "exited"), subjects.NODE),
        (subjects.ADMISSION_FACTS, subjects.ADMISSION),
        (subjects.ALLOC_FACTS, subjects.ALLOC),
        (subjects.SEARCH_FACTS, subjects.SEARCH),
        (subjects.command("node-1"), None),
        (subjects.report("node-1"), None),
        (subjects.heartbeat("node-1"), None),
        (subjects.finding("rates"), None),
        (subjects.ADVICE_QUEUE, None),
    ],
)
def test_each_subject_is_kept_by_one_stream_or_by_none(subject: str, stream: str | None) -> None:
    keepers = [
        name
        for name, patterns in subjects.STREAMS.items()
        if any(_matches(pattern, subject) for pattern in patterns)
    ]
    assert keepers == ([stream] if stream else [])


@pytest.mark.parametrize(
    "pattern, subject",
    [
        (subjects.FINDINGS, subjects.finding("rates")),
        (subjects.HEARTBEATS, subjects.heartbeat("node-1")),
        (subjects.REPORTS, subjects.report("node-1")),
        (subjects.SPANS, subjects.span("agent")),
    ],
)
def test_patterns_match_what_they_are_for(pattern: str, subject: str) -> None:
    assert _matches(pattern, subject)


@pytest.mark.parametrize(
    "subject", ["_INBOX.vc-nlp.x1.y2", "skep.v1.reply.nlp.7", subjects.reply("nlp", "gateway-1.2")]
)
def test_verdicts_go_to_a_tenants_own_inboxes(subject: str) -> None:
    assert subjects.reply_allowed(subject, "nlp")


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX.vc-cv.x",
        "_INBOX.operator.x",
        "_INBOX.gateway.x",
        "_INBOX.node-node-1.x",
        "_INBOX.vc-nlp",
        "_INBOX.vc-nlp.",
        "_INBOX.vc-nlp..x",
        "_INBOX.vc-nlp-2.x",
        "_INBOX.vc-nlp.*",
        "_INBOX.vc-nlp.>",
        "_INBOX.vc-nlp.a b",
        "_INBOX.vc-nlp.a\x0bb",
        "_INBOX.vc-nlp.a\u00a0b",
        "_INBOX.vc-nlp.a\r\nPUB x 0",
        "_INBOX.vc-nlp.a\n",
        "_INBOX.vc-nlp." + "x" * 256,
        "skep.v1.reply.cv.7",
        "skep.v1.reply.nlp",
        "skep.v1.reply.nlp.",
        "skep.v1.reply.nlp-2.7",
        "skep.v1.cmd.node-1",
        "skep.v1.submit.nlp",
        "$SYS.REQ.SERVER.PING",
    ],
)
def test_admission_speaks_nowhere_else_for_a_tenant(subject: str) -> None:
    assert not subjects.reply_allowed(subject, "nlp")


@pytest.mark.parametrize(
    "subject",
    ["_INBOX.vc-nlp.ann.x1.y2", "skep.v1.reply.nlp.ann.7", subjects.reply("nlp", "g-1.2", "ann")],
)
def test_verdicts_go_to_a_persons_own_inboxes(subject: str) -> None:
    assert subjects.reply_allowed(subject, "nlp", "ann")
    assert not subjects.reply_allowed(subject, "nlp", "bob")
    assert not subjects.reply_allowed(subject, "nlp", "an")
    assert not subjects.reply_allowed(subject, "cv", "ann")


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX.vc-nlp.x1.y2",
        "_INBOX.vc-nlp.ann",
        "_INBOX.vc-nlp.ann.",
        "_INBOX.vc-nlp.ann.*",
        "_INBOX.vc-nlp.anna.x",
        "_INBOX.vc-nlp.Ann.x",
        "_INBOX.vc-nlp.bob.ann.x",
        "_INBOX.vc-cv.ann.x",
        "skep.v1.reply.nlp.7",
        "skep.v1.reply.nlp.ann",
        "skep.v1.reply.nlp.bob.ann.7",
        "skep.v1.reply.ann.nlp.7",
    ],
)
def test_admission_speaks_nowhere_else_for_a_person(subject: str) -> None:
    assert not subjects.reply_allowed(subject, "nlp", "ann")
