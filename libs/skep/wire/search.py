"""A search: many trials of one job with different parameters, as one object with one budget.

Written as YAML by people, sent as JSON to `skep.v1.search.<vc>`. Gandiva calls it a multi-job
(section 6.2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skep.ids import is_token
from skep.wire.around_job import parse_job, parse_json
from skep.wire.bounds import (
    Count,
    Integer,
    Number,
    Positive,
    Scalar,
    Short,
    Token,
    Whole,
    Words,
    convert_unbounded,
)
from skep.wire.parse import PROBLEMS_MAX, bound_problems, kind_of, nearest, shape_problems
from skep.wire.reasons import Reason
from skep.wire.spec import TIME_S_MAX, JobSpec, Problem
from skep.wire.times import time_s

SEARCH_VERSION = 1
TRIALS_MAX = 4096
"""Trials of one search: all of them, with the 64 points of their curves, take 10 MB."""
PARALLEL_MAX = 1024
LIVE_MAX = 1024
"""Trials that may stand or run at a time: each that stands keeps its state in its host's memory."""
PARAMETERS_MAX = 64
CHOICES_MAX = 256
CHOICE_CHARS_MAX = 256
WHOLE_MAX = 2**53
"""Whole numbers in a space, and mini-batches: beyond it a number is drawn or compared wrongly."""
STEP_MAX = 10**15
"""Mini-batches of one trial, as many as a job may report."""
VALUE_MAX = 1e100
"""The largest value of a metric, either way: squares of it are numbers still."""
GPU_TIME_S_MAX = 10**12
NAME_CHARS_MAX = 100
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""A parameter's name: it stands in a script's arguments as `{name}`."""
SEARCH = re.compile(r"s([1-9][0-9]{0,17})")

Value = str | int | float | bool
"""What a parameter may be."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A piece of the spec: closed, immutable, defaults left out on the wire."""


class Parameter(_Part, frozen=True):
    """What one parameter may be. Exactly one key is given.

    `uniform` and `log` are the two ends of an interval, `log` with even chances by magnitude;
    `integer` is the least and the most; `choice` lists the values.
    """

    uniform: tuple[Number, Number] | None = None
    log: tuple[Number, Number] | None = None
    integer: tuple[Whole, Whole] | None = None
    choice: Annotated[tuple[Scalar, ...], Meta(max_length=CHOICES_MAX)] | None = None


class Budget(_Part, frozen=True):
    """What a search may cost: trials, and GPU time (seconds, or text such as `90s`, `2h`, `1d`)."""

    trials: Annotated[int, Meta(ge=1, le=TRIALS_MAX)]
    gpu_time: Annotated[int, Meta(ge=1, le=GPU_TIME_S_MAX)] | Words | None = None


class Rungs(_Part, frozen=True):
    """Where trials are compared (successive halving), in mini-batches.

    After `first`, and each `eta` times as many, below `last`; one of `eta` goes on. With several
    `brackets` (Hyperband) each bracket begins one rung later than the one before.
    """

    first: Positive
    last: Positive
    eta: Annotated[int, Meta(ge=2, le=16)] = 3
    brackets: Positive = 1


class SearchSpec(_Part, frozen=True):
    """One search. `job` is what every trial is, its name and VC may be left out.

    A trial's parameters stand for `{name}` in the job's command and arguments, and are in the
    environment as JSON (`SKEP_PARAMETERS`). `metric` is a number that the job reports, by its
    name; at `target` the search is done. At most `parallel` trials run at a time. `curves` ranks
    them by what their learning curves promise for mini-batch `steps`: the `exclusive` best keep
    their GPUs, the others have `turn` seconds each (Gandiva, section 6.2). `asha` compares them at
    `rungs`. At most `live` trials are unfinished at a time. What promises less than `give_up` is
    stopped for good. `sampler: client`: trials have the parameters that clients ask for.
    """

    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    vc: Token
    job: JobSpec
    metric: Annotated[str, Meta(min_length=1, max_length=128)]
    budget: Budget
    version: Count = SEARCH_VERSION
    space: Annotated[dict[Short, Parameter], Meta(max_length=PARAMETERS_MAX)] = {}
    direction: Literal["maximize", "minimize"] = "minimize"
    target: Number | None = None
    method: Literal["curves", "asha"] = "curves"
    parallel: Annotated[int, Meta(ge=1, le=PARALLEL_MAX)] = 1
    exclusive: Annotated[int, Meta(ge=0, le=PARALLEL_MAX)] = 0
    live: Annotated[int, Meta(ge=1, le=LIVE_MAX)] = 64
    turn: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words = 60
    steps: Positive | None = None
    give_up: Number | None = None
    rungs: Rungs | None = None
    sampler: Literal["random", "client"] = "random"
    seed: Integer = 0

    @property
    def turn_s(self) -> int:
        """Return the length of a turn in seconds."""
        assert isinstance(self.turn, int), "a spec that was read has times in seconds"
        return self.turn

    def signed(self, value: float) -> float:
        """Return a value of the metric so that more is better.

        Args:
            value: A value as a job reports it, or one that this returned: then the reported one is
                returned.
        """
        return value if self.direction == "maximize" else -value


def search_id(number: int) -> str:
    """Return the id of the search that began with message `number` of SUBMIT: `s17`."""
    return f"s{number}"


def is_search_id(text: str) -> bool:
    """Return whether a text is the id of a search."""
    return SEARCH.fullmatch(text) is not None


def parse_search(raw: bytes) -> SearchSpec | list[Problem]:
    """Return the search in `raw` (JSON), times in seconds, or its problems."""
    return parse_json(raw, parse_search_tree)


def parse_search_tree(tree: Any, path: str = "$") -> SearchSpec | list[Problem]:
    """Return the search in a decoded JSON or YAML value found at `path`, or its problems."""
    if not isinstance(tree, dict):
        text = f"a search is an object with keys, not {kind_of(tree)}"
        return [Problem(path=path, reason=Reason.WRONG_TYPE, text=text)]
    job, wrong = _job(tree)
    problems = [*shape_problems(_Open, {k: v for k, v in tree.items() if k != "job"}, path)]
    problems += [msgspec.structs.replace(each, path=f"{path}{each.path[1:]}") for each in wrong]
    problems += _space_shape(tree.get("space"), path)
    if problems or job is None:
        return list(dict.fromkeys(problems))[:PROBLEMS_MAX]
    plain = {key: value for key, value in tree.items() if key != "job"}
    whole = {**plain, "job": msgspec.to_builtins(job)}
    spec = convert_unbounded(whole, SearchSpec)
    values = list(islice(_values(spec, path), PROBLEMS_MAX))
    return values or bound_problems(SearchSpec, whole, path) or _normalised(spec)


def value_problem(parameter: Parameter, value: Value) -> str:
    """Return what is wrong with a parameter's value, or nothing.

    Returns:
        What it must be, in words; empty: it is right.
    """
    if parameter.choice is not None:
        same = any(type(each) is type(value) and each == value for each in parameter.choice)
        return "" if same else f"one of {', '.join(map(str, parameter.choice))}"
    low, high = _ends(parameter)
    whole = parameter.integer is not None
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if right and low <= value <= high:  # type: ignore[operator]
        return ""
    return f"{'a whole number' if whole else 'a number'} of {low} to {high}"


def param_problems(spec: SearchSpec, params: Mapping[str, Value] | None) -> Iterator[Problem]:
    """Yield what is wrong with a trial's parameters.

    Args:
        spec: The search.
        params: The parameters by name; None: they are to be drawn.
    """
    space = spec.space
    if params is None:
        if spec.sampler == "client" and not space:
            yield Problem(
                path="$.params",
                reason=Reason.MISSING_KEY,
                text="the search has no `space` to draw parameters from",
                suggestion="give them as `params`",
            )
        return
    if len(params) > PARAMETERS_MAX:
        yield _bad("$.params", f"at most {PARAMETERS_MAX} parameters")
        return
    for name, value in params.items():
        if space and name not in space:
            yield Problem(
                path=f"$.params.{name}",
                reason=Reason.UNKNOWN_KEY,
                text=f"`{name}` is not in the search's space",
                suggestion=nearest(name, sorted(space)),
            )
        elif not space and (wrong := _free_problem(name, value)):
            yield Problem(
                path="$.params", reason=Reason.BAD_VALUE, text=f"`{name[:64]}` must be {wrong}"
            )
    for name, each in space.items():
        if name not in params:
            yield Problem(
                path=f"$.params.{name}", reason=Reason.MISSING_KEY, text=f"`{name}` is required"
            )
        elif wrong := value_problem(each, params[name]):
            yield Problem(
                path=f"$.params.{name}", reason=Reason.BAD_VALUE, text=f"`{name}` must be {wrong}"
            )


def _free_problem(name: str, value: Value) -> str:
    """Return what is wrong with a parameter of a search without a space, or nothing."""
    most = CHOICE_CHARS_MAX
    if len(name) > most:
        return f"a name of at most {most} characters"
    if isinstance(value, str):
        return "" if len(value) <= most else f"a text of at most {most} characters"
    return "" if -VALUE_MAX <= value <= VALUE_MAX else "a smaller number"


def _open_fields() -> Iterator[tuple[str, Any, Any]]:
    for field in msgspec.structs.fields(SearchSpec):
        if field.name == "job":
            continue
        shape = dict[str, Any] if field.name == "space" else field.type
        made = field.default_factory
        default = (
            field.default if made is msgspec.NODEFAULT else msgspec.field(default_factory=made)
        )
        yield field.name, shape, msgspec.field() if default is msgspec.NODEFAULT else default


_Open = msgspec.defstruct("_Open", list(_open_fields()), bases=(_Part,), frozen=True)
"""The spec without its job, for finding what is wrong with keys and types."""


def _job(tree: dict[str, Any]) -> tuple[JobSpec | None, list[Problem]]:
    """Return the trials' job, or what is wrong with it, with paths inside the search."""
    parsed = parse_job(tree)
    if not isinstance(parsed, JobSpec):
        return None, parsed
    if parsed.array is not None:
        text = "a trial is one job: a search has no arrays"
        return None, [Problem(path="$.array", reason=Reason.BAD_VALUE, text=text)]
    if parsed.resources.share:
        text = "trials with a share of a GPU are not built yet"
        hint = "ask for whole GPUs, or submit an array"
        path = "$.job.resources.gpus"
        return None, [Problem(path=path, reason=Reason.NOT_BUILT, text=text, suggestion=hint)]
    return parsed, []


def _space_shape(space: Any, path: str) -> Iterator[Problem]:
    if not isinstance(space, dict):
        return  # Nothing, or of a type that was found wrong before.
    for name, each in space.items():
        here = f"{path}.space.{name}"
        if not isinstance(each, dict):
            yield Problem(
                path=here,
                reason=Reason.WRONG_TYPE,
                text=f"a parameter is an object with one key, not {kind_of(each)}",
                suggestion="such as `{log: [0.0001, 0.1]}`",
            )
        else:
            yield from shape_problems(Parameter, each, here)


def _values(spec: SearchSpec, path: str) -> Iterator[Problem]:
    """Yield what is wrong with values whose types are right."""
    if spec.version != SEARCH_VERSION:
        yield Problem(
            path=f"{path}.version",
            reason=Reason.WRONG_VERSION,
            text=f"version {spec.version} is not spoken here",
            suggestion=f"use version {SEARCH_VERSION}",
        )
    if not 1 <= len(spec.name) <= 100 or not spec.name.isprintable():
        yield _bad(f"{path}.name", "1 to 100 printable characters")
    if not is_token(spec.vc):
        yield _bad(f"{path}.vc", "a name of letters, digits, `_` and `-`")
    if spec.job.vc != spec.vc:
        yield Problem(
            path=f"{path}.job.vc",
            reason=Reason.WRONG_VC,
            text=f"the trials of a search of `{spec.vc}` are its jobs",
            suggestion="leave it out",
        )
    for key in ("after", "begin", "hold", "pipeline"):
        if getattr(spec.job, key):
            yield Problem(
                path=f"{path}.job.{key}",
                reason=Reason.BAD_VALUE,
                text=f"trials cannot have `{key}`: their search says when each begins",
                suggestion="leave it out",
            )
    if not 1 <= len(spec.metric) <= 128:
        yield _bad(f"{path}.metric", "1 to 128 characters")
    if not 1 <= spec.budget.trials <= TRIALS_MAX:
        yield _bad(f"{path}.budget.trials", f"1 to {TRIALS_MAX}")
    yield from _times(spec, path)
    if not 1 <= spec.parallel <= PARALLEL_MAX:
        yield _bad(f"{path}.parallel", f"1 to {PARALLEL_MAX}")
    elif not 0 <= spec.exclusive < max(2, spec.parallel):
        yield Problem(
            path=f"{path}.exclusive",
            reason=Reason.BAD_VALUE,
            text="of the trials that run at a time one must be left for the others",
            suggestion=f"use 0 to {max(1, spec.parallel - 1)}",
        )
    if not spec.parallel <= spec.live <= LIVE_MAX:
        yield _bad(f"{path}.live", f"{spec.parallel}, those that run at a time, to {LIVE_MAX}")
    if spec.steps is not None and not 1 <= spec.steps <= WHOLE_MAX:
        yield _bad(f"{path}.steps", f"1 to {WHOLE_MAX}")
    for name in ("target", "give_up"):
        value = getattr(spec, name)
        if value is not None and not math.isfinite(value):
            yield _bad(f"{path}.{name}", "a finite number")
    yield from _method(spec, path)
    yield from _space(spec, path)


def _times(spec: SearchSpec, path: str) -> Iterator[Problem]:
    turn_s = time_s(spec.turn)
    if turn_s is None or not 1 <= turn_s <= TIME_S_MAX:
        yield _bad(f"{path}.turn", "seconds, or text such as `90s`, `15m`, `2h`, up to a year")
    if spec.budget.gpu_time is not None:
        length_s = time_s(spec.budget.gpu_time)
        if length_s is None or not 1 <= length_s <= GPU_TIME_S_MAX:
            yield _bad(f"{path}.budget.gpu_time", "seconds, or text such as `15m`, `2h`, `1d`")


def _method(spec: SearchSpec, path: str) -> Iterator[Problem]:
    rungs = spec.rungs
    if (rungs is None) == (spec.method == "asha"):
        yield Problem(
            path=f"{path}.rungs",
            text="`asha` has `rungs`, and nothing else has",
            reason=Reason.MISSING_KEY if rungs is None else Reason.BAD_VALUE,
            suggestion="such as `{first: 100, last: 2700, eta: 3}`",
        )
    if rungs is None:
        return
    if rungs.first < 1:
        # From 0 or less no level is ever above the one before: the rest cannot be looked at.
        yield _bad(f"{path}.rungs.first", "1 or more")
    elif not 2 <= rungs.eta <= 16:
        yield _bad(f"{path}.rungs.eta", "2 to 16")
    elif not rungs.first * rungs.eta <= rungs.last <= 2**53:
        yield _bad(f"{path}.rungs.last", "at least `first` times `eta`")
    elif not 1 <= rungs.brackets <= len(levels(rungs)):
        yield _bad(f"{path}.rungs.brackets", f"1 to {len(levels(rungs))}, the rungs there are")
    if spec.exclusive:
        yield Problem(
            path=f"{path}.exclusive",
            reason=Reason.BAD_VALUE,
            text="`asha` gives no turns: every trial runs to its rung alone",
            suggestion="leave it out, or use the method `curves`",
        )


def levels(rungs: Rungs, bracket: int = 0) -> tuple[int, ...]:
    """Return the mini-batches after which the trials of a bracket are compared, below `last`.

    Args:
        rungs: The first and the last level, and the factor between two of them.
        bracket: Counted from 0; each further one multiplies the first level by the factor.
    """
    assert rungs.first >= 1, rungs
    assert rungs.eta >= 2, rungs
    found, level = [], rungs.first * rungs.eta**bracket
    while level < rungs.last:
        found.append(level)
        level *= rungs.eta
    return tuple(found)


def _space(spec: SearchSpec, path: str) -> Iterator[Problem]:
    if not spec.space and spec.sampler == "random":
        yield Problem(
            path=f"{path}.space",
            reason=Reason.MISSING_KEY,
            text="`space` says which parameters there are to try",
            suggestion="such as `{lr: {log: [0.0001, 0.1]}}`",
        )
    if len(spec.space) > PARAMETERS_MAX:
        yield _bad(f"{path}.space", f"at most {PARAMETERS_MAX} parameters")
    for name, each in spec.space.items():
        here = f"{path}.space.{name}"
        if not NAME.fullmatch(name):
            yield _bad(here, "a name of letters, digits, `_`, `.` and `-`")
        given = [key for key in each.__struct_fields__ if getattr(each, key) is not None]
        if len(given) != 1:
            keys = list(each.__struct_fields__)
            yield Problem(
                path=here,
                reason=Reason.MISSING_KEY if not given else Reason.BAD_VALUE,
                text=f"exactly one of {', '.join(keys)} must be given",
                suggestion=nearest(given[0], keys) if len(given) > 2 else "",
            )
        elif each.choice is not None:
            if not 1 <= len(each.choice) <= CHOICES_MAX or any(
                isinstance(value, str) and len(value) > CHOICE_CHARS_MAX for value in each.choice
            ):
                yield _bad(
                    f"{here}.choice",
                    f"1 to {CHOICES_MAX} values, texts of at most {CHOICE_CHARS_MAX} characters",
                )
        else:
            low, high = _ends(each)
            if each.integer is not None and not -WHOLE_MAX <= low <= high <= WHOLE_MAX:
                yield _bad(f"{here}.integer", f"the least and the most, up to {WHOLE_MAX}")
                continue
            finite = math.isfinite(low) and math.isfinite(high) and abs(high - low) < math.inf
            if not finite or low > high or (each.log is not None and low <= 0):
                least = " above 0" if each.log is not None else ""
                yield _bad(f"{here}.{given[0]}", f"the lower and the upper end{least}")


def _ends(parameter: Parameter) -> tuple[float, float]:
    ends = parameter.uniform or parameter.log or parameter.integer
    assert ends is not None, parameter
    return ends


def _bad(path: str, wanted: str) -> Problem:
    name = path.rsplit(".", 1)[-1]
    return Problem(path=path, reason=Reason.BAD_VALUE, text=f"`{name}` must be {wanted}")


def _normalised(spec: SearchSpec) -> SearchSpec:
    gpu_time = None if spec.budget.gpu_time is None else time_s(spec.budget.gpu_time)
    budget = msgspec.structs.replace(spec.budget, gpu_time=gpu_time)
    return msgspec.structs.replace(spec, budget=budget, turn=time_s(spec.turn) or 1)
