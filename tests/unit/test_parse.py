"""Reading specs: what is accepted, and the path, reason and suggestion of every refusal."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.units import GIB
from skep.wire import parse
from skep.wire.parse import PROBLEMS_MAX, TYPES_WANTED, memory_bytes, parse_spec, parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import (
    ENV_MAX,
    LABELS_MAX,
    NOT_BUILT,
    SPEC_BYTES_MAX,
    JobSpec,
    Limits,
    ParameterServers,
    Problem,
    Resources,
    SizeHint,
    Topology,
)
from skep.wire.times import time_s

GPUS = "1 to 16, or a share of one GPU in tenths: 0.1 to 0.9"
SMALL = {"name": "train", "vc": "nlp", "command": ["python", "train.py"]}


def problems(tree: Any) -> list[tuple[str, Reason, str, str]]:
    found = parse_tree(tree)
    assert isinstance(found, list), found
    return [(each.path, each.reason, each.text, each.suggestion) for each in found]


def with_(path: str, value: Any) -> dict[str, Any]:
    """Return the small spec with one value put in at a dotted path."""
    tree: dict[str, Any] = json.loads(json.dumps(SMALL))
    *parents, last = path.split(".")
    level = tree
    for parent in parents:
        level = level.setdefault(parent, {})
    level[last] = value
    return tree


# --- accepted -----------------------------------------------------------------------------------


def test_the_smallest_spec() -> None:
    assert parse_spec(json.dumps(SMALL).encode()) == JobSpec(
        name="train", vc="nlp", command=("python", "train.py")
    )


def test_a_whole_spec_comes_back_with_seconds_and_bytes() -> None:
    tree = {
        "name": "gang",
        "vc": "nlp",
        "version": 1,
        "kind": "training",
        "script": "train.py",
        "args": ["--epochs", "3"],
        "workdir": "/data",
        "env": {"A": "1"},
        "resources": {
            "gpus": 2,
            "workers": 4,
            "gpu_type": "h200",
            "cpus": 8,
            "memory": "16GiB",
            "topology": {"within": "node", "hard": True},
        },
        "priority": 7,
        "service_class": "opportunistic",
        "over_quota": "refuse",
        "limits": {"time": "2h", "retries": 3, "retry_on": ["exit", "signal", "not-started"]},
        "size": {"epochs": 3, "mini_batches_per_epoch": 10, "batch_size": 32, "family": "resnet"},
        "labels": {"who": "me"},
    }
    assert parse_tree(tree) == JobSpec(
        name="gang",
        vc="nlp",
        script="train.py",
        args=("--epochs", "3"),
        workdir="/data",
        env={"A": "1"},
        resources=Resources(
            gpus=2,
            workers=4,
            gpu_type="h200",
            cpus=8,
            memory=16 * GIB,
            topology=Topology(hard=True),
        ),
        priority=7,
        service_class="opportunistic",
        over_quota="refuse",
        limits=Limits(time=7200, retries=3, retry_on=("exit", "signal", "not-started")),
        size=SizeHint(epochs=3, mini_batches_per_epoch=10, batch_size=32, family="resnet"),
        labels={"who": "me"},
    )


def test_one_line_for_the_shell_is_a_command() -> None:
    assert parse_tree(with_("command", "python train.py | tee log")) == JobSpec(
        name="train", vc="nlp", command="python train.py | tee log"
    )


def test_what_was_read_once_is_read_again_unchanged() -> None:
    spec = parse_tree(with_("limits.time", "90s"))
    assert isinstance(spec, JobSpec)
    assert parse_spec(msgspec.json.encode(spec)) == spec


def test_a_topology_that_is_null_is_none() -> None:
    spec = parse_tree(with_("resources.topology", None))
    assert isinstance(spec, JobSpec)
    assert spec.resources.topology is None


RUN_TIME = "`run_time` must be seconds, or text such as `90s`, `15m`, `2h`, to a year"


@pytest.mark.parametrize(
    "text, length_s",
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86_400),
        (" 5s ", 5),
        (30, 30),
        ("", None),
        ("5", None),
        ("5 s", None),
        ("-5s", None),
        ("1.5h", None),
        ("5w", None),
        ("9" * 12 + "s", None),
    ],
)
def test_times(text: str | int, length_s: int | None) -> None:
    assert time_s(text) == length_s


@pytest.mark.parametrize(
    "text, amount",
    [
        ("16GiB", 16 * GIB),
        ("16Gi", 16 * GIB),
        ("16 GB", 16 * 10**9),
        ("16G", 16 * 10**9),
        ("3MiB", 3 * 2**20),
        ("3KB", 3000),
        ("1TiB", 2**40),
        ("512B", 512),
        ("512", 512),
        (7, 7),
        ("", None),
        ("GiB", None),
        ("16XB", None),
        ("-1", None),
        ("1.5GiB", None),
        ("9" * 16, None),
    ],
)
def test_memory(text: str | int, amount: int | None) -> None:
    assert memory_bytes(text) == amount


# --- refused as a whole -------------------------------------------------------------------------


def test_a_spec_that_is_too_large_is_not_even_read() -> None:
    raw = b"[" * (SPEC_BYTES_MAX + 1)
    assert parse_spec(raw) == [
        Problem(
            path="$",
            reason=Reason.TOO_LARGE,
            text="the spec has 65537 bytes; at most 65536 are accepted",
        )
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"name: train",
        b"\xff\xfe",
        b'{"name": "\\ud800"}',
        b"NaN",
        b"9" * 5000,
        b'{"a":' * 10_000,
        b"[" * 60_000,
        b'{"name": "x"} trailing',
    ],
)
def test_what_is_not_json(raw: bytes) -> None:
    found = parse_spec(raw)
    assert isinstance(found, list)
    assert [(each.path, each.reason) for each in found] == [("$", Reason.NOT_JSON)]
    assert found[0].text.startswith("not JSON: ")


@pytest.mark.parametrize(
    "tree, kind",
    [
        ([], "a list"),
        ("x", "text"),
        (True, "true or false"),
        (None, "null"),
        (7, "a number"),
        (1.5, "a number"),
    ],
)
def test_a_spec_is_an_object(tree: Any, kind: str) -> None:
    text = f"a spec is an object with keys, not {kind}"
    assert problems(tree) == [("$", Reason.WRONG_TYPE, text, "")]


# --- refused for its keys -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, suggestion",
    [
        ("comand", "did you mean `command`?"),
        ("resources.gpu", "did you mean `gpus`?"),
        ("resources.topology.with", "did you mean `within`?"),
        ("limits.retrys", "did you mean `retries`?"),
        ("size.minibatches", "did you mean `mini_batches`?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_key_names_the_nearest(path: str, suggestion: str) -> None:
    key = path.rsplit(".", maxsplit=1)[-1]
    assert problems(with_(path, 1)) == [
        (f"$.{path}", Reason.UNKNOWN_KEY, f"unknown key `{key}`", suggestion)
    ]


def test_a_key_of_a_yaml_file_may_be_no_text() -> None:
    assert problems({**SMALL, 7: 1}) == [("$.7", Reason.UNKNOWN_KEY, "unknown key `7`", "")]


def test_required_keys() -> None:
    assert problems({"command": "true"}) == [
        ("$.name", Reason.MISSING_KEY, "`name` is required", ""),
        ("$.vc", Reason.MISSING_KEY, "`vc` is required", ""),
    ]


@pytest.mark.parametrize("key", list(NOT_BUILT))
def test_parts_of_the_schema_to_come_are_refused_as_such(key: str) -> None:
    text = f"{NOT_BUILT[key]} are not built yet"
    assert problems(with_(key, {})) == [(f"$.{key}", Reason.NOT_BUILT, text, f"leave `{key}` out")]


@pytest.mark.parametrize(
    "image", ["a", "pytorch/pytorch:2.9", "host.example:5000/A/b@sha256:" + "0" * 64]
)
def test_a_runtime_is_an_image(image: str) -> None:
    spec = parse_tree(with_("runtime", {"image": image}))
    assert isinstance(spec, JobSpec)
    assert spec.runtime is not None
    assert spec.runtime.image == image
    assert msgspec.convert(msgspec.to_builtins(spec), JobSpec) == spec


def test_a_runtime_without_an_image() -> None:
    assert problems(with_("runtime", {})) == [
        ("$.runtime.image", Reason.MISSING_KEY, "`image` is required", "")
    ]


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told, normal",
    [
        ("8h", 28_800),
        (90, 90),
        ("2026-11-24T08:00+01:00", "2026-11-24T07:00:00Z"),
        ("2026-11-24 08:00:30Z", "2026-11-24T08:00:30Z"),
    ],
)
def test_a_deadline_has_one_form(told: Any, normal: Any) -> None:
    read = parse_tree(with_("finish_by", told))
    assert isinstance(read, JobSpec)
    assert read.finish_by == normal
    assert parse_spec(msgspec.json.encode(read)) == read


@pytest.mark.parametrize(
    "key, value, reason, said",
    [
        ("finish_by", "2026-11-24T08:00", Reason.NO_TIME_ZONE, "has no time zone"),
        ("finish_by", "soon", Reason.BAD_VALUE, "must be a time with its zone"),
        ("finish_by", "2026-11-24", Reason.BAD_VALUE, "must be a time with its zone"),
        ("finish_by", "1969-01-01T00:00Z", Reason.BAD_VALUE, "after 1970"),
        ("finish_by", "0s", Reason.BAD_VALUE, "a second to a year"),
        ("finish_by", "366d", Reason.BAD_VALUE, "a second to a year"),
        ("qos", "urgnt", Reason.UNKNOWN_CLASS, "one of urgent, prior, normal"),
        ("late", "never", Reason.BAD_VALUE, "one of accept, opportunistic, refuse, cancel"),
        ("willing.gpus", "9..1", Reason.BAD_VALUE, "a range such as `1..16`"),
        ("willing.gpus", "1..99999", Reason.BAD_VALUE, "up to 8192"),
        ("willing.types", "a100|", Reason.BAD_VALUE, "such as `a100|v100`"),
        ("willing.profile", "maybe", Reason.BAD_VALUE, "one of allowed, refused, not `maybe`"),
    ],
)
def test_a_bad_deadline_is_refused_in_one_line(
    key: str, value: Any, reason: Reason, said: str
) -> None:
    ((path, why, text, _),) = problems(with_(key, value))
    assert (path, why) == (f"$.{key}", reason)
    assert said in text
    assert "\n" not in text


def test_a_time_without_its_zone_is_told_how_to_have_one() -> None:
    ((_, _, _, suggestion),) = problems(with_("finish_by", "2026-11-24T08:00"))
    assert "`2026-11-24T08:00Z` is in UTC" in suggestion


def test_what_admission_writes_is_taken_out_of_a_spec() -> None:
    read = parse_tree(with_("promise", {"answer": "accepted", "due": 1}))
    assert isinstance(read, JobSpec)
    assert read.promise is None


# --- refused for types and values ---------------------------------------------------------------


@pytest.mark.parametrize(
    "path, value, text",
    [
        ("name", 7, "Expected `str`, got `int`"),
        ("command", 7, "Expected `str | array | null`, got `int`"),
        ("command", ["a", 7], "Expected `str`, got `int` - at `$.command[1]`"),
        ("env", {7: "x"}, "Expected `str`, got `int` - at `key` in `$.env`"),
        ("resources", 7, "Expected `object`, got `int`"),
        ("resources.gpus", "2", "Expected `int`, got `str`"),
        ("resources.gpus", True, "Expected `int`, got `bool`"),
        ("resources.topology", "node", "Expected `object | null`, got `str`"),
        ("resources.topology.within", 3, "Expected `str`, got `int`"),
        ("kind", "serving", "Invalid enum value 'serving'"),
        ("service_class", "best-effort", "Invalid enum value 'best-effort'"),
        ("over_quota", "steal", "Invalid enum value 'steal'"),
        ("limits.retry_on", ["oom"], "Invalid enum value 'oom' - at `$.limits.retry_on[0]`"),
        ("runtime", "docker", "Expected `object | null`, got `str`"),
        ("runtime.image", 7, "Expected `str`, got `int`"),
        ("labels", [], "Expected `object`, got `array`"),
    ],
)
def test_wrong_types(path: str, value: Any, text: str) -> None:
    assert problems(with_(path, value)) == [(f"$.{path}", Reason.WRONG_TYPE, text, "")]


@pytest.mark.parametrize(
    "path, value, text",
    [
        ("name", "", "`name` must be 1 to 128 printable characters"),
        ("name", "x" * 129, "`name` must be 1 to 128 printable characters"),
        ("name", "a\nb", "`name` must be 1 to 128 printable characters"),
        ("vc", "a.b", "`vc` must be a name of letters, digits, `_` and `-`"),
        ("vc", "", "`vc` must be a name of letters, digits, `_` and `-`"),
        ("command", [], "`command` must be not empty"),
        ("command", "", "`command` must be not empty"),
        ("command", [""], "`command` must be not empty"),
        ("args", ["x"], "`args` must be given only with `script`; put them into `command`"),
        ("workdir", "data", "`workdir` must be an absolute path"),
        ("priority", -1, "`priority` must be 0 to 1000"),
        ("priority", 1001, "`priority` must be 0 to 1000"),
        ("priority", 10**30, "`priority` must be 0 to 1000"),
        ("resources.gpus", 0, f"`gpus` must be {GPUS}"),
        ("resources.gpus", 1.5, f"`gpus` must be {GPUS}, not 1.5"),
        ("resources.gpus", 17, f"`gpus` must be {GPUS}"),
        ("resources.workers", 0, "`workers` must be 1 to 8192"),
        ("resources.gpu_type", "a100\nh100", f"`gpu_type` must be {TYPES_WANTED}"),
        ("resources.gpu_type", "a\x1b[31m", f"`gpu_type` must be {TYPES_WANTED}"),
        ("resources.gpu_type", "t|" * 999, f"`gpu_type` must be {TYPES_WANTED}"),
        ("resources.workers", 8193, "`workers` must be 1 to 8192"),
        (
            "resources",
            {"gpus": 8, "workers": 1025},
            "it needs 8200 GPUs; at most 8192 make one gang",
        ),
        ("resources.cpus", -1, "`cpus` must be 0 to 4096 (CPUs of one worker)"),
        ("resources.memory", -1, "`memory` must be bytes, or text such as `16GiB`"),
        ("resources.memory", 2**53 + 1, "`memory` must be bytes, or text such as `16GiB`"),
        ("resources.memory", "lots", "`memory` must be bytes, or text such as `16GiB`"),
        ("limits.retries", 101, "`retries` must be 0 to 100"),
        ("limits.retries", -1, "`retries` must be 0 to 100"),
        (
            "limits.time",
            0,
            "`time` must be seconds, or text such as `90s`, `15m`, `2h`, up to a year",
        ),
        (
            "limits.time",
            "366d",
            "`time` must be seconds, or text such as `90s`, `15m`, `2h`, up to a year",
        ),
        (
            "limits.time",
            "soon",
            "`time` must be seconds, or text such as `90s`, `15m`, `2h`, up to a year",
        ),
        ("size.mini_batches", 0, "`mini_batches` must be 1 or more"),
        ("size.epochs", -1, "`epochs` must be 1 or more"),
        ("size.mini_batches_per_epoch", 0, "`mini_batches_per_epoch` must be 1 or more"),
        ("size.batch_size", 2**53 + 1, "`batch_size` must be 1 or more"),
        ("size.run_time", 0, RUN_TIME),
        ("size.run_time", "soon", RUN_TIME),
        ("size.run_time", 1e9, RUN_TIME),
        ("size.family", "", "`family` must be 1 to 128 characters"),
        (
            "runtime.image",
            "",
            "`image` must be the name of an image, such as `pytorch/pytorch:2.9`",
        ),
        (
            "runtime.image",
            "a b",
            "`image` must be the name of an image, such as `pytorch/pytorch:2.9`",
        ),
        (
            "runtime.image",
            "--privileged",
            "`image` must be the name of an image, such as `pytorch/pytorch:2.9`",
        ),
        (
            "runtime.image",
            "a" * 513,
            "`image` must be the name of an image, such as `pytorch/pytorch:2.9`",
        ),
        ("env", {"": "1"}, "`` must be a name that is not empty and has no `=`"),
    ],
)
def test_absurd_values(path: str, value: Any, text: str) -> None:
    where = "$.env." if path == "env" else f"$.{path}"
    assert problems(with_(path, value)) == [(where, Reason.BAD_VALUE, text, "")]


@pytest.mark.parametrize(
    "value, kind",
    [
        (1, "a number"),
        (1.5, "a number"),
        (True, "true or false"),
        (None, "null"),
        ([], "a list"),
        ({}, "an object"),
    ],
)
@pytest.mark.parametrize("key", ["env", "labels"])
def test_values_of_variables_and_labels_are_text(key: str, value: Any, kind: str) -> None:
    text = f"`B` must be text, not {kind}"
    assert problems(with_(key, {"A": "x", "B": value})) == [
        (f"$.{key}.B", Reason.WRONG_TYPE, text, "put it in quotes")
    ]


def test_an_empty_script() -> None:
    tree = {"name": "train", "vc": "nlp", "script": ""}
    assert problems(tree) == [("$.script", Reason.BAD_VALUE, "`script` must be not empty", "")]


def test_an_environment_variable_has_a_name() -> None:
    text = "`A=B` must be a name that is not empty and has no `=`"
    assert problems(with_("env", {"A=B": "1"})) == [("$.env.A=B", Reason.BAD_VALUE, text, "")]


@pytest.mark.parametrize(
    "path, value",
    [
        ("command", ["a\0"]),
        ("command", "a\0"),
        ("workdir", "/\0"),
        ("env", {"A": "\0"}),
        ("env", {"A\0": ""}),
    ],
)
def test_nothing_that_reaches_a_process_holds_a_nul(path: str, value: Any) -> None:
    text = "`$` must be free of NUL characters"
    assert problems(with_(path, value)) == [("$", Reason.BAD_VALUE, text, "")]


@pytest.mark.parametrize("tree", [{"script": "a\0"}, {"script": "a", "args": ["\0"]}])
def test_nor_does_a_script_or_its_arguments(tree: dict[str, Any]) -> None:
    text = "`$` must be free of NUL characters"
    whole = {"name": "train", "vc": "nlp", **tree}
    assert problems(whole) == [("$", Reason.BAD_VALUE, text, "")]


@pytest.mark.parametrize("extra", [{}, {"command": "true", "script": "train.py"}])
def test_one_of_command_and_script(extra: dict[str, str]) -> None:
    text = "exactly one of `command` and `script` must be given"
    tree = {"name": "train", "vc": "nlp", **extra}
    assert problems(tree) == [("$.command", Reason.MISSING_KEY, text, "")]


def test_another_version() -> None:
    assert problems(with_("version", 2)) == [
        ("$.version", Reason.WRONG_VERSION, "version 2 is not spoken here", "use version 1")
    ]


def test_too_many_variables_and_labels() -> None:
    many = {f"v{i}": "" for i in range(ENV_MAX + 1)}
    labels = {f"l{i}": "" for i in range(LABELS_MAX + 1)}
    assert problems({**SMALL, "env": many, "labels": labels}) == [
        ("$.env", Reason.BAD_VALUE, f"`env` must be at most {ENV_MAX} variables", ""),
        ("$.labels", Reason.BAD_VALUE, f"`labels` must be at most {LABELS_MAX} labels", ""),
    ]


# --- many problems ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "elastic, found",
    [
        ({"min": 0, "max": 4}, [("$.elastic.min", "use 1")]),
        ({"min": 3, "max": 4}, [("$.elastic.min", "use 2")]),
        ({"min": 1, "max": 1}, [("$.elastic.max", "use 2")]),
        ({"min": 3, "max": 1}, [("$.elastic.min", "use 2"), ("$.elastic.max", "use 2")]),
        ({"min": 1, "max": 2049}, [("$.elastic.max", "use at most 2048")]),
        ({"mni": 1, "max": 4}, [("$.elastic.mni", "did you mean `min`?"), ("$.elastic.min", "")]),
    ],
)
def test_sizes_of_a_gang_are_around_that_of_the_spec(
    elastic: dict[str, int], found: list[tuple[str, str]]
) -> None:
    tree = {**SMALL, "resources": {"workers": 2, "gpus": 4}, "elastic": elastic}
    assert [(path, suggestion) for path, _, _, suggestion in problems(tree)] == found


@pytest.mark.parametrize(
    "ps, found",
    [
        ({"servers": 0}, "`servers` must be 1 to 64"),
        ({"servers": 2, "min": 3}, "`min` must be 1 to 2, the servers it begins with"),
        ({"servers": 2, "max": 1}, "`max` must be 2, the servers it begins with, to 64"),
        ({"servers": 2, "max": 65}, "`max` must be 2, the servers it begins with, to 64"),
        ({"severs": 2}, "unknown key `severs`"),
    ],
)
def test_parameter_servers_are_counted(ps: dict[str, int], found: str) -> None:
    script = {"name": "x", "vc": "nlp", "script": "train.py"}
    ((_, _, text, suggestion),) = problems({**script, "ps": ps})
    assert text == found
    assert suggestion == ("did you mean `servers`?" if "severs" in ps else "")
    parsed = parse_tree({**script, "ps": {"servers": 2, "max": 4}})
    assert isinstance(parsed, JobSpec)
    assert parsed.ps == ParameterServers(servers=2, min=1, max=4)


def test_parameter_servers_need_a_script() -> None:
    ((path, _, _, suggestion),) = problems({**SMALL, "ps": {"servers": 1}})
    assert (path, suggestion) == ("$.ps", "name the Python file as `script`, the rest as `args`")


def test_every_problem_is_found_at_once_in_order() -> None:
    tree = {"vc": 7, "nmae": "x", "roles": {}, "resources": {"gpus": "two", "nodes": 3}}
    assert [(path, reason) for path, reason, *_ in problems(tree)] == [
        ("$.roles", Reason.NOT_BUILT),
        ("$.nmae", Reason.UNKNOWN_KEY),
        ("$.name", Reason.MISSING_KEY),
        ("$.vc", Reason.WRONG_TYPE),
        ("$.resources.nodes", Reason.UNKNOWN_KEY),
        ("$.resources.gpus", Reason.WRONG_TYPE),
    ]


def test_no_more_problems_are_looked_for_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nearest(word: str, words: list[str]) -> str:
        asked.append(word)
        return words[0]

    monkeypatch.setattr(parse, "nearest", nearest)
    found = parse_tree({**SMALL, **{f"priorit{i}": 1 for i in range(4_000)}})
    assert isinstance(found, list)
    assert len(found) == PROBLEMS_MAX
    assert asked == [f"priorit{i}" for i in range(PROBLEMS_MAX)]


def test_values_are_bounded_too() -> None:
    assert len(problems(with_("env", {f"a={i}": "" for i in range(100)}))) == PROBLEMS_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)
KEYS = [*JobSpec.__struct_fields__, *Resources.__struct_fields__, *NOT_BUILT]


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_tree_is_read_or_refused_with_paths(tree: dict[str, Any]) -> None:
    found = parse_tree({**SMALL, **tree})
    if isinstance(found, list):
        assert 1 <= len(found) <= PROBLEMS_MAX
        assert all(each.path.startswith("$") and each.text for each in found)
    else:
        assert parse_spec(msgspec.json.encode(found)) == found


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    found = parse_spec(raw)
    assert isinstance(found, JobSpec) or found


# --- what a spec says of itself -----------------------------------------------------------------


def test_the_gang_has_the_gpus_of_all_workers() -> None:
    spec = JobSpec(name="x", vc="nlp", resources=Resources(gpus=2, workers=3))
    assert spec.gpus == 6
    assert not spec.opportunistic


@pytest.mark.parametrize(
    "size, total",
    [
        (SizeHint(), None),
        (SizeHint(mini_batches=7, epochs=2, mini_batches_per_epoch=5), 7),
        (SizeHint(epochs=2, mini_batches_per_epoch=5), 10),
        (SizeHint(epochs=2), None),
        (SizeHint(mini_batches_per_epoch=5), None),
    ],
)
def test_the_mini_batches_of_a_whole_job(size: SizeHint, total: int | None) -> None:
    assert size.total() == total


@pytest.mark.parametrize("told, seconds", [(90, 90.0), (0.5, 0.5), ("2h", 7200.0)])
def test_how_long_a_job_is_expected_to_run_is_in_seconds(told: Any, seconds: float) -> None:
    read = parse_tree(with_("size.run_time", told))
    assert isinstance(read, JobSpec)
    assert read.size.run_time == seconds


@pytest.mark.parametrize(
    "more, wanted",
    [
        ({}, False),
        ({"resources": {"workers": 2}}, True),
        ({"elastic": {"min": 1, "max": 2}}, True),
        ({"ps": {"servers": 1}, "script": "t.py", "command": None}, True),
        ({"distributed": True}, True),
        ({"resources": {"workers": 2}, "distributed": False}, False),
    ],
)
def test_gangs_are_told_their_ranks_and_single_workers_where_asked(
    more: dict[str, Any], wanted: bool
) -> None:
    tree = {"name": "a", "vc": "b", "command": "true", **more}
    spec = parse_tree(tree)
    assert isinstance(spec, JobSpec), spec
    assert spec.is_distributed is wanted


@pytest.mark.parametrize("python", ["", "bin/python", "-c", "@python", "a\nb", "/" * 4097, "~/p"])
def test_an_interpreter_is_a_full_path_or_a_name(python: str) -> None:
    tree = {"name": "a", "vc": "b", "script": "t.py"}
    found = parse_tree({**tree, "python": python})
    assert isinstance(found, list), found
    assert [problem.path for problem in found] == ["$.python"]
    for good in ("/opt/my env/bin/python", "python3.12"):
        assert isinstance(parse_tree({**tree, "python": good}), JobSpec)
