"""Runs trainings at placements, reads what was measured, and predicts what was not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from skep.perf.model.placement import Placement, Point, Span
from skep.perf.model.pool import Pool
from skep.perf.model.predict import predict
from skep.perf.model.widening import AS_LEARNED, corrected
from skep.units import Duration
from tests.support.embedded import until
from tests.system.introspect.live import Live
from tests.system.live_speeds.trainings import GPU_TYPE, Model, Place, spec

WITHIN_S = 240.0
MS = 1e6


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

    def __init__(self, live: Live, data: Path) -> None:
        """Take the cluster over."""
        self.live, self.data = live, data
        self.memory = min(each["memory"] for each in live.cluster.get("/v1/nodes")["nodes"])
        self.widening = AS_LEARNED
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
        try:
            point = until(lambda: self.point(model, place), f"{name} is measured", WITHIN_S)
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

    def span(self, model: Model, place: Place) -> Span:
        """Return what a mini-batch is predicted to take, by what was measured so far."""
        families = {each["model"]: _points(each) for each in self.measured()}
        pool = Pool(families)
        fitted = pool.fit_family(families[model.name], model.name)
        where = Placement(GPU_TYPE, place.gpus, place.nodes, place.batch(model))
        return predict(fitted, where, self.widening)

    def learn(self, span: Span, outcome: Outcome) -> None:
        """Have intervals widen that did not hold."""
        self.widening = corrected(self.widening, span, Duration(round(outcome.p50_ms * MS)))


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


def _points(model: dict[str, Any]) -> list[Point]:
    return [
        Point(
            Placement(model["gpu_type"], each["gpus"], each["nodes"], each["batch"]),
            Duration(each["p50_ns"]),
            each["samples"],
            each["spread_milli"] / 1000,
        )
        for each in model["measured"]
        if not each["shared"]
    ]
