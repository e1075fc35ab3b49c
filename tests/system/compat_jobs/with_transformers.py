"""A script for the Trainer of transformers: a small BERT from its configuration, random text."""

import hashlib
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)
config = BertConfig(
    vocab_size=500,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
)
model = BertForSequenceClassification(config)
rows = [{"input_ids": torch.randint(500, (16,)), "labels": torch.tensor(n % 2)} for n in range(400)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=rows).train()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("result", digest.hexdigest(), flush=True)
