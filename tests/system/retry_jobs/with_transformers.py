"""transformers' Trainer with dropout and shuffling, 30 steps, a checkpoint each 10."""

import dying
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        self.net = torch.nn.Sequential(*parts)

    def forward(self, x, labels):
        found = self.net(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


class Says(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        dying.at(state.global_step)

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            print("LOSS", state.global_step, logs["loss"], flush=True)


set_seed(7)
x, y = dying.data()
arguments = TrainingArguments(
    output_dir="out",
    max_steps=30,
    per_device_train_batch_size=4,
    save_steps=10,
    logging_steps=5,
    report_to=[],
    use_cpu=True,
    learning_rate=1e-2,
    disable_tqdm=True,
)
samples = [{"x": x[i], "labels": y[i]} for i in range(64)]
Trainer(Model(), arguments, train_dataset=samples, callbacks=[Says()]).train()
