"""Traces of every form by hand-made files, and every kind of row that cannot be used."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from skep.units import GIB, MIB, Duration, seconds
from skep_lab.simulator.specs import shape
from skep_lab.traces.formats import lengths, skep
from skep_lab.traces.formats.alibaba import ALIBABA_2020
from skep_lab.traces.formats.row import NO_GPU, WHOLE
from skep_lab.traces.job import RowProblem, Trace, TraceJob
from skep_lab.traces.problems import BadTraceError, grouped, suit, told
from skep_lab.traces.read import FORMATS, FORMS, read

MINUTE = 60.0


def job(id: str, at: float, run_time: float, gpus: int, **more: object) -> TraceJob:  # noqa: A002
    values = {"id": id, "at": seconds(at), "run_time": seconds(run_time), "gpus": gpus, **more}
    return msgspec.convert(values, TraceJob)


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9

"""
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,\
duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,\
2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,16,64,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
"""
TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,1,0,606,vgg19,164,30
1,8,30,133,vgg11,147,23
"""
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,\
iteration_time,resource_time_0,resource_time_1,resource_time_2,priority
0,1,0,5853661,dqn,128,2868294000,46122000,490,446,8,0.5,1
"""
CHRONUS = """job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,\
expect_time_list,expect_value_list,best_effort,job_type
0,vc_103959,4,12,6910,resnet101,211,8,282-290,10-5,0,soft
1,vc_7f04ca,1,10,8897,resnet101,31,6,10,10,1,best
"""
ELASTICFLOW = """job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration
0,3715485,2011,cifar10,3719996,4096,1,5644
1,3717550,1548,ncf,3717583,32768,8,66
"""
POLLUX = """name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
"""
GAVEL_7 = """ResNet-18 (batch size 32)\tcd %s && python3 main.py --batch_size \
32\t--num_steps\t1\t1000\t6.000000\t1
"""
GAVEL_10 = """A3C\tpython3 main.py\trl\t--n\t0\t600\t2\t1\t-1.000000\t163.057382
"""
SHOCKWAVE = """LM (batch size 10)\tpython3 main.py \
"%s\tlm\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t55
"""
PAI = """a,ps,1.0,Terminated,100.0,170.0,600.0,29.5,,
a,worker,2.0,Terminated,90.0,160.0,400.0,8.0,100.0,V100
b,tensorflow,1.0,Terminated,80.0,90.0,600.0,8.0,200.0,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,0,100,10
p1,88500,1024,8,1000,V100M16|V100M32,BE,Succeeded,5,105,5
"""
OWN = """{"skep_trace":1,"name":"mine","jobs":1,"notes":["by hand"]}
{"id":"a","at":5,"run_time":7,"gpus":8,"workers":2,"vc":"nlp"}
"""


def fixed(_: TraceJob) -> float:
    return 50.0


EXPECTED: dict[str, tuple[str, str, list[TraceJob]]] = {
    "philly": (
        "philly",
        PHILLY,
        [job("p2", 0, 2951, 8, vc="6214e9"), job("p1", 2932, 66, 1, vc="11cb48")],
    ),
    "helios": (
        "helios",
        HELIOS,
        [
            job("1425511", 0, 36848, 1, workers=1, vc="vcJkd", user="uXBbc", cpus=1),
            job("1425512", 26, 249, 16, workers=2, vc="vchbv", user="uVMrF", cpus=32),
        ],
    ),
    "tiresias": (
        "tiresias",
        TIRESIAS,
        [
            job("0", 0, 164, 1, mini_batches=606, model="vgg19"),
            job("1", 30, 147, 8, mini_batches=133, model="vgg11"),
        ],
    ),
    "muri": (
        "muri",
        MURI,
        [
            job(
                "0",
                0,
                2868294,
                1,
                mini_batches=5853661,
                model="dqn",
                batch_size=128,
                priority=1,
                demands=(0.446, 0.008, 0.0005),
            )
        ],
    ),
    "chronus": (
        "chronus",
        CHRONUS,
        [
            job(
                "1", 10 * MINUTE, 31 * MINUTE, 1, mini_batches=8897, model="resnet101", vc="7f04ca"
            ),
            job(
                "0",
                12 * MINUTE,
                211 * MINUTE,
                4,
                mini_batches=6910,
                model="resnet101",
                vc="103959",
                deadline=seconds((12 + 282) * MINUTE),
            ),
        ],
    ),
    "elasticflow": (
        "elasticflow",
        ELASTICFLOW,
        [
            job(
                "0",
                0,
                5644,
                1,
                mini_batches=2011,
                model="cifar10",
                batch_size=4096,
                deadline=seconds(4511),
            ),
            job(
                "1",
                2065,
                66,
                8,
                mini_batches=1548,
                model="ncf",
                batch_size=32768,
                deadline=seconds(2098),
            ),
        ],
    ),
    "pollux": ("pollux", POLLUX, [job("cifar10-0", 107, 50, 6, model="cifar10", batch_size=2048)]),
    "gavel of seven": (
        "gavel",
        GAVEL_7,
        [job("g1", 6, 50, 1, model="ResNet-18 (batch size 32)", mini_batches=1000, batch_size=32)],
    ),
    "gavel of ten": (
        "gavel",
        GAVEL_10,
        [job("g1", 163.057382, 50, 2, model="A3C", mini_batches=600)],
    ),
    "shockwave": (
        "gavel",
        SHOCKWAVE,
        [job("g1", 55, 1418, 1, model="LM (batch size 10)", mini_batches=134583, batch_size=10)],
    ),
    "alibaba-2020": (
        "alibaba-2020",
        PAI,
        [
            job("b", 0, 10, 2, workers=1, gpu_type="t4", cpus=6, memory=8 * GIB),
            job("a", 10, 80, 2, workers=2, servers=1, gpu_type="v100", cpus=4, memory=8 * GIB),
        ],
    ),
    "alibaba-2023": (
        "alibaba-2023",
        PODS,
        [
            job("p0", 0, 90, 1, workers=1, cpus=12, memory=16 * GIB),
            job(
                "p1",
                5,
                100,
                8,
                workers=1,
                cpus=89,
                memory=1024 * MIB,
                gpu_type="v100m16",
                tied=True,
                opportunistic=True,
            ),
        ],
    ),
    "skep": (
        "skep",
        OWN,
        [TraceJob(id="a", at=Duration(5), run_time=Duration(7), gpus=8, workers=2, vc="nlp")],
    ),
}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@pytest.mark.parametrize("case", EXPECTED)
def test_every_form_becomes_jobs_in_the_order_of_submission(case: str) -> None:
    form, text, jobs = EXPECTED[case]
    found = read(lines(text), "file", lengths=fixed)
    assert list(found.jobs) == jobs
    assert found.problems == ()
    assert read(lines(text), "file", form, lengths=fixed) == found


def test_every_format_has_an_example_here() -> None:
    assert {form for form, _, _ in EXPECTED.values()} == set(FORMATS)


def test_what_was_made_good_is_said() -> None:
    assert [note.text for note in read(lines(PHILLY), "file").notes] == [
        "1 empty lines",
        "1 of 2 rows are earlier than the row before; sorted",
        "times are counted from the first job, 2017-10-09 06:13:03 on the cluster's clock",
    ]
    assert [note.text for note in read(lines(PAI), "file").notes] == [
        "1 rows are parts of jobs that other rows began",
        "1 of 2 rows are earlier than the row before; sorted",
        "times are counted from the first job, 80 s on the trace's clock",
    ]
    extra = TIRESIAS.replace("interval", "colour")
    assert "columns that are not read: colour" in [n.text for n in read(lines(extra), "f").notes]


def test_alibabas_tasks_may_have_their_header() -> None:
    header = ",".join(ALIBABA_2020.columns)
    assert read(lines(f"{header}\n{PAI}"), "file") == read(lines(PAI), "file")


def test_roles_with_different_gpus_keep_all_of_them() -> None:
    """A chief with one GPU and three workers with two: 7 GPUs, and no telling how they spread."""
    text = (
        "a,chief,1,Terminated,0,100,600,10,100,V100\na,worker,3,Terminated,0,100,600,10,200,V100\n"
    )
    (found,) = read(lines(text), "file", "alibaba-2020").jobs
    assert (found.gpus, found.workers) == (7, 0)
    assert shape(found, 4) == (7, 1)
    assert shape(job("x", 0, 1, 7, workers=4), 8) == (1, 7), "what does not divide loses no GPU"


def test_a_job_of_which_a_role_cannot_be_used_is_none() -> None:
    text = (
        "b,chief,1,Terminated,0,100,600,10,100,V100\n"
        "b,worker,8,Terminated,0,100,600,10,50,V100\n"
        "c,worker,8,Terminated,0,100,600,10,100,V100\n"
    )
    found = read(lines(text), "file", "alibaba-2020", lenient=True)
    assert [each.id for each in found.jobs] == ["c"]
    assert [(each.row, each.column) for each in found.problems] == [
        (1, "job_name"),
        (2, "plan_gpu"),
    ]


# --- rows that are no jobs ------------------------------------------------------------------------

HEAD = "job_id,num_gpu,submit_time,iterations,model_name,duration\n"
BAD_ROWS: dict[str, tuple[str, RowProblem]] = {
    "no gpu": ("x,0,1,1,m,5", RowProblem(2, "asks for no GPU", "num_gpu", NO_GPU)),
    "part of a gpu": (
        "x,0.5,1,1,m,5",
        RowProblem(2, "asks for a fraction of a GPU: 0.5", "num_gpu", WHOLE),
    ),
    "negative gpus": ("x,-1,1,1,m,5", RowProblem(2, "is negative: -1", "num_gpu")),
    "negative submission": ("x,1,-3,1,m,5", RowProblem(2, "is negative: -3", "submit_time")),
    "negative run time": ("x,1,1,1,m,-5", RowProblem(2, "is negative: -5", "duration")),
    "no run time": ("x,1,1,1,m,0", RowProblem(2, "runs for no time", "run time")),
    "empty run time": ("x,1,1,1,m,", RowProblem(2, "is empty", "duration")),
    "words": ("x,1,1,1,m,soon", RowProblem(2, "is not a number: 'soon'", "duration")),
    "far too long": ("x,1,1,1,m,1e300", RowProblem(2, "is too large: 1e300", "duration")),
    "far too late": (
        "x,1,1e12,1,m,5",
        RowProblem(2, "is too large: 1e+12 s", "submission", "3e+09 s (95 years) at the most"),
    ),
    "nan": ("x,1,1,1,m,nan", RowProblem(2, "is not finite: 'nan'", "duration")),
    "inf": ("x,1,inf,1,m,5", RowProblem(2, "is not finite: 'inf'", "submit_time")),
    "part of an iteration": (
        "x,1,1,1.5,m,5",
        RowProblem(2, "is not a whole number: 1.5", "iterations"),
    ),
    "too few values": ("x,1,1", RowProblem(2, "has 3 values, not 6")),
    "too many values": ("x,1,1,1,m,5,6", RowProblem(2, "has 7 values, not 6")),
    "no id": (",1,1,1,m,5", RowProblem(2, "is empty", "job_id")),
    "twice": (
        "good,1,1,1,m,5",
        RowProblem(2, "is there twice: 'good' is row 1", "id", "the first one counts"),
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_number_or_left_out_and_counted(case: str) -> None:
    row, problem = BAD_ROWS[case]
    text = lines(f"{HEAD}good,1,0,1,m,5\n{row}\nlast,1,9,1,m,5\n")
    with pytest.raises(BadTraceError) as raised:
        read(text, "file")
    assert raised.value.problems == (problem,)
    assert raised.value.jobs == 2
    found = read(text, "file", lenient=True)
    assert [each.id for each in found.jobs] == ["good", "last"]
    assert found.problems == (problem,)


OTHER_BAD_ROWS: dict[str, tuple[str, str, str, str]] = {
    "not a time": (
        "philly",
        PHILLY.replace("2017-10-09 07:01:55", "yesterday"),
        "timestamp",
        "is not a time: 'yesterday'",
    ),
    "time missing": ("philly", PHILLY.replace("2017-10-09 07:01:55", ""), "timestamp", "is empty"),
    "deadline": (
        "chronus",
        CHRONUS.replace("282-290", "x-290"),
        "expect_time_list",
        "is not a number: 'x'",
    ),
    "part of a gpu in per cent": (
        "alibaba-2020",
        PAI.replace("200.0", "50.0"),
        "plan_gpu",
        "asks for a fraction of a GPU: 50.0 per cent",
    ),
    "no gpu at all": ("alibaba-2020", PAI.replace("200.0", ""), "plan_gpu", "asks for no GPU"),
    "never ended": ("alibaba-2020", PAI.replace("80.0,90.0", "80.0,"), "end_time", "is empty"),
    "part of a gpu in thousandths": (
        "alibaba-2023",
        PODS.replace("1,1000,,", "1,460,,"),
        "gpu_milli",
        "asks for a fraction of a GPU: 460 thousandths",
    ),
    "never began": (
        "alibaba-2023",
        PODS.replace("100,10\n", "100,\n"),
        "scheduled_time",
        "is empty",
    ),
    "ended before it began": (
        "alibaba-2023",
        PODS.replace("100,10\n", "100,110\n"),
        "run time",
        "is negative",
    ),
    "too much memory": (
        "alibaba-2023",
        PODS.replace("12000,16384", "12000,1e15"),
        "memory",
        "is too large: 1.05e+21",
    ),
    "nobody measured": ("gavel", GAVEL_10, "", "nobody measured how long it runs: A3C on 2 GPUs"),
}


@pytest.mark.parametrize("case", OTHER_BAD_ROWS)
def test_bad_rows_of_other_forms(case: str) -> None:
    form, text, column, what = OTHER_BAD_ROWS[case]
    with pytest.raises(BadTraceError) as raised:
        read(lines(text), "file", form, lengths=lambda job: 0.0)
    assert [(each.column, each.text) for each in raised.value.problems] == [(column, what)]


def test_every_row_is_a_job_or_a_problem() -> None:
    rows = [row for row, _ in BAD_ROWS.values()] + [f"j{n},1,{n},1,m,5" for n in range(9)]
    found = read(lines(f"{HEAD}good,1,0,1,m,5\n" + "\n".join(rows)), "file", lenient=True)
    assert len(found.jobs) + len(found.problems) == 1 + len(rows)


@pytest.mark.parametrize("case", EXPECTED)
def test_whatever_is_changed_in_a_file_rows_and_problems_add_up(case: str) -> None:
    form, text, _ = EXPECTED[case]
    rng = random.Random(f"changes {case}")
    head, rest = (text, "") if "\t" in text or case == "alibaba-2020" else text.split("\n", 1)
    if not rest:
        head, rest = "", head
    for _ in range(100):
        changed = list(rest)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice('-.,0e9x\t"\n ')
        rows = "".join(changed)
        try:
            found = read(
                lines(f"{head}\n{rows}" if head else rows),
                "file",
                form,
                lenient=True,
                lengths=fixed,
            )
        except BadTraceError:
            continue  # Nothing was left that is a job.
        told_rows = [problem.row for problem in found.problems if problem.row]
        assert len(told_rows) == len(set(told_rows))
        merged = found.parts
        assert len(found.rows) == len(found.jobs)
        filled = [row for row in rows.split("\n") if row.strip(" ,\t")]
        assert len(found.jobs) + len(told_rows) + merged == len(filled)


def test_traces_without_run_times_say_what_to_give() -> None:
    with pytest.raises(BadTraceError, match=r"says no run time \(row 1\); give measured speeds"):
        read(lines(GAVEL_10), "file")


def test_problems_are_told_in_groups() -> None:
    problems = [RowProblem(n, f"is negative: -{n}", "duration") for n in range(1, 8)]
    problems += [RowProblem(9, "is empty", "duration"), RowProblem(0, "is cut off", "", "sure?")]
    assert told(problems) == [
        "duration: is negative: -1 (7 rows: 1, 2, 3, 4, 5 and 2 more)",
        "duration: is empty (row 9)",
        "is cut off; sure?",
    ]
    assert [group.count for group in grouped(problems)] == [7, 1, 1]
    assert told(problems[:2]) == ["duration: is negative: -1 (2 rows: 1, 2)"]


# --- files that are no traces ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, form, message",
    [
        ("", None, "is empty: no header and no rows"),
        ("\n\n", None, "is empty"),
        (HEAD, None, "has no rows"),
        (TIRESIAS, "tiresia", "no format 'tiresia'; did you mean 'tiresias'"),
        (TIRESIAS, "slurm", "no format 'slurm'; formats: philly, helios"),
        (TIRESIAS, "muri", "is not in the format muri: no column resource_time_0"),
        (TIRESIAS, "skep", "is not in the format skep: its first line is not"),
        (TIRESIAS, "alibaba-2020", "its first row is not 10 values between commas"),
        ("a,b\n1,2\n", None, "is not in the format gavel: its first row is not 7 or 10 or 12"),
        ('{"skep_trace": 2, "name": "x", "jobs": 0}\n', None, "of version 2; this Skep reads 1"),
    ],
)
def test_a_file_that_cannot_be_read_at_all(text: str, form: str | None, message: str) -> None:
    with pytest.raises(BadTraceError) as raised:
        read(lines(text), "file", form, lenient=True)
    assert message in str(raised.value)
    assert str(raised.value).startswith("file:")


def test_an_unknown_form_says_of_every_format_why_not() -> None:
    with pytest.raises(BadTraceError) as raised:
        read(["a,b\n", "1,2\n"], "file")
    tried = [problem.text.split(": ")[0].split()[-1] for problem in raised.value.problems]
    assert tried == list(FORMS)


def test_a_header_that_lacks_little_is_told_which_form_it_is_nearly() -> None:
    with pytest.raises(BadTraceError, match="the nearest is tiresias; the columns"):
        read(lines(TIRESIAS.replace("num_gpu", "gpus")), "file")


@pytest.mark.parametrize(
    "form, text, good", [("gavel", GAVEL_10, "600"), ("alibaba-2020", PAI, "Terminated")]
)
def test_a_table_without_header_may_begin_with_a_bad_row(form: str, text: str, good: str) -> None:
    bad = text.replace(good, "x", 1).replace("90.0,160.0", "")
    with pytest.raises(BadTraceError, match="is not in the format"):
        read(lines(bad + text), "file", lenient=True)
    found = read(lines(bad + text), "file", form, lenient=True, lengths=fixed)
    assert len(found.jobs) + len(found.problems) + found.parts == len(lines(bad + text))
    assert found.jobs


def test_odd_bytes_do_not_stop_the_reading() -> None:
    text = f'\ufeff{HEAD}a,1,0,1,"m\nb,1,0,1,m\0,5\nc,1,0,1,m,5\n'
    found = read(lines(text), "file", lenient=True)
    assert [each.id for each in found.jobs] == ["b", "c"]
    assert [problem.row for problem in found.problems] == [1]


# --- Skep's own form ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EXPECTED)
def test_a_trace_is_written_and_read_back_equal(case: str) -> None:
    trace = read(lines(EXPECTED[case][1]), "file", lengths=fixed)
    notes = tuple(RowProblem(0, note.text) for note in trace.notes)
    rows = tuple(range(1, len(trace.jobs) + 1))
    same = msgspec.structs.replace(trace, notes=notes, rows=rows, parts=0)
    assert read(skep.write(trace), "other") == same


@pytest.mark.parametrize(
    "line, column, text",
    [
        ('{"id": "a", "at": 0, "run_time": 5}', "", "Object missing required field `gpus`"),
        (
            '{"id": "a", "at": 0, "run_time": 5, "gpus": 1, "worker": 1}',
            "worker",
            "is not a field of a job: 'worker'",
        ),
        (
            '{"id": "a", "at": 0, "run_time": "5", "gpus": 1}',
            "run_time",
            "Expected `int`, got `str`",
        ),
        ('{"id": "a", "at": -1, "run_time": 5, "gpus": 1}', "at", "is negative: -1"),
        ('{"id": "a", "at": 0, "run_time": 5, "gpus": 0}', "gpus", "asks for no GPU"),
        (
            '{"id": "a", "at": 0, "run_time": 5, "gpus": 3, "workers": 2}',
            "workers",
            "do not divide the GPUs: 2 of 3",
        ),
        ("[1]", "", "is not a JSON object"),
    ],
)
def test_a_bad_line_of_ones_own(line: str, column: str, text: str) -> None:
    head = '{"skep_trace": 1, "name": "x", "jobs": 2}'
    good = '{"id": "good", "at": 0, "run_time": 5, "gpus": 1}'
    found = read([head, line, "", good], "file", lenient=True)
    assert [(each.row, each.column, each.text) for each in found.problems] == [(1, column, text)]
    assert [each.id for each in found.jobs] == ["good"]


def test_broken_json_and_a_file_cut_off_are_seen() -> None:
    found = read([*lines(OWN), "{"], "file", lenient=True)
    assert [problem.row for problem in found.problems] == [0, 2]
    assert found.problems[0].text == "says that it has 1 jobs, and has 2"
    assert found.problems[1].text.startswith("is not JSON: ")


# --- what suits a cluster -------------------------------------------------------------------------


def trace_of(*jobs: TraceJob) -> Trace:
    return Trace(name="t", jobs=jobs)


def test_jobs_that_a_cluster_cannot_run() -> None:
    small, large = job("a", 0, 5, 1, vc="nlp"), job("b", 1, 5, 9, vc="nlp")
    astray, strange = job("c", 2, 5, 1, vc="cv"), job("d", 3, 5, 1, vc="nlp", model="new")
    wide = job("e", 4, 5, 6, vc="nlp")
    guest = job("f", 5, 5, 6, vc="nlp", opportunistic=True)
    trace = trace_of(small, large, astray, strange, wide, guest)
    found = suit(trace, gpus=8, vcs={"nlp": 4}, unknown={"new": 1}, lenient=True)
    assert found.jobs == (small, guest)
    assert [line.split("; ")[0] for line in told(found.problems)] == [
        "gpus: is larger than the cluster of 8 GPUs: 'b' asks for 9 (row 2)",
        "vc: is no virtual cluster of it: 'cv' (row 3)",
        "model: is not known to the workload model: 'new' (row 4)",
        "gpus: is larger than its virtual cluster: 'e' asks 6 of 'nlp' with 4 GPUs (row 5)",
    ]
    assert all(problem.hint for problem in found.problems)
    with pytest.raises(BadTraceError):
        suit(trace, gpus=8)
    assert suit(trace) is trace


def test_what_does_not_suit_has_the_row_of_its_file() -> None:
    """Rows are sorted by time, and some are no jobs: neither changes how the others are called."""
    text = f"{HEAD}late,9,9,1,m,5\nnone,0,1,1,m,5\nearly,1,0,1,m,5\n"
    found = suit(read(lines(text), "file", lenient=True), gpus=8, lenient=True)
    assert [each.id for each in found.jobs] == ["early"]
    assert found.rows == (3,)
    assert [problem.row for problem in found.problems] == [1, 2]


def test_nothing_that_suits_is_an_error_even_if_lenient() -> None:
    with pytest.raises(BadTraceError):
        suit(trace_of(job("b", 1, 5, 9)), gpus=8, lenient=True)


# --- run times from measurements ------------------------------------------------------------------

SPEEDS = """gpu_type,placement,job_type,num_gpus,iters_per_s
v100,consolidated,A3C,2,4.0
v100,unconsolidated,A3C,2,1.0
k80,consolidated,A3C,2,2.0
"""
SPEEDS_JSON = """{"v100": {"('A3C', 2)": {"null": 4.0, "('A3C', 2)": [1.0, 1.0]}}, "k80": {}}"""


@pytest.mark.parametrize("text", [SPEEDS, SPEEDS_JSON])
def test_gavels_steps_become_run_times(text: str) -> None:
    found = read(lines(GAVEL_10), "file", lengths=lengths.gavel(lines(text)))
    assert found.jobs[0].run_time == seconds(600 / 4)
    assert lengths.gavel(lines(text))(job("x", 0, 1, 1, model="A3C", mini_batches=600)) == 0.0


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"v100": {"x": 1}}', "{"])
def test_other_tables_are_no_speeds(text: str) -> None:
    with pytest.raises(ValueError, match="Gavel's speeds"):
        lengths.gavel(lines(text))


def pollux_jobs() -> Callable[[TraceJob], float]:
    placements = """placement,local_bsz,step_time,sync_time
1,32,0.4,0.0
1,64,0.6,0.0
4,32,0.5,0.1
13,32,9.0,0.1
44,32,0.6,0.2
"""
    validation = "progress,iteration,metric\n" + "".join(f"1,{n * 10},0\n" for n in range(1, 12))
    tables = {batch: tuple(lines(validation)) for batch in (48, 256)}
    measured = lengths.Measured(tuple(lines(placements)), tables)
    return lengths.pollux({"ncf": measured})


@pytest.mark.parametrize(
    "gpus, batch, run_s",
    [
        (1, 48, 100 * 0.5),  # between two local batch sizes
        (4, 48, 100 * 0.5),  # below the smallest
        (8, 256, 100 * 0.6),
        (4, 256, 100 * (0.5 + 0.4)),  # in two passes, of which one synchronises
        (16, 256, 100 * 0.6),  # more GPUs than were measured
        (1, 64, 0.0),  # nobody trained with this batch size
    ],
)
def test_pollux_jobs_take_their_epochs_steps(gpus: int, batch: int, run_s: float) -> None:
    asked = job("x", 0, 1, gpus, model="ncf", batch_size=batch)
    assert pollux_jobs()(asked) == pytest.approx(run_s)
    assert pollux_jobs()(job("x", 0, 1, 1, model="other", batch_size=48)) == 0.0
