"""PyTorch without its compiler, for the jobs of tests: importing this first halves their start.

The first step of an optimizer imports `torch._dynamo`, which takes as long as PyTorch itself, only
to leave functions uncompiled. No job that imports this compiles anything, so nothing is done. With
SKEP_TEST_COMPILER=1 in its environment a job has the real compiler.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch


class Nothing(ModuleType):
    """Stands for the compiler and all in it: what it is given to leave alone it gives back."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, function: Any = None, *_: Any, **__: Any) -> Any:
        return function if callable(function) else self


if os.environ.get("SKEP_TEST_COMPILER") != "1":
    whole: Any = torch
    sys.modules["torch._dynamo"] = whole._dynamo = Nothing("torch._dynamo")
