"""Scripts for trainers of TRL, with Skep's line: `trl_train.py NAME`. Nothing is downloaded."""

from __future__ import annotations

import random
import sys
import tempfile
from typing import Any

import torch
import trl
from datasets import Dataset
from digest import tell
from losses import Losses
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from skep_job.hf import SkepCallback

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def tokenizer() -> Any:
    """Return one of a few made-up words."""
    known = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def text(count: int = 8) -> str:
    """Return a few words."""
    return " ".join(random.choices(WORDS, k=count))


def config(**more: Any) -> Any:
    """Return that of a small GPT-2."""
    return GPT2Config(
        vocab_size=len(SPECIAL) + len(WORDS),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        **more,
    )


def options(**more: Any) -> dict[str, Any]:
    """Return arguments that every example has."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 7,
        "disable_tqdm": True,
        "bf16": False,
        **more,
    }


def pairs(count: int) -> Any:
    """Return prompts with a better and a worse answer."""
    rows = [{"prompt": text(), "chosen": text(), "rejected": text()} for _ in range(count)]
    return Dataset.from_list(rows)


def lengths(completions: list[str], **_: Any) -> list[float]:
    """Return a reward: how many different words there are."""
    return [float(len(set(each.split()))) for each in completions]


def main() -> None:
    """Train by one of them."""
    random.seed(0)
    torch.manual_seed(0)
    name, words = sys.argv[1], tokenizer()
    skep = SkepCallback(elastic=(1, 4)) if name == "sft_sizes" else SkepCallback()
    common: dict[str, Any] = {"processing_class": words, "callbacks": [skep]}
    trainer: Any
    if name == "sft":
        data = Dataset.from_list([{"text": text()} for _ in range(240)])
        args = trl.SFTConfig(**options(max_length=32))
        trainer = trl.SFTTrainer(GPT2LMHeadModel(config()), args, train_dataset=data, **common)
    elif name == "sft_sizes":
        # Texts of many lengths: a loss by tokens weighs the ranks by what they have of these.
        rows = [{"text": text(random.randint(2, 16))} for _ in range(240)]
        exact = config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        args = trl.SFTConfig(
            **options(max_length=32, gradient_accumulation_steps=2, num_train_epochs=8)
            | {"logging_steps": 1}
        )
        common["callbacks"].append(Losses())
        trainer = trl.SFTTrainer(
            GPT2LMHeadModel(exact), args, train_dataset=Dataset.from_list(rows), **common
        )
    elif name == "lora":
        from peft import LoraConfig

        data = Dataset.from_list([{"text": text()} for _ in range(240)])
        args = trl.SFTConfig(**options(max_length=32))
        lora = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", lora_dropout=0.1)
        trainer = trl.SFTTrainer(
            GPT2LMHeadModel(config()), args, train_dataset=data, peft_config=lora, **common
        )
    elif name == "dpo":
        args = trl.DPOConfig(**options(max_length=32))
        model, reference = GPT2LMHeadModel(config()), GPT2LMHeadModel(config())
        trainer = trl.DPOTrainer(model, reference, args, train_dataset=pairs(240), **common)
    elif name == "reward":
        model = GPT2ForSequenceClassification(config())
        model.score = torch.nn.Linear(32, 1, bias=False)
        model.config.num_labels = model.num_labels = 1
        args = trl.RewardConfig(**options(max_length=32))
        trainer = trl.RewardTrainer(model, args=args, train_dataset=pairs(240), **common)
    else:
        data = Dataset.from_list([{"prompt": text()} for _ in range(120)])
        args = trl.GRPOConfig(**options(num_generations=4, max_completion_length=8, max_steps=60))
        trainer = trl.GRPOTrainer(
            GPT2LMHeadModel(config()), lengths, args=args, train_dataset=data, **common
        )
    trainer.train()
    if trainer.is_world_process_zero():
        tell(trainer.accelerator.unwrap_model(trainer.model).state_dict().values())


main()
