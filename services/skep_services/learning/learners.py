"""The learners that there are, by name, and their settings; each is imported when it is asked for.

A learner is a module with `Settings`, a class whose fields have defaults, and `train`, a generator
(`skep_lab.learn.progress`). It may have

    model_of(saved, settings, seed) -> bytes   the file of its model; else its tensors are the model
    train(..., spread=...)                     rollouts that an engine may play (`rollouts.Spread`)
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import msgspec

from skep_lab.learn.progress import Progress
from skep_services.learning.problems import LearningError, Why

EXTRA = "pip install 'skep[learn]'"
SPREAD = "spread"
"""The parameter of a learner whose rollouts may be played elsewhere."""


class About(NamedTuple):
    """Where a learner is, and what it learns."""

    module: str
    about: str


LEARNERS: dict[str, About] = {
    "dl2": About("skep_lab.learn.dl2_agent", "DL²: warm-up from a scheduler, then actor and critic")
}
"""By name. Modules are named and not imported: most need PyTorch."""

FIGURES: dict[str, About] = {}
"""What compares learners with rules: modules with `lines() -> Iterator[str]` and `Settings`."""


class Learner(NamedTuple):
    """A learner, ready to be run."""

    name: str
    settings: type[Any]
    train: Callable[..., Iterator[Progress]]
    model_of: Callable[..., bytes] | None
    spreads: bool
    """Whether engines may play its rollouts."""


def find(name: str) -> Learner:
    """Return a learner.

    Args:
        name: Its name.

    Raises:
        LearningError: There is none of that name, or what it needs is not installed.
    """
    if name not in LEARNERS:
        close = difflib.get_close_matches(name, LEARNERS, n=1)
        hint = f"did you mean {close[0]}?" if close else "`skep learn list` lists those there are"
        raise LearningError(Why.NO_LEARNER, f"no learner is called {name}: {hint}")
    module = imported(LEARNERS[name].module, name)
    spreads = SPREAD in inspect.signature(module.train).parameters
    model_of = getattr(module, "model_of", None)
    return Learner(name, module.Settings, module.train, model_of, spreads)


def imported(module: str, what: str) -> Any:
    """Return a module of the laboratory.

    Args:
        module: Its full name.
        what: What a person calls it.

    Raises:
        LearningError: It is not there, or what it needs is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            text = f"{what} is not part of this Skep: there is no {module}"
            raise LearningError(Why.NOT_OFFERED, text) from None
        text = f"{what} needs {error.name}, which is not installed: {EXTRA}"
        raise LearningError(Why.NO_EXTRA, text) from None


def fields(settings: type[Any]) -> dict[str, Any]:
    """Return the settings of a learner with their defaults, in their order.

    Args:
        settings: A NamedTuple, a dataclass or a struct of msgspec, whose fields all have defaults.
    """
    return plain(settings())


def plain(settings: Any) -> dict[str, Any]:
    """Return settings as JSON has them.

    Args:
        settings: What `chosen` returned.
    """
    whole = settings._asdict() if hasattr(settings, "_asdict") else settings
    return msgspec.json.decode(msgspec.json.encode(whole), type=dict[str, Any])


def chosen(settings: type[Any], words: Sequence[str]) -> Any:
    """Return settings as a person writes them.

    Args:
        settings: The class of the settings.
        words: KEY=VALUE each; a key again replaces the value.

    Raises:
        LearningError: A key or a value is wrong.
    """
    known = fields(settings)
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise LearningError(Why.WRONG_SETTING, f"--set {word}: write KEY=VALUE")
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise LearningError(Why.WRONG_SETTING, f"no setting is called {key}: {hint}")
        given[key] = _value(text, known[key])
        made(settings, {key: given[key]})
    return made(settings, given)


def _value(text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, list | dict):
        if text[:1] in "[{":
            try:
                return msgspec.json.decode(text.encode())
            except msgspec.DecodeError as error:
                raise LearningError(Why.WRONG_SETTING, f"{text}: no JSON: {error}") from None
        return text.split(",")
    return None if text in {"none", "null"} else text


def made(settings: type[Any], given: Mapping[str, Any]) -> Any:
    """Return settings out of what a file or a person gives; the rest are the defaults.

    Args:
        settings: The class of the settings.
        given: Values by name.

    Raises:
        LearningError: A value is wrong.
    """
    try:
        whole = {**fields(settings), **given}
        if not hasattr(settings, "_asdict"):
            return msgspec.convert(whole, settings, strict=False)
        hints = get_type_hints(settings)  # To msgspec, a NamedTuple is a list.
        kinds = {key: msgspec.convert(whole[key], hints[key], strict=False) for key in whole}
        return settings(**kinds)
    except (msgspec.ValidationError, ValueError) as error:
        shown = ", ".join(f"{key}={value}" for key, value in given.items())
        raise LearningError(Why.WRONG_SETTING, f"--set {shown}: {error}") from None
