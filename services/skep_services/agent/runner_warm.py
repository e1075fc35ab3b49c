"""Warm processes: those that have made a script's imports, from which the runner forks ranks.

    (none) --a run starts cold--> recorded --its first mini-batch, or its end--> loading
    loading --its imports are made--> ready --idle, stale, too large, others needed--> gone

A warm process is of one owner in one VC, one interpreter and one environment: the variables, except
those that differ between runs (PER_RUN), which it never sees. It is asked for a rank while the
run's start waits, and other runs with it: some 50 ms, `wait_s` at most. Whatever it answers, or
does not, the run starts: what cannot be forked is executed, and the reason is reported. See
`skep_job.warm`, its other half.

A rank that is forked is a child of the runner, like one that is executed. The runner sees to that
before it lets the rank begin, and gives it its mark and its processors. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skep_services.agent import proc
from skep_services.agent.runner_launch import keep_on

PER_RUN = (
    "CUDA_VISIBLE_DEVICES",
    "TRACEPARENT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)
"""Variables that differ between the ranks of a job, and the trials of a search."""
PREFIXES = ("SKEP_",)
"""What all of Skep's own begin with, which differ too."""
TOOLS = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "PYTHONINSPECT", "PYTHONSTARTUP")
"""Variables that have something start with the interpreter, or go on after the script."""

IMPORT_SECONDS_MAX = 300.0
"""How long a warm process may load: PyTorch takes 30 s from a cold network disk."""
REST_SECONDS = 300.0
"""How long no other warm process is begun for a script, once one was of no use for it."""
RESTS_MAX = 256
KEPT_SECONDS_MIN = 30.0
"""How long a warm process is not replaced by another one after it was of use."""
LOOK_SECONDS = 1.0
"""How often one that loads is looked at."""
RECORD_SECONDS = 0.25
"""How often it is looked whether a run has recorded what it imported."""
RECORDED_MAX = 64
"""Runs that are waited for."""
RECORDS_MAX = 256
"""Records that are kept."""
RECORDS = "imports"
"""The folder of the records, in the state folder of the node."""
VARIABLE = "SKEP_IMPORTS"
"""Tells a run where to record."""
ASKED_MAX = 2
"""How many warm processes are asked for one run."""
IMPORTS_MAX = 16_384
"""More than all imports that are read of a script and recorded of a run."""
SECONDS_MIN = 0.1
"""What the imports must take at least: below it a warm process saves nothing."""
ENDED = "its warm process ended by itself"
TEXT_MAX = 500
MESSAGE_BYTES_MAX = 128 * 1024
"""Below what a packet may have by default; a larger run starts cold."""
WORDS_BYTES_MAX = 64 * 1024
"""What the imports of a warm process may write before they fail."""
MODULE, SCRIPT_AT = ("-m", "skep_job"), 3


class WarmProcess:
    """One process; `ready` once it has made its imports."""

    def __init__(self, pid: int, channel: socket.socket, key: str, script: str) -> None:
        self.pid, self.channel, self.key, self.script = pid, channel, key, script
        self.ready = False
        self.used_at = time.monotonic()
        self.most = IMPORTS_MAX
        self.plan: Mapping[str, Any] = {}


class Recorded(NamedTuple):
    """A run that was executed, and after which a warm process is to begin."""

    plan: Mapping[str, Any]
    pid: int
    ticks: int | None
    until: float


class WarmProcesses:
    """The warm processes of a node."""

    def __init__(self) -> None:
        self.helpers: dict[int, bool] = {}
        """Children of this process that are of no run, by pid."""
        self._all: dict[int, WarmProcess] = {}
        self._rests: dict[str, tuple[float, str]] = {}
        self._recording: dict[str, Recorded] = {}
        self._look_at = 0.0

    # --- runs -------------------------------------------------------------------------------------

    def fork(self, plan: Mapping[str, Any], mark: int, stdin: int, output: int) -> int | str:
        """Return the pid of a rank that has begun, or why it must be executed; empty: not asked.

        Args:
            plan: What was asked for; `warm` has the operator's bounds and whose the run is.
            mark: The number that its processes carry.
            stdin: A descriptor.
            output: A descriptor, which becomes stdout and stderr.
        """
        if not plan.get("warm"):
            return ""
        why = unfit(plan)
        if why:
            return why
        self._listen()
        key = key_of(plan)
        found = [each for each in self._all.values() if each.key == key]
        ready = sorted((each for each in found if each.ready), key=lambda each: -each.used_at)
        why = self._rested(key, plan) or (
            "its warm process is still loading" if found else "there is no warm process for it yet"
        )
        for warm in ready[:ASKED_MAX]:
            outcome = self._ask(warm, plan, mark, (stdin, output))
            if isinstance(outcome, int):
                return outcome
            why = outcome
        return why

    def executed(self, plan: Mapping[str, Any], pid: int) -> None:
        """Have a warm process begin once a run that was executed has imported what it needs.

        Args:
            plan: What was asked for.
            pid: Its main process.
        """
        if unfit(plan) or self._has(plan) or len(self._recording) >= RECORDED_MAX:
            return
        until = time.monotonic() + IMPORT_SECONDS_MAX
        found = Recorded(plan, pid, proc.start_ticks(pid), until)
        self._recording.setdefault(record_of(plan), found)

    def _has(self, plan: Mapping[str, Any]) -> bool:
        """Return whether there is a warm process for a run, or none would be of use."""
        key, script = key_of(plan), plan["warm"]["script"]
        same = [each for each in self._all.values() if each.key == key]
        loads_or_is = any(not each.ready or each.script == script for each in same)
        return bool(self._rested(key, plan)) or loads_or_is

    def _look(self, at: float) -> None:
        """Begin warm processes after runs that have recorded what they imported, or have ended."""
        self._look_at = at + RECORD_SECONDS
        for name, one in list(self._recording.items()):
            path = one.plan["env"].get(VARIABLE, "")
            alive = proc.process(one.pid) is not None and proc.start_ticks(one.pid) == one.ticks
            if alive and at < one.until and not os.path.exists(path):
                continue
            del self._recording[name]
            room = len(self._all) < one.plan["warm"]["processes"] or self._make_room()
            if room and not self._has(one.plan):
                self._begin(one.plan, IMPORTS_MAX)

    # --- time -------------------------------------------------------------------------------------

    def wake_at(self) -> float:
        """Return when `tick` is due (monotonic seconds), infinite if never."""
        now = time.monotonic()
        due = min((_due(each, now) for each in self._all.values()), default=float("inf"))
        return min(due, self._look_at) if self._recording else due

    def tick(self, at: float) -> None:
        """End what is idle or has been loading for too long."""
        if self._recording and at >= self._look_at:
            self._look(at)
        if not self._all:
            return
        self._listen()
        for warm in list(self._all.values()):
            if warm.ready and at >= warm.used_at + warm.plan["warm"]["idle_s"]:
                self._drop(warm)
            elif not warm.ready and at >= warm.used_at + IMPORT_SECONDS_MAX:
                self._give_up(warm, f"its imports took over {IMPORT_SECONDS_MAX:.0f} s")
            elif not warm.ready and (why := _too_large(warm)):
                self._give_up(warm, why)

    def ended(self, pid: int) -> None:
        """Take note of the end of a child."""
        if pid in self._all:
            self._listen()
        warm = self._all.pop(pid, None)
        if warm is not None:
            warm.channel.close()
            self._rest(warm, ENDED)
            _say(f"warm process {pid} for {warm.script} is of no use: {ENDED}")

    # --- one of them ------------------------------------------------------------------------------

    def _begin(self, plan: Mapping[str, Any], most: int) -> None:
        env = {name: value for name, value in plan["env"].items() if not is_per_run(name)}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = null = -1
        kept = keep_on(plan["env"].get("SKEP_CPUS", ""))
        try:
            words = os.memfd_create("skep-warm", os.MFD_CLOEXEC)
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            process = subprocess.Popen(
                [plan["argv"][0], "-m", "skep_job.warm", str(theirs.fileno())],
                stdin=null,
                stdout=words,
                stderr=words,
                env=env,
                cwd=plan["workdir"],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            process.returncode = 0  # The runner reaps all its children itself.
            warm = WarmProcess(process.pid, ours, key_of(plan), plan["warm"]["script"])
            self._all[process.pid] = warm
            self.helpers[process.pid] = True
            warm.plan, warm.most = plan, most
            first = {
                "script": script_of(plan),
                "env": env,
                "record": plan["env"].get(VARIABLE, ""),
                "per_run": PER_RUN,
                "prefixes": PREFIXES,
                "most": most,
                "seconds_min": SECONDS_MIN,
            }
            ours.send(json.dumps(first).encode())
            ours.setblocking(False)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _say(f"no warm process for {script_of(plan)}: {error}")
            if not any(each.channel is ours for each in self._all.values()):
                ours.close()
        finally:
            os.sched_setaffinity(0, kept)
            theirs.close()
            for each in (words, null):
                if each >= 0:
                    os.close(each)

    def _listen(self) -> None:
        """Take what warm processes have said."""
        for warm in list(self._all.values()):
            message = _heard(warm.channel)
            if message is None:
                continue
            if isinstance(message.get("ready"), list):
                self._became_ready(warm, message)
            else:
                self._give_up(warm, _text(message.get("useless", "it makes no sense")), message)

    def _became_ready(self, warm: WarmProcess, message: Mapping[str, Any]) -> None:
        why, size = _too_large(warm), proc.resident_bytes(warm.pid)
        if why:
            self._give_up(warm, why)
            return
        warm.ready, warm.used_at = True, time.monotonic()
        left = f"; {_text(message['left'])}" if message.get("left") else ""
        made = f"{len(message['ready'])} and {_text(message.get('late', 0))} imports"
        _say(f"warm process {warm.pid} for {warm.script}: {made}, {size} bytes{left}")

    def _give_up(
        self, warm: WarmProcess, why: str, message: Mapping[str, Any] | None = None
    ) -> None:
        """End a warm process that is of no use; begin one with fewer imports where that may be."""
        self._drop(warm)
        most = message.get("most", 0) if message else 0
        _say(f"warm process {warm.pid} for {warm.script} is of no use: {why}")
        if not warm.ready and isinstance(most, int) and 0 < most < warm.most:
            self._begin(warm.plan, most)
        elif not warm.ready:
            self._rest(warm, why)

    def _drop(self, warm: WarmProcess) -> None:
        self._all.pop(warm.pid, None)
        warm.channel.close()
        _kill_session(warm.pid)

    def _make_room(self) -> bool:
        """End the warm process that was of use longest ago; return whether one could be ended."""
        now = time.monotonic()
        idle = [each for each in self._all.values() if now - each.used_at >= KEPT_SECONDS_MIN]
        idle = [each for each in idle if each.ready]
        if idle:
            self._drop(min(idle, key=lambda each: each.used_at))
        return bool(idle)

    def _rest(self, warm: WarmProcess, why: str) -> None:
        if len(self._rests) >= RESTS_MAX:
            del self._rests[next(iter(self._rests))]
        name = f"{warm.key} {warm.script}"
        self._rests[name] = time.monotonic() + REST_SECONDS, why

    def _rested(self, key: str, plan: Mapping[str, Any]) -> str:
        name = f"{key} {plan['warm']['script']}"
        until, why = self._rests.get(name, (0.0, ""))
        if until and until <= time.monotonic():
            del self._rests[name]
            return ""
        return why

    # --- a rank -----------------------------------------------------------------------------------

    def _ask(
        self, warm: WarmProcess, plan: Mapping[str, Any], mark: int, ends: Sequence[int]
    ) -> int | str:
        """Have a warm process fork a rank; return its pid, or why there is none."""
        until, since = time.monotonic() + plan["warm"]["wait_s"], _ticks_now()
        request = {name: plan[name] for name in ("argv", "env", "workdir")}
        text = json.dumps(request).encode()
        if len(text) > MESSAGE_BYTES_MAX:
            return f"its arguments and variables are more than {MESSAGE_BYTES_MAX} bytes"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(warm.channel, [text], [*ends, theirs.fileno()])
                except OSError as error:
                    self._drop(warm)
                    return f"its warm process does not listen: {error.strerror}"
            answer = _awaited(warm.channel, until)
            if "useless" in answer:
                self._drop(warm)
                return f"its warm process was ended: {_text(answer['useless'])}"
            if "cold" in answer:
                return _text(answer["cold"])
            said = _awaited(ours, until) if "pid" in answer else {}
            if "cold" in said:  # That process ends by itself.
                if said.get("other") is True and warm.script == plan["warm"]["script"]:
                    self._drop(warm)  # The script has changed: another one is begun for it.
                return _text(said["cold"])
            pid = answer.get("pid")
            if not isinstance(pid, int) or not _is_new(pid, since, self.helpers):
                self._drop(warm)
                return "its warm process has died, or was silent for too long"
            if "ready" not in said or not self._let_begin(pid, ours, plan, mark):
                self.helpers[pid] = True
                _kill_session(pid)
                return "the process that was forked for it did not get ready"
        warm.used_at = time.monotonic()
        return pid

    def _let_begin(
        self, pid: int, control: socket.socket, plan: Mapping[str, Any], mark: int
    ) -> bool:
        """Give a rank its mark and processors, and have it begin; return whether it does."""
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_RTTIME)
            if hard == resource.RLIM_INFINITY:
                resource.prlimit(pid, resource.RLIMIT_RTTIME, (mark, hard))
            wanted = cpus_of(plan["env"])
            if wanted:
                os.sched_setaffinity(pid, wanted)
            return control.send(b"!") == 1
        except OSError:
            return False


def unfit(plan: Mapping[str, Any]) -> str:
    """Return why a run must be executed whatever warm processes there are, or an empty text."""
    argv, env = plan["argv"], plan["env"]
    if tuple(argv[1:SCRIPT_AT]) != MODULE or len(argv) <= SCRIPT_AT or argv[3].startswith("-"):
        return "only a script of Python starts from a warm process"
    tool = next((name for name in TOOLS if env.get(name)), None)
    if tool is not None:
        return f"{tool} has something beside the script run in the interpreter"
    if not env.get("PYTHONHASHSEED", "").isdecimal():
        return "PYTHONHASHSEED is to be drawn for each process"
    paths = env.get("PYTHONPATH", "").split(":") if env.get("PYTHONPATH") else []
    if not all(os.path.isabs(path) for path in paths):
        return "PYTHONPATH has paths that depend on the working directory"
    return ""


def is_per_run(name: str) -> bool:
    """Return whether a variable differs between the ranks of a job."""
    return name in PER_RUN or name.startswith(PREFIXES)


def script_of(plan: Mapping[str, Any]) -> str:
    """Return the path of the script of a run."""
    path: str = os.path.join(plan["workdir"], plan["argv"][SCRIPT_AT])
    return os.path.normpath(path)


def key_of(plan: Mapping[str, Any]) -> str:
    """Return what runs have in common that may start from the same warm process.

    Of the processors it is the number: which ones they are, a rank is told.
    """
    env = sorted((name, value) for name, value in plan["env"].items() if not is_per_run(name))
    parts = [plan["warm"]["whose"], plan["argv"][0], len(cpus_of(plan["env"])), env]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def record_of(plan: Mapping[str, Any]) -> str:
    """Return the name of the file in which a run records what it imported."""
    name = f"{key_of(plan)} {plan['warm']['script']}"
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def recorded(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a plan with which a run that may start from a warm process records what it imports."""
    if not plan.get("warm") or unfit(plan):
        return plan
    folder = os.path.join(plan["env"].get(proc.NODE_VARIABLE, ""), RECORDS)
    path = os.path.join(folder, record_of(plan))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        kept = [os.path.join(folder, name) for name in os.listdir(folder)]
        for old in sorted(kept, key=_changed_at)[: max(len(kept) - RECORDS_MAX, 0)]:
            os.unlink(old)
    except OSError:
        pass  # Then nothing is recorded, and each run imports by itself what comes late.
    return {**plan, "env": {**plan["env"], VARIABLE: path}}


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def cpus_of(env: Mapping[str, str]) -> set[int]:
    """Return the processors that a run is kept on; none: on any."""
    named = {int(cpu) for cpu in env.get("SKEP_CPUS", "").split(",") if cpu.isdecimal()}
    return named & os.sched_getaffinity(0)


def _too_large(warm: WarmProcess) -> str:
    """Return that a warm process takes more memory than it may, or an empty text."""
    size, most = proc.resident_bytes(warm.pid), warm.plan["warm"]["bytes"]
    return f"it takes {size} bytes of memory, and may have {most}" if size > most else ""


def _due(warm: WarmProcess, now: float) -> float:
    if warm.ready:
        return warm.used_at + float(warm.plan["warm"]["idle_s"])
    return min(now + LOOK_SECONDS, warm.used_at + IMPORT_SECONDS_MAX)


def _heard(channel: socket.socket) -> dict[str, Any] | None:
    """Return what was said, without waiting; None: nothing, or only its end."""
    try:
        packet = channel.recv(MESSAGE_BYTES_MAX)
        message = json.loads(packet) if packet else None
    except (OSError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _awaited(channel: socket.socket, until: float) -> dict[str, Any]:
    """Return what is said before a time (monotonic seconds); empty: nothing."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(max(until - time.monotonic(), 0) * 1000):
        return {}
    return _heard(channel) or {}


def _is_new(pid: int, since: int, helpers: Mapping[int, bool]) -> bool:
    """Return whether a process is a child of this one that has begun since, and is of no run."""
    one = proc.process(pid)
    own = one is not None and one.ppid == os.getpid() and one.ticks >= since
    return own and pid not in helpers and proc.mark(pid) is None


def _ticks_now() -> int:
    """Return the time as processes' starts are counted, rounded down."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")) - 1


def _text(said: Any) -> str:
    """Return what a warm process said, for people: bounded, without control characters."""
    text = str(said)[:TEXT_MAX]
    return "".join(each if each.isprintable() else "?" for each in text)


def _kill_session(pid: int) -> None:
    """End a process of ours, and what shares its session."""
    found = [one for one in proc.processes().values() if pid in (one.pid, one.sid)]
    for one in found:
        proc.send(one, signal.SIGKILL)


def _say(text: str) -> None:
    """Leave a word in the runner's log."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
