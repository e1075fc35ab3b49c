"""A small client of the API of Kubernetes: the requests that keep pods, and no others.

It lists, watches, creates and deletes pods, and creates secrets, all in one namespace. These are
the rights that its account needs (`deploy/kubernetes/skep-nodes.yaml`).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_WITHIN_S = 30.0
WATCH_S = 60
"""A watch ends after so long, so that one that has silently broken is not trusted for long."""
WATCH_SILENT_S = WATCH_S + 15.0
PAGE = 250
"""Pods of one answer."""
BODY_BYTES_MAX = 32 * 1024 * 1024
"""A page of pods; a pod is at most 1.5 MiB, and mostly some 10 KiB."""
LINE_BYTES_MAX = 4 * 1024 * 1024
TEXT_CHARS_MAX = 300
RETRY_S_MAX = 300.0
CONFLICT, NOT_FOUND, BUSY = 409, 404, 429


class KubernetesError(Exception):
    """The API server cannot be asked, or refuses.

    Args:
        text: One line.
        status: Its HTTP status; 0: whether it did what it was asked for is not known.
        retry_s: It asks not to be asked again for so long.
    """

    def __init__(self, text: str, status: int = 0, retry_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_s = retry_s


class Access(NamedTuple):
    """Where the API server is, and by what it is spoken to; `folder`: of a pod's own account."""

    url: str
    namespace: str
    folder: Path | None = None


def in_pod(namespace: str) -> Access:
    """Return the access of the pod that this runs in.

    Args:
        namespace: Another one than the pod's own; empty: its own.

    Raises:
        KubernetesError: This is no pod, or it has no account.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        text = "this is no pod: run `kubectl proxy` and say --api-server http://127.0.0.1:8001"
        raise KubernetesError(text)
    try:
        own = (ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        text = f"the pod has no account: {ACCOUNT}: {error.strerror}"
        raise KubernetesError(text) from None
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", namespace or own, ACCOUNT)


class Pods(msgspec.Struct, frozen=True):
    """Pods as the API server lists them, and the version of the list."""

    items: list[dict[str, Any]]
    version: str


class Watched(msgspec.Struct, frozen=True):
    """One event of a watch."""

    kind: str
    pod: dict[str, Any]


class KubernetesApi:
    """The API server of one cluster, seen from one namespace. It is a context manager.

    Args:
        access: Where it is.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._base = f"{access.url.rstrip('/')}/api/v1/namespaces/{access.namespace}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubernetesApi:
        folder = self._access.folder
        trust: ssl.SSLContext | bool = True
        if folder is not None:
            try:
                trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            except (OSError, ssl.SSLError) as error:
                text = f"the API server's authority cannot be read: {folder}/ca.crt: {error}"
                raise KubernetesError(text) from None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust),
            timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN_S),
            read_bufsize=LINE_BYTES_MAX,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def list_pods(self, selector: str) -> Pods:
        """Return all pods that have some labels, as they are at this moment.

        Args:
            selector: The labels.

        Raises:
            KubernetesError: The API server cannot be asked, or refuses.
        """
        items: list[dict[str, Any]] = []
        wanted = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            page = await self._ask("GET", "/pods", wanted)
            head = page.get("metadata")
            found = page.get("items")
            if not isinstance(head, dict) or not isinstance(found, list):
                text = "the API server's list of pods cannot be read"
                raise KubernetesError(text)
            items += [one for one in found if isinstance(one, dict)]
            if not head.get("continue"):
                return Pods(items, str(head.get("resourceVersion", "")))
            wanted["continue"] = str(head["continue"])

    async def watch_pods(self, selector: str, version: str) -> AsyncGenerator[Watched, None]:
        """Yield what becomes of the pods that have some labels, until the API server ends it.

        Args:
            selector: The labels.
            version: Of the list or the event that the first event is to follow.

        Raises:
            KubernetesError: It breaks off, or the version is too old.
        """
        query = {
            "labelSelector": selector,
            "resourceVersion": version,
            "watch": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        limits = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SILENT_S)
        async with self._answer("GET", "/pods", query, None, limits) as answer:
            while True:
                try:
                    line = await answer.content.readline()
                except ValueError:
                    text = f"a watch of the API server has a line of over {LINE_BYTES_MAX} bytes"
                    raise KubernetesError(text) from None
                if not line:
                    return
                yield _event(line)

    async def create_pod(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Create a pod; return it as it was made.

        Raises:
            KubernetesError: The API server cannot be asked, or refuses; `CONFLICT`: there is one.
        """
        return await self._ask("POST", "/pods", {}, pod)

    async def create_secret(self, secret: Mapping[str, Any]) -> None:
        """Create a secret.

        Raises:
            KubernetesError: The API server cannot be asked, or refuses; `CONFLICT`: there is one.
        """
        await self._ask("POST", "/secrets", {}, secret)

    async def delete_pod(self, name: str, uid: str) -> None:
        """Have a pod end, and be no more.

        Raises:
            KubernetesError: The API server cannot be asked, or refuses; `NOT_FOUND`: there is none;
                `CONFLICT`: the pod of this name is another one.
        """
        wish = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._ask("DELETE", f"/pods/{name}", {}, wish)

    async def _ask(
        self, verb: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        async with self._answer(verb, path, query, body, None) as answer:
            raw = await _body(answer)
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            text = f"the API server's answer to {verb} {path} cannot be read"
            raise KubernetesError(text)
        return found

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        more: dict[str, Any] = {} if limits is None else {"timeout": limits}
        try:
            async with self._session.request(
                verb,
                self._base + path,
                params=query,
                json=body,
                headers=self._headers(),
                allow_redirects=False,
                **more,
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise _refusal(answer, await _body(answer))
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            text = f"the API server at {self._access.url} does not answer: {_line(str(error))}"
            if not str(error):
                text = text.removesuffix(": ")
            raise KubernetesError(text) from None

    def _headers(self) -> dict[str, str]:
        folder = self._access.folder
        if folder is None:
            return {}
        # It is replaced every hour or so, and is read anew each time.
        try:
            token = (folder / "token").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            text = f"the account's token cannot be read: {folder}/token: {error}"
            raise KubernetesError(text) from None
        return {"Authorization": f"Bearer {token}"}


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        KubernetesError: It is too large.
    """
    parts, length = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        length += len(part)
        if length > BODY_BYTES_MAX:
            text = f"the API server's answer has over {BODY_BYTES_MAX} bytes"
            raise KubernetesError(text)
    return b"".join(parts)


def _refusal(answer: aiohttp.ClientResponse, raw: bytes) -> KubernetesError:
    """Return what an answer that is none has to say."""
    try:
        said = json.loads(raw)
    except ValueError:
        said = {}
    message = said.get("message") if isinstance(said, dict) else None
    text = _line(str(message or answer.reason or ""))
    again = answer.headers.get("Retry-After", "")
    retry_s = min(float(again), RETRY_S_MAX) if again.isdecimal() else 0.0
    return KubernetesError(f"the API server says {answer.status}: {text}", answer.status, retry_s)


def _event(line: bytes) -> Watched:
    """Return one event of a watch.

    Raises:
        KubernetesError: It is an error, or none.
    """
    try:
        found = json.loads(line)
        kind, pod = found["type"], found["object"]
    except (ValueError, KeyError, TypeError):
        kind, pod = None, None
    if not isinstance(kind, str) or not isinstance(pod, dict):
        text = "an event of the API server cannot be read"
        raise KubernetesError(text)
    if kind == "ERROR":
        code = pod.get("code")
        text = f"the API server ends a watch: {_line(str(pod.get('message', '')))}"
        raise KubernetesError(text, code if isinstance(code, int) else 0)
    return Watched(kind, pod)


def _line(text: str) -> str:
    """Return the first line of a text from outside, as it can be shown."""
    first = text.strip().partition("\n")[0]
    return "".join(each if each.isprintable() else "?" for each in first)[:TEXT_CHARS_MAX]
