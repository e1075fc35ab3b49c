"""A search's space, as it is written in its spec, said to Optuna."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def suggest(space: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Return what asks an Optuna trial for a value of each parameter of a spec's `space`."""

    def ask(trial: Any) -> dict[str, Any]:
        return {name: _ask(trial, name, each) for name, each in space.items()}

    return ask


def _ask(trial: Any, name: str, given: Mapping[str, Any]) -> Any:
    ((kind, ends),) = given.items()
    match kind:
        case "choice":
            return trial.suggest_categorical(name, list(ends))
        case "integer":
            return trial.suggest_int(name, *ends)
        case "log":
            return trial.suggest_float(name, *ends, log=True)
        case "uniform":
            return trial.suggest_float(name, *ends)
        case _:
            text = f"`{name}` has `{kind}`: there are choice, integer, log, uniform"
            raise ValueError(text)
