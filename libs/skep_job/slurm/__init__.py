"""Batch scripts of Slurm in a job: batch processes, the steps of `srun`, and their variables.

    worker 0   batch ── the script ── srun ──┐        (Unix socket in a folder of the job's own)
                 │  ◀────────────────────────┘
                 ├── tasks of a step here
    worker 1   batch ── tasks of a step          (TCP at MASTER_ADDR:MASTER_PORT, by a key)

Standard library only. The plan and the script come in two variables (`skep.slurm.jobs`).
"""
