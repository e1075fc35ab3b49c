"""Many calls of pure functions, spread over processes, a Ray cluster or the jobs of a Skep cluster.

A `task` is a function and its inputs, as bytes. `deal` hands tasks to the workers of a crew and
takes what comes of them; `processes`, `ray_actors` and `skep_jobs` are the crews. What comes of a
task depends on the task alone, so the engine changes nothing but the time.
"""
