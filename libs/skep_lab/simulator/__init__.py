"""A cluster simulated from its jobs' side: the production machines, and a model of the nodes.

`run.run` plays a trace. Everything that decides is what runs in production; agents, jobs and time
are played by this package. For faults of processes and network there is `skep.sim.driver`.
"""
