"""What `skep` says of bad traces: every form that is read, every way in which its rows go wrong.

    python -m tests.system.bad_traces [--form muri] [--json]

A small file of each form, spoilt in one way at a time, goes through `skep traces check` and `skep
sim run`, as it is and with `--lenient`. Printed is what is said, and how the rows add up: each is a
job, a problem, or part of another row's job. Nothing is asserted; `tests/unit/test_bad_traces.py`
does that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skep_services.cli.main import main as skep

ROWS = 4
CLUSTER = "2x4"
SPEEDS = "gpu_type,placement,job_type,num_gpus,iters_per_s\n" + "".join(
    f"v100,consolidated,A3C,{gpus},4.0\n" for gpus in (1, 2, 64)
)
"""What gives Gavel's jobs their run times."""


class Form(NamedTuple):
    """A table of a form: its columns, what row n says in each, and which column means what.

    A meaning that the form has no column for is empty. `header`: whether it is written.
    """

    columns: dict[str, Callable[[int], str]]
    gpus: str
    submitted: str
    length: str = ""
    id: str = ""
    model: str = ""
    header: bool = True
    tabs: bool = False
    gpu: str = "1"
    """How one GPU is written."""
    clock: Callable[[int], str] = "{}00".format


def _clock(hour: int) -> str:
    return f"2020-06-09 1{hour}:00:00"


def _whole(minute: int) -> str:
    return str(minute * 60_000_000_000)


def _always(text: str) -> Callable[[int], str]:
    return lambda _: text


FORMS = {
    "philly": Form(
        {
            "timestamp": _clock,
            "duration": _always("60"),
            "num_gpus": _always("1"),
            "cluster": _always("a"),
        },
        "num_gpus",
        "timestamp",
        "duration",
        clock=_clock,
    ),
    "helios": Form(
        {
            "job_id": "h{}".format,
            "user": _always("u"),
            "vc": _always("a"),
            "gpu_num": _always("1"),
            "submit_time": _clock,
            "duration": _always("60"),
        },
        "gpu_num",
        "submit_time",
        "duration",
        "job_id",
        clock=_clock,
    ),
    "tiresias": Form(
        {
            "job_id": "t{}".format,
            "num_gpu": _always("1"),
            "submit_time": "{}00".format,
            "iterations": _always("10"),
            "model_name": _always("resnet50"),
            "duration": _always("60"),
        },
        "num_gpu",
        "submit_time",
        "duration",
        "job_id",
        "model_name",
    ),
    "muri": Form(
        {
            "job_id": "m{}".format,
            "num_gpu": _always("1"),
            "submit_time": "{}00".format,
            "iterations": _always("10"),
            "model_name": _always("resnet50"),
            "duration": _always("60000"),
            "resource_time_0": _always("1"),
            "resource_time_1": _always("2"),
            "resource_time_2": _always("3"),
        },
        "num_gpu",
        "submit_time",
        "duration",
        "job_id",
        "model_name",
    ),
    "chronus": Form(
        {
            "job_id": "c{}".format,
            "user": _always("vc_a"),
            "num_gpu": _always("1"),
            "submit_time": "{}00".format,
            "iterations": _always("10"),
            "model_name": _always("resnet50"),
            "duration": _always("60"),
            "expect_time_list": _always("100-200"),
            "best_effort": _always("0"),
        },
        "num_gpu",
        "submit_time",
        "duration",
        "job_id",
        "model_name",
    ),
    "elasticflow": Form(
        {
            "job_id": "e{}".format,
            "submit_time": "{}00".format,
            "iteration": _always("10"),
            "model_name": _always("resnet50"),
            "ddl": _always("9000"),
            "batch_size": _always("32"),
            "num_gpu": _always("1"),
            "duration": _always("60"),
        },
        "num_gpu",
        "submit_time",
        "duration",
        "job_id",
        "model_name",
    ),
    "pollux": Form(
        {
            "name": "p{}".format,
            "time": "{}00".format,
            "application": _always("ncf"),
            "num_replicas": _always("1"),
            "batch_size": _always("32"),
        },
        "num_replicas",
        "time",
        "",
        "name",
        "application",
    ),
    "gavel": Form(
        {
            "job_type": _always("A3C"),
            "command": _always("main.py"),
            "working": _always("rl"),
            "steps_arg": _always("--n"),
            "data": _always("0"),
            "total_steps": _always("600"),
            "scale_factor": _always("1"),
            "weight": _always("1"),
            "slo": _always("-1"),
            "arrival": "{}00".format,
        },
        "scale_factor",
        "arrival",
        "",
        "",
        "job_type",
        header=False,
        tabs=True,
    ),
    "shockwave": Form(
        {
            "job_type": _always("A3C"),
            "command": _always("main.py"),
            "working": _always("rl"),
            "steps_arg": _always("--n"),
            "data": _always("0"),
            "total_steps": _always("600"),
            "scale_factor": _always("1"),
            "mode": _always("gns"),
            "weight": _always("1"),
            "slo": _always("-1"),
            "duration": _always("60"),
            "arrival": "{}00".format,
        },
        "scale_factor",
        "arrival",
        "duration",
        "",
        "job_type",
        header=False,
        tabs=True,
    ),
    "alibaba-2020": Form(
        {
            "job_name": "a{}".format,
            "task_name": _always("worker"),
            "inst_num": _always("1"),
            "status": _always("Terminated"),
            "start_time": "{}00".format,
            "end_time": "{}60".format,
            "plan_cpu": _always("600"),
            "plan_mem": _always("8"),
            "plan_gpu": _always("100"),
            "gpu_type": _always("V100"),
        },
        "plan_gpu",
        "start_time",
        "end_time",
        "",
        "",
        header=False,
        gpu="100",
    ),
    "alibaba-2023": Form(
        {
            "name": "q{}".format,
            "cpu_milli": _always("1000"),
            "memory_mib": _always("1024"),
            "num_gpu": _always("1"),
            "gpu_milli": _always("1000"),
            "creation_time": "{}00".format,
            "deletion_time": "{}60".format,
            "scheduled_time": "{}00".format,
        },
        "num_gpu",
        "creation_time",
        "deletion_time",
        "name",
    ),
    "skep": Form(
        {
            "id": '"s{}"'.format,
            "at": _whole,
            "run_time": _always("60000000000"),
            "gpus": _always("1"),
            "model": _always('"resnet50"'),
        },
        "gpus",
        "at",
        "run_time",
        "id",
        "model",
        clock=_whole,
    ),
}


class Spoilt(NamedTuple):
    """One way in which a file goes wrong, and the commands that are to see it."""

    name: str
    text: str
    """The file."""
    row: int
    """Which row it is, of ROWS; 0: none of them, but the file."""
    said: str
    """What is to be said of it."""
    commands: tuple[tuple[str, ...], ...]
    lost: int
    """Rows that are no jobs then; ROWS if nothing can be read."""


BOTH = (("traces", "check"), ("sim", "run"))


def spoilt(name: str) -> Iterator[Spoilt]:
    """Return everything that is done to a form."""
    form = FORMS[name]

    def changed(row: int, **values: str) -> str:
        return _file(name, form, {row: values})

    def bad(what: str, column: str, value: str, said: str) -> Iterator[Spoilt]:
        if column:
            yield Spoilt(what, changed(2, **{column: value}), 2, said, BOTH, 1)

    yield Spoilt(
        "column missing",
        _file(name, form, {}, without=form.gpus),
        0,
        _missing(name, form),
        BOTH,
        ROWS,
    )
    yield from bad(
        "negative submission",
        form.submitted if form.clock is not _clock else "",
        "-5",
        "is negative",
    )
    yield from bad("negative run time", form.length, "-60", "is negative")
    yield from bad(
        "no run time",
        form.length,
        {"alibaba-2020": "200", "alibaba-2023": "200"}.get(name, "0"),
        "runs for no time",
    )
    yield from bad(
        "words for a number",
        form.gpus,
        '"x"' if name == "skep" else "x",
        "Expected `int`" if name == "skep" else "is not a number",
    )
    yield from bad("zero GPUs", form.gpus, "0", "asks for no GPU")
    yield from bad(
        "fractional GPUs",
        form.gpus,
        "50" if form.gpu == "100" else "0.5",
        "asks for a fraction of a GPU",
    )
    if form.id:
        yield from bad("id twice", form.id, form.columns[form.id](1), "is there twice")
    yield Spoilt(
        "row cut off",
        _file(name, form, {}, cut=2),
        2,
        "is not JSON" if name == "skep" else "values, not",
        BOTH,
        1,
    )
    times = {form.submitted: form.clock(0)}
    if name.startswith("alibaba"):
        times["scheduled_time"] = "0"
    yield Spoilt(
        "rows out of order", changed(2, **times), 2, "earlier than the row before", BOTH, 0
    )
    large = changed(2, **{form.gpus: "6400" if form.gpu == "100" else "64"})
    yield Spoilt(
        "larger than the cluster",
        large,
        2,
        "larger than the cluster of 8 GPUs",
        (("traces", "check", "--gpus", "8"), ("sim", "run")),
        1,
    )
    if form.model:
        other = changed(2, **{form.model: '"mine"' if name == "skep" else "mine"})
        measured = name in ("gavel", "pollux")
        said = "nobody measured how long it runs" if measured else "is not known to the workload"
        commands = BOTH if measured else (("sim", "run", "--models", "papers"),)
        yield Spoilt("unknown model", other, 2, said, commands, 1)


def _file(
    name: str, form: Form, changes: dict[int, dict[str, str]], without: str = "", cut: int = 0
) -> str:
    columns = [column for column in form.columns if column != without]
    separator = "\t" if form.tabs else ","
    lines = [separator.join(columns)] if form.header and name != "skep" else []
    if name == "skep":
        lines = [f'{{"skep_trace":1,"name":"mine","jobs":{ROWS}}}']
    for row in range(1, ROWS + 1):
        values = {column: form.columns[column](row) for column in columns} | {
            column: value for column, value in changes.get(row, {}).items() if column in columns
        }
        line = separator.join(values.values())
        if name == "skep":
            line = "{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}"
        lines.append(line[: len(line) // 2] if row == cut else line)
    return "\n".join(lines) + "\n"


def _missing(name: str, form: Form) -> str:
    if name == "skep":
        return "missing required field `gpus`"
    if not form.header:
        return "values between"
    return f"no column {form.gpus}"


class Said(NamedTuple):
    """What a command came to: as it is, and with --lenient."""

    command: str
    code: int
    said: str
    lenient_code: int
    lenient_said: str
    told: dict[str, Any]
    """Its JSON, leniently."""


def play(name: str, case: Spoilt) -> Iterator[Said]:
    """Run the commands of a case in the working directory, with the trace in `jobs.csv`."""
    Path("jobs.csv").write_text(case.text, encoding="utf-8")
    for words in case.commands:
        more = ["--format", "gavel" if name == "shockwave" else name]
        if words[0] == "sim":
            command = [*words, "--trace", "jobs.csv", "--cluster", CLUSTER, "--processes", "1"]
        else:
            command = [*words, "jobs.csv"]
        code, out, err = _run(*command, *more)
        problems = [line for line in (out + err).splitlines() if case.said in line]
        lenient_code, told, lenient_err = _run(*command, *more, "--lenient", "--json")
        yield Said(
            " ".join(words),
            code,
            "\n".join(problems) or out + err,
            lenient_code,
            lenient_err,
            json.loads(told),
        )


def _run(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = skep(words)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def place() -> Iterator[None]:
    """Work in a folder of its own, where run times are measured for the forms that need it."""
    before, folder = os.environ.get("SKEP_SHARED_DATA"), os.getcwd()
    with tempfile.TemporaryDirectory() as made:
        measured = Path(made, "data/gavel")
        measured.mkdir(parents=True)
        (measured / "isolated_throughput.csv").write_text(SPEEDS)
        tables = Path(made, "data/pollux/traces/ncf")
        tables.mkdir(parents=True)
        (tables / "placements.csv").write_text(
            "placement,local_bsz,step_time,sync_time\n1,32,0.5,0\n44444444,4,0.5,0\n"
        )
        (tables / "validation-32.csv").write_text("progress,iteration,metric\n1,60,0\n")
        os.environ["SKEP_SHARED_DATA"] = str(Path(made, "data"))
        os.chdir(made)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.pop("SKEP_SHARED_DATA")
            if before is not None:
                os.environ["SKEP_SHARED_DATA"] = before


def main() -> None:
    """Play all of it and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    with place():
        for name in options.form or FORMS:
            for case in spoilt(name):
                for said in play(name, case):
                    told = said.told
                    problems = told.get("problems", told.get("error", {}).get("problems", []))
                    found.append(
                        {
                            "form": name,
                            "wrong": case.name,
                            "command": said.command,
                            "code": said.code,
                            "said": said.said.strip(),
                            "lenient": said.lenient_code,
                            "jobs": told.get("jobs", 0),
                            "problems": problems,
                        }
                    )
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for each in found:
        print(
            f"{each['form']} · {each['wrong']} · skep {each['command']} -> {each['code']}; "
            f"lenient {each['lenient']}, {each['jobs']} jobs"
        )
        print("    " + each["said"].replace("\n", "\n    "))


if __name__ == "__main__":
    main()
