"""Libraries that own the training loop are ended and begun again; each only if it is installed."""

import importlib.util
import signal
from pathlib import Path

import pytest

from tests import needs
from tests.move_kit import job
from tests.support.job_agent import job_agent

SCRIPT = Path(__file__).parent / "jobs" / "libraries.py"
STEPS = 24

pytestmark = [pytest.mark.torch, pytest.mark.e2e]


@pytest.mark.parametrize(
    "library,module,exact",
    [
        ("accelerate", "accelerate", True),
        ("hf", "transformers", True),
        # Lightning begins a pass anew when its loader cannot say where it is: steps are exact.
        ("lightning", "lightning", False),
    ],
)
def test_a_library_goes_on_after_it_was_told_to_end(
    library: str, module: str, exact: bool, tmp_path: Path
) -> None:
    if importlib.util.find_spec(module) is None:
        needs.skip(f"{module} is not installed")
    scratch = {"SCRATCH": str(tmp_path / "scratch"), "HF_HUB_OFFLINE": "1"}
    names = {**scratch, "SKEP_CHECKPOINTS": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    said = []
    with job_agent() as agent:
        for arguments, attempt, status in (
            ([library, "13"], "3", -signal.SIGTERM),
            ([library], "4", 0),
        ):
            with job(arguments, agent, SCRIPT, names | {"SKEP_GEN": attempt}) as part:
                ended, told = part.finish()
                assert ended == status, told
                said += [line for line in part.trained() if line.startswith(("loss", "end"))]
        assert "checkpoint" in agent.of_type("can")[-1]["can"]
    assert [line.split()[1] for line in said[:-1]] == [str(n) for n in range(1, STEPS + 1)]
    if exact:
        with job([library], None, SCRIPT, scratch) as alone:
            assert alone.finish()[0] == 0
            assert said == [line for line in alone.trained() if line.startswith(("loss", "end"))]
