"""What the command's tests share: a gateway that answers what it is told to, and rows of jobs."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


class Asked(NamedTuple):
    """One request as the gateway got it. `query` has the last value of each parameter."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Told(NamedTuple):
    """An answer: a JSON value, or pieces of text that are sent chunked, one after the other.

    `cut` drops the connection after the last piece, as a gateway that is killed does.
    """

    status: int = 200
    value: Any = None
    pieces: Iterator[bytes] | list[bytes] | None = None
    cut: bool = False
    headers: dict[str, str] | None = None


Route = Callable[[Asked], Told]


def _missing(asked: Asked) -> Told:
    return Told(404, {"error": {"reason": "not-found", "text": f"there is no {asked.path}"}})


class FakeGateway:
    """Answers by route (`GET /v1/jobs`); `asked` keeps every request, in order."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.asked: list[Asked] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                parts = urlsplit(self.path)
                size = int(self.headers.get("Content-Length") or 0)
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, parts.path, query, headers, self.rfile.read(size))
                gateway.asked.append(asked)
                route = gateway.routes.get(f"{asked.method} {asked.path}", _missing)
                self.answer(route(asked))

            def answer(self, told: Told) -> None:
                self.send_response(told.status)
                for name, value in (told.headers or {}).items():
                    self.send_header(name, value)
                if told.pieces is None:
                    body = json.dumps(told.value).encode()
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                    return
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in told.pieces:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                if told.cut:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_DELETE = serve  # noqa: N815 - the base class asks for these
            do_PUT = serve  # noqa: N815 - as above

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # A client that leaves in the middle is part of some tests.

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, route: str, value: Any = None, status: int = 200) -> None:
        """Answer `route` with a JSON value, or as a function of the request says."""
        if callable(value):
            self.routes[route] = value
        else:
            self.routes[route] = lambda _: Told(status, value)

    def refuse(self, route: str, status: int, reason: str, text: str, **more: Any) -> None:
        """Answer `route` with an error."""
        self.on(route, {"error": {"reason": reason, "text": text, **more}}, status)

    def last(self, route: str) -> Asked:
        """Return the latest request of a route."""
        return [one for one in self.asked if f"{one.method} {one.path}" == route][-1]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def fake_gateway() -> Iterator[FakeGateway]:
    """Run a gateway without routes."""
    gateway = FakeGateway()
    try:
        yield gateway
    finally:
        gateway.close()


def row(job: str = "j1", **changes: Any) -> dict[str, Any]:
    """Return one job of a listing, changed."""
    return {
        "job": job,
        "name": "train",
        "vc": "nlp",
        "state": "running",
        "service_class": "guaranteed",
        "priority": 0,
        "gpus": 2,
        "workers": 1,
        "gpu_type": None,
        "place": "node-1:0,1",
        "attempt": 1,
        "submitted_at": T0,
        "bound_at": T0 + SECOND,
        "started_at": T0 + 2 * SECOND,
        "ended_at": None,
        "rate_milli": 12_345,
        "steps": 120,
        "total_steps": 1000,
        "eta_s": 71,
        "why": "best-fit-one-node",
        "needs": "",
        **changes,
    }


def ended(job: str = "j1", state: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """Return one job that has ended after ten seconds."""
    why = {"failed": "exited-nonzero"}.get(state, state)
    times = {"ended_at": T0 + 12 * SECOND, "eta_s": None, "rate_milli": None}
    return row(job, state=state, why=why, **{**times, **changes})
