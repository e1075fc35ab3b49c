"""The job spec: what a tenant asks for. Written as YAML by people, sent as JSON on the bus."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skep.wire.bounds import Count, Nanoseconds, Positive, Short, Token, Whole, Words
from skep.wire.reasons import Reason
from skep.wire.volumes import Mount

SPEC_VERSION = 1
SPEC_BYTES_MAX = 64 * 1024
"""A spec is a description, not a payload: 64 KiB hold 500 environment variables of 100 bytes."""

GPUS_PER_WORKER_MAX = 16
SHARE_STEP, SHARE_MOST = 100, 900
"""Shares of a GPU are tenths of it, in thousandths: with smaller ones no job makes progress worth
the memory that every process has to have."""
WORKERS_MAX = 8192
GANG_GPUS_MAX = 8192
GANG_NODES_MAX = 1024
"""A gang is bound in one record of 512 KiB, which names each node (160 bytes where names are
longest) and GPU (8 bytes), and may also hold a spec and what else the same decision binds."""
PRIORITY_MAX = 1000
RETRIES_MAX = 100
CPUS_PER_WORKER_MAX = 4096
NAME_CHARS_MAX = 128
"""Characters of the names of jobs and families."""
SERVERS_MAX = 64
"""Parameter servers of one job: on its first worker's node, each a processor and its memory."""
TIME_S_MAX = 365 * 24 * 3600
PERIOD_MIN_S = 60
"""Less than a validation or a checkpoint takes is no sign of a job that hangs."""
ENV_MAX = 1024
IMAGE_CHARS_MAX = 512
"""Registry, path, tag and digest: names are at most 255 characters, a digest adds 72."""
LABELS_MAX = 64
PATH_CHARS_MAX = 4096
"""Linux's bound of a path."""
PARALLEL_MAX = 10_000
"""The highest `max_parallel`: as many as an array has tasks at most."""
AFTER_MAX = 64
"""Jobs that one job may wait for. What joins more of them can wait in two layers."""
WARN_SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG", "WINCH", "CONT")
"""Signals that may come before the time limit: those that a process can have a handler for, and
that mean nothing else to Skep or the kernel."""
SERVICE_KEYS = "service/"
"""What the idempotency keys of services' replicas begin with: `service/v17/3/1`."""
SEARCH_KEYS = "search/"
"""What the idempotency keys of searches' trials begin with: `search/s17/3/1`."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A piece of the spec: closed, immutable, defaults left out on the wire."""


class Topology(_Part, frozen=True):
    """Where the workers should be relative to one another.

    `within` names the level of the cell they should share (`node`, `rack`, `socket`, whatever the
    cluster's levels are called); a hard wish waits for it, a soft one prefers it.
    """

    within: Words = "node"
    hard: bool = False


TYPES_APART = "|"
"""Between types of GPUs of which any will do, as in Alibaba's traces."""


def suits(wanted: str | None, kind: str) -> bool:
    """Return whether GPUs of a type are of those asked for (none: of any).

    Args:
        wanted: A type, or several as `v100|p100`; None or empty: any.
        kind: The type of the GPUs.
    """
    return not wanted or kind in wanted.split(TYPES_APART)


GPUS_TEXT = "GPUs of one worker; or a share of one GPU in tenths, 0.1 to 0.9"


class Resources(_Part, frozen=True):
    """What one worker needs, and how many workers there are.

    `memory` is bytes of host memory per worker, or text such as `16GiB`; `cpus` per worker.
    `gpu_type` is the type of all its GPUs, or several that it runs on: `v100|p100`. `pinned` names
    one of the VC's pinned cells that the job is to run in.

    `share` is the part of one GPU that a job of one worker asks for, in thousandths; 0: it asks for
    whole ones. People write `gpus: 0.5`, which is read as `gpus: 1` with `share: 500`. The job then
    uses a GPU together with others of its VC that ask for shares. `gpu_memory` is what it needs of
    the GPU's memory, in bytes or as text such as `10GiB`; without it, its share of that.

    A `mixed` job may have workers on GPUs of several of its types, or on nodes of several sizes,
    where no chain of cells of one type holds them all. It is as fast as its slowest GPU.
    """

    gpus: Annotated[int, Meta(ge=1, le=GPUS_PER_WORKER_MAX, description=GPUS_TEXT)] = 1
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = 1
    gpu_type: Words | None = None
    cpus: Annotated[int, Meta(ge=0, le=CPUS_PER_WORKER_MAX)] = 0
    memory: Count | Words = 0
    topology: Topology | None = None
    pinned: Words = ""
    share: Annotated[int, Meta(ge=0, le=SHARE_MOST)] = 0
    gpu_memory: Count | Words = 0
    mixed: bool = False

    @property
    def shown_gpus(self) -> float:
        """Return the GPUs of one worker as people write them: `2`, or a share such as `0.5`."""
        return self.share / 1000 if self.share else self.gpus

    @property
    def only_type(self) -> str:
        """Return the type of all its GPUs if it may only be one, else nothing."""
        return "" if self.gpu_type is None or TYPES_APART in self.gpu_type else self.gpu_type


class Warn(_Part, frozen=True):
    """The signal that every rank gets once in each attempt, so long before its time limit.

    `before` is as `limits.time`. `signal` is one of USR1, USR2, TERM, INT, HUP, QUIT, ALRM, URG,
    WINCH and CONT. A rank gets it in its uppermost processes that have a handler for it.
    """

    before: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words
    signal: Short = "USR1"


class Limits(_Part, frozen=True):
    """How long and how often. `time` is seconds, or text such as `90s`, `15m`, `2h`, `1d`.

    `retries` counts attempts after the first; `retry_on` says which ends are worth another one.
    Attempts lost to Skep's own reasons (node lost, preempted) are repeated and never counted.
    `warn` is a signal before the end of `time`.
    """

    time: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words | None = None
    retries: Annotated[int, Meta(ge=0, le=RETRIES_MAX)] = 0
    retry_on: Annotated[
        tuple[Literal["exit", "signal", "not-started"], ...], Meta(max_length=LABELS_MAX)
    ] = ("exit", "signal")
    warn: Warn | None = None


class SizeHint(_Part, frozen=True):
    """How much work the job is, for predictions. Never binding.

    `mini_batches` in total, or `epochs` of `mini_batches_per_epoch`; `family` groups jobs whose
    speed is alike. `run_time` is how long its owner expects it to run in all, without any wait:
    seconds, or text such as `90s`, `15m`, `2h`, `1d`. Policies that order by length go by it as
    long as nothing better is known.
    """

    mini_batches: Positive | None = None
    epochs: Positive | None = None
    mini_batches_per_epoch: Positive | None = None
    batch_size: Positive | None = None
    family: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)] | None = None
    run_time: Annotated[float, Meta(gt=0, le=TIME_S_MAX)] | Words | None = None

    def total(self) -> int | None:
        """Return the mini-batches of the whole job, or None if the hint does not say."""
        if self.mini_batches is not None:
            return self.mini_batches
        if self.epochs is not None and self.mini_batches_per_epoch is not None:
            return self.epochs * self.mini_batches_per_epoch
        return None


class Runtime(_Part, frozen=True):
    """What the processes run in: containers of `image`.

    It must be on the nodes already, unless `pull` is `missing`: then a node fetches it. `login` is
    the name of a secret that has `user:password` for the image's registry.
    """

    image: Annotated[str, Meta(max_length=IMAGE_CHARS_MAX)]
    pull: Literal["never", "missing"] = "never"
    login: Short = ""


class Elastic(_Part, frozen=True):
    """How few and how many workers the job may have while it runs: `skep resize`.

    Every attempt begins with `resources.workers`, unless the policy of its VC says otherwise.
    """

    min: Positive
    max: Positive


class ParameterServers(_Part, frozen=True):
    """The job trains on parameter servers: processes beside its first worker, without a GPU.

    It begins with `servers`; while it runs, `skep resize --servers` may have `min` to `max`.
    """

    servers: Annotated[int, Meta(ge=1, le=SERVERS_MAX)] = 1
    min: Annotated[int, Meta(ge=1, le=SERVERS_MAX)] = 1
    max: Annotated[int, Meta(ge=1, le=SERVERS_MAX)] = SERVERS_MAX


class Willing(_Part, frozen=True):
    """What the owner of a job with a deadline allows so that it is on time.

    `gpus` is how many GPUs the whole job may have: `8`, or a range `1..16`; without it, as many as
    its workers and `elastic` say. `types` are types of GPUs as in `resources.gpu_type`:
    `a100|v100`. With `move` it may be moved while it runs, with `shrink` it may have fewer workers
    than it began with. `profile` says whether short runs may be made of it to learn its speed: an
    elastic job may have other numbers of workers for some seconds, with or without a deadline.
    """

    gpus: Annotated[int, Meta(ge=1, le=GANG_GPUS_MAX)] | Words | None = None
    types: Words = ""
    move: bool = True
    shrink: bool = True
    profile: Profile = "refused"


class Promised(_Part, frozen=True):
    """What admission answered to a deadline: written by it alone. Times are nanoseconds.

    `answer` is `accepted`, `at-risk`, `late` or `refused`, or `none` where no deadline was asked
    for. `due` is when the job is to have ended, `begin` when it has to run at the latest, `lasts`
    how long it runs then, nine times in ten, and `workers` how many workers that takes.
    """

    answer: Short
    due: Nanoseconds = 0
    begin: Nanoseconds = 0
    lasts: Nanoseconds = 0
    workers: Count = 0


class After(_Part, frozen=True):
    """The jobs that must have ended before this one may start, by id or name, of the same VC.

    Those of `ok` must have succeeded, those of `fail` failed or been cancelled, those of `any`
    ended however. An array has ended once all of its tasks have: it has succeeded if all of these
    have, else failed or been cancelled. A job whose dependencies can never be fulfilled is
    cancelled. Admission puts ids in the place of names.
    """

    ok: Annotated[tuple[Words, ...], Meta(max_length=AFTER_MAX)] = ()
    any: Annotated[tuple[Words, ...], Meta(max_length=AFTER_MAX)] = ()
    fail: Annotated[tuple[Words, ...], Meta(max_length=AFTER_MAX)] = ()

    def named(self) -> list[tuple[str, int, str]]:
        """Return every dependency: its kind, its place among those of the kind, and the job."""
        kinds = (("ok", self.ok), ("any", self.any), ("fail", self.fail))
        return [(kind, at, job) for kind, jobs in kinds for at, job in enumerate(jobs)]


class Environment(_Part, frozen=True):
    """What the processes of a job have installed, where no image says it.

    One of `requirements` (a file for pip), `uv` (a `uv.lock` beside its `pyproject.toml`) and
    `conda` (an `environment.yml`, or a list that begins with `@EXPLICIT`) names a file. A node
    builds the environment once, and keeps it for further jobs of the same person and VC. `python`
    is the interpreter that it is built with; alone it is the environment as it is. `files` is the
    digest of a snapshot of the files that are named: clients write it.
    """

    requirements: Words = ""
    uv: Words = ""
    conda: Words = ""
    python: Words = ""
    files: Words = ""

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """Return each kind of file that is named, with its path."""
        every = (("requirements", self.requirements), ("uv", self.uv), ("conda", self.conda))
        return tuple((kind, path) for kind, path in every if path)


Notable = Literal["end", "fail", "start", "suspend", "late"]


class Notify(_Part, frozen=True):
    """Who is notified of what becomes of the job.

    `on` are the events: `start` (it runs for the first time), `suspend`, `fail`, `end` (however it
    ends) and `late` (its `finish_by` has passed). `to` are names of the operator's targets, mail
    addresses, or URLs of webhooks (`https://...`). Whoever sees the job sees these: what has a
    password in it is to be a target of the operator's.
    """

    to: Annotated[tuple[Words, ...], Meta(max_length=LABELS_MAX)]
    on: Annotated[tuple[Notable, ...], Meta(max_length=LABELS_MAX)] = ("end",)


class PipelineBound(_Part, frozen=True):
    """How many jobs of a pipeline may be at work at the same time.

    The jobs of one owner in a VC that name the same pipeline are of it, those of an array's tasks
    too. A job enters its queue once fewer than `max_parallel` of the others are in their queue,
    hold GPUs or are suspended. Where they say different bounds, the lowest of those holds.
    """

    name: Words
    max_parallel: Whole


RESUME_FIND_MAX, RESUME_ARGS_MAX = 16, 64
CHECKPOINT_PLACEHOLDER = "{checkpoint}"


class Resume(_Part, frozen=True):
    """How an attempt goes on from a checkpoint that a library wrote in an earlier attempt.

    `find` are patterns of files and folders, relative to the job's folder, or in a volume of the
    job's: `ckpt/step_*`, `scratch:run7/*.pt`. Without it, checkpoints of transformers, accelerate
    and Lightning are looked for. `args` are added to the command where a checkpoint was found;
    `{checkpoint}` is its path. With `auto` the Trainers of transformers and Lightning get it
    without the script's help: `resume: auto` means `resume: {auto: true}`.
    """

    find: Annotated[tuple[Words, ...], Meta(max_length=LABELS_MAX)] = ()
    args: Annotated[tuple[Words, ...], Meta(max_length=ENV_MAX)] = ()
    auto: bool = False


OverQuota = Literal["auto", "wait", "refuse", "opportunistic"]
Qos = Literal["urgent", "prior", "normal"]
Late = Literal["accept", "opportunistic", "refuse", "cancel"]
Profile = Literal["allowed", "refused"]


class JobSpec(_Part, frozen=True):
    """One job. Exactly one of `command` and `script` is given.

    `command` is an argument list, or one line for `/bin/sh -c`. `script` is a Python file, run
    observed through `python -m skep_job` with `args`. `guaranteed` jobs use their VC's quota;
    `opportunistic` ones run on what is idle and yield. Without a `runtime` the workers are plain
    processes of the agent's user. A `demotable` job may lose its VC's cells to a higher priority
    without being stopped: it goes on where it is, opportunistically. `over_quota` says what a
    guaranteed job does while its VC's cells cannot hold it. `auto`: it has idle GPUs if it can give
    them back, and waits else. `wait`: it waits. `refuse`: it is not admitted. `opportunistic`: it
    has idle GPUs even if a stop loses its work. `search` is the id of the search whose trial it is,
    and given by that search alone. `distributed` says whether its processes get what `torchrun`
    sets (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, ...); without it those of several workers, of elastic
    jobs and of jobs on parameter servers do. `python` is the interpreter that runs the `script`, by
    its full path on the nodes or a name that is looked up in PATH; the folder of a full path is
    first in the processes' PATH. Without it the cluster's own interpreter runs a script, or the
    `python3` of the image. `secrets` are names of secrets by the variables that hold their values
    in the job's processes; of `secret_files` a variable holds the path of a file with the value. A
    job waits outside of its queue for the jobs in `after`, for the time `begin` (a time with its
    zone, or a length such as `2h` after the submission), and with `hold` until `skep release`.
    `array` names the tasks of an array, such as `0-99%8`: each becomes a job of its own. `task`
    says which task a job is (`j7[3]`), and is given by admission alone. `code` is the digest of a
    snapshot: the job runs in a folder of its own that has it, and `workdir` is then relative to
    that folder. Clients write it in place of a folder's name. `outputs` are paths relative to
    `workdir` that are kept when an attempt ends. `environment` is what its processes have
    installed, in place of `python`. `volumes` are names of volumes, or such names with
    the place where the job sees each, and `:ro` or `:rw`: `{datasets: /data:ro}`. `mounts` are what
    became of them, and are written by admission alone. `template` names a template of its VC, which
    admission fills in; the job that is made then says `from_template` in its place.
    `notify` says who is notified. `stdin` is the file that rank 0 reads as its
    standard input: a path in the folder of `code`, or without one a full path on the nodes. With
    both, and without `outputs`, `workdir` may be a full path too. `pipeline` names the pipeline
    that a job is of, and how many of its jobs may be at work at the same time. `resume` says how a
    later attempt goes on from a checkpoint of a library's own. An attempt that made mini-batches
    and has made none for `restart_hung` (seconds, or text such as `15m`) is ended, and another one
    goes on from the latest checkpoint; without it nothing is done. A job that can be stored is
    stored every `checkpoint_every` (as `restart_hung`) of the time that it runs, and goes on.
    """

    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    vc: Token
    version: Count = SPEC_VERSION
    kind: Literal["training", "inference"] = "training"
    command: Annotated[tuple[Words, ...], Meta(max_length=SPEC_BYTES_MAX)] | Words | None = None
    script: Words | None = None
    args: Annotated[tuple[Words, ...], Meta(max_length=SPEC_BYTES_MAX)] = ()
    workdir: Words | None = None
    env: Annotated[dict[Words, Words], Meta(max_length=ENV_MAX)] = {}
    resources: Resources = Resources()
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 0
    service_class: Literal["guaranteed", "opportunistic"] = "guaranteed"
    over_quota: OverQuota = "auto"
    limits: Limits = Limits()
    size: SizeHint = SizeHint()
    labels: Annotated[dict[Words, Words], Meta(max_length=LABELS_MAX)] = {}
    runtime: Runtime | None = None
    demotable: bool = False
    elastic: Elastic | None = None
    ps: ParameterServers | None = None
    search: Short = ""
    distributed: bool | None = None
    python: Words | None = None
    finish_by: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words | None = None
    qos: Qos | None = None
    late: Late = "accept"
    willing: Willing = Willing()
    promise: Promised | None = None
    secrets: Annotated[dict[Words, Words], Meta(max_length=ENV_MAX)] = {}
    secret_files: Annotated[dict[Words, Words], Meta(max_length=ENV_MAX)] = {}
    after: After | None = None
    begin: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words | None = None
    hold: bool = False
    array: Words | None = None
    task: Short = ""
    code: Words = ""
    outputs: Annotated[tuple[Words, ...], Meta(max_length=LABELS_MAX)] = ()
    environment: Environment | None = None
    volumes: (
        Annotated[tuple[Words, ...], Meta(max_length=LABELS_MAX)]
        | Annotated[dict[Words, Words], Meta(max_length=LABELS_MAX)]
    ) = ()
    mounts: Annotated[tuple[Mount, ...], Meta(max_length=LABELS_MAX)] = ()
    template: Short = ""
    from_template: Short = ""
    notify: Notify | None = None
    stdin: Words = ""
    pipeline: PipelineBound | None = None
    resume: Resume | None = None
    restart_hung: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words | None = None
    checkpoint_every: Annotated[int, Meta(ge=1, le=TIME_S_MAX)] | Words | None = None

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Return the names of the secrets that it needs, each once."""
        login = self.runtime.login if self.runtime is not None else ""
        named = (*self.secrets.values(), *self.secret_files.values(), *([login] if login else ()))
        return tuple(dict.fromkeys(named))

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Return the digests of the snapshots that it needs: its code, its environment's files."""
        files = self.environment.files if self.environment is not None else ""
        return tuple(digest for digest in (self.code, files) if digest)

    @property
    def is_distributed(self) -> bool:
        """Return whether its processes are told their ranks as `torchrun` tells them."""
        if self.distributed is not None:
            return self.distributed
        return self.resources.workers > 1 or self.elastic is not None or self.ps is not None

    @property
    def alike(self) -> str:
        """Return what jobs like it are known by: its family, or else its VC and name.

        The replicas of a service (`llm-1`, `llm-2`) are alike.
        """
        name = self.name.rpartition("-")[0] if self.kind == "inference" else ""
        return self.size.family or f"{self.vc}/{name or self.name}"

    @property
    def gpus(self) -> int:
        """Return the GPUs of the whole gang."""
        return self.resources.gpus * self.resources.workers

    @property
    def opportunistic(self) -> bool:
        """Return whether the job runs outside its VC's quota."""
        return self.service_class == "opportunistic"


NOT_BUILT: dict[str, str] = {
    "roles": "roles with their own resources (worker, parameter server)",
    "shape": "shapes left to the scheduler",
    "sharing": "permission to share GPUs",
    "checkpoint": "checkpoint modes",
    "multi_job": "multi-jobs",
}
"""Keys of the schema to come. They are refused as such: a wish ignored is worse than refused."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing wrong with a spec: where (`$.resources.gpus`), why, and what to do."""

    path: str
    reason: Reason
    text: str
    suggestion: str = ""
