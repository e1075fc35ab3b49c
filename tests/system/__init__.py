"""Programs that test whole clusters, and programs that compare simulations with measurements.

Each is run by `python -m tests.system.NAME` (`--help` lists its options) and prints what it found.
On a cluster of processes:

    chaos             random faults by seed; no job may be lost (as root)
    crash_matrix      every process killed in every phase of every change
    kill_all          everything killed at once, also with a power cut
    kill_each         one service after the other, while jobs train
    kill_cells        the allocator, in the middle of what it does with cells
    kill_trials       the services that measure and advise, in every phase of a trial
    introspect        Gandiva's live figures
    live_speeds       speeds predicted and deadlines promised, two nodes slower than one (as root)
    live_hour         an hour under load and disturbed, exported for `skep replay`
    live_vs_sim       the same workload live and simulated
    search_optuna     a search with Optuna, time-sliced and queued
    compat            unmodified scripts of common libraries

On a cluster of containers (`make image` first):

    compose           deploy, kill containers, account for every job
    failover          the leaders of the bus's streams killed
    pause_allocator   the active allocator paused: is it fenced?

Without a cluster:

    bad_traces            what is said of every kind of bad row
    crosscheck            the simulators of others on the same traces
    search_virtual        the search on a virtual clock
    validate_workloads    the workload models against measurements that were left out
"""
