"""What runs inside the user's training process: mini-batch counts without a change to the script.

`python -m skep_job script.py` runs the script as `python script.py` would and reports to the agent
whose socket the environment names. Without that socket it adds nothing. Standard library only; the
package meets the rest of Skep in a socket protocol (`skep_job.reporter`) and nowhere else.

Importing the package has no effect and imports nothing, so that it is safe everywhere.
"""

TYPE_CHECKING = False  # As `typing` has it, which is not imported for the sake of one name.
if TYPE_CHECKING:
    from skep_job.observe import Observation


def current() -> "Observation | None":
    """Return what observes this process, or None outside Skep."""
    import sys

    observe = sys.modules.get("skep_job.observe")
    return observe.current() if observe is not None else None
