"""Where a job shows its training: W&B runs and TensorBoard folders, by what the job says itself.

All of it comes from the job: its variables, its command, its log. So only addresses of http and
https are taken, without control characters, names of users or quotes, and a bounded number of them.
Nothing is asked of any address.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlsplit

import msgspec

from skep.wire.spec import JobSpec

LINKS_MAX = 16
URL_CHARS_MAX = 512
FOLDER_CHARS_MAX = 1024
LINE_CHARS_MAX = 4096
"""What is looked at of one line of a log."""
WANDB, TENSORBOARD = "wandb", "tensorboard"
WANDB_HOST = "https://wandb.ai"
OFF = ("offline", "disabled", "dryrun")
REPORTED = "[skep] tensorboard: "
"""What `skep_job.observe.board_folders` says in a job's log."""

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
VIEWED = re.compile(r"wandb: .{0,40}?View (?:run|project|sweep)\b.{0,200}? ?at:? (\S+)")
SERVED = re.compile(r"TensorBoard \S{1,32} at (\S+)")
URL = re.compile(
    r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9!#$%&()*+,./:;=?@_~\[\]-]*)?"
)
"""Without quotes, brackets of HTML, backslashes and whatever is not ASCII."""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `url` of a W&B run or a TensorBoard, or a `folder` that a TensorBoard can show.

    `by` says where the job said so: `env`, `command` or `log`.
    """

    kind: str
    by: str
    url: str = ""
    folder: str = ""


def links(spec: JobSpec, logs: Sequence[str]) -> list[Link]:
    """Return what a job says of where it shows its training, each place once.

    Args:
        spec: The job.
        logs: Pieces of its log.
    """
    found: dict[tuple[str, str], Link] = {}
    for link in (*_in_log(logs), *_in_variables(spec.env), *_in_command(_words(spec))):
        found.setdefault((link.url, link.folder), link)
        if len(found) >= LINKS_MAX:
            break
    return list(found.values())


def sound_url(text: str) -> str:
    """Return an address that may be shown as a link; empty: it may not."""
    if len(text) > URL_CHARS_MAX or not URL.fullmatch(text):
        return ""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return ""
    if not parts.hostname or parts.username is not None or port == 0:
        return ""
    return text


def sound_folder(text: str) -> str:
    """Return a folder that may be shown; empty: it may not."""
    fine = 0 < len(text) <= FOLDER_CHARS_MAX and text.isprintable()
    return text if fine and not text.startswith("-") else ""


def _in_log(logs: Sequence[str]) -> Iterator[Link]:
    for text in logs:
        for line in text.splitlines():
            plain = ESCAPES.sub("", line[:LINE_CHARS_MAX])
            if plain.startswith(REPORTED) and (folder := sound_folder(plain[len(REPORTED) :])):
                yield Link(kind=TENSORBOARD, by="log", folder=folder)
            elif (seen := VIEWED.search(plain)) and (url := sound_url(seen[1])):
                yield Link(kind=WANDB, by="log", url=url)
            elif (seen := SERVED.search(plain)) and (url := sound_url(seen[1])):
                yield Link(kind=TENSORBOARD, by="log", url=url)


def _in_variables(env: Mapping[str, str]) -> Iterator[Link]:
    """Yield the W&B run, or the project, that `WANDB_*` name."""
    entity, project = env.get("WANDB_ENTITY", ""), env.get("WANDB_PROJECT", "")
    if not (entity and project) or env.get("WANDB_MODE", "") in OFF:
        return
    base = env.get("WANDB_BASE_URL", "") or WANDB_HOST
    if base.startswith("https://api.wandb.ai"):
        base = WANDB_HOST
    path = f"{quote(entity, safe='')}/{quote(project, safe='')}"
    if run := env.get("WANDB_RUN_ID", ""):
        path += f"/runs/{quote(run, safe='')}"
    if url := sound_url(f"{base.rstrip('/')}/{path}"):
        yield Link(kind=WANDB, by="env", url=url)


def _in_command(words: Sequence[str]) -> Iterator[Link]:
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, mark, value = word.partition("=")
        if name in {"--logdir", "--log-dir", "--log_dir", "--logging_dir"}:
            folder = sound_folder(value if mark else after)
            if folder:
                yield Link(kind=TENSORBOARD, by="command", folder=folder)


def _words(spec: JobSpec) -> Sequence[str]:
    """Return the words of a command; of a line for a shell those between spaces."""
    command = spec.command
    given = command.split() if isinstance(command, str) else command or ()
    return (*given, *spec.args)
