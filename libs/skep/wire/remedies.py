"""What a person can do about a reason, where there is something to do."""

from __future__ import annotations

from skep.wire.reasons import Reason

REMEDIES: dict[Reason, str] = {
    # Refusals of a submission or a request.
    Reason.NOT_JSON: "send one JSON object; `skep submit` makes it from YAML",
    Reason.TOO_LARGE: "put data into files, and name them in the spec",
    Reason.UNKNOWN_KEY: "docs/reference/job-spec.md has every key",
    Reason.MISSING_KEY: "add the key that the refusal names",
    Reason.WRONG_TYPE: "docs/reference/job-spec.md says what each key takes",
    Reason.BAD_VALUE: "the refusal says what is accepted",
    Reason.NOT_BUILT: "leave the key out",
    Reason.UNKNOWN_VC: "`skep vc ls` lists the virtual clusters",
    Reason.WRONG_VC: "name the virtual cluster of your token, or use another token",
    Reason.UNKNOWN_JOB: "`skep ps -a` lists the jobs, ended ones too",
    Reason.OVER_QUOTA: "leave `over_quota` out to wait, or wait for jobs to end",
    Reason.QUOTA_TOO_SMALL: "use fewer GPUs, or `service_class: opportunistic`",
    Reason.TOO_MANY_JOBS: "wait for some to end, or cancel some",
    Reason.NO_SUCH_GPU_TYPE: "`skep gpu ls` lists the types that there are",
    Reason.TOO_MANY_GPUS: "use fewer GPUs, or ask an operator for more nodes",
    Reason.NODE_TOO_SMALL: "use more and smaller workers; `skep node ls` says what nodes have",
    Reason.UNKNOWN_NODE: "`skep node ls` lists the nodes",
    Reason.REPEATED: "nothing: use another key for another job",
    Reason.TYPE_NOT_OWNED: "`skep vc show VC` says what it owns; leave `gpu_type` out for any",
    Reason.CELL_TOO_SMALL: "use fewer GPUs for each worker; `skep vc show VC` says what it owns",
    Reason.WITHIN_TOO_SMALL: "use fewer workers, or `hard: false` for the topology",
    Reason.CELLS_DO_NOT_PACK: "use another number of workers, or of GPUs for each",
    Reason.PIN_NEEDS_GUARANTEE: "use `service_class: guaranteed`, or no pinned cell",
    Reason.NO_TIME_ZONE: "add the zone: `Z` for UTC, or such as `+01:00`",
    Reason.ABOVE_PERSON_LIMIT: "wait for your jobs to end; `skep fair` shows what you have",
    Reason.NO_ROLE: "ask a manager: `skep role grant PERSON submitter --vc VC`",
    Reason.ROLE_TOO_LOW: "ask a manager for a higher role; `skep whoami` shows yours",
    Reason.NOT_ITS_OWNER: "ask its owner, or a manager of its virtual cluster",
    Reason.PRIORITY_TOO_HIGH: "use a lower priority, or ask a manager",
    # People and tokens.
    Reason.UNAUTHORIZED: "`skep login`, or set SKEP_TOKEN",
    Reason.TOKEN_EXPIRED: "`skep login` again, or ask for a new token",
    Reason.TOKEN_REVOKED: "`skep login` again, or ask for a new token",
    Reason.PERSON_DISABLED: "ask an operator: `skep user enable PERSON`",
    Reason.TOO_MANY_TOKENS: "`skep token ls`, and revoke some",
    Reason.TOO_MANY_ATTEMPTS: "wait a minute, and check the token",
    # Secrets.
    Reason.NO_SECRET: "`skep secret ls` lists the secrets; name it under `secrets` in the spec",
    Reason.NO_VAULT: "ask an operator for a vault; `skep doctor` says whether there is one",
    # Volumes.
    Reason.UNKNOWN_VOLUME: "`skep volumes` lists those that you may use",
    Reason.VOLUME_NOT_ALLOWED: "`skep volumes` lists those that you may use; ask an operator",
    Reason.VOLUME_READ_ONLY: "ask for it with `:ro`, or ask an operator",
    Reason.PLACES_OVERLAP: "give each volume a place of its own",
    Reason.NO_VOLUME: "an operator has to mount it on the node, at the path of the cluster file",
    Reason.NO_MOUNTS: "name no place: the variable SKEP_VOLUME_NAME says where the volume is",
    # Deadlines.
    Reason.DEADLINE_PASSED: "use a later time",
    Reason.LENGTH_UNKNOWN: "say `size:` in the spec (mini-batches, or `run_time`)",
    Reason.NOT_PROFILED: "use `willing: {profile: allowed}`: short runs measure it",
    # Waiting.
    Reason.WAITS_FOR_GPUS: "wait, or `skep why JOB --what-if`: it tries what would start it now",
    Reason.WAITS_BEHIND: "wait, or ask for a higher priority: `skep set-priority`",
    Reason.WAITS_FOR_NODES: "`skep node ls` shows which nodes are drained or lost",
    Reason.WAITS_FOR_VICTIMS: "wait: it starts when they have left",
    Reason.WAITS_FOR_CELLS: "wait, or borrow idle GPUs: `over_quota: opportunistic`",
    Reason.WAITS_FOR_REPAIR: "an operator has to repair the hardware: `skep gpu ls` shows it",
    Reason.WAITS_FOR_AFFINITY: "wait, or `hard: false` for the topology",
    Reason.FITS_NO_CELL: "cancel it, and ask for another size or type of GPU",
    Reason.PERSON_LIMIT: "wait for your other jobs to end",
    Reason.WAITS_FOR_WINDOW: "a shorter `limits.time` fits before it; `skep reserve ls` shows it",
    Reason.WAITS_FOR_ITS_GPUS: "wait, or `skep migrate JOB`",
    Reason.SUSPENDED: "`skep resume JOB`",
    # Changes.
    Reason.NOT_RUNNING: "wait for its start: `skep wait --for started JOB`",
    Reason.CANNOT: "`skep show JOB` says what it can; docs/how-to/cooperative-scripts.md",
    Reason.NO_ROOM: "wait for GPUs, or choose another node",
    Reason.NODE_CLOSED: "`skep node undrain NODE`, or choose another node",
    # Ends.
    Reason.EXITED_NONZERO: "`skep logs JOB --tail 50` shows its last words",
    Reason.KILLED_BY_SIGNAL: "`skep logs JOB --tail 50`; signal 9 often is memory that ran out",
    Reason.NOT_STARTED: "`skep show JOB` says what could not be started",
    Reason.PEER_FAILED: "`skep logs JOB --rank all --tail 50`: another rank says why",
    Reason.TIME_LIMIT: "raise `limits.time`",
    Reason.NODE_FAULT: "`skep doctor` on the node says what it lacks",
    Reason.RETRIES_USED_UP: "`skep logs JOB --attempt N` shows each attempt",
    Reason.PREEMPTED: "nothing: it waits and is repeated; guaranteed jobs are not preempted",
    Reason.NODE_LOST: "nothing: it is repeated elsewhere",
    Reason.DEVICE_TROUBLE: "an operator should look at it: `skep gpu ls`",
}
"""A reason that is not here needs nothing: it says what was decided."""
