"""Knows checkpoints of common libraries by their files, and which of them are whole.

What each library writes last, and what a checkpoint of it must have so that training can go on:

| kind | is known by | whole, if |
|---|---|---|
| transformers | `checkpoint-N/`, `trainer_state.json` (last) | it says step N; optimizer, weights |
| accelerate | `random_states_0.pkl` (written last but for custom objects) | weights are there |
| lightning | a `.ckpt` file | it says the version of Lightning, and has states of optimizers |
| dcp | `*.distcp` files | `.metadata` (written last) |
| torch, keras, safetensors | one file of that form | the file is |
| files | any other folder | each file whose form is known is |
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from skep_job.resume import readable

FILES_MAX = 10_000
"""Of one checkpoint: 8,192 ranks write one each."""
DEPTH_MAX = 4
TRAINER_STATE, RANDOM_STATES = "trainer_state.json", "random_states_0.pkl"
DCP_METADATA = ".metadata"
WEIGHTS = ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")
PARTIAL = (".tmp", ".part", ".partial", ".incomplete", ".temp")
DATA_BYTES_MAX = 16 * 1024 * 1024
"""Of the `data.pkl` in a checkpoint of Lightning that are looked at: names and shapes."""
STEP = re.compile(r"(?:step[=_-]?|checkpoint[-_]|iter[=_-]?)(\d{1,15})")
GLOBAL_STEP = re.compile(r"^global_step\d+$")
ONE_FILE = {".pt": "torch", ".pth": "torch", ".bin": "torch", ".ckpt": "torch"} | {
    ".keras": "keras",
    ".h5": "keras",
    ".safetensors": "safetensors",
}


class Files(NamedTuple):
    """The files of a checkpoint by their paths within it, with sizes and times of change."""

    sizes: dict[str, tuple[int, int]]
    newest_ns: int
    trouble: str = ""

    def kinds(self) -> dict[str, None]:
        """Return the names of its files, with the step in folders of DeepSpeed left out."""
        found = ("/".join(map(_without_step, name.split("/"))) for name in self.sizes)
        return dict.fromkeys(found)


class Judged(NamedTuple):
    """What a checkpoint is: of which library, after which step (-1: not said); why it is none."""

    kind: str
    step: int
    trouble: str = ""


def files_of(path: str, uid: int) -> Files:
    """Return the files of a checkpoint, which is a file or a folder.

    Args:
        path: Where it is.
        uid: The user that all of it must be of: a checkpoint of another may run code of theirs.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        trouble = _list(path, "", uid, found, 0)
        newest_ns = max((one[1] for one in found.values()), default=0)
        if trouble:  # Then not all of its files were looked at.
            newest_ns = max(newest_ns, os.lstat(path).st_mtime_ns)
    except OSError as error:
        return Files(found, 0, f"it cannot be listed: {error.strerror}")
    return Files(found, newest_ns, trouble)


def _list(path: str, name: str, uid: int, found: dict[str, tuple[int, int]], depth: int) -> str:
    seen = os.lstat(path)
    shown = name or "it"
    if stat.S_ISLNK(seen.st_mode):
        return f"{shown} is a link, which is not followed"
    if seen.st_uid != uid:
        return f"{shown} is of user {seen.st_uid}, and the job of user {uid}"
    if seen.st_mode & stat.S_IWOTH:
        return f"everybody may write to {shown}"
    if stat.S_ISREG(seen.st_mode):
        found[name] = (seen.st_size, seen.st_mtime_ns)
        return ""
    if not stat.S_ISDIR(seen.st_mode):
        return f"{shown} is neither a file nor a folder"
    if depth == DEPTH_MAX:
        return f"{shown} is {DEPTH_MAX} folders deep"
    for entry in sorted(os.listdir(path)):
        if len(found) >= FILES_MAX:
            return f"it has more than {FILES_MAX} files"
        inner = f"{name}/{entry}" if name else entry
        if trouble := _list(os.path.join(path, entry), inner, uid, found, depth + 1):
            return trouble
    return ""


def judge(path: str, files: Files) -> Judged:
    """Return what a checkpoint is, and whether it is whole.

    Args:
        path: Where it is.
        files: Its files.
    """
    if files.trouble:
        return Judged("", -1, files.trouble)
    names = files.sizes
    step = step_of(path)
    if partial := next((one for one in (path, *names) if one.endswith(PARTIAL)), ""):
        return Judged("", step, f"{os.path.basename(partial)} was not finished")
    if not names:
        return Judged("", step, "it is empty")
    for name in sorted(names):
        if trouble := readable.trouble(os.path.join(path, name) if name else path):
            said = trouble if not name else f"{name}: {trouble}"
            return Judged("", step, said)
    if "" in names:
        return _one_file(path, step)
    if TRAINER_STATE in names or os.path.basename(path).startswith("checkpoint-"):
        return _transformers(path, files, step)
    if RANDOM_STATES in names:
        has = any(name.startswith(WEIGHTS) for name in names)
        return Judged("accelerate", step, "" if has else "it has no weights of a model")
    if any(name.endswith(".distcp") for name in names):
        whole = any(name.rpartition("/")[2] == DCP_METADATA for name in names)
        return Judged("dcp", step, "" if whole else f"{DCP_METADATA} is missing")
    return Judged("files", step)


def step_of(path: str) -> int:
    """Return the step that a checkpoint's name says, -1 if it says none."""
    found = STEP.findall(os.path.basename(path))
    return int(found[-1]) if found else -1


def lacks(files: Files, earlier: Files) -> str:
    """Return a file that an earlier checkpoint of the same training has and this one has not."""
    mine = files.kinds()
    return next((name for name in earlier.kinds() if name not in mine), "")


def _transformers(path: str, files: Files, step: int) -> Judged:
    names = files.sizes
    if TRAINER_STATE not in names:
        return Judged("transformers", step, f"{TRAINER_STATE}, which is written last, is missing")
    with readable.opened(os.path.join(path, TRAINER_STATE)) as file:
        state = readable.json_of(file)
    said = state.get("global_step") if isinstance(state, dict) else None
    if not isinstance(said, int) or (step >= 0 and said != step):
        return Judged("transformers", step, f"{TRAINER_STATE} says step {said}")
    tops = {name.partition("/")[0] for name in names}
    if not any(_is_optimizer(name) for name in tops):
        return Judged("transformers", said, "it has weights alone, and no state of the optimizer")
    if missing := _missing_shard(path, tops):
        return Judged("transformers", said, f"{missing} is missing")
    if not any(name.startswith(WEIGHTS) or GLOBAL_STEP.match(name) for name in tops):
        return Judged("transformers", said, "it has no weights of a model")
    return Judged("transformers", said)


def _is_optimizer(name: str) -> bool:
    return name.startswith("optimizer") or GLOBAL_STEP.match(name) is not None


def _missing_shard(path: str, tops: set[str]) -> str:
    """Return a file that the index of a model in several files names and that is not there."""
    for index in sorted(name for name in tops if name.endswith(".index.json")):
        with readable.opened(os.path.join(path, index)) as file:
            told = readable.json_of(file)
        places = told.get("weight_map") if isinstance(told, dict) else None
        if not isinstance(places, dict):
            return f"what {index} names"
        for name in sorted(str(one) for one in places.values()):
            if name not in tops:
                return name[:200]
    return ""


def _one_file(path: str, step: int) -> Judged:
    suffix = os.path.splitext(path)[1]
    if suffix == ".ckpt":
        data = readable.member(path, "data.pkl", DATA_BYTES_MAX)
        if b"pytorch-lightning_version" in data:
            if b"optimizer_states" not in data:
                return Judged("lightning", step, "it has weights alone, and no optimizer's state")
            return Judged("lightning", step)
    kind = ONE_FILE.get(suffix)
    if kind is None:
        text = f"its form {suffix or '(no suffix)'} is not known, so its end cannot be verified"
        return Judged("", step, text)
    return Judged(kind, step)


def _without_step(part: str) -> str:
    return GLOBAL_STEP.sub("global_step#", part)
