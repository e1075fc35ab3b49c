"""A replica that is ready once a file is there: gated.py GATE BEGUN WORD.

BEGUN gets its process number when it begins, and `slow` when a request for `/slow` is open.
"""

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GATE, BEGUN, WORD = sys.argv[1:]
SLOW_S = 3.0


def note(word: object) -> None:
    with open(BEGUN, "a") as file:
        file.write(f"{word}\n")


class Handler(BaseHTTPRequestHandler):
    """Answers its word."""

    opened = False

    def do_GET(self) -> None:
        """Answer by the path."""
        Handler.opened = Handler.opened or os.path.exists(GATE)
        if self.path == "/slow":
            note("slow")
            time.sleep(SLOW_S)  # tidy: allow sleep because it is slow
        body = WORD.encode()
        self.send_response(200 if self.opened else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


server = ThreadingHTTPServer((os.environ["SKEP_ADDRESS"], int(os.environ["SKEP_PORT"])), Handler)
note(os.getpid())
server.serve_forever()
