"""What data sets of libraries count themselves from pass to pass: epochs, and random generators.

Mosaic's StreamingDataset counts its epochs, and stages of a WebDataset count theirs. A process that
goes on in a later pass has a data set that has counted nothing: it is set to what the first process
had. The libraries are not imported here: where they are not, nothing is theirs.
"""

from __future__ import annotations

import inspect
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

DEPTH_MAX = 8
"""Pipelines within pipelines."""
KNOWN_MAX = 64
"""Places of passes that are kept and saved: those that passes were at last."""

NO_SEED = (
    "a shuffle of this WebDataset has no seed: a job that goes on in the middle of a pass reads "
    "some samples of it twice and others not at all; give shuffle() a seed, or use wds.detshuffle"
)
OUT_OF_REACH = (
    "a shuffle of this WebDataset has a generator in workers that stay: a job that goes on reads "
    "other samples; use wds.detshuffle, or persistent_workers=False"
)
NOT_DETERMINISTIC = (
    "shards of this WebDataset are drawn anew by each process: a job that goes on in the middle of "
    "a pass reads others; use wds.ResampledShards(urls, deterministic=True)"
)


class Counts(Protocol):
    """What a data set counts."""

    unsure: str
    """Why the samples after a place are not those of a run that went on; empty: they are, or it has
    been said."""

    def take(self) -> Any:
        """Return what is counted, for the encoder of states."""
        ...

    def put(self, counted: Any) -> None:
        """Set it to what an earlier process had, before a pass begins."""
        ...

    def begun(self) -> None:
        """Count a pass that begins."""
        ...


class Met(NamedTuple):
    """What is known of what a pass begins over."""

    source: Callable[[], Any]
    """Returns the source, or None once nothing else has it: it may have processes."""
    counts: Counts | None
    again: bool
    """Whether an earlier process had a pass over it, and this one has not."""


class Known:
    """What passes have been over, by where in the script these are: only what a later one needs."""

    def __init__(self) -> None:
        self._known: dict[str, Met] = {}
        self._saved: dict[str, Any] = {}

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what `save` returned in an earlier process."""
        self._saved = dict(saved)

    def save(self) -> dict[str, Any]:
        """Return what each has counted, for the encoder of states; None: it does not count."""
        counted = {where: met.counts and met.counts.take() for where, met in self._known.items()}
        return dict([*self._saved.items(), *counted.items()][-KNOWN_MAX:])

    def meet(self, where: str, source: Any) -> Met:
        """Return what is known of `source`, whose counts are set as in the earlier process.

        A source that counts nothing, and whose workers do not stay, is not kept.

        Args:
            where: The place of the pass in the script.
            source: What the pass is over.
        """
        again = where in self._saved
        saved = self._saved.pop(where, None)
        met = next((each for each in self._known.values() if each.source() is source), None)
        if met is None:
            met = Met(_reference(source), counts_of(source), again)
            if met.counts is not None and saved is not None:
                met.counts.put(saved)
        else:
            met = met._replace(again=False)
        self._known.pop(where, None)  # What was met last comes last.
        if met.counts is not None or keeping_workers(source) is not None:
            self._known[where] = met
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return met


def _reference(source: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(source)
    except TypeError:  # Such as a list.
        return lambda: source


def counts_of(source: Any) -> Counts | None:
    """Return what the data set below `source` counts; None if it is not known to count.

    Args:
        source: What a pass is over: a loader, a pipeline, or a data set.
    """
    dataset = getattr(source, "dataset", source)
    if _is_streaming(dataset):
        return _Epoch(dataset)
    if _is_pipeline(source) or _is_pipeline(dataset):
        return _Stages(source)
    return None


def has_state(thing: Any) -> bool:
    """Return whether `thing` says where it is, and goes on there: without being told anything."""
    load = getattr(thing, "load_state_dict", None)
    return callable(load) and _asks_nothing(getattr(thing, "state_dict", None))


def streaming_state(source: Any, done: Callable[[], int]) -> Any:
    """Return the state of a loader over Mosaic's StreamingDataset; None for any other.

    Args:
        source: The loader.
        done: Returns how many batches this process has had of the pass.
    """
    dataset = getattr(source, "dataset", None)
    return _StreamingState(source, done) if _is_streaming(dataset) else None


class _Epoch:
    """A StreamingDataset: it counts the passes that were begun, for all its processes."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.unsure = dataset, ""

    def take(self) -> Any:
        return int(self._dataset.next_epoch)

    def put(self, counted: Any) -> None:
        self._dataset.next_epoch = counted

    def begun(self) -> None: ...


class _StreamingState:
    """The place in a StreamingDataset: by its own count of samples, which needs no reading."""

    def __init__(self, loader: Any, done: Callable[[], int]) -> None:
        self._loader, self._done = loader, done

    def state_dict(self) -> Any:
        """Return the place, by the method of Mosaic's loader."""
        if has_state(self._loader):
            return self._loader.state_dict()
        of_loader = sys.modules["streaming.base.dataloader"].StreamingDataLoader.state_dict
        samples = self._done() * (self._loader.batch_size or 1)
        dataset = self._loader.dataset
        return of_loader(SimpleNamespace(dataset=dataset, num_samples_yielded=samples))

    def load_state_dict(self, state: Any) -> None:
        """Go on at a place: a later epoch than that of the place would have it passed over."""
        dataset = self._loader.dataset
        dataset.next_epoch = state["epoch"]
        dataset.load_state_dict(state)


class _Stages:
    """The stages of WebDataset pipelines that draw random numbers."""

    def __init__(self, source: Any) -> None:
        self._stages = list(_stages(source, 0))
        # Whether the stages that count are copies, in processes that stay.
        self._apart = keeping_workers(source) is not None
        self._passes = 0
        self.unsure = next((text for text in map(_unsure, self._stages) if text), "")
        if self._apart and any("rng" in _stage(each, 0) for each in self._stages):
            self.unsure = self.unsure or OUT_OF_REACH

    def begun(self) -> None:
        """Count a pass that begins."""
        self._passes += 1

    def take(self) -> Any:
        """Return what each stage has, with the passes that only copies of it have counted."""
        more = self._passes if self._apart else 0
        return [_stage(each, more) for each in self._stages]

    def put(self, counted: Any) -> None:
        """Set each stage; a pipeline that has other stages is left as it is."""
        self._passes = 0
        if len(counted) == len(self._stages):
            for stage, each in zip(self._stages, counted, strict=True):
                _set_stage(stage, each)


def _stage(stage: Any, more: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if isinstance(getattr(stage, "epoch", None), int):
        told["epoch"] = stage.epoch + more
    words = getattr(stage, "kw", stage.__dict__)
    if isinstance(words.get("seed"), int | float | str):
        told["seed"] = words["seed"]
    if isinstance(words.get("rng"), random.Random):
        told["rng"] = words["rng"].getstate()
    return told


def _set_stage(stage: Any, told: dict[str, Any]) -> None:
    if "epoch" in told:
        stage.epoch = told["epoch"]
    words = getattr(stage, "kw", stage.__dict__)
    if "seed" in told:
        words["seed"] = told["seed"]
    if "rng" in told and isinstance(words.get("rng"), random.Random):
        words["rng"].setstate(told["rng"])


def _unsure(stage: Any) -> str:
    name = getattr(getattr(stage, "f", None), "__name__", "")
    if name == "_shuffle":
        # Of its words the third is a generator, the fourth a seed.
        given = (*stage.args[2:4], stage.kw.get("rng"), stage.kw.get("seed"))
        return "" if any(each is not None for each in given) else NO_SEED
    if name == "resampled_" or getattr(stage, "deterministic", True) is False:
        return NOT_DETERMINISTIC
    return ""


def _stages(source: Any, depth: int) -> Iterator[Any]:
    """Yield all that is in pipelines but pipelines, from the source of the data on."""
    if depth > DEPTH_MAX:
        return
    for each in _flat(source):
        if _is_loader(each) or _flat(each):
            yield from _stages(each, depth + 1)
        elif hasattr(each, "__dict__"):
            yield each


def _flat(source: Any) -> list[Any]:
    """Return what a pipeline, a loader or a mix of data sets is made of."""
    if _is_pipeline(source):
        return list(source.pipeline)
    if _is_loader(source):
        return [source.dataset]
    mixed = getattr(source, "datasets", None)
    return list(mixed) if isinstance(mixed, list | tuple) else []


def _is_pipeline(thing: Any) -> bool:
    module = sys.modules.get("webdataset.pipeline")
    return module is not None and isinstance(thing, module.DataPipeline)


def _is_loader(thing: Any) -> bool:
    module = sys.modules.get("torch.utils.data.dataloader")
    return module is not None and isinstance(thing, module.DataLoader)


def keeping_workers(source: Any) -> Any:
    """Return the loader in `source` whose workers stay from pass to pass; None if there is none."""
    for each in (source, *_flat(source)):
        if _is_loader(each) and each.num_workers and each.persistent_workers:
            return each
    return None


def _is_streaming(thing: Any) -> bool:
    module = sys.modules.get("streaming.base.dataset")
    return module is not None and isinstance(thing, module.StreamingDataset)


def _asks_nothing(method: Any) -> bool:
    """Return whether a method can be called without arguments."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):
        return False
    return True
