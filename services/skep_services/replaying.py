"""A cluster's streams, live or exported, as what can be decided again.

NATS | file --> messages by stream --> logs of admission and allocator (chains verified)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skep.access.roles import HEARD as HEARD_OF_PEOPLE
from skep.machines.admission import HEARD_OF_ALLOC, AdmissionMachine
from skep.machines.allocator import HEARD_OF_ADMISSION, AllocatorMachine
from skep.machines.base import AnyMachine
from skep.machines.searches import SearchesMachine
from skep.wire import codec, subjects
from skep.wire.admin import SetVcs
from skep.wire.changes import AskOver, ChangeAsked, JobChanged
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import (
    AdmissionFact,
    Admitted,
    AllocatorFact,
    CancelAsked,
    CellsSet,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    Refused,
    RolesSeen,
    VcsSet,
)
from skep.wire.search_facts import SearchFact
from skep_lab.live_log.decide_again import Change, Log
from skep_lab.measures.summary import measure
from skep_lab.outcome import RunResult
from skep_services.adapters import exported
from skep_services.adapters.archive import Archive
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_read import read_stream
from skep_services.adapters.records import Chain
from skep_services.archiving import folder_of
from skep_services.pki.files import TlsError, TlsFiles, bus_files, named_files
from skep_services.ports import CorruptLogError, Delivery, LogRecord, MissingStreamError
from skep_services.servers import files
from skep_services.supervisor import home as folder

LIVE = "live"
Streams = dict[str, list[Delivery]]
Choice = tuple[str, dict[str, Any]]


class UnreachableError(Exception):
    """There is no bus to read from; the text says what to do."""


class Service(NamedTuple):
    """A service whose decisions can be made again."""

    stream: str
    facts: Any
    make: Callable[[], AnyMachine]
    wants: Mapping[str, tuple[type[Any], ...]]


SERVICES = {
    "admission": Service(
        subjects.ADMISSION,
        AdmissionFact,
        AdmissionMachine,
        {subjects.ACCESS: HEARD_OF_PEOPLE, subjects.ALLOC: HEARD_OF_ALLOC},
    ),
    "allocator": Service(
        subjects.ALLOC, AllocatorFact, AllocatorMachine, {subjects.ADMISSION: HEARD_OF_ADMISSION}
    ),
    "searches": Service(
        subjects.SEARCH,
        SearchFact,
        SearchesMachine,
        {
            subjects.ADMISSION: (Admitted, CancelAsked, ChangeAsked, Refused, RolesSeen),
            subjects.ALLOC: (AskOver, JobChanged, JobEnded, JobQueued, JobRan, JobRequeued),
        },
    ),
}
"""`wants` as in the services' own `FOLLOW`."""


UNREADABLE = (UnreachableError, exported.ExportError, CorruptLogError, MissingStreamError)
"""What reading and checking a cluster's streams raises."""


def read_from(source: str, home: str | None) -> Streams:
    """Return the streams of a cluster.

    Args:
        source: `live` for the cluster here, else the path of an export.
        home: The cluster's folder; None: the usual one, or the bus that SKEP_NATS_URL names.

    Raises:
        UnreachableError: There is no bus to read from.
        ExportError: The file is no export.
        MissingStreamError: A stream does not exist.
        OSError: The file cannot be read.
    """
    if source == LIVE:
        return asyncio.run(read_live(home))
    return exported.read(Path(source))


async def read_live(home: str | None) -> Streams:
    """Return the streams of the cluster in `home`, or of the bus that SKEP_NATS_URL names.

    Raises:
        UnreachableError: No cluster runs there, or its streams cannot be read.
        MissingStreamError: A stream does not exist.
    """
    options = link_options(home)
    lost: list[Exception] = []
    bus = await NatsBus.connect(options, lost.append, archive_here(home))
    try:
        return {stream: await read_stream(bus, stream) for stream in exported.STREAMS}
    except (TimeoutError, ConnectionError) as error:
        text = f"the bus at {','.join(options.servers)} cannot be read: {lost or error!r}"
        raise UnreachableError(text) from error
    finally:
        await bus.close()


def archive_here(home: str | None) -> Archive:
    """Return the archive of the cluster in `home`, which need not be there."""
    return Archive(folder_of(os.environ, folder.home_folder(home)))


def link_options(home: str | None, identity: str = "operator") -> LinkOptions:
    """Return how to reach the bus of the cluster in `home`, or the one that SKEP_NATS_URL names.

    Args:
        home: The cluster's folder; None: the bus of SKEP_NATS_URL, without one the usual folder.
        identity: The identity to log in with.

    Raises:
        UnreachableError: No cluster runs there.
    """
    url = os.environ.get("SKEP_NATS_URL", "")
    if url and home is None:
        credentials = os.environ.get("SKEP_NATS_CREDS", "")
        return LinkOptions(
            servers=tuple(url.split(",")),
            identity=os.environ.get("SKEP_NATS_USER", identity),
            password=os.environ.get("SKEP_NATS_PASSWORD", ""),
            credentials=Path(credentials) if credentials else None,
            tls=_files(url),
        )
    where = folder.home_folder(home)
    cluster = folder.read_cluster(where)
    if cluster is None or not folder.supervisor_alive(cluster):
        text = (
            f"no cluster runs in {where}: start it (`skep up`), name its folder (--home), or its "
            f"bus (SKEP_NATS_URL, SKEP_NATS_USER, SKEP_NATS_PASSWORD), or an export (--from FILE)"
        )
        raise UnreachableError(text)
    nats = cluster["nats"]
    servers = tuple(nats["url"].split(","))
    if files.has_server(where):
        # On a server of real machines identities are signed, and both sides have certificates.
        return LinkOptions(
            servers=servers,
            identity=identity,
            password="",
            credentials=Path(files.creds_path(where, identity)),
            tls=TlsFiles(
                ca=Path(files.tls_path(where, files.CA)),
                certificate=Path(files.tls_path(where, files.CERTIFICATE)),
                key=Path(files.tls_path(where, files.KEY)),
            ),
        )
    return LinkOptions(
        servers=servers,
        identity=identity,
        password=nats["users"][identity],
        tls=named_files(*(nats.get(name, "") for name in ("ca", "certificate", "key"))),
    )


def _files(url: str) -> TlsFiles | None:
    """Return the files of SKEP_TLS_* for a bus.

    Raises:
        UnreachableError: They are wrong, or the bus would be reached in plain text.
    """
    try:
        return bus_files(url, os.environ)
    except TlsError as error:
        raise UnreachableError(str(error)) from None


def records(streams: Streams, service: str) -> list[LogRecord]:
    """Return a service's records, without foreign messages.

    Raises:
        CorruptLogError: Its log is damaged.
    """
    which = SERVICES[service]
    chain = Chain(f"fact log {which.stream}", which.facts)
    found = [chain.read_at(one.payload, one.sequence) for one in streams[which.stream]]
    chain.refuse_doubt()
    return [record for record in found if not isinstance(record, str)]


def each_record(messages: Iterable[Delivery], service: str) -> Iterator[LogRecord]:
    """Yield a service's records, without foreign messages, one by one.

    Raises:
        CorruptLogError: Its log is damaged.
    """
    which = SERVICES[service]
    chain = Chain(f"fact log {which.stream}", which.facts)
    for one in messages:
        record = chain.read_at(one.payload, one.sequence)
        if not isinstance(record, str):
            yield record
    chain.refuse_doubt()


def log_of(streams: Streams, service: str) -> Log:
    """Return what a service decided on, and what it recorded.

    Raises:
        CorruptLogError: Its log is damaged.
    """
    messages = {
        stream: {
            one.sequence: codec.read(one.subject, one.payload, one.headers, one.sequence, one.at)
            for one in found
        }
        for stream, found in streams.items()
    }
    return Log(records(streams, service), messages, SERVICES[service].wants)


def noted_bytes(streams: Streams) -> dict[str, dict[str, int]]:
    """Return by service how many bytes its log has, and how many of them are noted inputs.

    Raises:
        CorruptLogError: A log is damaged.
    """
    told = {}
    for name, service in SERVICES.items():
        found = records(streams, name)
        told[name] = {
            "log": sum(len(one.payload) for one in streams[service.stream]),
            "noted": sum(len(one.noted) for one in found),
        }
    return told


def measures(result: RunResult) -> dict[str, Any]:
    """Return what came of the jobs of a run, in all and by VC: means over jobs, in seconds."""
    made = measure(result)
    return {
        "jobs": made.all.jobs,
        "ended": made.all.ended,
        "refused": made.all.refused,
        "jct_s": made.all.jct_s.mean,
        "queue_s": made.all.queue_s.mean,
        "makespan_s": made.makespan_s,
        "allocated": made.allocated,
        "preempted": made.all.preempted,
        "by_vc": {
            vc: {"jobs": group.jobs, "jct_s": group.jct_s.mean, "queue_s": group.queue_s.mean}
            for vc, group in made.by_vc.items()
        },
    }


def with_policies(choices: Mapping[str, Choice]) -> Change:
    """Return a change under which these VCs have other policies."""

    def vcs(of: Mapping[str, VirtualCluster]) -> dict[str, VirtualCluster]:
        return {
            name: msgspec.structs.replace(vc, policy=choices[name][0], options=choices[name][1])
            if name in choices
            else vc
            for name, vc in of.items()
        }

    def change(thing: Any) -> Any:
        match thing:
            case SetVcs() | VcsSet():
                return msgspec.structs.replace(thing, vcs=vcs(thing.vcs))
            case CellsSet():
                cluster = msgspec.structs.replace(thing.cluster, vcs=vcs(thing.cluster.vcs))
                asked = msgspec.structs.replace(thing.asked, vcs=vcs(thing.asked.vcs))
                return msgspec.structs.replace(thing, cluster=cluster, asked=asked)
            case _:
                return thing

    return change
