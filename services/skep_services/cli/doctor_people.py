"""What `skep doctor` says to operators about people: logins, tokens, operators and managers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from skep_services.cli import render
from skep_services.cli.checks import CLOCK_SKEW_S_MAX, FAIL, OK, WARN, Check
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError

NS_PER_DAY = 86_400 * 10**9
TOKEN_DAYS_ADVISED = 7
"""A week is time enough to make another token."""
SHOWN_MAX = 5
PROVIDER_S = 15.0
"""The gateway asks the provider for two documents, for 5 s each at most."""


def people_checks(client: Client, now: float) -> Iterator[Check]:
    """Yield what is amiss with people, to an operator of a cluster that has them.

    Args:
        client: The gateway, which has accepted the token.
        now: The time in seconds since the epoch.
    """
    try:
        people = client.get("/v1/people")["people"]
        if not client.get("/v1/whoami")["operator"]:
            return
        tokens = client.get("/v1/tokens")["tokens"]
        vcs = [row["vc"] for row in client.get("/v1/vcs")["vcs"]]
        provider = client.get("/v1/provider", PROVIDER_S)
    except CommandError:
        return  # It has no people, or is of an earlier version.
    yield from provider_checks(provider)
    active = [row for row in people if not row["disabled"]]
    if not active:
        yield Check("people", OK, "none yet: skep user add NAME")
        return
    yield operators_check(active)
    yield managers_check(active, vcs)
    yield tokens_check(active, tokens, now)


def provider_checks(told: dict[str, Any]) -> Iterator[Check]:
    """Yield whether the provider that vouches for people answers, and how its clock differs."""
    issuer = told["issuer"]
    if not issuer:
        yield Check("logins", OK, "by tokens: no provider vouches for people")
        return
    if told["ok"]:
        yield Check("logins", OK, f"{issuer} answers the gateway")
    else:
        todo = (
            "nobody can log in; tokens that people have hold on. Look at the provider, at the file "
            "SKEP_OIDC, and at the way from the gateway to it"
        )
        yield Check("logins", FAIL, f"{issuer}: {told['text']}", todo)
    ahead_s = told["ahead_s"]
    if ahead_s is not None and abs(ahead_s) > CLOCK_SKEW_S_MAX:
        todo = "set the gateway's clock by NTP: beyond a minute every login is refused"
        text = f"{ahead_s:+.0f} s between the provider and the gateway"
        yield Check("clock of logins", WARN, text, todo)


def operators_check(people: Sequence[dict[str, Any]]) -> Check:
    """Say which people are operators, beside the operator's token of the gateway's file."""
    found = [row["person"] for row in people if row["operator"]]
    if found:
        return Check("operators", OK, shown(found))
    todo = (
        "all that operators do is done by one token, which the audit log cannot tell apart: "
        "skep role grant NAME operator"
    )
    return Check("operators", WARN, "no person is, there is the operator's token only", todo)


def managers_check(people: Sequence[dict[str, Any]], vcs: Sequence[str]) -> Check:
    """Say which virtual clusters have no person that gives roles in them."""
    managed = {vc for row in people for vc, role in row["roles"].items() if role == "manager"}
    without = [vc for vc in vcs if vc not in managed]
    if not without:
        return Check("managers", OK, "each virtual cluster has one")
    todo = "operators have to give all roles there: skep role grant NAME manager --vc VC"
    return Check("managers", WARN, f"none in {shown(without)}", todo)


def tokens_check(
    people: Sequence[dict[str, Any]], tokens: Sequence[dict[str, Any]], now: float
) -> Check:
    """Say whose last token ends soon, of the people that cannot log in without one.

    Args:
        people: Those that are not disabled.
        tokens: Those of all people.
        now: The time in seconds since the epoch.
    """
    local = {row["person"] for row in people if row["login"] == "local"}
    ends: dict[str, int] = {}
    for token in tokens:
        if token["state"] == "valid" and token["person"] in local:
            ends[token["person"]] = max(ends.get(token["person"], 0), token["expires_at"])
    left = {who: int((at - now * 10**9) / NS_PER_DAY) for who, at in ends.items()}
    soon = sorted((days, who) for who, days in left.items() if days < TOKEN_DAYS_ADVISED)
    if not soon:
        text = f"nobody's last one ends within {TOKEN_DAYS_ADVISED} days"
        return Check("tokens of people", OK, text)
    names = [f"{who} (in {render.plural(max(0, days), 'day')})" for days, who in soon]
    todo = "they make another one while it holds: skep token create NAME"
    return Check("tokens of people", WARN, f"the last one ends soon: {shown(names)}", todo)


def shown(names: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
