"""The volumes of a launcher's jobs, on real mounts: what is seen where, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from skep.wire.volumes import Mount
from skep_services.launcher import kernel
from skep_services.ports import EnterPlan, NotEntered, RunNotStarted, RunPlan
from tests import needs
from tests.launcher_kit import DYNAMIC, LauncherNode, LauncherUnderTest, launcher
from tests.node_runtimes import started

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters, pytest.mark.asyncio]

VOLUMES = """
[volumes.datasets]
path = "{vols}/datasets"
vcs = ["nlp"]
[volumes.scratch]
path = "{vols}/scratch"
mode = "rw"
mounted = true
[volumes.secret]
path = "{vols}/secret"
mode = "rw"
vcs = ["vision"]
"""


@pytest.fixture
def world() -> Iterator[Path]:
    """Yield a folder with volumes, and places for them. Jobs may have none in /var and /tmp.

    What `scratch` is comes by a bind mount of the folder `disk`.
    """
    needs.require("root")
    folder = Path(tempfile.mkdtemp(prefix="skep-test-", dir="/srv"))
    for place in (folder, folder / "vols", folder / "places"):
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
    for name in ("datasets", "scratch", "secret", "disk"):
        volume = folder / "vols" / name
        volume.mkdir()
        volume.chmod(0o777)
        (volume / "here").write_text(f"{name}\n")
    (folder / "places" / "data").mkdir()
    (folder / "places" / "link").symlink_to("/etc")
    (folder / "vols" / "datasets" / "passwd").symlink_to("/etc/passwd")
    scratch = folder / "vols" / "scratch"
    subprocess.run(["mount", "--bind", folder / "vols" / "disk", scratch], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", scratch], check=False, capture_output=True)
    shutil.rmtree(folder)


@pytest.fixture
def served(world: Path) -> Iterator[LauncherUnderTest]:
    with launcher(DYNAMIC + VOLUMES.format(vols=world / "vols")) as one:
        yield one


class VolumeNode(LauncherNode):
    """A node whose jobs ask for the volumes in `vols`."""

    vols = Path()

    def with_volumes(self, token: str, script: str, *asked: tuple[str, str, str]) -> RunPlan:
        vols = self.vols
        mounts = tuple(
            Mount(name=name, path=f"{vols}/{name}", target=place or f"{vols}/{name}", mode=mode)
            for name, place, mode in asked
        )
        return msgspec.structs.replace(self.shell(token, script), mounts=mounts)


async def test_a_job_sees_the_volumes_that_it_has_and_no_other(
    served: LauncherUnderTest, world: Path
) -> None:
    vols, data = world / "vols", world / "places" / "data"
    node = VolumeNode(served)
    node.vols = vols
    runtime = await node.open()
    script = (
        f"cat {data}/here; touch {data}/new 2>&1 | grep -o 'Read-only file system'; "
        f"cat {vols}/scratch/here; echo kept > {vols}/scratch/out; "
        f"ls {vols}/secret 2>&1 | grep -o 'Permission denied'; "
        f"ls {vols}/datasets 2>&1 | grep -o 'Permission denied'; "
        f"head -c 4 {data}/passwd; echo; exec sleep 1000"
    )
    plan = node.with_volumes("a", script, ("datasets", str(data), "ro"), ("scratch", "", "rw"))
    await started(runtime, plan)
    await node.words("a", 6)
    entered = await runtime.enter(
        EnterPlan(token="a", argv=("/bin/sh", "-c", f"ls {data} {vols}/scratch {vols}/secret"))
    )
    assert not isinstance(entered, NotEntered)
    said = b""
    while (piece := await entered.read(4096)) is not None:
        said += piece[1]
    assert b"here\npasswd" in said
    assert b"Permission denied" in said
    await runtime.stop("a", 0.0)
    await node.end_of("a")
    assert node.log("a").splitlines() == [
        "datasets",
        "Read-only file system",
        "disk",
        "Permission denied",
        "Permission denied",
        "root",  # A link in a volume leads where the job itself may go.
    ]
    assert (vols / "disk" / "out").read_text() == "kept\n"
    assert (vols / "disk" / "out").stat().st_uid != 0
    assert not (vols / "datasets" / "new").exists()

    await started(runtime, node.shell("b", f"ls {vols}/* 2>&1 | grep -c 'Permission denied'"))
    await node.end_of("b")
    assert node.log("b").split() == ["3"]
    await runtime.close()


async def test_what_cannot_be_shown_is_refused(served: LauncherUnderTest, world: Path) -> None:
    node = VolumeNode(served)
    node.vols, places = world / "vols", world / "places"
    runtime = await node.open()
    lines = {}
    for number, (asked, of_node, wanted) in enumerate(
        (
            (("secret", "", "rw"), True, "VC nlp may not have volume secret as 'rw'"),
            (("datasets", "", "rw"), True, "VC nlp may not have volume datasets as 'rw'"),
            (("other", "", "ro"), True, "policy on this node has no volume other"),
            (("datasets", "/etc", "ro"), False, "cannot be at /etc: that is the system's"),
            (("datasets", "/usr/lib/x", "ro"), False, "cannot be at /usr/lib/x"),
            (("datasets", "/", "ro"), False, "cannot be at /: that is the system's"),
            (("datasets", "/home", "ro"), False, "cannot be at /home"),
            (("datasets", f"{places}/../x", "ro"), False, "is none"),
            (("datasets", f"{places}/link", "ro"), False, "is a link or no folder"),
            (("datasets", f"{places}/link/x", "ro"), False, "leads through one"),
            (("datasets", f"{places}/none", "ro"), False, "does not exist"),
            (("datasets", "/data\0x", "ro"), False, "is none"),
        )
    ):
        answer = await runtime.start(node.with_volumes(f"r{number}", "true", asked))
        assert isinstance(answer, RunNotStarted), asked
        assert wanted in answer.detail
        assert answer.of_node == of_node, answer
        lines[answer.detail] = True
    twice = (("datasets", f"{places}/data", "ro"), ("scratch", f"{places}/data/x", "rw"))
    answer = await runtime.start(node.with_volumes("twice", "true", *twice))
    assert isinstance(answer, RunNotStarted)
    assert "or one in the other" in answer.detail

    kernel.unmount(str(world / "vols" / "scratch"))
    answer = await runtime.start(node.with_volumes("away", "true", ("scratch", "", "rw")))
    assert isinstance(answer, RunNotStarted)
    assert "nothing is mounted at" in answer.detail
    assert answer.of_node
    print(*lines, sep="\n")
    await runtime.close()
