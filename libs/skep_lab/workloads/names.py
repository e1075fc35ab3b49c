"""One name for one model: every source writes ResNet-50 in its own way."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_BATCH = re.compile(r"\(\s*batch[ _]size[ :=]*(\d+)\s*\)", re.IGNORECASE)
_SIZES = re.compile(r"^([^,]+),\s*\d+\s*,\s*\d+\s*$")
"""DeepShare writes a model with its GPUs and nodes: `MoE,8,4`."""
_OTHER = re.compile(r"[^a-z0-9]+")

ALIASES = {
    "biattflow": "bidaf",
    "cnntextclassification": "ctc",  # DL²'s Table 1 calls it CTC, its measurements by this name.
    "gnmt16": "gnmt",
    "inceptionv3": "inception3",
    "inceptionv4": "inception4",
    "languagemodel": "lm",
    "neumf": "ncf",
    "regularizedlstm": "lm",  # GENIE's name for the network that Gandiva calls a language model.
    "res18": "resnet18",
    "res50": "resnet50",
    "shufflenetv2x10": "shufflenet",
    "superres": "superresolution",
}
"""Two names for the same model."""

KIN = {"cifar10": "resnet18", "imagenet": "resnet50", "resnet50cifar10": "resnet50"}
"""The model that a data set's name means if the name is not known: the model trained on it (Pollux,
Table 1). `imagenet` is looked up before `resnet50`, because it was measured with its batches."""

GPU_TYPES = ("v100", "p100", "k80", "a100", "h100", "t4", "p40", "m60")


class Name(NamedTuple):
    """A model, and the batch size in its name (0: none)."""

    model: str
    batch: int = 0


@lru_cache(maxsize=4096)
def normalised(text: str) -> Name:
    """Return the model that a source means: `ResNet-50 (batch size 64)` is `resnet50` with 64.

    Args:
        text: Case, spaces and punctuation do not matter. The empty text is no model.
    """
    batch = 0
    if found := _BATCH.search(text):
        batch = int(found[1])
        text = _BATCH.sub("", text)
    elif found := _SIZES.match(text):
        text = found[1]
    text = text.removesuffix("/training").removesuffix("/inference")  # GENIE's types of tasks.
    plain = _OTHER.sub("", text.lower())
    return Name(ALIASES.get(plain, plain), batch)


def kin(model: str) -> tuple[str, ...]:
    """Return the names by which a model is looked up, the best first."""
    return (model, KIN[model]) if model in KIN else (model,)


@lru_cache(maxsize=256)
def gpu_type(text: str) -> str:
    """Return a type of GPU as tables write it: `NVIDIA Tesla V100-SXM2` is `v100`.

    Args:
        text: A type that no table has is returned in lower case.
    """
    low = text.lower()
    for known in GPU_TYPES:
        if re.search(rf"(?<![a-z0-9]){known}(?![0-9])", low):
            return known
    return low
