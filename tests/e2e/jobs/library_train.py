"""A loop of a library's kind that may change its size, and what a test asks of it.

Arguments: a JSON object (see `OPTIONS`). Prints one JSON line when it holds and one at its end.
`hold`: before these mini-batches it prints how many files it has open, and reads a line. After
"due" it waits until it knows of a change of the gang, after "order" until it knows of any order.
`fails`: mini-batches after which the first rank cannot write. Ranks agree after every mini-batch.
"""

import errno
import json
import os
import sys
import threading
from pathlib import Path

import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
from torch import distributed, nn

from skep_job.cooperate import gang_barrier
from skep_job.cooperate.begin import begin_library
from skep_job.elastic import process_group
from skep_job.elastic.library import Regrouped
from skep_job.observe.observation import current

OPTIONS = {"steps": 24, "hold": [], "fails": [], "patience_s": 20.0}

torch.set_num_threads(1)
gang_barrier.EVERY_NS = -1
options = {**OPTIONS, **json.loads(sys.argv[1])}
environ = os.environ
if not environ.get("SKEP_AWAITS"):
    rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    process_group.open_first("gloo", environ["SKEP_STORE"], "first", rank, world)
run = begin_library(None, 2, (1, 4))
assert run.gang is not None
gang = run.gang
gang.gang.rules = gang.gang.rules._replace(patience_s=options["patience_s"])
model = nn.Linear(4, 4)
done = 0
seen: list[list[int]] = []


def save(folder: Path) -> None:
    """Write the first rank's state, and something of every rank's own."""
    seat = gang.gang.seat
    if seat.rank == 0:
        if done in options["fails"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        torch.save([done, model.state_dict()], folder / "state.pt")
    (folder / f"rank_{seat.rank}").write_text("own")


def hold() -> None:
    """Hold here, if it is asked for."""
    if done not in options["hold"]:
        return
    options["hold"] = [each for each in options["hold"] if each != done]
    print(json.dumps({"holds": done, "files": len(os.listdir("/proc/self/fd"))}), flush=True)
    word = sys.stdin.readline().strip()
    observation = current()
    assert observation is not None
    control = observation.control
    while not {"due": gang.gang.due, "order": control.held or control.due}.get(word, True):
        threading.Event().wait(0.002)


def train(folder: Path | None) -> None:
    """Train, from a checkpoint if there is one."""
    global done  # noqa: PLW0603  the library has one loop
    if folder is not None:
        done, weights = torch.load(folder / "state.pt")
        model.load_state_dict(weights)
        run.forget()
    while done < options["steps"]:
        hold()
        total = torch.full((4, 4), done + 1.0)
        if gang.gang.seat.world > 1:
            distributed.all_reduce(total)
        with torch.no_grad():
            model.weight += total / gang.gang.seat.world
        done += 1
        seen.append([done, *gang.gang.seat])
        run.tick()
        run.between()
    run.end()


run.offer((1, 2, 3, 4), "gloo")
torch.nn.init.zeros_(model.weight)
found = run.begin(save, model)
while True:
    try:
        train(found)
        break
    except Regrouped:
        found = run.again()
print(json.dumps({"weight": model.weight[0, 0].item(), "seen": seen}), flush=True)
