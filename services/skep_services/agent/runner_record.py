"""What the runner remembers across its own death: starts and ends of runs, one JSON line each.

    {"boot": ID}                                    the runs below were started in this boot
    {"began": TOKEN, "mark": N, "log": PATH, "log_bytes_max": N, "about": {}}    written before it
                                                    is executed
    {"started": TOKEN, "pid": N, "ticks": N, "at": NS}
    {"not_started": TOKEN}                          it could not be executed: it may be tried again
    {"signalled": TOKEN, "order": N}                written before the signal of this order is sent
    {"frozen": TOKEN, "group": PATH or ""} {"thawed": TOKEN}    written before it is done
    {"exited": TOKEN, "code": N or null, "leftovers": N, "left": [TEXT], "asked": BOOL,
     "at": NS, "exceeded": TEXT}                (without it: nothing)
    {"forgot": TOKEN}

The lines are not synced: the page cache survives the runner, and what kills the page cache kills
the processes as well. A line that cannot be parsed (torn by a full disk) is skipped.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

LINES_SPARE_MAX = 4096
"""How many lines may lie in the file beyond what its runs need before it is rewritten."""

LINES_PER_RUN = 3
"""began, started, exited."""


class Known:
    """One run of the record. `pid` is 0 while only `began` is known; `ended_at` 0 until it ends.

    `mark` is the number its processes carry (see `proc.marked`). `asked`: it was told to end before
    its main process had; after the runner's death that is known only of what had ended by then.
    `group` is the control group that its tree was put into, if any; it stays in it when thawed.
    `signalled` is the order of the latest signal that it was given; 0: of none. `about` is what its
    enclosure has to know of it later. `exceeded` is the bound that ended it: a code, and what it
    means in words.
    """

    def __init__(
        self,
        token: str,
        mark: int,
        log: str,
        log_bytes_max: int,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.token = token
        self.mark = mark
        self.log = log
        self.log_bytes_max = log_bytes_max
        self.pid = 0
        self.ticks = 0
        self.at = 0
        self.code: int | None = None
        self.leftovers = 0
        self.asked = False
        self.ended_at = 0
        self.frozen = False
        self.group = ""
        self.signalled = 0
        self.left: list[str] = []
        self.exceeded = ""
        self.about = dict(about or {})

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that make this run."""
        token = self.token
        lines: list[dict[str, Any]] = [
            {
                "began": token,
                "mark": self.mark,
                "log": self.log,
                "log_bytes_max": self.log_bytes_max,
                **({"about": self.about} if self.about else {}),
            }
        ]
        if self.pid:
            lines.append({"started": token, "pid": self.pid, "ticks": self.ticks, "at": self.at})
        if self.signalled:
            lines.append({"signalled": token, "order": self.signalled})
        if self.group or self.frozen:
            lines.append({"frozen": token, "group": self.group})
        if self.group and not self.frozen:
            lines.append({"thawed": token})
        if self.ended_at:
            lines.append(
                {
                    "exited": token,
                    "code": self.code,
                    "leftovers": self.leftovers,
                    "left": self.left,
                    "asked": self.asked,
                    "at": self.ended_at,
                    **({"exceeded": self.exceeded} if self.exceeded else {}),
                }
            )
        return lines


class Record:
    """The file at `path`; `runs` is what it says.

    Runs of an earlier boot come without pids, because those identify nothing in this one.

    Args:
        path: The file.
        boot: The name of this boot.

    Raises:
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: str, boot: str) -> None:
        self.path = path
        self.boot = boot
        self.runs: dict[str, Known] = {}
        self._boot_read = boot
        self._lines = 0
        self._torn = False
        known = os.path.exists(path)
        if known:
            self._load()
        try:
            self._file = self._rewrite()
        except OSError:
            if not known or self._boot_read != boot:
                raise
            # A job fills the disk: what there is of the file goes on, so that the job can be ended.
            self._lines, self._torn = len(self.runs) * LINES_PER_RUN, True
            self._file = self._opened()

    def began(
        self,
        token: str,
        mark: int,
        log: str,
        log_bytes_max: int,
        about: Mapping[str, Any] | None = None,
    ) -> Known:
        """Note that `token` is about to be executed.

        Args:
            token: The name of the run.
            mark: The number that its processes carry.
            log: The path of its log.
            log_bytes_max: The bound of the log (bytes).
            about: What its enclosure has to know of it later.
        """
        known = Known(token, mark, log, log_bytes_max, about)
        self._append(known.lines()[0])
        self.runs[token] = known
        return known

    def started(self, known: Known, pid: int, ticks: int, at: int) -> None:
        """Note which process it became.

        Args:
            known: The run; it is changed.
            pid: The main process.
            ticks: When the process started (clock ticks since boot).
            at: The time (ns since 1970).
        """
        known.pid, known.ticks, known.at = pid, ticks, at
        self._append(known.lines()[1])

    def not_started(self, token: str) -> None:
        """Note that it could not be executed: the token is free again."""
        del self.runs[token]
        self._append({"not_started": token})

    def signalled(self, known: Known, order: int) -> None:
        """Note that the signal of an order is about to be sent to it."""
        known.signalled = order
        self._append({"signalled": known.token, "order": order})

    def frozen(self, known: Known, group: str) -> None:
        """Note that its tree is about to be frozen.

        Args:
            known: The run; it is changed.
            group: The control group that it is frozen in; empty: in none.
        """
        known.frozen, known.group = True, group
        self._append({"frozen": known.token, "group": group})

    def thawed(self, known: Known) -> None:
        """Note that its tree is about to be thawed."""
        known.frozen = False
        self._append({"thawed": known.token})

    def exited(
        self, known: Known, code: int | None, leftovers: int, at: int, left: Sequence[str] = ()
    ) -> None:
        """Note its end.

        Args:
            known: The run; it is changed.
            code: The exit code of its main process, negative for a signal; None: not known.
            leftovers: How many processes outlived the main process.
            at: The time (ns since 1970).
            left: The first of those, in words.
        """
        known.code, known.leftovers, known.ended_at = code, leftovers, at
        known.left = list(left)
        self._append(known.lines()[-1])

    def forgot(self, token: str) -> None:
        """Drop an ended run."""
        del self.runs[token]
        self._append({"forgot": token})
        if self._lines > len(self.runs) * LINES_PER_RUN + LINES_SPARE_MAX:
            before, self._file = self._file, self._rewrite()
            os.close(before)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line).encode() + b"\n"
        if self._torn:
            text = b"\n" + text
        self._torn = True
        if os.write(self._file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._torn = False
        self._lines += 1

    def _rewrite(self) -> int:
        """Replace the file by the lines its runs need; return it opened for appending."""
        lines: list[dict[str, Any]] = [{"boot": self.boot}]
        for known in self.runs.values():
            lines += known.lines()
        aside = self.path + ".tmp"
        with open(aside, "w", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        os.replace(aside, self.path)
        self._lines = len(lines)
        self._torn = False
        return self._opened()

    def _opened(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _load(self) -> None:
        with open(self.path, "rb") as file:
            for text in file:
                try:
                    self._take(json.loads(text))
                except (ValueError, KeyError, TypeError):
                    continue
        if self._boot_read != self.boot:
            for known in self.runs.values():
                known.pid = 0
                known.frozen, known.group = False, ""

    def _take(self, line: dict[str, Any]) -> None:
        if "boot" in line:
            self._boot_read = line["boot"]
        elif "began" in line:
            token = line["began"]
            self.runs[token] = Known(
                token, line["mark"], line["log"], line["log_bytes_max"], line.get("about")
            )
        elif "started" in line:
            known = self.runs[line["started"]]
            known.pid, known.ticks, known.at = line["pid"], line["ticks"], line["at"]
        elif "signalled" in line:
            self.runs[line["signalled"]].signalled = line["order"]
        elif "frozen" in line:
            known = self.runs[line["frozen"]]
            known.frozen, known.group = True, line["group"]
        elif "thawed" in line:
            self.runs[line["thawed"]].frozen = False
        elif "exited" in line:
            known = self.runs[line["exited"]]
            known.code, known.leftovers = line["code"], line["leftovers"]
            known.left = line.get("left", [])
            known.exceeded = line.get("exceeded", "")
            known.asked, known.ended_at = line["asked"], line["at"]
        elif "not_started" in line or "forgot" in line:
            del self.runs[line.get("not_started") or line["forgot"]]
