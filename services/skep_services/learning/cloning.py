"""Pairs of what schedulers saw and did: from logs and simulations, and as files.

DIR/pairs.safetensors    the arrays; what is no array is in the metadata
DIR/pairs.json           where they are from, and how many are marked, for people
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from skep.learn import columns
from skep.learn.candidates import CHOICES
from skep.units import Instant
from skep.wire.changes import JobChanging
from skep.wire.cluster import Cluster
from skep.wire.facts import JobStopping
from skep.wire.learned import SCHEMA
from skep.wire.reasons import Reason
from skep_lab.learn.pairs import VERSION, Mark, Pairs, Recorder
from skep_lab.live_log.decide_again import Again
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace
from skep_lab.workloads.situation import Speeds
from skep_services import durable, replaying
from skep_services.learning.problems import LearningError, Why, writing
from skep_services.learning.runs import opened, stored
from skep_services.replaying import Streams

FILE, ABOUT = "pairs.safetensors", "pairs.json"
ARRAYS = tuple(name for name in Pairs._fields if name != "about")
TABLES = frozenset({"rows", "cluster", "moves"})
"""Arrays of two dimensions; the others have one."""
REALS = frozenset({"rows", "cluster", "at", "propensity"})
"""Arrays of real numbers; the others have whole ones."""
SERVICE = "allocator"


def of_log(
    streams: Streams,
    source: str,
    say: Callable[[str], None] = lambda _text: None,
    recorder: Recorder | None = None,
) -> Pairs:
    """Return the pairs of a cluster's log: its decisions, made again.

    Args:
        streams: What was read of the cluster.
        source: What it is called.
        say: Is told what is missing.
        recorder: What takes the plans.

    Raises:
        LearningError: The log has no decisions that can be made again.
        CorruptLogError: The log is damaged.
    """
    recorder = recorder or Recorder()
    service = replaying.SERVICES[SERVICE]
    log = replaying.log_of(streams, SERVICE)

    def make() -> Any:
        machine: Any = service.make()
        machine.settings.witness = recorder
        return machine

    found = Again(make, log, told=recorder.queues).run()
    for difference in found.differences:
        recorder.differs(difference.at)
    for job, at in _asked(log.records):
        recorder.undone(job, at)
    if not recorder.plans:
        why = "none of its jobs was ever placed"
        if found.not_comparable:
            why = f"{sum(found.not_comparable.values())} of its records say not what they were"
            why += " decided on, as those of older versions do"
        text = f"{source} has nothing to learn from: {why}"
        raise LearningError(Why.LACKS_FACTS, text)
    for why, count in found.not_comparable.items():
        say(f"{source}: {count} {why.replace('-', ' ')}")
    log_digest = hashlib.sha256()
    for one in streams[service.stream]:
        log_digest.update(one.payload)
    about = {
        "from": "log",
        "source": Path(source).name,
        "sha256": log_digest.hexdigest(),
        "records": found.records,
        "decisions": found.decisions,
        "different": len(found.differences),
        "not_comparable": found.not_comparable,
        "stopped": found.stopped,
    }
    return recorder.pairs(about)


def _asked(records: Any) -> list[tuple[str, Instant]]:
    """Return what people asked of jobs, and when: to cancel, suspend, move or change them."""
    found = []
    for record in records:
        for fact in record.facts:
            match fact:
                case JobStopping(why=Reason.CANCELLED):
                    found.append((fact.job, fact.at))
                case JobChanging() if fact.ask:
                    found.append((fact.job, fact.at))
    return found


def of_policy(
    trace: Trace,
    cluster: Cluster,
    settings: Settings,
    speeds: Speeds,
    *,
    watch: Callable[[int, int], bool] | None = None,
    recorder: Recorder | None = None,
) -> Pairs:
    """Return the pairs of a simulated run: what its policies saw and did.

    Args:
        trace: The jobs.
        cluster: The cluster.
        settings: Policies, costs and more.
        speeds: The workload model.
        watch: Is told how many jobs of how many have ended; returns whether to go on.
        recorder: What takes the plans.

    Raises:
        LearningError: No policy planned anything.
    """
    recorder = recorder or Recorder()
    world = World(trace, cluster, settings, speeds)
    world.allocator.settings.witness = recorder
    world.run(watch)
    if not recorder.plans:
        names = sorted({vc.policy for vc in world.cluster.vcs.values()})
        text = f"no policy planned anything ({', '.join(names)}): a simulated queue has no plans,"
        raise LearningError(Why.LACKS_FACTS, f"{text} `--policy backfill` is one that has")
    policies = {
        name: {"policy": vc.policy, "options": vc.options} for name, vc in world.cluster.vcs.items()
    }
    about = {
        "from": "simulation",
        "source": trace.name,
        "jobs": len(trace.jobs),
        "policies": policies,
        "seed": settings.seed,
    }
    return recorder.pairs(msgspec.to_builtins(about))


def counts(pairs: Pairs) -> dict[str, Any]:
    """Return how many pairs and moves there are, and how many of each mark."""
    told: Counter[str] = Counter()
    for mark in Mark:
        name = str(mark.name).lower().replace("_", "-")
        told[name] += int(np.count_nonzero(pairs.mark & int(mark)))
        told[name] += int(np.count_nonzero(pairs.moves[:, 3] & int(mark)))
    return {
        "pairs": pairs.size,
        "moves": len(pairs.moves),
        "clean": len(pairs.clean()),
        "marks": {name: count for name, count in told.items() if count},
    }


def keep(pairs: Pairs, folder: Path) -> str:
    """Write pairs into a folder, the same bytes for the same pairs; return their SHA-256.

    Args:
        pairs: The pairs.
        folder: Where; it is made if there is none.

    Raises:
        LearningError: The folder cannot be written.
    """
    data = _packed(pairs)
    name = hashlib.sha256(data).hexdigest()
    told = {**pairs.about, **counts(pairs), "pairs_sha256": name}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        durable.write(str(folder / FILE), data, 0o644)
        text = msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"
        durable.write(str(folder / ABOUT), text, 0o644)
    return name


def digest(pairs: Pairs) -> str:
    """Return the SHA-256 of the file of pairs."""
    return hashlib.sha256(_packed(pairs)).hexdigest()


def _packed(pairs: Pairs) -> bytes:
    return stored({name: getattr(pairs, name) for name in ARRAYS}, pairs.about)


def load(path: Path) -> Pairs:
    """Return the pairs in a file, or in a folder.

    Args:
        path: What `keep` wrote.

    Raises:
        LearningError: There are none, or the file is damaged or of another version of Skep.
    """
    file = path / FILE if path.is_dir() else path
    try:
        tensors, about = opened(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        text = f"{file} does not exist: `skep learn clone --out {path}` makes it"
        raise LearningError(Why.DAMAGED_PAIRS, text) from None
    except ValueError as error:
        raise LearningError(Why.DAMAGED_PAIRS, f"{file} is damaged: {error}") from None
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise LearningError(Why.DAMAGED_PAIRS, f"{file} has no pairs of this version of Skep")
    if about.get("schema") != SCHEMA:
        text = f"{file} has pairs of feature schema {about.get('schema')}, and this Skep {SCHEMA}"
        raise LearningError(Why.OTHER_SCHEMA, f"{text}: make them again from the log")
    wrong = _wrong(tensors, about)
    if wrong:
        raise LearningError(Why.DAMAGED_PAIRS, f"{file} is damaged: {wrong}")
    return Pairs(**tensors, about=about)


def _wrong(tensors: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return what in arrays does not fit together; empty: nothing."""
    if set(tensors) != set(ARRAYS):
        return f"it has not the arrays {', '.join(ARRAYS)}"
    for name in ARRAYS:
        array, dimensions = tensors[name], 2 if name in TABLES else 1
        if array.ndim != dimensions:
            return f"{name} has {array.ndim} dimensions, not {dimensions}"
        if (array.dtype.kind == "f") != (name in REALS):
            return f"{name} has numbers of type {array.dtype}"
    vcs = about.get("vcs")
    if not isinstance(vcs, list) or not all(isinstance(name, str) for name in vcs):
        return "it does not list the names of its VCs"
    pairs, rows = len(tensors["at"]), tensors["rows"]
    shapes = {
        "rows": (len(rows), columns.RAW),
        "row": (len(tensors["row"]),),
        "first": (pairs + 1,),
        "cluster": (pairs, columns.CLUSTER),
        "at": (pairs,),
        "vc": (pairs,),
        "mark": (pairs,),
        "propensity": (pairs,),
        "first_move": (pairs + 1,),
        "moves": (len(tensors["moves"]), 4),
    }
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            return f"{name} is {list(tensors[name].shape)}, not {list(shape)}"
    jobs = np.diff(tensors["first"])
    of_move = np.repeat(np.arange(pairs), np.maximum(np.diff(tensors["first_move"]), 0))
    inside = (
        _between(tensors["row"], len(rows)),
        _ends(tensors["first"], len(tensors["row"])),
        _ends(tensors["first_move"], len(tensors["moves"])),
        _between(tensors["vc"], len(vcs)),
        len(of_move) == len(tensors["moves"])
        and _between(tensors["moves"][:, 0], jobs[of_move] if len(of_move) else 1),
        _between(tensors["moves"][:, 1] + 1, CHOICES + 1),
        bool(np.isfinite(rows).all() and np.isfinite(tensors["cluster"]).all()),
    )
    return "" if all(inside) else "its numbers do not fit together"


def _between(array: Any, end: Any) -> bool:
    return bool((array >= 0).all() and (array < end).all())


def _ends(array: Any, end: int) -> bool:
    return bool(array[0] == 0 and array[-1] == end and (np.diff(array) >= 0).all())
