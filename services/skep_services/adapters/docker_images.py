"""Images that jobs have fetched: pulled once for all that wait, with the login that a job names.

A job says so (`runtime.pull`); without that no image is fetched for it. What the registry says
against a pull is one line, without the login. The engine keeps images, and shares them between all
jobs of the node: what one job fetched with a login, others find there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from skep.units import MIB, Instant
from skep_services.adapters.docker_engine import (
    STOPPED,
    Engine,
    EngineGoneError,
    EngineRefusedError,
)

PULLS_MAX = 4
"""Images that are fetched at once; more wait."""
PULLED_WITHIN_S = 1800.0
"""10 GB at 50 Mbit/s."""
TELL_EVERY_S = 0.5


class Login(NamedTuple):
    """What a registry is shown."""

    username: str
    password: str


class PullError(Exception):
    """An image cannot be fetched; the text says why."""


class _Wait:
    """A run of a rank that waits."""

    def __init__(self) -> None:
        self.since = Instant(time.time_ns())
        self.stopped = asyncio.Event()


class _Pull:
    """A pull under way, and the runs that wait for it."""

    def __init__(self) -> None:
        self.told = ""
        self.stopped = threading.Event()
        self.waiting: dict[str, _Wait] = {}
        self.task: asyncio.Task[None]


def login_of(value: bytes) -> Login | None:
    """Return the login that a secret has, as `user:password`; None: it has none."""
    try:
        name, mark, password = value.decode().strip().partition(":")
    except UnicodeDecodeError:
        return None
    return Login(name, password) if name and mark and password else None


def _retrieved(task: asyncio.Task[None]) -> None:
    """Take note of how a pull ended: the runs that wait for it tell, if any still do."""
    if not task.cancelled():
        task.exception()


async def _to_nobody() -> None:
    pass


class Images:
    """Fetches images by the engine of this node."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine or Engine("")
        self._threads = ThreadPoolExecutor(PULLS_MAX, thread_name_prefix="pull")
        self._pulls: dict[tuple[str, Login | None], _Pull] = {}
        self._telling: dict[int, asyncio.Future[None]] = {}
        self.changed: Callable[[], Awaitable[None]] = _to_nobody
        """Called whenever `pulling` has something else to say."""

    def pulling(self) -> dict[str, tuple[Instant, str]]:
        """Return, by each run that waits for an image, since when, and how far its pull is."""
        return {
            token: (wait.since, one.told)
            for one in self._pulls.values()
            for token, wait in one.waiting.items()
        }

    async def has(self, image: str) -> bool:
        """Return whether an image is here.

        Raises:
            PullError: No engine answers.
        """
        try:
            return bool(await self._call(self._engine.has_image, image))
        except EngineGoneError as error:
            text = f"image {image}: {error}"
            raise PullError(text) from error

    async def pull(self, image: str, login: Login | None, token: str) -> None:
        """Have an image here.

        Args:
            image: Its name.
            login: What its registry is shown; None: what the engine's user has, or nothing.
            token: The run that waits for it; `cancel` ends its wait.

        Raises:
            PullError: It cannot be fetched, or the run is not to begin any more.
        """
        key = (image, login)
        one = self._pulls.get(key)
        if one is None:
            one = self._pulls[key] = _Pull()
            one.task = asyncio.create_task(self._pull(key, one))
            one.task.add_done_callback(_retrieved)
        stopped = one.waiting.setdefault(token, _Wait()).stopped
        waits = asyncio.create_task(stopped.wait())
        await self.changed()
        try:
            await asyncio.wait((one.task, waits), return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set():
                text = f"image {image}: {STOPPED}"
                raise PullError(text)
            await asyncio.shield(one.task)
        finally:
            waits.cancel()
            del one.waiting[token]
            if not one.waiting and not one.task.done():
                # The engine hears of it with the next of its own words; no run waits for that.
                one.stopped.set()
                self._pulls.pop(key, None)
            await self.changed()

    def cancel(self, token: str) -> None:
        """End the wait of a run that is not to begin any more, and the pull if no other waits."""
        for one in self._pulls.values():
            if token in one.waiting:
                one.waiting[token].stopped.set()

    async def _pull(self, key: tuple[str, Login | None], one: _Pull) -> None:
        """Fetch an image.

        Raises:
            PullError: It cannot be fetched.
        """
        image, login = key
        loop = asyncio.get_running_loop()
        told_at = 0.0

        def tell(current: int, total: int) -> None:
            nonlocal told_at
            now = time.monotonic()
            if total and now - told_at >= TELL_EVERY_S:
                told_at = now
                one.told = f"image {image}: {current / MIB:.0f} of {total / MIB:.0f} MiB"
                loop.call_soon_threadsafe(self._tell)

        one.told = f"image {image}: begun"
        shown = login._asdict() if login is not None else None
        try:
            async with asyncio.timeout(PULLED_WITHIN_S):
                await self._call(self._engine.pull, image, shown, tell, one.stopped.is_set)
        except TimeoutError:
            one.stopped.set()
            text = f"image {image} was not fetched within {PULLED_WITHIN_S:.0f} s"
            raise PullError(text) from None
        except (EngineGoneError, EngineRefusedError) as error:
            text = f"image {image} cannot be fetched: {error}"
            raise PullError(text) from error
        finally:
            if self._pulls.get(key) is one:
                del self._pulls[key]

    def _tell(self) -> None:
        task = asyncio.ensure_future(self.changed())
        self._telling[id(task)] = task
        task.add_done_callback(lambda done: self._telling.pop(id(done)))

    async def _call(self, call: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *given)

    def close(self) -> None:
        """Let go of the engine; pulls end with its next words."""
        for one in self._pulls.values():
            one.stopped.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.close()
