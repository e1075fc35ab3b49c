"""The tables of `/v1/state`: which there are, and the columns of each. The first one is the key.

Instants are wall-clock nanoseconds, cut to seconds; those that are estimated are
`[p10, p50, p90]`. Rates and mini-batches of jobs that run have three digits, a utilisation two.
Null: it has not happened, or is not known.
"""

from __future__ import annotations

JOBS = (
    "job",
    "name",
    "vc",
    "owner",
    "state",
    "gpus",
    "gpu_share",
    "gpu_type",
    "workers",
    "priority",
    "service_class",
    "class_in_force",
    "labels",
    "task",
    "tasks",
    "search",
    "after",
    "place",
    "nodes",
    "beside",
    "attempt",
    "submitted_at",
    "bound_at",
    "started_at",
    "ended_at",
    "rate_milli",
    "utilisation",
    "steps",
    "total_steps",
    "progress",
    "start",
    "end",
    "due",
    "promise",
    "standing",
    "changing",
    "stalled_since",
    "why",
    "text",
    "needs",
)
"""`task` is `j7[3]` of a task of array j7; `tasks`, of an array, its tasks by state. `search` is
the search whose trial it is, `after` the jobs and arrays that it waits for. `utilisation` and
`progress` are thousandths, `start` is told until it has started. `promise` is the answer to its
deadline `due`, `standing` is `open`, `kept` or `broken`. `changing` is the change under way:
`goal`, `why`, `since`. `why` is the code of the reason of its state, `text` that in one sentence,
`needs` what it is about."""
NODES = (
    "node",
    "state",
    "address",
    "gpu_type",
    "gpus",
    "free",
    "held",
    "bad",
    "bad_gpus",
    "drained",
    "cpus",
    "memory",
    "heard_at",
    "jobs",
)
"""`state` is up, silent, lost, drained or clearing; `free`, `held` and `bad` count GPUs, and the
rest cannot be had while the node is not up. `heard_at` is told while it is silent or lost. `jobs`
are pairs of a job and its VC: those that the caller sees."""
GPUS = (
    "gpu",
    "node",
    "index",
    "type",
    "state",
    "job",
    "vc",
    "owner",
    "job_state",
    "rank",
    "borrowed",
    "beside",
)
"""`gpu` is `node-1/0`. `state` is free, held, bad, drained or lost. Of a job that the caller may
not see, `job`, `vc`, `owner`, `job_state` and `rank` are null."""
VCS = (
    "vc",
    "gpus",
    "asked",
    "used",
    "borrowed",
    "running",
    "suspended",
    "queued",
    "policy",
    "weight",
    "jobs_max",
    "promises_made",
    "promises_kept",
    "promises_broken",
)
"""`gpus` are those of its cells, `asked` those that were asked for; `used` are in its own cells,
`borrowed` its jobs use opportunistically."""
SEARCHES = (
    "search",
    "name",
    "vc",
    "owner",
    "state",
    "why",
    "method",
    "metric",
    "direction",
    "target",
    "began_at",
    "ended_at",
    "trials",
    "trials_max",
    "stands",
    "gpu_ns",
    "gpu_time_s",
    "best",
)
"""As in `/v1/searches`. `gpu_ns` is as of the latest fact about the search."""
TOTALS = ("total", "jobs", "gpus", "waited_p50_s", "waited_p90_s", "started", "useful")
"""One row, `all`. `jobs` and `gpus` are counts by state. The waits are those of jobs that started
in the last hour, `started` counts these; `useful` is the part of the GPU time held in the last day
in which jobs trained and did not lose it (thousandths)."""
ALERTS = ("alert", "code", "severity", "kind", "about", "vc", "since", "text", "todo")
"""`severity` is `critical`, `warning` or `info`. `kind` says what `about` names: job, node, gpu,
cell, service, or limit. `text` says what is wrong in one sentence, `todo` what to do."""

TABLES: dict[str, tuple[str, ...]] = {
    "jobs": JOBS,
    "nodes": NODES,
    "gpus": GPUS,
    "vcs": VCS,
    "searches": SEARCHES,
    "totals": TOTALS,
    "alerts": ALERTS,
}
HISTORY = (
    "at",
    "free",
    "held",
    "bad",
    "drained",
    "lost",
    "training",
    "useful",
    "waiting",
    "started",
    "waited_p50_s",
    "waited_p90_s",
    "succeeded",
    "failed",
    "cancelled",
    "used",
)
"""The columns of `/v1/history`: one row for each five minutes, which begin at `at`. GPUs by state
(of all nodes), those that train, jobs that wait, and `used`, the GPUs that jobs held, are means
over them. `useful` is the part of the GPU time held in which jobs trained and did not lose it
(thousandths). The rest are counts, and the waits of the jobs that started."""
