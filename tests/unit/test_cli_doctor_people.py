"""What `skep doctor` says about people: each check, well and ill."""

from __future__ import annotations

from typing import Any

import pytest

from skep_services.cli import doctor_people
from skep_services.cli.checks import FAIL, OK, WARN, Check
from skep_services.cli.client import Client, Target
from tests.cli_kit import fake_gateway

NOW = 1_800_000_000.0
DAY_NS = 86_400 * 10**9


def person(name: str, **changes: Any) -> dict[str, Any]:
    plain = {"login": "local", "disabled": False, "operator": False, "roles": {}}
    return {"person": name, **plain, **changes}


def token(person: str, days: float, state: str = "valid") -> dict[str, Any]:
    expires_at = int(NOW * 10**9 + days * DAY_NS)
    return {"person": person, "state": state, "expires_at": expires_at}


def checks(**changes: Any) -> dict[str, tuple[str, str]]:
    """Return level and text of each check, of a cluster in which all is well but for `changes`."""
    well = {
        "operator": True,
        "people": [person("ada", operator=True), person("mia", roles={"nlp": "manager"})],
        "tokens": [token("ada", 30), token("mia", 2), token("mia", 30)],
        "vcs": [{"vc": "nlp"}],
        "provider": {"issuer": "https://id", "ok": True, "text": "", "ahead_s": 0.4},
    }
    told = {**well, **changes}
    with fake_gateway() as gateway:
        gateway.on("GET /v1/people", {"people": told["people"]})
        gateway.on("GET /v1/whoami", {"operator": told["operator"]})
        gateway.on("GET /v1/tokens", {"tokens": told["tokens"]})
        gateway.on("GET /v1/vcs", {"vcs": told["vcs"]})
        gateway.on("GET /v1/provider", told["provider"])
        client = Client(Target(gateway.url, "op", "test"), 1.0)
        found: list[Check] = list(doctor_people.people_checks(client, NOW))
    assert all(bool(check.todo) == (check.level != OK) for check in found), found
    return {check.name: (check.level, check.text) for check in found}


def test_where_all_is_well_each_has_a_line() -> None:
    found = checks()
    assert list(found) == ["logins", "operators", "managers", "tokens of people"]
    assert {level for level, _ in found.values()} == {OK}
    assert found["operators"][1] == "ada"


def test_it_is_for_operators_and_says_little_where_nobody_is() -> None:
    assert checks(operator=False) == {}
    found = checks(people=[person("eve", disabled=True)])
    assert found["people"][0] == OK
    assert "operators" not in found


@pytest.mark.parametrize(
    "changes, name, level, text",
    [
        (
            {"provider": {"issuer": "https://id", "ok": False, "text": "x", "ahead_s": None}},
            "logins",
            FAIL,
            "https://id: x",
        ),
        (
            {"provider": {"issuer": "https://id", "ok": True, "text": "", "ahead_s": -90.0}},
            "clock of logins",
            WARN,
            "-90 s between the provider and the gateway",
        ),
        (
            {"people": [person("mia", roles={"nlp": "manager"})]},
            "operators",
            WARN,
            "no person is, there is the operator's token only",
        ),
        (
            {"vcs": [{"vc": "nlp"}, *({"vc": f"v{number}"} for number in range(6))]},
            "managers",
            WARN,
            "none in v0, v1, v2, v3, v4 and 1 more",
        ),
        (
            {"tokens": [token("ada", 30), token("mia", 2.5), token("mia", 90, "revoked")]},
            "tokens of people",
            WARN,
            "the last one ends soon: mia (in 2 days)",
        ),
    ],
)
def test_what_is_amiss_has_a_line_and_a_remedy(
    changes: dict[str, Any], name: str, level: str, text: str
) -> None:
    assert checks(**changes)[name] == (level, text)


def test_who_logs_in_at_a_provider_needs_no_token_to_get_another() -> None:
    mia = person("mia", roles={"nlp": "manager"}, login="oidc")
    found = checks(people=[person("ada", operator=True), mia], tokens=[token("mia", 1)])
    assert found["tokens of people"][0] == OK
