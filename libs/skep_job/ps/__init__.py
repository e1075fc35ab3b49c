"""Parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skep_job.ps.errors import ParameterServerError

if TYPE_CHECKING:
    from skep_job.ps.optimizer import SGD

__all__ = ["SGD", "ParameterServerError"]


def __getattr__(name: str) -> object:
    if name == "SGD":
        from skep_job.ps.optimizer import SGD  # The first that needs PyTorch.

        return SGD
    reason = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(reason)
