"""`/v1/models`: what mini-batches of models took, from the advisor's log, and what is borrowed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from skep.estimates.calibration import Calibration
from skep.perf.profiles import Curve, Measured, Place, Profiles, Tenants
from skep.wire import codec
from skep.wire.estimates import EstimateJudged
from skep.wire.following import StageSet
from skep.wire.profile import ProfileMeasured
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.api import ApiError, json_response
from skep_services.gateway.index import one_by_one
from skep_services.gateway.intake import Intake
from skep_services.gateway.scopes import tenant
from skep_services.ports import Delivery

LISTED_MAX = 1_000
"""Models in one answer, by name: a table that a person reads has fewer."""
SLICE = 32
"""Records taken over before others may run."""


class ModelsView:
    """All that was measured, rebuilt from the advisor's log at every start."""

    def __init__(self, intake: Intake) -> None:
        """Begin without anything; `intake` counts what cannot be read."""
        self.profiles = Tenants()
        self.calibration = Calibration()
        self.stages: dict[tuple[str, str], StageSet] = {}
        """By VC and learned model: its latest stage there."""
        self._intake = intake

    async def deliver(self, delivery: Delivery) -> None:
        """Take over a record."""
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        if isinstance(event, codec.Unreadable):
            self._intake.refused(delivery, event.text)
            return
        for each in one_by_one(event):
            self._intake.take(delivery, partial(self.apply, each))
        if delivery.sequence % SLICE == 0:
            await asyncio.sleep(0)

    def apply(self, facts: codec.Facts) -> None:
        """Take over a record's facts."""
        for fact in facts.facts:
            if isinstance(fact, ProfileMeasured):
                self.profiles.apply(fact)
            elif isinstance(fact, EstimateJudged):
                self.calibration.apply(fact)
            elif isinstance(fact, StageSet):
                self.stages[fact.vc, fact.model] = fact

    def seen_by(self, vc: str) -> Profiles:
        """Return what the jobs of a VC measured; of all, if it is empty.

        Args:
            vc: Its name. How fast the jobs of others go, and what they are, is theirs.
        """
        if vc:
            return self.profiles.of(vc)
        found = Profiles()
        for fact in self.profiles.facts():
            found.apply(fact)
        return found


class Models:
    """The handlers of `/v1/models`."""

    def __init__(self, view: ModelsView) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/models", self.listing, allow_head=False),
            web.get("/v1/models/{model}", self.show, allow_head=False),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer what was measured, without what is borrowed.

        Raises:
            ApiError: A query parameter is wrong (400), or names another tenant's VC (403).
        """
        profiles = self._view.seen_by(tenant(request))
        keys = profiles.models()
        found = [shown(profiles, Curve(key, profiles.measured(key))) for key in keys[:LISTED_MAX]]
        return json_response({"models": found, "left_out": max(0, len(keys) - LISTED_MAX)})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer one model on each type of GPU, with what it borrows from another.

        Raises:
            ApiError: Nothing was measured of it (404), or the request is wrong (400, 403).
        """
        profiles = self._view.seen_by(tenant(request))
        name = request.match_info["model"]
        found = [
            shown(profiles, profiles.curve(key)) for key in profiles.models() if key[0] == name
        ]
        if not found:
            raise ApiError(404, Reason.UNKNOWN_MODEL, f"nothing was measured of {name!r}")
        return json_response({"models": found})


def shown(profiles: Profiles, curve: Curve) -> dict[str, Any]:
    """Return a model as it is answered.

    Args:
        profiles: What it was measured in.
        curve: The model on a type of GPU.
    """
    name, gpu_type = curve.key
    fingerprint = profiles.looks(curve.key).fingerprint
    source = curve.source
    return {
        "model": name,
        "gpu_type": gpu_type,
        "fingerprint": None if fingerprint is None else msgspec.to_builtins(fingerprint),
        "measured": [_point(each) for each in curve.own],
        "borrowed": [{**_place(place), "step_ns": step_ns} for place, step_ns in curve.borrowed],
        "borrowed_from": None
        if source is None
        else {
            "model": source.name,
            "gpu_type": source.gpu_type,
            "why": source.why,
            "text": f"borrowed from {source.name}: {TEXT[source.why]}",
            "distance": round(source.distance, 3),
        },
    }


def _place(place: Place) -> dict[str, Any]:
    return place._asdict()


def _point(each: Measured) -> dict[str, Any]:
    return {
        **_place(each.place),
        "p10_ns": each.p10_ns,
        "p50_ns": each.p50_ns,
        "p90_ns": each.p90_ns,
        "jobs": each.jobs,
        "samples": each.samples,
        "spread_milli": each.spread_milli,
    }
