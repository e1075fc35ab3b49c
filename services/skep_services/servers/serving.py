"""`skep server run`: meets the other servers, then keeps the processes of this one up.

    lock -> the servers' port -> all servers known -> identities, bus, streams -> services

A server of three waits until it knows the other two, and says so; after that it starts at once,
whoever of the others is up. What is issued by the authority is looked at once a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from skep.wire import subjects
from skep.wire.admin import SetVcs
from skep.wire.codec import encode
from skep_services.adapters import nats_access, nats_jwt, nats_server, nats_version
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_claims import Resolver
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_streams import DriftedStreamError, bootstrap_streams
from skep_services.pki.files import Replaced, TlsError
from skep_services.ports import MissingStreamError, RefusedError
from skep_services.servers import bus, files, notify, plan, setup, sources, status, targets
from skep_services.servers.files import FilesError, ServerFile
from skep_services.servers.meeting import Meeting, ask_servers, newer
from skep_services.servers.meeting import own_tls as tls_of
from skep_services.supervisor import boot, retention, survivors
from skep_services.supervisor import home as folder
from skep_services.supervisor.run import Supervisor, say, write_state
from skep_services.supervisor.table import ClusterPlan

LOOK_EVERY_S = 0.5
"""Between two looks for servers that are still to come: a person waits."""
LOOK_LATER_EVERY_S = 5.0
TRY_EVERY_S = 0.5
ALARM_AFTER_S = 15.0
"""How long a stream may be missing or other than planned before that is an alarm: two elections."""
CHECK_EVERY_S = 2.0
"""How often it is looked whether this machine's certificate was replaced."""
RENEW_EVERY_S = 24 * 3600.0

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 64


def run(home: str) -> int:
    """Run a server until it is asked to stop; return the exit code.

    Args:
        home: The state folder.

    Raises:
        FilesError: There is no server in it, or another process runs it.
    """
    file = files.read_server(home)
    lock = take_lock(home)
    try:
        others = [one for one in file.members if one.name != file.name]
        gateways = [one.url("https", one.ports.gateway) for one in others]
        if refused(home, gateways, file.name):
            return EXIT_CONFIGURATION
        return asyncio.run(_run(home, file))
    finally:
        os.close(lock)


def refused(home: str, gateways: Iterable[str], who: str) -> bool:
    """Return whether this version cannot be in one cluster with others; the log says why.

    Args:
        home: The state folder.
        gateways: The addresses of gateways of the cluster.
        who: This machine, for the log.
    """
    try:
        why = status.apart(Path(files.tls_path(home, files.CA)), gateways, who)
    except TlsError:
        return False  # The code that needs the file says so.
    if why:
        say("not started", error=why)
        notify.tell(notify.status(why))
    return bool(why)


def take_lock(home: str) -> int:
    """Return a descriptor that holds the folder's lock until it is closed.

    Raises:
        FilesError: Another process holds it, or the folder cannot be used.
    """
    try:
        lock = os.open(folder.lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = f"{error.filename} cannot be used: {error.strerror}"
        raise FilesError(text) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        text = f"another `skep` runs in {home}: `systemctl status skep-server`, or stop it"
        raise FilesError(text) from None
    return lock


async def _run(home: str, file: ServerFile) -> int:
    known: asyncio.Queue[ServerFile] = asyncio.Queue()
    meeting = Meeting(home, known.put_nowait, say)
    beating = asyncio.create_task(beat())
    setup.renew(home, file)
    await meeting.open()
    notify.tell(notify.READY)
    try:
        whole = await until_stopped(_all_known(home, known))
        if whole is None:
            return EXIT_OK
        return await _serve(home, whole, known)
    finally:
        notify.tell(notify.STOPPING)
        await meeting.close()
        beating.cancel()


async def beat() -> None:
    """Tell systemd that this process is alive, as often as its unit asks for."""
    every_s = notify.watchdog_every_s()
    while every_s is not None:
        notify.tell(notify.ALIVE)
        await asyncio.sleep(every_s)


async def until_stopped(work: Coroutine[Any, Any, ServerFile]) -> ServerFile | None:
    """Return what a coroutine returns, or None if SIGTERM or SIGINT came before.

    Args:
        work: The coroutine.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def _all_known(home: str, known: asyncio.Queue[ServerFile]) -> ServerFile:
    """Return this server's file once all servers are in it."""
    told = ""
    while True:
        file = files.read_server(home)
        if file.whole:
            return file
        missing = file.size - len(file.members)
        text = f"waiting for {missing} of {file.size} servers to join (`skep server token`)"
        if text != told:
            told = text
            say("waiting for servers", members=[one.name for one in file.members], size=file.size)
            notify.tell(notify.status(text))
            write_state(home, "starting", text)
        await look_around(home, file)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(known.get(), LOOK_EVERY_S)


async def look_around(home: str, file: ServerFile) -> ServerFile:
    """Ask the other servers who the servers are; return this server's file with the answer.

    Args:
        home: The state folder; the file there is replaced if another knows more.
        file: The server.
    """
    others = [one for one in file.members if one.name != file.name]
    answers = await asyncio.gather(*(ask_servers(home, one) for one in others))
    sources.note(home, [told.seen for told in answers if told is not None])
    for told in answers:
        found = newer(file, told) if told is not None else file
        if found is not file:
            files.write(files.server_path(home), found)
            say("servers known", members=[one.name for one in found.members])
            file = found
    return file


async def _serve(home: str, file: ServerFile, known: asyncio.Queue[ServerFile]) -> int:
    binary = nats_server.binary()
    os.makedirs(boot.marker_path(home).parent, mode=folder.FOLDER_MODE, exist_ok=True)
    try:
        nats_version.accept(binary, boot.marker_path(home).parent)
    except nats_version.ServerVersionError as error:
        say("bus not started", error=str(error))
        return EXIT_CONFIGURATION
    write_all(home, file)
    notifies = await asyncio.to_thread(_notifies, home)
    children = plan.server_plan(file, home, str(binary), notifier=notifies)
    await asyncio.to_thread(stop_survivors, home, children)

    kept = file.retention

    async def look_after(reload: Callable[[], None]) -> None:
        notify.tell(notify.status("up"))
        await asyncio.gather(
            _always("certificate", lambda: _renew_certificate(home, reload)),
            _always("servers", lambda: _follow_servers(home, known, reload)),
            # One server archives; the name goes to the server that takes its place.
            *([retention.watch(home, kept, plan.archive_env(file))] if file.number == 1 else []),
        )

    supervisor = Supervisor(
        home, children, prepare=lambda: prepare(home, file), stop_jobs=_no_jobs, admit=look_after
    )
    return await supervisor.run()


def _notifies(home: str) -> bool:
    """Return whether the notifier runs here; jobs do not wait for a file that cannot be used."""
    if not targets.has(home):
        return False
    if why := targets.trouble(home):
        say("notifier not started", error=why)
    return not why


def stop_survivors(home: str, children: ClusterPlan) -> None:
    """End what a killed `skep server run` left: two of a name take each other's messages.

    systemd has ended them with their unit; what else may have started this has not.

    Args:
        home: The state folder.
        children: The processes of the server.
    """
    found = survivors.find(home, children.every())
    if found:
        say("stopping what a killed supervisor left", processes=sorted(found))
        survivors.stop_in_order(found, children.bus.name)


async def _no_jobs() -> list[str]:
    """Stop nothing: jobs are on nodes, and go on without servers."""
    return []


def write_all(home: str, file: ServerFile) -> None:
    """Write what the processes of a server read.

    Args:
        home: The state folder.
        file: The server.
    """
    shared = setup.read_secrets(home)
    made = setup.write_identities(home, file)
    if made:
        say("identities made", identities=made)
    setup.write_cluster(home, file, shared)
    bus.write_config(home, file, shared)
    os.makedirs(os.path.dirname(plan.tokens_path(home)), mode=folder.FOLDER_MODE, exist_ok=True)
    folder.write_json(plan.tokens_path(home), {shared.operator: nats_access.OPERATOR})


async def prepare(home: str, file: ServerFile) -> None:
    """Make the streams that never existed, and publish the first virtual clusters, once.

    It waits for the bus: servers that have only just met have no leader for some seconds.

    Args:
        home: The state folder.
        file: The server.

    Raises:
        MissingStreamError: A stream is gone.
        DriftedStreamError: A stream is not as it should be.
    """
    told, alarmed_at = "", 0.0
    while True:
        try:
            await _prepare(home, file)
        except (MissingStreamError, DriftedStreamError) as error:
            # Servers make the streams at the same time: one that was just made is not whole yet.
            alarmed_at = alarmed_at or time.monotonic()
            if time.monotonic() - alarmed_at > ALARM_AFTER_S:
                raise
            say("streams not as they should be yet", error=str(error))
            await asyncio.sleep(TRY_EVERY_S)
        except (AwaitedError, RefusedError, ConnectionError, TimeoutError) as error:
            alarmed_at = 0.0
            awaited = isinstance(error, AwaitedError)
            text = str(error) if awaited else f"waiting for the bus: {error}"
            if text != told:
                told = text
                say("not prepared yet", error=str(error))
                notify.tell(notify.status(text))
                write_state(home, "starting", text if awaited else "")
            await asyncio.sleep(TRY_EVERY_S)
        else:
            return


class AwaitedError(Exception):
    """The streams of a backup have yet to come; the text says how."""


async def _prepare(home: str, file: ServerFile) -> None:
    now = files.read_server(home)
    if now.awaits_streams and (await look_around(home, now)).awaits_streams:
        text = "waiting for the streams of the backup: `skep restore FILE --bus` on a server"
        raise AwaitedError(text)
    link = await connect(home, file, nats_access.BOOTSTRAP)
    try:
        await bootstrap_streams(link, boot.marker_path(home), file.size)
    finally:
        await link.close()
    await push_services(home, file)
    if not file.vcs or await asyncio.to_thread(os.path.exists, folder.published_path(home)):
        return
    wanted = encode(
        SetVcs(
            vcs=file.vcs,
            chains=file.chains,
            pins=file.pins,
            quarantine=file.quarantine,
            volumes=file.volumes,
        )
    )
    link = await connect(home, file, nats_access.OPERATOR)
    try:
        # The key is of this cluster's first start: published twice, it counts once.
        await link.publish(subjects.admin("vcs"), wanted, f"vcs-first-{file.cluster}", {})
    finally:
        await link.close()
    folder.write_text(folder.published_path(home), wanted.decode())
    say("virtual clusters published", vcs=list(file.vcs))


async def push_services(home: str, file: ServerFile) -> None:
    """Have the bus know what this version of Skep's services export, if it knows otherwise.

    Raises:
        ConnectionError: No bus server answers.
    """
    _, account = bus.first_accounts(file)
    link = await connect(home, file, nats_access.CLAIMS)
    try:
        keys = setup.bus_keys(home)
        resolver = Resolver(link.link, keys, file.size, lambda: int(time.time()))
        known = nats_jwt.claims_of(await resolver.token(account.name))
        wanted = nats_jwt.claims_of(keys.account_token(account, known.iat))
        if known.nats["exports"] != wanted.nats["exports"]:
            await resolver.push(account)
            say("exports of the services changed")
    finally:
        await link.close()


async def connect(home: str, file: ServerFile, identity: str) -> NatsBus:
    """Return the bus under an identity of this server.

    Raises:
        RefusedError: The bus refuses the login.
        ConnectionError: No server answered in time.
    """
    options = LinkOptions(
        servers=tuple(plan.bus_urls(file).split(",")),
        identity=identity,
        password="",
        credentials=Path(files.creds_path(home, identity)),
        tls=tls_of(home),
    )
    return await NatsBus.connect(options, _lost)


def _lost(error: Exception) -> None:
    say("the bus connection is lost", error=str(error))


async def _always(what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do what is beside the services; again if it fails, as on a full disk: they go on."""
    while True:
        try:
            await work()
        except Exception as error:
            say("not looked after", what=what, error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(LOOK_LATER_EVERY_S)


async def _renew_certificate(home: str, reload: Callable[[], None]) -> None:
    """Issue the certificate anew in time, and have the bus read a new one, until cancelled."""
    replaced, looked_at = Replaced(tls_of(home).paths), time.monotonic()
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        if time.monotonic() - looked_at >= RENEW_EVERY_S:
            looked_at = time.monotonic()
            await asyncio.to_thread(setup.renew, home, files.read_server(home))
        if replaced.since_asked():
            say("certificate replaced: the bus reads it")
            reload()


async def _follow_servers(
    home: str, known: asyncio.Queue[ServerFile], reload: Callable[[], None]
) -> None:
    """Have the bus know servers that took another's place, until cancelled."""
    seen = files.read_server(home)
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(known.get(), LOOK_LATER_EVERY_S)
        file = await look_around(home, files.read_server(home))
        if file.revision == seen.revision:
            continue
        seen = file
        say("servers changed", members=[one.name for one in file.members])
        await asyncio.to_thread(write_all, home, file)
        reload()
