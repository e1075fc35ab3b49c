"""Alarms about the cells, from the allocator's fact to whoever has to hear of it."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.machines.base import Record
from skep.units import Instant
from skep.wire.facts import CellsAlarm
from skep.wire.reasons import TEXT, Reason
from skep_services.cli.checks import FAIL, OK
from skep_services.cli.doctor import cells_check
from skep_services.gateway.cells import alarms_view
from skep_services.tracing import Decisions
from tests.gateway_kit import Spans, facts, fresh_fold, texts
from tests.kit import T0

ALARM = CellsAlarm(
    rule=Reason.CELLS_UNSAFE,
    chain="v100",
    where="node",
    vcs=("nlp",),
    at=T0,
    text="1 cells of level node are owed and not there",
    story=('{"type":"job-ended"}',),
)


def test_an_alarm_stays_until_it_is_over() -> None:
    fold = fresh_fold()
    fold.apply(facts("allocator", ALARM, ALARM), T0)
    [shown] = alarms_view(fold, "")
    assert (shown["rule"], shown["where"], shown["story"]) == (
        "cells-unsafe",
        "node",
        ['{"type":"job-ended"}'],
    )
    assert "concerns nlp" in shown["text"]
    assert texts(fold)[-1].startswith("ALARM: more cells are promised")
    [told] = alarms_view(fold, "nlp")
    assert (told["text"], told["story"]) == (TEXT[Reason.CELLS_UNSAFE], [])
    assert alarms_view(fold, "vision") == []
    fold.apply(facts("allocator", msgspec.structs.replace(ALARM, over=True)), T0)
    assert alarms_view(fold, "") == []
    assert fold.alarms_raised == 2


def test_doctor_fails_while_there_is_one() -> None:
    assert cells_check([]).level == OK
    found = cells_check([{"text": "broken"}, {"text": "broken too"}])
    assert (found.level, found.text) == (FAIL, "broken (and 1 more)")
    assert "skep vc ls --json" in found.todo


class Logged:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Any]] = []

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields["story"]))

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields["story"]))


def test_an_alarm_is_an_error_in_the_log() -> None:
    log = Logged()
    seen = Decisions("allocator", log, lambda _: None, Spans())
    for over in (False, True):
        fact = msgspec.structs.replace(ALARM, over=over)
        seen.decided(object(), [Record(fact)], Instant(1), Instant(2))
    assert [line[:2] for line in log.lines] == [
        ("error", "cells alarm"),
        ("info", "cells alarm over"),
    ]
    assert log.lines[0][2] == ALARM.story
