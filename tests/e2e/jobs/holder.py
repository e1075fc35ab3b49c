"""Holds its GPUs until a file exists, and takes a second to stop when it is asked to.

    start NAME ATTEMPT RANK DEVICES AT;   stop ... (SIGTERM came)   end ... (the last thing it does)

One line per note, appended with one write to the file of its node under $NOTES. Times are of the
monotonic clock, which all processes of a machine share. It ends with success once $UNTIL exists,
and with status 143 if it was asked to stop before. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LOOK_S = 0.02
STOPS_S = 1.0


def main() -> int:
    """Hold, and note it."""
    env = os.environ
    node = env.get("SKEP_NODE") or os.path.basename(
        os.path.dirname(os.path.dirname(env["SKEP_SOCK"]))
    )
    notes = os.open(os.path.join(env["NOTES"], node), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    who = f"{env['SKEP_NAME']} {env['SKEP_GEN']} {env.get('RANK', '0')} {env['SKEP_DEVICES']}"
    asked = False

    def note(what: str) -> None:
        os.write(notes, f"{what} {who} {time.monotonic_ns()};\n".encode())

    def stop(_signal: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, stop)
    note("start")
    while not asked and not os.path.exists(env["UNTIL"]):
        time.sleep(LOOK_S)  # tidy: allow sleep because this is a job, and it paces itself
    if asked:
        note("stop")
        time.sleep(STOPS_S)  # tidy: allow sleep because this is a job that is slow to stop
    note("end")
    return 128 + signal.SIGTERM if asked else 0


if __name__ == "__main__":
    sys.exit(main())
