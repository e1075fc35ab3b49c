"""All generators by name, and the text that selects one: `hived:days=10,part=0.04`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from skep_lab.traces.formats.row import near
from skep_lab.traces.generators import dl2, gandiva, genie, hived, sched2
from skep_lab.traces.job import Trace


class Generator(NamedTuple):
    """One paper's workload, and the nodes on which it was run: by type, and GPUs of each."""

    about: str
    options: type[msgspec.Struct]
    make: Callable[..., Trace]
    nodes: Mapping[str, int]
    node_gpus: int
    past: bool = False
    """It can use a Philly trace."""


GENERATORS: Mapping[str, Generator] = {
    "hived": Generator(
        "HiveD, Table 1: 141,950 jobs of 11 tenants in 60 days",
        hived.Options,
        hived.generate,
        {"v100": hived.NODES},
        hived.NODE_GPUS,
        past=True,
    ),
    "gandiva": Generator(
        "Gandiva, section 6.3: 1,000 small jobs in two hours",
        gandiva.Options,
        gandiva.generate,
        {"p100": 23, "p40": 22},
        4,
    ),
    "sched2": Generator(
        "SCHED², section IV: 1,000 jobs", sched2.Options, sched2.generate, {"v100": 15}, 8
    ),
    "dl2": Generator(
        "DL², section 6.2: 200 elastic jobs on parameter servers",
        dl2.Options,
        dl2.generate,
        {"gtx1080ti": 500},
        2,
    ),
    "genie": Generator(
        "GENIE, Table 3: tasks with deadlines, Poisson, for a day",
        genie.Options,
        genie.generate,
        {"k80": 4},
        4,
    ),
}


class WrongGeneratorError(ValueError):
    """No such generator, or an option that it does not have."""


def make(words: str, seed: int, past: Trace | None = None) -> Trace:
    """Return the trace for a text `NAME[:option=value,...]`; a list is `a+b` or JSON.

    Args:
        words: The text.
        seed: The seed of the generator.
        past: A Philly trace to draw from; None: the generator needs none.

    Raises:
        WrongGeneratorError: No such generator or option; the message has the nearest one.
    """
    generator, options = parse(words)
    if past is None:
        return generator.make(seed, options)
    if not generator.past:
        text = f"{words.partition(':')[0]} draws nothing from another trace"
        raise WrongGeneratorError(text)
    try:
        return generator.make(seed, options, past)
    except ValueError as error:
        raise WrongGeneratorError(str(error)) from None


def parse(words: str) -> tuple[Generator, msgspec.Struct]:
    """Return the generator and its options for a text `NAME[:option=value,...]`.

    Raises:
        WrongGeneratorError: No such generator or option; the message has the nearest one.
    """
    name, _, rest = words.partition(":")
    generator = GENERATORS.get(name)
    if generator is None:
        hint = near(name, list(GENERATORS)) or f"generators: {', '.join(GENERATORS)}"
        text = f"no generator {name!r}; {hint}"
        raise WrongGeneratorError(text)
    given: dict[str, str] = {}
    known = generator.options.__struct_fields__
    for each in filter(None, re.split(r",(?![^\[]*\])", rest)):
        option, equals, value = each.partition("=")
        if option not in known or not equals:
            hint = near(option, list(known)) or f"options: {', '.join(known)}"
            text = f"{name} has no option {each!r}; {hint}"
            raise WrongGeneratorError(text)
        given[option] = value
    try:
        return generator, convert(given, generator.options)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        text = f"{name}: {str(error).replace('`$.', '`')}"
        raise WrongGeneratorError(text) from None


def convert(given: Mapping[str, Any], options: type[msgspec.Struct]) -> msgspec.Struct:
    """Return options from texts: numbers, and lists as `a+b` or JSON.

    Args:
        given: The texts by option.
        options: The type of the options.

    Raises:
        msgspec.ValidationError: A value has a wrong type.
    """
    several = {
        field.name for field in msgspec.structs.fields(options) if field.type == tuple[str, ...]
    }
    made = {
        name: _list(value) if name in several and isinstance(value, str) else value
        for name, value in given.items()
    }
    return msgspec.convert(made, options, strict=False)


def _list(text: str) -> Any:
    if text.startswith("["):
        return msgspec.json.decode(text)
    return [each for each in text.split("+") if each]
