"""What the gateway says that a caller may do, against what it rules."""

from __future__ import annotations

from skep.access.rights import RIGHTS, Scope, may
from skep.wire.roles import Role, Standing
from skep_services.gateway.callers import Caller


def test_what_a_caller_may_do_is_what_is_ruled() -> None:
    callers = (
        Caller("operator", ""),
        Caller("vc-nlp", "nlp"),
        *(
            Caller(
                "ada",
                "",
                person="ada",
                standing=Standing(granted={"nlp": role, "vision": Role.VIEWER}),
            )
            for role in Role
            if role is not Role.OPERATOR
        ),
    )
    for caller in callers:
        told = set(caller.rights())
        for action, right in RIGHTS.items():
            if right.scope not in {Scope.JOB, Scope.VC}:
                continue
            for vc in ("nlp", "vision", "other"):
                others = bool(caller.ruling(action, vc, "someone"))
                own = bool(may(action, caller.role(vc), own=True))
                rows = {only for one, where, only in told if one is action and where in {"", vc}}
                assert (False in rows) == others, (caller.name, action, vc)
                assert bool(rows) == (own or others), (caller.name, action, vc)
