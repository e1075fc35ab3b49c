"""What a request is about: which virtual clusters, whose jobs, and how much of them shows."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from skep.ids import is_token
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep_services.gateway.api import ApiError, caller_of, number, wrong_vc
from skep_services.gateway.callers import Caller, Only

HIDDEN_VALUE = "(hidden)"
"""What shows of a value in the environment of a job that is another's."""


def tenants(request: web.Request) -> Only:
    """Return the VCs that a request may look at: the `vc` it names, or all that its caller sees.

    Raises:
        ApiError: `vc` is no name (400).
        wrong_vc: An ApiError (403): the caller sees nothing of it.
    """
    caller: Caller = caller_of(request)
    vc = request.query.get("vc", "")
    if vc and not is_token(vc):
        raise ApiError(400, Reason.BAD_VALUE, "`vc` must be a VC's name")
    if vc and not caller.may(vc):
        raise wrong_vc(caller, vc)
    return vc or caller.sees


def tenant(request: web.Request) -> str:
    """Return the one VC that a request may look at, as `tenants`; empty: all.

    Raises:
        ApiError: The caller sees several VCs, and the request names none (400).
    """
    found = tenants(request)
    if isinstance(found, str):
        return found
    if len(found) == 1:
        return found[0]
    text = f"you have roles in {', '.join(found)}: say which one, by `vc`"
    raise ApiError(400, "which-vc", text)


def owner_in(request: web.Request) -> str:
    """Return the person whose jobs are asked for: `owner`, or with `mine` the caller; empty: all.

    Raises:
        ApiError: It is no name, or the caller is no person (400).
    """
    owner = request.query.get("owner", "")
    if owner and not is_token(owner):
        raise ApiError(400, Reason.BAD_VALUE, "`owner` must be the name of a person")
    if number(request, "mine", 0):
        owner = caller_of(request).person
        if not owner:
            text = "this token is no person's: no jobs are its own; say `owner`"
            raise ApiError(400, Reason.BAD_VALUE, text)
    return owner


def without_values(spec: Any) -> Any:
    """Return a spec in which the values of the environment do not show."""
    if isinstance(spec, JobSpec):
        return msgspec.structs.replace(spec, env=dict.fromkeys(spec.env, HIDDEN_VALUE))
    if isinstance(spec, msgspec.Raw):
        spec = msgspec.json.decode(spec)
    if not isinstance(spec, dict):
        return None  # What is no spec was never admitted.
    env = spec.get("env")
    return {**spec, "env": dict.fromkeys(env, HIDDEN_VALUE)} if isinstance(env, dict) else spec
