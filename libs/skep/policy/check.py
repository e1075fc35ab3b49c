"""Check cluster files and clusters together with the policies of their VCs.

The package `skep.cells` knows nothing of policies, so every check of a whole cluster begins here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skep.cells import clustercheck, clusterfile
from skep.cells.clustercheck import PROBLEMS_MAX, Paths, problem
from skep.ids import is_token
from skep.policy import fair
from skep.policy.registry import NoPolicy, make
from skep.wire.bounds import TEMPLATES_MAX
from skep.wire.cluster import Cluster, Template
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep.wire.templates import ABSENT, at


def parse_cluster(tree: Any) -> Cluster | list[Problem]:
    """Return the cluster in a decoded YAML or JSON value, or everything that is wrong with it."""
    read = clusterfile.parse_cluster(tree)
    if isinstance(read, list):
        return read
    return [*policy_problems(read), *template_problems(read)] or read


def cluster_problems(cluster: Cluster, paths: Paths | None = None) -> list[Problem]:
    """Return everything that is wrong with a cluster.

    Args:
        cluster: The cluster.
        paths: The path of each part of the cluster, for the messages; None: that of a cluster file.

    Returns:
        At most PROBLEMS_MAX problems; none if the cluster is good.
    """
    found = clustercheck.cluster_problems(cluster, paths)
    found += [*policy_problems(cluster), *template_problems(cluster)]
    return found[:PROBLEMS_MAX]


TEMPLATE_BYTES_MAX = 8 * 1024
TEMPLATES_BYTES_MAX = 64 * 1024
"""What one template may have, and those of all VCs: each record of the cluster has all of them."""
NOT_IN_TEMPLATES = ("vc", "template", "from_template", "task", "search", "promise")
"""Keys that say what a job is, or are written by Skep: no template extends another."""


def template_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield what is wrong with the templates of a cluster, each as a job that says no more."""
    size = 0
    for vc, owned in cluster.vcs.items():
        if len(owned.templates) > TEMPLATES_MAX:
            text = f"it has {len(owned.templates)} templates; at most {TEMPLATES_MAX} are kept"
            yield problem(f"$.vcs.{vc}.templates", Reason.TOO_LARGE, text)
            return
        for name, template in owned.templates.items():
            path = f"$.vcs.{vc}.templates.{name}"
            length = len(msgspec.json.encode(template))
            size += length
            if not is_token(name):
                text = f"`{name}` is no name of a template: letters, digits, `_` and `-`"
                yield problem(path, Reason.BAD_VALUE, text)
            elif length > TEMPLATE_BYTES_MAX:
                text = f"it has {length} bytes; a template has at most {TEMPLATE_BYTES_MAX}"
                yield problem(path, Reason.TOO_LARGE, text)
            else:
                yield from template_trouble(vc, template, path)
    if size > TEMPLATES_BYTES_MAX:
        text = f"templates have {size} bytes in all; at most {TEMPLATES_BYTES_MAX} are kept"
        yield problem("$.vcs", Reason.TOO_LARGE, text)


def template_trouble(vc: str, template: Template, path: str) -> Iterator[Problem]:
    """Yield what is wrong with what one template says, as a job that says no more.

    Args:
        vc: Its virtual cluster.
        template: The template.
        path: Where it stands.
    """
    for key in (key for key in NOT_IN_TEMPLATES if key in template.spec):
        text = f"a template cannot say `{key}`"
        yield problem(f"{path}.spec.{key}", Reason.BAD_VALUE, text, f"leave `{key}` out")
        return
    for key in (key for key in template.fixed if at(template.spec, key) is ABSENT):
        text = f"`{key}` is fixed, and its spec does not say it"
        yield problem(f"{path}.fixed", Reason.MISSING_KEY, text, "say it in the spec, too")
    least = {"name": "job", "vc": vc, "workdir": "/", **template.spec}
    if not {"command", "script"} & least.keys():
        least |= {"script": "train.py"} if least.keys() & {"args", "ps"} else {"command": "true"}
    read = parse_tree(least)
    for each in read if isinstance(read, list) else ():
        yield problem(f"{path}.spec{each.path[1:]}", each.reason, each.text, each.suggestion)


def policy_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each VC whose policy does not exist or refuses its options."""
    for name, vc in cluster.vcs.items():
        path = f"$.vcs.{name}.policy"
        try:
            policy = make(vc.policy, vc.options)
        except NoPolicy as error:
            reason = Reason.BAD_OPTION if error.option else Reason.UNKNOWN_POLICY
            here = f"{path}.{error.option}" if error.option else path
            yield problem(here, reason, error.text, error.suggestion)
            continue
        why = fair.unfit(policy) if vc.fair_share is not None else ""
        if why:
            text = f"`fair_share` puts the jobs of a policy in order, and {vc.policy}: {why}"
            hint = "leave `policy` out, or take one that only orders, such as backfill"
            yield problem(f"$.vcs.{name}.fair_share", Reason.BAD_OPTION, text, hint)
