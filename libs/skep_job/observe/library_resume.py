"""Gives the Trainers of transformers and Lightning the checkpoint that was found for this attempt.

Only where the spec says `resume: auto`, only to the first training of a process that names no
checkpoint itself, and only if that training would have written it: its folder is the Trainer's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from skep_job.observe.import_watcher import ImportWatcher

TRANSFORMERS = "transformers.trainer"
LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def watch(environ: Mapping[str, str]) -> None:
    """Wait for the import of the library whose checkpoint was found.

    Args:
        environ: Has what `skep_job.resume.before` found.
    """
    path, here = environ.get("SKEP_RESUME_FROM", ""), environ.get("SKEP_RESUME_AS", "")
    if not path or not here:
        return
    offer = _Offer(path, here)
    kind = environ.get("SKEP_RESUME_KIND", "")
    if kind == "transformers":
        ImportWatcher({TRANSFORMERS: offer.to_transformers}).install()
    elif kind == "lightning":
        ImportWatcher(dict.fromkeys(LIGHTNING, offer.to_lightning)).install()


class _Offer:
    """A checkpoint that the first fitting training of this process takes."""

    def __init__(self, path: str, here: str) -> None:
        self._path, self._here = path, os.path.realpath(here)
        self._open = True

    def to_transformers(self, module: ModuleType) -> None:
        """Hook into `Trainer.train`."""
        self._hook(module, "train", 0, "resume_from_checkpoint", _output_dir)

    def to_lightning(self, module: ModuleType) -> None:
        """Hook into `Trainer.fit`."""
        self._hook(module, "fit", 4, "ckpt_path", _roots)

    def _hook(
        self,
        module: ModuleType,
        method: str,
        position: int,
        argument: str,
        folders: Callable[[Any], list[str]],
    ) -> None:
        trainer: Any = getattr(module, "Trainer", None)
        original = getattr(trainer, method, None)
        if original is None:
            return

        @functools.wraps(original)
        def offering(self_: Any, *words: Any, **options: Any) -> Any:
            given = words[position] if len(words) > position else options.get(argument)
            # The first training is what counts, also one that brings its own.
            taken, self._open = self._open, False
            if taken and given is None and self._fits(folders, self_):
                if len(words) > position:
                    words = (*words[:position], self._path, *words[position + 1 :])
                else:
                    options[argument] = self._path
                self._say(f"the Trainer gets {argument}={self._path}")
            return original(self_, *words, **options)

        setattr(trainer, method, offering)

    def _fits(self, folders: Callable[[Any], list[str]], trainer: Any) -> bool:
        """Return whether a Trainer writes to where the checkpoint was written."""
        found: list[str] = []
        with contextlib.suppress(Exception):  # Nothing of a job may fail for our sake.
            found = [os.path.realpath(one) for one in folders(trainer)]
        if any(self._here == one or self._here.startswith(f"{one}/") for one in found):
            return True
        self._say(f"{self._path} is not given to a Trainer that writes to {', '.join(found)}")
        return False

    def _say(self, text: str) -> None:
        sys.stderr.write(f"[skep] resume: {text}\n")
        sys.stderr.flush()


def _output_dir(trainer: Any) -> list[str]:
    return [os.fspath(trainer.args.output_dir)]


def _roots(trainer: Any) -> list[str]:
    written = [getattr(one, "dirpath", None) for one in trainer.checkpoint_callbacks]
    return [os.fspath(one) for one in (trainer.default_root_dir, *written) if one]
