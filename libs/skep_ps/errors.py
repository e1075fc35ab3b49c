"""What can go wrong in a parameter-server job, for code that catches it."""

from __future__ import annotations


class ParameterServerError(RuntimeError):
    """The job cannot go on; the text says why. It restarts from its last checkpoint."""


class Broken(Exception):  # noqa: N818  a name for what happened
    """A connection is of no more use; its holder may dial again."""


class Refused(Exception):  # noqa: N818
    """The other side does not take us, and will not another time; the text says why."""


class RequestFailed(Exception):  # noqa: N818
    """The answer to a request is an error; the connection goes on."""
