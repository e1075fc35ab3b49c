"""The page of Slurm's options: what each becomes in a job's spec, or why it is refused."""

from __future__ import annotations

from collections.abc import Sequence

from skep.slurm.listing import JOB_LETTERS, NODE_LETTERS, SACCT_EMPTY, SACCT_FIELDS, Field
from skep.slurm.options import ENVIRONMENT, ONLY_SRUN, SBATCH, Option
from skep.slurm.states import JOBS
from tools.reference.markdown import code, page, table


def text() -> str:
    """Return the page."""
    return page(
        "Slurm's commands",
        "[Use Slurm's commands](../how-to/slurm.md) says how. The tables are the ones that the "
        "commands go by (`libs/skep/slurm`). *mapped*: it becomes what is said here. *noted*: one "
        "line says that it changes nothing. *refused*: the job is not submitted, and one line "
        "says why. What is in no table is refused as unknown.",
        "## sbatch and srun",
        _options(SBATCH),
        "## srun alone",
        _options(ONLY_SRUN),
        "## Variables that stand for options",
        "They stand between the script and the command line.",
        table(["variable", "option"], [[code(a), code(f"--{b}")] for a, b in ENVIRONMENT.items()]),
        "## States",
        table(
            ["state here", "in Slurm's words"], [[code(a), f"{b} ({c})"] for a, (b, c) in _states()]
        ),
        "## Formats",
        f"`squeue -o`: {_letters(JOB_LETTERS)}.",
        f"`sinfo -o`: {_letters(NODE_LETTERS)}.",
        f"`sacct -o`: {', '.join(code(title) for title, _, _ in SACCT_FIELDS.values())}. Empty, "
        f"because nothing here knows them: {', '.join(map(code, sorted(SACCT_EMPTY)))}.",
    )


def _options(options: Sequence[Option]) -> str:
    rows = [
        [code(f"--{each.name}"), code(f"-{each.short}") if each.short else "", each.fate, each.text]
        for each in options
    ]
    return table(["option", "", "fate", "what it becomes, or why not"], rows)


def _states() -> list[tuple[str, tuple[str, str]]]:
    return list(JOBS.items())


def _letters(letters: dict[str, Field]) -> str:
    return ", ".join(f"{code(f'%{letter}')} {field.title}" for letter, field in letters.items())
