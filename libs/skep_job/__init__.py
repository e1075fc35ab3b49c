"""What runs inside the user's training process: mini-batch counts without a change to the script.

`python -m skep_job script.py` runs the script as `python script.py` would and reports to the agent
whose socket the environment names. Without that socket it adds nothing. Standard library only; the
package meets the rest of Skep in a socket protocol (`skep_job.reporter`) and nowhere else.

Importing the package has no effect and imports nothing, so that it is safe everywhere.
"""

TYPE_CHECKING = False  # As `typing` has it, which is not imported for the sake of one name.
if TYPE_CHECKING:
    from collections.abc import Callable

    from skep_job.observe import Observation
    from skep_job.run import Run


def current() -> "Observation | None":
    """Return what observes this process, or None outside Skep."""
    import sys

    observe = sys.modules.get("skep_job.observe")
    return observe.current() if observe is not None else None


def init(
    *,
    checkpoint_every: "float | str | None" = None,
    keep: int = 2,
    warm_up: "Callable[[], object] | None" = None,
) -> "Run":
    """Return the run that makes this script checkpointable and movable (see `skep_job.run`).

    `checkpoint_every` (seconds, or "90s", "10m", "2h") has checkpoints written by themselves, of
    which `keep` stay. `warm_up` does one step of training in a process that is about to take the
    job over; its effects are undone. Without it that process tries the model on the first samples.
    Outside Skep the run does nothing.
    """
    from skep_job.begin import begin

    return begin(checkpoint_every, keep, warm_up)
