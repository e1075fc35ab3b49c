"""`skep slurm`: the commands of Slurm, and a folder that has them by their own names."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json

SHIM = '#!/bin/sh\n# Made by `skep slurm install`.\nexec "{skep}" slurm {name} "$@"\n'
MARK = "# Made by `skep slurm install`."
NAMES = ("sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "scontrol")


def options_slurm(parser: ArgumentParser) -> None:
    """Add what `slurm` takes."""
    parser.usage = f"skep slurm install DIR | {' | '.join(NAMES)} [options as Slurm's]"
    parser.epilog = (
        "install writes the seven commands into DIR; put it into PATH to use them. No name of\n"
        "Slurm's is installed otherwise. docs/reference/slurm.md says what each option becomes.\n"
        "The commands take no --home: SKEP_API, SKEP_HOME or `skep login` name the cluster.\n"
        "Their exit codes are Slurm's: 0 done, 1 refused or wrong; of srun, 0 for success only.\n\n"
        + exits.HELP
    )
    parser.add_argument("verb", choices=("install", *NAMES), help="what to do")
    parser.add_argument("words", nargs=REMAINDER, help="its command line")


def run_slurm(arguments: Namespace) -> int:
    """Run one of Slurm's commands, or install all.

    Returns:
        The exit code.
    """
    if arguments.verb == "install":
        return _install(arguments)
    from skep.slurm.options import RefusedError
    from skep_services.cli import slurm_queries, slurm_submit
    from skep_services.cli.slurm_common import complain

    program: str = arguments.verb
    run: Callable[[list[str]], int] = getattr(
        slurm_submit if program in ("sbatch", "srun") else slurm_queries, program
    )
    try:
        if arguments.words[:1] in (["--version"], ["-V"]) and program != "squeue":
            print(slurm_submit.VERSION)
            return exits.OK
        return run(arguments.words)
    except RefusedError as error:
        return complain(program, error.lines)
    except CommandError as error:
        return complain(program, [error.text])


def _install(arguments: Namespace) -> int:
    """Write the commands into a folder.

    Raises:
        CommandError: No folder is named, or it has other programs of these names.
    """
    words = [word for word in arguments.words if word != "--json"]
    as_json = arguments.json or "--json" in arguments.words
    if len(words) != 1 or words[0].startswith("-"):
        raise CommandError(exits.USAGE, "into which folder? skep slurm install DIR")
    folder = Path(words[0]).absolute()
    taken = [name for name in NAMES if _is_other(folder / name)]
    if taken:
        text = f"{folder} has another {taken[0]}: choose a folder without Slurm's own commands"
        raise CommandError(exits.FAILED, text)
    skep = Path(sys.executable).parent / "skep"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            path = folder / name
            path.write_text(SHIM.format(skep=skep, name=name), encoding="utf-8")
            path.chmod(0o755)
    except OSError as error:
        text = f"{error.filename or folder} cannot be written: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
    if as_json:
        print_json({"folder": str(folder), "commands": list(NAMES)})
        return exits.OK
    print(f"{folder} has {', '.join(NAMES)}")
    print(f"use them: export PATH={folder}{os.pathsep}$PATH")
    return exits.OK


def _is_other(path: Path) -> bool:
    """Return whether a file is there that `install` did not write."""
    try:
        return MARK not in path.read_text(encoding="utf-8", errors="replace")[:200]
    except FileNotFoundError:
        return False
    except OSError:
        return True


COMMANDS = {"slurm": Command(options_slurm, run_slurm, takes_rest=True)}
