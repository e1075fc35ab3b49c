"""NATS subjects and streams, as functions: no other file spells one."""

from __future__ import annotations

import re
from typing import NamedTuple

PREFIX = "skep.v1"

SUBMIT = "SUBMIT"
ADMIN = "ADMIN"
NODE = "NODE"
ADMISSION = "ADMISSION"
ALLOC = "ALLOC"
SEARCH = "SEARCH"
PROFILES = "PROFILES"
ACCESS = "ACCESS"

STREAMS: dict[str, tuple[str, ...]] = {
    SUBMIT: tuple(
        f"{PREFIX}.{kind}.{whose}"
        for whose in ("*", "*.*")
        for kind in ("submit", "cancel", "ask", "search")
    ),
    ADMIN: (f"{PREFIX}.admin.*",),
    NODE: (f"{PREFIX}.node.*.*",),
    ADMISSION: (f"{PREFIX}.fact.admission",),
    ALLOC: (f"{PREFIX}.fact.allocator",),
    SEARCH: (f"{PREFIX}.fact.searches",),
    PROFILES: (f"{PREFIX}.fact.advisor",),
    ACCESS: (f"{PREFIX}.fact.access",),
}
"""The append-only truth: stream name to the subjects it keeps. What is asked of a virtual cluster
is published by it as a whole (`submit.<vc>`), or by one of its people (`submit.<vc>.<person>`)."""

ASKED_OF_VCS = frozenset({"submit", "cancel", "ask", "search"})
"""The kinds of subjects whose second token is a person."""

FACT_STREAMS = (ADMISSION, ALLOC, SEARCH, PROFILES, ACCESS)
"""Written by one service each, and never by anybody outside."""

KEPT = "KEPT"
KEPT_SUBJECTS = (f"{PREFIX}.kept.*.*",)
"""Snapshots beside the truth: `kept`."""

SECRETS = "SECRETS"
SECRET_SUBJECTS = (f"{PREFIX}.secret.>",)
"""Sealed secrets, the latest value of each: `secret`."""
CODE = "CODE"
CODE_SUBJECTS = (f"{PREFIX}.snapshot.*.*.*",)
"""Snapshots of code, the latest of each: `snapshot`."""
SNAPSHOTS = f"{PREFIX}.snapshot.list.*.*"
VAULT_KEY = f"{PREFIX}.secret.vault.key"
"""Where the vault says what secrets are sealed to."""

ADMISSION_FACTS = STREAMS[ADMISSION][0]
ALLOC_FACTS = STREAMS[ALLOC][0]
SEARCH_FACTS = STREAMS[SEARCH][0]
PROFILE_FACTS = STREAMS[PROFILES][0]
ACCESS_FACTS = STREAMS[ACCESS][0]
ACCESS_ASKED = f"{PREFIX}.access"
"""Where the access service takes requests, of the gateway and operators only."""
ADVICE_QUEUE = f"{PREFIX}.advice.queue"
ADVICE_OUTLOOK = f"{PREFIX}.advice.outlook"
ADVICE_LEARNED = f"{PREFIX}.advice.learned"
SIGHTS = f"{PREFIX}.sight.vc"
FINDINGS = f"{PREFIX}.finding.*"
JUDGED = f"{PREFIX}.finding.judged"
SLOWED = f"{PREFIX}.finding.gang-slowed"
MEASURED = f"{PREFIX}.finding.measured"
TRIALS_OPEN = f"{PREFIX}.trial.open"
HEARTBEATS = f"{PREFIX}.heartbeat.*"
REPORTS = f"{PREFIX}.report.*"
SPANS = f"{PREFIX}.span.*"
SERVED = f"{PREFIX}.served.*"
"""What gateways say of services: `served`."""
LATE = f"{PREFIX}.late.replica"
"""Where the service of searches says whose requests take too long."""
REPLIES = f"{PREFIX}.reply.>"
SEARCH_REQUESTS = f"{PREFIX}.search.>"
"""What is asked of searches, by VCs as a whole and by their people."""

NOTIFIER_ASKED = f"{PREFIX}.notifier.ask"
"""Where the notifier takes what gateways ask of it."""

ANY_GATEWAY = "any"
"""Where a node asks that does not know yet which gateway answers."""

ANSWERS = "answers"
"""The token of an inbox behind which a node's name stands: `answers`."""

KEY_HEADER = "Nats-Msg-Id"
REPLY_HEADER = "Skep-Reply"
TRACE_HEADER = "traceparent"

INBOX = re.compile(r"[\w$=-]+(\.[\w$=-]+)+", re.ASCII)
"""A subject without empty tokens, wildcards or spaces: safe to publish on."""
INBOX_CHARACTERS_MAX = 256
"""A client's own inboxes have about 60 characters."""


def submit(vc: str, person: str = "") -> str:
    """Return where a VC's job specs are published, by the VC as a whole or by a person of it."""
    return _asked("submit", vc, person)


def cancel(vc: str, person: str = "") -> str:
    """Return where a VC's cancellations are published, as `submit`."""
    return _asked("cancel", vc, person)


def ask(vc: str, person: str = "") -> str:
    """Return where requests to change a VC's jobs are published, as `submit`."""
    return _asked("ask", vc, person)


def search(vc: str, person: str = "") -> str:
    """Return where a VC's searches are begun, cancelled, asked and told, as `submit`."""
    return _asked("search", vc, person)


def _asked(kind: str, vc: str, person: str) -> str:
    return f"{PREFIX}.{kind}.{vc}.{person}" if person else f"{PREFIX}.{kind}.{vc}"


def admin(verb: str) -> str:
    """Return where operators publish a change."""
    return f"{PREFIX}.admin.{verb}"


def node_event(node: str, event: str) -> str:
    """Return where an agent publishes a durable event."""
    return f"{PREFIX}.node.{node}.{event}"


def command(node: str) -> str:
    """Return where a node's agent takes commands."""
    return f"{PREFIX}.cmd.{node}"


def heartbeat(node: str) -> str:
    """Return where a node's agent says that it lives."""
    return f"{PREFIX}.heartbeat.{node}"


def report(node: str) -> str:
    """Return where a node's agent publishes its one report per second."""
    return f"{PREFIX}.report.{node}"


def finding(kind: str) -> str:
    """Return where the introspector publishes what it saw."""
    return f"{PREFIX}.finding.{kind}"


def served(gateway: str) -> str:
    """Return where a gateway says how the services are whose requests it passes on."""
    return f"{PREFIX}.served.{gateway}"


def kept(stream: str, what: str) -> str:
    """Return where snapshots beside a log are stored, `piece` by piece and then the `whole`."""
    return f"{PREFIX}.kept.{stream}.{what}"


def secret(scope: str, owner: str, name: str) -> str:
    """Return where a secret is kept: `scope` is `vc` or `person`, `owner` its name."""
    return f"{PREFIX}.secret.{scope}.{owner}.{name}"


def snapshot(kind: str, vc: str, digest: str) -> str:
    """Return where a part of a VC's snapshots is kept: a `chunk`, or the `list` of its chunks."""
    return f"{PREFIX}.snapshot.{kind}.{vc}.{digest}"


def snapshot_parts(subject: str) -> tuple[str, str, str]:
    """Return kind, VC and digest of one of CODE's subjects."""
    kind, vc, digest = subject.removeprefix(f"{PREFIX}.snapshot.").split(".")
    return kind, vc, digest


def code(node: str, gateway: str) -> str:
    """Return where a node's agent asks a gateway for code; ANY_GATEWAY: every one of them."""
    return f"{PREFIX}.code.{node}.{gateway}"


def outputs(node: str) -> str:
    """Return where a node answers which files a job left there, and with pieces of them."""
    return f"{PREFIX}.outputs.{node}"


def caches(node: str) -> str:
    """Return where a node answers which environments it keeps, and removes one."""
    return f"{PREFIX}.caches.{node}"


def vault(node: str) -> str:
    """Return where a node's agent asks for the secrets of jobs that it is to run."""
    return f"{PREFIX}.vault.{node}"


def draft(service: str) -> str:
    """Return where a service answers what it would decide, without deciding it."""
    return f"{PREFIX}.draft.{service}"


def span(service: str) -> str:
    """Return where a service publishes finished trace spans."""
    return f"{PREFIX}.span.{service}"


def logs(node: str) -> str:
    """Return where a node answers requests for pieces of job logs."""
    return f"{PREFIX}.logs.{node}"


def terminal(node: str) -> str:
    """Return where a node's agent takes what gateways say in sessions of people (`terminal`)."""
    return f"{PREFIX}.term.{node}"


def session(asker: str, node: str, name: str) -> str:
    """Return where a node's agent says what is for one session of an asker."""
    return f"_INBOX.{asker}.{ANSWERS}.{node}.term-{name}"


def reply(vc: str, asker: str, person: str = "") -> str:
    """Return where verdicts for a VC go to an asker that is not its tenant.

    Args:
        vc: The VC.
        asker: One or more tokens.
        person: The person of the VC for whom it asks; empty: the VC as a whole.
    """
    return f"{PREFIX}.reply.{vc}.{person}.{asker}" if person else f"{PREFIX}.reply.{vc}.{asker}"


def inbox(vc: str, person: str = "") -> str:
    """Return what the inboxes of a tenant, or of a person of it, begin with."""
    return f"_INBOX.vc-{vc}.{person}." if person else f"_INBOX.vc-{vc}."


def answers(asker: str, node: str) -> str:
    """Return where a node's answers go to an asker: no other part of its inbox is the node's."""
    return f"_INBOX.{asker}.{ANSWERS}.{node}.>"


def answering_node(subject: str) -> str:
    """Return the node whose agent answers requests on a subject; empty if none does."""
    parsed = parse(subject)
    if parsed is None or parsed.second:
        return ""
    if parsed.kind in {"logs", "outputs", "caches"}:
        return parsed.first
    return parsed.first.removeprefix("node-") if _of_node(parsed) else ""


def _of_node(parsed: Parsed) -> bool:
    return parsed.kind == "health" and parsed.first.startswith("node-")


def health(identity: str) -> str:
    """Return where a process answers whether it is well."""
    return f"{PREFIX}.health.{identity}"


class Parsed(NamedTuple):
    """A subject taken apart: `skep.v1.<kind>.<first>[.<second>]`."""

    kind: str
    first: str
    second: str


def parse(subject: str) -> Parsed | None:
    """Return the parts of one of Skep's subjects, or None for any other subject."""
    parts = subject.split(".")
    if not 4 <= len(parts) <= 5 or parts[0] != "skep" or parts[1] != "v1" or "" in parts:
        return None
    return Parsed(parts[2], parts[3], parts[4] if len(parts) == 5 else "")


def reply_allowed(subject: str, vc: str, person: str = "") -> bool:
    """Return whether the verdict on what was published for `vc` may be sent to `subject`.

    Admission publishes there with its own rights, and cannot see the asker: a client that may
    publish for a VC is trusted as that VC and no further. So the subject itself must be the VC's,
    its tenant's inbox or its part of the reply subjects: otherwise a tenant could have admission
    speak into another tenant's inbox. Operators and the gateway, which publish for every VC, listen
    on the reply subjects of the VC that they ask for. In the same way a person of a VC is trusted
    as that person: its verdicts go to inboxes and reply subjects that have its name.

    Args:
        subject: Where the asker wants to hear of it.
        vc: The VC that it was published for.
        person: The person that published it; empty: the VC as a whole, to which all of its inboxes
            belong.
    """
    if len(subject) > INBOX_CHARACTERS_MAX or not INBOX.fullmatch(subject):
        return False
    return subject.startswith((inbox(vc, person), reply(vc, "", person)))
