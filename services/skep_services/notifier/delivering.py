"""Carries out what the notifier's machine calls for, and answers what the gateway asks of it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from skep.machines.notifier import Deliver, Delivered, NotifierMachine
from skep.units import Instant
from skep.wire import codec
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.notice_targets import TargetKind, kind_of, shown
from skep.wire.notices import NOTICE_BYTES_MAX, AskNotifier, MessageShown, NoticeMade, NotifierSays
from skep_services.notifier.addresses import Address, parse
from skep_services.notifier.settings import Config
from skep_services.notifier.webhook import post
from skep_services.ports import Bus, Delivery

Answer = Callable[[Any], Awaitable[None]]
SENT_WITHIN_S = 40.0
"""What a process that sends has: Apprise itself gives a server 8 s or so."""
TESTS_MAX = 2
"""Tests that are sent at once: further ones are refused."""
SHOWN_BYTES_MAX = NOTICE_BYTES_MAX * 3 // 4
LINES_MAX = 100
_ASKS = msgspec.json.Decoder(AskNotifier)


def title_of(notices: tuple[NoticeMade, ...]) -> str:
    """Return the subject of a message."""
    first = notices[0]
    if len(notices) == 1:
        return f"Skep: {first.text.partition(':')[0]}"
    jobs = len(dict.fromkeys(notice.job for notice in notices))
    return f"Skep: {len(notices)} notices of {jobs} job{'s' if jobs > 1 else ''} in {first.vc}"


def body_of(notices: tuple[NoticeMade, ...], number: int) -> str:
    """Return the text of a message: a line for each notice, and its number."""
    lines = [notice.text for notice in notices[:LINES_MAX]]
    return "\n".join([*lines, "", f"(Skep, message {number})"])


class Sending:
    """The Calls port of the notifier.

    Args:
        config: The operator's targets.
        name: A name of this notifier that no other has: messages are told apart by it.
        bus_hosts: The hosts of the bus: no webhook may be there.
        log: The service's logger.
    """

    def __init__(self, config: Config, name: str, bus_hosts: tuple[str, ...], log: Any) -> None:
        self._config, self._name, self._hosts, self._log = config, name, bus_hosts, log
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, command: Any, answer: Answer) -> None:
        """Begin to send a message.

        Raises:
            AssertionError: A bug: the machine calls for what no notifier can do.
        """
        assert isinstance(command, Deliver), command
        task = asyncio.ensure_future(self._deliver(command, answer))
        self._tasks[id(task)] = task
        task.add_done_callback(lambda done: self._tasks.pop(id(done)))

    async def _deliver(self, command: Deliver, answer: Answer) -> None:
        try:
            trouble, final = await self.send(
                command.vc, command.target, command.notices, command.number
            )
        except Exception as error:  # A message must come to an end, whatever a library does.
            trouble, final = f"{type(error).__name__} in the notifier", False
            self._log.exception("a message could not be sent", number=command.number)
        told = self._log.warning if trouble else self._log.info
        told(
            "message not sent" if trouble else "message sent",
            number=command.number,
            vc=command.vc,
            target=shown(command.target),
            notices=len(command.notices),
            trouble=trouble,
        )
        await answer(Delivered(command.number, command.vc, command.target, trouble, final))

    async def send(
        self, vc: str, target: str, notices: tuple[NoticeMade, ...], number: int
    ) -> tuple[str, bool]:
        """Send a message; return why it was not taken (empty: it was), and whether it is final."""
        problems = self._config.problems(vc, [target])
        if problems:
            return problems[0].text, True
        title, body = title_of(notices), body_of(notices, number)
        if kind_of(target) is TargetKind.WEBHOOK:
            identity = f"{self._name}-{number}"
            told = [
                {
                    "job": each.job,
                    "event": each.event,
                    "vc": each.vc,
                    "text": each.text,
                    "at": each.at,
                }
                for each in notices
            ]
            return await post(
                target,
                {"id": identity, "text": f"{title}\n{body}", "notices": told},
                {"Idempotency-Key": identity, "User-Agent": "skep-notifier"},
                allowed=self._config.webhooks.allowed,
                denied=self._bus_addresses,
            )
        return await self._by_apprise(self._config.apprise_url(target), title, body), False

    def _bus_addresses(self) -> frozenset[Address]:
        found = []
        for host in self._hosts:
            try:
                found += [str(each[4][0]) for each in socket.getaddrinfo(host, None)]
            except OSError:
                continue  # It is not known now: its address is no public one in most networks.
        return frozenset(each for each in map(parse, found) if each is not None)

    async def _by_apprise(self, url: str, title: str, body: str) -> str:
        asked = json.dumps({"url": url, "title": title, "body": body}).encode()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skep_services.notifier.sender",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(SENT_WITHIN_S):
                out, _ = await process.communicate(asked)
        except TimeoutError:
            return f"not sent within {SENT_WITHIN_S:.0f} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            return str(json.loads(out)["trouble"])
        except (ValueError, KeyError, TypeError):
            return f"the process that sends ended with {process.returncode}"

    async def close(self) -> None:
        """Give up what is being sent: it is sent again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Answers:
    """Answers the gateway: may a VC tell these targets, a test, and what was told lately."""

    def __init__(
        self, bus: Bus, config: Config, sending: Sending, machine: NotifierMachine
    ) -> None:
        self._bus, self._config, self._sending, self._machine = bus, config, sending, machine
        self._testing = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def heard(self, asked: Delivery) -> None:
        """Take a request; a test is answered once it has been sent."""
        if not asked.reply:
            return
        try:
            ask = _ASKS.decode(asked.payload)
        except UNDECODABLE as error:
            await self._say(asked, NotifierSays(trouble=one_line(error)))
            return
        if ask.do != "test":
            await self._say(asked, self._says(ask))
            return
        task = asyncio.ensure_future(self._test(asked, ask))
        self._tasks[id(task)] = task
        task.add_done_callback(lambda done: self._tasks.pop(id(done)))

    def _says(self, ask: AskNotifier) -> NotifierSays:
        if ask.do == "check":
            return NotifierSays(problems=tuple(self._config.problems(ask.vc or "", ask.to)))
        return NotifierSays(
            targets=tuple(self._config.shown(ask.vc)),
            messages=_fitting(self._machine.shown(ask.vc)),
            waiting=self._machine.waiting(ask.vc),
            mail=self._config.mail is not None,
            webhooks=self._config.webhooks.allow,
        )

    async def _test(self, asked: Delivery, ask: AskNotifier) -> None:
        vc, to = ask.vc or "", ask.to[:1]
        problems = self._config.problems(vc, to)
        if problems or not to:
            await self._say(asked, NotifierSays(problems=tuple(problems)))
            return
        if self._testing >= TESTS_MAX:
            await self._say(
                asked, NotifierSays(trouble=f"{TESTS_MAX} tests are being sent already")
            )
            return
        self._testing += 1
        try:
            text = f"A test of target {shown(to[0])} by {ask.by or 'an operator'}"
            notice = NoticeMade(job="", event="test", vc=vc, target=to[0], text=text, at=Instant(0))
            trouble, _ = await self._sending.send(vc, to[0], (notice,), 0)
        finally:
            self._testing -= 1
        await self._say(asked, NotifierSays(trouble=trouble))

    async def _say(self, asked: Delivery, says: NotifierSays) -> None:
        await self._bus.send(asked.reply, codec.encode(says), {})


def _fitting(messages: list[MessageShown]) -> tuple[MessageShown, ...]:
    """Return the first messages, as many as fit an answer; URLs without what may be secret."""
    found: list[MessageShown] = []
    size = 0
    for each in messages:
        told = msgspec.structs.replace(each, target=shown(each.target))
        size += len(codec.encode(told))
        if size > SHOWN_BYTES_MAX:
            break
        found.append(told)
    return tuple(found)


def hosts_of(urls: str) -> tuple[str, ...]:
    """Return the hosts of some URLs, which commas separate."""
    found = (urlsplit(url.strip()).hostname for url in urls.split(","))
    return tuple(host for host in found if host)
