"""The learners that there are, by name, and their settings; each is imported when it is asked for.

A learner is a module with `Settings`, a class whose fields have defaults, and `train`, a generator
(`skep_lab.learn.progress`). It may have

    model_of(saved, settings, seed) -> bytes   the file of its model; else its tensors are the model
    train(..., spread=...)                     rollouts that an engine may play (`rollouts.Spread`)
    train(..., pairs=...)                      what a scheduler saw and did (`skep_lab.learn.pairs`)
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from skep_lab.learn.progress import Progress
from skep_services.learning.problems import LearningError, Why

PACKAGE = "skep_lab.learn"
EXTRA = "pip install 'skep[learn]'"
SPREAD, PAIRS = "spread", "pairs"
"""Parameters of a learner whose rollouts may be played elsewhere, and of one that learns from
pairs."""
TUNED = 200
"""`skep_lab.learn.protocol` has so many tuning traces, which are what networks play."""


class About(NamedTuple):
    """Where a learner is, and what it learns."""

    module: str
    """Its full name; with a dot at the beginning, in PACKAGE."""
    about: str
    plays: str = ""
    """What plays an episode of what it has learned, as MODULE:NAME (`skep_lab.learn.episodes`)."""
    seeds: int = 0
    """It has episodes for so many seeds, from 0 on; 0: for all."""


LEARNERS: dict[str, About] = {
    "dqn": About(".dqn", "SCHED²: a deep Q-network on its environment", ".episodes:sched2"),
    "dl2": About(".dl2_agent", "DL²: warm-up from a rule, then actor and critic", ".episodes:dl2"),
    "imitate": About(".imitate", "a set network that does what --pairs show"),
    "evolve": About(
        ".evolve", "a set network that begins as a rule, by CMA-ES", ".episodes:evolved", TUNED
    ),
    "ppo": About(
        ".ppo", "a set network on the same traces, by gradients", ".episodes:improved", TUNED
    ),
}
"""By name. Modules are named and not imported: most need PyTorch."""

FIGURES: dict[str, About] = {
    "sched2": About(".sched2_main", "SCHED²'s, with its network and its rules"),
    "dl2": About(".dl2_main", "DL²'s, with its networks and its rules"),
    "learned": About(".beat_main", "Skep's own model against the best rules"),
}
"""What trains and judges for a paper's figures: modules with `main(words)`, which takes options of
its own."""


class Learner(NamedTuple):
    """A learner, ready to be run."""

    name: str
    settings: type[Any]
    train: Callable[..., Iterator[Progress]]
    model_of: Callable[..., bytes] | None
    takes: frozenset[str]
    """What its `train` takes beside settings and seed: `spread`, `pairs`."""


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
    takes = frozenset(inspect.signature(module.train).parameters) & {SPREAD, PAIRS}
    model_of = getattr(module, "model_of", None)
    return Learner(name, module.Settings, module.train, model_of, takes)


def imported(module: str, what: str) -> Any:
    """Return a module of the laboratory.

    Args:
        module: Its name, as in `About`.
        what: What a person calls it.

    Raises:
        LearningError: It is not there, or what it needs is not installed.
    """
    module = importlib.util.resolve_name(module, PACKAGE)
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
    """Return settings as JSON has them; settings within settings are objects, too.

    Args:
        settings: What `chosen` returned.
    """
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_named(settings)))
    return found


def _named(value: Any) -> Any:
    """Return a value whose NamedTuples are objects: to msgspec they are lists."""
    if hasattr(value, "_asdict"):
        return {name: _named(part) for name, part in value._asdict().items()}
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    return value


def flat(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a person writes them: those within settings after a dot.

    Args:
        known: What `fields` or `plain` returned.
    """
    found: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, dict) and value:
            found |= {f"{name}.{part}": each for part, each in flat(value).items()}
        else:
            found[name] = value
    return found


def chosen(settings: type[Any], words: Sequence[str]) -> Any:
    """Return settings as a person writes them.

    Args:
        settings: The class of the settings.
        words: KEY=VALUE each; a key again replaces the value.

    Raises:
        LearningError: A key or a value is wrong.
    """
    whole = fields(settings)
    known = flat(whole)
    found = made(settings, whole)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise LearningError(Why.WRONG_SETTING, f"--set {word}: write KEY=VALUE")
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise LearningError(Why.WRONG_SETTING, f"no setting is called {key}: {hint}")
        *path, last = key.split(".")
        inner = whole
        for part in path:
            inner = inner[part]
        inner[last] = _value(text, known[key])
        found = made(settings, whole, f"--set {word}: ")
    return found


def _value(text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, list | dict):
        if text[:1] in "[{":
            try:
                return msgspec.json.decode(text.encode())
            except msgspec.DecodeError as error:
                raise LearningError(Why.WRONG_SETTING, f"{text}: no JSON: {error}") from None
        return text.split(",") if text else []
    return None if text in {"none", "null"} else text


def made(settings: type[Any], given: Mapping[str, Any], where: str = "") -> Any:
    """Return settings out of what a file or a person gives; the rest are the defaults.

    Args:
        settings: The class of the settings.
        given: Values by name.
        where: What stands before an error.

    Raises:
        LearningError: A value is wrong.
    """
    try:
        return _made(settings, {**fields(settings), **given})
    except (TypeError, ValueError) as error:
        raise LearningError(Why.WRONG_SETTING, f"{where}{error}") from None


def _made(kind: Any, value: Any) -> Any:
    """Return a value as its type has it.

    Raises:
        ValueError: It is another one; msgspec's ValidationError is one, too.
        ValidationError: It is another one.
        TypeError: It is another one.
    """
    if not isinstance(value, dict) or not _is_named(kind):
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            allowed = _allowed(kind)
            if not allowed:
                raise
            reason = f"{error}: there are {', '.join(allowed)}"
            raise ValueError(reason) from None
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _made(hints[name], part) for name, part in value.items()})


def _allowed(kind: Any) -> list[str]:
    """Return the values that a type has, as a person writes them; empty: too many to list."""
    if get_origin(kind) is Annotated:
        return _allowed(get_args(kind)[0])
    if get_origin(kind) is not Literal:
        return []
    return [str(value) or '""' for value in get_args(kind)]


def _is_named(kind: Any) -> bool:
    return isinstance(kind, type) and (hasattr(kind, "_fields") or issubclass(kind, msgspec.Struct))
