"""What specs have in common that have a job inside: searches and services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from skep.wire.bounds import UNDECODABLE
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import SPEC_BYTES_MAX, JobSpec, Problem

T = TypeVar("T")
LENT = ("name", "vc")
"""Keys of the whole that its job has too, unless the job has its own."""


def parse_json(raw: bytes, parse: Callable[[Any], T | list[Problem]]) -> T | list[Problem]:
    """Return what `parse` makes of the value in `raw` (JSON), or why `raw` has none."""
    if len(raw) > SPEC_BYTES_MAX:
        text = f"the spec has {len(raw)} bytes; at most {SPEC_BYTES_MAX} are accepted"
        return [Problem(path="$", reason=Reason.TOO_LARGE, text=text)]
    try:
        tree = msgspec.json.decode(raw)
    except UNDECODABLE as error:
        return [Problem(path="$", reason=Reason.NOT_JSON, text=f"not JSON: {error}")]
    return parse(tree)


def parse_job(tree: dict[str, Any], **defaults: str) -> JobSpec | list[Problem]:
    """Return the job under the key `job`, or what is wrong with it, with paths inside the whole.

    Args:
        tree: The whole.
        defaults: Keys of the job that have another default here.
    """
    if "job" not in tree:
        return [Problem(path="$", reason=Reason.MISSING_KEY, text="`job` is required")]
    given = tree["job"]
    if isinstance(given, dict):
        given = {**{key: tree.get(key, "") for key in LENT}, **defaults, **given}
    parsed = parse_tree(given)
    if isinstance(parsed, JobSpec):
        return parsed
    inside, own = [], []
    for each in parsed:
        lent = each.path[2:] in LENT and each.path[2:] not in tree["job"]
        if not lent:
            inside.append(msgspec.structs.replace(each, path=f"$.job{each.path[1:]}"))
        elif each.path[2:] in tree:  # A missing key is reported with the others of the whole.
            own.append(each)
    return inside or own
