"""What a process tree has open for writing: `python -I -S open_files.py PID FILE`.

CRIU runs it while the tree stands, after its memory is written (`--action-script`). FILE gets a
JSON list of [path, bytes, inode] of the regular files that are not only appended to: an image can
be restored only while these are as long as they were. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
import sys

FILES_MAX = 10_000
PROCESSES_MAX = 10_000


def main(arguments: list[str]) -> int:
    """List the files; fail, and so the image, where there are too many."""
    files: dict[str, tuple[int, int]] = {}
    waiting, seen = [int(arguments[0])], 0
    while waiting:
        pid = waiting.pop()
        seen += 1
        files.update(_of(pid))
        waiting += _children(pid)
        if len(files) > FILES_MAX or seen > PROCESSES_MAX:
            return 1
    with open(arguments[1], "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump([[path, *what] for path, what in files.items()], file)
    return 0


def _of(pid: int) -> dict[str, tuple[int, int]]:
    found = {}
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            about = os.stat(f"{folder}/{name}")
            if not stat.S_ISREG(about.st_mode) or not about.st_nlink:
                continue
            if _is_rewritten(f"/proc/{pid}/fdinfo/{name}"):
                found[os.readlink(f"{folder}/{name}")] = about.st_size, about.st_ino
        except FileNotFoundError:
            continue
    return found


def _is_rewritten(info: str) -> bool:
    with open(info, encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    writes = flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return writes and not flags & os.O_APPEND


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
