"""Loaders of torchdata, Mosaic and WebDataset go on at the sample that they were at."""

from __future__ import annotations

import gc
import importlib.util
import io
import random
import tarfile
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from skep_job.cooperate.run import Run
from skep_job.data import own_counts
from tests import needs
from tests.run_kit import check

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
real = pytest.mark.nightly

See = Callable[[object], None]
ROWS, EPOCHS = 24, 2
AUGMENTED = "workers draw random numbers anew"
AGAIN = "batches again"


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        needs.skip(f"{module} is not installed")


def train(make: Callable[[], Any]) -> Callable[[Run, See], None]:
    """Return a script that shows every batch of a loader."""

    def script(run: Run, see: See) -> None:
        torch.manual_seed(1)
        random.seed(1)
        loader = make()
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(loader):
                see((batch if isinstance(batch, list) else batch.tolist(), torch.rand(1).item()))
        end_workers(loader)

    return script


def end_workers(loader: Any) -> None:
    """End workers that stay: else the garbage collector does, in forks of this process too."""
    torch_one = getattr(loader, "pipeline", [loader])[0]
    iterator = getattr(torch_one, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        torch_one._iterator = None


class Counting(IterableDataset[int]):
    """Rows that know how many of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.read == ROWS:
            self.read = 0
            raise StopIteration
        self.read += 1
        return self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


@real
@pytest.mark.parametrize("iterable", [False, True])
@pytest.mark.parametrize("workers, persistent", [(0, False), (2, False), (2, True)])
def test_torchdata(iterable: bool, workers: int, persistent: bool) -> None:
    _needs("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        data: Any = Counting() if iterable else TensorDataset(torch.arange(ROWS))
        more = {} if iterable else {"shuffle": True, "collate_fn": _numbers}
        options = {"num_workers": workers, "persistent_workers": persistent}
        return StatefulDataLoader(data, batch_size=4, **options, **more)

    every = 3 if workers else 1
    seen = check(train(make), some=AUGMENTED, every=every)
    assert len(seen) == EPOCHS * (ROWS // 4) * (workers or 1 if iterable else 1)


def _numbers(rows: Any) -> list[int]:
    return [int(row[0]) for row in rows]


@real
@pytest.mark.parametrize("iterable", [False, True])
def test_workers_that_stay(iterable: bool) -> None:
    """Their seed is drawn once: a process that goes on between two passes draws it besides."""

    def make() -> Any:
        data: Any = Sized() if iterable else TensorDataset(torch.arange(ROWS))
        more: dict[str, Any] = {"batch_size": 4, "shuffle": True, "collate_fn": _numbers}
        more = {"batch_size": None} if iterable else more
        return DataLoader(data, num_workers=1, persistent_workers=True, **more)

    check(train(make), some="w", every=3)


@real
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_mosaic(tmp_path: Path, own: bool, workers: int) -> None:
    _needs("streaming")
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(tmp_path / "data"), columns={"n": "int"}, size_limit=200) as writer:
        for number in range(ROWS):
            writer.write({"n": number})

    def make() -> Any:
        local = tempfile.mkdtemp(dir=tmp_path)
        data = StreamingDataset(
            remote=str(tmp_path / "data"), local=local, batch_size=4, shuffle=True
        )
        kind = StreamingDataLoader if own else DataLoader
        return kind(data, batch_size=4, num_workers=workers, collate_fn=_names)

    seen = check(train(make), some=AUGMENTED, every=5 if workers else 2)
    told: Any = seen
    batches = [each[0] for each in told]
    passes = [[n for batch in batches[i : i + ROWS // 4] for n in batch] for i in (0, ROWS // 4)]
    assert passes[0] != passes[1]
    assert [sorted(each) for each in passes] == [list(range(ROWS))] * 2


def _names(rows: Any) -> Any:
    return torch.tensor([int(row["n"]) for row in rows])


def shards(folder: Path, count: int = 4) -> list[str]:
    """Write tar files with rows."""
    for shard in range(count):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, ROWS, count):
                text = str(number).encode()
                member = tarfile.TarInfo(f"{number:04}.cls")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    return [str(folder / f"{shard}.tar") for shard in range(count)]


def _classes(rows: Any) -> list[int]:
    return [int(row[0]) for row in rows]


@real
@pytest.mark.parametrize("loader", ["none", "torch", "own", "workers", "persistent"])
def test_webdataset(tmp_path: Path, loader: str) -> None:
    _needs("webdataset")
    import webdataset as wds

    urls = shards(tmp_path)

    def make() -> Any:
        data = wds.WebDataset(urls, shardshuffle=4, detshuffle=True)
        if loader != "persistent":  # Workers that stay have its state, which nobody else knows.
            data = data.shuffle(4, rng=random.Random(3))
        data = (
            data.compose(wds.detshuffle(8, seed=7))
            .decode()
            .to_tuple("cls")
            .batched(4, collation_fn=_classes)
        )
        workers = {"workers": 2, "persistent": 2}.get(loader, 0)
        options: Any = {"num_workers": workers, "persistent_workers": loader == "persistent"}
        if loader == "none":
            return data
        kind = DataLoader if loader == "torch" else wds.WebLoader
        return kind(data, batch_size=None, **options)

    seen = check(train(make), some=AGAIN, every=1 if loader == "none" else 3)
    assert len(seen) >= EPOCHS * ROWS // 4


@real
def test_a_webdataset_that_cannot_go_on_exactly_says_so(tmp_path: Path) -> None:
    _needs("webdataset")
    import webdataset as wds

    urls = shards(tmp_path)
    unsure = {
        own_counts.NO_SEED: wds.WebDataset(urls, shardshuffle=False).shuffle(8),
        own_counts.NOT_DETERMINISTIC: wds.WebDataset(urls, resampled=True),
        "": wds.WebDataset(urls, shardshuffle=4).shuffle(8, seed=3),
    }
    for text, data in unsure.items():
        counts = own_counts.counts_of(wds.WebLoader(data, batch_size=None))
        assert counts is not None
        assert counts.unsure == text
    given = wds.WebDataset(urls, shardshuffle=4).shuffle(8, rng=random.Random(1))
    for stay, text in ((True, own_counts.OUT_OF_REACH), (False, "")):
        loader = wds.WebLoader(given, batch_size=None, num_workers=1, persistent_workers=stay)
        counts = own_counts.counts_of(loader)
        assert counts is not None
        assert counts.unsure == text


class Sized(IterableDataset[torch.Tensor]):
    """Rows without an index, which know how many they are."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.arange(first, first + 4) for first in range(0, ROWS, 4)])

    def __len__(self) -> int:
        return ROWS // 4


def test_a_stream_with_a_length_is_read_again() -> None:
    assert len(check(train(Sized), some=AGAIN)) == EPOCHS * ROWS // 4


class Asking(Sized):
    """A data set that has to be told how many samples were used."""

    def state_dict(self, samples: int) -> dict[str, int]:
        return {"samples": samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError


def test_a_data_set_that_has_to_be_told_its_place_is_read_again() -> None:
    def make() -> Any:
        return DataLoader(Asking(), batch_size=None)

    assert len(check(train(make), some=AGAIN)) == EPOCHS * ROWS // 4


def test_passes_over_what_counts_nothing_leave_nothing_behind() -> None:
    class Source(list[int]):
        """A list that can be referred to weakly."""

    known = own_counts.Known()
    sources = [Source([number]) for number in range(5)]
    alive: list[weakref.ref[Any]] = [weakref.ref(source) for source in sources]
    for number, source in enumerate(sources):
        known.meet(f"{number}.0", source)
    del source, sources
    gc.collect()
    assert [each() for each in alive] == [None] * 5
    assert known.save() == {}
    stays: Any = DataLoader(TensorDataset(torch.zeros(2)), num_workers=1, persistent_workers=True)
    assert not known.meet("5.0", stays).again
    alive = [weakref.ref(stays)]
    del stays
    gc.collect()
    assert [each() for each in alive] == [None], "its workers end with it"
    assert known.save() == {"5.0": None}


def test_places_of_passes_are_bounded_and_the_last_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counts:
        unsure = ""

        def __init__(self, source: list[int]) -> None:
            self._source = source

        def take(self) -> int:
            return self._source[0]

        def put(self, counted: int) -> None:
            self._source[0] = counted

        def begun(self) -> None: ...

    monkeypatch.setattr(own_counts, "counts_of", Counts)
    most = own_counts.KNOWN_MAX
    known = own_counts.Known()
    for number in range(most + 3):
        known.meet(f"{number}.0", [number])
    saved = known.save()
    assert saved == {f"{number}.0": number for number in range(3, most + 3)}
    later = own_counts.Known()
    later.load(saved)
    source = [0]
    assert later.meet("5.0", source).again
    assert source == [5]
    assert len(later.save()) == most
    later.meet("900.0", [900])
    assert len(later.save()) == most
    assert {"5.0", "900.0"} <= set(later.save())
