"""Skep for the Trainer of Hugging Face's transformers, and those derived from it (TRL).

    from skep_job.hf import SkepCallback
    trainer = Trainer(..., callbacks=[SkepCallback()])
    trainer.train()

The job can then be stored, moved and begun again, and goes on in the middle of its epoch: from the
checkpoint that the Trainer itself writes where Skep asks for it, apart from those of the script.
With `SkepCallback(elastic=(1, 4))` its number of ranks can be changed while it trains, with the
same global batches: each rank then accumulates more micro-batches, or fewer (`hf_sizes`).
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import has_length

from skep_job.cooperate.begin import begin_library
from skep_job.cooperate.library_run import LibraryRun
from skep_job.cooperate.run import Extra, UsageError
from skep_job.elastic.library import Regrouped
from skep_job.elastic.micro_batches import accumulation
from skep_job.hf_sizes import (
    Made,
    backend_of,
    choose_random,
    load_callbacks,
    offered,
    share_tokens,
    why_fixed,
)

LOGGED = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""What the Trainer's next report of the loss is made of, beside `_tr_loss`. Each version has some
of these. Early ones keep `_tr_loss` within their loop: the first report behind a move then leaves
out the steps before it. The training is the same.
"""

UNREAD = "skep-weights.pt"


class SkepCallback(TrainerCallback):  # type: ignore[misc]
    """Hands the Trainer's steps to Skep, and reports what the Trainer logs."""

    folder = None
    """What scripts used as `output_dir`, when Skep's checkpoints were among their own."""

    def __init__(
        self,
        checkpoint_every: float | str | None = None,
        keep: int = 2,
        *,
        elastic: tuple[int, int] | None = None,
        global_batch: int | None = None,
    ) -> None:
        """Prepare; nothing is written before the Trainer trains.

        Args:
            checkpoint_every: The time between two checkpoints that are written without being asked
                for: seconds, or text such as "10m". None: there are none.
            keep: How many checkpoints stay.
            elastic: The smallest and the largest number of ranks of a job that may change its size
                while it trains. None: the size is fixed, and `global_batch` has no effect.
            global_batch: The samples of one step of the optimizer, all ranks together; the
                accumulation follows from it. None: as the Trainer's arguments say for the ranks
                that the first attempt begins with.

        Raises:
            UsageError: The script made a run of its own.
            ValueError: An argument has no possible meaning, or `elastic` does not allow the size
                that the job has.
        """
        self._run: LibraryRun = begin_library(checkpoint_every, keep, elastic)
        self._elastic = elastic if self._run.gang is not None else None
        self._global_batch = global_batch
        self._micro_batches = 0  # of a global batch
        self._made: Made | None = None
        self._trainer: Any = None
        self._first = True  # step of an epoch
        self._pass = {"epoch": -1, "began": 0}
        self._streams = False

    def newest(self) -> None:
        """Return what scripts gave as `resume_from_checkpoint`: the Trainer has it without."""

    # --- what the Trainer calls -------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer is None:
            return
        self._read_rest()
        logged = self._run.taken("hf.logged")
        pass_ = self._run.taken("hf.pass")
        if pass_ is not None:
            self._pass["epoch"] = pass_["epoch"] - 1  # Its beginning is told again.
        if logged is not None:
            if hasattr(self._trainer, "_tr_loss"):
                self._trainer._tr_loss.fill_(logged["_tr_loss"])
            for name in LOGGED:
                if name in logged:
                    setattr(self._trainer, name, logged[name])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._first = True
        again = self._run.taken("hf.pass") or {}
        epoch = self._pass["epoch"] + 1
        began = again["began"] if epoch == again.get("epoch") else state.global_step
        self._pass = {"epoch": epoch, "began": began}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Here all that belongs to the step before is over: its log, evaluation and checkpoint. At
        # the first of an epoch the Trainer's checkpoint would have its data begin before the epoch.
        first, self._first = self._first, False
        if self._trainer is None:
            return
        self._run.look()
        if not first:
            self._run.forget()
        # Where every epoch is one step there is no other place; a stream's epochs are not counted.
        alone = not self._streams and state.max_steps <= state.num_train_epochs
        if not first or alone:
            self._run.between()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer is not None:
            self._run.tick()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer is not None:
            self._run.end()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._run.tell(logs or {})

    # --- inside -----------------------------------------------------------------------------------

    def begin(self, trainer: Any) -> str | None:
        """Begin the training of `trainer`; return the checkpoint that it has to go on from."""
        if not self._run.active:
            return None
        self._trainer = trainer
        self._run.keep("hf.logged", Extra(self._logged, lambda _: None))
        self._run.keep("hf.pass", Extra(lambda: dict(self._pass), lambda _: None))
        self._find_pass(trainer)
        if self._elastic is not None:
            return self._begin_elastic(trainer, self._elastic)
        folder = self._run.begin(self._save, trainer.model)
        return str(folder) if folder is not None else None

    def again(self) -> str:
        """Begin the training anew, in another gang; return the checkpoint to go on from."""
        return str(self._fit(self._run.again(), renew=True))

    def _begin_elastic(self, trainer: Any, elastic: tuple[int, int]) -> str | None:
        """Begin a training whose size may change.

        Raises:
            UsageError: Its size cannot be changed, or not to the one that it has.
        """
        gang = self._run.gang
        assert gang is not None
        why = why_fixed(trainer)
        if why:
            message = f"elastic={elastic}: {why}; leave out `elastic`"
            raise UsageError(message)
        if trainer.args.world_size < 2:
            share_tokens(trainer.args)
        self._made = Made(trainer)
        self._run.keep("hf.micro_batches", Extra(lambda: self._micro_batches, lambda _: None))
        joins = gang.joins()
        if not joins:
            ranks = gang.world()
            if trainer.args.world_size != ranks:
                message = f"the Trainer has {trainer.args.world_size} ranks, and the job {ranks}"
                raise UsageError(message)
            self._micro_batches = ranks * trainer.args.gradient_accumulation_steps
            if self._global_batch is not None:
                self._micro_batches = self._divided(self._global_batch)
            self._offer(ranks)
        folder = self._run.begin(self._save, trainer.model)
        if folder is not None or not joins:
            self._micro_batches = self._run.taken("hf.micro_batches") or self._micro_batches
            self._fit(folder, renew=joins)
        if folder is not None and joins:
            load_callbacks(trainer, folder)
        return str(folder) if folder is not None else None

    def _divided(self, samples: int) -> int:
        """Return the micro-batches of a global batch.

        Raises:
            UsageError: It is not a whole number of micro-batches.
        """
        each = int(self._trainer.args.per_device_train_batch_size)
        if samples < each or samples % each:
            message = (
                f"global_batch={samples}: expected a multiple of per_device_train_batch_size={each}"
            )
            raise UsageError(message)
        return samples // each

    def _offer(self, ranks: int) -> None:
        """Say which sizes the job can have.

        Args:
            ranks: A number of ranks that it has, or had.

        Raises:
            UsageError: These ranks cannot share a global batch.
        """
        assert self._elastic is not None
        try:
            sizes = offered(self._trainer, self._micro_batches, *self._elastic, ranks)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._run.offer(sizes, backend_of(self._trainer))

    def _fit(self, folder: Path | None, *, renew: bool) -> Path | None:
        """Have the Trainer make the same global batches with the ranks that there are.

        Args:
            folder: The checkpoint to go on from; changed.
            renew: Whether the process group is another one than the Trainer knows.

        Raises:
            UsageError: The ranks cannot share a global batch.
        """
        gang, trainer = self._run.gang, self._trainer
        assert gang is not None
        assert self._made is not None
        seat = gang.gang.seat
        self._offer(seat.world)
        if renew:
            self._made.renew(seat)
        trainer.args.gradient_accumulation_steps = accumulation(self._micro_batches, seat.world)
        if folder is not None:
            choose_random(folder, seat.rank, seat.world)
        return folder

    def _find_pass(self, trainer: Any) -> None:
        """Have a Trainer go on in the pass over the data that it was in.

        It goes by the length of a pass. A stream has none, and counts as one pass however often it
        was read.
        """
        original = getattr(trainer, "_init_training_state", None)
        self._streams = not has_length(trainer.train_dataset)
        if original is None or not self._streams:
            return

        def init(*words: Any, **options: Any) -> tuple[int, int]:
            epoch, steps = original(*words, **options)
            pass_ = self._run.taken("hf.pass")
            if pass_ is not None:
                epoch, steps = pass_["epoch"], trainer.state.global_step - pass_["began"]
                steps *= trainer.args.gradient_accumulation_steps
            return epoch, steps

        trainer._init_training_state = init

    def _logged(self) -> dict[str, Any]:
        own = {
            name: getattr(self._trainer, name) for name in LOGGED if hasattr(self._trainer, name)
        }
        loss: Any = getattr(self._trainer, "_tr_loss", 0.0)
        if self._elastic is not None and hasattr(self._trainer, "_tr_loss"):
            # What each rank has summed up; the ranks may be others.
            loss = self._trainer.accelerator.gather(loss.reshape(1)).mean()
        return {"_tr_loss": float(loss), **own}

    def _save(self, folder: Path) -> None:
        trainer = self._trainer
        elsewhere = {"output_dir": str(folder), "save_total_limit": None, "push_to_hub": False}
        with _as(trainer.args, **elsewhere, save_only_model=False):
            trainer._save_checkpoint(trainer.model, trial=None)
        written = folder / f"checkpoint-{trainer.state.global_step}"
        for each in written.iterdir():
            shutil.move(each, folder / each.name)
        written.rmdir()
        if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            self._add_unread(folder)

    def _add_unread(self, folder: Path) -> None:
        """Write the weights that the Trainer would not find again in its own checkpoint.

        transformers writes some models (ViT) under the names that they had in earlier versions, and
        its Trainer passes over what it reads under a name that the model has not.
        """
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        written: set[str] = set()
        for file in folder.glob("model*.safetensors"):
            with safetensors.safe_open(file, "pt") as stored:
                written |= set(stored.keys())
        weights = model.state_dict()
        known = {weights[name].data_ptr() for name in written if name in weights}  # tied ones too
        unread = {
            name: value.contiguous()
            for name, value in weights.items()
            if name not in written and value.data_ptr() not in known
        }
        if written and unread:
            torch.save(unread, folder / UNREAD)

    def _read_rest(self) -> None:
        """Load the weights that the Trainer did not find."""
        file = self._run.found(UNREAD)
        if file is not None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            weights = torch.load(file, map_location="cpu", weights_only=True)
            model.load_state_dict(weights, strict=False)


@contextlib.contextmanager
def _as(args: Any, **values: Any) -> Iterator[None]:
    """Have the arguments of a Trainer be others for a moment."""
    before = {name: getattr(args, name) for name in values}
    try:
        for name, value in values.items():
            setattr(args, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(args, name, value)


def _hook() -> None:
    """Have `train` ask the callback where to go on."""
    original = Trainer.train

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *words: Any, **options: Any) -> Any:
        skep: SkepCallback | None = None
        for each in self.callback_handler.callbacks:
            if isinstance(each, SkepCallback):
                skep = each
                resume_from_checkpoint = each.begin(self) or resume_from_checkpoint
        while True:
            try:
                return original(self, resume_from_checkpoint, *words, **options)
            except Regrouped:
                assert skep is not None, "another's gang was changed"
            # Only here: the loop that was left is let go of, and what it had wrapped.
            resume_from_checkpoint = skep.again()

    Trainer.train = train


_hook()
