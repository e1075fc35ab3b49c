"""The cells of the table of jobs."""

from __future__ import annotations

from skep_services.cli import job_table, render
from tests.cli_kit import SECOND, T0, row


def test_an_age_is_told_as_by_itself_also_where_many_rows_have_one() -> None:
    ages = [0, 1, SECOND - 1, 10 * SECOND - 1, 10 * SECOND, 10 * SECOND + 7, 3600 * SECOND, -5]
    now = T0 + 4000 * SECOND
    listed = [row(submitted_at=now - age) for age in ages] + [row(submitted_at=0)]
    column = next(one for one in job_table.job_columns(listed, now) if one.title == "AGE")
    assert column.cells == [*map(render.duration, ages), "-"]
