"""Which sizes a Trainer of transformers can have with the same global batches, and how it gets one.

A global batch of R ranks with accumulation a is R * a micro-batches. accelerate deals them out in
turn: rank r has the micro-batches r, r + R, ... of the pass. So R' ranks with a' = R * a / R' have
the same samples in each global batch, the same steps in a pass, and the same place in it; sums are
added in another order. What is dealt out in other ways is not resized (`why_fixed`).
"""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path
from typing import Any

import torch
from accelerate.state import GradientState
from transformers import Trainer
from transformers import trainer as of_trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length

from skep_job.elastic import micro_batches
from skep_job.elastic.library_group import seated
from skep_job.elastic.parts import Seat

OWN_DATA = (
    "get_train_dataloader",
    "_get_dataloader",
    "_get_train_sampler",
    "get_batch_samples",
    "_inner_training_loop",
    "_run_epoch",
)
"""Methods by which a Trainer gets its data and goes over them: a subclass may deal them out in
another way (TRL's GRPOTrainer does)."""
RANDOM = "rng_state"
HOSTS_RANDOM = ("python", "numpy", "cpu", "xla")
"""The random generators that the Trainer stores in one way, alone and among others. Those of
devices are one generator's state when it is alone, and a list of all devices' among others."""


def why_fixed(trainer: Any) -> str:
    """Return why the size of a Trainer cannot be changed; empty: it can.

    Args:
        trainer: A Trainer before its training.
    """
    args, config = trainer.args, trainer.args.accelerator_config
    sampling = getattr(args, "train_sampling_strategy", "random")
    loss = getattr(trainer, "model_accepts_loss_kwargs", False) or trainer.compute_loss_func
    own = [name for name in OWN_DATA if _method(type(trainer), name) is not _method(Trainer, name)]
    reasons = (
        (own, f"{type(trainer).__name__} deals out its data by its own {', '.join(own)}"),
        (not has_length(trainer.train_dataset), "a stream cannot be divided at its place"),
        (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled, "its state is split over ranks"),
        (getattr(args, "parallelism_config", None), "its model is split over ranks"),
        (
            getattr(trainer, "is_distributed_loading_by_transformers", False),
            "its model is split over ranks",
        ),
        (args.n_gpu > 1, "one process trains on several GPUs"),
        (args.ignore_data_skip, "ignore_data_skip has it begin the data anew at each change"),
        (args.auto_find_batch_size, "auto_find_batch_size changes its batches"),
        (
            sampling not in ("random", "sequential") or getattr(args, "group_by_length", False),
            "its sampler puts batches together by the accumulation",
        ),
        (config.split_batches or config.dispatch_batches, "accelerate divides its batches"),
        (not config.use_seedable_sampler, "use_seedable_sampler is off: its order is not kept"),
        (not config.even_batches, "even_batches is off"),
        (
            loss and not _shares_tokens(args),
            "average_tokens_across_devices is off: each rank's tokens weigh by their number",
        ),
        (trainer.neftune_noise_alpha is not None, "NEFTune's noise would be added twice"),
    )
    return next((text for found, text in reasons if found), "")


def offered(trainer: Any, total: int, least: int, most: int, ranks: int) -> tuple[int, ...]:
    """Return the sizes with which the global batches and the steps of a pass stay as they are.

    Args:
        trainer: A Trainer whose size can be changed.
        total: Micro-batches of a global batch.
        least: The smallest number of ranks that the job allows.
        most: The largest.
        ranks: A number of ranks that it has, or had.
    """
    drop_last = bool(trainer.args.dataloader_drop_last)
    each = trainer.args.per_device_train_batch_size
    rows = len(trainer.train_dataset)
    batches = rows // each if drop_last else -(-rows // each)

    def steps(size: int) -> int:
        accumulated = micro_batches.accumulation(total, size)
        return micro_batches.steps(batches, size, accumulated, drop_last=drop_last)

    found = micro_batches.sizes(total, least, most)
    return tuple(size for size in found if steps(size) == steps(ranks))


def backend_of(trainer: Any) -> str:
    """Return the backend of the process group that accelerate would make."""
    args = trainer.args
    return str(args.ddp_backend or ("gloo" if args.device.type == "cpu" else ""))


def choose_random(folder: Path, rank: int, world: int) -> None:
    """Have a checkpoint's random generators for this rank be where the Trainer looks.

    Args:
        folder: The files of all ranks that wrote the checkpoint; changed.
        rank: This rank.
        world: How many ranks there are.
    """
    wanted = folder / (f"{RANDOM}.pth" if world < 2 else f"{RANDOM}_{rank}.pth")
    alone = folder / f"{RANDOM}.pth"
    ranks = 1 if alone.exists() else len(list(folder.glob(f"{RANDOM}_*.pth")))
    if not ranks:
        return
    of = micro_batches.random_of(rank, ranks)
    has = alone if ranks == 1 and alone.exists() else folder / f"{RANDOM}_{of}.pth"
    content = has.read_bytes()
    for each in folder.glob(f"{RANDOM}*.pth"):
        each.unlink()
    wanted.write_bytes(content)
    if (ranks < 2) != (world < 2):
        allowed = getattr(of_trainer, "safe_globals", contextlib.nullcontext)  # as it reads them
        with allowed():
            states = torch.load(wanted, weights_only=True)
        torch.save(_random_states(states, alone=world < 2), wanted)


def _random_states(states: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    """Return random generators as the Trainer stores them when it is alone, or among others."""
    found = dict(states)
    for name, state in states.items():
        if name in HOSTS_RANDOM:
            continue
        device: Any = getattr(torch, name, None)
        count = max(device.device_count() if hasattr(device, "device_count") else 1, 1)
        several = list(state) if isinstance(state, (list, tuple)) else [state]
        several = [several[number % len(several)] for number in range(count)]
        found[name] = several[0] if alone else several
    return found


def load_callbacks(trainer: Any, folder: Path) -> None:
    """Have a newcomer's callbacks count on from the others': all are to stop at the same step.

    The Trainer does so only where `restore_callback_states_from_checkpoint` is set, and makes them
    anew.

    Args:
        trainer: The Trainer; its callbacks are changed.
        folder: The checkpoint.
    """
    stored = json.loads((folder / "trainer_state.json").read_text()).get("stateful_callbacks")
    for name, states in (stored or {}).items():
        named = [
            each
            for each in trainer.callback_handler.callbacks
            if isinstance(each, ExportableState) and type(each).__name__ == name
        ]
        several = states if isinstance(states, list) else [states]
        for callback, state in zip(named, several, strict=False):
            for attribute, value in state.get("attributes", {}).items():
                setattr(callback, attribute, value)


def share_tokens(args: Any) -> None:
    """Have losses be means over the tokens of all ranks: 4.57 turns that off in a rank alone.

    Args:
        args: The arguments of a Trainer whose size can be changed; changed.
    """
    if hasattr(args, "average_tokens_across_devices"):
        args.average_tokens_across_devices = True


def _shares_tokens(args: Any) -> bool:
    """Return whether losses are means over the tokens of all ranks, or can be made so."""
    asked = getattr(args, "average_tokens_across_devices", None)
    return bool(asked) or (asked is not None and args.world_size < 2)


class Made:
    """What a Trainer was given before its training, to be given it again at another size."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._parts = trainer.optimizer, trainer.lr_scheduler  # None: it makes them.
        self._seed = torch.initial_seed()

    def renew(self, seat: Seat) -> None:
        """Have the Trainer be that of a rank of the process group that there is now.

        Args:
            seat: The rank.
        """
        trainer = self._trainer
        args = trainer.args
        wrapped = trainer.model_wrapped
        model = trainer.accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        vars(model).pop("_is_accelerate_prepared", None)  # Else it would not be wrapped again.
        trainer.accelerator.free_memory()
        trainer.model = trainer.model_wrapped = model
        trainer.optimizer, trainer.lr_scheduler = self._parts
        trainer.callback_handler.train_dataloader = None
        vars(trainer).pop("_eval_dataloaders", None)
        del wrapped
        gc.collect()
        GradientState._reset_state()
        kwargs = args.accelerator_config.gradient_accumulation_kwargs
        if kwargs is not None:
            kwargs.pop("num_steps", None)  # The Trainer's own, from the last time.
        for name in ("_setup_devices", "__cached__setup_devices"):
            vars(args).pop(name, None)
        with seated(seat.rank, seat.world):
            args._setup_devices  # noqa: B018  it is made by being asked for
            trainer.create_accelerator_and_postprocess()
        # The order of the samples comes from it; `torch.manual_seed` would set the devices' too.
        torch.default_generator.manual_seed(self._seed)


def _method(kind: type, name: str) -> object:
    return getattr(kind, name, None)
