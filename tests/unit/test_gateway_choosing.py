"""Which jobs a listing has: jobs in memory and stored ones are chosen and ordered alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.wire import codec
from skep_services.gateway.api import ApiError
from skep_services.gateway.choosing import (
    FIELDS,
    GROUPS,
    Choice,
    Label,
    in_order,
    label_of,
    order_in_sql,
    sorting_of,
    states_of,
)
from skep_services.gateway.model import PHASE_ENDED, Batch, JobQuery, Model
from skep_services.gateway.rows import ENDED, Row

NAMES = ("train", "train-9", "Train", "a*b", "a[1]", "x")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"team": "vision"},
    {"team": "nlp", 'odd "key"': 'with "quotes" and \\'},
    {"user": "ada", "team": ""},
)
ROWS = {
    number: Row(
        job=f"j{number}",
        name=name,
        vc="nlp" if number % 3 else "vision",
        state=ENDED[number % 4],
        owner="ada" if number % 5 == 0 else "",
        labels=labels,
        gpus=number * 7 % 5,
        started_at=number * 13 % 11 if number % 4 else None,
        rate_milli=number % 3 or None,
        why="exited-nonzero" if number % 2 else None,
    )
    for number, (name, labels) in enumerate(itertools.product(NAMES, LABELS), 1)
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = Model(Path(tmp_path_factory.mktemp("model")) / "model.sqlite")
    lines = [
        (
            number,
            PHASE_ENDED,
            row.vc,
            row.state.value,
            row.name,
            codec.encode(row),
            b"{}",
            row.owner,
            row.task,
        )
        for number, row in ROWS.items()
    ]
    made.write(Batch(lines, [], [], [], [], b"{}", []))
    yield made
    made.close()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"states": states_of("failed,succeeded")},
        {"vc": "nlp"},
        {"vc": ("vision", "other")},
        {"name": "train"},
        {"name": "train*"},
        {"name": "*b"},
        {"name": "a[1]"},
        {"name": "?"},
        {"owner": "ada"},
        {"user": "ada"},
        {"labels": (Label("team", None),)},
        {"labels": (Label("team", "vision"),)},
        {"labels": (Label("team", ""), Label("user", "ada"))},
        {"labels": (Label('odd "key"', 'with "quotes" and \\'),)},
        {"prefix": "tr"},
        {"prefix": "j1"},
        {"prefix": "j"},
        {"prefix": "j%"},
        {"labels": (Label("team", "nlp"),), "name": "t*", "vc": "nlp"},
    ],
)
def test_memory_and_store_choose_alike(model: Model, fields: dict[str, Any]) -> None:
    choice = Choice(**{"states": GROUPS["ended"], **fields})
    stored = model.ended(JobQuery(100, choice.conditions()))
    takes = choice.test()
    in_memory = [
        number for number, row in ROWS.items() if row.state in choice.states and takes(row)
    ]
    assert [number for number, _ in stored.lines] == in_memory[::-1]
    assert stored.total == len(in_memory)
    assert in_memory or fields == {"prefix": "j%"}


@pytest.mark.parametrize("column", [*FIELDS, *(f"-{column}" for column in FIELDS)])
def test_memory_and_store_sort_alike(model: Model, column: str) -> None:
    sorting = sorting_of(column)
    assert sorting is not None
    everything = Choice(GROUPS["ended"]).conditions()
    stored = model.ended(JobQuery(100, everything, order_in_sql(sorting)))
    numbers = [number for number, _ in stored.lines]
    # Rows in memory and rows as JSON are put into one order.
    mixed = [(n, row if n % 2 else codec.encode(row)) for n, row in ROWS.items()]
    assert [number for number, _ in in_order(mixed, sorting)] == numbers
    assert len(numbers) == len(ROWS)


@pytest.mark.parametrize("word", ["odd", "running,", "runing", ",".join(["failed"] * 17)])
def test_states_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(ApiError) as refused:
        states_of(word)
    assert refused.value.status == 400


def test_a_refusal_says_what_was_meant() -> None:
    with pytest.raises(ApiError, match="did you mean `running`"):
        states_of("runing")
    with pytest.raises(ApiError, match="did you mean `priority`"):
        sorting_of("priorty")
    with pytest.raises(ApiError, match="KEY or KEY=VALUE"):
        label_of("=x")
