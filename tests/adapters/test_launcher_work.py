"""A launcher's jobs have their code in a folder of their own account, which the agent can read."""

from __future__ import annotations

import pwd
import subprocess
from pathlib import Path

import msgspec
import pytest

from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.agent.code import unpacks, work_path
from skep_services.cli.snapshots import take
from skep_services.ports import RunExited, RunNotStarted
from tests.code_kit import CodeNode
from tests.launcher_kit import AGENT, LauncherNode, launcher
from tests.node_runtimes import started

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters, pytest.mark.asyncio]


def agent_may(*words: str) -> bool:
    """Return whether the agent's account may do something."""
    return not subprocess.run(words, user=AGENT, group=AGENT_GROUP, check=False).returncode


AGENT_GROUP = pwd.getpwnam(AGENT).pw_gid


async def test_code_is_unpacked_as_the_account_and_outputs_are_the_agents_to_read(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "data").write_text("what was submitted\n")
    with launcher() as one:
        node = LauncherNode(one, "ada")
        of_node = node.told

        async def told(run: RunExited) -> None:
            await (made.code.ended if unpacks(run.token) else of_node)(run)

        node.told = told  # type: ignore[method-assign,assignment]
        runtime = await node.open()
        assert isinstance(runtime, LauncherRuntime)
        made = CodeNode(runtime, node.state, one.jobs, take(str(source), ""))
        await made.open()
        command = made.bind(1, ".", "out")
        assert await made.provide(command) is None
        place = work_path(one.jobs, "j1", 1)
        plan = node.shell("a", "cat data; pwd; umask 077; mkdir out; echo kept > out/model")
        plan = msgspec.structs.replace(plan, job="j1", workdir=str(place), work=str(place))
        run = await started(runtime, plan)
        assert (await node.end_of("a")).code == 0
        assert node.log("a").splitlines() == ["what was submitted", str(place)]
        assert (place / "out" / "model").stat().st_uid == run.uid
        assert agent_may("cat", str(place / "out" / "model"))
        assert not agent_may("touch", str(place / "out" / "more"))
        assert not agent_may("rm", "-rf", str(place / "out" / "model"))

        other = msgspec.structs.replace(node.shell("b", "true"), owner="bob", job="j1")
        answer = await runtime.start(msgspec.structs.replace(other, work=str(place)))
        assert isinstance(answer, RunNotStarted)
        assert "j1 has folders of account" in answer.detail
        for elsewhere in ("/etc", str(one.jobs / "work" / "j2" / "1"), f"{place}/../../x"):
            answer = await runtime.start(msgspec.structs.replace(plan, token="c", work=elsewhere))
            assert isinstance(answer, RunNotStarted)
            assert "it is not in" in answer.detail
        await runtime.forget("a")
        await runtime.remove_work("j1")
        assert not place.parent.is_dir()
        await made.close()
        await runtime.close()
