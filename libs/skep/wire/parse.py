"""Reading a spec: every problem found at once, each with path, reason and the nearest valid key."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, get_args

import msgspec

from skep.ids import is_token
from skep.wire import resuming
from skep.wire.array import VARIABLES, parse_array
from skep.wire.bounds import COUNT_MAX, UNDECODABLE, convert_unbounded, without_bounds
from skep.wire.cluster import Template
from skep.wire.deadline import gpus_range, normal_time, time_problem
from skep.wire.notice_targets import TARGETS_MAX, target_trouble
from skep.wire.reasons import Reason
from skep.wire.snapshot import OUTPUTS_MAX, is_digest, unsafe
from skep.wire.spec import (
    AFTER_MAX,
    CPUS_PER_WORKER_MAX,
    ENV_MAX,
    GANG_GPUS_MAX,
    GPUS_PER_WORKER_MAX,
    IMAGE_CHARS_MAX,
    LABELS_MAX,
    NAME_CHARS_MAX,
    NOT_BUILT,
    PARALLEL_MAX,
    PATH_CHARS_MAX,
    PERIOD_MIN_S,
    PRIORITY_MAX,
    RETRIES_MAX,
    SERVERS_MAX,
    SHARE_MOST,
    SHARE_STEP,
    SPEC_BYTES_MAX,
    SPEC_VERSION,
    TIME_S_MAX,
    TYPES_APART,
    WARN_SIGNALS,
    WORKERS_MAX,
    After,
    Elastic,
    Environment,
    JobSpec,
    Late,
    Limits,
    ParameterServers,
    Problem,
    Profile,
    Qos,
    Resources,
    Runtime,
    SizeHint,
    Warn,
    Willing,
)
from skep.wire.templates import filled
from skep.wire.times import time_s
from skep.wire.vault import SECRETS_PER_JOB_MAX
from skep.wire.volumes import MOUNTS_MAX, place_and_mode, place_problem, wanted

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
WILLING = Willing()
"""What holds where a spec says nothing of it."""
DECODER = msgspec.json.Decoder(JobSpec)
"""Reads a spec without problems, the usual case, at a third of the cost."""

PROBLEMS_MAX = 20
"""A wrong file can have a thousand problems; the first twenty are enough to start mending.

Finding the nearest valid key costs up to 100 µs: no more problems are looked for than are told.
"""

GPUS_WANTED = f"1 to {GPUS_PER_WORKER_MAX}, or a share of one GPU in tenths: 0.1 to 0.9"
WHOLE = frozenset(map(float, range(1, GPUS_PER_WORKER_MAX + 1)))
"""Numbers of GPUs that some writers of JSON give a decimal point."""

MEMORY = re.compile(r"(\d+) ?([KMGT]i?B?|B)?")
MEMORY_UNITS = {
    "": 1,
    "B": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
TYPES_CHARS_MAX = 1024
TYPES_WANTED = f"types such as `a100|h100`, of at most {TYPES_CHARS_MAX} printable characters"
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def parse_spec(
    raw: bytes, templates: Mapping[str, Template] | None = None
) -> JobSpec | list[Problem]:
    """Return the spec in `raw` (JSON), times in seconds and memory in bytes, or its problems.

    Args:
        raw: The spec.
        templates: As `parse_tree` takes them.
    """
    if len(raw) > SPEC_BYTES_MAX:
        text = f"the spec has {len(raw)} bytes; at most {SPEC_BYTES_MAX} are accepted"
        return [Problem(path="$", reason=Reason.TOO_LARGE, text=text)]
    try:
        spec = DECODER.decode(raw)
    except UNDECODABLE:
        pass  # What is wrong with it is said of the tree.
    else:
        if not spec.template and next(_values(spec), None) is None:
            return _normalised(spec)
    try:
        tree = msgspec.json.decode(raw)
    except UNDECODABLE as error:
        text = f"not JSON: {error}"
        return [Problem(path="$", reason=Reason.NOT_JSON, text=text)]
    return parse_tree(tree, templates)


def parse_tree(
    tree: Any, templates: Mapping[str, Template] | None = None
) -> JobSpec | list[Problem]:
    """Return the spec in a decoded JSON or YAML value, or its problems.

    Args:
        tree: The value.
        templates: The templates of its VC by name, one of which it may name; None: it may not.

    Returns:
        The spec, times in seconds and memory in bytes; or at most PROBLEMS_MAX problems.
    """
    if not isinstance(tree, dict):
        text = f"a spec is an object with keys, not {kind_of(tree)}"
        return [Problem(path="$", reason=Reason.WRONG_TYPE, text=text)]
    whole = filled(tree, templates)
    if isinstance(whole, Problem):
        return [whole]
    shared = _with_share(whole)
    if isinstance(shared, Problem):
        return [shared]
    spelled = resuming.spelled_out(shared)
    if isinstance(spelled, Problem):
        return [spelled]
    tree = spelled
    spec = _converted(tree)
    if spec is None:
        choices = list(_choices(tree))
        said = {problem.path for problem in choices}
        elsewhere = (*NOT_BUILT, "max_parallel")
        rest = {key: value for key, value in tree.items() if key not in elsewhere}
        shapes = (each for each in shape_problems(JobSpec, rest, "$") if each.path not in said)
        problems = list(islice(chain(_not_built(tree), choices, shapes), PROBLEMS_MAX))
        assert problems, "what cannot be converted has a key or a type that is wrong"
        return problems
    wrong = list(islice(_values(spec), PROBLEMS_MAX)) or bound_problems(JobSpec, tree, "$")
    return wrong or _normalised(spec)


def _with_share(tree: dict[Any, Any]) -> dict[Any, Any] | Problem:
    """Return a spec in which a share of a GPU stands as the wire has it, or what is wrong with it.

    People write `gpus: 0.5`. Whole numbers of GPUs and wrong types are left as they are.
    """
    resources = tree.get("resources")
    gpus = resources.get("gpus") if isinstance(resources, dict) else None
    if not isinstance(resources, dict) or not isinstance(gpus, float) or gpus in WHOLE:
        return tree
    share = round(1000 * gpus) if SHARE_STEP / 1000 <= gpus <= SHARE_MOST / 1000 else 0
    if not share or share % SHARE_STEP or abs(share - 1000 * gpus) > 1e-6:
        return _bad("$.resources.gpus", f"{GPUS_WANTED}, not {gpus:g}")
    if resources.get("share"):
        return _bad("$.resources.share", "left out where `gpus` is a share")
    return {**tree, "resources": {**resources, "gpus": 1, "share": share}}


def bound_problems(kind: type[msgspec.Struct], tree: dict[str, Any], path: str) -> list[Problem]:
    """Return the first value that is out of the bounds of its field, if there is one.

    Args:
        kind: What `tree` is, apart from bounds.
        tree: A decoded JSON object.
        path: Where the object stands.
    """
    try:
        msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        wanted, _, where = str(error).partition(" - at ")
        # Such as `$.labels[...]`, or "`key` in `$.labels`".
        here = path + where.rpartition("`$")[2].removesuffix("`").partition("[")[0]
        text = f"`{here.rsplit('.', 1)[-1]}` is out of bounds: {wanted}"
        return [Problem(path=here, reason=Reason.BAD_VALUE, text=text)]
    return []


def _converted(tree: dict[Any, Any]) -> JobSpec | None:
    """Return the spec if keys and types are right: the usual case, at half the cost."""
    if next(_not_built(tree), None) is not None or not _keys_known(JobSpec, tree):
        return None
    try:
        return convert_unbounded(tree, JobSpec)
    except msgspec.ValidationError:
        return None


def _keys_known(struct: type[msgspec.Struct], tree: dict[Any, Any]) -> bool:
    return tree.keys() <= _fields(struct).keys() and all(
        _keys_known(inner, level)
        for name, inner in _levels(struct)
        if isinstance(level := tree.get(name), dict)
    )


def memory_bytes(value: int | str) -> int | None:
    """Return an amount of memory in bytes, or None if the text is not one.

    Args:
        value: Bytes, or text such as `16GiB`.
    """
    if isinstance(value, int):
        return value
    match = MEMORY.fullmatch(value.strip())
    if not match or len(match[1]) > 15:
        return None
    unit = match[2] or ""
    return int(match[1]) * MEMORY_UNITS[unit[:-1] if len(unit) > 1 and unit[-1] == "B" else unit]


def nearest(word: str, words: list[str]) -> str:
    """Return the nearest valid word as a suggestion, or an empty text."""
    close = difflib.get_close_matches(str(word), words, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def _not_built(tree: dict[Any, Any]) -> Iterator[Problem]:
    for key, what in NOT_BUILT.items():
        if key in tree:
            yield Problem(
                path=f"$.{key}",
                reason=Reason.NOT_BUILT,
                text=f"{what} are not built yet",
                suggestion=f"leave `{key}` out",
            )
    if "max_parallel" in tree:
        yield Problem(
            path="$.max_parallel",
            reason=Reason.UNKNOWN_KEY,
            text="`max_parallel` bounds the jobs of a pipeline, and this is one job",
            suggestion="put it into a document of its own at the head of the file; the tasks of an "
            "array are bounded by `%8` in `array: 0-99%8`",
        )


CHOICES: dict[str, tuple[tuple[str, ...], Reason, str]] = {
    "qos": (get_args(Qos), Reason.UNKNOWN_CLASS, "normal"),
    "late": (get_args(Late), Reason.BAD_VALUE, "accept"),
    "willing.profile": (get_args(Profile), Reason.BAD_VALUE, "refused"),
}
"""Keys that take one of a few words: the words, why another one is refused, and the usual one."""


def _choices(tree: dict[str, Any]) -> Iterator[Problem]:
    """Yield the words for which there are others to choose from, named each."""
    for path, (words, reason, usual) in CHOICES.items():
        part, _, key = path.rpartition(".")
        inner = tree.get(part) if part else tree
        value = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(value, str) and value not in words:
            yield Problem(
                path=f"$.{path}",
                reason=reason,
                text=f"`{key}` must be one of {', '.join(words)}, not `{value[:NAME_CHARS_MAX]}`",
                suggestion=nearest(value, list(words)) or f"use `{usual}`",
            )


def shape_problems(
    struct: type[msgspec.Struct], tree: dict[Any, Any], path: str
) -> Iterator[Problem]:
    """Yield what is wrong with keys and types of one level and the levels below.

    Args:
        struct: What `tree` is to be.
        tree: A decoded JSON object.
        path: Where the object stands.
    """
    fields = _fields(struct)
    for key in tree:
        if key not in fields:
            yield Problem(
                path=f"{path}.{key}",
                reason=Reason.UNKNOWN_KEY,
                text=f"unknown key `{key}`",
                suggestion=nearest(key, sorted(fields)),
            )
    for name, field in fields.items():
        here = f"{path}.{name}"
        if name not in tree:
            if field.required:
                yield Problem(path=here, reason=Reason.MISSING_KEY, text=f"`{name}` is required")
            continue
        inner = _struct_in(field.type)
        if inner is not None and isinstance(tree[name], dict):
            yield from shape_problems(inner, tree[name], here)
            continue
        if _is_texts(field.type) and isinstance(tree[name], dict):
            wrong = list(_not_text(tree[name], here))
            if wrong:
                yield from wrong
                continue
        try:
            convert_unbounded(tree[name], field.type)
        except msgspec.ValidationError as error:
            text = str(error).replace("`$", f"`{here}")
            yield Problem(path=here, reason=Reason.WRONG_TYPE, text=text)


def _is_texts(kind: Any) -> bool:
    """Return whether a field holds texts by name."""
    return bool(without_bounds(kind, {}) == dict[str, str])


def _not_text(tree: dict[Any, Any], path: str) -> Iterator[Problem]:
    """Yield the values that are not text: in YAML a number or `yes` is none without quotes."""
    for key, value in tree.items():
        if not isinstance(value, str):
            text = f"`{key}` must be text, not {kind_of(value)}"
            yield Problem(
                path=f"{path}.{key}",
                reason=Reason.WRONG_TYPE,
                text=text,
                suggestion="put it in quotes",
            )


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return a level's fields by name; finding out costs most of a millisecond."""
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


@functools.cache
def _levels(struct: type[msgspec.Struct]) -> tuple[tuple[str, type[msgspec.Struct]], ...]:
    """Return the names of the fields that hold a struct, and which."""
    found = ((name, _struct_in(field.type)) for name, field in _fields(struct).items())
    return tuple((name, inner) for name, inner in found if inner is not None)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct a field holds, looking through `| None`."""
    for option in getattr(kind, "__args__", (kind,)):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _values(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with values whose types are right."""
    if spec.version != SPEC_VERSION:
        yield Problem(
            path="$.version",
            reason=Reason.WRONG_VERSION,
            text=f"version {spec.version} is not spoken here",
            suggestion=f"use version {SPEC_VERSION}",
        )
    if not 1 <= len(spec.name) <= NAME_CHARS_MAX or not spec.name.isprintable():
        yield _bad("$.name", f"1 to {NAME_CHARS_MAX} printable characters")
    if not is_token(spec.vc):
        yield _bad("$.vc", "a name of letters, digits, `_` and `-`")
    if (spec.command is None) == (spec.script is None):
        yield Problem(
            path="$.command",
            reason=Reason.MISSING_KEY,
            text="exactly one of `command` and `script` must be given",
        )
    if spec.command is not None and not (spec.command and spec.command[0]):
        yield _bad("$.command", "not empty")
    if spec.script is not None and not spec.script:
        yield _bad("$.script", "not empty")
    if spec.args and spec.script is None:
        yield _bad("$.args", "given only with `script`; put them into `command`")
    if spec.python is not None and not _is_program(spec.python):
        yield _bad("$.python", "the full path of an interpreter, or its name, such as `python3.12`")
    yield from _folders(spec)
    if spec.environment is not None:
        yield from _environment(spec, spec.environment)
    if spec.runtime is not None:
        yield from _runtime(spec.runtime)
    if not 0 <= spec.priority <= PRIORITY_MAX:
        yield _bad("$.priority", f"0 to {PRIORITY_MAX}")
    yield from _texts(spec)
    yield from _secrets(spec)
    yield from _resources(spec.resources)
    yield from _share(spec)
    yield from _mixed(spec)
    if spec.elastic is not None:
        yield from _elastic(spec.elastic, spec.resources)
    if spec.ps is not None:
        yield from _servers(spec.ps)
        if spec.script is None:
            yield Problem(
                path="$.ps",
                reason=Reason.BAD_VALUE,
                text="a job on parameter servers is started by Skep from a `script`",
                suggestion="name the Python file as `script`, the rest as `args`",
            )
    yield from _limits(spec.limits)
    yield from _size(spec.size)
    yield from _deadline(spec)
    yield from _waits(spec)
    yield from _array(spec)
    yield from _volumes(spec)
    yield from _notify(spec)
    yield from resuming.problems(spec)
    yield from _hung(spec)


def _hung(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with how long a job may make no mini-batches, and go unstored."""
    for key in ("restart_hung", "checkpoint_every"):
        said = getattr(spec, key)
        given_s = None if said is None else time_s(said)
        if said is not None and (given_s is None or not PERIOD_MIN_S <= given_s <= TIME_S_MAX):
            yield _bad(f"$.{key}", "seconds, or text such as `5m`, `1h`, 60 seconds to a year")


def _folders(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with where the job runs, its code and its outputs."""
    if not spec.code:
        if spec.workdir is not None and not spec.workdir.startswith("/"):
            yield _bad("$.workdir", "an absolute path")
        if spec.stdin and not spec.stdin.startswith("/"):
            yield _bad("$.stdin", "an absolute path")
        if spec.outputs:
            yield Problem(
                path="$.outputs",
                reason=Reason.BAD_VALUE,
                text="`outputs` are kept of jobs that run in a folder of their own",
                suggestion="give the job its `code`, such as `code: .`",
            )
        return
    if not is_digest(spec.code):
        yield Problem(
            path="$.code",
            reason=Reason.BAD_VALUE,
            text="`code` must be the digest of a snapshot, of 64 hexadecimal digits",
            suggestion="have `skep submit` make one of the folder",
        )
    elsewhere = spec.stdin and not spec.outputs and (spec.workdir or "").startswith("/")
    if spec.workdir not in (None, ".") and not elsewhere and (why := unsafe(spec.workdir or "")):
        yield _bad("$.workdir", f"a path in the folder of `code` ({why})")
    if spec.stdin and (why := unsafe(spec.stdin)):
        yield _bad("$.stdin", f"a path in the folder of `code` ({why})")
    if len(spec.outputs) > OUTPUTS_MAX:
        yield _bad("$.outputs", f"at most {OUTPUTS_MAX} paths")
    for at, path in enumerate(spec.outputs):
        if why := unsafe(path.removesuffix("/")):
            yield _bad(f"$.outputs[{at}]", f"a path in the job's folder ({why})")


def _environment(spec: JobSpec, given: Environment) -> Iterator[Problem]:
    """Yield what is wrong with what the job has installed."""
    kinds = [kind for kind, _ in given.named]
    if spec.runtime is not None:
        text = "the job runs in an image, which has its own environment"
        yield _apart("$.environment", text, "install what is needed into the image")
    if spec.python is not None:
        text = "`python` and `environment` both say which interpreter runs the job"
        yield _apart("$.environment", text, "name it as `environment.python`")
    if len(kinds) > 1:
        text = f"an environment is made of one file, and this names {' and '.join(kinds)}"
        yield _apart("$.environment", text, "leave all but one of them out")
    elif not kinds and not given.python:
        yield _bad("$.environment", "one of `requirements`, `uv`, `conda` and `python`")
    if given.python and not _is_program(given.python):
        yield _bad("$.environment.python", "the full path of an interpreter, or its name")
    if given.python and "conda" in kinds:
        text = "a conda environment has an interpreter of its own"
        yield _apart("$.environment.python", text, "name it in the file, as `python=3.12`")
    for kind, path in given.named:
        if why := unsafe(path):
            yield _bad(f"$.environment.{kind}", f"a path in the snapshot of its files ({why})")
    if len(kinds) == 1 and not is_digest(given.files):
        text = "`environment.files` must be the digest of a snapshot, of 64 hexadecimal digits"
        yield _apart("$.environment.files", text, "have `skep submit` make one of the files")
    elif given.files and not kinds:
        yield _bad("$.environment.files", "left out: no file is named")


def _apart(path: str, text: str, suggestion: str) -> Problem:
    return Problem(path=path, reason=Reason.BAD_VALUE, text=text, suggestion=suggestion)


def _runtime(runtime: Runtime) -> Iterator[Problem]:
    if not _is_image(runtime.image):
        yield _bad("$.runtime.image", "the name of an image, such as `pytorch/pytorch:2.9`")
    if runtime.login and not is_token(runtime.login):
        yield _bad("$.runtime.login", "a secret's name: letters, digits, `_` and `-`")
    if runtime.login and runtime.pull == "never":
        text = "a login is for fetching the image, and this job fetches none"
        yield _apart("$.runtime.login", text, "say `pull: missing` too")


def _is_image(name: str) -> bool:
    return len(name) <= IMAGE_CHARS_MAX and IMAGE.fullmatch(name) is not None


def _is_program(name: str) -> bool:
    """Return whether a text can name a program: a full path, or one word without slashes."""
    fits = 1 <= len(name) <= PATH_CHARS_MAX and name.isprintable()
    return fits and (name.startswith("/") or ("/" not in name and not name.startswith(("-", "@"))))


def _texts(spec: JobSpec) -> Iterator[Problem]:
    if len(spec.env) > ENV_MAX:
        yield _bad("$.env", f"at most {ENV_MAX} variables")
    if len(spec.labels) > LABELS_MAX:
        yield _bad("$.labels", f"at most {LABELS_MAX} labels")
    for name in spec.env:
        if not name or "=" in name:
            yield _bad(f"$.env.{name}", "a name that is not empty and has no `=`")
    command = (spec.command,) if isinstance(spec.command, str) else (spec.command or ())
    parts = (*command, *spec.args, spec.script or "", spec.workdir or "", spec.stdin, *spec.outputs)
    if any("\0" in text for text in (*parts, *spec.env, *spec.env.values())):
        yield _bad("$", "free of NUL characters")


def _secrets(spec: JobSpec) -> Iterator[Problem]:
    if len(spec.secret_names) > SECRETS_PER_JOB_MAX:
        yield _bad("$.secrets", f"at most {SECRETS_PER_JOB_MAX} secrets, files included")
    seen = set(spec.env)
    for key, uses in (("secrets", spec.secrets), ("secret_files", spec.secret_files)):
        for variable, name in uses.items():
            path = f"$.{key}.{variable}"
            if not is_variable(variable):
                yield _bad(path, "a variable's name: letters, digits and `_`")
            elif variable.startswith("SKEP_"):
                yield _bad(path, "another name: those that begin with SKEP_ are Skep's own")
            elif variable in seen:
                yield _bad(path, "given once, by one of `env`, `secrets` and `secret_files`")
            elif not is_token(name):
                yield _bad(path, "a secret's name: letters, digits, `_` and `-`")
            seen.add(variable)


def is_variable(name: str) -> bool:
    """Return whether a text can name an environment variable that a shell can read."""
    return len(name) <= NAME_CHARS_MAX and VARIABLE.fullmatch(name) is not None


def _is_types(text: str) -> bool:
    """Return whether a text may name types of GPUs; a wrong one is shown, in one line."""
    return len(text) <= TYPES_CHARS_MAX and text.isprintable()


def _resources(resources: Resources) -> Iterator[Problem]:
    if not 1 <= resources.gpus <= GPUS_PER_WORKER_MAX:
        yield _bad("$.resources.gpus", GPUS_WANTED)
    if not 1 <= resources.workers <= WORKERS_MAX:
        yield _bad("$.resources.workers", f"1 to {WORKERS_MAX}")
    elif resources.gpus * resources.workers > GANG_GPUS_MAX:
        text = f"it needs {resources.gpus * resources.workers} GPUs; at most {GANG_GPUS_MAX}"
        yield Problem(path="$.resources", reason=Reason.BAD_VALUE, text=f"{text} make one gang")
    if not _is_types(resources.gpu_type or ""):
        yield _bad("$.resources.gpu_type", TYPES_WANTED)
    if not 0 <= resources.cpus <= CPUS_PER_WORKER_MAX:
        yield _bad("$.resources.cpus", f"0 to {CPUS_PER_WORKER_MAX} (CPUs of one worker)")
    if (amount := memory_bytes(resources.memory)) is None or not 0 <= amount <= COUNT_MAX:
        yield _bad("$.resources.memory", "bytes, or text such as `16GiB`")


def _share(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with a share of a GPU, and what a job with one cannot have."""
    resources = spec.resources
    share, memory = resources.share, memory_bytes(resources.gpu_memory)
    if memory is None or not 0 <= memory <= COUNT_MAX:
        yield _bad("$.resources.gpu_memory", "bytes, or text such as `10GiB`")
    if not share:
        if memory:
            yield _bad("$.resources.gpu_memory", "left out, or `gpus` a share such as 0.5")
        return
    if not SHARE_STEP <= share <= SHARE_MOST or share % SHARE_STEP:
        yield _bad("$.resources.share", f"{SHARE_STEP} to {SHARE_MOST} in steps of {SHARE_STEP}")
    if resources.gpus != 1:
        yield _bad("$.resources.gpus", "1 where there is a `share`: it is of one GPU")
    if resources.workers != 1:
        yield _bad(
            "$.resources.workers", "1 for a job with a share of a GPU: a gang has whole ones"
        )
    for key in ("elastic", "ps", "finish_by", "qos"):
        if getattr(spec, key) is not None:
            yield Problem(
                path=f"$.{key}",
                reason=Reason.NOT_BUILT,
                text=f"`{key}` of a job with a share of a GPU is not built yet",
                suggestion=f"leave `{key}` out, or ask for whole GPUs",
            )


def _mixed(spec: JobSpec) -> Iterator[Problem]:
    """Yield what a job whose gang may lie in several chains cannot have, or has to."""
    wanted = spec.resources
    if not wanted.mixed:
        return
    if wanted.workers == 1:
        text = "`mixed` is of a gang, and this job has one worker"
        yield _unmixed("$.resources.mixed", text, "leave `mixed` out, or ask for more workers")
    if wanted.pinned:
        text = f"the pinned cell `{wanted.pinned}` is in one chain, and a mixed gang in several"
        yield _unmixed("$.resources.pinned", text, "leave `mixed` or `pinned` out")
    if wanted.topology is not None and wanted.topology.hard:
        text = f"one {wanted.topology.within} has GPUs of one chain, and a mixed gang of several"
        yield _unmixed("$.resources.topology", text, "leave `mixed` out, or make the wish soft")
    if spec.opportunistic:
        text = "only a guaranteed job may be mixed: idle GPUs are lent in one chain"
        yield _unmixed("$.service_class", text, "leave `mixed` out, or make the job guaranteed")
    if spec.elastic is not None:
        text = "a mixed gang does not grow or shrink"
        yield _unmixed("$.elastic", text, "leave `mixed` or `elastic` out")
    if spec.finish_by is not None or spec.qos is not None:
        text = "nothing is promised to a mixed gang: its speed is not known before it is placed"
        path = "$.finish_by" if spec.finish_by is not None else "$.qos"
        yield _unmixed(path, text, "leave `mixed` or the deadline out")


def _unmixed(path: str, text: str, suggestion: str) -> Problem:
    return Problem(path=path, reason=Reason.NOT_MIXED, text=text, suggestion=suggestion)


def _elastic(elastic: Elastic, resources: Resources) -> Iterator[Problem]:
    workers, most = resources.workers, min(WORKERS_MAX, GANG_GPUS_MAX // max(1, resources.gpus))
    if not 1 <= elastic.min <= workers:
        yield Problem(
            path="$.elastic.min",
            reason=Reason.BAD_VALUE,
            text=f"`min` must be 1 to {workers}, the workers it begins with",
            suggestion=f"use {min(max(1, elastic.min), workers)}",
        )
    if not workers <= elastic.max:
        yield Problem(
            path="$.elastic.max",
            reason=Reason.BAD_VALUE,
            text=f"`max` must be {workers} or more, the workers it begins with",
            suggestion=f"use {workers}",
        )
    elif elastic.max > most:
        yield Problem(
            path="$.elastic.max",
            reason=Reason.BAD_VALUE,
            text=f"{elastic.max} workers of {resources.gpus} GPUs make no gang",
            suggestion=f"use at most {most}",
        )


def _servers(ps: ParameterServers) -> Iterator[Problem]:
    if not 1 <= ps.servers <= SERVERS_MAX:
        yield _bad("$.ps.servers", f"1 to {SERVERS_MAX}")
    elif not 1 <= ps.min <= ps.servers:
        yield _bad("$.ps.min", f"1 to {ps.servers}, the servers it begins with")
    elif not ps.servers <= ps.max <= SERVERS_MAX:
        yield _bad("$.ps.max", f"{ps.servers}, the servers it begins with, to {SERVERS_MAX}")


def _limits(limits: Limits) -> Iterator[Problem]:
    if limits.time is not None:
        length_s = time_s(limits.time)
        if length_s is None or not 1 <= length_s <= TIME_S_MAX:
            yield _bad("$.limits.time", "seconds, or text such as `90s`, `15m`, `2h`, up to a year")
    if limits.warn is not None:
        yield from _warn(limits.warn, limits)
    if not 0 <= limits.retries <= RETRIES_MAX:
        yield _bad("$.limits.retries", f"0 to {RETRIES_MAX}")


def _warn(warn: Warn, limits: Limits) -> Iterator[Problem]:
    """Yield what is wrong with a signal before the time limit."""
    if warn.signal not in WARN_SIGNALS:
        yield Problem(
            path="$.limits.warn.signal",
            reason=Reason.BAD_VALUE,
            text=f"`signal` must be one of {', '.join(WARN_SIGNALS)}",
            suggestion=nearest(warn.signal.upper().removeprefix("SIG"), list(WARN_SIGNALS)),
        )
    before_s = time_s(warn.before)
    if before_s is None or not 1 <= before_s <= TIME_S_MAX:
        yield _bad("$.limits.warn.before", "seconds, or text such as `90s`, `5m`, up to a year")
        return
    if limits.time is None:
        yield Problem(
            path="$.limits.warn",
            reason=Reason.BAD_VALUE,
            text="`warn` is a signal before the time limit, and the job has none",
            suggestion="set `limits.time` too",
        )
        return
    limit_s = time_s(limits.time)
    if limit_s is not None and before_s >= limit_s:
        yield Problem(
            path="$.limits.warn.before",
            reason=Reason.BAD_VALUE,
            text=f"`before` must be less than `limits.time`: {before_s} s of {limit_s} s",
        )


def _size(size: SizeHint) -> Iterator[Problem]:
    for name in ("mini_batches", "epochs", "mini_batches_per_epoch", "batch_size"):
        value = getattr(size, name)
        if value is not None and not 1 <= value <= COUNT_MAX:
            yield _bad(f"$.size.{name}", "1 or more")
    if size.run_time is not None:
        length_s = _run_time_s(size.run_time)
        if length_s is None or not 0 < length_s <= TIME_S_MAX:
            yield _bad("$.size.run_time", "seconds, or text such as `90s`, `15m`, `2h`, to a year")
    if size.family is not None and not 1 <= len(size.family) <= 128:
        yield _bad("$.size.family", "1 to 128 characters")


def _deadline(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with the deadline of a spec, and with what it allows for it."""
    if spec.finish_by is None and spec.willing == WILLING:
        return
    if spec.finish_by is not None:
        problem = time_problem("finish_by", spec.finish_by)
        if problem is not None:
            yield problem
    if spec.willing.gpus is not None and gpus_range(spec.willing.gpus) is None:
        yield _bad(
            "$.willing.gpus", f"a number of GPUs, or a range such as `1..16`, up to {GANG_GPUS_MAX}"
        )
    kinds = spec.willing.types
    if kinds and not all(kind.strip() for kind in kinds.split(TYPES_APART)):
        yield _bad("$.willing.types", "types of GPUs, such as `a100|v100`")


def _waits(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with what a job waits for before it enters its queue."""
    if spec.begin is not None:
        problem = time_problem("begin", spec.begin)
        if problem is not None:
            yield problem
    if spec.after is not None:
        yield from _after(spec.after)
    if spec.pipeline is not None:
        yield from pipeline_problems(spec.pipeline.name, spec.pipeline.max_parallel)
    waits = [key for key in ("after", "begin", "hold", "pipeline") if getattr(spec, key)]
    if waits and spec.finish_by is not None:
        yield Problem(
            path="$.finish_by",
            reason=Reason.BAD_VALUE,
            text=f"a job with `{waits[0]}` cannot have `finish_by`: it is not known when it starts",
            suggestion=f"leave out `finish_by`, or `{waits[0]}`",
        )


def pipeline_problems(name: str, most: int, path: str = "$.pipeline") -> Iterator[Problem]:
    """Yield what is wrong with a bound of a pipeline.

    Args:
        name: The pipeline's name.
        most: Its `max_parallel`.
        path: Where these stand.
    """
    if not is_token(name):
        yield _bad(f"{path}.name", "a name of letters, digits, `_` and `-`")
    if not 1 <= most <= PARALLEL_MAX:
        shown = f", not {most}" if abs(most) <= COUNT_MAX else ""
        yield _bad(f"{path}.max_parallel", f"1 to {PARALLEL_MAX}{shown}")


def _after(after: After) -> Iterator[Problem]:
    named = after.named()
    if not named:
        yield _bad("$.after", "jobs by id or name, such as `ok: [j3]`")
    elif len(named) > AFTER_MAX:
        yield _bad("$.after", f"at most {AFTER_MAX} jobs in all, and there are {len(named)}")
    seen: dict[str, None] = {}
    for kind, at, job in named[:AFTER_MAX]:
        if not 1 <= len(job) <= NAME_CHARS_MAX or not job.isprintable():
            yield _bad(f"$.after.{kind}[{at}]", "the id or the name of a job")
        elif job in seen:
            yield _twice(kind, at, job)
        seen[job] = None


def _twice(kind: str, at: int, job: str) -> Problem:
    return Problem(
        path=f"$.after.{kind}[{at}]",
        reason=Reason.BAD_VALUE,
        text=f"`after` names {job} twice",
        suggestion="name each job once",
    )


def _array(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with the tasks of an array, and what an array cannot have."""
    if spec.array is None:
        return
    tasks = parse_array(spec.array)
    if isinstance(tasks, str):
        hint = "such as `0-99`, `0-9:2`, `1,3,7` or `0-99%8`"
        yield Problem(path="$.array", reason=Reason.BAD_VALUE, text=tasks, suggestion=hint)
    for key in ("finish_by", "qos"):
        if getattr(spec, key) is not None:
            yield Problem(
                path=f"$.{key}",
                reason=Reason.NOT_BUILT,
                text="deadlines of arrays are not built yet",
                suggestion=f"leave `{key}` out, or submit the tasks as jobs",
            )
    given = {*spec.env, *spec.secrets, *spec.secret_files}
    for name in (name for name in VARIABLES if name in given):
        yield _bad(f"$.env.{name}", "left out: Skep gives it to each task of an array")
    if len(spec.env) + len(VARIABLES) > ENV_MAX:
        most = ENV_MAX - len(VARIABLES)
        yield _bad("$.env", f"at most {most} variables in an array")


def _volumes(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with the names and places of volumes."""
    asked = wanted(spec.volumes)
    if len(spec.volumes) > MOUNTS_MAX:
        yield _bad("$.volumes", f"at most {MOUNTS_MAX} volumes")
        return
    if len(asked) < len(spec.volumes):
        yield _bad("$.volumes", "names of volumes, each given once")
    for name, text in asked.items():
        path = f"$.volumes.{name}"
        if not is_token(name):
            yield _bad("$.volumes", f"names of volumes (letters, digits, `_`, `-`), not {name!r}")
            continue
        place, _ = place_and_mode(text)
        if place and (why := place_problem(place)):
            yield Problem(
                path=path,
                reason=Reason.BAD_VALUE,
                text=f"volume `{name}` cannot be at {place[:200]!r}: {why}",
                suggestion="name a place such as `/data` or `/data:ro`, or none",
            )


def _notify(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with whom a job tells; the notifier knows the operator's targets."""
    notify = spec.notify
    if notify is None:
        return
    if not notify.on:
        yield _bad("$.notify.on", "one or more of `end`, `fail`, `start`, `suspend` and `late`")
    if not 1 <= len(notify.to) <= TARGETS_MAX:
        yield _bad("$.notify.to", f"1 to {TARGETS_MAX} targets")
        return
    for at, target in enumerate(notify.to):
        if why := target_trouble(target):
            yield Problem(path=f"$.notify.to[{at}]", reason=Reason.BAD_VALUE, text=why)
    if "late" in notify.on and spec.finish_by is None:
        yield Problem(
            path="$.notify.on",
            reason=Reason.BAD_VALUE,
            text="`late` tells that `finish_by` has passed, and the job has none",
            suggestion="set `finish_by`, or leave `late` out",
        )


def _run_time_s(value: float | str) -> float | None:
    return time_s(value) if isinstance(value, str) else value


def _bad(path: str, wanted: str) -> Problem:
    name = path.rsplit(".", 1)[-1]
    return Problem(path=path, reason=Reason.BAD_VALUE, text=f"`{name}` must be {wanted}")


def _normalised(spec: JobSpec) -> JobSpec:
    if spec.promise is not None or spec.mounts:
        spec = msgspec.structs.replace(spec, promise=None, mounts=())
    said = (
        spec.resources.memory,
        spec.resources.gpu_memory,
        spec.limits.time,
        spec.size.run_time,
        spec.finish_by,
        spec.begin,
        spec.restart_hung,
        spec.checkpoint_every,
        None if spec.limits.warn is None else spec.limits.warn.before,
    )
    if not any(isinstance(each, str) for each in said):
        return spec
    memory = memory_bytes(spec.resources.memory)
    gpu_memory = memory_bytes(spec.resources.gpu_memory)
    limit_s = None if spec.limits.time is None else time_s(spec.limits.time)
    assert memory is not None, spec
    replace: Callable[..., Any] = msgspec.structs.replace
    resources = replace(spec.resources, memory=memory, gpu_memory=gpu_memory)
    limits = replace(spec.limits, time=limit_s)
    if limits.warn is not None:
        limits = replace(limits, warn=replace(limits.warn, before=time_s(limits.warn.before)))
    done: JobSpec = replace(spec, resources=resources, limits=limits)
    if isinstance(spec.size.run_time, str):
        size = replace(spec.size, run_time=float(time_s(spec.size.run_time) or 0))
        done = replace(done, size=size)
    if isinstance(spec.finish_by, str):
        done = replace(done, finish_by=normal_time(spec.finish_by))
    if isinstance(spec.begin, str):
        done = replace(done, begin=normal_time(spec.begin))
    for key in ("restart_hung", "checkpoint_every"):
        if isinstance(said := getattr(spec, key), str):
            done = replace(done, **{key: time_s(said)})
    return done


def kind_of(value: Any) -> str:
    """Return what a decoded value is, in a reader's words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")
