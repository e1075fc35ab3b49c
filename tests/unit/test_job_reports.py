"""`run.report` in a script that uses no loop of the run: what its agent hears."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.job_agent import Message, job_agent, python

PLAIN = """
    import skep_job

    run = skep_job.init()
    for number in range(5):
        run.report(accuracy=number / 10, tokens=10)
    """

TRACKED = """
    import skep_job

    class Model:
        def state_dict(self): return {}
        def load_state_dict(self, state): pass

    run = skep_job.init()
    run.track(model=Model())
    for number in range(5):
        run.report(accuracy=number / 10, tokens=10)
    """

TRAINS = """
    import torch
    import skep_job

    run = skep_job.init()
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(5):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.step()
        run.report(accuracy=number / 10, tokens=10)
    """


def reported(folder: Path, text: str) -> list[Message]:
    """Run a script to its end; return what it reported."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    with job_agent() as agent:
        outcome = python([script], agent.environment())
        assert (outcome.returncode, outcome.stderr) == (0, "")
        agent.wait_until(lambda agent: agent.accepted and agent.open_connections == 0)
        return agent.of_type("metrics")


@pytest.mark.parametrize("text", [PLAIN, TRACKED], ids=["bare", "tracked"])
def test_a_report_counts_as_a_mini_batch_where_none_is_seen(tmp_path: Path, text: str) -> None:
    first, *_, last = reported(tmp_path, text)
    assert (first["step"], first["values"]) == (1, {"accuracy": 0.0, "tokens": 10})
    assert (last["step"], last["values"]) == (5, {"accuracy": 0.4, "tokens": 50})


@pytest.mark.torch
def test_a_report_is_of_the_mini_batch_that_the_hooks_count(tmp_path: Path) -> None:
    last = reported(tmp_path, TRAINS)[-1]
    assert (last["step"], last["values"]) == (10, {"accuracy": 0.4, "tokens": 50})


STEPS_ALONE = """
    import torch
    import skep_job

    run = skep_job.init()
    weight = torch.ones(1, requires_grad=True)
    while run.steps < 3:
        (gradient,) = torch.autograd.grad(weight.square().sum(), weight)
        weight.data.add_(gradient, alpha=-0.1)
        run.report(weight=weight)
        run.step()
    """


@pytest.mark.torch
def test_mini_batches_that_the_script_says_are_counted_and_nothing_else_is_promised(
    tmp_path: Path,
) -> None:
    """It tracks nothing, so that what goes on elsewhere would begin anew."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(STEPS_ALONE))
    with job_agent() as agent:
        outcome = python([script], agent.environment())
        assert outcome.returncode == 0
        assert outcome.stderr == (
            "skep_job: nothing is tracked, so the job is neither stored nor moved: "
            "see run.track()\n"
        )
        agent.wait_for(1, "bye", steps=3)
        (can,) = agent.of_type("can")
        assert can["can"] == ["suspend", "release", "rebind"]
        assert agent.of_type("metrics")[-1]["step"] == 3
