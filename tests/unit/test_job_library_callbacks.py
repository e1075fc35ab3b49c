"""Real libraries go on from every boundary to the same bits; each only if it is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import skep_job
from skep_job.cooperate.library_run import LibraryRun
from skep_job.cooperate.run import Run
from tests import needs
from tests.run_kit import check

pytestmark = [pytest.mark.torch, pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

See = Callable[[object], None]
ROWS = 16


def callback(name: str, run: LibraryRun) -> Any:
    """Return a new callback of a library, which drives `run`."""
    module: Any = importlib.import_module(f"skep_job.{name}")
    before = module.begin_library
    module.begin_library = lambda *_: run
    try:
        return module.SkepCallback()
    finally:
        module.begin_library = before


def rows(width: int) -> torch.Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("accumulate, validate", [(1, 1.0), (2, 4)])
def test_lightning(tmp_path: Path, accumulate: int, validate: float) -> None:
    if importlib.util.find_spec("lightning") is None:
        needs.skip("lightning is not installed")
    import lightning

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, see: See) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))
            self.see = see

        def training_step(self, batch: Any, number: int) -> Any:
            loss = (self.net(batch[0]) - batch[0]).square().mean()
            self.see((self.current_epoch, number, batch[0].tolist(), loss.item()))
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.see(("validation", torch.rand(1).item()))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def fit(run: LibraryRun, see: See) -> None:
        lightning.seed_everything(3, verbose=False)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            accumulate_grad_batches=accumulate,
            val_check_interval=validate,
            default_root_dir=tmp_path,
            callbacks=[callback("lightning_callback", run)],
        )
        data = TensorDataset(rows(4))
        model = Model(see)
        trainer.fit(model, DataLoader(data, 2, shuffle=True), DataLoader(data, 8))
        own = tmp_path / "own.ckpt"
        trainer.save_checkpoint(own)
        trainer.validate(model, DataLoader(data, 8), ckpt_path=own, verbose=False)

    assert len(check(fit, make=LibraryRun)) > ROWS


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """Rows without an index or a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"x": row, "labels": row} for row in rows(4)])


@pytest.mark.parametrize("accumulate, stream", [(1, False), (2, False), (1, True), (2, True)])
def test_transformers(tmp_path: Path, accumulate: int, stream: bool) -> None:
    if importlib.util.find_spec("transformers") is None:
        needs.skip("transformers is not installed")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.net(x) - labels).square().mean()}

    def train(run: LibraryRun, see: See) -> None:
        class Sees(TrainerCallback):  # type: ignore[misc]
            def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
                if "loss" in logs:
                    see((state.global_step, logs["loss"], logs["learning_rate"]))

        torch.manual_seed(3)
        args = TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            max_steps=ROWS // accumulate if stream else -1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulate,
            logging_steps=3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        model = Model()
        data: Any = Stream() if stream else list(Stream())
        skep = callback("hf", run)
        Trainer(model, args, train_dataset=data, callbacks=[skep, Sees()]).train()
        see([each.tolist() for each in model.state_dict().values()])

    assert len(check(train, make=LibraryRun)) == 2 * ROWS // 2 // accumulate // 3 + 1


def test_a_trainer_says_which_sizes_keep_its_global_batches(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        needs.skip("transformers is not installed")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import Trainer, TrainingArguments

    from skep_job import hf_sizes

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.net(x) - labels).square().mean()}

    def trainer(kind: Any = Trainer, data: Any = None, **more: Any) -> Any:
        given = {"per_device_train_batch_size": 2, "use_cpu": True, "report_to": []} | more
        args = TrainingArguments(output_dir=str(tmp_path), **given)
        return kind(Model(), args, train_dataset=data or list(Stream())[:13])

    class Own(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader()

    usual = trainer()
    assert hf_sizes.why_fixed(usual) == ""
    assert hf_sizes.offered(usual, 6, 1, 4, 2) == (1, 2, 3)
    # 4 ranks would drop 2 of the 6 micro-batches of a pass, and with them its second step.
    assert hf_sizes.offered(trainer(dataloader_drop_last=True), 4, 1, 4, 2) == (1, 2)
    seeds = {"use_seedable_sampler": False}
    for given, why in (
        (trainer(data=Stream(), max_steps=3), "a stream cannot be divided"),
        (trainer(Own), "Own deals out its data by its own get_train_dataloader"),
        (trainer(accelerator_config={"split_batches": True}), "accelerate divides its batches"),
        (trainer(accelerator_config=seeds), "use_seedable_sampler is off"),
        (trainer(auto_find_batch_size=True), "auto_find_batch_size changes its batches"),
        (trainer(ignore_data_skip=True), "ignore_data_skip has it begin the data anew"),
    ):
        assert hf_sizes.why_fixed(given).startswith(why)
    alone = trainer(average_tokens_across_devices=False)
    alone.model_accepts_loss_kwargs = True  # 4.57 turns it off in a rank that is alone.
    assert hf_sizes.why_fixed(alone) == ""
    hf_sizes.share_tokens(alone.args)
    assert alone.args.average_tokens_across_devices


@pytest.mark.parametrize(
    "written, rank, world, expected",
    [
        (["rng_state.pth"], 1, 2, "rng_state_1.pth"),
        (["rng_state_0.pth", "rng_state_1.pth"], 0, 1, "rng_state.pth"),
        (["rng_state_0.pth", "rng_state_1.pth"], 3, 4, "rng_state_3.pth"),
        ([], 0, 1, None),
    ],
)
def test_random_generators_are_found_by_rank(
    tmp_path: Path, written: list[str], rank: int, world: int, expected: str | None
) -> None:
    if importlib.util.find_spec("transformers") is None:
        needs.skip("transformers is not installed")
    from skep_job import hf_sizes

    here = torch.get_rng_state()
    for name in written:
        devices = here if name == "rng_state.pth" else [here]
        numpy = np.random.get_state()
        torch.save({"python": name, "numpy": numpy, "cpu": here, "cuda": devices}, tmp_path / name)
    hf_sizes.choose_random(tmp_path, rank, world)
    assert [each.name for each in tmp_path.iterdir()] == [expected] * bool(expected)
    if expected:
        found = torch.load(tmp_path / expected, weights_only=False)
        assert found["python"] == written[rank % len(written)]
        assert isinstance(found["cuda"], list) == (world > 1)
        assert torch.equal(found["cuda"][0] if world > 1 else found["cuda"], here)


def test_callbacks_of_a_newcomer_count_on_from_those_of_the_others(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        needs.skip("transformers is not installed")
    from transformers import EarlyStoppingCallback, TrainerState
    from transformers.trainer_callback import TrainerControl

    from skep_job import hf_sizes

    def trainer(*counted: int) -> Any:
        callbacks = [EarlyStoppingCallback(3) for _ in counted]
        for each, count in zip(callbacks, counted, strict=True):
            each.early_stopping_patience_counter = count
        handler = type("Handler", (), {"callbacks": [object(), *callbacks]})()
        return type("Trainer", (), {"callback_handler": handler})()

    for counted in ((2,), (1, 2), ()):
        stateful = trainer(*counted).callback_handler.callbacks[1:]
        state = TrainerState(stateful_callbacks=[*stateful, TrainerControl()])
        state.save_to_json(str(tmp_path / "trainer_state.json"))
        newcomer = trainer(*[0 for _ in counted])
        hf_sizes.load_callbacks(newcomer, tmp_path)
        found = newcomer.callback_handler.callbacks[1:]
        assert [each.early_stopping_patience_counter for each in found] == list(counted)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("accelerate") is None:
        needs.skip("accelerate is not installed")
    from accelerate import Accelerator

    from skep_job import accelerate_loop

    def train(run: Run, see: See) -> None:
        monkeypatch.setattr(skep_job, "init", lambda **_: run)
        torch.manual_seed(3)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        net: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))
        loader: Any = DataLoader(TensorDataset(rows(4)), 2, shuffle=True)
        model, optimizer, batches = accelerator.prepare(
            net, torch.optim.Adam(net.parameters()), loader
        )
        accelerate_loop.follow(accelerator)
        for _ in range(2):
            for (x,) in batches:
                with accelerator.accumulate(model):
                    loss = (model(x) - x).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                see((x.tolist(), loss.item()))
        see([each.tolist() for each in net.state_dict().values()])

    assert len(check(train)) == ROWS + 1


@pytest.mark.parametrize("arrays", [True, False])
def test_keras(arrays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("keras") is None:
        needs.skip("keras is not installed")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    def fit(run: LibraryRun, see: See) -> None:
        keras.utils.set_random_seed(3)
        given = keras.Input((4,))
        inner = keras.layers.BatchNormalization()(keras.layers.Dense(4)(given))
        model = keras.Model(given, keras.layers.Dense(4)(keras.layers.Dropout(0.3)(inner)))
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        tells = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: see((batch, dict(logs))),
            on_epoch_end=lambda epoch, logs: see((epoch, dict(logs))),
        )
        x = rows(4)
        data: Any = (x.numpy(), x.numpy()) if arrays else (DataLoader(Pairs(x), 2, shuffle=True),)
        more = {"batch_size": 2} if arrays else {}
        callbacks = [tells, callback("keras_callback", run), tells]
        check_ = (x.numpy()[:4], x.numpy()[:4])
        history = model.fit(
            *data, epochs=2, verbose=0, validation_data=check_, callbacks=callbacks, **more
        )
        see([history.epoch, history.history])
        see([keras.ops.convert_to_numpy(each).tolist() for each in model.weights])

    assert len(check(fit, make=LibraryRun)) == 2 * (ROWS + 2) + 2


class Pairs(TensorDataset):
    """Rows that are their own target."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(x, x)
