"""Settings, exit codes and health of a service's main."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skep.wire import subjects
from skep_services import service
from skep_services.adapters import wiring
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.links import ForeignSeen
from skep_services.ports import CorruptLogError, Delivery, RefusedError, SupersededError
from skep_services.shell import Shell
from tests.shell.test_shell import Counter, Seen, none_failed

DEADLINE_S = 120.0
NEEDED = {"SKEP_NATS_URL": "nats://127.0.0.1:1", "SKEP_NATS_USER": "x", "SKEP_NATS_PASSWORD": "p"}


def test_settings_name_what_is_missing(tmp_path: Path) -> None:
    whole = {**NEEDED, "SKEP_STATE": str(tmp_path / "new")}
    chosen = service.settings("admission", whole)
    assert (chosen.identity, chosen.state.is_dir()) == ("x", True)
    for name in whole:
        with pytest.raises(service.ConfigurationError, match=f"{name} is not set"):
            service.settings("admission", {key: whole[key] for key in whole if key != name})
    (tmp_path / "file").write_text("")
    with pytest.raises(service.ConfigurationError, match="SKEP_STATE"):
        service.settings("admission", {**whole, "SKEP_STATE": str(tmp_path / "file" / "in")})


def test_a_password_may_come_in_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    whole = {**NEEDED, "SKEP_STATE": str(tmp_path), "SKEP_NATS_PASSWORD_FILE": str(secret)}
    with pytest.raises(service.ConfigurationError, match="SKEP_NATS_PASSWORD_FILE"):
        service.settings("admission", whole)
    secret.write_text("\n")
    with pytest.raises(service.ConfigurationError, match="is empty"):
        service.settings("admission", whole)
    secret.write_text("from a file\n")
    assert service.settings("admission", whole).password == "from a file"


@pytest.mark.parametrize("text", ["x", "x-2,", "a b", "x-2,x"])
def test_peers_must_be_the_names_of_others(text: str, tmp_path: Path) -> None:
    whole = {**NEEDED, "SKEP_STATE": str(tmp_path)}
    assert service.settings("admission", {**whole, "SKEP_PEERS": "x-2, x-3"}).peers == (
        "x-2",
        "x-3",
    )
    with pytest.raises(service.ConfigurationError, match="SKEP_PEERS"):
        service.settings("admission", {**whole, "SKEP_PEERS": text})


PROGRAM = """
import sys
from skep_services import ports, service
async def main(chosen, log):
    fatal = service.Fatal()
    what = sys.argv[1]
    if what == "wait":
        log.info("ready")
        import asyncio
        await fatal.guard(asyncio.Event().wait())
    error = {"superseded": ports.SupersededError, "corrupt": ports.CorruptLogError,
             "taken": service.NameTakenError, "bus": OSError}[what]
    fatal(error("because"))
    fatal(RuntimeError("a second word counts for nothing"))
    import asyncio
    await fatal.guard(asyncio.Event().wait())
service.run("admission", main)
"""


def _run(what: str, state: Path, **env: str) -> subprocess.Popen[str]:
    whole = {**os.environ, **NEEDED, "SKEP_STATE": str(state), **env}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, what], env=whole, text=True, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    "what, code", [("superseded", 71), ("corrupt", 72), ("taken", 73), ("bus", 70)]
)
def test_the_exit_code_says_why(what: str, code: int, tmp_path: Path) -> None:
    process = _run(what, tmp_path)
    _, told = process.communicate(timeout=DEADLINE_S)
    lines = [json.loads(line) for line in told.splitlines()]
    assert process.returncode == code, told
    assert "because" in lines[0]["error"]
    assert lines[-1]["event"] == "stopped"
    assert lines[-1]["code"] == code


def test_bad_configuration_is_told_and_ends_with_64(tmp_path: Path) -> None:
    process = _run("wait", tmp_path, SKEP_NATS_URL="")
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 64
    assert "SKEP_NATS_URL is not set" in told


def test_sigterm_ends_with_0(tmp_path: Path) -> None:
    process = _run("wait", tmp_path)
    assert process.stderr is not None
    assert "ready" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, told


@pytest.mark.asyncio
async def test_guard_raises_what_cannot_be_mended_from_within() -> None:
    fatal = service.Fatal()
    fatal(OSError("gone"))
    with pytest.raises(service.BusLostError, match="gone"):
        await fatal.guard(asyncio.Event().wait())  # type: ignore[arg-type]
    for error in (SupersededError("x"), CorruptLogError("y")):
        fatal = service.Fatal()
        fatal(error)
        with pytest.raises(type(error)):
            await fatal.guard(asyncio.Event().wait())  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_guard_ends_with_its_work() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    await service.Fatal().guard(work())


@pytest.mark.asyncio
async def test_health_is_answered(tmp_path: Path) -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock)

    def fail(error: Exception) -> None:
        raise error

    bus = MemoryBus(broker, "admission", fail)
    shell = Shell(
        Counter(),
        bus=bus,
        clock=clock,
        observer=Seen(),
        owner="o",
        failures=none_failed(),
        foreign=ForeignSeen(Seen().report),
    )
    chosen = service.settings(
        "admission", {**NEEDED, "SKEP_STATE": str(tmp_path), "SKEP_NATS_USER": "admission"}
    )
    await service.answer_health(bus, chosen, shell, subjects.health(chosen.identity))
    asker = MemoryBus(broker, "gateway", fail)
    answer = await asker.request("skep.v1.health.admission", b"", {}, DEADLINE_S)
    assert answer is not None
    told: dict[str, Any] = json.loads(answer.payload)
    assert (told["service"], told["identity"], told["pid"]) == (
        "admission",
        "admission",
        os.getpid(),
    )
    await bus.send("skep.v1.health.admission", b"", {})
    await bus.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [RefusedError("not yours"), ConnectionError("gone")])
async def test_what_if_that_cannot_be_answered_is_said(error: Exception, tmp_path: Path) -> None:
    class Deaf(MemoryBus):
        async def listen(self, *_: Any) -> Any:
            raise error

    class Log:
        def error(self, event: str, **more: Any) -> None:
            said.append((event, more["error"]))

    async def answer(_: Delivery) -> None:
        pass

    said: list[tuple[str, str]] = []
    ended: list[Exception] = []
    clock = ManualClock()
    bus = Deaf(MemoryBroker(clock), "allocator", ended.append)
    shell = Shell(
        Counter(),
        bus=bus,
        clock=clock,
        observer=Seen(),
        owner="x",
        failures=none_failed(),
        foreign=ForeignSeen(Seen().report),
    )
    shell.active.set()
    chosen = service.settings("allocator", {**NEEDED, "SKEP_STATE": str(tmp_path)})
    fatal: Any = ended.append
    await wiring._answer(chosen, Log(), shell, bus, lambda _: answer, fatal)
    if isinstance(error, RefusedError):
        assert (said, ended) == ([("what-if and plans are not answered", "not yours")], [])
    else:
        assert (said, ended) == ([], [error])
    await bus.close()
