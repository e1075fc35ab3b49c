"""Where a process stands that makes no mini-batch: the line, and the collective it waits in.

The line is seen in the stack of the training thread, from the reporter's thread. The collective is
what torch's Flight Recorder has, which counts the collectives of a process group: the rank that has
entered fewer than the others is the one that they wait for.
"""

from __future__ import annotations

import json
import sys
import threading
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from skep_job.observe.flight_record import FlightRecord

CHARACTERS_MAX = 120
RECORD_MAX = 400
"""Characters of a path: a longer one is told by its last part."""
FRAMES_MAX = 200
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "/skep_job/", "<frozen")
"""In the paths of what is no script."""


class Standing(NamedTuple):
    """Where it stands."""

    line: str = ""
    """File, line and function of the script, as `train.py:31 in step`."""
    collective: str = ""
    """The latest collective that it entered, such as `gloo:all_reduce`."""
    entered: int = 0
    """How many collectives of the first process group it entered."""
    waits: bool = False
    """Whether the latest is not over."""
    record: str = ""
    """The file with what torch recorded."""

    def told(self) -> dict[str, Any]:
        """Return what is sent."""
        return self._asdict()


def standing(thread: int, record: FlightRecord | None = None) -> Standing:
    """Return where a thread stands. Never raises.

    Args:
        thread: The identity of the thread that trains.
        record: Keeps what torch's Flight Recorder has.
    """
    try:
        line = line_of(sys._current_frames().get(thread))
    except Exception:
        line = ""
    text = _recorded()
    stands = Standing(line)._replace(**_collective(text))
    if record is None:
        return stands
    record.keep(text)
    path = record.path if len(record.path) <= RECORD_MAX else record.path.rpartition("/")[2]
    return stands._replace(record=path if path.isprintable() else "")


def main_thread() -> int:
    """Return the identity of the thread that trains, as far as is known: the first one."""
    return threading.main_thread().ident or 0


def line_of(frame: FrameType | None) -> str:
    """Return the innermost line of a stack that is the script's own, else the innermost of all."""
    first = ""
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        told = _told(frame.f_code, frame.f_lineno)
        first = first or told
        if not any(part in frame.f_code.co_filename for part in LIBRARIES):
            return told
        frame = frame.f_back
    return first


def collective_of(dump: Any) -> dict[str, Any]:
    """Return what a dump of the Flight Recorder says of the first process group.

    Args:
        dump: Decoded from JSON; what has another form says nothing.
    """
    entries = [each for each in dump["entries"] if each["process_group"][0] == "0"]
    status = dump["pg_status"]["0"]
    entered = max(int(status["last_enqueued_collective"]), 0)
    over = int(status["last_completed_collective"])
    name = _plain(str(entries[-1]["profiling_name"])) if entries else ""
    return {"collective": name, "entered": entered, "waits": over < entered}


def _recorded() -> str:
    """Return what the Flight Recorder has, as JSON; empty if there is none."""
    try:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_initialized():
            return ""
        recorder = sys.modules["torch._C._distributed_c10d"]
        text = recorder._dump_fr_trace_json()
        return text.decode() if isinstance(text, bytes) else str(text)
    except Exception:  # A torch without the recorder.
        return ""


def _collective(text: str) -> dict[str, Any]:
    try:
        return collective_of(json.loads(text)) if text else {}
    except Exception:  # A recorder with another form.
        return {}


def _told(code: CodeType, line: int) -> str:
    name = code.co_filename.rpartition("/")[2]
    return _plain(f"{name}:{line} in {code.co_name}")


def _plain(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:CHARACTERS_MAX]
