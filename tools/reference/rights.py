"""The page of rights: which role may do what, and which routes of the gateway take which right."""

from __future__ import annotations

from skep.access.rights import RIGHTS, Action, Scope
from skep.wire.roles import Role
from skep_services.gateway.route_rights import ACTIONS
from tools.reference.markdown import code, docstring, page, table

TITLES = {
    Scope.JOB: "Jobs and searches",
    Scope.VC: "Virtual clusters",
    Scope.PERSON: "What is a person's",
    Scope.CLUSTER: "The cluster",
}


def text() -> str:
    """Return the page."""
    blocks = [
        "A person has a role in each virtual cluster (VC), or none. Admission, the searches service"
        " and the gateway decide by this table"
        " (`libs/skep/access/rights.py`). The VC as a whole, with its own"
        " credentials, is a manager of it.",
        "## Roles",
        docstring(Role),
    ]
    for scope in Scope:
        blocks += [f"## {TITLES[scope]}", _rights(scope)]
    routes = [[method, code(path), code(action)] for (method, path), action in ACTIONS.items()]
    blocks += [
        "## Routes of the gateway",
        "What is not here answers without a token, or is for operators only.",
        table(["method", "path", "right"], routes),
    ]
    return page("Rights", *blocks)


def _rights(scope: Scope) -> str:
    rows = [
        [code(action), right.text, _least(right.own), _least(right.others)]
        for action, right in RIGHTS.items()
        if right.scope is scope
    ]
    if scope in {Scope.JOB, Scope.PERSON}:
        return table(["right", "to", "what is one's own", "what is another's"], rows)
    return table(["right", "to", "least role"], [row[:3] for row in rows])


def _least(role: Role | None) -> str:
    return "any person" if role is None else str(role)


assert {right.scope for right in RIGHTS.values()} == set(TITLES), "every scope has its title"
assert set(ACTIONS.values()) <= set(Action)
