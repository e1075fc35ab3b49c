"""A server as a replica of a service has it: it tells which one it is.

Usage: serving.py WORD. `/health` is its health, `/slow?s=0.5` answers later, `/headers` tells what
was sent; a POST to `/die` ends it amid the request, any other one is answered with its sum.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Handler(BaseHTTPRequestHandler):
    """Answers JSON."""

    def do_GET(self) -> None:
        """Answer by the path."""
        asked = urlsplit(self.path)
        if asked.path == "/slow":
            time.sleep(float(parse_qs(asked.query)["s"][0]))  # tidy: allow sleep because it is slow
        about = {
            "word": sys.argv[1],
            "replica": int(os.environ["SKEP_REPLICA"]),
            "path": self.path,
            "headers": dict(self.headers.items()) if asked.path == "/headers" else {},
        }
        self._answer(200, about)

    def do_POST(self) -> None:
        """Answer how much was sent."""
        if self.path == "/die":
            os._exit(3)
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        self._answer(200, {"bytes": len(body), "sum": sum(body)})

    def _answer(self, status: int, about: object) -> None:
        body = json.dumps(about).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "a=b")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


ThreadingHTTPServer(
    (os.environ["SKEP_ADDRESS"], int(os.environ["SKEP_PORT"])), Handler
).serve_forever()
