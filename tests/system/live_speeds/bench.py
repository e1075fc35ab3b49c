"""Runs trainings at placements, reads what was measured, and predicts what was not."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from skep.perf.fitted import Fitted, from_fit
from skep.perf.model.placement import Placement, Span
from tests.support.embedded import until
from tests.system.introspect.live import Ears, Live
from tests.system.live_speeds.trainings import GPU_TYPE, Model, Place, spec

LOOK_EVERY_S = 0.5
WITHIN_S = 240.0
FITTED_WITHIN_S = 60.0
"""A model is fitted every 30 s, after what else there is to fit."""
MS = 1e6


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"live-speeds: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Outcome(NamedTuple):
    """A placement that was run: mini-batches in ms, where it was, and how busy the machine was."""

    model: str
    place: Place
    batch: int
    nodes: str
    p10_ms: float
    p50_ms: float
    p90_ms: float
    samples: int
    took_s: float
    load: float


class Predicted(NamedTuple):
    """What was predicted of a placement before it was run (ms), and what that rests on."""

    model: str
    place: Place
    batch: int
    p10_ms: float
    p50_ms: float
    p90_ms: float
    stratum: str
    basis: str
    promised: bool


class Bench:
    """One cluster with nothing else on it; `data` are the digits."""

    def __init__(self, live: Live, ears: Ears, data: Path) -> None:
        """Take the cluster over; `ears` hear what the advisor tells."""
        self.live, self.ears, self.data = live, ears, data
        self.memory = min(each["memory"] for each in live.cluster.get("/v1/nodes")["nodes"])
        self._count = 0

    def measured(self, name: str = "") -> list[dict[str, Any]]:
        """Return what the cluster says of its models, or of one."""
        reply = self.live.cluster.ask("GET", f"/v1/models/{name}" if name else "/v1/models")
        found: list[dict[str, Any]] = reply.body["models"] if reply.status == 200 else []
        return found

    def point(self, model: Model, place: Place) -> dict[str, Any] | None:
        """Return what is measured of a model at a placement; None: nothing yet."""
        wanted = place.gpus, place.nodes, place.batch(model)
        for each in self.measured(model.name):
            for point in each["measured"]:
                at = point["gpus"], point["nodes"], point["batch"]
                if at == wanted and not point["shared"]:
                    return {**point}
        return None

    def run(self, model: Model, place: Place) -> Outcome:
        """Train at a placement until the cluster has measured it."""
        self._count += 1
        name = f"{model.name}-{self._count}"
        words = ["--data", str(self.data), "--until", str(self.live.end(name))]
        began = time.monotonic()
        job = self.live.submit(name, spec(model, place, self.memory, words))

        def look() -> dict[str, Any] | None:
            time.sleep(LOOK_EVERY_S)  # Not more often: the gateway has the same processors.
            return self.point(model, place)

        try:
            point = until(look, f"{name} is measured", WITHIN_S)
        except TimeoutError as error:
            text = f"{error}; it is {job.row['state']}: {self.live.cluster.log(job.job)[-1000:]}"
            raise RuntimeError(text) from None
        nodes, load = job.row["place"], os.getloadavg()[0]
        job.finish()
        ended = self.live.cluster.ended(job.job)
        assert ended["state"] == "succeeded", ended
        return Outcome(
            model.name,
            place,
            place.batch(model),
            nodes,
            point["p10_ns"] / MS,
            point["p50_ns"] / MS,
            point["p90_ns"] / MS,
            point["samples"],
            time.monotonic() - began,
            load,
        )

    def fit(self, model: Model) -> Fitted:
        """Return what the advisor has fitted, once all that is measured of the model is in it."""
        points = sum(len(each["measured"]) for each in self.measured(model.name))

        def look() -> Fitted | None:
            time.sleep(LOOK_EVERY_S)
            return (
                fit
                if (fit := self._heard(model)) and fit.parameters.seen.points >= points
                else None
            )

        try:
            return until(look, f"{model.name} is fitted", FITTED_WITHIN_S)
        except TimeoutError:
            fit = self._heard(model)  # One that would predict the same is not told again.
            if fit is None:
                raise
            return fit

    def _heard(self, model: Model) -> Fitted | None:
        for seen in reversed(self.ears.seen):
            for fit in getattr(seen.message, "fits", ()):
                if fit.family == model.name and fit.gpu_type == GPU_TYPE:
                    return from_fit(fit)
        return None

    def span(self, model: Model, place: Place) -> Span:
        """Return what the advisor predicts a mini-batch to take."""
        batch = place.batch(model)
        return self.fit(model).at(Placement(GPU_TYPE, place.gpus, place.nodes, batch))


def predicted(model: Model, place: Place, span: Span) -> Predicted:
    """Return a prediction as it is written down."""
    return Predicted(
        model.name,
        place,
        place.batch(model),
        span.p10 / MS,
        span.p50 / MS,
        span.p90 / MS,
        span.stratum,
        span.basis,
        span.promised,
    )


def write_down(path: Path, rows: list[Predicted]) -> None:
    """Add predictions to a file, each as a line of JSON with the time at which it was written."""
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"at": time.time_ns(), **row._asdict()}) + "\n")
        file.flush()
        os.fsync(file.fileno())
