"""What is to be simulated, as a command line says it: cluster, policies, costs, times, seeds."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skep.policy.registry import POLICIES, NoPolicy, make
from skep.units import Duration, seconds
from skep.wire.cluster import Cluster
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.settings import Costs
from skep_lab.traces.heldout import HELD_OUT_FROM, HeldOutError, evaluation_seed, is_held_out

SHAPE = re.compile(r"(?P<nodes>\d+)x(?P<gpus>\d+)(:(?P<type>[\w.-]+))?(/(?P<vcs>.*))?")
NODES_MAX = 100_000
SEEDS_MAX = 1000
SEED_DIGITS_MAX = 18
TIME = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smhdw]?)")
PARTS = re.compile(r"(?<!\d[eE])\+|\+(?!\d)")
"""Between two policies; not the plus in `1e+3`."""
UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Choice = tuple[str, dict[str, Any]]
"""A policy's name and options."""


class WrongError(Exception):
    """Something on the command line makes no sense; the text says what, and what to write."""


class Place(NamedTuple):
    """A cluster and what it is called; `pooled` if it is not divided among VCs."""

    name: str
    cluster: Cluster
    pooled: bool


def is_shape(text: str) -> bool:
    """Return whether a text is the shape of a cluster, such as `80x8`, and not a file."""
    return SHAPE.fullmatch(text) is not None


def shape(text: str) -> Place:
    """Return the cluster of a shape: NODESxGPUS, then `:TYPE`, then `/VC=NODES,...`.

    Args:
        text: The shape, which `is_shape` knows.

    Raises:
        WrongError: The numbers or the virtual clusters make no sense.
    """
    match = SHAPE.fullmatch(text)
    assert match is not None, text
    nodes, gpus = int(match["nodes"]), int(match["gpus"])
    if not 0 < nodes <= NODES_MAX or not 0 < gpus <= NODES_MAX:
        reason = f"{text}: a cluster has 1 to {NODES_MAX} nodes, and they have GPUs"
        raise WrongError(reason)
    vcs: dict[str, int] | None = None
    if match["vcs"] is not None:
        vcs = {}
        for part in match["vcs"].split(","):
            name, mark, count = part.partition("=")
            if not (name and mark and count.isdecimal()) or name in vcs:
                reason = f"{text}: write its VCs as /NAME=NODES,NAME=NODES, each once"
                raise WrongError(reason)
            vcs[name] = int(count)
    try:
        cluster = uniform(nodes, gpus, match["type"] or "v100", vcs=vcs)
    except ValueError as error:
        reason = f"{text}: {error}"
        raise WrongError(reason) from None
    return Place(text, cluster, vcs is None)


def file_place(name: str, cluster: Cluster) -> Place:
    """Return a cluster that a file describes.

    Args:
        name: What the cluster is called.
        cluster: What the file describes.

    Raises:
        WrongError: The cluster has no chains or no virtual clusters, and cannot be simulated.
    """
    if not cluster.chains:
        reason = (
            f"{name} has no chains: a simulation needs the nodes too, "
            "as `skep cluster init` writes them"
        )
        raise WrongError(reason)
    if not cluster.vcs:
        reason = f"{name} has no vcs: nobody could run anything"
        raise WrongError(reason)
    return Place(name, cluster, list(cluster.vcs) == [ALL])


def policies(text: str, vcs: Iterable[str]) -> dict[str, Choice]:
    """Return each VC's policy of `NAME[:option=value,...]` or, by VC, `VC=NAME[:...]+VC=NAME`.

    A policy without a VC is for every VC that no other part names.

    Args:
        text: The policies.
        vcs: The VCs there are.

    Raises:
        WrongError: There is no such VC or policy, or a VC gets two.
    """
    known = list(vcs)
    everybodys: list[str] = []
    found: dict[str, Choice] = {}
    for part in PARTS.split(text):
        before, mark, after = part.partition("=")
        by_vc = bool(mark) and ":" not in before
        if not by_vc:
            everybodys.append(part)
            continue
        if before not in known:
            reason = f"no VC is called {before!r}{like(before, known)}"
            raise WrongError(reason)
        if before in found:
            reason = f"{text}: two policies for {before}"
            raise WrongError(reason)
        found[before] = policy(after)
    if len(everybodys) > 1:
        reason = f"{text}: two policies for everybody; write VC=NAME+VC=NAME"
        raise WrongError(reason)
    return {**dict.fromkeys(known, policy(everybodys[0])), **found} if everybodys else found


def policy(text: str) -> Choice:
    """Return name and options of `NAME[:option=value,...]`; values are JSON or text.

    Raises:
        WrongError: There is no such policy, or it has no such option or value.
    """
    name, _, rest = text.partition(":")
    options = options_of(text, rest)
    try:
        made = make(name, options)
    except NoPolicy as error:
        # One value where several may stand: `thresholds=3250` means `thresholds=[3250]`.
        options = {
            each: [value] if _several(name, each) and not isinstance(value, list) else value
            for each, value in options.items()
        }
        try:
            made = make(name, options)
        except NoPolicy:
            raise WrongError(str(error)) from None
    return made.name, options


def options_of(text: str, rest: str) -> dict[str, Any]:
    """Return the options of `option=value,...`; values are JSON where they can be.

    Commas in brackets divide nothing.

    Args:
        text: The whole text, for errors.
        rest: What follows a name in it; empty: no options.

    Raises:
        WrongError: A part is no `option=value`.
    """
    options: dict[str, Any] = {}
    for part in _split(rest):
        option, mark, value = part.partition("=")
        if not mark or not option:
            reason = f"{text}: write options as NAME:option=value,option=value"
            raise WrongError(reason)
        options[option] = _value(value)
    return options


def _several(name: str, option: str) -> bool:

    kind = POLICIES.get(name)
    fields = msgspec.structs.fields(kind) if kind is not None else ()
    return any(field.name == option and "tuple" in str(field.type) for field in fields)


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def costs(text: str) -> Costs:
    """Return the costs of `none` or of `start=30,checkpoint_every=1h,...`.

    Raises:
        WrongError: There is no such cost, or its value is no length of time.
    """
    if text in ("", "none"):
        return Costs()
    known = {field.removesuffix("_s"): field for field in Costs.__struct_fields__}
    found: dict[str, float] = {}
    for part in text.split(","):
        name, mark, value = part.partition("=")
        name = name.removesuffix("_s")
        if not mark or name not in known:
            reason = f"no cost is called {name!r}{like(name, known)} (write start=30,stop=5)"
            raise WrongError(reason)
        found[known[name]] = duration(value, f"--costs {name}") / 1e9
    return Costs(**found)


def duration(text: str, what: str) -> Duration:
    """Return a length of time such as `90`, `90s`, `2h`, `14d` (ns).

    Args:
        text: The length; without a unit it is in seconds.
        what: What has that length, for errors.

    Raises:
        WrongError: The text is no length of time.
    """
    match = TIME.fullmatch(text.strip())
    if match is None:
        reason = f"{what} {text}: write a length of time as 90s, 15m, 2h, 14d or 3w"
        raise WrongError(reason)
    return seconds(float(match["number"]) * UNIT_S[match["unit"]])


def seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `10` (the first ten), `3-12` or `1,5,9`.

    Raises:
        WrongError: The text is none of these, or there are too many seeds.
    """
    first, dash, last = text.partition("-")
    found: Sequence[int] = ()
    if max(map(len, text.replace("-", ",").split(","))) > SEED_DIGITS_MAX:
        pass  # No such number is meant, and a range of them is larger than any list.
    elif text.isdecimal():
        found = range(int(text))
    elif dash and first.isdecimal() and last.isdecimal():
        found = range(int(first), int(last) + 1)
    elif all(part.isdecimal() for part in text.split(",")):
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if not 0 < len(found) <= SEEDS_MAX:
        reason = f"--seeds {text}: write 10 (that is 0 to 9), 3-12 or 1,5,9; at most {SEEDS_MAX}"
        raise WrongError(reason)
    return tuple(found)


def drawn(asked: Sequence[int], *, held_out: bool) -> tuple[int, ...]:
    """Return the seeds by which traces are drawn: those of evaluation only where they are meant.

    Args:
        asked: The numbers of the command line.
        held_out: The n-th trace of evaluation is meant, which no training has seen.

    Raises:
        WrongError: A number is a seed of evaluation, or there is no such one.
    """
    if held_out:
        try:
            return tuple(evaluation_seed(number) for number in asked)
        except HeldOutError as error:
            reason = f"--held-out: {error}; count from 0 on"
            raise WrongError(reason) from None
    kept = next((seed for seed in asked if is_held_out(seed)), None)
    if kept is not None:
        reason = (
            f"seed {kept} is held out for evaluation: write --held-out --seed "
            f"{kept - HELD_OUT_FROM}, or one below {HELD_OUT_FROM:,}"
        )
        raise WrongError(reason)
    return tuple(asked)


def like(wrong: str, known: Iterable[str] | Mapping[str, Any]) -> str:
    """Return a suggestion for a wrong name: the nearest, or all there are.

    Args:
        wrong: The name.
        known: The names there are.
    """
    names = list(known)
    close = difflib.get_close_matches(wrong, names, 1)
    return f": did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(names))}"
