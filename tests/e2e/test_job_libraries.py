"""Libraries that own the loop are ended, begun again and moved; each only if it is installed."""

import importlib.util
import signal
from pathlib import Path

import pytest

from tests import needs
from tests.move_kit import TOKEN, environment_of, job
from tests.support.job_agent import job_agent

SCRIPT = Path(__file__).parent / "jobs" / "libraries.py"
STEPS = 24

pytestmark = [pytest.mark.torch, pytest.mark.e2e]


@pytest.mark.parametrize(
    "library,module",
    [("accelerate", "accelerate"), ("hf", "transformers"), ("lightning", "lightning")],
)
def test_a_library_goes_on_after_it_was_told_to_end(
    library: str, module: str, tmp_path: Path
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
        assert {"checkpoint", "migrate"} <= set(agent.of_type("can")[-1]["can"])
    assert [line.split()[1] for line in said[:-1]] == [str(n) for n in range(1, STEPS + 1)]
    with job([library], None, SCRIPT, scratch) as alone:
        assert alone.finish()[0] == 0
        assert said == [line for line in alone.trained() if line.startswith(("loss", "end"))]


@pytest.mark.nightly
@pytest.mark.parametrize("library,module", [("hf", "transformers"), ("lightning", "lightning")])
def test_a_library_is_moved_amid_an_epoch(library: str, module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        needs.skip(f"{module} is not installed")
    names = {"SCRATCH": str(tmp_path / "scratch"), "HF_HUB_OFFLINE": "1"}
    here_names = {**names, **environment_of(tmp_path, 3)}
    there_names = {**names, **environment_of(tmp_path, 4, successor=True)}
    with (
        job_agent() as here,
        job_agent() as there,
        job([library], there, SCRIPT, there_names) as successor,
    ):
        there.wait_for(1, "ready")
        with job([library, "hold"], here, SCRIPT, here_names) as source:
            source.hold(12)
            port = there.of_type("ready")[0]["port"]
            source.order(type="move", order=2, host="127.0.0.1", port=port, token=TOKEN)
            step = source.answer("sent", order=2)["step"]
            assert successor.answer("loaded", step=step)["bytes"] > 0
            successor.tell(type="resume", order=3)
            assert successor.finish()[0] == 0
            source.process.kill()
            source.finish()
            said = [line for line in source.trained() if line.startswith("loss")]
    said += [line for line in successor.trained() if line.startswith(("loss", "end"))]
    with job([library], None, SCRIPT, names) as alone:
        assert alone.finish()[0] == 0
        assert said == [line for line in alone.trained() if line.startswith(("loss", "end"))]
