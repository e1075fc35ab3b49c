"""accelerate with `save_state` each epoch, and an object of its own in the state."""

import sys

import dying
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed


class Count:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


set_seed(7)
project = ProjectConfiguration(project_dir="out", automatic_checkpoint_naming=True)
accelerator = Accelerator(cpu=True, project_config=project)
x, y = dying.data()
model = torch.nn.Linear(8, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters(), 1e-2), loader
)
count = Count()
accelerator.register_for_checkpointing(count)
if "--resume" in sys.argv:
    accelerator.load_state(sys.argv[sys.argv.index("--resume") + 1])
    accelerator.project_configuration.iteration = count.done
for epoch in range(count.done, 5):
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a).squeeze(-1), b)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print("LOSS", epoch, float(loss.detach()), flush=True)
    dying.at(epoch)
    count.done = epoch + 1
    accelerator.save_state()
