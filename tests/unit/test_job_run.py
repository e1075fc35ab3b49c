"""Where a run is, and how another gets there: every boundary of every kind of loop, in-process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from skep_job.cooperate.run import Numbered, Run, UsageError
from tests.run_kit import Recorder, check

pytestmark = pytest.mark.torch


class Data(torch.utils.data.Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return index, random.random(), torch.rand(()).item()

    def __len__(self) -> int:
        return 7


def noise() -> float:
    return random.random() + torch.rand(()).item()


def test_epochs_and_passes_over_a_shuffled_loader() -> None:
    def script(run: Run, see: Callable[[object], None]) -> None:
        loader = DataLoader(Data(), 2, shuffle=True)
        run.state["sum"] = 0.0
        for epoch in run.epochs(3):
            for index, *_, other in run.batches(loader):
                run.state["sum"] += float(index.sum())
                see((epoch, index.tolist(), other.tolist(), noise(), run.state["sum"], run.steps))
            for index, *_ in run.batches(loader):  # A second pass over the same.
                see((epoch, "again", index.tolist()))
            see(("validated", [i.tolist() for i, *_ in DataLoader(Data(), 4, shuffle=True)]))

    seen = check(script)
    assert len(seen) == 3 * (4 + 4 + 1)


def test_numbers_in_local_variables_begin_anew_and_the_log_says_so() -> None:
    whole = Recorder()

    def script(run: Run) -> int:
        done, limit, loss = 0, 4, 0.5
        for number, (first, second) in enumerate([(1, 2)]):
            done += number * first * second
        for _ in run.epochs(2):
            for _ in bar(run.enumerate([[1]] * 5)):
                done += 1
            for first, second in [(3, 4)]:
                done += first - second
        return done + int(limit * loss)

    def bar(batches: Numbered) -> Iterator[tuple[int, list[int]]]:
        yield from batches

    script(Run(whole))
    later = Recorder(whole.taken[7])  # Behind the second batch of the second epoch.
    script(Run(later))
    assert later.notices == [
        "the script's own numbers begin anew where the job goes on: done was 6 and is 0; "
        "what has to go on belongs into run.state"
    ]


def test_a_batch_is_looked_at_before_it_is_trained_on() -> None:
    under = Recorder()
    run = Run(under)
    for number, batch in enumerate(run.batches([3, 1, 2]), start=1):
        assert under.batches == [3, 1, 2][:number], batch


@pytest.mark.nightly
def test_samplers_and_generators_of_ones_own() -> None:
    class Eager(torch.utils.data.Sampler[int]):
        """Draws its order when its iterator is made, not when that is first asked."""

        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(7).tolist())

        def __len__(self) -> int:
            return 7

    def script(run: Run, see: Callable[[object], None]) -> None:
        own = torch.Generator().manual_seed(3)
        mine = torch.Generator().manual_seed(4)
        run.track(mine=mine)
        weights = WeightedRandomSampler([1.0] * 7, 5, generator=own)
        loaders: list[DataLoader[Any]] = [
            DataLoader(Data(), 2, shuffle=True, generator=own),
            DataLoader(Data(), 2, sampler=weights),
            DataLoader(Data(), 3, sampler=Eager()),
            DataLoader(Data(), batch_sampler=[[1, 2], [3], [0, 6]]),
            DataLoader(Data(), None, sampler=Eager()),
        ]
        for epoch in run.epochs(2):
            for number, loader in enumerate(loaders):
                for index, *_ in run.batches(loader):
                    see((epoch, number, str(index), torch.rand((), generator=mine).item()))

    check(script)


def test_loops_of_ones_own() -> None:
    def script(run: Run, see: Callable[[object], None]) -> None:
        for epoch in run.epochs(2):
            see(("warm", epoch, noise()))
        while run.steps < 6:
            see((run.steps, noise()))
            run.step()
        for item in run.batches(["a", "b", "c"]):
            see((item, noise()))
        for item in run.batches(range(2)):
            see(item)
        for epoch in run.epochs(2):
            for item in run.batches(range(5)):
                if item == 3:
                    break
                see((epoch, item, noise()))

    check(script)


def test_what_cannot_be_indexed_is_read_again_or_says_where_it_is() -> None:
    def script(run: Run, see: Callable[[object], None]) -> None:
        for item in run.batches(iter("abcd")):
            see((item, noise()))

    check(script, notices="again to get back")

    class Stream(IterableDataset[int]):
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 9:
                self.at += 1
                yield self.at

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def streaming(run: Run, see: Callable[[object], None]) -> None:
        for item in run.batches(DataLoader(Stream(), 2)):
            see((item.tolist(), noise()))

    check(streaming)


def test_training_state_comes_back() -> None:
    def script(run: Run, see: Callable[[object], None]) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sched = torch.optim.lr_scheduler.SequentialLR(
            opt,
            [
                torch.optim.lr_scheduler.LinearLR(opt, total_iters=2),
                torch.optim.lr_scheduler.MultiStepLR(opt, [1, 2]),
            ],
            milestones=[2],
        )
        run.track(model=model, opt=opt, sched=sched, scaler=torch.amp.GradScaler("cpu"))
        data = TensorDataset(torch.arange(8.0).reshape(4, 2))
        for _ in run.epochs(2):
            for (x,) in run.batches(DataLoader(data, 2, shuffle=True)):
                opt.zero_grad()
                loss = model(x).square().sum()
                loss.backward()
                opt.step()
                sched.step()
                see((loss.item(), sched.get_last_lr(), [p.tolist() for p in model.parameters()]))

    check(script)


def test_what_a_run_refuses() -> None:
    run = Run()
    model = torch.nn.Linear(1, 1)
    run.track(model=model)
    with pytest.raises(UsageError, match="'model' is tracked already; give"):
        run.track(model=torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="'other' is tracked already, as 'model'"):
        run.track(other=model)
    with pytest.raises(TypeError, match="'best' is a float; tracked are things with state_dict"):
        run.track(best=0.5)
    with pytest.raises(TypeError, match="without load_state_dict"):
        run.track(half=type("Half", (), {"state_dict": lambda self: {}})())
    with pytest.raises(TypeError, match=r"epochs\('3'\): expected how many"):
        run.epochs("3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of a int, which cannot be iterated"):
        run.batches(3)
    with pytest.raises(TypeError, match=r"report\(loss=...\) of a str"):
        run.report(loss="low")
    for _ in run.epochs(1):
        for _ in run.batches([1]):
            with pytest.raises(UsageError, match="within another batches"):
                run.batches([1])
            with pytest.raises(UsageError, match="counts each batch by itself"):
                run.step()
        with pytest.raises(UsageError, match=r"iterate run.batches\(range\(n\)\)"):
            run.step()
        with pytest.raises(UsageError, match="within another loop"):
            run.epochs(1)
    with pytest.raises(UsageError, match="before the first loop"):
        run.track(late=torch.nn.Linear(1, 1))
    assert (run.steps, len(run.batches([1, 2]))) == (1, 2)
