"""What a spec may say of checkpoints that libraries write: `resume: auto`, or patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.wire.reasons import Reason
from skep.wire.snapshot import unsafe
from skep.wire.spec import (
    CHECKPOINT_PLACEHOLDER,
    NAME_CHARS_MAX,
    RESUME_ARGS_MAX,
    RESUME_FIND_MAX,
    JobSpec,
    Problem,
    Resume,
)
from skep.wire.volumes import wanted

AUTO = "auto"


def spelled_out(tree: dict[Any, Any]) -> dict[Any, Any] | Problem:
    """Return a spec in which `resume: auto` stands as the wire has it, or what is wrong with it."""
    resume = tree.get("resume")
    if resume == AUTO:
        return {**tree, "resume": {"auto": True}}
    if resume is None or isinstance(resume, dict):
        return tree
    text = f"`resume` must be `auto` or an object, not `{str(resume)[:NAME_CHARS_MAX]}`"
    return _bad("$.resume", text, "write `resume: auto`, or `resume: {find: [...], args: [...]}`")


def problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with where checkpoints are looked for, and how they are given on."""
    resume = spec.resume
    if resume is None:
        return
    if spec.elastic is not None or spec.ps is not None:
        key = "elastic" if spec.elastic is not None else "ps"
        text = f"`resume` finds checkpoints of libraries; a job with `{key}` has Skep's own"
        yield _bad("$.resume", text, f"leave `resume` or `{key}` out")
    if spec.code and not spec.outputs:
        text = "with `code`, the folder of an attempt is removed when it ends, and its checkpoints"
        yield _bad("$.resume", text, "name in `outputs` where they are written: `outputs: [out/]`")
    if len(resume.find) > RESUME_FIND_MAX:
        yield _bad("$.resume.find", f"`find` must be at most {RESUME_FIND_MAX} patterns")
    if len(resume.args) > RESUME_ARGS_MAX:
        yield _bad("$.resume.args", f"`args` must be at most {RESUME_ARGS_MAX} words")
    volumes = wanted(spec.volumes)
    for at, pattern in enumerate(resume.find[:RESUME_FIND_MAX]):
        yield from _pattern(f"$.resume.find[{at}]", pattern, volumes)
    yield from _args(spec, resume)


def split(pattern: str, volumes: dict[str, str]) -> tuple[str, str]:
    """Return the volume that a pattern begins with (empty: none), and the rest.

    Args:
        pattern: Such as `ckpt/step_*` or `scratch:run7/*.pt`.
        volumes: Those that the job asks for, by name.
    """
    name, mark, rest = pattern.partition(":")
    return (name, rest) if mark and (name in volumes or "/" not in name) else ("", pattern)


def _pattern(path: str, pattern: str, volumes: dict[str, str]) -> Iterator[Problem]:
    volume, rest = split(pattern, volumes)
    shown = pattern[:NAME_CHARS_MAX]
    if volume and volume not in volumes:
        text = f"`{shown}`: the job asks for no volume `{volume[:NAME_CHARS_MAX]}`"
        yield _bad(path, text, f"add it to `volumes`, such as `volumes: [{volume[:40]}]`")
    elif why := unsafe(rest.removesuffix("/")):
        text = f"`{shown}` is no pattern in the job's folder or a volume: {why}"
        yield _bad(path, text, "write it as `ckpt/step_*` or `VOLUME:ckpt/*.pt`")


def _args(spec: JobSpec, resume: Resume) -> Iterator[Problem]:
    command = () if spec.command is None else spec.command
    if any("\0" in word for word in resume.args):
        yield _bad("$.resume.args", "`args` must be free of NUL characters")
    if resume.args and isinstance(command, str):
        text = "`args` cannot be added to a command of one line, which a shell reads"
        hint = 'use `${SKEP_RESUME_FROM:+--resume "$SKEP_RESUME_FROM"}` in it, or give a list'
        yield _bad("$.resume.args", text, hint)
    elif resume.args and not any(CHECKPOINT_PLACEHOLDER in word for word in resume.args):
        text = f"`args` must have `{CHECKPOINT_PLACEHOLDER}`, the path of what was found"
        yield _bad("$.resume.args", text)
    words = () if isinstance(command, str) else (*command, *spec.args)
    if any(CHECKPOINT_PLACEHOLDER in word for word in words):
        text = f"`{CHECKPOINT_PLACEHOLDER}` has no value in a first attempt: it stands in"
        key = "command" if spec.script is None else "args"
        yield _bad(f"$.{key}", f"{text} `resume.args` alone", "move it, and the option before it")


def _bad(path: str, text: str, suggestion: str = "") -> Problem:
    return Problem(path=path, reason=Reason.BAD_VALUE, text=text, suggestion=suggestion)
