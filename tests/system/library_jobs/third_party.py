"""Files that scripts of others read, made up: `third_party.py FOLDER`. Nothing is downloaded.

words/      texts for pytorch/examples' word_language_model
chars/      characters for nanoGPT
model/      a small GPT-2 with its tokenizer, for the scripts of TRL
text/ pairs/ prompts/    data sets for them
images/     small pictures of two classes, and unet/ the shape of a model that makes such
beside/     what scripts look for around them: MNIST, a small BERT, GLUE
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def bert(folder: Path) -> None:
    """Write a small BERT and its tokenizer, under the name of a large one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    named = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    known = {word: number for number, word in enumerate([*named.values(), *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 64, "max_position_embeddings": 64}
    small = BertModel(BertConfig(vocab_size=len(known), **shape, **more))
    fast = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **named)
    fast.save_pretrained(folder / "bert-base-cased")
    small.save_pretrained(folder / "bert-base-cased")


def lines(file: Path, count: int, **columns: Callable[[], Any]) -> None:
    """Write rows of a data set."""
    made = [json.dumps({name: make() for name, make in columns.items()}) for _ in range(count)]
    file.write_text("\n".join(made))


def read_as(folder: Path, config: str, **parts: str) -> None:
    """Write how a data set is read: the files of its parts."""
    files = "".join(f"  - split: {name}\n    path: {path}\n" for name, path in parts.items())
    head = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n"
    (folder / "README.md").write_text(head)


METRIC = """
import datasets
import evaluate


class Small(evaluate.Metric):
    def _info(self):
        kinds = {name: datasets.Value("int64") for name in ("predictions", "references")}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(kinds)
        )

    def _compute(self, predictions, references):
        same = [a == b for a, b in zip(predictions, references)]
        return {"accuracy": sum(same) / len(same), "f1": 0.0}
"""


def glue(folder: Path) -> None:
    """Write GLUE's MRPC, and a metric for it."""
    data, metric = folder / "nyu-mll" / "glue", folder / "glue"
    for each in (data, metric):
        each.mkdir(parents=True)
    (metric / "glue.py").write_text(METRIC)
    number = itertools.count()
    for name, count in (("train", 640), ("validation", 32), ("test", 32)):
        lines(
            data / f"{name}.jsonl",
            count,
            sentence1=text,
            sentence2=text,
            label=lambda: random.randrange(2),
            idx=lambda: next(number),
        )
    read_as(data, "mrpc", **{name: f"{name}.jsonl" for name in ("train", "validation", "test")})


def digits(folder: Path, train: int, test: int) -> None:
    """Write MNIST's files, with random pictures."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        pictures = draw.integers(256, size=(count, 28, 28), dtype=np.uint8)
        head = np.array([0x803, count, 28, 28], dtype=">i4").tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        labels = draw.integers(10, size=count, dtype=np.uint8)
        head = np.array([0x801, count], dtype=">i4").tobytes()
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def processed(folder: Path) -> None:
    """Write MNIST as the examples of Lightning have it, in its true size."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(0)
    for name, count in (("training", 60_000), ("test", 10_000)):
        pictures = torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=draw)
        torch.save((pictures, torch.randint(10, (count,), generator=draw)), folder / f"{name}.pt")


def images(folder: Path) -> None:
    """Write pictures of two classes."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for part, count in (("train", 80), ("validation", 8)):
        for kind in ("a", "b"):
            (folder / part / kind).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(256, size=(32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / kind / f"{number}.png")


def unet(folder: Path) -> None:
    """Write the shape of a small model of diffusers."""
    from diffusers import UNet2DModel

    UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).save_config(folder)


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
    beside = folder / "beside"
    beside.mkdir()
    digits(beside / "data", 1280, 256)
    digits(beside / "Datasets", 400, 100)
    processed(beside / "Datasets" / "MNIST" / "complete")
    glue(beside)
    for make, name in ((model, "model"), (images, "images"), (unet, "unet"), (bert, "beside")):
        try:
            make(folder / name)
        except ImportError as error:
            print(f"no {make.__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
