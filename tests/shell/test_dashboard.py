"""The dashboard shows what the gateway counts, by the names it has there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skep.wire import codec, subjects
from skep.wire.findings import JobRate, Rates
from tests.gateway_kit import House, submitted
from tests.kit import at

FILE = Path(__file__).parents[2] / "compose" / "viewers" / "skep.json"
NAME = re.compile(r"skep_[a-z_]+")
GROUPS = re.compile(r"\bby \(([a-z, ]+)\)|\{(\w+)=")


@pytest.mark.asyncio
async def test_every_metric_and_label_of_the_dashboard_exists(tmp_path: Path) -> None:
    house = House(tmp_path)
    await house.open()
    await house.with_nodes()
    await submitted(house)
    rates = Rates(at=at(0), jobs=(JobRate(job="j1", attempt=1, steps=1, rate_milli=1),))
    await house.bus.send(subjects.finding("rates"), codec.encode(rates), {})
    async with house.nobody.open("/metrics") as answer:
        text = await answer.text()
    await house.close()
    exported: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    panels = json.loads(FILE.read_text())["panels"]
    queries = [one["expr"] for panel in panels for one in panel["targets"] if "expr" in one]
    shown = set()
    for query in queries:
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= set(exported), query
        shown.update(names)
        labels = {
            label.strip()
            for by, matched in GROUPS.findall(query)
            for label in (by or matched).split(",")
        }
        assert labels <= set().union(*(exported[name] for name in names)), query
    families = {re.sub("_(total|bucket|count|sum|created)$", "", name) for name in exported}
    assert families == {re.sub("_(total|bucket|count)$", "", name) for name in shown}
