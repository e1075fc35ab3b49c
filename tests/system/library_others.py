"""The scripts of others that `tests.system.libraries` plays, and the words that they are given.

They are not here: they are found below a folder with clones of their repositories, or in the
package that has them. Where a script has the line of Skep's, it takes the place of a few lines of
a copy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

JOBS = Path(__file__).parent / "library_jobs"
SLOW = str(JOBS / "slow.py")

Edits = tuple[tuple[str, str], ...]
"""What is in a script, and what takes its place."""


class Example(NamedTuple):
    """A script."""

    name: str
    library: str
    script: Path
    arguments: tuple[str, ...]
    counted: int
    """Mini-batches: the steps of its optimizer."""
    before: tuple[str, ...] = ()
    """What its interpreter runs it by."""
    workers: int = 1
    env: dict[str, str] = {}  # noqa: RUF012  nothing is added to it
    line: bool = True
    """Whether it has the line of Skep's."""
    sizes: tuple[int, ...] = ()
    """The numbers of workers that it is given one after the other, if it can be resized: it prints
    its losses (`library_jobs/losses.py`)."""
    third: bool = False
    """Whether it is a script of others, as they have it: below `--third`, or in a package."""
    edits: Edits = ()
    """Where the line of Skep's is put, and what this machine cannot do."""

    def argv(self) -> list[str]:
        """Return the words after the interpreter."""
        return [*self.before, SLOW, str(self.script), *self.arguments]


OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
KERAS = {"KERAS_BACKEND": "torch"}
SEEDED = {"SEED": "1"}
"""For scripts that seed nothing."""
BESIDE = {"BESIDE": "{data}/beside", "MPLBACKEND": "Agg"}
"""For scripts that look for their data in their own folder, or in those above it."""
GLUE = {**OFFLINE, **BESIDE, "HF_EVALUATE_OFFLINE": "1", "HF_HOME": "{data}/cache"}

NANO = (
    "--dataset={data}/chars --device=cpu --compile=False --dtype=float32 --eval_interval=50"
    " --eval_iters=2 --log_interval=10 --block_size=32 --batch_size=4 --n_layer=2 --n_head=2"
    " --n_embd=32 --max_iters=120 --lr_decay_iters=120 --warmup_iters=10 --dropout=0.1"
    " --gradient_accumulation_steps=2"
)
SMALL = (
    "--model_name_or_path {data}/model --output_dir out --max_steps 120 --use_cpu --bf16 False"
    " --dtype float32 --report_to none --save_strategy no --per_device_train_batch_size 4"
    " --max_length 32 --disable_tqdm True --logging_steps 7"
)
WORDS = "--data {data}/words --emsize 32 --nhid 32 --epochs 1 --use-optimizer --batch_size 5"
IMAGES = (
    "--train_data_dir {data}/images/train --model_config_name_or_path {data}/unet --resolution 16"
    " --train_batch_size 4 --num_epochs 3 --ddpm_num_inference_steps 2 --eval_batch_size 2"
    " --output_dir out --save_images_epochs 100 --save_model_epochs 100 --random_flip"
)
TIMM = (
    "--data-dir {data}/images --model test_vit --num-classes 2 -b 4 --epochs 3 --device cpu -j 1"
    " --img-size 32 --warmup-epochs 1 --log-interval 50 --model-ema"
)
AUTOENCODER = (
    "--trainer.max_epochs=2 --trainer.limit_train_batches=60 --trainer.limit_val_batches=5"
    " --trainer.limit_test_batches=5 --trainer.limit_predict_batches=5"
    " --trainer.enable_progress_bar=false"
)

HF_LINE = "callbacks=[__import__('skep_job.hf').hf.SkepCallback()],"
FOLLOW = "__import__('skep_job.accelerate_loop').accelerate_loop.follow(accelerator)"
TRL_LINE: Edits = (
    (
        "peft_config=get_peft_config(model_args),\n    )",
        f"peft_config=get_peft_config(model_args),\n        {HF_LINE}\n    )",
    ),
)


def _prepared(parts: str, indent: str = "    ") -> Edits:
    """Return the line behind `accelerator.prepare`."""
    end = f"{indent}    {parts}\n{indent})\n"
    return ((end, f"{end}{indent}{FOLLOW}\n"),)


PARTS = "model, optimizer, train_dataloader, eval_dataloader, lr_scheduler"
ALL = _prepared(PARTS)
WINDOWS = ("MAX_GPU_BATCH_SIZE = 16", "MAX_GPU_BATCH_SIZE = 8")
"""The script then accumulates over two batches, which it numbers itself."""
VAE: Edits = (
    ("import argparse\n", "import argparse\nimport skep_job\nrun = skep_job.init()\n"),
    (
        "optimizer = optim.Adam(model.parameters(), lr=1e-3)\n",
        "optimizer = optim.Adam(model.parameters(), lr=1e-3)\n"
        "run.track(model=model, opt=optimizer)\n",
    ),
    ("in enumerate(train_loader):", "in run.enumerate(train_loader):"),
    ("for epoch in range(1, args.epochs + 1):", "for epoch in run.epochs(args.epochs):"),
)
DCGAN: Edits = (
    (
        "for epoch in range(opt.niter):\n    for i, data in enumerate(dataloader, 0):",
        "import skep_job\nrun = skep_job.init()\n"
        "run.track(g=netG, d=netD, opt_g=optimizerG, opt_d=optimizerD)\n"
        "for epoch in run.epochs(opt.niter):\n    for i, data in run.enumerate(dataloader, 0):",
    ),
)


def _third(
    name: str, library: str, script: str, arguments: str, counted: int, **more: Any
) -> Example:
    """Return a script of others, without a line of Skep's unless `more` says so."""
    words = tuple(arguments.split())
    return Example(
        name, library, Path(script), words, counted, third=True, **{"line": False, **more}
    )


def _torch(
    name: str,
    arguments: str,
    counted: int,
    edits: Edits = (),
    env: Mapping[str, str] = MappingProxyType({}),
) -> Example:
    """Return a script of `pytorch/examples`; with `edits` it has the five lines."""
    title = f"pytorch/examples {name}{', five lines' if edits else ''}"
    script = f"examples/{name}/main.py"
    more = {"env": {**BESIDE, **env}, "edits": edits, "line": bool(edits)}
    return _third(title, "torch", script, arguments, counted, **more)


def _accelerate(name: str, counted: int, edits: Edits = ALL) -> Example:
    """Return an example of accelerate's; with `edits` it has the line."""
    title = f"{name}.py{', one line' if edits else ''}"
    script = f"accelerate/examples/{name}.py"
    more = {"env": GLUE, "edits": edits, "line": bool(edits)}
    return _third(title, "accelerate", script, "--cpu", counted, **more)


def _trl_script(name: str, data: str) -> Example:
    """Return a script of TRL's own, with the line."""
    arguments = f"{SMALL} --dataset_name {{data}}/{data}"
    script = f"trl/scripts/{name}.py"
    return _third(script, "trl", script, arguments, 120, env=OFFLINE, edits=TRL_LINE, line=True)


THIRD = (
    _third(
        "pytorch/examples word_language_model",
        "torch",
        "examples/word_language_model/main.py",
        WORDS,
        120,
    ),
    _third(
        "pytorch/examples word_language_model, Transformer",
        "torch",
        "examples/word_language_model/main.py",
        f"{WORDS} --model Transformer --lr 0.001",
        120,
    ),
    _third(
        "minGPT adder",
        "torch",
        "minGPT/projects/adder/adder.py",
        "--trainer.num_workers=0 --trainer.max_iters=120",
        120,
    ),
    _third("nanoGPT train.py", "torch", "nanoGPT/train.py", NANO, 121),
    _torch("vae", "--epochs 2 --batch-size 16", 160),
    _torch("vae", "--epochs 2 --batch-size 16", 160, VAE),
    _torch(
        "dcgan",
        "--dataset fake --batchSize 16 --niter 2 --ngf 8 --ndf 8 --manualSeed 1 --workers 1",
        126,
    ),
    _torch(
        "dcgan",
        "--dataset fake --batchSize 16 --niter 2 --ngf 8 --ndf 8 --manualSeed 1 --workers 0",
        126,
        DCGAN,
    ),
    _torch(
        "mnist_forward_forward", "--epochs 60 --train_size 128 --test_size 128", 120, env=SEEDED
    ),
    _third(
        "cleanrl ppo.py", "torch", "cleanrl/cleanrl/ppo.py", "--total-timesteps 4096 --no-cuda", 128
    ),
    _third(
        "cleanrl dqn.py",
        "torch",
        "cleanrl/cleanrl/dqn.py",
        "--total-timesteps 2300 --learning-starts 1000 --no-cuda",
        129,
    ),
    _third(
        "run-with-skorch.py",
        "skorch",
        "skorch/examples/accelerate-multigpu/run-with-skorch.py",
        "",
        192,
        env=SEEDED,
    ),
    _third("train.py", "timm", "pytorch-image-models/train.py", TIMM, 120),
    _third(
        "fabric/kfold_cv",
        "lightning",
        "pytorch-lightning/examples/fabric/kfold_cv/train_fabric.py",
        "--epochs 2 --batch-size 16",
        200,
        env=BESIDE,
    ),
    _third(
        "basics/autoencoder.py, one line",
        "lightning",
        "pytorch-lightning/examples/pytorch/basics/autoencoder.py",
        f"{AUTOENCODER} --trainer.callbacks+=skep_job.lightning_callback.SkepCallback",
        120,
        env=BESIDE | {"PL_USE_MOCKED_MNIST": "1"},
        line=True,
    ),
    _accelerate("complete_nlp_example", 120, ()),
    _accelerate("complete_nlp_example", 240, (*ALL, WINDOWS)),
    _accelerate("by_feature/cross_validation", 243, _prepared(PARTS, "        ")),
    _third(
        "train_unconditional.py, one line",
        "diffusers",
        "diffusers/examples/unconditional_image_generation/train_unconditional.py",
        IMAGES,
        120,
        env=GLUE | SEEDED,
        edits=_prepared("model, optimizer, train_dataloader, lr_scheduler"),
        line=True,
    ),
    _trl_script("sft", "text"),
    _trl_script("dpo", "pairs"),
)
"""Scripts of others, with the words of their command lines."""


def found(example: Example, third: Path | None, base: Path, python: str) -> Example | str:
    """Return a script of others with the words and the folder that it has here, or what it lacks.

    Args:
        example: The script.
        third: The folder of clones.
        base: Where files are put.
        python: The interpreter: what is in no clone is in a package of its.
    """
    if not example.third:
        return example
    paths = subprocess.check_output([python, "-c", "import json, sys; print(json.dumps(sys.path))"])
    homes = [*([third] if third else []), *(Path(each) for each in json.loads(paths) if each)]
    home = next((each for each in homes if (each / example.script).exists()), None)
    if home is None:
        return f"there is no {example.script} below --third or in a package"
    data = base / "data"
    if not data.exists():
        data.mkdir()
        made = [python, str(JOBS / "third_party.py"), str(data)]
        subprocess.run(made, check=True, capture_output=True)
    script = home / example.script
    if example.edits:
        text = script.read_text()
        if not all(before in text for before, _ in example.edits):
            return f"{script} is not as it was: Skep's line has no place"
        copy = Path(tempfile.mkdtemp(dir=base)) / script.parent.name
        shutil.copytree(script.parent, copy, ignore=shutil.ignore_patterns(".git"))
        script = copy / script.name
        for before, after in example.edits:
            text = text.replace(before, after)
        script.write_text(text)
    here = {"{data}": str(data)}
    words = tuple(_filled(word, here) for word in example.arguments)
    own = {name: _filled(value, here) for name, value in example.env.items()}
    path = str(home / example.script.parts[0])
    env = {**own, "OWN_FOLDER": "yes", "PYTHONPATH": path}
    return example._replace(script=script, arguments=words, env=env)


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
