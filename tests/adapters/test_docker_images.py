"""Images are fetched once, with a login and progress; a server here plays the engine's API."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from skep_services.adapters.docker_engine import Engine
from skep_services.adapters.docker_images import Images, Login, PullError, login_of

pytest.importorskip("docker", reason="the extra `docker` is not installed")

pytestmark = [pytest.mark.adapters, pytest.mark.asyncio]

IMAGE = "registry.example:5000/team/train:2.9"
MIB = 1024 * 1024


class FakeEngine:
    """Answers what is asked about images as Docker's engine does."""

    def __init__(self) -> None:
        self.here: list[str] = []
        self.logins: list[dict[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        self.goes_on = asyncio.Event()
        self.refused: tuple[int, str] | None = None
        self.error = ""

    async def ping(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"ApiVersion": "1.44", "MinAPIVersion": "1.24"})

    async def inspect(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name in self.here:
            return web.json_response({"Id": "sha256:0"})
        return web.json_response({"message": f"No such image: {name}"}, status=404)

    async def create(self, request: web.Request) -> web.StreamResponse:
        name, tag = request.query["fromImage"], request.query["tag"]
        self.asked.append((name, tag))
        header = request.headers.get("X-Registry-Auth", "")
        self.logins.append(json.loads(base64.urlsafe_b64decode(header)) if header else {})
        if self.refused is not None:
            status, text = self.refused
            return web.json_response({"message": text}, status=status)
        answer = web.StreamResponse()
        await answer.prepare(request)
        detail = {"current": MIB, "total": 4 * MIB}
        await self._say(answer, status="Pulling fs layer", id="a", progressDetail={})
        await self._say(answer, status="Downloading", id="a", progressDetail=detail)
        await self.goes_on.wait()
        await self._say(answer, status="Download complete", id="a", progressDetail={})
        if self.error:
            await self._say(answer, error=self.error)
        else:
            self.here.append(f"{name}:{tag}")
        return answer

    async def _say(self, answer: web.StreamResponse, **event: object) -> None:
        await answer.write(json.dumps(event).encode() + b"\r\n")


@pytest_asyncio.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    application = web.Application()
    application.add_routes(
        [
            web.get("/_ping", made.ping),
            web.get("/version", made.ping),
            web.get("/{version}/_ping", made.ping),
            web.get("/{version}/images/{name:.*}/json", made.inspect),
            web.post("/{version}/images/create", made.create),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    yield made
    made.goes_on.set()
    await runner.cleanup()


@pytest_asyncio.fixture
async def images(engine: FakeEngine) -> AsyncIterator[Images]:
    made = Images(Engine(""))
    yield made
    made.close()


async def told(images: Images, text: str) -> None:
    """Wait until a pull is so far."""
    seen = asyncio.Event()

    async def changed() -> None:
        if any(one[1] == text for one in images.pulling().values()):
            seen.set()

    images.changed = changed
    async with asyncio.timeout(60):
        await seen.wait()


async def test_one_pull_serves_all_that_wait_and_says_how_far_it_is(
    engine: FakeEngine, images: Images
) -> None:
    assert not await images.has(IMAGE)
    login = Login("ada", "secret")
    pulls = [asyncio.create_task(images.pull(IMAGE, login, token)) for token in ("j1", "j2")]
    await told(images, f"image {IMAGE}: 1 of 4 MiB")
    assert sorted(images.pulling()) == ["j1", "j2"]
    engine.goes_on.set()
    await asyncio.gather(*pulls)
    assert engine.asked == [("registry.example:5000/team/train", "2.9")]
    assert engine.logins[0]["username"] == "ada"
    assert engine.logins[0]["password"] == "secret"
    assert await images.has(IMAGE)
    assert images.pulling() == {}


@pytest.mark.parametrize(
    "refused, error, text",
    [
        (
            (404, "pull access denied for x, repository does not exist"),
            "",
            "repository does not exist: name a secret that has `user:password` as `runtime.login`",
        ),
        ((500, "no basic auth credentials\nunauthorized"), "", "credentials unauthorized: name a"),
        (None, "toomanyrequests: rate limit", "cannot be fetched: toomanyrequests: rate limit"),
    ],
)
async def test_what_the_registry_says_against_it_is_one_line(
    engine: FakeEngine, images: Images, refused: tuple[int, str], error: str, text: str
) -> None:
    engine.refused, engine.error = refused, error
    engine.goes_on.set()
    with pytest.raises(PullError) as raised:
        await images.pull(IMAGE, Login("ada", "secret"), "j1")
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value).replace("name a secret", "")


async def test_the_last_that_waits_stops_a_pull(engine: FakeEngine, images: Images) -> None:
    pulls = [asyncio.create_task(images.pull(IMAGE, None, token)) for token in ("j1", "j2")]
    await told(images, f"image {IMAGE}: 1 of 4 MiB")
    images.cancel("j1")
    with pytest.raises(PullError, match="it was stopped"):
        await pulls[0]
    assert not pulls[1].done()
    images.cancel("j2")
    with pytest.raises(PullError, match="it was stopped"):
        await pulls[1]
    assert images.pulling() == {}


async def test_without_an_engine_it_is_said_where_one_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    images = Images(Engine(""))
    with pytest.raises(PullError, match=f"no container engine answers at unix://{tmp_path}/none"):
        await images.has(IMAGE)
    images.close()


@pytest.mark.parametrize(
    "value, login",
    [
        (b"ada:pass:word\n", Login("ada", "pass:word")),
        (b"token", None),
        (b":x", None),
        (b"ada:", None),
        (b"\xff", None),
    ],
)
async def test_a_login_is_a_name_and_a_password(value: bytes, login: Login | None) -> None:
    assert login_of(value) == login
