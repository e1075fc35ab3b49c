"""How the page's files are answered: what browsers may keep, what is refused, and the policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from skep_services.gateway.api import ApiError, Handler, json_response
from skep_services.gateway.site import POLICY, SITE, Site

Opened = TestClient[web.Request, web.Application]


@web.middleware
async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return json_response(error.body, error.status)


async def opened(folder: Path) -> Opened:
    application = web.Application(middlewares=[told])
    application.add_routes(Site(folder).routes())
    client = TestClient(TestServer(application))
    await client.start_server()
    return client


@pytest.mark.asyncio
async def test_every_path_of_the_application_answers_its_document() -> None:
    client = await opened(SITE)
    try:
        for path in ("/", "/jobs", "/jobs/j7", "/jobs/a.name.with.dots", "/searches/s1/x"):
            answer = await client.get(path)
            assert answer.status == 200, path
            assert answer.content_type == "text/html", path
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["Cache-Control"] == "no-cache"
            again = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_files_are_kept_for_ever_and_what_is_not_there_is_refused() -> None:
    client = await opened(SITE)
    try:
        for file in sorted(SITE.glob("assets/*")):
            answer = await client.get(f"/assets/{file.name}")
            assert await answer.read() == file.read_bytes()
            assert "immutable" in answer.headers["Cache-Control"]
        for path in ("/assets/old.js", "/favicon.ico", "/assets/../site.py", "/robots.txt"):
            assert (await client.get(path)).status == 404, path
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_without_a_build_the_page_says_so(tmp_path: Path) -> None:
    client = await opened(tmp_path)
    try:
        answer = await client.get("/jobs")
        assert answer.status == 404
        assert "make web" in (await answer.json())["error"]["text"]
    finally:
        await client.close()


def test_the_first_view_is_small() -> None:
    files = Site(SITE)._files
    assert sum(len(file.compressed) for file in files.values()) < 250_000
