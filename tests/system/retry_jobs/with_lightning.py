"""Lightning's Trainer, four epochs of eight batches, a checkpoint each epoch."""

import dying
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
        self.last = torch.nn.Linear(16, 1)

    def training_step(self, batch, number):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.last(self.net(x)).squeeze(-1), y)
        print("LOSS", self.global_step, float(loss.detach()), flush=True)
        return loss

    def on_train_batch_end(self, *_):
        dying.at(self.global_step)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


lightning.seed_everything(7)
x, y = dying.data()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(dirpath="out", save_top_k=-1)],
)
trainer.fit(Model(), loader)
