"""A loop of one's own that writes `torch.save` files, and reads the one it is given."""

import os
import pathlib
import sys

import dying
import torch

torch.manual_seed(7)
x, y = dying.data()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
first = 0
if "--from" in sys.argv:
    kept = torch.load(sys.argv[sys.argv.index("--from") + 1])
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    first = kept["step"]
os.makedirs("out", exist_ok=True)
for step in range(first + 1, 31):
    loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("LOSS", step, float(loss.detach()), flush=True)
    if step % 10 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"out/step_{step}.pt")
    if step == 25 and first == 0:
        # A crash within a write: half of a file, under its last name.
        whole = pathlib.Path("out/step_20.pt").read_bytes()
        pathlib.Path("out/step_25.pt").write_bytes(whole[: len(whole) // 2])
    dying.at(step)
