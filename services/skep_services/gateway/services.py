"""`/v1/services`: the services by the log of searches, and what is asked of them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import structlog
from aiohttp import web

from skep.access.rights import Action
from skep.machines.searches.serving.state import Replica, Service
from skep.wire import codec
from skep.wire.bounds import INSTANT_MAX, UNDECODABLE
from skep.wire.parse import PROBLEMS_MAX
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchVerdict
from skep.wire.service import ServiceSpec, parse_service, service_id
from skep.wire.service_facts import ServiceOver
from skep.wire.spec import SPEC_BYTES_MAX
from skep_services.gateway.api import ApiError, caller_of, check, json_response, number
from skep_services.gateway.front import Front, Load, where
from skep_services.gateway.jobs import WAIT_S, WAIT_S_MAX
from skep_services.gateway.scopes import tenants, without_values
from skep_services.gateway.searches import STATES, SearchesView
from skep_services.gateway.submit import NO_RIGHT, Submitter, submits, too_large
from skep_services.gateway.watch import Watch

log = structlog.get_logger(service="gateway")

SHOWN_S = 2.0
"""Until a verdict's fact is here, which was stored before it was sent."""
WAITS = ("ready", "over", "change")


class ScaleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many replicas a service is to have."""

    replicas: int


class Services:
    """The handlers."""

    def __init__(
        self, view: SearchesView, watch: Watch, submitter: Submitter, front: Front
    ) -> None:
        self._view, self._watch, self._submitter, self._front = view, watch, submitter, front

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/services", self.listing, allow_head=False),
            web.post("/v1/services", self.begin),
            web.get("/v1/services/{service}", self.show, allow_head=False),
            web.put("/v1/services/{service}", self.update),
            web.delete("/v1/services/{service}", self.stop),
            web.post("/v1/services/{service}/scale", self.scale),
            *self._front.routes(),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer services without their replicas.

        Raises:
            ApiError: A query parameter is wrong (400), or names another tenant's VC (403).
        """
        vc, state = tenants(request), request.query.get("state", "active")
        if state not in STATES:
            raise ApiError(400, Reason.BAD_VALUE, f"`state` is one of {', '.join(STATES)}")
        found = [self._summary(*one) for one in self._view.services_of(vc, state)]
        return json_response({"services": found})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer a service with its replicas and its spec; `wait` waits until it is so.

        Raises:
            ApiError: There is no such service, or the caller may not see it (404), or a query
                parameter is wrong (400).
        """
        name, may = request.match_info["service"], caller_of(request).may
        service, end = self._view.service(name, may)
        until = request.query.get("wait", "")
        timeout_s = number(request, "timeout_s", WAIT_S, WAIT_S_MAX)
        if until not in ("", *WAITS):
            raise ApiError(400, Reason.BAD_VALUE, f"`wait` is one of {', '.join(WAITS)}")
        seen = number(request, "since", self._seq(service), INSTANT_MAX)

        def reached() -> bool:
            now, over = self._view.service(service.service, may)
            if until == "change":
                return self._seq(now) != seen
            return over is not None or (until == "ready" and _whole(now))

        if until:
            await self._watch.until(service.service, reached, timeout_s)
            service, end = self._view.service(service.service, may)
        spec: Any = service.spec
        if not caller_of(request).ruling(Action.SEE_VALUES, spec.vc, service.owner):
            spec = msgspec.structs.replace(spec, job=without_values(spec.job))
        rows = [self._row(service, each) for each in service.replicas.values()]
        return json_response({**self._summary(service, end), "spec": spec, "rows": rows})

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Begin a service: the body is its spec.

        Raises:
            ApiError: The spec is wrong (413, 422) or another tenant's (403), or the request is
                refused or not answered (400, 409, 503).
        """
        body, spec = await _spec(request)
        submits(Action.SUBMIT, caller_of(request), spec.vc)
        verdict = await self._asked(request, spec.vc, {"do": "serve", "spec": msgspec.Raw(body)})
        name = verdict.search
        await self._watch.until(name, lambda: self._view.knows_service(name), SHOWN_S)
        repeated = verdict.reason is Reason.REPEATED
        return json_response({"service": name, "accepted": True, "repeated": repeated}, 201)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Have a service be as the spec in the body says, one replica after another."""
        service = self._steered(request)
        body, _ = await _spec(request)
        asked = {"do": "update", "service": service.service, "spec": msgspec.Raw(body)}
        return await self._done(request, service, asked)

    async def scale(self, request: web.Request) -> web.StreamResponse:
        """Have a service have so many replicas: `{"replicas": 3}`.

        Raises:
            ApiError: The body is wrong (400), or as `_asked` raises.
        """
        service = self._steered(request)
        try:
            wanted = msgspec.json.decode(await request.read(), type=ScaleBody)
        except UNDECODABLE as error:
            text = f'the body is no `{{"replicas": 3}}`: {error}'
            raise ApiError(400, Reason.BAD_VALUE, text) from None
        asked = {"do": "scale", "service": service.service, "replicas": wanted.replicas}
        return await self._done(request, service, asked)

    async def stop(self, request: web.Request) -> web.StreamResponse:
        """Drain all replicas of a service, and end it."""
        service = self._steered(request)
        return await self._done(request, service, {"do": "stop", "service": service.service})

    async def _done(
        self, request: web.Request, service: Service, asked: dict[str, Any]
    ) -> web.StreamResponse:
        caller, vc = caller_of(request), service.spec.vc
        action = f"{asked['do']} service"
        await self._submitter.note(caller, action, service.service, vc, service.owner)
        await self._asked(request, vc, asked)
        return json_response({"service": service.service, "accepted": True}, 202)

    def _steered(self, request: web.Request) -> Service:
        """Return the service that a request asks something of.

        Raises:
            check: An ApiError (403): it is another's, and the caller may only change its own.
        """
        service = self._view.find_service(request.match_info["service"], caller_of(request).may)
        check(Action.CHANGE, caller_of(request), service.spec.vc, service.owner)
        return service

    async def _asked(self, request: web.Request, vc: str, what: dict[str, Any]) -> SearchVerdict:
        """Publish a request; return the verdict, which accepts it.

        Raises:
            ApiError: The verdict refuses the request (403, 404, 409 or 422), none came in time
                (503), the key is wrong (400), or the bus does not take the request (503).
        """

        def known(number: int, key: str) -> SearchVerdict | None:
            if what["do"] == "serve" and self._view.knows_service(service_id(number)):
                return SearchVerdict(search=service_id(number), accepted=True)
            return None

        key = request.headers.get("Idempotency-Key")
        caller = caller_of(request)
        verdict = await self._submitter.search(caller, vc, codec.encode(what), key, known)
        log.info("service asked", do=what["do"], vc=vc, by=caller.name)
        if verdict is None:
            text = (
                "it is stored, and the service of searches has not answered yet: repeat it with "
                "the same Idempotency-Key"
            )
            raise ApiError(503, "unanswered", text)
        if not verdict.accepted:
            reason = verdict.reason or Reason.BAD_VALUE
            text = verdict.problems[0].text if verdict.problems else str(reason)
            taken = reason in (Reason.SERVICE_EXISTS, Reason.SERVICE_ENDS)
            status = 404 if reason is Reason.UNKNOWN_SERVICE else 409 if taken else 422
            status = 403 if reason in NO_RIGHT else status
            raise ApiError(status, reason, text, verdict.problems)
        return verdict

    def _seq(self, service: Service) -> int:
        return self._view.service_seq.get(service.service, 0)

    def _summary(self, service: Service, end: ServiceOver | None) -> dict[str, Any]:
        """Return a service without its replicas. Loads are those of this gateway."""
        spec, now = service.spec, time.monotonic()
        state = "over" if end is not None else "ending" if service.ending else "active"
        load = self._front.loads.get(service.service, Load())
        revisions = {replica.revision for replica in service.serving}
        return {
            "service": service.service,
            "name": spec.name,
            "vc": spec.vc,
            "owner": service.owner,
            "state": state,
            "why": end.why if end is not None else service.ending or service.why,
            "detail": service.detail,
            "began_at": service.began_at,
            "ended_at": end.at if end is not None else None,
            "revision": service.revision,
            "updating": bool(revisions - {service.revision}),
            "wanted": service.wanted,
            "ready": service.ready,
            "replicas": len(service.replicas),
            "replicas_max": spec.most,
            "scaled_why": service.scaled_why,
            "scaled_at": service.scaled_at or None,
            "seq": self._seq(service),
            "failures": service.failures,
            "requests_per_s": round(load.rate(now), 3),
            "p95_ms": load.p95_ms(now),
            "target_per_s": spec.requests_per_s,
            "latency_ms": spec.latency_ms,
            "open": load.open,
            "waiting": load.waiting,
            "url": f"/v1/services/{spec.vc}.{spec.name}/http/",
        }

    def _row(self, service: Service, replica: Replica) -> dict[str, Any]:
        stand = "ready" if replica.ready else str(replica.stand)
        return {
            "replica": replica.number,
            "job": replica.job,
            "revision": replica.revision,
            "stand": stand if replica.serving else "draining",
            "why": replica.draining,
            "since": replica.since,
            **where(self._front, service, replica),
        }


def _whole(service: Service) -> bool:
    """Return whether a service is as it is to be."""
    current = {replica.revision for replica in service.serving} <= {service.revision}
    return current and service.ready == service.wanted == len(service.serving)


async def _spec(request: web.Request) -> tuple[bytes, ServiceSpec]:
    """Return the spec in a request, as it was sent and as it was read.

    Raises:
        ApiError: It is wrong (422).
        too_large: An ApiError (413).
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large() from None
    if len(body) > SPEC_BYTES_MAX:
        raise too_large()
    parsed = parse_service(body)
    if not isinstance(parsed, ServiceSpec):
        raise ApiError(422, parsed[0].reason, parsed[0].text, parsed[:PROBLEMS_MAX])
    return body, parsed
