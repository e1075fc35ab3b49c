"""The options of `sbatch` and `srun`: what each becomes in a job's spec, or why it is refused.

The table is the one place that says so: the shims go by it, and docs/reference/slurm.md shows it.
An option that changes what the job is allowed, gets or means is mapped or refused. One that only
tells Slurm how to do the same is noted. One that is not in the table is refused as Slurm does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class RefusedError(Exception):
    """A command line or a script cannot be mapped; `lines` says why, one line for each reason."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class Fate(StrEnum):
    """What becomes of an option."""

    MAPPED = "mapped"
    NOTED = "noted"
    REFUSED = "refused"


class Option(NamedTuple):
    """One option of Slurm's.

    `takes` is `value`, `maybe` (only as `--name=value`, and with a usual value without one) or
    `nothing`. `text` says what a mapped option becomes, what a noted one is noted with, and why
    another is refused.
    """

    name: str
    short: str
    takes: str
    fate: Fate
    text: str
    usual: str = ""


MAPPED, NOTED, REFUSED = Fate.MAPPED, Fate.NOTED, Fate.REFUSED
VALUE, MAYBE, NOTHING = "value", "maybe", "nothing"

PLACES = "Skep chooses the nodes; leave it out"
CORES = "Skep gives processors by number, not by socket or core; leave it out"
POWER = "Skep does not set clocks or power"
BINDING = "tasks of a node share what the node has"
OCI = "Skep runs images by `runtime: {image: ...}` in a spec: skep submit"

SBATCH: tuple[Option, ...] = (
    Option("account", "A", VALUE, NOTED, "Skep accounts by virtual cluster and person"),
    Option("acctg-freq", "", VALUE, NOTED, "Skep measures by itself"),
    Option("array", "a", VALUE, MAPPED, "`array`"),
    Option("batch", "", VALUE, REFUSED, PLACES),
    Option("bb", "", VALUE, REFUSED, "Skep has no burst buffers"),
    Option("bbf", "", VALUE, REFUSED, "Skep has no burst buffers"),
    Option("begin", "b", VALUE, MAPPED, "`begin`"),
    Option("chdir", "D", VALUE, MAPPED, "`workdir`"),
    Option("cluster-constraint", "", VALUE, REFUSED, "Skep is one cluster"),
    Option("clusters", "M", VALUE, REFUSED, "Skep is one cluster: SKEP_API or --home chooses it"),
    Option("comment", "", VALUE, MAPPED, "`labels.comment`"),
    Option("constraint", "C", VALUE, MAPPED, "`resources.gpu_type`: one type, or `a100|v100`"),
    Option("container", "", VALUE, REFUSED, OCI),
    Option("container-id", "", VALUE, REFUSED, OCI),
    Option("container-image", "", VALUE, REFUSED, OCI),
    Option("container-mounts", "", VALUE, REFUSED, OCI),
    Option("container-name", "", VALUE, REFUSED, OCI),
    Option("container-workdir", "", VALUE, REFUSED, OCI),
    Option("contiguous", "", NOTHING, REFUSED, PLACES),
    Option("core-spec", "S", VALUE, REFUSED, CORES),
    Option("cores-per-socket", "", VALUE, REFUSED, CORES),
    Option("cpu-freq", "", VALUE, REFUSED, POWER),
    Option("cpus-per-gpu", "", VALUE, MAPPED, "`resources.cpus`"),
    Option("cpus-per-task", "c", VALUE, MAPPED, "`resources.cpus`"),
    Option("deadline", "", VALUE, REFUSED, "a spec's `finish_by` is a deadline: skep submit"),
    Option("delay-boot", "", VALUE, NOTED, "Skep boots no nodes"),
    Option("dependency", "d", VALUE, MAPPED, "`after`"),
    Option("distribution", "m", VALUE, MAPPED, "`block` is how tasks are spread; others: refused"),
    Option("error", "e", VALUE, MAPPED, "a file beside `skep logs`"),
    Option("exclude", "x", VALUE, REFUSED, PLACES),
    Option("exclusive", "", MAYBE, MAPPED, "all GPUs of the nodes, with which it is alone"),
    Option("export", "", VALUE, MAPPED, "`env`: ALL, NONE, NIL, or names"),
    Option("export-file", "", VALUE, REFUSED, "put the variables into the script"),
    Option("extra", "", VALUE, NOTED, "Skep keeps no such text"),
    Option("extra-node-info", "B", VALUE, REFUSED, CORES),
    Option("get-user-env", "", MAYBE, REFUSED, "name the variables by --export, or set them"),
    Option("gid", "", VALUE, REFUSED, "Skep knows you by your token; `skep login` is another's"),
    Option("gpu-bind", "", VALUE, MAPPED, "`none` and `closest`; others: refused"),
    Option("gpu-freq", "", VALUE, REFUSED, POWER),
    Option("gpus", "G", VALUE, MAPPED, "`resources.gpus`, divided by the nodes"),
    Option("gpus-per-node", "", VALUE, MAPPED, "`resources.gpus`"),
    Option("gpus-per-socket", "", VALUE, REFUSED, "Skep gives GPUs by node: --gpus-per-node"),
    Option("gpus-per-task", "", VALUE, MAPPED, "`resources.gpus`, times the tasks of a node"),
    Option("gres", "", VALUE, MAPPED, "`resources.gpus` and `gpu_type`: gpu[:TYPE][:N]"),
    Option("gres-flags", "", VALUE, NOTED, BINDING),
    Option("hint", "", VALUE, NOTED, "Skep binds no processors"),
    Option("hold", "H", NOTHING, MAPPED, "`hold`"),
    Option("ignore-pbs", "", NOTHING, NOTED, "lines of other systems are never read"),
    Option("input", "i", VALUE, MAPPED, "standard input of the script"),
    Option("job-name", "J", VALUE, MAPPED, "`name`"),
    Option("kill-on-invalid-dep", "", VALUE, NOTED, "such a job always ends"),
    Option("licenses", "L", VALUE, REFUSED, "Skep counts no licenses"),
    Option("mail-type", "", VALUE, NOTED, "no mail is sent; `skep wait` tells when it has ended"),
    Option("mail-user", "", VALUE, NOTED, "no mail is sent; `skep wait` tells when it has ended"),
    Option("mcs-label", "", VALUE, REFUSED, "Skep has no such labels"),
    Option("mem", "", VALUE, MAPPED, "`resources.memory`; 0: nothing"),
    Option("mem-bind", "", VALUE, NOTED, "Skep binds no memory"),
    Option("mem-per-cpu", "", VALUE, MAPPED, "`resources.memory`, times the processors"),
    Option("mem-per-gpu", "", VALUE, MAPPED, "`resources.memory`, times the GPUs"),
    Option("mincpus", "", VALUE, REFUSED, "say --cpus-per-task"),
    Option("network", "", VALUE, REFUSED, "Skep sets up no network"),
    Option("nice", "", MAYBE, NOTED, "priorities begin at 0 here; say --priority for more"),
    Option("no-kill", "k", MAYBE, REFUSED, "a job whose node is lost begins again"),
    Option("no-requeue", "", NOTHING, REFUSED, "a job whose node is lost begins again"),
    Option("nodefile", "F", VALUE, REFUSED, PLACES),
    Option("nodelist", "w", VALUE, REFUSED, PLACES),
    Option("nodes", "N", VALUE, MAPPED, "`resources.workers`: a worker for each node"),
    Option("ntasks", "n", VALUE, MAPPED, "how many tasks `srun` starts"),
    Option("ntasks-per-core", "", VALUE, REFUSED, CORES),
    Option("ntasks-per-gpu", "", VALUE, MAPPED, "how many tasks `srun` starts, by GPU"),
    Option("ntasks-per-node", "", VALUE, MAPPED, "how many tasks `srun` starts, by node"),
    Option("ntasks-per-socket", "", VALUE, REFUSED, CORES),
    Option("open-mode", "", VALUE, MAPPED, "whether files of output are truncated or appended to"),
    Option("output", "o", VALUE, MAPPED, "a file beside `skep logs`; default slurm-%j.out"),
    Option("overcommit", "O", NOTHING, REFUSED, "Skep gives each processor once"),
    Option("oversubscribe", "s", NOTHING, NOTED, "Skep decides what shares a node"),
    Option("parsable", "", NOTHING, MAPPED, "only the id is printed"),
    Option("partition", "p", VALUE, MAPPED, "`vc`; SKEP_SLURM_PARTITIONS renames"),
    Option("power", "", VALUE, REFUSED, POWER),
    Option("prefer", "", VALUE, NOTED, "a wish that Slurm may leave unfulfilled, as Skep does"),
    Option("priority", "", VALUE, MAPPED, "`priority`: 0 to 1000"),
    Option("profile", "", VALUE, NOTED, "Skep measures by itself"),
    Option("propagate", "", MAYBE, NOTED, "limits of processes are those of the agent"),
    Option("qos", "q", VALUE, MAPPED, "`normal`: nothing; others: `priority`, by SKEP_SLURM_QOS"),
    Option("quiet", "Q", NOTHING, MAPPED, "nothing but errors is printed"),
    Option("reboot", "", NOTHING, REFUSED, "Skep boots no nodes"),
    Option("requeue", "", NOTHING, NOTED, "a job whose node is lost begins again in any case"),
    Option("reservation", "", VALUE, REFUSED, "`skep reserve` keeps nodes for a virtual cluster"),
    Option("signal", "", VALUE, MAPPED, "`limits.warn`, to the steps or (B:) all"),
    Option("sockets-per-node", "", VALUE, REFUSED, CORES),
    Option("spread-job", "", NOTHING, REFUSED, PLACES),
    Option("switches", "", VALUE, REFUSED, "a spec's `topology: {within: rack}` says it"),
    Option("test-only", "", NOTHING, REFUSED, "`skep plan FILE` says where a job would run"),
    Option("thread-spec", "", VALUE, REFUSED, CORES),
    Option("threads-per-core", "", VALUE, REFUSED, CORES),
    Option("time", "t", VALUE, MAPPED, "`limits.time`"),
    Option("time-min", "", VALUE, NOTED, "Skep shortens no limits"),
    Option("tmp", "", VALUE, REFUSED, "Skep counts no space on disks"),
    Option("tres-per-task", "", VALUE, REFUSED, "say --gpus-per-task"),
    Option("uid", "", VALUE, REFUSED, "Skep knows you by your token; `skep login` is another's"),
    Option("use-min-nodes", "", NOTHING, NOTED, "the number of nodes is one number here"),
    Option("verbose", "v", NOTHING, NOTED, "`skep show` says everything about a job"),
    Option("wait", "W", NOTHING, MAPPED, "sbatch waits, and ends as the job does"),
    Option("wait-all-nodes", "", VALUE, NOTED, "a gang starts as a whole"),
    Option("wckey", "", VALUE, NOTED, "Skep accounts by virtual cluster and person"),
    Option("wrap", "", VALUE, MAPPED, "the script, as one line of shell"),
)

ONLY_SRUN: tuple[Option, ...] = (
    Option("accel-bind", "", VALUE, NOTED, BINDING),
    Option("bcast", "", MAYBE, REFUSED, "put the program where every node sees it"),
    Option("cpu-bind", "", VALUE, NOTED, "Skep binds no processors"),
    Option("exact", "", NOTHING, NOTED, BINDING),
    Option("immediate", "I", MAYBE, REFUSED, "a job waits for its turn"),
    Option("jobid", "", VALUE, REFUSED, "a step begins only inside its own job"),
    Option("kill-on-bad-exit", "K", MAYBE, MAPPED, "the step ends when a task fails", "1"),
    Option("label", "l", NOTHING, MAPPED, "lines of output begin with the task's number"),
    Option("mpi", "", VALUE, MAPPED, "`none`; others: refused"),
    Option("multi-prog", "", NOTHING, REFUSED, "start one step for each program"),
    Option("no-allocate", "Z", NOTHING, REFUSED, "a command is a job here"),
    Option("overlap", "", NOTHING, NOTED, "steps of a job share its GPUs"),
    Option("preserve-env", "E", NOTHING, NOTED, "variables stay as they are"),
    Option("pty", "", NOTHING, REFUSED, "a job here has no terminal"),
    Option("relative", "r", VALUE, REFUSED, "a step begins at the first node"),
    Option("resv-ports", "", MAYBE, REFUSED, "Skep keeps no ports for steps"),
    Option("slurmd-debug", "", VALUE, NOTED, "`skep show` says everything about a job"),
    Option("task-epilog", "", VALUE, REFUSED, "put it into the script"),
    Option("task-prolog", "", VALUE, REFUSED, "put it into the script"),
    Option("unbuffered", "u", NOTHING, NOTED, "output comes as it is written"),
)

NOT_SRUN = frozenset({"array", "wrap", "parsable", "batch", "ignore-pbs", "no-requeue", "requeue"})
SRUN: tuple[Option, ...] = tuple(
    sorted([*(each for each in SBATCH if each.name not in NOT_SRUN), *ONLY_SRUN])
)

ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node", "workdir": "chdir"}
ALIASES |= {"share": "oversubscribe", "cpu_bind": "cpu-bind", "mem_bind": "mem-bind"}
"""Earlier names that Slurm still takes."""

ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_EXPORT": "export",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
}
"""Variables that stand between the script and the command line, as in Slurm."""

Given = dict[str, str]
"""Options by their long names, with their values; the last of several counts."""


def parse(program: str, table: Sequence[Option], words: Sequence[str]) -> tuple[Given, list[str]]:
    """Return the options in front of a command line, and the words that follow.

    Args:
        program: What the command is called in errors.
        table: The options that it knows.
        words: The command line.

    Raises:
        RefusedError: An option is not known, is ambiguous, or lacks its value.
    """
    longs = {option.name: option for option in table}
    longs |= {alias: longs[name] for alias, name in ALIASES.items() if name in longs}
    shorts = {option.short: option for option in table if option.short}
    given: Given = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            _long(program, longs, word, rest, given)
        else:
            _short(program, shorts, word, rest, given)
    return given, rest


def _long(program: str, longs: dict[str, Option], word: str, rest: list[str], given: Given) -> None:
    name, mark, value = word[2:].partition("=")
    option = longs.get(name)
    if option is None:
        close = {found.name: found for each, found in longs.items() if each.startswith(name)}
        if len(close) > 1:
            named = " ".join(f"'--{each}'" for each in close)
            msg = f"{program}: option '{word}' is ambiguous; possibilities: {named}"
            raise RefusedError(msg)
        if not close:
            msg = f"{program}: unrecognized option '{word}'"
            raise RefusedError(msg)
        option = next(iter(close.values()))
    if option.takes == NOTHING and mark:
        text = f"{program}: option '--{option.name}' doesn't allow an argument"
        raise RefusedError(text)
    if option.takes == VALUE and not mark:
        if not rest:
            msg = f"{program}: option '--{option.name}' requires an argument"
            raise RefusedError(msg)
        value = rest.pop(0)
    given[option.name] = value if mark or option.takes == VALUE else option.usual


def _short(
    program: str, shorts: dict[str, Option], word: str, rest: list[str], given: Given
) -> None:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = shorts.get(letter)
        if option is None:
            msg = f"{program}: invalid option -- '{letter}'"
            raise RefusedError(msg)
        if option.takes == NOTHING:
            given[option.name] = ""
            continue
        if option.takes == VALUE and not letters:
            if not rest:
                msg = f"{program}: option requires an argument -- '{letter}'"
                raise RefusedError(msg)
            letters = rest.pop(0)
        given[option.name] = letters or option.usual
        return


def sort_out(table: Iterable[Option], given: Given) -> tuple[list[str], list[str]]:
    """Return what is noted and what is refused of given options, a line for each.

    Args:
        table: The options that are known.
        given: Those that were given.
    """
    notes: list[str] = []
    refused: list[str] = []
    for option in table:
        if option.name not in given or option.fate is Fate.MAPPED:
            continue
        line = f"--{option.name}: {option.text}"
        (notes if option.fate is Fate.NOTED else refused).append(line)
    return notes, refused
