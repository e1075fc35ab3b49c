"""What runs inside the user's training process: mini-batch counts without a change to the script.

`python -m skep_job script.py` runs the script as `python script.py` would and reports to the agent
whose socket the environment names. Without that socket it adds nothing. Standard library only; the
package meets the rest of Skep in a socket protocol (`skep_job.observe.reporter`) and nowhere else.

Importing the package has no effect and imports nothing, so that it is safe everywhere.
"""

TYPE_CHECKING = False  # As `typing` has it, which is not imported for the sake of one name.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from skep_job.observe.observation import Observation


def current() -> "Observation | None":
    """Return what observes this process, or None outside Skep."""
    import sys

    observe = sys.modules.get("skep_job.observe.observation")
    return observe.current() if observe is not None else None


def init(
    *,
    checkpoint_every: "float | str | None" = None,
    keep: int = 2,
    warm_up: "Callable[[], object] | None" = None,
    elastic: "tuple[int, int] | None" = None,
    global_batch: int = 0,
    seed: int = 0,
    backend: str = "",
    patience_s: float = 30.0,
) -> "Any":
    """Return the run that makes this script checkpointable and movable.

    See `skep_job.cooperate.run`.

    `checkpoint_every` (seconds, or "90s", "10m", "2h") has checkpoints written by themselves, of
    which `keep` stay. `warm_up` does one step of training in a process that is about to take the
    job over; its effects are undone. Without it that process tries the model on the first samples.
    Outside Skep the run does nothing.

    `elastic`, the smallest and the largest number of ranks, makes the job one that may change its
    size while it trains (see `skep_job.elastic.run`): `global_batch` are the samples of a
    mini-batch of all ranks together, `seed` decides their order, `backend` is torch's choice for
    the device if empty, and `patience_s` bounds how long a rank waits for others during a change.
    """
    from skep_job.cooperate.begin import begin

    if elastic is None:
        return begin(checkpoint_every, keep, warm_up)
    from skep_job.elastic.parts import rules

    gang = rules(elastic, global_batch, seed, backend, patience_s)
    return begin(checkpoint_every, keep, warm_up, gang)
