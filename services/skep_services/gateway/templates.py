"""`/v1/templates`: the templates of virtual clusters, and managers that set and remove them."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.ids import is_token
from skep.wire import codec
from skep.wire.reasons import Reason
from skep.wire.template_facts import AskRemoveTemplate, TemplateAsk, parse_template_ask
from skep_services.gateway import bodies
from skep_services.gateway.api import ApiError, caller_of, check, json_response, wrong_vc
from skep_services.gateway.callers import covers
from skep_services.gateway.index import Indexer
from skep_services.gateway.scopes import tenants
from skep_services.gateway.submit import NO_RIGHT, Submitter, refused

OPERATOR, MANAGERS = "operator", "managers"


class TemplateBody(bodies.Body, frozen=True, kw_only=True):
    """A template, as a cluster file says it: `fixed` are paths that no job may say otherwise."""

    spec: dict[str, Any]
    fixed: tuple[str, ...] = ()
    about: str = ""


class Templates:
    """The handlers."""

    def __init__(self, indexer: Indexer, submitter: Submitter) -> None:
        self._indexer, self._submitter = indexer, submitter

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        one = "/v1/templates/{vc}/{name}"
        return [
            web.get("/v1/templates", self.listing, allow_head=False),
            web.put(one, self.put),
            web.delete(one, self.delete),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the templates of the caller's virtual clusters, or those of `vc` alone.

        Raises:
            tenants: An ApiError: `vc` is no name (400), or another tenant's (403).
        """
        only, fold, rows = tenants(request), self._indexer.fold, []
        for vc, config in sorted(fold.state.cells.cluster.vcs.items()):
            if not covers(only, vc):
                continue
            own = fold.templates.of_vc.get(vc, {})
            for name in sorted({**config.templates, **own}):
                row: dict[str, Any] = {"name": name, "vc": vc}
                if name in config.templates:
                    rows.append({**row, **_said(config.templates[name]), "of": OPERATOR})
                    continue
                managed = own[name]
                row |= {**_said(managed.template), "of": MANAGERS}
                rows.append({**row, "by": managed.by, "set_at": managed.at})
        return json_response({"templates": rows})

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Set a template of a virtual cluster's managers.

        Raises:
            ApiError: The body is wrong (400, 413, 422), the caller is no manager (403), there is no
                such virtual cluster (404), or the bus does not take it (503).
            refused: An ApiError (409 or 422): admission refuses it.
        """
        vc, name = self._place(request)
        body = await bodies.read(request, TemplateBody)
        wish = {"ask": "set-template", "name": name, "template": msgspec.to_builtins(body)}
        ask = parse_template_ask(codec.encode(wish))
        if ask is None or isinstance(ask, list):
            problems = ask or []
            reason = problems[0].reason if problems else Reason.BAD_VALUE
            raise refused(422, reason, problems, None)
        return await self._answer(request, vc, ask)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Remove a template of a virtual cluster's managers.

        Raises:
            ApiError: The caller is no manager (403), there is no such virtual cluster (404), or the
                bus does not take it (503).
            refused: An ApiError (404 or 409): there is no such template, or it is the operator's.
        """
        vc, name = self._place(request)
        return await self._answer(request, vc, AskRemoveTemplate(name=name))

    def _place(self, request: web.Request) -> tuple[str, str]:
        """Return the virtual cluster and the name that a request is about.

        Raises:
            ApiError: One is no name (400), the caller is no manager (403), or there is no such
                virtual cluster (404).
            wrong_vc: An ApiError (403): the caller sees nothing of it.
        """
        vc, name = request.match_info["vc"], request.match_info["name"]
        if not is_token(vc) or not is_token(name):
            text = "a template is /v1/templates/VC/NAME, with names of letters, digits, _ and -"
            raise ApiError(400, Reason.BAD_VALUE, text)
        caller = caller_of(request)
        if not caller.may(vc):
            raise wrong_vc(caller, vc)
        check(Action.MANAGE_TEMPLATES, caller, vc)
        if vc not in self._indexer.fold.state.cells.cluster.vcs:
            raise ApiError(404, Reason.UNKNOWN_VC, f"there is no virtual cluster {vc}")
        return vc, name

    async def _answer(self, request: web.Request, vc: str, ask: TemplateAsk) -> web.StreamResponse:
        fold = self._indexer.fold

        def seen(number: int) -> bool:
            kept = fold.templates.of_vc.get(vc, {}).get(ask.name)
            if isinstance(ask, AskRemoveTemplate):
                return kept is None or kept.number > number
            return kept is not None and kept.number >= number

        verdict = await self._submitter.template(caller_of(request), vc, ask, seen)
        if verdict is not None and not verdict.accepted:
            raise refused(_status(verdict.reason), verdict.reason, verdict.problems, None)
        accepted = True if verdict is not None else None
        answer = {"vc": vc, "name": ask.name, "accepted": accepted}
        return json_response(answer, 200 if accepted else 202)


def _status(reason: Reason | None) -> int:
    if reason in NO_RIGHT:
        return 403
    if reason in (Reason.UNKNOWN_TEMPLATE, Reason.UNKNOWN_VC):
        return 404
    taken = (Reason.TEMPLATE_OF_OPERATOR, Reason.TOO_MANY_TEMPLATES)
    return 409 if reason in taken else 422


def _said(template: Any) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(template)
    return {"fixed": [], "about": "", **said}
