"""The entry of `skep`: finds the command, runs it, and turns how it ends into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skep_services.cli import exits, render
from skep_services.cli.connection import LostError
from skep_services.cli.exits import CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from skep_services.cli.completing import Known
    from skep_services.cli.options import Command

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "the cluster on this machine": {
        "up": ("up", "start a cluster, or resume the one that was here"),
        "down": ("down", "stop it; jobs are kept and go on at the next `up`"),
        "upgrade": ("upgrade", "have the bus be as this version needs it, under running jobs"),
        "doctor": ("doctor", "check this machine and the cluster, and say what to do"),
        "log": ("log", "check | repair | archive: the services' logs, and what is no part of them"),
        "backup": ("backup", "everything of a cluster in one file; --check: is a file good?"),
        "restore": ("backup", "a cluster from a backup, in a new state folder"),
    },
    "servers": {
        "ca": ("authority", "show | issue | begin | ...: what the machines of a cluster believe"),
        "server": (
            "server",
            "init | join | run | status | token | rotate-certs | ports | install | upgrade | "
            "notify: a cluster of real machines",
        ),
    },
    "jobs": {
        "submit": ("submit", "hand in job specs (YAML or JSON files, - for standard input)"),
        "plan": (
            "plan",
            "where a spec would run now, which jobs make room, and when: nothing is done",
        ),
        "run": ("run", "run a command as a job, attached: its output here, Ctrl-C to cancel"),
        "shell": ("terminals", "a shell on GPUs: a job, which goes on when you leave it"),
        "notebook": ("notebook", "Jupyter on GPUs, its page here: a job, which goes on"),
        "ps": ("jobs", "list jobs"),
        "top": ("top", "the cluster on one screen, live: jobs, nodes, cells, rates, output, why"),
        "show": ("show", "everything about one job"),
        "why": ("show", "why a job waits, runs or ended; --what-if: what would start it now"),
        "logs": ("logs", "print a job's output"),
        "artifacts": ("artifacts", "the files that a job keeps as its outputs"),
        "cp": ("artifacts", "copy a file or folder of a job's folder here"),
        "exec": ("terminals", "run a command in a running job, with a terminal or without"),
        "attach": ("terminals", "come back to the terminal of a job that is a shell"),
        "port-forward": ("terminals", "connect from here to a port of a running job"),
        "cancel": ("jobs", "end jobs"),
        "retry": ("jobs", "begin the failed tasks of arrays anew"),
        "suspend": ("changes", "have jobs stand still; --release gives their GPUs to others"),
        "resume": ("changes", "have suspended jobs go on"),
        "checkpoint": ("changes", "have jobs store their state durably, and go on"),
        "migrate": ("changes", "have jobs go on elsewhere"),
        "resize": ("changes", "have elastic jobs train with more or fewer workers"),
        "pack": ("changes", "have jobs that wait run on GPUs that another holds, beside it"),
        "unpack": ("changes", "have jobs leave the GPUs that they share"),
        "set-priority": ("changes", "have waiting jobs come earlier, or later"),
        "hold": ("changes", "have jobs that wait not start before they are released"),
        "release": ("changes", "let jobs that are held start"),
        "requeue": ("requeue", "submit ended jobs again: each becomes a new job"),
        "curve": ("curve", "what a job says about its training, as a table or (--svg) a picture"),
        "ledger": ("ledger", "what was tried to make jobs faster, and what came of it"),
        "blame": ("blame", "where the time of a job, or of a VC's jobs, went: it adds up"),
        "report": ("report", "GPU hours held and useful, by VC, person, project, type or day"),
        "promises": ("promises", "which deadlines are promised, and what became of them"),
        "calibration": ("calibration", "how often estimates of starts and ends held"),
        "tensorboard": ("tensorboard", "show what a running job writes for TensorBoard"),
        "wait": ("jobs", "wait until jobs have ended"),
        "events": ("logs", "what happened, and with -f what happens"),
        "trace": ("trace", "where a job's time went, as a waterfall"),
        "slurm": (
            "slurm",
            "install | sbatch | srun | squeue | scancel | sinfo | sacct | scontrol: as of Slurm",
        ),
    },
    "searches": {
        "search": (
            "search",
            "submit | list | show | cancel | ask | tell | plot | demote | promote: trials as one",
        )
    },
    "services": {
        "serve": ("serve", "begin a service, or --update one: replicas that answer requests"),
        "services": ("serve", "list services, show one, or --scale or --stop it"),
    },
    "people": {
        "login": ("login", "be known to a cluster: at its provider, or by a token"),
        "logout": ("login", "revoke that token, and forget it"),
        "whoami": ("login", "what the cluster takes you for"),
        "user": ("people", "ls | add | disable | enable | remove: people"),
        "role": ("people", "ls | grant | revoke | sync: viewers, submitters, managers, operators"),
        "token": ("people", "ls | create | revoke: what a person's devices are known by"),
        "audit": ("audit", "who changed what, from where, and why"),
    },
    "resources": {
        "gpu": ("nodes", "ls | quarantine: every GPU, the jobs that hold it, and which are bad"),
        "node": (
            "nodes",
            "ls | drain | undrain | token | join | run | renew | remove | install | upgrade: "
            "machines that run jobs",
        ),
        "fair": ("shares", "what people of a virtual cluster used, and whose jobs come first"),
        "reserve": ("shares", "ls | create | cancel: nodes kept for maintenance, or for one VC"),
        "cache": ("caches", "ls | rm: the environments that nodes keep"),
        "vc": ("vcs", "ls | show | usage | tree | check | plan | apply: which VC owns which cells"),
        "template": (
            "template_command",
            "ls | show | set | rm: specs in part that jobs of a VC begin from",
        ),
        "cluster": ("clusters", "init | check | import: the file that says what there is to own"),
        "alerts": ("alerts", "what needs a look, and what to do about it"),
        "history": ("history", "GPUs, waiting jobs and useful time over the last hours"),
        "volumes": ("volumes", "the folders of the nodes that your jobs may ask for"),
        "policies": (
            "policies",
            "what may order a virtual cluster's jobs, with options and source",
        ),
        "secret": ("secrets", "set | ls | rm: values that jobs get and nobody else reads"),
        "notify": (
            "notices",
            "ls | test: targets that jobs notify, and the messages that were sent",
        ),
        "cells": ("cells", "replay: rehearse what jobs, failures and changes would do"),
    },
    "simulation": {
        "replay": ("replay", "make a live run's decisions again: as they were, or otherwise"),
        "sim": ("sim", "run | compare | sweep: what a trace would do here, or elsewhere"),
        "experiment": ("experiment", "run one of the papers' experiments end to end"),
        "speeds": ("speeds", "how fast models are, as published or measured, by placement"),
        "traces": ("traces", "check | convert | generate | list: jobs of the past, and of papers"),
    },
    "learning": {
        "learn": (
            "learn",
            "learners and what they learn from: "
            "list | train | curves | play | clone | judge | figures",
        ),
        "models": ("models", "ls | show | add | promote | retire: learned models, by their hash"),
    },
    "about": {
        "explain": ("explain", "what a reason code means, and what to do about it"),
        "completion": ("completion", "bash | zsh | fish: a script that completes what you type"),
        "version": ("about", "print the version"),
    },
}
"""Command to the module that holds it and its line in the help: no module is imported for those."""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors a user can cause are printed.

    Args:
        argv: The words after `skep`; None: those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        if words[:1] == ["help"] and words[1:2] and words[1] in COMMANDS:
            return _run(words[1], ["--help"])
        print(overview())
        return exits.OK if words else exits.USAGE
    if words[0] == "__complete":  # A shell asks: `skep completion` prints what has it do so.
        from skep_services.cli.completing import complete

        return complete(words[1:], known())
    if words[0] in ("-V", "--version"):
        words[0] = "version"
    if words[0] not in COMMANDS:
        return _unknown(words[0])
    return _run(words[0], words[1:])


def overview() -> str:
    """Return the help of the command as a whole."""
    lines = ["usage: skep COMMAND [options]     (skep COMMAND -h tells more)", ""]
    for title, group in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:11} {text}" for name, (_, text) in group.items()]
        lines.append("")
    lines.append("every command takes --json and --home DIR\n")
    lines.append(exits.HELP)
    return "\n".join(lines)


def _run(name: str, words: list[str]) -> int:
    wants_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    try:
        try:
            command = command_of(name)
            parser = parser_of(name, command)
            code = command.run(_parsed(parser, command, words))
            sys.stdout.flush()
        except SystemExit as ended:  # argparse ends this way, after having said why
            code = ended.code if isinstance(ended.code, int) else exits.USAGE
        except CommandError as error:
            code = error.code
            _tell(name, error, wants_json=wants_json)
        except BrokenPipeError:
            raise
        except OSError as error:
            # A connection that broke in the middle of an answer, or output that has no room.
            lost = isinstance(error, ConnectionError | TimeoutError | LostError)
            code = exits.UNREACHABLE if lost else exits.FAILED
            text = str(error) or f"it was not done in time ({type(error).__name__}): try again"
            _tell(name, CommandError(code, text), wants_json=wants_json)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python would complain once more at its exit.
        _discard_output()
        return exits.OK
    except OSError:
        # It has been said: what could not be written is still there to be written.
        _discard_output()
        return exits.FAILED
    return code


def _parsed(parser: ArgumentParser, command: Command, words: list[str]) -> Namespace:
    """Return the arguments of a command. Options stand anywhere, but not in a user's command."""
    if command.takes_rest:
        return parser.parse_args(words)
    theirs: list[str] = []
    if command.takes_command and "--" in words:
        # argparse takes what follows for options of its own, now and then.
        at = words.index("--")
        words, theirs = words[:at], words[at + 1 :]
    arguments = parser.parse_intermixed_args(words)
    if command.takes_command:
        arguments.command = [*arguments.command, *theirs]
    return arguments


def _discard_output() -> None:
    """Have Python throw away at its exit what it has not written yet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def parser_of(name: str, command: Command) -> ArgumentParser:
    """Return the parser of one command."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    from skep_services.cli import options

    def formatter(prog: str) -> RawDescriptionHelpFormatter:
        # Without a width, argparse imports shutil and all its compressors for every option.
        return RawDescriptionHelpFormatter(prog, width=min(render.terminal_width(), 100))

    parser = ArgumentParser(
        prog=f"skep {name}",
        description=COMMANDS[name][1],
        epilog=exits.HELP,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    command.options(parser)
    options.common(parser)
    return parser


def known() -> Known:
    """Return the commands, as completion knows them."""
    from skep_services.cli.completing import Known

    def parser(name: str) -> tuple[ArgumentParser, bool]:
        command = command_of(name)
        return parser_of(name, command), command.takes_rest

    return Known({name: text for name, (_, text) in COMMANDS.items()}, parser)


def command_of(name: str) -> Command:
    """Return a command; its module is imported."""
    module = __import__(f"skep_services.cli.{COMMANDS[name][0]}", fromlist=["COMMANDS"])
    command: Command = module.COMMANDS[name]
    return command


def _unknown(word: str) -> int:
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean `skep {close[0]}`?" if close else "`skep -h` lists the commands"
    print(f"skep: no command {word!r}: {hint}", file=sys.stderr)
    return exits.USAGE


def _tell(name: str, error: CommandError, *, wants_json: bool) -> None:
    if wants_json:
        import json

        print(json.dumps({"error": error.error}))
    print(f"skep {name}: {error.text}", file=sys.stderr)
