"""The six job specs of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs"
MLP_EPOCHS, CNN_EPOCHS, DDP_EPOCHS, EXTRA_EPOCHS = 60, 15, 60, 30
SAMPLES = 1437
"""Training samples of the digits once a fifth is kept for testing."""


def _batches(batch_size: int) -> int:
    return -(-SAMPLES // batch_size)


def _script(name: str, vc: str, script: str, epochs: int, batch_size: int, **more: Any) -> Any:
    return {
        "name": name,
        "vc": vc,
        "script": str(JOBS / script),
        "args": ["--epochs", str(epochs), "--batch-size", str(batch_size)],
        "size": {
            "epochs": epochs,
            "mini_batches_per_epoch": _batches(batch_size),
            "family": script.removesuffix(".py"),
        },
        **more,
    }


SPECS: dict[str, dict[str, Any]] = {
    "digits-mlp": _script("digits-mlp", "vision", "digits_mlp.py", MLP_EPOCHS, 16),
    "digits-cnn": _script("digits-cnn", "vision", "digits_cnn.py", CNN_EPOCHS, 32, priority=10),
    "digits-ddp": {
        **_script("digits-ddp", "nlp", "digits_ddp.py", DDP_EPOCHS, 16),
        "resources": {"workers": 2, "gpus": 1},
        "size": {
            "epochs": DDP_EPOCHS,
            "mini_batches_per_epoch": _batches(2 * 16),
            "family": "digits_ddp",
        },
    },
    "fails-twice": {
        "name": "fails-twice",
        "vc": "nlp",
        "command": "echo attempt $SKEP_GEN of $SKEP_JOB; exit 3",
        "limits": {"retries": 1},
    },
    "misspelt": {"name": "misspelt", "vc": "nlp", "command": ["true"], "resources": {"gpu": 2}},
    "digits-extra": _script(
        "digits-extra",
        "nlp",
        "digits_mlp.py",
        EXTRA_EPOCHS,
        16,
        service_class="opportunistic",
        labels={"note": "uses what is idle"},
    ),
}
"""Two unmodified PyTorch scripts, a gang of two, a job that fails, a spec with a mistake, and an
opportunistic job."""

TRAINS = ("digits-mlp", "digits-cnn", "digits-ddp", "digits-extra")
"""The jobs that must reach the accuracy they are asked for."""
ACCURACY_MIN = 0.95
