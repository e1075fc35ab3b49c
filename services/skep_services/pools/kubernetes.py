"""The pods of a pool: a picture of them that a watch keeps, and requests that change them.

    list ──▶ watch ──▶ event by event       after a minute, or when it breaks: list again
    create                                  never during a list, which would miss it

Nothing is decided by a picture that may be old: while there is no watch, every question fails. A
name is chosen before it is asked for and kept until the answer is known, so that a request whose
answer was lost is not made twice.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from skep.pools import RUNS, WAITS, Allocation
from skep_services.adapters.kubernetes import (
    BUSY,
    CONFLICT,
    NOT_FOUND,
    Access,
    KubernetesApi,
    KubernetesError,
)
from skep_services.pools import kubernetes_pod
from skep_services.pools.kubernetes_pod import Wanted
from skep_services.pools.source import SourceError

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""As Kubernetes makes names: no word comes of it."""
MARK_CHARS = 8
AGAIN_FIRST_S, AGAIN_MAX_S = 0.2, 10.0
"""Between one try to list and watch and the next."""
PICTURE_WITHIN_S = 10.0
"""A watch that has ended is begun again in less."""
ANSWER_WITHIN_S = 60.0
TEXT_CHARS_MAX = 300
CLOSING_TURNS = 10
"""A connection that is closed is gone a few turns of the loop later."""
T = TypeVar("T")


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of the metadata of a pod."""

    name: str
    uid: str
    resource_version: str
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class Told(msgspec.Struct, frozen=True):
    """Why a container does not run."""

    reason: str | None = None
    message: str | None = None


class Container(msgspec.Struct, frozen=True):
    """What is read of the status of a container."""

    state: dict[str, Told] = {}


class Condition(msgspec.Struct, frozen=True):
    """One condition of a pod."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of the status of a pod."""

    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[Container] | None = None


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of the spec of a pod."""

    node_name: str | None = None


class Pod(msgspec.Struct, frozen=True):
    """What is read of a pod."""

    metadata: Meta
    spec: Spec = Spec()
    status: Status = Status()

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, and only has to be removed."""
        return self.status.phase in ("Succeeded", "Failed") and not self.metadata.deletion_timestamp


class PodPool:
    """The pods of one pool. It is a context manager.

    Args:
        access: Where the API server is.
        wanted: What the pods are to be.
    """

    noun = "pod"
    token_minutes = 30.0
    """An image of many gigabytes is pulled in between."""

    def __init__(self, access: Access, wanted: Wanted) -> None:
        self.version = ""
        """Of the picture, as the API server counts."""
        self._api = KubernetesApi(access)
        self._wanted = wanted
        self._selector = kubernetes_pod.selector(wanted.pool)
        self._owns = re.compile(f"{re.escape(wanted.pool)}-[{ALPHABET}]{{{MARK_CHARS}}}")
        self._pods: dict[str, Pod] = {}
        self._ended: set[str] = set()
        self._ends_at: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self._name = ""
        self._not_before = 0.0
        self._trouble = "the API server has not been asked yet"
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._order = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._follower: asyncio.Task[None] | None = None

    def __enter__(self) -> PodPool:
        self._thread.start()
        try:
            self._call(self._open())
        except SourceError:
            self._end_thread()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(ANSWER_WITHIN_S)
        self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def allocations(self) -> list[Allocation]:
        """Return the pods that have not ended, and have not been told to by this.

        Raises:
            SourceError: The picture may be old.
        """
        now, found = time.monotonic(), []
        for pod in self._picture():
            meta = pod.metadata
            if pod.status.phase in ("Succeeded", "Failed") or meta.uid in self._ended:
                continue
            left_s = None
            if meta.deletion_timestamp:
                grace_s = meta.deletion_grace_period_seconds or 0
                # By the clock of this machine alone: those of others may differ.
                left_s = self._ends_at.setdefault(meta.uid, now + grace_s) - now
            state = RUNS if pod.spec.node_name else WAITS
            found.append(Allocation(meta.name, meta.name, state, left_s))
        return found

    def owns(self, node: str) -> bool:
        """Return whether a name is that of a node of this pool."""
        return self._owns.fullmatch(node) is not None

    def news(self) -> list[str]:
        """Remove pods that have ended; return why they did, and why others do not begin.

        Raises:
            SourceError: The picture may be old, or the API server refuses.
        """
        told = []
        for pod in self._picture():
            name, uid = pod.metadata.name, pod.metadata.uid
            if pod.is_over and uid not in self._ended:
                self.end(name)
                told.append(f"pod {name} has ended: {_why_over(pod.status)}")
                continue
            why = _why_not(pod.status)
            if why and self._told.get(uid) != why:
                told.append(f"pod {name} does not begin: {why}")
            self._told[uid] = why
        return told

    def ask(self) -> str:
        """Create a pod; return its name.

        Raises:
            SourceError: The API server cannot be asked, or refuses.
        """
        mark = "".join(secrets.choice(ALPHABET) for _ in range(MARK_CHARS))
        self._name = self._name or f"{self._wanted.pool}-{mark}"
        name = self._name
        self._call(self._create(name))
        self._name = ""
        return name

    def invite(self, number: str, invitation: str) -> bool:
        """Create the secret with the token of a pod; return False if there is one.

        Raises:
            SourceError: The API server cannot be asked, or refuses.
        """
        pod = self._pods.get(number)
        if pod is None:
            return False
        made = kubernetes_pod.secret(number, pod.metadata.uid, self._wanted, invitation)
        try:
            self._call(self._api.create_secret(made))
        except SourceError as error:
            if isinstance(error, RefusedError) and error.status == CONFLICT:
                return False
            raise
        return True

    def end(self, *numbers: str) -> None:
        """Delete pods.

        Raises:
            RefusedError: The API server cannot be asked, or refuses.
        """
        for number in numbers:
            pod = self._pods.get(number)
            if pod is None or pod.metadata.uid in self._ended:
                continue
            try:
                self._call(self._api.delete_pod(number, pod.metadata.uid))
            except RefusedError as error:
                if error.status not in (NOT_FOUND, CONFLICT):
                    raise
            self._ended.add(pod.metadata.uid)

    def wait(self, at_most_s: float) -> None:
        """Return when a pod has changed, or after some time."""
        with self._changed:
            self._changed.wait(at_most_s)

    def _picture(self) -> list[Pod]:
        with self._changed:
            self._changed.wait_for(lambda: not self._trouble, PICTURE_WITHIN_S)
            if self._trouble:
                raise SourceError(self._trouble)
            return list(self._pods.values())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop; return its result.

        Raises:
            SourceError: The API server does not answer in time, or is to be left alone.
            RefusedError: It refuses, or cannot be asked.
        """
        wait_s = self._not_before - time.monotonic()
        if wait_s > 0:
            work.close()
            text = f"the API server asks to be left alone for {wait_s:.0f} s"
            raise SourceError(text)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(ANSWER_WITHIN_S)
        except TimeoutError:
            future.cancel()
            text = f"the API server does not answer within {ANSWER_WITHIN_S:.0f} s"
            raise SourceError(text) from None
        except KubernetesError as error:
            if error.status == BUSY:
                self._not_before = time.monotonic() + error.retry_s
            raise RefusedError(str(error), error.status) from None

    async def _open(self) -> None:
        await self._api.__aenter__()
        self._follower = asyncio.create_task(self._follow())

    async def _close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._api.__aexit__()
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)

    async def _create(self, name: str) -> None:
        async with self._order:
            try:
                made = await self._api.create_pod(kubernetes_pod.pod(name, self._wanted))
            except KubernetesError as error:
                if error.status == CONFLICT:
                    # An earlier request was carried out, and its answer lost.
                    await self._list()
                    if name in self._pods:
                        return
                if 400 <= error.status < 500:
                    self._name = ""
                raise
            self._keep(_read(made))

    async def _follow(self) -> None:
        """Keep the picture: list, and watch until the watch ends, which it does by itself too."""
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                async with self._order:
                    await self._list()
                async with aclosing(self._api.watch_pods(self._selector, self.version)) as events:
                    async for event in events:
                        self._take(event.kind, event.pod)
                        pause_s = AGAIN_FIRST_S
            except KubernetesError as error:
                self._doubt(str(error))
                pause_s = max(pause_s, error.retry_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

    async def _list(self) -> None:
        listed = await self._api.list_pods(self._selector)
        pods = [_read(each) for each in listed.items]
        with self._changed:
            self._pods = {each.metadata.name: each for each in pods if self._is_ours(each)}
            self.version = listed.version
            self._trouble = ""
            there = {each.metadata.uid for each in pods}
            self._ended &= there
            for kept in (self._ends_at, self._told):
                for uid in [uid for uid in kept if uid not in there]:
                    del kept[uid]
            self._changed.notify_all()

    def _take(self, kind: str, raw: dict[str, Any]) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        pod = _read(raw)
        with self._changed:
            self.version = pod.metadata.resource_version
            if kind == "DELETED":
                known = self._pods.get(pod.metadata.name)
                if known is not None and known.metadata.uid == pod.metadata.uid:
                    del self._pods[pod.metadata.name]
            elif self._is_ours(pod):
                self._pods[pod.metadata.name] = pod
            self._changed.notify_all()

    def _keep(self, pod: Pod) -> None:
        """Take a pod in that was just made, unless the watch has told more of it already."""
        with self._changed:
            self._pods.setdefault(pod.metadata.name, pod)
            self._changed.notify_all()

    def _doubt(self, text: str) -> None:
        with self._changed:
            self._trouble = text

    def _is_ours(self, pod: Pod) -> bool:
        return self.owns(pod.metadata.name)


class RefusedError(SourceError):
    """The API server refuses, or gives no answer (status 0)."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def _read(raw: object) -> Pod:
    """Return a pod as the API server tells it.

    Raises:
        KubernetesError: It is none.
    """
    try:
        return msgspec.convert(raw, Pod)
    except msgspec.ValidationError as error:
        text = f"a pod of the API server cannot be read: {error}"
        raise KubernetesError(text) from None


def _why_over(status: Status) -> str:
    """Return why a pod has ended."""
    ends = [each.state.get("terminated") for each in status.container_statuses or ()]
    said = [status.reason, status.message]
    said += [text for end in ends if end for text in (end.reason, end.message)]
    return _line(": ".join(dict.fromkeys(each.strip() for each in said if each)) or status.phase)


def _why_not(status: Status) -> str:
    """Return why a pod does not begin; empty: it does, or it is only a matter of time."""
    for one in status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False":
            return _line(f"{one.reason}: {one.message or ''}")
    for each in status.container_statuses or ():
        waits = each.state.get("waiting")
        if waits and waits.reason not in (None, "ContainerCreating", "PodInitializing"):
            return _line(f"{waits.reason}: {waits.message or ''}")
    return ""


def _line(text: str) -> str:
    """Return the last line of a text from outside, as it can be shown."""
    last = text.strip().splitlines()[-1:] or [""]
    return "".join(each if each.isprintable() else "?" for each in last[0])[:TEXT_CHARS_MAX]
