"""Templates: filled in by admission and by clients alike, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Restarted
from skep.policy.check import TEMPLATE_BYTES_MAX, parse_cluster
from skep.wire.admin import SetVcs
from skep.wire.cluster import Cluster, Template, VirtualCluster
from skep.wire.facts import Admitted
from skep.wire.parse import parse_spec, parse_tree
from skep.wire.reasons import Reason
from skep.wire.search import parse_search_tree
from skep.wire.spec import JobSpec, Problem
from skep.wire.templates import filled
from tests.kit import Driver, facts_of, submission

TRAIN = Template(
    spec={
        "command": "python train.py",
        "resources": {"gpus": 2, "gpu_type": "cpu", "memory": "2GiB"},
        "env": {"LR": "0.1"},
        "limits": {"retries": 2},
        "priority": 5,
    },
    fixed=("resources.gpu_type",),
)
KNOWN = {"train": TRAIN}
JOB = {"name": "a", "vc": "nlp", "template": "train"}


def read(**own: Any) -> JobSpec:
    spec = parse_tree({**JOB, **own}, KNOWN)
    assert isinstance(spec, JobSpec), spec
    return spec


def test_what_the_job_says_goes_before_what_the_template_says() -> None:
    spec = read(resources={"gpus": 1}, env={"SEED": "1"}, limits=None, priority=0)
    assert (spec.template, spec.from_template) == ("", "train")
    assert (spec.resources.gpus, spec.resources.gpu_type) == (1, "cpu")
    assert spec.resources.memory == 2 * 2**30
    assert spec.env == {"LR": "0.1", "SEED": "1"}
    assert (spec.limits.retries, spec.priority) == (0, 0)
    # What was accepted is whole: it is read again as it is, wherever the template went.
    assert parse_spec(msgspec.json.encode(spec), {}) == spec


def test_a_share_goes_before_a_whole_gpu_and_the_other_way_round() -> None:
    assert read(resources={"gpus": 0.5}).resources.share == 500
    half = {"half": Template(spec={"command": "x", "resources": {"gpus": 0.5}})}
    spec = parse_tree({**JOB, "template": "half", "resources": {"gpus": 2}}, half)
    assert isinstance(spec, JobSpec)
    assert (spec.resources.gpus, spec.resources.share) == (2, 0)


@pytest.mark.parametrize(
    "own, known, path, reason",
    [
        ({"template": "tain"}, KNOWN, "template", Reason.UNKNOWN_TEMPLATE),
        ({"template": "train"}, {}, "template", Reason.UNKNOWN_TEMPLATE),
        ({"template": 3}, KNOWN, "template", Reason.WRONG_TYPE),
        ({"template": "train"}, None, "template", Reason.NOT_BUILT),
        (
            {"resources": {"gpu_type": "a100"}},
            KNOWN,
            "resources.gpu_type",
            Reason.FIXED_BY_TEMPLATE,
        ),
        ({"resources": {"gpus": 99}}, KNOWN, "resources.gpus", Reason.BAD_VALUE),
        ({"script": "b.py"}, KNOWN, "command", Reason.MISSING_KEY),
    ],
)
def test_what_cannot_be_filled_in_is_refused_in_one_line(
    own: dict[str, Any], known: dict[str, Template] | None, path: str, reason: Reason
) -> None:
    problems = parse_tree({**JOB, **own}, known)
    assert isinstance(problems, list)
    assert [(each.path, each.reason) for each in problems] == [(f"$.{path}", reason)]


def test_the_same_value_as_the_fixed_one_may_be_said() -> None:
    assert read(resources={"gpu_type": "cpu"}).resources.gpu_type == "cpu"


def test_a_search_says_that_its_trials_have_none() -> None:
    tree = {"name": "s", "vc": "nlp", "job": {"template": "train"}, "trials": 3}
    problems = parse_search_tree(tree)
    assert isinstance(problems, list)
    assert any(each.reason is Reason.NOT_BUILT and "template" in each.path for each in problems)


def test_what_is_deep_or_no_object_is_taken_whole() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(5000):
        inner["a"] = inner = {}
    whole = filled({"template": "deep", "labels": deep}, {"deep": Template(spec={"labels": deep})})
    assert not isinstance(whole, Problem)
    assert whole["from_template"] == "deep"


# --- admission -----------------------------------------------------------------------------------


def test_admission_fills_in_the_templates_of_the_vc_that_asks() -> None:
    decide = Driver(AdmissionMachine)
    decide(Restarted(1))
    owned = {"nlp": VirtualCluster(gpus=4, templates=KNOWN), "vision": VirtualCluster(gpus=4)}
    decide(SetVcs(vcs=owned))
    (spec,) = [
        fact.spec for fact in facts_of(decide(submission(1, raw=JOB))) if isinstance(fact, Admitted)
    ]
    assert (spec.from_template, spec.resources.gpus, spec.template) == ("train", 2, "")
    decide(submission(2, raw={**JOB, "vc": "vision"}, vc="vision"))
    assert "j2" not in decide.machine.active


# --- the cluster file ----------------------------------------------------------------------------


def cluster(**templates: Any) -> Cluster | list[Problem]:
    return parse_cluster({"vcs": {"nlp": {"gpus": 4, "templates": templates}}})


def test_a_cluster_file_has_templates() -> None:
    found = cluster(train={"spec": {"priority": 3}, "fixed": ["priority"], "about": "for papers"})
    assert isinstance(found, Cluster), found
    assert found.vcs["nlp"].templates["train"].about == "for papers"


@pytest.mark.parametrize(
    "template, path",
    [
        ({"spec": {"resources": {"gpus": 99}}}, ".spec.resources.gpus"),
        ({"spec": {"resuorces": {}}}, ".spec.resuorces"),
        ({"spec": {"vc": "nlp"}}, ".spec.vc"),
        ({"spec": {"template": "train"}}, ".spec.template"),
        ({"spec": {}, "fixed": ["priority"]}, ".fixed"),
        ({"spec": {}, "fixed": "priority"}, ".fixed"),
        ({"spec": []}, ".spec"),
        ({"specs": {}}, ".specs"),
        ([], ""),
        ({"spec": {"env": {"A": "x" * TEMPLATE_BYTES_MAX}}}, ""),
    ],
)
def test_a_template_that_makes_no_job_is_refused_in_one_line(template: Any, path: str) -> None:
    problems = cluster(train=template)
    assert isinstance(problems, list)
    assert [each.path for each in problems] == [f"$.vcs.nlp.templates.train{path}"]


def test_names_and_numbers_of_templates_are_bounded() -> None:
    (problem,) = cluster(**{"no name": {"spec": {}}})  # type: ignore[misc]
    assert problem.path == "$.vcs.nlp.templates.no name"
    (problem,) = cluster(**{f"t{at}": {"spec": {}} for at in range(33)})  # type: ignore[misc]
    assert (problem.path, problem.reason) == ("$.vcs.nlp.templates", Reason.TOO_LARGE)
