"""What a spec may say of its environment, and what nodes are told of it."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.allocator import outbox
from skep.wire.parse import parse_tree
from skep.wire.spec import JobSpec

FILES = "a" * 64
SPEC = {"name": "a", "vc": "nlp", "command": "true"}


def problems(environment: Any, **more: Any) -> list[str]:
    found = parse_tree({**SPEC, "environment": environment, **more})
    assert not isinstance(found, JobSpec), found
    return [f"{one.path}: {one.text}" for one in found]


def spec(environment: dict[str, str]) -> JobSpec:
    found = parse_tree({**SPEC, "environment": environment})
    assert isinstance(found, JobSpec), found
    return found


@pytest.mark.parametrize(
    "environment, more, told",
    [
        ({}, {}, "$.environment: `environment` must be one of `requirements`"),
        ({"requirements": "r.txt", "uv": "uv.lock"}, {}, "requirements and uv"),
        ({"requirements": "r.txt"}, {}, "$.environment.files: `environment.files` must be the"),
        ({"requirements": "r.txt", "files": "abc"}, {}, "of 64 hexadecimal digits"),
        ({"requirements": "../r.txt", "files": FILES}, {}, "$.environment.requirements: "),
        ({"uv": "/etc/passwd", "files": FILES}, {}, "it begins with `/`"),
        ({"conda": "e.yml", "files": FILES, "python": "python3"}, {}, "interpreter of its own"),
        ({"python": "../python"}, {}, "$.environment.python: "),
        ({"python": "-c"}, {}, "$.environment.python: "),
        ({"python": "/p", "files": FILES}, {}, "$.environment.files: "),
        ({"python": "/p"}, {"python": "/p"}, "`python` and `environment` both say which"),
        ({"python": "/p"}, {"runtime": {"image": "i"}}, "the job runs in an image, which has its"),
        ({"pip": "r.txt"}, {}, "pip"),
        ("requirements.txt", {}, "$.environment: "),
        ({"requirements": 3}, {}, "$.environment.requirements: "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    environment: Any, more: dict[str, Any], told: str
) -> None:
    found = problems(environment, **more)
    assert len(found) == 1, found
    assert told in found[0]
    assert "\n" not in found[0]


def test_a_node_is_told_what_to_build_or_which_interpreter_it_is() -> None:
    given = spec({"requirements": "r.txt", "files": FILES, "python": "python3.12"})
    order = outbox._environment(given)
    assert order is not None
    assert (order.kind, order.path, order.files, order.python) == (
        *("requirements", "r.txt", FILES),
        "python3.12",
    )
    assert outbox._interpreter(given) == ""
    assert given.snapshots == (FILES,)
    alone = spec({"python": "/opt/env/bin/python"})
    assert outbox._environment(alone) is None
    assert outbox._interpreter(alone) == "/opt/env/bin/python"
    assert alone.snapshots == ()


@pytest.mark.parametrize(
    "runtime, told",
    [
        ({"image": "i", "login": "registry"}, "a login is for fetching the image"),
        ({"image": "i", "pull": "missing", "login": "a b"}, "$.runtime.login: "),
        ({"image": "i", "pull": "always"}, "$.runtime.pull"),
        ({"image": "i", "pull": "missing", "login": 3}, "$.runtime.login"),
    ],
)
def test_a_login_is_a_secret_of_a_job_that_fetches_its_image(
    runtime: dict[str, Any], told: str
) -> None:
    found = parse_tree({**SPEC, "runtime": runtime})
    assert not isinstance(found, JobSpec)
    (one,) = found
    assert told in f"{one.path}: {one.text}"


def test_the_login_is_one_of_a_jobs_secrets_and_no_variable() -> None:
    runtime = {"image": "i", "pull": "missing", "login": "registry"}
    found = parse_tree({**SPEC, "runtime": runtime, "secrets": {"TOKEN": "hub"}})
    assert isinstance(found, JobSpec)
    assert found.secret_names == ("hub", "registry")
