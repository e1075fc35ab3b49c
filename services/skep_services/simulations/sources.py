"""Traces: read from a file, from a cluster's own log, or made by a generator."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from skep.sim.lived import NothingError, lived
from skep.traces.generators import registry
from skep.traces.job import Trace
from skep.traces.read import read
from skep_services import replaying
from skep_services.adapters import exported
from skep_services.simulations.inputs import WrongError, like, options_of
from skep_services.trace_files import lengths_in, lines_of

LIVE = "live"
"""The cluster that runs here, as it ran."""


class Generator(NamedTuple):
    """What makes traces: its options, and the trace of a seed."""

    options: type[msgspec.Struct]
    generate: Callable[..., Trace]
    about: str


GENERATORS = {
    name: Generator(each.options, each.make, each.about)
    for name, each in registry.GENERATORS.items()
}


def by_seed(text: str) -> bool:
    """Return whether another seed makes another trace: not of a file."""
    return not (os.path.exists(text) or text == LIVE)


def load(text: str, *, form: str | None, seed: int, lenient: bool) -> Trace:
    """Return the trace of a file, generator, or (`live`, or its export) of a cluster's own log.

    Raises WrongError, BadTraceError, OSError.
    """
    if text == LIVE or (os.path.isfile(text) and exported.is_export(text)):
        return _lived(text)
    if os.path.isfile(text):
        name = os.path.basename(text)
        return read(lines_of(text), name, form, lenient=lenient, lengths=lengths_in(None))
    name, _, rest = text.partition(":")
    if name not in GENERATORS:
        reason = f"--trace {text}: no such file, and no generator{like(name, GENERATORS)}"
        raise WrongError(reason)
    if form is not None:
        reason = f"--format {form}: {name} makes its trace, there is nothing to read"
        raise WrongError(reason)
    generator = GENERATORS[name]
    return generator.generate(seed, _options(name, generator, options_of(text, rest)))


def _lived(text: str) -> Trace:
    """Return the jobs of a cluster's log, with the run times that they had. Raises WrongError."""
    try:
        streams = replaying.read_from(text, None)
        return lived(replaying.records(streams, "allocator")).trace
    except (*replaying.UNREADABLE, NothingError) as error:
        reason = f"--trace {text}: {error}"
        raise WrongError(reason) from None


def _options(name: str, generator: Generator, told: dict[str, Any]) -> msgspec.Struct:
    known = generator.options.__struct_fields__
    for option in told:
        if option not in known:
            reason = f"--trace {name} has no option {option!r}{like(option, known)}"
            raise WrongError(reason)
    try:
        return registry.convert(told, generator.options)
    except msgspec.ValidationError as error:
        reason = f"--trace {name}: {error}"
        raise WrongError(reason) from None
