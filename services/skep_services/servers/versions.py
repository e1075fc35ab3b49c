"""Which versions of Skep can be in one cluster at the same time.

Messages grow at the end and have defaults, so a newer program reads an older one. The other way
round holds for one step only: an upgrade goes from a release to the next, server after server and
node after node, and both are there meanwhile. What is further apart is refused before it joins.
"""

from __future__ import annotations

import re

import skep

OWN = skep.__version__
NUMBER = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.\d{1,6})?(?:[.a-z0-9+-]*)")


class VersionError(Exception):
    """Two versions cannot be in one cluster; the text is one line and says what to install."""


def check_meeting(theirs: str, who: str, own: str = OWN) -> None:
    """Refuse a version that cannot be in one cluster with this one.

    Args:
        theirs: The other's version.
        who: The other, for the error: `node a`, `server-2`.
        own: The version here.

    Raises:
        VersionError: They are more than one release apart, or `theirs` is no version.
    """
    mine, other = _release(own), _release(theirs)
    if mine is None or other is None:
        text = f"{who} does not say which version of Skep it runs: install skep {own} there"
        raise VersionError(text)
    if mine[0] == other[0] and abs(mine[1] - other[1]) <= 1:
        return
    text = (
        f"versions that cannot meet: {who} runs skep {theirs}, the cluster skep {own}; they may be "
        f"one release apart: install skep {own} there"
        if other < mine
        else f"versions that cannot meet: {who} runs skep {theirs}, the cluster skep {own}; they "
        "may be one release apart: upgrade the servers first"
    )
    raise VersionError(text)


def check_step(before: str, to: str, who: str) -> None:
    """Refuse an upgrade, or a way back, of more than one release.

    Args:
        before: The version that runs; empty: it is not known.
        to: The version that is to run.
        who: The machine, for the error.

    Raises:
        VersionError: They are more than one release apart.
    """
    one, other = _release(before), _release(to)
    if one is None or other is None:
        return
    if one[0] != other[0] or abs(one[1] - other[1]) > 1:
        text = (
            f"versions that cannot meet: {who} runs skep {before}, and {to} is more than one "
            "release away: go one release after the other, servers first"
        )
        raise VersionError(text)


def check_ahead(to: str, cluster: str) -> None:
    """Refuse a version of nodes that is later than that of the servers.

    Args:
        to: The version that nodes are to have.
        cluster: The version of the servers.

    Raises:
        VersionError: It is later.
    """
    wanted, there = _release(to), _release(cluster)
    if wanted is not None and there is not None and wanted > there:
        text = f"the servers run skep {cluster}: upgrade them to {to} first (skep server upgrade)"
        raise VersionError(text)


def _release(text: str) -> tuple[int, int] | None:
    found = NUMBER.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None
