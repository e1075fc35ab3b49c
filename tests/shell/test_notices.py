"""How notices leave: real mail and webhooks, what is refused, and the operator's file."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from skep.machines.notifier import Deliver, Delivered, NotifierMachine
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.notices import AskNotifier, NoticeMade, NotifierSays
from skep.wire.reasons import Reason
from skep_services.notifier import sender, settings, webhook
from skep_services.notifier.addresses import parse, trouble_of
from skep_services.notifier.delivering import Answers, Sending, body_of, hosts_of, title_of
from skep_services.notifier.settings import Config, Mail, Target, Webhooks
from skep_services.ports import Delivery
from skep_services.service import ConfigurationError
from tests.support.receivers import MailServer, WebServer

HERE = Webhooks(allow=True, networks=("127.0.0.0/8",))
APPRISE = importlib.util.find_spec("apprise") is not None
needs_apprise = pytest.mark.skipif(not APPRISE, reason="Apprise is not installed (extra notify)")


def notice(job: str = "j1", text: str = "j1 (train) in nlp succeeded: it ended") -> NoticeMade:
    return NoticeMade(job=job, event="end", vc="nlp", target="team", text=text, at=Instant(5))


def sending(config: Config, hosts: tuple[str, ...] = ()) -> Sending:
    return Sending(config, "abc", hosts, structlog.get_logger())


async def send(config: Config, target: str, *notices: NoticeMade) -> tuple[str, bool]:
    return await sending(config).send("nlp", target, notices or (notice(),), 7)


# --- webhooks ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_webhook_gets_json_that_says_which_message_it_is() -> None:
    with WebServer() as web:
        url = f"http://127.0.0.1:{web.port}/hook?a=b"
        assert await send(Config(webhooks=HERE), url, notice(), notice("j2", "j2 ended")) == (
            "",
            False,
        )
        ((path, headers, body),) = web.got
    assert (path, headers["idempotency-key"], body["id"]) == ("/hook?a=b", "abc-7", "abc-7")
    assert body["text"].startswith("Skep: 2 notices of 2 jobs in nlp\nj1 (train) in nlp succeeded")
    assert [each["job"] for each in body["notices"]] == ["j1", "j2"]


@pytest.mark.parametrize(
    "status, trouble, final",
    [
        ("500 Oops", "it answers 500", False),
        ("429 Slowly", "it answers 429", False),
        ("404 Gone", "it answers 404", True),
        ("302 Found", "it answers 302: redirects are not followed", True),
    ],
)
@pytest.mark.asyncio
async def test_what_a_webhook_answers(status: str, trouble: str, final: bool) -> None:
    with WebServer() as web:
        web.status, web.location = status, f"http://127.0.0.1:{web.port}/other"
        url = f"http://127.0.0.1:{web.port}/hook"
        assert await send(Config(webhooks=HERE), url) == (trouble, final)
        assert [path for path, *_ in web.got] == ["/hook"]


@pytest.mark.asyncio
async def test_a_webhook_that_is_not_there_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    trouble, final = await send(Config(webhooks=HERE), f"http://127.0.0.1:{port}/")
    assert "Cannot connect" in trouble
    assert not final


REACHED = (
    "http://127.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST.:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://0.0.0.0:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
)
"""Ways to write this machine: resolvers take some, and refuse others."""


@pytest.mark.parametrize("url", REACHED)
@pytest.mark.asyncio
async def test_a_webhook_of_a_job_does_not_reach_this_machine(url: str) -> None:
    with WebServer() as web:
        trouble, _ = await send(Config(webhooks=Webhooks(allow=True)), url.format(port=web.port))
        assert trouble
        assert web.got == []


@pytest.mark.asyncio
async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A name that is a public address when it is looked up first, and this machine from then on.
    answers = ["93.184.216.34", "127.0.0.1", "127.0.0.1"]
    asked = []

    async def looked_up(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[len(asked) - 1], port))]

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", looked_up)
    resolver = webhook.Checked((), ())
    (first,) = await resolver.resolve("rebind.example.org", 80)
    assert (first["host"], first["flags"]) == ("93.184.216.34", socket.AI_NUMERICHOST)
    with pytest.raises(webhook.NotAllowedError, match=r"127\.0\.0\.1 is no public address"):
        await resolver.resolve("rebind.example.org", 80)
    trouble, final = await send(Config(webhooks=Webhooks(allow=True)), "http://rebind.example.org/")
    assert (trouble, final) == ("rebind.example.org: 127.0.0.1 is no public address", True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1", "::127.0.0.1"),
        *("2002:7f00:1::", "64:ff9b::a00:1", "fe80::1%eth0", "2001:0:a00:1::80ff:fffe"),
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    known = parse(address)
    assert known is not None
    assert trouble_of(known)


def test_public_addresses_and_those_that_are_allowed_are_not_refused() -> None:
    for text in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"):
        assert trouble_of(parse(text) or pytest.fail(text)) == ""
    ten = ipaddress.ip_network("10.20.0.0/16")
    assert trouble_of(ipaddress.ip_address("10.20.3.4"), [ten]) == ""
    assert trouble_of(ipaddress.ip_address("::ffff:10.20.3.4"), [ten]) == ""
    bus = ipaddress.ip_address("93.184.216.34")
    assert "the cluster's own bus" in trouble_of(bus, [], [bus])
    assert hosts_of("nats://a:1, tls://[::1]:2") == ("a", "::1")


@pytest.mark.asyncio
async def test_the_bus_is_refused_also_at_a_public_address() -> None:
    public = Config(webhooks=Webhooks(allow=True))
    caller = sending(public, ("93.184.216.34",))
    trouble, final = await caller.send("nlp", "http://93.184.216.34:4222/", (notice(),), 1)
    assert (trouble, final) == ("93.184.216.34 is an address of the cluster's own bus", True)


# --- mail and targets ----------------------------------------------------------------------------


def mail_config(port: int) -> Config:
    url = f"mailto://127.0.0.1:{port}?from=skep@example.org"
    return Config(
        targets={"team": Target(url=f"{url}&to=team@example.org")},
        mail=Mail(url=url, domains=("example.org",)),
    )


@needs_apprise
@pytest.mark.asyncio
async def test_mail_goes_to_a_target_by_a_process_of_its_own() -> None:
    with MailServer() as mail:
        assert await send(mail_config(mail.port), "team") == ("", False)
        ((to, text),) = mail.got
    assert to == ["team@example.org"]
    assert "Subject: Skep: j1 (train) in nlp succeeded" in text
    assert "(Skep, message 7)" in text


@needs_apprise
def test_mail_goes_to_an_address_by_the_operators_server() -> None:
    with MailServer() as mail:
        url = mail_config(mail.port).apprise_url("anna@example.org")
        assert sender.send(url, "Skep: j1 succeeded", "j1 succeeded") == ""
        assert [to for to, _ in mail.got] == [["anna@example.org"]]
        mail.refuse = 1
        trouble = sender.send(url, "Skep: j2 succeeded", "j2 succeeded")
        assert trouble
        assert "127.0.0.1" not in trouble


def test_what_a_library_says_is_told_without_the_url() -> None:
    url = "slack://tokenA/tokenB/tokenC/#channel?password=hunter22"
    text = "Failed for tokenA tokenB\n at hunter22: error=404"
    assert sender.without(text, url) == "Failed for *** *** at ***: error=404"


@needs_apprise
def test_the_process_that_sends_says_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert sender.send("nothing-known://x", "a", "b") == "Apprise does not know the target's URL"


def test_a_message_of_many_is_bounded() -> None:
    many = tuple(notice(f"j{number}", f"j{number} ended") for number in range(300))
    assert title_of(many) == "Skep: 300 notices of 300 jobs in nlp"
    assert body_of(many, 3).count("\n") < 110


@pytest.mark.parametrize(
    "target, reason, text",
    [
        ("nobody", Reason.UNKNOWN_TARGET, "there is no target `nobody`; there are team"),
        ("vision", Reason.TARGET_NOT_ALLOWED, "target `vision` is not for VC nlp"),
        ("a@b.org", Reason.TARGET_NOT_ALLOWED, "mail goes to example.org only, not to b.org"),
        (
            "https://example.org/",
            Reason.TARGET_NOT_ALLOWED,
            "URLs are not allowed here: name a target of the operator's (skep notify ls)",
        ),
    ],
)
@pytest.mark.asyncio
async def test_targets_that_a_vc_may_not_tell(target: str, reason: Reason, text: str) -> None:
    config = Config(
        targets={"team": Target(url="json://x"), "vision": Target(url="json://y", vcs=("vision",))},
        mail=Mail(url="mailto://x", domains=("example.org",)),
    )
    (problem,) = config.problems("nlp", [target])
    assert (problem.path, problem.reason, problem.text) == ("$.notify.to[0]", reason, text)
    assert await send(config, target) == (text, True)


def test_webhooks_may_be_at_named_hosts_only() -> None:
    config = Config(webhooks=Webhooks(allow=True, hosts=("hooks.example.org",)))
    assert config.problems("nlp", ["https://hooks.example.org/x"]) == []
    (problem,) = config.problems("nlp", ["https://hooks.example.org.evil.test/"])
    assert problem.text.startswith("webhooks may be at hooks.example.org only")
    (problem,) = Config().problems("nlp", ["anna@example.org"])
    assert problem.text == "mail addresses are not allowed here: the operator's file has no [mail]"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "notify.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text, mode, line",
    [
        ("", 0o644, "has passwords and can be read by others: chmod 600"),
        ("x", 0o600, "Expected"),
        ("[targets.a]\n", 0o600, "Object missing required field `url` - at `$.targets[...]`"),
        ("[target.a]\nurl='json://x'", 0o600, "Object contains unknown field `target`"),
        ("[targets.'a b']\nurl='json://x'", 0o600, "`a b` is no name of a target"),
        ("[webhooks]\nnetworks=['10.0.0.1/8']", 0o600, "10.0.0.1/8 has host bits set"),
        ("[mail]\nurl='json://x'", 0o600, "mail.url is no mailto:// or mailtos:// URL of Apprise"),
    ],
)
def test_an_operators_file_that_cannot_be_used(
    tmp_path: Path, text: str, mode: int, line: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings.read(written(tmp_path, text, mode))
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_missing_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        settings.read(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="more than 262144 bytes"):
        settings.read(written(tmp_path, "#" * 300_000))


def test_without_apprise_targets_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "apprise_of", lambda: None)
    path = written(tmp_path, "[targets.a]\nurl='json://x'")
    with pytest.raises(ConfigurationError, match=r"pip install 'skep\[notify\]'"):
        settings.read(path)
    allow = settings.read(written(tmp_path, "[webhooks]\nallow=true"))
    assert allow.webhooks.allow, "webhooks need no Apprise"


@needs_apprise
def test_a_url_that_apprise_does_not_know_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings.read(written(tmp_path, "[targets.a]\nurl='slakc://secret'"))
    assert "targets.a.url is no URL that Apprise knows" in str(raised.value)
    assert "secret" not in str(raised.value)


# --- what the machine and the gateway see --------------------------------------------------------


class Bus:
    """Takes answers."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[NotifierSays] = asyncio.Queue()

    async def send(self, subject: str, payload: bytes, headers: Any) -> None:
        assert subject == "_INBOX.x"
        self.said.put_nowait(codec_says(payload))


def codec_says(payload: bytes) -> NotifierSays:
    return msgspec.json.decode(payload, type=NotifierSays)


async def asked(answers: Answers, bus: Bus, payload: bytes) -> NotifierSays:
    await answers.heard(Delivery(subjects.NOTIFIER_ASKED, payload, reply="_INBOX.x"))
    async with asyncio.timeout(60):
        return await bus.said.get()


@pytest.mark.asyncio
async def test_a_message_comes_to_an_end_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: asyncio.Queue[Delivered] = asyncio.Queue()
    with WebServer() as web:
        url = f"http://127.0.0.1:{web.port}/"
        caller = sending(Config(webhooks=HERE))
        caller.start(Deliver(3, "nlp", url, (notice(),)), answered.put)
        async with asyncio.timeout(60):
            assert await answered.get() == Delivered(3, "nlp", url)

    async def broken(*_: Any) -> tuple[str, bool]:
        raise RuntimeError("a library")

    monkeypatch.setattr(caller, "send", broken)
    caller.start(Deliver(4, "nlp", url, (notice(),)), answered.put)
    async with asyncio.timeout(60):
        failed = await answered.get()
    assert failed == Delivered(4, "nlp", url, "RuntimeError in the notifier")
    await caller.close()


@pytest.mark.asyncio
async def test_the_gateway_is_answered() -> None:
    bus, machine = Bus(), NotifierMachine()
    with WebServer() as web:
        url = f"http://127.0.0.1:{web.port}/secret"
        config = Config(targets={"team": Target(url="json://x")}, webhooks=HERE)
        answers = Answers(bus, config, sending(config), machine)  # type: ignore[arg-type]
        check = AskNotifier(do="check", vc="nlp", to=("team", "none"))
        says = await asked(answers, bus, codec.encode(check))
        assert [each.path for each in says.problems] == ["$.notify.to[1]"]
        says = await asked(answers, bus, codec.encode(AskNotifier(do="list")))
        assert [(each.name, each.kind) for each in says.targets] == [("team", "json")]
        assert (says.mail, says.webhooks) == (False, True)
        test = AskNotifier(do="test", vc="nlp", to=(url,), by="anna")
        assert await asked(answers, bus, codec.encode(test)) == NotifierSays()
        assert "A test of target http://127.0.0.1" in web.got[0][2]["text"]
        test = AskNotifier(do="test", vc="nlp", to=("none",))
        assert (await asked(answers, bus, codec.encode(test))).problems
    assert "truncated" in (await asked(answers, bus, b"{")).trouble
    assert (await asked(answers, bus, json.dumps({"type": "x"}).encode())).trouble
