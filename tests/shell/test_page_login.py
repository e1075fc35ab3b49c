"""Logging in to the page at a provider: the whole way, and every way that must not work."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skep.units import Instant, seconds
from skep_services.gateway.oidc import read_settings
from skep_services.service import ConfigurationError
from tests.oidc_kit import Issuer
from tests.people_kit import PeopleHouse
from tests.shell.test_login import both

pytestmark = pytest.mark.asyncio
PAGE = "https://skep.example"


class Tab:
    """A tab of a browser with the page in it, up to what it sends at the end."""

    def __init__(self, house: PeopleHouse) -> None:
        self.house, self.verifier, self.state = house, secrets.token_urlsafe(48), ""

    async def begin(self, page: str = PAGE, status: int = 200) -> Any:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        body = {"page": page, "challenge": challenge}
        told = await self.house.nobody.json("POST", "/v1/login/begin", status, body)
        self.state = told.get("state", "")
        return told

    async def back(self) -> dict[str, Any]:
        """Return what is sent at the end of a login in which the person agrees."""
        url = (await self.begin())["url"]
        async with self.house.session.get(url, allow_redirects=False) as answer:
            location = answer.headers["Location"]
        address, _, query = location.partition("?")
        assert address == f"{PAGE}/login"
        told = dict(urllib.parse.parse_qsl(query))
        assert told["state"] == self.state
        return {
            "page": PAGE,
            "code": told["code"],
            "state": told["state"],
            "code_verifier": self.verifier,
            "issuer": told["iss"],
        }

    async def end(self, body: dict[str, Any], status: int = 201) -> Any:
        return await self.house.nobody.json("POST", "/v1/login/end", status, body)

    async def refused(self, body: dict[str, Any], status: int = 401) -> str:
        """Return the line by which the end of a login is refused."""
        error = (await self.end(body, status))["error"]
        assert status != 401 or error["reason"] == "login-refused"
        assert "\n" not in error["text"]
        return str(error["text"])


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[tuple[PeopleHouse, Issuer]]:
    async with both(folder, pages=(PAGE,), page_hours=2.0, **settings) as found:
        yield found


@pytest.mark.parametrize("secret", ["", "hush"])
async def test_a_person_logs_in_to_the_page_and_out(tmp_path: Path, secret: str) -> None:
    async with opened(tmp_path, client_secret=secret) as (house, issuer):
        issuer.secret = secret or None
        issuer.claims = {"groups": ["ml"]}
        assert (await house.nobody.get("/v1/login"))["oidc"]["pages"] == [PAGE]
        tab = Tab(house)
        body = await tab.back()
        made = await tab.end(body)
        assert (made["person"], made["name"]) == ("ada", "page")
        left = made["expires_at"] - house.cluster.clock.now()
        assert seconds(7000.0) < left <= seconds(7200.0)
        person = house.client(made["text"])
        assert (await person.get("/v1/whoami"))["roles"] == {"nlp": "submitter"}
        # The code was for one login; what was signed does not make it good again.
        assert "does not take the code (invalid_grant)" in await tab.refused(body)
        await person.json("POST", "/v1/logout", 200, {})
        assert (await person.get("/v1/whoami", 401))["error"]["reason"] == "token-revoked"


async def test_a_login_that_began_elsewhere_does_not_end_here(tmp_path: Path) -> None:
    async with opened(tmp_path) as (house, issuer):
        mine, theirs = Tab(house), Tab(house)
        body, other = await mine.back(), await theirs.back()
        elsewhere = "it did not begin in this tab"
        made, signature = mine.state.rsplit("-", 1)
        chance, at = made.split("-")
        for forged in (
            "",
            "-",
            "guess",
            "é",
            f"{made}-{'0' * 32}",
            f"{chance}-{int(at) + 600}-{signature}",
            other["state"],  # Of another tab, with a verifier that is not its own.
        ):
            assert elsewhere in await mine.refused({**body, "state": forged}), forged
        # A code of another's login, put into this one: neither state nor code is enough.
        assert elsewhere in await mine.refused({**other, "code_verifier": mine.verifier})
        assert issuer.exchanges == 0
        text = await mine.refused({**body, "code": other["code"]})
        assert "invalid_grant" in text
        house.cluster.clock._now = Instant(house.cluster.clock.now() + seconds(601.0))
        assert elsewhere in await theirs.refused(other)


async def test_the_answer_of_another_provider_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (house, issuer):
        tab = Tab(house)
        body = await tab.back()
        evil = {**body, "issuer": "https://evil.example"}
        assert "from another provider (iss)" in await tab.refused(evil)
        silent = {key: value for key, value in body.items() if key != "issuer"}
        assert "does not say which provider" in await tab.refused(silent)
        assert issuer.exchanges == 0
        # One that never says it is not held to it; a wrong one is refused all the same.
        provider = house.gateway.people._provider
        assert provider is not None
        issuer.names_itself, provider._about_at = False, None
        assert "from another provider (iss)" in await tab.refused(evil)
        await tab.end(silent)


async def test_an_id_token_of_another_login_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (house, issuer):
        tab = Tab(house)
        for claims, why in (
            ({"iss": "https://evil.example"}, "Invalid issuer"),
            ({"aud": "another program"}, "Audience"),
        ):
            issuer.claims = claims
            assert why in await tab.refused(await tab.back())
        issuer.claims = {}
        body = await tab.back()
        issuer.codes[body["code"]]["nonce"] = "of another login"
        assert "for another login (nonce)" in await tab.refused(body)


async def test_browsers_are_sent_back_to_the_page_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (house, issuer):
        tab = Tab(house)
        for page in (
            "https://evil.example",
            f"{PAGE}.evil.example",
            f"{PAGE}/",
            f"{PAGE}@evil.example",
            "http://skep.example",
            "javascript:alert(1)//",
            "",
            PAGE + "\n",
        ):
            error = (await tab.begin(page, 422))["error"]
            assert "none of the `pages`" in error["text"], page
            assert error["text"].isprintable()
        body = await tab.back()
        text = await tab.refused({**body, "page": "https://evil.example"}, 422)
        assert "none of the `pages`" in text
        for wrong in ({"code_verifier": "short"}, {"code": ""}, {"code": "x" * 4097}, {"more": 1}):
            await tab.end({**body, **wrong}, 422)
        for challenge in ("", "a" * 42, "a" * 43 + "\n", "+" * 43):
            wrong = {"page": PAGE, "challenge": challenge}
            await house.nobody.json("POST", "/v1/login/begin", 422, wrong)
        provider = house.gateway.people._provider
        assert provider is not None
        provider._about = {**provider._about, "authorization_endpoint": "http://evil.example/"}
        assert "no address to log in at" in (await tab.begin(status=409))["error"]["text"]
        assert issuer.exchanges == 0


async def test_logins_of_the_page_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as (house, issuer):
        await Tab(house).begin()
        limited = 0
        for _ in range(3):
            begun = [Tab(house).begin(status=200) for _ in range(33)]
            told = await asyncio.gather(*begun, return_exceptions=True)
            limited += sum(isinstance(each, AssertionError) for each in told)
        told = (await Tab(house).begin(status=429))["error"]
        assert (told["reason"], limited <= 1) == ("too-many-attempts", True)
        assert issuer.exchanges == 0


async def test_without_a_provider_the_page_says_what_to_do(tmp_path: Path) -> None:
    from tests.people_kit import opened as gateway_opened

    async with gateway_opened(tmp_path) as house:
        error = (await Tab(house).begin(status=404))["error"]
        assert (error["reason"], "skep token create" in error["text"]) == ("no-provider", True)


@pytest.mark.parametrize(
    "page",
    [
        "https://skep.example/",
        "https://skep.example/page",
        "https://Skep.example",
        "https://skep.example:443",
        "https://ada@skep.example",
        "https://",
        "https://a b",
        "https://a:",
        "https://a:0443",
        "https://[a",
        "http://skep.example",
        "//skep.example",
        "skep.example",
        "",
    ],
)
async def test_pages_that_no_browser_is_at(tmp_path: Path, page: str) -> None:
    path = tmp_path / "oidc.json"
    path.write_text(f'{{"issuer": "https://id", "client_id": "x", "pages": ["{page}"]}}')
    with pytest.raises(ConfigurationError, match="`pages` has"):
        read_settings(str(path))
    path.write_text('{"issuer": "https://id", "client_id": "x", "pages": ["http://127.0.0.1:80"]}')
    with pytest.raises(ConfigurationError, match="`pages` has"):
        read_settings(str(path))
    path.write_text(
        '{"issuer": "https://id", "client_id": "x",'
        ' "pages": ["http://127.0.0.1:8470", "https://skep.example:8443"]}'
    )
    assert read_settings(str(path)) is not None
