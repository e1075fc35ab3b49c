"""Spans leave the real services by OTLP, as with the profile `viewers`: one trace for a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.collector import Collector, Span, collecting
from tests.e2e.conftest import Tenant
from tests.support.embedded import Embedded, until
from tools.compose import FILE

pytestmark = pytest.mark.e2e

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
DECIDED = {
    "skep-admission": {"submit", "admission Admitted"},
    "skep-allocator": {"allocator JobQueued", "allocator JobBound", "allocator JobEnded"},
    "skep-agent": {"agent BindTaken", "agent StartRank", "agent PublishEvent"},
    "skep-advisor": {"advisor Ranked", "advisor Learned"},
    "skep-gateway": {"gateway index"},
}
"""Of a job that runs and ends; the services of the compose file that trace."""


def test_a_jobs_trace_reaches_a_collector_from_every_service(tmp_path: Path) -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    traced = {
        name.split("-")[0]
        for name, one in services.items()
        if VARIABLE in one.get("environment", {})
    }
    assert {f"skep-{name}" for name in traced} >= set(DECIDED)
    with collecting() as collector:
        settings = {VARIABLE: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        cluster = Embedded(tmp_path / "home", settings)
        try:
            cluster.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
            tenant = Tenant(cluster, "nlp")
            job = tenant.accepted(tenant.spec("true"))
            assert cluster.ended(job)["state"] == "succeeded"
            until(lambda: not missing(collector, job), f"the spans of {job} at the collector")
        finally:
            cluster.down()
    assert not collector.refused
    spans = of_job(collector, job)
    (trace,) = {span.trace_id for span in spans}
    (root,) = [span for span in spans if not span.parent_id]
    assert root.name == "submit"
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert len({span.span_id for span in spans}) == len(spans)
    assert all(0 < span.start_ns <= span.end_ns for span in spans)
    assert trace == root.trace_id


def of_job(collector: Collector, job: str) -> list[Span]:
    return [span for span in list(collector.spans) if span.attributes.get("job") == job]


def missing(collector: Collector, job: str) -> dict[str, set[str]]:
    """Return which spans of a job have not come, by service."""
    came = of_job(collector, job)
    left = {
        service: names - {span.name for span in came if span.service == service}
        for service, names in DECIDED.items()
    }
    return {service: names for service, names in left.items() if names}
