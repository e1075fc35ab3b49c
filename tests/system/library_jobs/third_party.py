"""Files that scripts of others read, made up: `third_party.py FOLDER`. Nothing is downloaded.

words/      texts for pytorch/examples' word_language_model
chars/      characters for nanoGPT
model/      a small GPT-2 with its tokenizer, for the scripts of TRL
text/ pairs/ prompts/    data sets for them
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def text(count: int = 8) -> str:
    """Return a few words."""
    return " ".join(random.choices(WORDS, k=count))


def words(folder: Path) -> None:
    """Write the three parts of a corpus of words."""
    folder.mkdir()
    for name, lines in (("train", 1000), ("valid", 40), ("test", 40)):
        rows = "".join(f" {text(20)} \n" for _ in range(lines))
        (folder / f"{name}.txt").write_text(rows)


def chars(folder: Path) -> None:
    """Write characters as nanoGPT's own preparation does."""
    folder.mkdir()
    for name, count in (("train", 20_000), ("val", 2_000)):
        np.random.default_rng(0).integers(60, size=count, dtype=np.uint16).tofile(
            folder / f"{name}.bin"
        )


def model(folder: Path) -> None:
    """Write a model and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    known = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    shape = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(known), **shape, **ends)).save_pretrained(folder)


def rows(folder: Path, *columns: str) -> None:
    """Write a data set of random text."""
    folder.mkdir()
    lines = [json.dumps({name: text() for name in columns}) for _ in range(240)]
    (folder / "train.jsonl").write_text("\n".join(lines))


def main() -> None:
    """Write what the libraries of this interpreter can read."""
    random.seed(0)
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    words(folder / "words")
    chars(folder / "chars")
    rows(folder / "text", "text")
    rows(folder / "pairs", "prompt", "chosen", "rejected")
    try:
        model(folder / "model")
    except ImportError as error:
        print(f"no model for the scripts of TRL: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
