"""Scripts for the Trainer of transformers, with Skep's line: `hf.py NAME`."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from digest import tell
from losses import Losses
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from skep_job.hf import SkepCallback

ON_CPU = os.environ.get("TRAIN_ON", "cpu") == "cpu"

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}


def words(count: int) -> list[dict[str, Any]]:
    """Return random text with a class."""
    return [
        {"input_ids": torch.randint(200, (16,)), "labels": torch.tensor(number % 2)}
        for number in range(count)
    ]


def texts(count: int) -> list[dict[str, Any]]:
    """Return random text to be repeated."""
    rows = [torch.randint(200, (16,)) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def images(count: int) -> list[dict[str, Any]]:
    """Return random pictures with a class."""
    return [
        {"pixel_values": torch.randn(3, 16, 16), "labels": torch.tensor(number % 2)}
        for number in range(count)
    ]


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Text without an index."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def bert(**more: Any) -> Any:
    """Return a small BERT."""
    return BertForSequenceClassification(
        BertConfig(vocab_size=200, intermediate_size=64, **SMALL, **more)  # type: ignore[arg-type]
    )


def gpt2() -> Any:
    """Return a small GPT-2."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=200, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    )


def options(**more: Any) -> dict[str, Any]:
    """Return arguments that every example has."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "use_cpu": ON_CPU,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 7,
        "disable_tqdm": True,
        **more,
    }


def main() -> None:
    """Train by one of them."""
    torch.manual_seed(0)
    name = sys.argv[1]
    skep = SkepCallback(elastic=(1, 4)) if name == "bert_sizes" else SkepCallback()
    trainer: Any
    if name in {"bert", "bert_ranks"}:
        args = TrainingArguments(**options(num_train_epochs=2 if name == "bert" else 4))
        trainer = Trainer(bert(), args, train_dataset=words(240), callbacks=[skep])
    elif name == "bert_sizes":
        exact = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        args = TrainingArguments(**options(num_train_epochs=4, logging_steps=1))
        trainer = Trainer(bert(**exact), args, train_dataset=words(240), callbacks=[skep, Losses()])
    elif name == "gpt2":
        args = TrainingArguments(
            **options(
                gradient_accumulation_steps=2,
                lr_scheduler_type="cosine",
                warmup_steps=5,
                max_steps=100,
                eval_strategy="steps",
                eval_steps=20,
            )
        )
        trainer = Trainer(
            gpt2(), args, train_dataset=texts(304), eval_dataset=texts(8), callbacks=[skep]
        )
    elif name == "stream":
        args = TrainingArguments(**options(max_steps=120))
        trainer = Trainer(bert(), args, train_dataset=Stream(words(240)), callbacks=[skep])
    elif name == "t5":
        config = T5Config(vocab_size=200, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
        config.decoder_start_token_id = 0
        args = Seq2SeqTrainingArguments(**options())
        model = T5ForConditionalGeneration(config)
        trainer = Seq2SeqTrainer(model, args, train_dataset=texts(240), callbacks=[skep])
    else:
        config = ViTConfig(image_size=16, patch_size=4, intermediate_size=64, **SMALL)
        args = TrainingArguments(**options(optim="sgd", max_grad_norm=0.0))
        model = ViTForImageClassification(config)
        trainer = Trainer(model, args, train_dataset=images(240), callbacks=[skep])
    trainer.train()
    if trainer.is_world_process_zero():
        tell(trainer.model.state_dict().values())


main()
