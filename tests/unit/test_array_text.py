"""What the text of an array means, and what is said of one that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.wire import array
from skep.wire.array import TASKS_MAX, Tasks, as_ranges, from_ranges, parse_array, task_of
from skep.wire.parse import parse_tree
from skep.wire.spec import ENV_MAX

SPEC = {"name": "sweep", "vc": "nlp", "command": "true"}


@pytest.mark.parametrize(
    "text, indices, most",
    [
        ("7", [7], 0),
        ("0-3", [0, 1, 2, 3], 0),
        ("0-9:3%2", [0, 3, 6, 9], 2),
        ("5,1,3", [5, 1, 3], 0),
        (" 0-1, 8 % 4 ", [0, 1, 8], 4),
        ("0-1%999999999", [0, 1], TASKS_MAX),
    ],
)
def test_what_a_text_means(text: str, indices: list[int], most: int) -> None:
    tasks = parse_array(text)
    assert isinstance(tasks, Tasks)
    assert (list(tasks.indices()), tasks.most) == (indices, most)
    assert (tasks.count, tasks.lowest, tasks.highest) == (len(indices), min(indices), max(indices))
    assert all(index in tasks for index in indices)
    assert max(indices) + 1 not in tasks


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "`array` is empty: it has no task"),
        ("%4", "`array` is empty: it has no task"),
        ("0-9%0", "`%0` must be `%` and a number from 1 on: tasks at once"),
        ("0-9%", "`%` must be `%` and a number from 1 on: tasks at once"),
        ("0-9%2%3", "`%2%3` must be `%` and a number from 1 on: tasks at once"),
        ("9-0", "`9-0` is reversed: write `0-9`"),
        ("0-9:0", "`0-9:0` has a step of 0: it must be 1 or more"),
        ("1,", "`` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"),
        ("-1", "`-1` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"),
        ("a-b", "`a-b` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"),
        ("1:2", "`1:2` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"),
        ("٣", "`٣` is no index, range or range with a step: such as `7`, `0-9`, `0-9:2`"),
        ("0-9,4", "`array` has the index 4 twice"),
        ("0-10000", "`array` has 10001 tasks; at most 10000 are accepted"),
        ("0-999999999", "`array` has 1000000000 tasks; at most 10000 are accepted"),
        ("1" + "0" * 30, f"`{'1' + '0' * 30}` has a number above 999999999, the highest index"),
        ("1," * 3000 + "1", "`array` has 6001 characters; at most 4096 are accepted"),
    ],
)
def test_a_text_that_is_wrong_is_refused_in_one_line(text: str, said: str) -> None:
    assert parse_array(text) == said
    problems = parse_tree({**SPEC, "array": text})
    assert isinstance(problems, list)
    assert [(each.path, each.text) for each in problems] == [("$.array", said)]


def test_an_array_has_no_deadline_and_no_variables_of_its_own() -> None:
    wrong = {**SPEC, "array": "0-1", "finish_by": "2h", "env": {"SKEP_ARRAY_ID": "x"}}
    problems = parse_tree(wrong)
    assert isinstance(problems, list)
    assert [(each.path, each.reason.value) for each in problems] == [
        ("$.finish_by", "not-built"),
        ("$.env.SKEP_ARRAY_ID", "bad-value"),
    ]
    full = parse_tree({**SPEC, "array": "0", "env": {f"V{n}": "" for n in range(ENV_MAX - 4)}})
    assert isinstance(full, list)
    assert [each.path for each in full] == ["$.env"]


@given(st.lists(st.integers(0, 60), unique=True))
def test_ranges_name_the_indices(indices: list[int]) -> None:
    assert list(from_ranges(as_ranges(indices))) == sorted(indices)


def test_a_task_is_told_what_it_is() -> None:
    spec = parse_tree({**SPEC, "array": "2-8:3%1", "env": {"LR": "0.1"}})
    assert not isinstance(spec, list)
    told = array.spec_of_task(spec, "j7", array.tasks_of(spec.array or ""), 5)
    assert (told.array, told.task) == (None, "j7[5]")
    assert told.env == {
        "LR": "0.1",
        "SKEP_ARRAY_ID": "j7",
        "SKEP_ARRAY_INDEX": "5",
        "SKEP_ARRAY_COUNT": "3",
        "SKEP_ARRAY_MIN": "2",
        "SKEP_ARRAY_MAX": "8",
    }


@pytest.mark.parametrize(
    "text, task",
    [
        ("j7[3]", ("j7", 3)),
        ("j7_0", ("j7", 0)),
        ("j7", None),
        ("j7[03]", None),
        ("j07[3]", None),
        ("j7[3", None),
        ("j7[1000000000]", None),
        ("x_3", None),
    ],
)
def test_names_of_tasks(text: str, task: tuple[str, int] | None) -> None:
    assert task_of(text) == task
