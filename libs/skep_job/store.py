"""The meeting place of an elastic gang: one TCPStore for the life of the job, in no rank's process.

    python -m skep_job.store [--host ADDRESS] [--port PORT]

Prints one line of JSON, `{"host": ..., "port": ..., "pid": ...}`, once it listens, and serves until
its standard input ends: the process that started it holds the other end of that pipe, so that the
store ends with its holder, however the holder ends. The port is the kernel's choice unless one is
given.

It is a process of its own because PyTorch's store comes only with PyTorch, which the agent need not
have: it runs on the job's interpreter or in the job's image, so that server and clients are of one
version. It is no rank's, because a gang must be able to lose any of its ranks. Attempts and
generations have prefixes of their own in it (`elastic.agreement.folder`), so one store may serve
all gangs of a node. A gang needs it only while it changes size: if it dies in between, the next
`rescale` names the address of another.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input ends; return 1 if the address cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m skep_job.store", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="the address that ranks connect to")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    options = parser.parse_args(arguments)

    from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(options.host, options.port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        where = f"{options.host}:{options.port}"
        print(f"skep_job.store: cannot listen on {where}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"host": options.host, "port": store.port, "pid": os.getpid()}), flush=True)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
