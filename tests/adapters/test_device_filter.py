"""The program that filters devices, in a real group of version 2: what opens, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_services.launcher import kernel, policy
from skep_services.launcher.groups import Groups, Mounted
from skep_services.launcher.policy import parsed
from tests import needs

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters]

FUSE, LOOP_CONTROL = (10, 229), (10, 237)
CHARACTER, BLOCK = 0o020666, 0o060666
DEVICES = {
    "null": (CHARACTER, (1, 3)),
    "zero": (CHARACTER, (1, 5)),
    "fuse": (CHARACTER, FUSE),
    "loop-control": (CHARACTER, LOOP_CONTROL),
    "memory": (CHARACTER, (1, 1)),
    "disk": (BLOCK, (7, 0)),
}
OPENS = """
import os, sys
for group in sys.argv[2:]:
    open(group, "w").write("0")
for name in sorted(os.listdir(sys.argv[1])):
    try:
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_NONBLOCK))
    except PermissionError:
        continue  # Any other error is the device's own: it was not refused.
    except OSError:
        pass
    print(name)
"""


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """The groups of a machine that has version 2 only, wherever this one has it."""
    place = tmp_path / "cgroup2"
    place.mkdir()
    try:
        kernel.mount("none", str(place), "cgroup2", 0)
    except OSError as error:
        needs.skip(f"version 2 of control groups cannot be mounted here ({error.strerror})")
    try:
        made = Groups(Mounted(str(place), {}), f"skep-test-{os.getpid()}", parsed({}, 1).limits)
        if not made.features[policy.DEVICES]:
            needs.skip("the kernel takes no program that filters devices here")
        yield made
        made.close()
    finally:
        kernel.unmount(str(place))


def test_what_is_allowed_opens_and_nothing_else_does(groups: Groups, tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name, (mode, number) in DEVICES.items():
        os.mknod(folder / name, mode, os.makedev(*number))
    command = [sys.executable, "-I", "-S", "-c", OPENS, str(folder)]

    def opened(*joins: str) -> set[str]:
        done = subprocess.run([*command, *joins], check=True, capture_output=True, text=True)
        return set(done.stdout.split())

    assert opened() >= {"null", "zero", "fuse", "loop-control"}, "without a filter"
    for mark, nodes, more in ((1, [FUSE], {"fuse"}), (2, [], set()), (3, [(10, 1)], set())):
        joins = groups.make(mark)
        groups.bound(mark, 0, nodes)
        assert opened(*joins) == {"null", "zero", *more}
        assert groups.remove(mark)
