"""Templates: specs of a virtual cluster, in part, that jobs begin from by their name.

    job's tree with `template: NAME` --filled--> whole tree with `from_template: NAME`

What the job says goes before what the template says, key by key, also inside of objects; a list and
any other value is taken whole, and `null` takes out what the template says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skep.wire.bounds import TEMPLATES_MAX
from skep.wire.cluster import Template
from skep.wire.reasons import Reason
from skep.wire.spec import NAME_CHARS_MAX, Problem

Tree = dict[Any, Any]
ABSENT = object()
DEPTH_MAX = 8
"""Objects inside of one another: a spec has three. What is deeper is taken whole."""


def filled(tree: Tree, templates: Mapping[str, Template] | None) -> Tree | Problem:
    """Return a spec in which its template is filled in; as it was if it names none.

    Args:
        tree: A decoded spec.
        templates: Those of its virtual cluster by name; None: templates are filled in elsewhere.

    Returns:
        The spec, or why its template cannot be had: there is none of that name, or the job says
        another value where the template fixes one.
    """
    name = tree.get("template")
    if name is None or name == "":
        return tree
    if not isinstance(name, str):
        return _problem(Reason.WRONG_TYPE, "`template` must be the name of a template")
    if templates is None:
        text = "a template is not filled in here: only jobs that are submitted have one"
        return _problem(Reason.NOT_BUILT, text, "write out what the template says")
    template = templates.get(name)
    if template is None:
        return _unknown(name, templates)
    own = {key: value for key, value in tree.items() if key != "template"}
    for path in template.fixed:
        fixed, said = at(template.spec, path), at(own, path)
        if said is not ABSENT and said != fixed:
            text = f"`{path}` is fixed by the template `{name}`"
            hint = f"leave `{path}` out, or submit without the template"
            where = f"$.{path}"
            reason = Reason.FIXED_BY_TEMPLATE
            return Problem(path=where, reason=reason, text=text, suggestion=hint)
    return {**merged(template.spec, own), "from_template": name}


def merged(under: Mapping[Any, Any], over: Mapping[Any, Any], depth: int = 0) -> Tree:
    """Return an object with the keys of two; where both have one, that of `over`.

    Args:
        under: An object.
        over: What goes before it; `None` takes a key out.
        depth: How many objects it is inside of.
    """
    found: Tree = {}
    for key in dict.fromkeys((*under, *over)):
        value = over.get(key, ABSENT)
        below = under.get(key, ABSENT)
        if value is None and below is not ABSENT:
            continue
        if value is ABSENT:
            found[key] = below
        elif isinstance(value, Mapping) and isinstance(below, Mapping) and depth < DEPTH_MAX:
            found[key] = merged(below, value, depth + 1)
        else:
            found[key] = value
    return found


def at(tree: Any, path: str) -> Any:
    """Return what stands at a path such as `resources.gpu_type`; `ABSENT`: nothing does."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def _unknown(name: str, templates: Mapping[str, Template]) -> Problem:
    listed = ", ".join(sorted(templates)[:TEMPLATES_MAX]) or "it has none"
    return _problem(
        Reason.UNKNOWN_TEMPLATE,
        f"its virtual cluster has no template `{name[:NAME_CHARS_MAX]}`; there are: {listed}",
        "`skep template ls` lists them",
    )


def _problem(reason: Reason, text: str, suggestion: str = "") -> Problem:
    return Problem(path="$.template", reason=reason, text=text, suggestion=suggestion)
