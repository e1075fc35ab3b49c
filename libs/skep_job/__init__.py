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
    """Return what observes this process, or None outside Skep and in a fork."""
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
    replicas_every: "float | str | None" = "auto",
    incremental: bool = False,
) -> "Any":
    """Return the run that makes this script checkpointable and movable.

    See `skep_job.cooperate.run`. Outside Skep the run does nothing.

    Args:
        checkpoint_every: The time between two checkpoints that the run writes by itself: seconds,
            or text such as "90s", "10m" or "2h". None: it writes none by itself.
        keep: How many checkpoints stay, 1 to 1,000.
        warm_up: Does one step of training in a process that is about to take the job over; its
            effects are undone. None: that process tries the model on the first samples.
        elastic: The smallest and the largest number of ranks of a job that may change its size
            while it trains (see `skep_job.elastic.run`). None: the size is fixed, and the arguments
            below have no effect.
        global_batch: The samples of a mini-batch of all ranks together.
        seed: It decides the order of the samples.
        backend: The backend of the process group; empty: torch's choice for the device.
        patience_s: How long a rank waits for others during a change of the size (seconds).
        replicas_every: The time between two copies of the state in the memory of the gang's nodes,
            each part on two of them: as for `checkpoint_every`. "auto": Skep chooses, for a gang
            whose state is split over several nodes, 5 s or more. None: there are none.
        incremental: Whether a checkpoint refers to an older one for tensors that did not change,
            such as frozen weights, and does not write them again.

    Raises:
        UsageError: The function was called before in this process.
        TypeError: `checkpoint_every` or `replicas_every` is neither a number nor text.
        ValueError: An argument has no possible meaning, or the environment names a gang that
            `elastic` does not allow.
    """
    from skep_job.cooperate.begin import begin

    if elastic is None:
        return begin(
            checkpoint_every, keep, warm_up, replicas_every=replicas_every, incremental=incremental
        )
    from skep_job.elastic.parts import rules

    gang = rules(elastic, global_batch, seed, backend, patience_s)
    return begin(checkpoint_every, keep, warm_up, gang, replicas_every, incremental=incremental)
