"""A fast environment for learners: placement and queueing in one VC, without the protocol.

It plays millions of jobs per processor second, where the production simulator
(`skep_lab.simulator`) plays hundreds, because it has no messages, facts, logs or checks: the state
of many environments is a few flat arrays (`arrays`), and kernels that numba compiles change them.
It needs the extra `lab` (numba, numpy, gymnasium); nothing else of Skep imports this package.

    places     where a gang goes: the cells' rule and packing
    engine     the events of the queueing environment: arrivals, starts, changes, faults, ends
    play       a trace under a policy: the fast counterpart of `simulator.run`
    equality   the same trace in both simulators: which jobs start at the same time
    draw       random jobs in an environment's arrays, with bursts
    sched2     SCHED²'s environment: choose a job of the first J, or hold
    dl2        DL²'s environment: give workers and parameter servers to jobs, slot by slot
    queue      the environment of Skep's own models: place waiting jobs, change sizes of others
    tape       what is kept of its episodes to learn from
    environments   the three for Gymnasium

It is an approximation of production. `play` is equal to it, job by job, for the policies and
settings of the equality suite; elsewhere it differs:

- One VC owns every node, and nodes have no levels but GPUs: no sockets, racks, pins, quotas of
  other VCs, opportunistic jobs, lending, or reservations.
- Only GPUs are counted; no CPUs and memory (but in `dl2`, which has no places).
- A gang's workers have equally many GPUs, all of one type.
- Commands and answers take no time, and none is lost. There is no agent that dies, and no port that
  is taken: a fault stops one job.
- Speed depends on the model, the type, the number of workers and how many nodes more than
  necessary a job is on; not on neighbours, partners or racks.
- A resumed job may go anywhere. In production it returns to its own nodes unless it can migrate.
- A job that migrates holds its new place only, from the moment of the decision.
- A job that is resized has its new GPUs, or is without those it gives back, at once.
- Preemptive policies and Gandiva are not built in: an agent that suspends and resumes is one.

docs/explanation/fast-environment.md has the reasons, and what equality was measured.
"""
