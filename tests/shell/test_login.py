"""Logging in at a provider: both flows to their ends, and every ID token that does not hold."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from skep.units import Instant
from skep.wire.roles import Role
from skep_services.attempts import Attempts
from skep_services.cli import flows
from skep_services.cli.exits import CommandError
from skep_services.gateway.oidc import OidcSettings, is_safe, read_settings
from skep_services.service import ConfigurationError
from tests.oidc_kit import CLIENT, RSA_KEY, Issuer
from tests.oidc_kit import opened as provider_opened
from tests.people_kit import PeopleHouse
from tests.people_kit import opened as gateway_opened

pytestmark = pytest.mark.asyncio
GROUPS = {"ml": {"nlp": Role.SUBMITTER}, "leads": {"nlp": Role.MANAGER, "vision": Role.VIEWER}}


@asynccontextmanager
async def both(folder: Path, **settings: Any) -> AsyncIterator[tuple[PeopleHouse, Issuer]]:
    async with provider_opened() as issuer:
        given = {"groups": GROUPS, "add_people": True, "names_are_fixed": True, **settings}
        oidc = OidcSettings(issuer=issuer.issuer, client_id=CLIENT, **given)
        async with gateway_opened(folder, oidc=oidc) as house:
            # ID tokens have the real time; so has this gateway.
            house.cluster.clock._now = Instant(time.time_ns())
            yield house, issuer


async def asked(house: PeopleHouse) -> flows.Asked:
    told = (await house.nobody.get("/v1/login"))["oidc"]
    return flows.Asked(**{key: told[key] for key in flows.Asked._fields})


async def login(house: PeopleHouse, token: str, status: int = 201, nonce: str = "") -> Any:
    body = {"id_token": token, "name": "laptop", "nonce": nonce}
    return await house.nobody.json("POST", "/v1/login", status, body)


async def test_a_person_logs_in_by_a_code(tmp_path: Path) -> None:
    async with both(tmp_path) as (house, issuer):
        issuer.claims = {"groups": ["ml", "leads", "others"]}
        said: list[str] = []
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                issuer.answer(approve=True)

        provider = await asyncio.to_thread(flows.Provider, await asked(house))
        assert provider.has_devices
        token = await asyncio.to_thread(provider.by_device, said.append, sleep)
        assert (waits, "ABCD-EFGH" in said[0]) == ([5.0, 5.0], True)
        made = await login(house, token)
        me = await house.client(made["text"]).get("/v1/whoami")
        assert (me["person"], me["roles"]) == ("ada", {"nlp": "manager", "vision": "viewer"})
        # Each ID token logs in once, and the groups of the next one are those that count.
        assert (await login(house, token, 401))["error"]["reason"] == "login-repeated"
        # Nor does it with its signature written otherwise, which holds as well.
        assert (await login(house, token + "==", 401))["error"]["reason"] == "login-repeated"
        issuer.claims = {"groups": ["ml"], "jti": "2"}
        await login(house, issuer.token())
        assert (await house.client(made["text"]).get("/v1/whoami"))["roles"] == {"nlp": "submitter"}
        *_, line = (await house.op.get("/v1/audit?action=log+in&outcome=refused"))["lines"]
        assert (line["target"], line["why"]) == ("ada", "login-repeated")


async def test_a_person_logs_in_by_a_browser(tmp_path: Path) -> None:
    async with both(tmp_path) as (house, issuer):
        issuer.kid, issuer.algorithm = "ec", "ES256"
        question = await asked(house)
        provider = await asyncio.to_thread(flows.Provider, question)

        def browse(address: str) -> None:
            # A page of another's makes up an answer; the listener does not take it.
            query = dict(urllib.parse.parse_qsl(address.partition("?")[2]))
            loop.call_soon_threadsafe(
                lambda: tasks.append(asyncio.ensure_future(visit(query["redirect_uri"], address)))
            )

        async def visit(back: str, address: str) -> None:
            async with house.session.get(f"{back}?code=evil&state=guess") as answer:
                assert answer.status == 400
            async with house.session.get(address) as answer:
                assert answer.status == 200

        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        token = await asyncio.to_thread(provider.by_browser, browse, 30.0)
        await asyncio.gather(*tasks)
        assert (await login(house, token, 401, nonce="x.1.y"))["error"]["reason"] == (
            "login-refused"
        )
        other = (await asked(house)).nonce
        assert "nonce" in (await login(house, token, 401, nonce=other))["error"]["text"]
        made = await login(house, token, nonce=question.nonce)
        assert made["person"] == "ada"


async def test_a_person_may_decline(tmp_path: Path) -> None:
    async with both(tmp_path) as (house, issuer):
        provider = await asyncio.to_thread(flows.Provider, await asked(house))
        decline: Callable[[float], None] = lambda _: issuer.answer(approve=False)  # noqa: E731
        with pytest.raises(CommandError, match="access_denied"):
            await asyncio.to_thread(provider.by_device, lambda _: None, decline)
        with pytest.raises(CommandError, match="expired"):
            await asyncio.to_thread(provider.by_device, lambda _: None, lambda _: None)


def _unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def _with_public_key(token: str) -> str:
    """Sign by HMAC with the provider's public key, which everybody knows."""
    import hmac

    head = {"alg": "HS256", "typ": "JWT", "kid": "rsa"}
    first = base64.urlsafe_b64encode(json.dumps(head).encode()).decode().rstrip("=")
    body = f"{first}.{token.split('.')[1]}"
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = hmac.new(public, body.encode(), "sha256").digest()
    return f"{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


async def test_id_tokens_that_do_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempts, "failed", lambda self, *whose: None)
    other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    async with both(tmp_path) as (house, issuer):
        now = int(time.time())
        good = issuer.token()
        cases = {
            "by another key": issuer.token(key=other_key),
            "by an unknown key": issuer.token(kid="new"),
            "by a key of another kind": issuer.token(kid="ec"),
            "unsigned": _unsigned(good),
            "by the public key": _with_public_key(good),
            "of another issuer": issuer.token(iss="https://evil.example"),
            "for another program": issuer.token(aud="other"),
            "for several": issuer.token(aud=[CLIENT, "other"]),
            "of another party": issuer.token(azp="other"),
            "expired": issuer.token(exp=now - 120),
            "old": issuer.token(iat=now - 3600),
            "from the future": issuer.token(iat=now + 600),
            "without an end": issuer.token(exp=None),
            "without a subject": issuer.token(sub=None),
            "without a name": issuer.token(preferred_username=None),
            "with a name of two tokens": issuer.token(preferred_username="a.b"),
            "with a wildcard": issuer.token(preferred_username=">"),
            "with an odd name": issuer.token(preferred_username="аdа"),
            "changed": good[:-8] + "AAAAAAAA",
            "no token": "x.y.z",
            "empty": "",
        }
        for name, token in cases.items():
            told = (await login(house, token, 401))["error"]
            assert told["reason"] == "login-refused", name
            assert told["text"].isprintable(), name
            assert len(told["text"]) < 400, name
        # A name of the system does not become a person by a login either.
        told = await login(house, issuer.token(preferred_username="operator"), 422)
        assert told["error"]["reason"] == "name-reserved"
        # Unknown keys do not have the provider asked again and again.
        assert issuer.fetched == 1
        await login(house, good)


async def test_a_local_account_is_no_providers(tmp_path: Path) -> None:
    async with both(tmp_path, add_people=False) as (house, issuer):
        await house.with_person("ada", nlp="manager")
        told = (await login(house, issuer.token(), 403))["error"]
        assert told["reason"] == "login-of-another"
        issuer.person = "eve"
        assert (await login(house, issuer.token(), 404))["error"]["reason"] == "unknown-person"
        await house.op.json("POST", "/v1/people/add", 200, {"person": "eve", "oidc": True})
        await login(house, issuer.token(jti="again"))
        stolen = issuer.token(sub="the next eve")
        assert (await login(house, stolen, 403))["error"]["reason"] == "login-of-another"


async def test_a_name_that_people_choose_is_bound_by_an_operator(tmp_path: Path) -> None:
    async with both(tmp_path, names_are_fixed=False) as (house, issuer):
        told = (await login(house, issuer.token(), 403))["error"]
        assert told["reason"] == "login-not-bound"
        assert "`skep user bind ada sub-ada`" in told["text"]
        await house.op.json("POST", "/v1/people/add", 200, {"person": "ada", "oidc": True})
        await login(house, issuer.token(sub="eve's account"), 403)
        bind = {"person": "ada", "subject": "sub-ada"}
        await house.nobody.json("POST", "/v1/people/bind", 401, bind)
        await house.op.json("POST", "/v1/people/bind", 200, bind)
        await login(house, issuer.token(jti="1"))
        stolen = (await login(house, issuer.token(sub="eve's account"), 403))["error"]
        assert stolen["reason"] == "login-of-another"


@pytest.mark.parametrize("flow", ["device", "browser"])
async def test_the_secret_of_a_client_stays_at_the_gateway(tmp_path: Path, flow: str) -> None:
    async with both(tmp_path, client_secret="hush") as (house, issuer):
        issuer.secret = "hush"
        assert "hush" not in json.dumps(await house.nobody.get("/v1/login"))
        told: list[Any] = []
        loop = asyncio.get_running_loop()

        def through(body: dict[str, str]) -> dict[str, Any]:
            asked = house.nobody.json("POST", "/v1/login/provider", 200, body)
            told.append(asyncio.run_coroutine_threadsafe(asked, loop).result())
            return dict(told[-1])

        async def visit(address: str) -> None:
            async with house.session.get(address) as answer:
                assert answer.status == 200

        question = await asked(house)
        provider = await asyncio.to_thread(flows.Provider, question, through)
        if flow == "device":
            approve: Callable[[float], None] = lambda _: issuer.answer(approve=True)  # noqa: E731
            token = await asyncio.to_thread(provider.by_device, lambda _: None, approve)
            await login(house, token)
        else:
            browse = lambda page: asyncio.run_coroutine_threadsafe(visit(page), loop)  # noqa: E731
            token = await asyncio.to_thread(provider.by_browser, browse, 30.0)
            await login(house, token, nonce=question.nonce)
        assert set(told[-1]) == {"id_token"}  # The token of access stays at the gateway.
        for wrong in (
            {"code": "x", "code_verifier": "y", "redirect_uri": "https://evil.example/"},
            {"code": "x"},
            {"grant_type": "client_credentials"},
        ):
            await house.nobody.json("POST", "/v1/login/provider", 422, wrong)
        refused = await house.nobody.json("POST", "/v1/login/provider", 200, {"device_code": "no"})
        assert refused == {"error": "authorization_pending"}


async def test_without_a_secret_the_gateway_asks_no_provider(tmp_path: Path) -> None:
    async with both(tmp_path) as (house, _):
        told = await house.nobody.json("POST", "/v1/login/provider", 404, {})
        assert told["error"]["reason"] == "no-provider"


async def test_an_address_names_a_person_if_it_is_verified(tmp_path: Path) -> None:
    settings = {"claim": "email", "domains": ("corp.example",), "names_are_fixed": False}
    async with both(tmp_path, **settings) as (house, issuer):
        for claims in (
            {"email": "ada@corp.example"},
            {"email": "ada@corp.example", "email_verified": "true"},
            {"email": "ada@evil.example", "email_verified": True},
        ):
            told = (await login(house, issuer.token(**claims), 401))["error"]
            assert told["reason"] == "login-refused", claims
        good = issuer.token(email="ada@corp.example", email_verified=True)
        assert (await login(house, good))["person"] == "ada"


async def test_a_provider_without_groups_leaves_those_of_a_directory(tmp_path: Path) -> None:
    async with both(tmp_path, groups={}) as (house, issuer):
        await login(house, issuer.token())
        body = {"person": "ada", "roles": {"nlp": "submitter"}}
        await house.op.json("POST", "/v1/group-roles", 200, body)
        await house.nlp.json("POST", "/v1/group-roles", 403, body)
        token = (await login(house, issuer.token(jti="1")))["text"]
        assert (await house.client(token).get("/v1/whoami"))["roles"] == {"nlp": "submitter"}


async def test_the_providers_keys_may_change_and_it_may_be_away(tmp_path: Path) -> None:
    async with provider_opened() as issuer:
        oidc = OidcSettings(
            issuer=issuer.issuer, client_id=CLIENT, add_people=True, names_are_fixed=True
        )
        async with gateway_opened(tmp_path, oidc=oidc) as house:
            house.cluster.clock._now = Instant(time.time_ns())
            provider = house.gateway.people._provider
            assert provider is not None
            ticks = [0.0]
            provider._ticks_s = lambda: ticks[0]
            await login(house, issuer.token())
            issuer.keys["new"] = issuer.keys.pop("rsa")
            issuer.kid = "new"
            await login(house, issuer.token(jti="1"), 401)
            ticks[0] = 31.0
            await login(house, issuer.token(jti="2"))
            assert issuer.fetched == 2
            provider.settings = OidcSettings(issuer="http://127.0.0.1:9", client_id=CLIENT)
            ticks[0] = 62.0
            gone = issuer.token(kid="newer", iss="http://127.0.0.1:9")
            assert (await login(house, gone, 503))["error"]["reason"] == "provider-away"
            told = await house.op.get("/v1/provider")
            assert (told["issuer"], told["ok"], told["ahead_s"]) == (
                "http://127.0.0.1:9",
                False,
                None,
            )
            assert "127.0.0.1:9" in told["text"]
            provider.settings = oidc
            told = await house.op.get("/v1/provider")
            assert (told["ok"], told["text"]) == (True, "")
            assert abs(told["ahead_s"]) < 5
            await house.nlp.get("/v1/provider", 403)


@pytest.mark.parametrize(
    "text, why",
    [
        ("{}", "issuer"),
        ('{"issuer": "http://id.example", "client_id": "x"}', "https"),
        ('{"issuer": "https://id", "client_id": "x", "claim": "email"}', "domains"),
        ('{"issuer": "https://id", "client_id": "x", "secret": 1}', "unknown field"),
        (
            '{"issuer": "https://id", "client_id": "x", "groups": {"g": {"nlp": "operator"}}}',
            "operators",
        ),
    ],
)
async def test_settings_that_cannot_be(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "oidc.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        read_settings(str(path))


async def test_what_is_not_encrypted_is_not_asked() -> None:
    assert is_safe("https://id.example/x")
    assert is_safe("http://127.0.0.1:80/x")
    for url in ("http://id.example", "ftp://127.0.0.1", "http://127.0.0.1.evil.example", ""):
        assert not is_safe(url)
    with pytest.raises(CommandError, match="not encrypted"):
        flows._json("http://id.example/x", None)
