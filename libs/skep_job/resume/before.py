"""Runs before the command of an attempt that is not the first: finds a checkpoint, tells it.

Its first argument is what the agent asks for, as JSON; the others are the command, which takes this
process over. The command finds the checkpoint in SKEP_RESUME_FROM, and in its last arguments where
the spec wants that. Whatever goes wrong here, the command runs, from the start.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from skep_job.resume.search import Found, Outcome, Place, newest

PLACEHOLDER = "{checkpoint}"
NOTE_CHARS_MAX = 240
"""Of the line that the cluster keeps: 256 is the bound of the field."""
CANNOT_RUN = 127


def main(words: list[str]) -> None:
    """Find a checkpoint, and become the command.

    Args:
        words: What to look for, as JSON, and the command.
    """
    asked, command = words[0], words[1:]
    try:
        plan = json.loads(asked)
        attempt = int(plan["attempt"])
        outcome = newest(_places(plan), int(plan["since"]), os.geteuid())
        more, variables = told(plan, attempt, outcome)
    except Exception as error:  # Nothing of a job may fail for our sake.
        more, variables = [], {"SKEP_RESUME_NOTE": "from the start: the search failed"}
        say(f"the search for a checkpoint failed: {type(error).__name__}: {error}")
    os.environ.update(variables)
    try:
        os.execvp(command[0], [*command, *more])  # noqa: S606  it is the job's own command
    except OSError as error:
        say(f"{command[0]} cannot be run: {error.strerror}")
        sys.exit(CANNOT_RUN)


def told(plan: Any, attempt: int, outcome: Outcome) -> tuple[list[str], dict[str, str]]:
    """Say in the log what was found; return the command's last arguments, and its variables.

    Args:
        plan: What the agent asks for.
        attempt: The number of the attempt.
        outcome: What was found.
    """
    for passed in outcome.passed:
        say(f"passed over: {passed}")
    found = outcome.found
    if found is None:
        note = f"from the start: {plan.get('hint') or 'no whole checkpoint was found'}"
        say(f"attempt {attempt} begins {note}")
        return [], {"SKEP_RESUME_NOTE": note[:NOTE_CHARS_MAX]}
    after = f", step {found.step}" if found.step >= 0 else ""
    note = f"from {found.label} ({found.kind}{after})"
    say(f"attempt {attempt} goes on {note}")
    more = [str(word).replace(PLACEHOLDER, found.path) for word in plan.get("args", ())]
    return more, _variables(found, note, auto=bool(plan.get("auto")))


def _variables(found: Found, note: str, *, auto: bool) -> dict[str, str]:
    step = {"SKEP_RESUME_STEP": str(found.step)} if found.step >= 0 else {}
    return {
        "SKEP_RESUME_FROM": found.path,
        "SKEP_RESUME_KIND": found.kind,
        "SKEP_RESUME_NOTE": note[:NOTE_CHARS_MAX],
        **step,
        **({"SKEP_RESUME_AS": found.now} if auto else {}),
    }


def _places(plan: Any) -> list[Place]:
    return [
        Place(
            path=os.path.abspath(one["path"]),
            label=str(one["label"]),
            now=os.path.abspath(one["now"]),
            patterns=tuple(map(str, one.get("patterns", ()))),
            starts=tuple(map(str, one.get("starts", ()))) or (".",),
        )
        for one in plan["places"]
    ]


def say(text: str) -> None:
    """Write one line to the job's log, whatever names are in it."""
    line = "".join(each if each.isprintable() else "?" for each in text)
    sys.stderr.write(f"[skep] resume: {line}\n")
    sys.stderr.flush()
