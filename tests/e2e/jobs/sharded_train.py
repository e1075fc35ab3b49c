"""Trains a tiny transformer whose state is split over its ranks, as a user would write it.

Arguments: a JSON object (see `OPTIONS`). Prints one JSON line for what it was asked to tell.
`how`: "fsdp" (FSDP2), "tensor" (tensor parallel), "both" (n x 2) or "stages" (a pipeline).
`elastic`: whether the number of ranks may change. `hold`: before these mini-batches it prints and
reads a line. After "due" it waits until it knows of a change of the gang, after "order" until it
knows of any order. `fail_to_split_at`: so many ranks have no split. `torch_version`: what it takes
its PyTorch for. `copies`: between two copies in memory. `agree_ns`: how often ranks agree on what
is due (0: as ever; -1: after every mini-batch). `die`: where it kills itself, see `plant`.
`errors`: where its errors go. `stamps`: it tells when it began, had a model, and was at a batch.
`measures`: it prints how long each part of a move takes, see `measure`. `rests`: for as long as it
has gone on from the beginning of a copy to the next one that is due, it copies nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset

import skep_job
from skep_job.cooperate import gang_barrier
from skep_job.elastic import process_group

OPTIONS: dict[str, Any] = {
    "how": "fsdp",
    "elastic": True,
    "sizes": [1, 4],
    "epochs": 2,
    "samples": 96,
    "global_batch": 12,
    "width": 32,
    "heads": 4,
    "layers": 2,
    "hold": [],
    "every": None,
    "copies": None,
    "agree_ns": 0,
    "errors": "",
    "stamps": False,
    "patience_s": 20.0,
    "window": 1,
    "decay": 0.01,
    "fail_to_split_at": 0,
    "torch_version": "",
    "die": "",
    "measures": False,
    "rests": False,
}
WORDS, LENGTH = 32, 8


class Text(Dataset):  # type: ignore[type-arg]
    """Rows of numbers that follow from one another, and of which row it is."""

    def __init__(self, count: int) -> None:
        made = torch.Generator().manual_seed(7)
        begin = torch.randint(0, WORDS, (count, 1), generator=made)
        step = torch.randint(1, 4, (count, 1), generator=made)
        self.rows = (begin + step * torch.arange(LENGTH + 1)) % WORDS

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], index


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        shape = (*y.shape[:2], -1, self.head)  # -1: with tensor parallel a rank has a part.
        q, k, v = (each(y).view(shape).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        widened: Tensor = self.down(nn.functional.gelu(self.up(self.between(x))))
        return x + widened


class Transformer(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.out = nn.Linear(width, WORDS, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.words(rows) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(x)
        return logits


PARALLEL = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()),
    **dict.fromkeys(("o", "down"), RowwiseParallel()),
}


def split(model: Any, how: str) -> Any:
    """Split a model over the ranks that there are; return the mesh of the data."""
    world = dist.get_world_size()
    if how == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return None
    shape = (1, world) if how == "tensor" else (world // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], PARALLEL)
    if how == "both":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    return mesh["data"]


class Stage(nn.Module):
    """One rank's part of a transformer that is cut by layers."""

    def __init__(self, whole: Transformer, rank: int, world: int) -> None:
        super().__init__()
        per = len(whole.blocks) // world
        self.blocks = whole.blocks[rank * per : (rank + 1) * per]
        self.words = whole.words if rank == 0 else None
        self.out = whole.out if rank == world - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x) if self.out is not None else x


def pipeline(module: Stage, rank: int, world: int) -> Any:
    """Return what runs a batch through all stages, forward and back, and returns its loss."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def loss_fn(logits: Tensor, rows: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), rows.flatten())

    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_fn)

    def work(rows: Tensor) -> Tensor:
        found: list[Tensor] = []
        given = (rows[:, :-1],) if rank == 0 else ()
        wanted: dict[str, Any] = {}
        if rank == world - 1:
            wanted = {"target": rows[:, 1:], "losses": found}
        schedule.step(*given, **wanted)
        return torch.stack(found).mean() if found else torch.zeros(())

    return work


def say(**fields: object) -> None:
    """Print one line."""
    print(json.dumps(fields), flush=True)


def pauses_of(run: Any) -> list[dict[str, Any]]:
    """Return what the changes of the gang have cost until now."""
    return [
        {"step": p.step, "total_ns": p.total_ns, "parts_ns": p.parts_ns, "bytes": p.bytes}
        for p in getattr(getattr(run, "gang", None), "pauses", ())
    ]


def between(ends: list[float]) -> list[float]:
    """Return how long each mini-batch has taken but the first (seconds)."""
    return [after - before for before, after in itertools.pairwise(ends)]


def stamp(options: dict[str, Any], name: str) -> None:
    """Tell when something is reached, on the clock of this machine."""
    if options["stamps"]:
        say(stamp=name, at=time.monotonic())


def hold(run: Any, step: int, ends: list[float]) -> None:
    """Wait for a line; with "due", then until a change is known here."""
    say(holds=step, pauses=pauses_of(run), times=between(ends))
    word = sys.stdin.readline().strip()
    observation = skep_job.current()
    if word != "go" and observation is not None:
        control = observation.control
        ways: dict[str, Callable[[], bool]] = {
            "due": lambda: control.due and run.gang.due,
            "order": lambda: control.due or control.held is not None,
        }
        known = ways[word]
        while not known():
            threading.Event().wait(0.002)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def dist_world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def shares_of(run: Any, world: int, how: str) -> int:
    """Return over how many ranks the data are split."""
    return int(run.data_seat[1]) if hasattr(run, "data_seat") else world if how == "fsdp" else 1


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of all parameters and moments, whatever ranks have them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for each in (parameter, *optimizer.state[parameter].values()):
            found.update(whole(each.detach()).float().numpy().tobytes())
    return found.hexdigest()


def begin(options: dict[str, Any]) -> tuple[Any, Any, int, Any]:
    """Return the run, the model, the samples of a loader's batch, and what runs a pipeline."""
    how = options["how"]
    model: Any = Transformer(options["width"], options["heads"], options["layers"])

    def splitter(module: Any) -> Any:
        if dist.get_world_size() == options["fail_to_split_at"]:
            message = "this model has no split over so many ranks"
            raise ValueError(message)
        return split(module, how)

    if options["elastic"]:
        run = skep_job.init(
            elastic=tuple(options["sizes"]),
            global_batch=options["global_batch"],
            patience_s=options["patience_s"],
            checkpoint_every=options["every"],
            replicas_every=options["copies"],
        )
        return run, run.shard(model, splitter), options["global_batch"], None
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        process_group.open_first("gloo", os.environ["SKEP_STORE"], "fixed", rank, world)
    if how == "stages":
        model = Stage(model, rank, world)
    elif world > 1:
        splitter(model)
    share = options["global_batch"] // (world if how == "fsdp" else 1)
    together = pipeline(model, rank, world) if how == "stages" else None
    run = skep_job.init(checkpoint_every=options["every"], replicas_every=options["copies"])
    return run, model, share, together


def note_copies() -> list[int]:
    """Return a list that gets the boundaries which this rank begins to copy to memory."""
    from skep_job.replicas.replicas import Replicas

    original, noted = Replicas.copying, []

    def copying(self: Any, step: int) -> Any:
        noted.append(step)
        return original(self, step)

    Replicas.copying = copying  # type: ignore[method-assign]
    return noted


def rest() -> None:
    """Have each time with a copy be followed by an equally long one without, and tell both.

    A time with a copy ends when the next one is due. Both begin and end between two mini-batches.
    """
    from skep_job.replicas.replicas import Replicas

    say_ready, copying, finished = Replicas.say, Replicas.copying, Replicas.finished
    at = {"boundary": 0.0, "copies": 0.0, "rest ends": 0.0}

    def ready(self: Any, busy: bool) -> tuple[bool, int]:
        is_ready, done = say_ready(self, busy)
        at["boundary"] = now = time.monotonic()
        if is_ready and at["copies"] and not at["rest ends"]:
            at["rest ends"] = 2 * now - at["copies"]
            say(mark="rests", at=now)
        return is_ready and now >= at["rest ends"], done

    def begin(self: Any, step: int) -> Any:
        at["copies"], at["rest ends"] = at["boundary"], 0.0
        say(mark="copies", at=at["copies"])
        return copying(self, step)

    def end(self: Any, step: int, outcome: Any, stood_ns: int) -> None:
        say(copied_s=outcome if isinstance(outcome, float) else str(outcome), stood_ns=stood_ns)
        finished(self, step, outcome, stood_ns)

    Replicas.say, Replicas.copying = ready, begin  # type: ignore[method-assign]
    Replicas.finished = end  # type: ignore[method-assign]


def plant(where: str) -> None:
    """Have this process kill itself once it gets to a place, or (`after-`) past it.

    Args:
        where: The place; `:N` behind it for the Nth time.
    """
    from skep_job.cooperate import cooperation
    from skep_job.elastic.agreement import Round
    from skep_job.replicas import exchange
    from skep_job.replicas.memory import Memory
    from skep_job.shards.model import SplitModel
    from skep_job.shards.peers import Offer
    from skep_job.shards.regroup import Regroup
    from skep_job.state import checkpoint_file

    places: dict[str, tuple[Any, str]] = {
        "offer": (Regroup, "offer"),
        "take": (Regroup, "take"),
        "renew": (SplitModel, "renew"),
        "give": (Offer, "_give"),
        "enter": (Round, "enter"),
        "write": (checkpoint_file, "write"),
        "prune": (Memory, "prune"),
        "keep": (Memory, "store"),
        "put": (exchange, "put"),
        "take-in": (exchange.Server, "_do"),
        "fetch": (exchange, "get"),
        "read": (cooperation, "_read"),
    }
    where, _, times = where.partition(":")
    planted, name = places[where.removeprefix("after-")]
    original = getattr(planted, name)
    left = itertools.count(int(times or 1), -1)

    def die(*given: Any, **named: Any) -> Any:
        last = next(left) == 1
        found = None
        if not last or where.startswith("after-"):
            found = original(*given, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(planted, name, die)


def measure() -> None:
    """Have every part of a move print how long it takes: by the clock, and of the processors."""
    from skep_job.cooperate import cooperation, successor
    from skep_job.state import snapshot, transfer

    places: tuple[tuple[Any, str], ...] = (
        (cooperation, "make_state"),
        (snapshot, "take"),
        (transfer, "send"),
        (transfer.Wire, "send_tensors"),
        (successor.Successor, "_receive"),
        (snapshot, "why_unfit"),
        (snapshot, "destinations"),
        (transfer.Wire, "receive_tensors"),
        (snapshot, "load"),
    )
    for place, name in places:
        setattr(place, name, measured(getattr(place, name), name))


def measured(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that does the same, and prints how long it took."""

    def work(*given: Any, **named: Any) -> Any:
        since, used = time.monotonic(), time.process_time()
        try:
            return original(*given, **named)
        finally:
            took, used = time.monotonic() - since, time.process_time() - used
            say(part=name, ms=round(took * 1e3, 1), cpu_ms=round(used * 1e3, 1))

    return work


def watch(options: dict[str, Any]) -> None:
    """Have what is asked for done beside the training."""
    for name, change in (("measures", measure), ("rests", rest)):
        if options[name]:
            change()
    if options["die"]:
        plant(options["die"])
    if options["agree_ns"]:
        gang_barrier.EVERY_NS = options["agree_ns"]


def main() -> None:
    options = OPTIONS | json.loads(sys.argv[1])
    if options["errors"]:
        os.dup2(os.open(options["errors"], os.O_WRONLY | os.O_APPEND), 2)
    watch(options)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    stamp(options, "script")
    copied = note_copies()
    if options["torch_version"]:
        torch.__version__ = options["torch_version"]
    how = options["how"]
    run, model, share, together = begin(options)
    stamp(options, "model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=options["decay"])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
    run.track(model=model, opt=optimizer, sched=schedule)
    data = Text(options["samples"])
    if options["elastic"] or how != "fsdp" or not dist.is_initialized():
        loader = DataLoader(data, batch_size=share, shuffle=True)
    else:
        sampler: Any = torch.utils.data.DistributedSampler(data, seed=5)
        loader = DataLoader(data, batch_size=share, sampler=sampler)
    losses: list[list[Any]] = []
    ends: list[float] = []
    try:
        for _ in run.epochs(options["epochs"]):
            for rows, index in run.batches(loader):
                step = run.steps
                stamp(options, "batch")
                if step in options["hold"]:
                    hold(run, step, ends)
                if together is None:
                    loss = loss_of(model, rows)
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    loss = together(rows)
                if step % options["window"] == options["window"] - 1:
                    if how in ("fsdp", "stages"):  # Elsewhere the meshes of parameters differ.
                        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                weight = getattr(run, "weight", 1 / shares_of(run, dist_world(), how))
                total = loss.detach() * weight
                size = dist_world()
                if size > 1:
                    dist.all_reduce(total)
                    total /= size / shares_of(run, size, how)
                losses.append([step, size, float(total), index.tolist()])
                ends.append(time.monotonic())
        say(digest=digest(model, optimizer), lr=schedule.get_last_lr()[0], steps=run.steps)
    finally:
        say(
            pid=os.getpid(),
            losses=losses,
            copied=copied,
            times=between(ends),
            pauses=pauses_of(run),
        )
    if not options["elastic"] and dist.is_initialized():
        dist.destroy_process_group()


main()
