"""The compiler of the kernels: numba, behind two typed names.

Nothing is stored on disk: numba notices changes of the compiled function's own file only, and a
kernel calls kernels of other files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])


_njit: Any = numba.njit
"""Its types leave out the options that save work for functions that no Python code calls."""


def compiled(function: _Function) -> _Function:
    """Return a function that is compiled at its first call for the types of its arguments."""
    return cast("_Function", _njit(error_model="numpy", no_cfunc_wrapper=True)(function))


def inlined(function: _Function) -> _Function:
    """Return a compiled function that is copied into its callers: for those of a few lines.

    A call hands all arrays of a state over, a kilobyte.
    """
    return cast("_Function", _njit(error_model="numpy", inline="always")(function))


def inner(function: _Function) -> _Function:
    """Return a compiled function that only other compiled functions call: half the compilation."""
    made = _njit(error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)
    return cast("_Function", made)
