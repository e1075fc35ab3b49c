"""Servers that take what Skep sends to people: mail by SMTP, and webhooks by HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

DEADLINE_S = 60.0


class Receiver:
    """A server of its own on loopback, in a thread; `got` has what it took."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.refuse = 0
        """So many of the next messages are not taken."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def until(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """Wait until what it took is enough, and return that."""
        self._run(self._until(enough))
        return list(self.got)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._guarded, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _until(self, enough: Callable[[list[Any]], bool]) -> None:
        async with self._news:
            await self._news.wait_for(lambda: enough(self.got))

    async def took(self, message: Any) -> None:
        """Note what came."""
        async with self._news:
            self.got.append(message)
            self._news.notify_all()

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass  # The client went away.
        finally:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        raise NotImplementedError


class MailServer(Receiver):
    """SMTP (RFC 5321), as far as a client needs it: `got` has (recipients, message)."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take mail until the client leaves."""
        recipients: list[str] = []

        async def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        await say("220 receiver.test ESMTP")
        while line := (await reader.readline()).decode(errors="replace").strip():
            verb = line[:4].upper()
            if verb in ("EHLO", "HELO"):
                await say("250 receiver.test")
            elif verb == "RCPT":
                recipients.append(line.partition("<")[2].partition(">")[0])
                await say("250 OK")
            elif verb == "DATA":
                await say("354 go on")
                text = (await reader.readuntil(b"\r\n.\r\n")).decode(errors="replace")
                if self.refuse:
                    self.refuse -= 1
                    await say("451 try again later")
                    continue
                await self.took((list(recipients), text))
                recipients.clear()
                await say("250 taken")
            elif verb == "QUIT":
                await say("221 bye")
                return
            else:
                await say("250 OK")


class WebServer(Receiver):
    """HTTP/1.1: `got` has (path, headers, JSON) of what was posted."""

    def __init__(self) -> None:
        super().__init__()
        self.status = "200 OK"
        self.location = ""
        self.before: Callable[[], Awaitable[None]] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status = self.status
        if self.refuse:
            self.refuse, status = self.refuse - 1, "503 Service Unavailable"
        else:
            await self.took((path, headers, json.loads(body)))
        more = f"Location: {self.location}\r\n" if self.location else ""
        writer.write(
            f"HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
