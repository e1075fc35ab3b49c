"""What goes on from any boundary ends in the same bits, whatever the loop keeps between two.

Each script is run whole, and again from each of its boundaries; losses and parameters are compared
exactly.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from skep_job import accelerate_loop
from skep_job.cooperate.run import Run
from skep_job.state import checkpoint_file, snapshot
from skep_job.state.untracked import untracked
from tests import effort
from tests.run_kit import Recorder, check

pytestmark = pytest.mark.torch

tqdm: Any = pytest.importorskip("tqdm").tqdm

See = Callable[[object], None]
WINDOW = 3
"""Mini-batches of an accumulation: 8 of an epoch are no multiple of it."""


def bits(*values: Any) -> list[Any]:
    """Return tensors as lists of numbers, other values as they are."""
    return [value.tolist() if isinstance(value, Tensor) else value for value in values]


def parameters(*models: nn.Module) -> list[Any]:
    return bits(*(tensor for model in models for tensor in model.state_dict().values()))


def data(seed: int = 5) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(16, 4, generator=made), torch.randn(16, 2, generator=made))


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(data(), 2, shuffle=True, **options)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2)
    )


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def test_gradients_that_are_being_accumulated() -> None:
    """With a scheduler, clipping, a log every few mini-batches, and a rest at the epoch's end."""

    def script(run: Run, see: See) -> None:
        model = network()
        opt = torch.optim.AdamW(model.parameters(), lr=0.05)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=20)
        run.track(model=model, opt=opt, sched=sched)
        run.state["sum"] = 0.0
        batches = loader()
        for epoch in run.epochs(2):
            opt.zero_grad()  # The process that goes on does it again.
            for number, (x, y) in run.enumerate(batches):
                loss = loss_of(model, x, y) / WINDOW
                torch.autograd.backward(loss)
                run.state["sum"] += loss.item()
                if (number + 1) % WINDOW == 0 or number + 1 == len(batches):
                    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    opt.step()
                    sched.step()
                    opt.zero_grad()
                    see(("stepped", norm.item(), sched.get_last_lr()))
                if number % 4 == 0:
                    see(("log", epoch, number, run.state["sum"]))
                    run.state["sum"] = 0.0
                see(("loss", epoch, number, loss.item()))
        see(("end", parameters(model)))

    seen = check(script)
    assert sum(1 for each in seen if isinstance(each, tuple) and each[0] == "stepped") == 6


@pytest.mark.parametrize("set_to_none", effort.slow_after(1, [True, False]))
def test_gradients_that_are_set_to_zero_before_they_are_used(set_to_none: bool) -> None:
    def script(run: Run, see: See) -> None:
        model = network()
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        run.track(model=model, opt=opt)
        for x, y in run.batches(loader()):
            opt.zero_grad(set_to_none)
            loss = loss_of(model, x, y)
            torch.autograd.backward(loss)
            opt.step()
            see(loss.item())
        see(parameters(model))

    check(script)


def test_several_optimizers_of_which_one_waits() -> None:
    def script(run: Run, see: See) -> None:
        maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
        fool = torch.optim.Adam(maker.parameters(), lr=0.02)
        watch = torch.optim.RMSprop(judge.parameters(), lr=0.02)
        run.track(maker=maker, judge=judge, fool=fool, watch=watch)
        for number, (x, _) in run.enumerate(loader()):
            watch.zero_grad()
            loss = judge(maker(torch.randn(2, 4)).detach()).mean() - judge(x).mean()
            torch.autograd.backward(loss)
            watch.step()
            torch.autograd.backward(
                (-judge(maker(torch.randn(2, 4)))).mean()
            )  # Also into the judge.
            if number % 3 == 2:
                fool.step()
                fool.zero_grad()
            see((number, loss.item(), parameters(maker, judge)))

    check(script)


def test_a_scaler_that_skips_steps_and_an_average() -> None:
    def script(run: Run, see: See) -> None:
        model = network()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        ema: Any = torch.optim.swa_utils.get_ema_multi_avg_fn
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=ema(0.5))
        run.track(model=model, opt=opt, scaler=scaler, average=average)
        run.state["shadow"] = {name: p.detach().clone() for name, p in model.named_parameters()}
        for number, (x, y) in run.enumerate(loader()):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, x, y) * (float("inf") if number == 4 else 1.0)
            torch.autograd.backward(scaler.scale(loss))
            if number % 2 == 1:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
                average.update_parameters(model)
                for name, p in model.named_parameters():
                    run.state["shadow"][name].lerp_(p.detach(), 0.1)
            see((number, loss.item(), scaler.get_scale()))
        see((parameters(model, average), bits(*run.state["shadow"].values())))

    check(script)


@pytest.mark.slow
def test_a_progress_bar_and_numbers_from_outside(tmp_path: Path) -> None:
    def script(run: Run, see: See) -> None:
        batches = loader()
        with open(tmp_path / "bar", "w", encoding="utf-8") as nowhere:
            for epoch in run.epochs(2):
                numbered = run.enumerate(batches, 1)
                bar = tqdm(numbered, initial=numbered.first, file=nowhere, mininterval=0)
                for number, (x, _) in bar:
                    see((epoch, number, bar.n, bar.total, x.tolist()))
            passes = run.batches(batches)
            for number, (x, _) in enumerate(passes, passes.first):
                see((number, x.tolist()))

    check(script, notices="", some="enumerate() around run.batches()")


@pytest.mark.parametrize(
    "around",
    [enumerate, lambda batches: zip(range(9), batches, strict=False), lambda b: enumerate(tqdm(b))],
)
def test_a_counter_that_begins_anew_is_told_once(around: Callable[[Any], Any]) -> None:
    recorder = Recorder()
    run = Run(recorder)
    for _ in run.epochs(2):
        for _ in around(run.batches([1, 2])):
            pass
    (told,) = recorder.notices
    assert "around run.batches() counts from its start again" in told
    assert "use run.enumerate()" in told
    quiet = Recorder()
    for _ in tqdm(Run(quiet).batches([1, 2])):
        pass
    for _ in enumerate(loader()):
        pass
    assert quiet.notices == []


@pytest.mark.nightly
def test_what_the_script_does_before_its_loop_is_done_once() -> None:
    def script(run: Run, see: See) -> None:
        model = network()
        opt = torch.optim.SGD(model.parameters(), lr=0.5)
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        order = np.random.default_rng(3)
        drawn = torch.Generator().manual_seed(8)
        run.track(model=model, opt=opt, sched=sched, order=order, drawn=drawn)
        run.state.update(sum=0.0, history=[], noise=torch.zeros(2))
        for epoch in run.epochs(3):
            opt.step()
            sched.step()
            opt.param_groups[0]["weight_decay"] += 0.01
            run.state["sum"] = 0.0
            run.state["noise"] = torch.rand(2)
            history = run.state["history"]  # The very list, also after a restart.
            mixed = order.permutation(4).tolist(), torch.randperm(4, generator=drawn).tolist()
            for x, y in run.batches(loader()):
                loss = loss_of(model, x, y)
                torch.autograd.backward(loss)
                opt.step()
                run.state["sum"] += loss.item()
                history.append(loss.item())
                see((epoch, loss.item(), sched.get_last_lr(), run.state["sum"], order.random()))
                see((bits(run.state["noise"]), torch.rand(1, generator=drawn).item()))
            see(("epoch", opt.param_groups[0]["weight_decay"], run.state["history"]))
            del mixed
        see(parameters(model))

    check(script)


def test_weights_that_are_changed_before_the_loop_are_told() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(64, 64)
        run.track(model=model)
        for _ in run.epochs(2):
            with torch.no_grad():
                model.weight.mul_(0.5)
            for _ in run.batches([1, 2]):
                pass

    whole = Recorder()
    script(Run(whole))
    later = Recorder(whole.taken[0])
    script(Run(later))
    assert [told for told in later.notices if "model.weight before its loop" in told]
    at_an_end = Recorder(whole.taken[2])
    script(Run(at_an_end))
    assert at_an_end.notices == []


class Rotary(nn.Module):
    """Has a buffer that is not saved, and one that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.seen: Tensor
        self.cache: Tensor
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("cache", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.seen += 1
            self.cache = torch.cat([self.cache, x.detach().mean().reshape(1)])
        return self.linear(x) * (1 + self.seen / 10) + self.cache.sum()


@pytest.mark.nightly
def test_modes_frozen_parameters_and_buffers_that_are_not_saved() -> None:
    def script(run: Run, see: See) -> None:
        body, head, latent = (
            Rotary(),
            nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
            torch.ones(2),
        )
        latent.requires_grad_()
        opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
        opt.add_param_group({"params": [latent], "lr": 0.5})
        run.track(body=body, head=head, opt=opt)
        for epoch in run.epochs(3):
            for number, (x, y) in run.enumerate(loader()):
                if (epoch, number) == (0, 3):
                    body.linear.requires_grad_(False)
                    head[1].eval()
                if (epoch, number) == (1, 5):
                    body.linear.weight.requires_grad_()
                    head.train()
                loss = nn.functional.mse_loss(head(body(x)) * latent, y)
                torch.autograd.backward(loss)
                if number % 2:
                    opt.step()
                    opt.zero_grad()
                see((epoch, number, loss.item(), latent.tolist(), body.seen.item()))
        see(parameters(body, head))

    check(script)


def test_sparse_tied_and_unordered_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(7, 4, sparse=True)
            self.into = nn.Linear(4, 4)
            self.out = nn.Linear(4, 4)
            self.out.weight = self.into.weight
            self.picture: nn.Module = nn.Conv2d(4, 4, 3)
            self.picture.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def forward(self, x: Tensor) -> Any:
            seen = self.picture(torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last))
            words = self.words((x * 3).long().remainder(7)).mean((0, 1))
            return self.out(torch.relu(self.into(x + words))) + seen.flatten(1)

    def script(run: Run, see: See) -> None:
        model = Net()
        dense = [p for name, p in model.named_parameters() if not name.startswith("words")]
        opt = torch.optim.Adam(dense, lr=0.05)
        sparse = torch.optim.SparseAdam(model.words.parameters(), lr=0.05)
        run.track(model=model, opt=opt, sparse=sparse)
        for number, (x, _) in run.enumerate(loader()):
            loss = model(x).square().mean()
            torch.autograd.backward(loss)
            if number % WINDOW == WINDOW - 1:
                see(nn.utils.clip_grad_norm_(dense, 0.5).item())
                for each in (opt, sparse):
                    each.step()
                    each.zero_grad()
            see((number, loss.item()))
        see(parameters(model))

    check(script)


@pytest.mark.slow
def test_a_compiled_module_and_one_that_is_replicated() -> None:
    def script(run: Run, see: See) -> None:
        model = network()
        compiled = torch.compile(model, backend="eager")
        average = torch.optim.swa_utils.AveragedModel(model)
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        run.track(model=compiled, average=average, opt=opt)
        for number, (x, y) in run.enumerate(loader()):
            loss = loss_of(compiled, x, y)  # type: ignore[arg-type]
            torch.autograd.backward(loss)
            if number % 2:
                opt.step()
                opt.zero_grad()
                average.update_parameters(model)
            see(loss.item())
        see(parameters(model, average))

    check(script)


def test_an_average_of_another_library_that_is_not_tracked_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("diffusers.training_utils")

    class EMAModel:
        """As much of one as is looked at."""

    module.EMAModel = EMAModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model, average = nn.Linear(2, 2), EMAModel()
    assert "EMAModel" in untracked({"model": model})
    assert "EMAModel" not in untracked({"model": model, "average": average})


def test_gradients_in_a_loop_without_a_loader() -> None:
    def script(run: Run, see: See) -> None:
        model = nn.Linear(3, 1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        run.track(model=model, opt=opt)
        while run.steps < 7:
            torch.autograd.backward(model(torch.randn(2, 3)).square().mean())
            if run.steps % WINDOW == 1:
                opt.step()
                opt.zero_grad()
            see((parameters(model), random.random(), float(np.random.rand())))
            run.step()

    check(script)


@pytest.mark.slow
def test_the_window_of_accelerate_goes_on() -> None:
    class Accelerator:
        """As much of it as is saved; it counts mini-batches to know when to step."""

        def __init__(self, model: nn.Module, opt: torch.optim.Optimizer) -> None:
            self._models, self._optimizers = [model], [opt]
            self._schedulers: list[Any] = []
            self._custom_objects: list[Any] = []
            self.scaler = None
            self.step = 0

    def script(run: Run, see: See) -> None:
        model = nn.Linear(4, 2)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        accelerator = Accelerator(model, opt)
        accelerate_loop.track(run, accelerator)
        for x, y in run.batches(loader()):
            accelerator.step += 1
            torch.autograd.backward(loss_of(model, x, y))
            if accelerator.step % WINDOW == 0:
                opt.step()
                opt.zero_grad()
            see((accelerator.step, parameters(model)))

    check(script)


def test_a_checkpoint_of_version_1_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has neither gradients nor anything else beside the states."""

    def script(run: Run) -> list[Any]:
        model = nn.Linear(2, 2)
        run.track(model=model)
        return [(x, parameters(model)) for x in run.batches(range(4))]

    whole = Recorder()
    torch.manual_seed(1)
    expected = script(Run(whole))
    taken = whole.taken[1]
    place = snapshot.place_of(taken.plain, taken.tensors)
    for name in ("beside", "extras"):
        del place[name]
    old = nn.Linear(2, 2)
    torch.manual_seed(1)
    snapshot.load({"model": old}, taken.plain, taken.tensors)
    monkeypatch.setattr(checkpoint_file, "VERSION", 1)
    checkpoint_file.write(tmp_path / "old", snapshot.take({"model": old}, place), {})
    monkeypatch.undo()
    header = checkpoint_file.read_header(tmp_path / "old")
    tensors = checkpoint_file.read_tensors(tmp_path / "old", header)
    later = Recorder(snapshot.Snapshot(header.plain, tensors))
    assert script(Run(later)) == expected[2:]


def test_what_trains_and_is_not_tracked_is_named() -> None:
    gc.collect()  # Scalers and averages of other tests.

    def told(**parts: Any) -> list[str]:
        recorder = Recorder()
        recorder.passes_over = ()
        run = Run(recorder)
        run.track(**parts)
        for _ in run.batches([1]):
            pass
        return recorder.notices

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = torch.optim.Adam(model.parameters())
    foreign = torch.optim.SGD(other.parameters())
    inner = torch.optim.lr_scheduler.ConstantLR(opt)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [inner], [])
    scaler = torch.amp.GradScaler("cpu")
    off = torch.amp.GradScaler("cpu", enabled=False)
    (first,) = told(model=model, opt=opt)
    assert "anew wherever the job goes on: ConstantLR, GradScaler, SequentialLR; name" in first
    (second,) = told(model=model, sched=sched, scaler=scaler)
    assert "anew wherever the job goes on: Adam; name" in second
    assert told(model=model, opt=opt, sched=sched, scaler=scaler) == []
    assert told(other=other, foreign=foreign, scaler=scaler) == []
    del off


def test_workers_that_draw_anew_are_told_where_they_do() -> None:
    def script(run: Run) -> None:
        for _ in run.batches(loader(num_workers=1)):
            pass

    whole = Recorder()
    script(Run(whole))
    later = Recorder(whole.taken[3])
    script(Run(later))
    assert ["the loader's workers draw random numbers anew" in told for told in later.notices] == [
        True
    ]
    assert whole.notices == []
