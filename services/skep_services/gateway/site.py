"""The web page: static files that `services/web` builds, with a policy that lets them do no more.

Every path that is neither the API's nor a file answers the one document of the application, which
shows what the path names: a link to a job can be opened by itself.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from skep_services.gateway.api import ApiError

SITE = Path(__file__).with_name("site")
DOCUMENT = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""What is served: a file of another kind is not, whatever the build leaves there."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Names and logs come from tenants: should one ever end up as markup, it still cannot run."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FOR_EVER = "public, max-age=31536000, immutable"
"""The names of files under `assets` have a digest of what is in them."""


class File(NamedTuple):
    """A file as it is answered: as it is, and compressed."""

    body: bytes
    compressed: bytes
    content_type: str
    tag: str


class Site:
    """The handlers of the page, which hold all of its files."""

    def __init__(self, folder: Path = SITE) -> None:
        """Read the files in a folder; without a document among them, there is no page."""
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in TYPES
        }

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong. They come last: what is not theirs is refused."""
        return [
            web.get("/", self.document),
            web.get("/{page:[a-z]+}", self.document),
            web.get("/{page:[a-z]+}/{rest:.*}", self.answer),
            web.get("/{file:[a-z]+[.][a-z0-9]+}", self.answer),
        ]

    async def document(self, request: web.Request) -> web.StreamResponse:
        """Answer the document of the application; it asks for a token, and uses the API.

        Raises:
            ApiError: The page was not built (404).
        """
        if DOCUMENT not in self._files:
            text = "the page was not built: run `make web`, which needs Node; the API is all there"
            raise ApiError(404, "not-found", text)
        return self._told(request, self._files[DOCUMENT], "no-cache")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a file, or the document for a path within the application.

        Raises:
            ApiError: There is no such file, or the page was not built (404).
        """
        name = request.path.removeprefix("/")
        if (found := self._files.get(name)) is not None:
            kept = FOR_EVER if name.startswith("assets/") else "no-cache"
            return self._told(request, found, kept)
        if name.startswith("assets/") or "/" not in name:
            raise ApiError(404, "not-found", "there is no such file: load the page anew")
        return await self.document(request)

    def _told(self, request: web.Request, file: File, kept: str) -> web.StreamResponse:
        headers = {
            **HEADERS,
            "Cache-Control": kept,
            "ETag": f'"{file.tag}"',
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        body = file.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = file.compressed, "gzip"
        response = web.Response(body=body, headers=headers)
        response.content_type = file.content_type
        response.charset = "utf-8"
        return response


def _read(path: Path) -> File:
    body = path.read_bytes()
    compressed = gzip.compress(body, mtime=0)
    tag = hashlib.sha256(body).hexdigest()[:32]
    return File(body, compressed, TYPES[path.suffix], tag)
