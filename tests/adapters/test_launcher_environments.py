"""A launcher's environments are built as the job's account, and are no other account's to use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.agent.builds import builds
from skep_services.agent.code import unpacks
from skep_services.ports import RunExited
from tests.environment_kit import BuildingNode
from tests.launcher_kit import LauncherNode, launcher
from tests.node_runtimes import started

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters, pytest.mark.asyncio]


async def test_an_environment_is_built_by_its_account_and_removed_by_the_launcher() -> None:
    with launcher() as one:
        node = LauncherNode(one, "ada")
        of_node = node.told

        async def told(run: RunExited) -> None:
            mine = builds(run.token) or unpacks(run.token)
            await (made.ended if mine else of_node)(run)

        node.told = told  # type: ignore[method-assign,assignment]
        runtime = await node.open()
        assert isinstance(runtime, LauncherRuntime)
        made = BuildingNode(runtime, node.state, one.jobs, one.folder / "tools")
        made.told_to_uv.touch()
        made.told_to_uv.chmod(0o666)
        await made.code.open()
        # Hostile: it looks for what is not its own while it is built.
        script = (
            f"id -u; echo $HOME; ls {node.state} && exit 9; touch {one.jobs}/work/x && exit 8; true"
        )
        python = await made.provide(made.wants(script))
        assert isinstance(python, str), python
        place = Path(python).parents[2]
        assert made.log().splitlines()[2] != made.inherited["HOME"]
        assert made.log().splitlines()[1] == str(place.stat().st_uid)
        plan = node.shell("a", f"{python} -c 'print(7)'; touch {place}/env/more && echo own")
        run = await started(runtime, msgspec.structs.replace(plan, job="j1"))
        assert (await node.end_of("a")).code == 0
        assert node.log("a").splitlines() == ["7", "own"]
        assert place.stat().st_uid == run.uid
        other = msgspec.structs.replace(
            node.shell("b", f"ls {place.parent}; {python} -c 'print(7)'"), owner="bob", job="j2"
        )
        await started(runtime, other)
        assert (await node.end_of("b")).code != 0
        assert "Permission denied" in node.log("b")
        made.alive = {}
        (kept,) = made.environments.kept()
        assert await made.environments.discard(kept.key) == ""
        assert not place.parent.exists()
        await runtime.forget("a")
        await runtime.forget("b")
        await made.code.close()
        await runtime.close()
