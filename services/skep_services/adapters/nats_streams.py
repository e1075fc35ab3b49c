"""The streams: how they are configured, and how they come into being exactly once.

A stream that vanished must never be made again by accident: an empty stream would look like a
cluster where nothing ever happened. So the first start leaves a marker file in the state folder;
with the marker there, a missing stream is an error that an operator has to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from skep.units import GIB, KIB, Duration, seconds
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE
from skep_services import durable
from skep_services.adapters.nats_api import (
    STREAM_NOT_FOUND,
    Answer,
    StreamInfo,
    ask,
    missing,
    refused,
)
from skep_services.adapters.nats_bus import NatsBus

SUBMIT_DUPLICATES = seconds(0.1)
"""How long the bus itself remembers a Nats-Msg-Id in SUBMIT: the least it accepts. Its memory is
one for the whole stream, so with more of it one tenant's key would swallow another tenant's
submission. Admission remembers the keys of each tenant for ever."""
DUPLICATES = seconds(3600)
"""The same for ADMIN and NODE, whose keys no other can choose: longer than any outage."""
FACT_DUPLICATES = seconds(120)
"""A fact log's writer resolves repetitions by sequence; the bus's memory is a short cut."""

SUBMIT_MESSAGE_MAX = 128 * KIB
"""A spec of at most 64 KiB, and its headers."""
ADMIN_MESSAGE_MAX = 512 * KIB
"""A cluster file with a thousand nodes."""
NODE_MESSAGE_MAX = 256 * KIB
FACT_MESSAGE_MAX = 600 * KIB
"""A record of at most 512 KiB, and its headers."""

SUBMIT_BYTES_MAX = 4 * GIB
"""A full stream refuses further messages, it never drops old ones. From a quarter of this on
decided submissions are taken out (`compaction`)."""
ADMIN_BYTES_MAX = GIB
NODE_BYTES_MAX = 4 * GIB
FACT_BYTES_MAX = 8 * GIB
"""Ten million jobs of some 800 bytes of facts."""

SEARCH_BYTES_MAX = 2 * GIB
"""A hundred thousand trials of some 20 KB of facts."""

PROFILE_BYTES_MAX = 2 * GIB
"""Three million measurements of some 700 bytes: at most one for each size and place of an attempt.
If each of 10,000 jobs a day is like none before, that is 7 MB a day, and enough for 300 days."""

ACCESS_BYTES_MAX = 2 * GIB
"""Four million lines of the audit log of some 500 bytes."""


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from stream to stream; everything else is the same for all."""

    name: str
    subjects: tuple[str, ...]
    message_max: int
    bytes_max: int
    duplicates: Duration
    deny_delete: bool = True
    """No single message can ever be taken out. The server never gives this up again."""
    latest_only: bool = False
    """Of each subject only the latest message is kept."""

    def config(self, replicas: int) -> dict[str, Any]:
        """Return the configuration as JetStream takes it."""
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "deny_delete": self.deny_delete,
            "max_msgs": -1,
            "max_age": 0,
            "max_bytes": self.bytes_max,
            "max_msg_size": self.message_max,
            "duplicate_window": self.duplicates,
            "num_replicas": replicas,
            **({"max_msgs_per_subject": 1} if self.latest_only else {}),
        }


SECRET_BYTES_MAX = GIB
"""Ten thousand secrets of their largest size."""
SECRET_MESSAGE_MAX = 64 * KIB
CODE_BYTES_MAX = 4 * GIB
"""Snapshots of four VCs that have as much as they may (`snapshot.VC_BYTES_MAX`). What no job names
any more is taken out."""
KEPT_BYTES_MAX = 4 * GIB
"""Two snapshots of each service, of ten million keys each."""


def _plan(name: str, message_max: int, bytes_max: int, duplicates: Duration) -> StreamPlan:
    """Return the plan of a stream.

    Of fact logs the repair takes out what is no record. Their hash chain shows if anything else is
    missing, and only `bootstrap` may delete.
    """
    return StreamPlan(
        name=name,
        subjects=subjects.STREAMS[name],
        message_max=message_max,
        bytes_max=bytes_max,
        duplicates=duplicates,
        deny_delete=name not in subjects.FACT_STREAMS,
    )


STREAM_PLANS = (
    _plan(subjects.SUBMIT, SUBMIT_MESSAGE_MAX, SUBMIT_BYTES_MAX, SUBMIT_DUPLICATES),
    _plan(subjects.ADMIN, ADMIN_MESSAGE_MAX, ADMIN_BYTES_MAX, DUPLICATES),
    _plan(subjects.NODE, NODE_MESSAGE_MAX, NODE_BYTES_MAX, DUPLICATES),
    _plan(subjects.ADMISSION, FACT_MESSAGE_MAX, FACT_BYTES_MAX, FACT_DUPLICATES),
    _plan(subjects.ALLOC, FACT_MESSAGE_MAX, FACT_BYTES_MAX, FACT_DUPLICATES),
    _plan(subjects.SEARCH, FACT_MESSAGE_MAX, SEARCH_BYTES_MAX, FACT_DUPLICATES),
    _plan(subjects.PROFILES, FACT_MESSAGE_MAX, PROFILE_BYTES_MAX, FACT_DUPLICATES),
    _plan(subjects.ACCESS, FACT_MESSAGE_MAX, ACCESS_BYTES_MAX, FACT_DUPLICATES),
    StreamPlan(
        name=subjects.KEPT,
        subjects=subjects.KEPT_SUBJECTS,
        message_max=FACT_MESSAGE_MAX,
        bytes_max=KEPT_BYTES_MAX,
        duplicates=FACT_DUPLICATES,
    ),
    StreamPlan(
        name=subjects.SECRETS,
        subjects=subjects.SECRET_SUBJECTS,
        message_max=SECRET_MESSAGE_MAX,
        bytes_max=SECRET_BYTES_MAX,
        duplicates=FACT_DUPLICATES,
        deny_delete=False,
        latest_only=True,
    ),
    StreamPlan(
        name=subjects.CODE,
        subjects=subjects.CODE_SUBJECTS,
        message_max=FACT_MESSAGE_MAX,
        bytes_max=CODE_BYTES_MAX,
        duplicates=FACT_DUPLICATES,
        deny_delete=False,
        latest_only=True,
    ),
)

STORE_BYTES_MIN = sum(plan.bytes_max for plan in STREAM_PLANS)
"""What the server's `max_file` must allow, because it reserves each stream's limit."""

assert {plan.name for plan in STREAM_PLANS} == {
    *subjects.STREAMS,
    subjects.KEPT,
    subjects.SECRETS,
    subjects.CODE,
}


class DriftedStreamError(Exception):
    """A stream is configured otherwise than Skep needs; the text names every difference."""


async def bootstrap_streams(
    bus: NatsBus, marker: Path, replicas: int = 1, plans: tuple[StreamPlan, ...] = STREAM_PLANS
) -> None:
    """Make sure that every stream exists as planned; create those that never existed.

    One that an earlier version made, which kept fewer subjects, is made to keep all of them.

    Args:
        bus: The bus, as `bootstrap`.
        marker: The file (JSON, in the state folder) that names the streams created so far. New ones
            are added to it.
        replicas: How many servers keep each stream.
        plans: The streams.

    Raises:
        missing: A MissingStreamError: a stream that the marker names is gone.
        refused: A RefusedError: the server does not make or change a stream.
        DriftedStreamError: A stream is not as planned.
        ValueError: The marker cannot be read.
    """
    created = _read_marker(marker)
    for plan in plans:
        config = plan.config(replicas)
        info = await ask(bus.link, f"STREAM.INFO.{plan.name}", None, StreamInfo)
        if info.error is not None:
            if info.error.err_code != STREAM_NOT_FOUND:
                raise refused(info.error, f"stream {plan.name}")
            if plan.name in created:
                raise missing(plan.name)
            answer = await ask(bus.link, f"STREAM.CREATE.{plan.name}", config, Answer)
            if answer.error is not None:
                raise refused(answer.error, f"creating stream {plan.name}")
            info = await ask(bus.link, f"STREAM.INFO.{plan.name}", None, StreamInfo)
        elif _grows(config, info.config):
            wider = {**info.config, "subjects": config["subjects"]}
            answer = await ask(bus.link, f"STREAM.UPDATE.{plan.name}", wider, Answer)
            if answer.error is not None:
                raise refused(answer.error, f"widening stream {plan.name}")
            info = await ask(bus.link, f"STREAM.INFO.{plan.name}", None, StreamInfo)
        _check_drift(plan.name, config, info.config)
    names = [plan.name for plan in plans]
    if not set(names) <= set(created):
        every = [*created, *(name for name in names if name not in created)]
        durable.write(str(marker), msgspec.json.encode(every))


def _grows(planned: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a stream keeps some of the subjects that it should, and no others."""
    return set(found.get("subjects", ())) < set(planned["subjects"])


def _check_drift(name: str, planned: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    differences = [
        f"{key} is {found.get(key)!r}, needed {value!r}"
        for key, value in planned.items()
        if found.get(key, _absent(value)) != value
        # Earlier versions denied it of every stream, for ever: there, foreign records stay.
        and not (key == "deny_delete" and found.get(key))
    ]
    if differences:
        message = (
            f"stream {name} is configured otherwise than this version of Skep needs: "
            f"{'; '.join(differences)}. Change it by hand, after a backup."
        )
        raise DriftedStreamError(message)


def _absent(value: object) -> object:
    """Return what a field means that the server leaves out of its answer."""
    return type(value)() if isinstance(value, bool | int | str) else None


def _read_marker(marker: Path) -> list[str]:
    try:
        text = marker.read_bytes()
    except FileNotFoundError:
        return []
    try:
        return msgspec.json.decode(text, type=list[str])
    except UNDECODABLE as error:
        message = f"{marker}: not a list of streams ({error}); restore it from a backup"
        raise ValueError(message) from error
