"""Whose a job is, where people of one virtual cluster are told apart."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE = ""
"""The person of a job that nobody in particular submitted: its virtual cluster as a whole."""
LABEL = "user"
"""The label that tells whose a job is, where its owner is not known."""


def person_of(owner: str, labels: Mapping[str, str]) -> str:
    """Return whose a job is: its owner's, else that of its label `user`, else the whole VC's.

    Args:
        owner: The person that submitted it, as the bus knows it; empty: not known.
        labels: The labels of its spec. They are what its submitter says, and prove nothing.
    """
    return owner or labels.get(LABEL, WHOLE)
