"""The one table of rights: which role may do what, to its own things and to others'.

Gateway and admission decide by it, `docs/reference/rights.md` is generated from it, and tests try
every route and every subject of the bus by it. A person acts in a virtual cluster (VC) by its role
there; an operator has all rights in all of them. What is not of a VC needs the operator, or is a
person's own.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from skep.wire.reasons import Reason
from skep.wire.roles import Role


class Scope(StrEnum):
    """What an action is about: it says which role counts, and what is one's own."""

    JOB = "job"
    """A job or a search. It is its owner's."""
    VC = "vc"
    """A virtual cluster as a whole. It is nobody's own."""
    PERSON = "person"
    """What belongs to one person, whatever its roles."""
    CLUSTER = "cluster"
    """The cluster. A role in any VC counts for what all may see."""


class Action(StrEnum):
    """Something that a person may want to do. Codes are stable: the audit log has them."""

    SEE_JOBS = "see-jobs"
    SEE_VALUES = "see-values"
    READ_LOGS = "read-logs"
    ASK_WHAT_IF = "ask-what-if"
    SUBMIT = "submit"
    CANCEL = "cancel"
    ENTER = "enter"
    CHANGE = "change"
    PRIORITISE = "prioritise"
    SEARCH = "search"
    STEER_SEARCH = "steer-search"
    SEE_CLUSTER = "see-cluster"
    SEE_REPORTS = "see-reports"
    MANAGE_VC_PEOPLE = "manage-vc-people"
    MANAGE_VC_SECRETS = "manage-vc-secrets"
    MANAGE_TEMPLATES = "manage-templates"
    RESERVE = "reserve"
    SEE_VC_AUDIT = "see-vc-audit"
    MANAGE_TOKENS = "manage-tokens"
    MANAGE_SECRETS = "manage-secrets"
    SET_VCS = "set-vcs"
    MANAGE_NODES = "manage-nodes"
    MAINTAIN = "maintain"
    MANAGE_PEOPLE = "manage-people"
    SEE_AUDIT = "see-audit"


class Right(msgspec.Struct, frozen=True):
    """The least role that may do something, to what is one's own and to what is another's.

    `own` None: having it is enough, whatever the role. `text` goes on after "may".
    """

    scope: Scope
    own: Role | None
    others: Role
    text: str


RIGHTS: dict[Action, Right] = {
    # Of jobs. A viewer sees what runs, as with `squeue`; what a job prints and the values of its
    # environment are its owner's, as files are.
    Action.SEE_JOBS: Right(
        Scope.JOB, Role.VIEWER, Role.VIEWER, "see jobs and searches, and why they wait"
    ),
    Action.SEE_VALUES: Right(
        Scope.JOB, Role.VIEWER, Role.MANAGER, "see the values in a job's environment"
    ),
    Action.READ_LOGS: Right(
        Scope.JOB, Role.VIEWER, Role.MANAGER, "read the logs and the outputs of a job"
    ),
    Action.ASK_WHAT_IF: Right(
        Scope.JOB, Role.VIEWER, Role.VIEWER, "ask what would start a job that waits"
    ),
    Action.SUBMIT: Right(
        Scope.JOB, Role.SUBMITTER, Role.SUBMITTER, "submit jobs, and ask what would become of one"
    ),
    Action.CANCEL: Right(Scope.JOB, Role.SUBMITTER, Role.MANAGER, "cancel a job"),
    # Who runs commands in a job can do all that its owner can: read its secrets, end it.
    Action.ENTER: Right(
        Scope.JOB, Role.SUBMITTER, Role.OPERATOR, "run commands or connect to ports in a job"
    ),
    Action.CHANGE: Right(
        Scope.JOB,
        Role.SUBMITTER,
        Role.MANAGER,
        "suspend, resume, checkpoint, migrate, resize, pack, unpack, hold or release a job",
    ),
    Action.PRIORITISE: Right(
        Scope.JOB, Role.SUBMITTER, Role.MANAGER, "change the priority of a waiting job"
    ),
    Action.SEARCH: Right(Scope.JOB, Role.SUBMITTER, Role.SUBMITTER, "begin searches"),
    Action.STEER_SEARCH: Right(
        Scope.JOB,
        Role.SUBMITTER,
        Role.MANAGER,
        "cancel a search, or ask for, tell, demote or promote its trials",
    ),
    # Of virtual clusters.
    Action.SEE_REPORTS: Right(
        Scope.VC, Role.VIEWER, Role.VIEWER, "see usage, promises and other reports of a VC"
    ),
    Action.MANAGE_VC_PEOPLE: Right(
        Scope.VC, Role.MANAGER, Role.MANAGER, "give and take the roles of people in a VC"
    ),
    Action.MANAGE_VC_SECRETS: Right(
        Scope.VC, Role.MANAGER, Role.MANAGER, "set and delete the secrets of a VC"
    ),
    Action.MANAGE_TEMPLATES: Right(
        Scope.VC, Role.MANAGER, Role.MANAGER, "set and remove the templates of a VC"
    ),
    Action.RESERVE: Right(Scope.VC, Role.MANAGER, Role.MANAGER, "reserve GPUs of a VC for a time"),
    Action.SEE_VC_AUDIT: Right(
        Scope.VC, Role.MANAGER, Role.MANAGER, "see the audit log of a VC's people"
    ),
    # Of people.
    Action.MANAGE_TOKENS: Right(
        Scope.PERSON, None, Role.OPERATOR, "make, list and revoke a person's tokens"
    ),
    Action.MANAGE_SECRETS: Right(
        Scope.PERSON, None, Role.OPERATOR, "set and delete a person's secrets"
    ),
    # Of the cluster.
    Action.SEE_CLUSTER: Right(
        Scope.CLUSTER, Role.VIEWER, Role.VIEWER, "see nodes, GPUs and the cells of its VCs"
    ),
    Action.SET_VCS: Right(
        Scope.CLUSTER, Role.OPERATOR, Role.OPERATOR, "set virtual clusters and their cells"
    ),
    Action.MANAGE_NODES: Right(
        Scope.CLUSTER,
        Role.OPERATOR,
        Role.OPERATOR,
        "let nodes join, drain and remove them, and quarantine GPUs",
    ),
    Action.MAINTAIN: Right(
        Scope.CLUSTER, Role.OPERATOR, Role.OPERATOR, "set maintenance windows of the cluster"
    ),
    Action.MANAGE_PEOPLE: Right(
        Scope.CLUSTER, Role.OPERATOR, Role.OPERATOR, "add and remove people and operators"
    ),
    Action.SEE_AUDIT: Right(
        Scope.CLUSTER, Role.OPERATOR, Role.OPERATOR, "see the audit log of the cluster"
    ),
}

assert set(RIGHTS) == set(Action), "every action has its right"


class Ruling(msgspec.Struct, frozen=True):
    """Whether something is allowed; where not, why, and which role (in `vc`) would be enough."""

    allowed: bool
    reason: Reason | None = None
    text: str = ""
    needs: Role | None = None
    vc: str = ""

    def __bool__(self) -> bool:
        """Return whether it is allowed."""
        return self.allowed


ALLOWED = Ruling(True)


def may(action: Action, role: Role | None, *, own: bool = False, vc: str = "") -> Ruling:
    """Rule on an action.

    Args:
        action: What somebody wants to do.
        role: The role in the VC that it is about, or of the cluster (the highest of any VC counts
            for what all may see); None: none.
        own: Whether the job, the search or the person it is about is the actor's own. A submission
            is.
        vc: The VC, for the text; empty: none.

    Returns:
        That it is allowed; or a refusal with its reason, and the role that would be enough.
    """
    right = RIGHTS[action]
    needed = right.own if own else right.others
    if needed is None or (role is not None and role.covers(needed)):
        return ALLOWED
    where = f" of VC {vc}" if vc and needed is not Role.OPERATOR else ""
    has = f"it takes the role {needed}{where} to {right.text}"
    if role is None and needed is not Role.OPERATOR:
        return Ruling(False, Reason.NO_ROLE, f"{has}; you have no role there", needed, vc)
    theirs = not own and right.own is not None and role is not None and role.covers(right.own)
    if theirs and right.own is not right.others:
        text = f"it takes the role {needed}{where} to {right.text} that is another's"
        return Ruling(False, Reason.NOT_ITS_OWNER, f"{text}; you are {role}", needed, vc)
    mine = f"; you are {role}" if role is not None else ""
    return Ruling(False, Reason.ROLE_TOO_LOW, f"{has}{mine}", needed, vc)
