"""Starts processes of parameter-server jobs: real ones, forked after PyTorch is imported.

Reads one JSON object a line: {"name", "role", "environment", "arguments", "log"}; role is
coordinator, server, or the path of a training script. Prints {"name", "pid"} when a process has
begun and {"name", "code"} when it has ended (below 0: by that signal). Ends with its input.
"""

import json
import os
import runpy
import select
import sys
from typing import Any

import torch

import skep_ps.coordinator
import skep_ps.optimizer  # noqa: F401 -- loaded once, before the processes are forked
import skep_ps.server

LOOK_S = 0.01


def _run(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["environment"])
    role = order["role"]
    sys.argv = [role, *order["arguments"]]
    main = {"coordinator": skep_ps.coordinator.main, "server": skep_ps.server.main}
    code = 1
    try:
        if role in main:
            code = main[role]()
        else:
            runpy.run_path(role, run_name="__main__")
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()  # What the first use loads.
    print(json.dumps({"name": "", "pid": os.getpid()}), flush=True)
    names: dict[int, str] = {}
    rest = b""
    while True:
        if select.select([0], [], [], LOOK_S)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    _run(order)
                names[pid] = order["name"]
                print(json.dumps({"name": order["name"], "pid": pid}), flush=True)
        while names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            print(json.dumps({"name": names.pop(pid), "code": code}), flush=True)


if __name__ == "__main__":
    main()
