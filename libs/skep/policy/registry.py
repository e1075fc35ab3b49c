"""All policies by name, and how a policy is made from the cluster file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from skep.policy.api import NUMBER_MAX, Policy
from skep.policy.schedulers.completion import MinMin, ModelCapacity, WeightedFair
from skep.policy.schedulers.deadline import Deadline
from skep.policy.schedulers.drf import Drf
from skep.policy.schedulers.elasticflow import ElasticFlow
from skep.policy.schedulers.fifo import Backfill, Fifo
from skep.policy.schedulers.gandiva import Gandiva
from skep.policy.schedulers.genie import Genie
from skep.policy.schedulers.hold import Hold
from skep.policy.schedulers.las import Las
from skep.policy.schedulers.learned import Learned
from skep.policy.schedulers.lookahead import LookAhead
from skep.policy.schedulers.optimus import Optimus
from skep.policy.schedulers.packing import Packing
from skep.policy.schedulers.pollux import Pollux
from skep.policy.schedulers.remaining import Srsf, Srtf
from skep.policy.schedulers.shortest import Dsif, Lrf, Saf, Sif, Spf
from skep.policy.schedulers.sized import Sized
from skep.policy.schedulers.tetris import Tetris
from skep.policy.schedulers.tiresias import TiresiasG, TiresiasL
from skep.policy.schedulers.yarn import YarnCs

_ALL: tuple[type[Policy], ...] = (
    Fifo,
    Backfill,
    Packing,
    YarnCs,
    Srtf,
    Srsf,
    Sif,
    Dsif,
    Saf,
    Lrf,
    Spf,
    TiresiasL,
    TiresiasG,
    Las,
    Drf,
    Tetris,
    Optimus,
    ModelCapacity,
    MinMin,
    WeightedFair,
    Gandiva,
    Pollux,
    ElasticFlow,
    Genie,
    Sized,
    Deadline,
    LookAhead,
    Hold,
    Learned,
)
POLICIES: dict[str, type[Policy]] = {each.name: each for each in _ALL}
Learned.kinds = POLICIES


def described() -> list[dict[str, Any]]:
    """Return every policy: name, what it does, source, options with their defaults."""
    return [
        {
            "policy": name,
            "does": (kind.__doc__ or "").strip().partition("\n")[0],
            "source": kind.source,
            "options": {
                field.name: msgspec.to_builtins(_default(field))
                for field in msgspec.structs.fields(kind)
            },
        }
        for name, kind in POLICIES.items()
    ]


def _default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return None if field.default_factory is msgspec.NODEFAULT else field.default_factory()


class NoPolicy(ValueError):  # noqa: N818  a name for what is wrong
    """The cluster file names a policy that does not exist, or gives it wrong options.

    `option` is the wrong option (empty: the name is wrong), `suggestion` what may have been meant.
    """

    def __init__(self, text: str, option: str = "", suggestion: str = "") -> None:
        """Join the text and the suggestion."""
        super().__init__(f"{text}: {suggestion}" if suggestion else text)
        self.text, self.option, self.suggestion = text, option, suggestion


def make(name: str, options: Mapping[str, Any] = {}) -> Policy:
    """Return a policy with these options.

    Args:
        name: One of `POLICIES`.
        options: Values by name, as decoded from the cluster file; defaults are used for the
            others.

    Raises:
        NoPolicy: The name is unknown, or an option is unknown or has a wrong value.
    """
    kind = POLICIES.get(name)
    if kind is None:
        text = f"no policy is called {name!r}"
        raise NoPolicy(text, suggestion=_like(name, POLICIES))
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    for option, value in options.items():
        if option not in known:
            text = f"policy {name} has no option {option!r}"
            raise NoPolicy(text, option, _like(option, known))
        try:
            msgspec.convert(value, known[option].type)
        except msgspec.ValidationError as error:
            text = f"policy {name}: `{option}`: {error}"
            raise NoPolicy(text, option) from None
        if not _moderate(value):
            text = f"policy {name}: `{option}`: numbers are finite, {NUMBER_MAX:.0e} at most"
            raise NoPolicy(text, option)
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        text = f"policy {name}: {error}"
        raise NoPolicy(text, next(iter(options), "")) from None


def _moderate(value: Any) -> bool:
    """Return whether all numbers in a value are finite and not beyond NUMBER_MAX."""
    if isinstance(value, list | tuple):
        return all(_moderate(each) for each in value)
    return not isinstance(value, int | float) or -NUMBER_MAX <= value <= NUMBER_MAX


def _like(wrong: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(wrong, list(known), 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are {', '.join(sorted(known))}" if known else "it has no options"
