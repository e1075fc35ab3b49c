"""What Prometheus reads: counted as it happens, or looked up when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skep.cells.levels import gpus_owned
from skep.units import NS_PER_SECOND
from skep_services.gateway.holders import free_gpus
from skep_services.gateway.hub import Hub
from skep_services.gateway.index import STREAMS, Indexer
from skep_services.gateway.live import age_s
from skep_services.gateway.rows import PLACED, State
from skep_services.gateway.views import Removed, in_use, node_state
from skep_services.ports import Clock

DEFERRED = "deferred"
"""The state, among the others, of jobs that are in no queue yet."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From an answer out of memory to the longest wait for the bus."""


class Metrics:
    """A registry of our own: importing a library must not add series."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "skep_gateway_request_seconds",
            "How long requests took",
            ("method", "route", "status"),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._submissions = Counter(
            "skep_gateway_submissions",
            "Submissions through this gateway by how they were answered",
            ("answer",),
            registry=self._registry,
        )

    def watch(self, indexer: Indexer, hub: Hub, clock: Clock, removed: Removed) -> None:
        """Look these up whenever the metrics are read."""
        self._registry.register(_Lookup(indexer, hub, clock, removed))

    def add(self, collector: Collector) -> None:
        """Look up what another part knows, too."""
        self._registry.register(collector)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the pattern, so that the series are few."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def submitted(self, answer: str) -> None:
        """Count a submission: accepted, refused, unanswered or unpublished."""
        self._submissions.labels(answer).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Lookup(Collector):
    def __init__(self, indexer: Indexer, hub: Hub, clock: Clock, removed: Removed) -> None:
        self._indexer, self._hub, self._clock = indexer, hub, clock
        self._removed = removed

    def collect(self) -> Iterator[Metric]:
        yield from self._jobs()
        yield from self._nodes()
        yield from self._reading()

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def _jobs(self) -> Iterator[Metric]:
        fold = self._indexer.fold
        jobs: dict[tuple[str, str], int] = {}
        deferred: dict[tuple[str, str], int] = {}
        held: dict[tuple[str, str], float] = {}
        for job in fold.active.values():
            row = job.row
            waits = job.deferred and row.state is State.QUEUED
            key = (DEFERRED if waits else row.state.value, row.vc)
            jobs[key] = jobs.get(key, 0) + 1
            if waits:
                reason = (row.vc, str(row.why or ""))
                deferred[reason] = deferred.get(reason, 0) + 1
            if row.state in PLACED:
                use = (row.vc, row.class_in_force)
                held[use] = held.get(use, 0) + row.counted_gpus
        waiting = sum(count for (state, _), count in jobs.items() if state == State.QUEUED)
        yield _labelled("skep_jobs", "Unfinished jobs", ("state", "vc"), jobs)
        yield _single("skep_queue_jobs", "Jobs that wait for GPUs", waiting)
        yield _labelled(
            "skep_deferred_jobs",
            "Jobs that are in no queue yet: held, before their time, or after others",
            ("vc", "why"),
            deferred,
        )
        yield _labelled("skep_vc_gpus_held", "GPUs held", ("vc", "service_class"), held)
        cluster = fold.state.cells.cluster
        quotas = {(vc,): gpus_owned(cluster, vc) for vc in cluster.vcs}
        yield _labelled("skep_vc_gpus", "GPUs a VC owns", ("vc",), quotas)
        yield _single(
            "skep_cells_alarms", "Invariants of the cells that are broken", len(fold.state.alarms)
        )
        yield CounterMetricFamily(
            "skep_gateway_cells_misfits", "Changes that did not fit", value=fold.misfits
        )
        yield CounterMetricFamily(
            "skep_cells_alarms_raised", "Alarms about the cells so far", value=fold.alarms_raised
        )

    def _nodes(self) -> Iterator[Metric]:
        fold, live, now = self._indexer.fold, self._indexer.live, self._clock.now()
        states: dict[tuple[str, ...], int] = {}
        total = free = 0
        for node in in_use(fold, self._removed):
            key = (node_state(node, live, now),)
            states[key] = states.get(key, 0) + 1
            total += len(node.joined.gpus)
            free += free_gpus(node, None)
        yield _labelled("skep_nodes", "Nodes", ("state",), states)
        yield _single("skep_gpus", "GPUs of all nodes", total)
        yield _single("skep_gpus_free", "GPUs that no job holds", free)

    def _reading(self) -> Iterator[Metric]:
        indexer, now = self._indexer, self._clock.now()
        yield _single("skep_gateway_facts", "Facts folded since the logs began", indexer.fold.facts)
        yield _single(
            "skep_gateway_unreadable", "Messages that said nothing", indexer.fold.unreadable
        )
        yield CounterMetricFamily(
            "skep_unreadable",
            "Messages that are not what their subject promises",
            value=indexer.intake.unreadable,
        )
        yield CounterMetricFamily(
            "skep_passed_over",
            "Messages, facts and rows that the gateway could not take in",
            value=indexer.passed_over,
        )
        positions = {(stream,): indexer.positions[stream] for stream in STREAMS}
        yield _labelled("skep_gateway_position", "Last message folded", ("stream",), positions)
        yield _single("skep_gateway_waiting", "Messages folded but unwritten", indexer.waiting)
        yield _single("skep_gateway_spans_dropped", "Spans not kept", indexer.spans_dropped)
        yield _single("skep_gateway_event_readers", "Open event streams", self._hub.readers)
        yield _single("skep_gateway_event_readers_cut", "Readers too slow", self._hub.cut)
        yield _single(
            "skep_gateway_lag_seconds",
            "Age of the latest message when it was folded",
            indexer.lag_ns / NS_PER_SECOND,
        )
        age = age_s(indexer.live.rates_at, now)
        if age is not None:
            yield _single("skep_gateway_rates_age_seconds", "Since rates were last reported", age)


def _single(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(list(key), value)
    return family
