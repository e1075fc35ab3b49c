"""Which right each route of the gateway takes. What is not here, people may not do."""

from __future__ import annotations

from skep.access.rights import Action

ACTIONS: dict[tuple[str, str], Action] = {
    ("GET", "/v1/jobs"): Action.SEE_JOBS,
    ("POST", "/v1/jobs"): Action.SUBMIT,
    ("GET", "/v1/jobs/{job}"): Action.SEE_JOBS,
    ("DELETE", "/v1/jobs/{job}"): Action.CANCEL,
    ("POST", "/v1/jobs/{job}/{ask}"): Action.CHANGE,
    ("POST", "/v1/plan"): Action.ASK_WHAT_IF,
    ("GET", "/v1/jobs/{job}/why"): Action.SEE_JOBS,
    ("GET", "/v1/jobs/{job}/curve"): Action.SEE_JOBS,
    ("GET", "/v1/jobs/{job}/events"): Action.SEE_JOBS,
    ("GET", "/v1/jobs/{job}/trace"): Action.SEE_JOBS,
    ("GET", "/v1/jobs/{job}/blame"): Action.SEE_JOBS,
    ("GET", "/v1/jobs/{job}/logs"): Action.READ_LOGS,
    ("GET", "/v1/events"): Action.SEE_JOBS,
    ("GET", "/v1/searches"): Action.SEE_JOBS,
    ("POST", "/v1/searches"): Action.SEARCH,
    ("GET", "/v1/searches/{search}"): Action.SEE_JOBS,
    ("DELETE", "/v1/searches/{search}"): Action.STEER_SEARCH,
    ("POST", "/v1/searches/{search}/trials"): Action.STEER_SEARCH,
    ("POST", "/v1/searches/{search}/trials/{trial}"): Action.STEER_SEARCH,
    ("POST", "/v1/searches/{search}/trials/{trial}/{do}"): Action.STEER_SEARCH,
    ("GET", "/v1/limits"): Action.SEE_REPORTS,
    ("GET", "/v1/blame"): Action.SEE_REPORTS,
    ("GET", "/v1/calibration"): Action.SEE_REPORTS,
    ("GET", "/v1/models"): Action.SEE_REPORTS,
    ("GET", "/v1/models/{model}"): Action.SEE_REPORTS,
    ("GET", "/v1/promises"): Action.SEE_REPORTS,
    ("GET", "/v1/trials"): Action.SEE_REPORTS,
    ("GET", "/v1/vcs"): Action.SEE_REPORTS,
    ("GET", "/v1/vcs/{vc}/usage"): Action.SEE_REPORTS,
    ("GET", "/v1/usage"): Action.SEE_REPORTS,
    ("GET", "/v1/nodes"): Action.SEE_CLUSTER,
    ("GET", "/v1/gpus"): Action.SEE_CLUSTER,
    ("GET", "/v1/cells"): Action.SEE_CLUSTER,
    ("GET", "/v1/cells.svg"): Action.SEE_CLUSTER,
    ("POST", "/v1/cells/plan"): Action.SET_VCS,
    ("POST", "/v1/admin/vcs"): Action.SET_VCS,
    ("POST", "/v1/admin/drain"): Action.MANAGE_NODES,
    ("POST", "/v1/admin/quarantine"): Action.MANAGE_NODES,
    # What is one's own, every person may see and change; of others the handlers rule.
    ("GET", "/v1/whoami"): Action.MANAGE_TOKENS,
    ("GET", "/v1/people"): Action.MANAGE_TOKENS,
    ("GET", "/v1/audit"): Action.MANAGE_TOKENS,
    ("GET", "/v1/tokens"): Action.MANAGE_TOKENS,
    ("POST", "/v1/tokens"): Action.MANAGE_TOKENS,
    ("POST", "/v1/tokens/{token}/revoke"): Action.MANAGE_TOKENS,
    ("POST", "/v1/logout"): Action.MANAGE_TOKENS,
    ("POST", "/v1/bus-keys"): Action.SUBMIT,
    ("POST", "/v1/people/{do}"): Action.MANAGE_PEOPLE,
    ("POST", "/v1/roles/{do}"): Action.MANAGE_VC_PEOPLE,
    ("GET", "/v1/join-tokens"): Action.MANAGE_NODES,
    ("POST", "/v1/join-tokens"): Action.MANAGE_NODES,
    ("POST", "/v1/join-tokens/{token}/revoke"): Action.MANAGE_NODES,
    ("GET", "/v1/members"): Action.MANAGE_NODES,
    ("POST", "/v1/members/{kind}/{name}/remove"): Action.MANAGE_NODES,
}
"""The right by method and route. A handler holds it against the job or the VC that it is about."""

OF_ITS_SERVICE: frozenset[tuple[str, str]] = frozenset()
"""Routes whose right another service holds against what is asked: the gateway only passes it on."""
