"""Skep's pure half: what is decided, from what is known. No clock, no input, no output.

`skep.Client` and `skep.AsyncClient`, which do input and output, are of the package `skep_client`.
They are imported when they are first asked for, so that what decides never has them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_OF_THE_CLIENT = {
    "AsyncClient": "skep_client",
    "Client": "skep_client",
    "SkepError": "skep_client",
    "load_ipython_extension": "skep_client.magic",
}


def __getattr__(name: str) -> Any:
    """Return a name of the client library.

    Raises:
        AttributeError: It has no such name.
    """
    if name in _OF_THE_CLIENT:
        return getattr(import_module(_OF_THE_CLIENT[name]), name)
    text = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(text)
