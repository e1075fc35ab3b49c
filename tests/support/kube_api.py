"""An API server of Kubernetes as far as pools of pods need it, in a thread: for tests.

It keeps pods and secrets, with resource versions, watches, grace periods and owners, as the
documents of Kubernetes' API say, and notes every request. Faults are queued for requests that are
to come. Machines and their kubelets are not in it: a test says when a pod is scheduled, starts,
fails or is gone.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

T = TypeVar("T")
BEGAN = "2026-01-01T00:00:00Z"


class Request(NamedTuple):
    """One request: what rights it takes, and on which object."""

    verb: str
    resource: str
    name: str


class Fault(NamedTuple):
    """What happens to the next request of a verb on a resource.

    `status` and `body` are answered instead; `cut`: the connection breaks before anything is done,
    `lost`: after it. Of a watch, `lines` are sent, and then it breaks.
    """

    verb: str
    resource: str
    status: int = 0
    message: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 - no field is changed
    how: str = "status"
    lines: tuple[bytes, ...] = ()


class KubeApi:
    """The API server; it is a context manager.

    Args:
        namespace: The only one it has.
    """

    def __init__(self, namespace: str = "skep") -> None:
        self.namespace = namespace
        self.token = ""
        """What is wanted of every request; empty: none, as by `kubectl proxy`."""
        self.version = 100
        self.pods: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.created: list[str] = []
        """Names of all pods that ever were."""
        self.url = ""
        self.on_change: Callable[[str, dict[str, Any]], None] = lambda kind, pod: None
        """Told of every change of a pod, in the server's loop."""
        self._uids = 0
        self._events: list[tuple[int, bytes]] = []
        self._watches: list[asyncio.Queue[bytes | None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> KubeApi:
        self._thread.start()
        self.do(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Callable[[], Any]) -> Any:
        """Do something in the server's loop; return its result."""

        async def inside() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(30)

    def schedule(self, name: str, machine: str = "machine-1") -> None:
        """Find a machine for a pod."""

        def change(pod: dict[str, Any]) -> None:
            pod["spec"]["nodeName"] = machine
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]

        self.change(name, change)

    def status(self, name: str, **fields: Any) -> None:
        """Set fields of a pod's status."""
        self.change(name, lambda pod: pod["status"].update(fields))

    def change(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change a pod."""

        def inside() -> None:
            pod = json.loads(json.dumps(self.pods[name]))
            change(pod)
            self._store(pod, "MODIFIED")

        self.do(inside)

    def evict(self, name: str, grace_s: int) -> None:
        """Tell a pod to end, as whoever drains its machine does."""
        self.do(lambda: self._delete(name, grace_s))

    def gone(self, name: str) -> None:
        """Have a pod be no more, as its kubelet says once its containers are."""
        self.do(lambda: self._remove(name))

    def break_watches(self) -> None:
        """Break off all watches."""

        def inside() -> None:
            for watch in self._watches:
                watch.put_nowait(None)

        self.do(inside)

    # --- the API ----------------------------------------------------------------------------------

    async def _open(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/{resource}", self._collection)
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/{resource}/{name}", self._one)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"

    async def _close(self) -> None:
        for watch in self._watches:
            watch.put_nowait(None)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        resource = request.match_info["resource"]
        watched = request.query.get("watch") == "true"
        verb = "create" if request.method == "POST" else "watch" if watched else "list"
        self.requests.append(Request(verb, resource, ""))
        fault = self._fault(verb, resource)
        if fault is not None and (answer := _faulty(request, fault)) is not None:
            return answer
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _failure(401, "Unauthorized")
        if request.match_info["namespace"] != self.namespace:
            return _failure(403, f"{resource} is forbidden in this namespace")
        if verb == "create":
            answer = self._create(resource, await request.json())
            return _dropped(request) if fault is not None and fault.how == "lost" else answer
        if verb == "watch":
            return await self._watch(request, fault)
        items = [pod for pod in self.pods.values() if _chosen(pod, request)]
        head = {"resourceVersion": str(self.version)}
        limit = int(request.query.get("limit", "0")) or len(items) + 1
        begin = int(request.query.get("continue", "0"))
        if begin + limit < len(items):
            head["continue"] = str(begin + limit)
        return web.json_response({"metadata": head, "items": items[begin : begin + limit]})

    async def _one(self, request: web.Request) -> web.StreamResponse:
        resource, name = request.match_info["resource"], request.match_info["name"]
        verb = {"DELETE": "delete", "GET": "get"}.get(request.method, "update")
        self.requests.append(Request(verb, resource, name))
        fault = self._fault(verb, resource)
        if fault is not None and (answer := _faulty(request, fault)) is not None:
            return answer
        if resource != "pods" or verb != "delete":
            return _failure(405, "not in this server")
        pod = self.pods.get(name)
        if pod is None:
            return _failure(404, f'pods "{name}" not found')
        wish = await request.json()
        uid = wish.get("preconditions", {}).get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            return _failure(409, "the UID in the precondition does not match")
        grace_s = wish.get("gracePeriodSeconds", pod["spec"].get("terminationGracePeriodSeconds"))
        self._delete(name, grace_s)
        if fault is not None and fault.how == "lost":
            return _dropped(request)
        return web.json_response(self.pods.get(name, pod))

    def _create(self, resource: str, made: dict[str, Any]) -> web.Response:
        name = made["metadata"]["name"]
        kept = self.pods if resource == "pods" else self.secrets
        if name in kept:
            return _failure(409, f'{resource} "{name}" already exists')
        self._uids += 1
        made["metadata"] |= {"uid": f"uid-{self._uids}", "creationTimestamp": BEGAN}
        if resource == "pods":
            self.created.append(name)
            made["status"] = {"phase": "Pending"}
            self._store(made, "ADDED")
            return web.json_response(self.pods[name], status=201)
        self.secrets[name] = made
        owners = [one["uid"] for one in made["metadata"].get("ownerReferences", ())]
        if owners and not any(pod["metadata"]["uid"] in owners for pod in self.pods.values()):
            del self.secrets[name]  # As the garbage collector does, at once.
        elif name in self.pods:
            self.on_change("SECRET", self.pods[name])
        return web.json_response(made, status=201)

    def _delete(self, name: str, grace_s: int | None) -> None:
        pod = json.loads(json.dumps(self.pods[name]))
        over = pod["status"]["phase"] in ("Succeeded", "Failed")
        if over or not pod["spec"].get("nodeName"):
            self._remove(name)
        elif not pod["metadata"].get("deletionTimestamp"):
            pod["metadata"]["deletionTimestamp"] = BEGAN
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_s
            self._store(pod, "MODIFIED")

    def _remove(self, name: str) -> None:
        pod = self.pods.pop(name)
        self.secrets = {
            key: one
            for key, one in self.secrets.items()
            if pod["metadata"]["uid"]
            not in [owner["uid"] for owner in one["metadata"].get("ownerReferences", ())]
        }
        self._tell("DELETED", pod)

    def _store(self, pod: dict[str, Any], kind: str) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self._tell(kind, pod)

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
        self._events.append((self.version, line))
        for watch in self._watches:
            watch.put_nowait(line)
        self.on_change(kind, pod)

    async def _watch(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        answer.content_type = "application/json"
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watches.append(waiting)
        try:
            after = int(request.query["resourceVersion"])
            for version, line in self._events:
                if version > after:
                    waiting.put_nowait(line)
            await answer.prepare(request)
            for line in fault.lines if fault is not None else ():
                await answer.write(line)
            if fault is not None:
                return _dropped(request)
            while (event := await waiting.get()) is not None:
                await answer.write(event)
            return _dropped(request)
        except ConnectionError:
            return answer
        finally:
            self._watches.remove(waiting)

    def _fault(self, verb: str, resource: str) -> Fault | None:
        for fault in self.faults:
            if (fault.verb, fault.resource) == (verb, resource):
                self.faults.remove(fault)
                return fault
        return None


def _faulty(request: web.Request, fault: Fault) -> web.StreamResponse | None:
    """Return the answer of a fault; None: what was asked for is done first."""
    if fault.how == "cut":
        return _dropped(request)
    if fault.how == "status":
        return _failure(fault.status, fault.message, fault.headers)
    if fault.how == "garbage":
        return web.Response(text=fault.message)
    return None


def _failure(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status, headers=headers)


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _chosen(pod: dict[str, Any], request: web.Request) -> bool:
    labels = pod["metadata"].get("labels", {})
    wanted = filter(None, request.query.get("labelSelector", "").split(","))
    return all(labels.get(key) == value for key, _, value in (one.partition("=") for one in wanted))
