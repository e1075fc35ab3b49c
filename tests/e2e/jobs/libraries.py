"""Trains with a library that owns the loop, or some of it, and says what came of it.

`libraries.py LIBRARY [STEP]`: told to end after that step, as an agent would. Step `hold`: it waits
in step HOLD for a line, and then until an order is due.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import skep_job

EPOCHS, SAMPLES, BATCH = 3, 32, 4
HOLD = 12


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        made = torch.Generator().manual_seed(7)
        self.x = torch.randn(SAMPLES, 6, generator=made)
        self.y = torch.randint(0, 3, (SAMPLES,), generator=made)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    word = sys.argv[2] if len(sys.argv) > 2 else "0"
    end_at = -HOLD if word == "hold" else int(word)
    model = Model()
    {"accelerate": by_accelerate, "hf": by_hf, "lightning": by_lightning}[sys.argv[1]](
        model, end_at
    )
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("end", digest.hexdigest(), flush=True)


def tell(step: int, loss: torch.Tensor, end_at: int) -> None:
    print("loss", step, float(loss.item()).hex(), flush=True)
    disturb(step, end_at)


def disturb(step: int, end_at: int) -> None:
    if step == end_at:
        os.kill(os.getpid(), signal.SIGTERM)
    if step == -end_at:
        print(f"holding {step}", flush=True)
        sys.stdin.readline()
        observation = skep_job.current()
        assert observation is not None
        while not observation.control.due:
            # tidy: allow sleep because it looks at a condition, and the test has the deadline
            time.sleep(0.01)


def by_accelerate(model: Model, end_at: int) -> None:
    from accelerate import Accelerator

    from skep_job.accelerate_loop import track

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    made = DataLoader(Samples(), BATCH, shuffle=True)
    net, opt, sched, loader = accelerator.prepare(model, optimizer, schedule, made)
    run = skep_job.init()
    track(run, accelerator)
    for _ in run.epochs(EPOCHS):
        for batch in run.batches(loader):
            loss = net(**batch)["loss"]
            accelerator.backward(loss)
            opt.step()
            sched.step()
            opt.zero_grad()
            tell(run.steps + 1, loss, end_at)


def by_hf(model: Model, end_at: int) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from skep_job.hf import SkepCallback

    class Teller(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                tell(state.global_step, torch.tensor(logs["loss"]), 0)

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            disturb(state.global_step + 1, end_at)

    args = TrainingArguments(
        output_dir=os.environ["SCRATCH"],
        num_train_epochs=EPOCHS,
        report_to=[],
        per_device_train_batch_size=BATCH,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    callbacks = [SkepCallback(), Teller()]
    Trainer(model=model, args=args, train_dataset=Samples(), callbacks=callbacks).train()


def by_lightning(model: Model, end_at: int) -> None:
    import lightning.pytorch as pl

    from skep_job.lightning_callback import SkepCallback

    class Wrapped(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            self.log("loss", loss)
            tell(self.global_step + 1, loss, end_at)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SkepCallback()],
        default_root_dir=os.environ["SCRATCH"],
    )
    trainer.fit(Wrapped(), DataLoader(Samples(), BATCH, shuffle=True))


if __name__ == "__main__":
    main()
