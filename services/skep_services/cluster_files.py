"""The text of a cluster file as a cluster, or all that is wrong with it and on which line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from skep.cells.clustercheck import cluster_remarks
from skep.policy.check import parse_cluster
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep_services.documents import Document, DocumentError, parse
from skep_services.gateway.cluster_answers import Finding

KEYS = (
    "version",
    "chains",
    "pinned",
    "vcs",
    "quarantine",
    "volumes",
    "physicalCluster",
    "virtualClusters",
)
SOURCE = "the text"
BARE_HOSTS = re.compile(r"\[[^\"'\n]*[\w.-]\[\d")
"""A host list without quotes between brackets, which YAML takes for a list in a list."""
HOSTS_HINT = 'between brackets a host list needs quotes: nodes: ["a-[1-8]", b1]'


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was looked at. `cluster` is None if there are `problems`."""

    cluster: Cluster | None
    problems: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


def cluster_of(tree: Any) -> Cluster | list[Problem]:
    """Return the cluster in a decoded file, or everything that is wrong with it.

    Virtual clusters with nothing around them are the short form of a file.
    """
    if isinstance(tree, dict) and tree and not any(key in tree for key in KEYS):
        tree = {"vcs": tree}
    return parse_cluster(tree)


def check(text: str) -> Checked:
    """Return the cluster that a text describes, or all that is wrong with it."""
    try:
        documents = parse(text, SOURCE)
    except DocumentError as error:
        hint = HOSTS_HINT if BARE_HOSTS.search(text) else ""
        return Checked(cluster=None, problems=(_finding(error, hint),))
    if len(documents) > 1:
        told = f"{len(documents)} documents, not 1"
        several = DocumentError(told, Reason.BAD_VALUE, SOURCE, documents[1].line("$"))
        return Checked(cluster=None, problems=(_finding(several, "take away what follows `---`"),))
    document = documents[0] if documents else Document(SOURCE, {}, {})
    cluster = cluster_of(document.tree)
    if isinstance(cluster, list):
        return Checked(cluster=None, problems=_placed(document, cluster))
    return Checked(cluster=cluster, warnings=_placed(document, list(cluster_remarks(cluster))))


def _finding(error: DocumentError, suggestion: str) -> Finding:
    return Finding(
        line=error.line, path="$", reason=error.reason, text=error.text, suggestion=suggestion
    )


def _placed(document: Document, problems: Sequence[Problem]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            line=document.line(one.path),
            path=one.path,
            reason=str(one.reason),
            text=one.text,
            suggestion=one.suggestion,
        )
        for one in problems
    )
