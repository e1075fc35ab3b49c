"""People at the gateway: who is known, what each may, how nodes join, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from nacl.signing import SigningKey

from skep import __version__
from skep.units import NS_PER_SECOND, Duration, seconds
from skep.wire.access import Audited, Outcome
from skep.wire.reasons import Reason
from skep_services import attempts
from skep_services.access import secrets
from skep_services.attempts import ATTEMPTS, Bound
from skep_services.cli import exits
from skep_services.cli.main import main
from skep_services.gateway import asking
from skep_services.gateway.bodies import SMALL_BYTES_MAX
from skep_services.gateway.joins import renewal_text
from skep_services.pki.requests import new_request
from tests.gateway_kit import error
from tests.kit import spec
from tests.people_kit import PeopleHouse, opened

pytestmark = pytest.mark.asyncio
REQUEST = new_request("node-n1")[1].decode()
DAY = seconds(24 * 3600.0)


def bus_key(signing: SigningKey) -> str:
    """Return a public key as NATS writes it; what checks it is not looked at here."""
    return base64.b32encode(bytes([20 << 3]) + bytes(signing.verify_key) + b"\0\0").decode()[:56]


KEY = SigningKey(b"k" * 32)


def joining(text: str, node: str = "n1", **fields: Any) -> dict[str, Any]:
    token, secret, _ = text.split(".")
    return {
        "token": token,
        "secret": secret,
        "node": node,
        "key": bus_key(KEY),
        "request": REQUEST,
        "version": __version__,
        **fields,
    }


async def reason(answer: Any) -> str:
    told = (await answer)["error"]
    assert told["text"].isprintable()
    return str(told["reason"])


async def test_a_person_is_known_by_its_token(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada", nlp="submitter")
        me = await ada.get("/v1/whoami")
        assert (me["person"], me["roles"], me["operator"]) == ("ada", {"nlp": "submitter"}, False)
        assert me["token"]["name"] == "laptop"
        assert me["source"] == "127.0.0.1"
        for token in ("x", "skep_" + "a" * 12 + "_" + "b" * 43, ada.headers["Authorization"][7:-1]):
            assert await reason(house.client(token).get("/v1/whoami", 401)) == "unauthorized"
        assert (await house.op.get("/v1/whoami"))["operator"]
        assert (await house.nlp.get("/v1/whoami"))["roles"] == {"nlp": "manager"}


async def test_each_token_that_has_ended_says_why(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada", nlp="viewer")
        eve = await house.with_person("eve", nlp="viewer")
        bob = await house.with_person("bob", nlp="viewer")
        for one in (ada, eve, bob):
            await one.get("/v1/whoami")
        token = (await ada.get("/v1/tokens"))["tokens"][0]["token"]
        await house.op.json("POST", f"/v1/tokens/{token}/revoke", 200)
        assert await reason(ada.get("/v1/jobs", 401)) == "token-revoked"
        await house.op.json("POST", "/v1/people/disable", 200, {"person": "eve"})
        assert await reason(eve.get("/v1/jobs", 403)) == "person-disabled"
        await house.op.json("POST", "/v1/people/enable", 200, {"person": "eve"})
        await eve.get("/v1/whoami")
        await house.op.json("POST", "/v1/people/remove", 200, {"person": "eve"})
        assert await reason(eve.get("/v1/jobs", 401)) == "unauthorized"
        house.cluster.clock.advance(Duration(91 * DAY))
        assert await reason(bob.get("/v1/jobs", 401)) == "token-expired"


async def test_a_name_is_given_once_and_an_account_bound_by_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(tmp_path) as house:
        monkeypatch.setenv("SKEP_API", house.op.base)
        monkeypatch.setenv("SKEP_TOKEN", house.op.headers["Authorization"].partition(" ")[2])

        async def typed(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(main, ["user", *words])
            told = capsys.readouterr()
            return code, told.out + told.err

        assert (await typed("add", "eve", "--oidc"))[0] == 0
        issuer = ("--issuer", "https://id")
        assert (await typed("bind", "eve", "sub-1", *issuer)) == (0, "eve: bound\n")
        assert "eve is another account" in (await typed("bind", "eve", "sub-2", *issuer))[1]
        assert "name its `issuer`" in (await typed("bind", "eve", "sub-1"))[1]
        assert (await typed("bind", "eve"))[0] == (await typed("add", "eve", "x"))[0] == exits.USAGE
        assert (await typed("remove", "eve"))[0] == 0
        code, told = await typed("add", "eve")
        assert (code != 0, "its jobs and secrets stay with the name" in told) == (True, True)
        assert told.count("\n") == 1
        assert (await typed("add", "eve", "--again"))[0] == 0


async def test_a_revoked_token_is_refused_once_its_fact_is_here(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada", nlp="viewer")
        await ada.get("/v1/whoami")
        token = (await ada.get("/v1/tokens"))["tokens"][0]["token"]
        await house.op.json("POST", f"/v1/tokens/{token}/revoke", 200)
        assert await reason(ada.get("/v1/whoami", 401)) == "token-revoked"
        # It stays so for a gateway that starts anew, which answers nobody before it has read that.
        await house.restart()
        again = house.client(ada.headers["Authorization"][7:])
        assert await reason(again.get("/v1/whoami", 401)) == "token-revoked"


async def test_nobody_gets_above_its_role(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        vic = await house.with_person("vic", nlp="viewer")
        mia = await house.with_person("mia", nlp="manager")
        grant = {"person": "vic", "role": "manager", "vc": "nlp"}
        assert await reason(vic.json("POST", "/v1/roles/grant", 403, grant)) == "role-too-low"
        other = {"person": "vic", "role": "viewer", "vc": "vision"}
        assert await reason(mia.json("POST", "/v1/roles/grant", 403, other)) == "no-role"
        top = {"person": "mia", "role": "operator"}
        assert await reason(mia.json("POST", "/v1/roles/grant", 403, top)) == "role-too-low"
        lost = {"person": "vic", "role": "viewer", "vc": "lost"}
        assert await reason(house.op.json("POST", "/v1/roles/grant", 404, lost)) == "unknown-vc"
        none = {"person": "zoe", "role": "viewer", "vc": "nlp"}
        assert await reason(mia.json("POST", "/v1/roles/grant", 404, none)) == "unknown-person"
        assert await reason(vic.json("POST", "/v1/people/add", 403, {"person": "x"})) == (
            "role-too-low"
        )
        assert await reason(vic.json("POST", "/v1/join-tokens", 403, {})) == "role-too-low"
        assert await reason(vic.get("/v1/members", 403)) == "role-too-low"
        assert await reason(vic.get("/v1/tokens?person=mia", 403)) == "role-too-low"
        body = {"person": "mia", "name": "x"}
        assert await reason(vic.json("POST", "/v1/tokens", 403, body)) == "role-too-low"
        mias = (await mia.get("/v1/tokens"))["tokens"][0]["token"]
        assert await reason(vic.json("POST", f"/v1/tokens/{mias}/revoke", 403)) == "role-too-low"
        # A role that is taken away counts at once.
        await mia.json("POST", "/v1/roles/grant", 200, {**grant, "role": "submitter"})
        assert (await vic.get("/v1/whoami"))["roles"] == {"nlp": "submitter"}
        await mia.json("POST", "/v1/roles/revoke", 200, {"person": "vic", "vc": "nlp"})
        assert (await vic.get("/v1/whoami"))["roles"] == {}
        rows = (await mia.get("/v1/people"))["people"]
        assert [row["person"] for row in rows] == ["mia", "vic"]
        assert [row["person"] for row in (await vic.get("/v1/people"))["people"]] == ["vic"]


async def test_what_touches_others_is_in_the_audit_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        ada = await house.with_person("ada", nlp="submitter")
        mia = await house.with_person("mia", nlp="manager")
        bob = await house.with_person("bob", vision="submitter")
        own = (await ada.json("POST", "/v1/jobs", 201, spec()))["job"]
        other = (await ada.json("POST", "/v1/jobs", 201, spec()))["job"]
        await house.caught_up()
        await ada.json("DELETE", f"/v1/jobs/{own}", 202)
        await mia.json("DELETE", f"/v1/jobs/{other}", 202, None, Skep_Reason="it hung")
        await house.op.json("POST", "/v1/admin/drain", 202, {"node": "node-1"})
        await house.sees(len(house.cluster.broker.stream("ACCESS").messages))
        lines = (await house.op.get("/v1/audit"))["lines"]
        told = [(line["actor"], line["action"], line["target"]) for line in lines]
        assert ("mia", "cancel", other) in told
        assert ("operator", "admin drain", "node-1") in told
        assert all(target != own for _, _, target in told)
        (line,) = (await house.op.get("/v1/audit?action=cancel"))["lines"]
        assert (line["reason"], line["source"], line["vc"]) == ("it hung", "127.0.0.1", "nlp")
        seen = (await mia.get("/v1/audit"))["lines"]
        others = [line for line in seen if line["target"].partition("/")[0] != "mia"]
        assert {line.get("vc") for line in others if line["actor"] != "mia"} == {"nlp"}
        about = (await bob.get("/v1/audit"))["lines"]
        assert {line["target"].partition("/")[0] for line in about} == {"bob"}


async def test_what_the_table_of_rights_refuses_is_in_the_audit_log(tmp_path: Path) -> None:
    """With the actor, the address and the reason; a flood has one line, and is counted."""
    async with opened(tmp_path) as house:
        await house.with_nodes()
        ada = await house.with_person("ada", nlp="submitter")
        mia = await house.with_person("mia", nlp="manager")
        bob = await house.with_person("bob", vision="submitter")
        job = (await mia.json("POST", "/v1/jobs", 201, spec()))["job"]
        await house.caught_up()
        await ada.json("DELETE", f"/v1/jobs/{job}", 403)
        for _ in range(5):
            await ada.get(f"/v1/jobs/{job}/logs", 403)
        await bob.get(f"/v1/jobs/{job}", 404)  # It learns nothing of it, and is seen.
        await bob.get("/v1/jobs/j999", 404)  # That is no refusal.
        await house.vision.get("/v1/jobs?vc=nlp", 403)
        view = house.gateway.people.view
        assert view is not None

        def refused() -> dict[tuple[str, str], Audited]:
            lines = [line for line in view.lines if line.outcome is Outcome.REFUSED]
            found = {(line.actor, line.action): line for line in lines}
            assert len(found) == len(lines)
            return found

        assert await house.gateway.watch.until("access", lambda: len(refused()) == 4, 60)
        line = refused()["ada", "cancel"]
        assert (line.target, line.vc) == (job, "nlp")
        assert (line.why, line.source) == (Reason.NOT_ITS_OWNER, "127.0.0.1")
        assert line.token == (await ada.get("/v1/tokens"))["tokens"][0]["token"]
        assert refused()["ada", "read-logs"].why is Reason.NOT_ITS_OWNER
        assert refused()["bob", "see-jobs"].why is Reason.NO_ROLE
        assert refused()["vc-vision", "see-jobs"].why is Reason.WRONG_VC
        # A manager sees what was tried in its VC. A disabled person is known, too.
        seen = (await mia.get("/v1/audit?outcome=refused"))["lines"]
        assert {line["actor"] for line in seen} == {"ada", "bob", "vc-vision"}
        eve = await house.with_person("eve", nlp="viewer")
        await house.op.json("POST", "/v1/people/disable", 200, {"person": "eve"})
        await eve.get("/v1/jobs", 403)
        assert await house.gateway.watch.until(
            "access", lambda: ("eve", "see-jobs") in refused(), 60
        )
        assert refused()["eve", "see-jobs"].why is Reason.PERSON_DISABLED


async def test_what_cannot_be_noted_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        ada = await house.with_person("ada", nlp="submitter")
        mia = await house.with_person("mia", nlp="manager")
        job = (await ada.json("POST", "/v1/jobs", 201, spec()))["job"]
        await house.caught_up()
        house.access.deaf = True
        monkeypatch.setattr(asking, "ANSWER_S", 0.05)
        assert await reason(mia.json("DELETE", f"/v1/jobs/{job}", 503)) == "access-away"
        assert await reason(mia.json("POST", "/v1/tokens", 503, {"name": "x"})) == "access-away"
        # One's own jobs, and the way in of the last resort.
        await ada.json("DELETE", f"/v1/jobs/{job}", 202)
        await house.op.json("POST", "/v1/admin/drain", 202, {"node": "node-1"})


async def test_a_node_joins_renews_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as house:
        made = await house.op.json("POST", "/v1/join-tokens", 201, {"node": "n1"})
        assert made["text"].endswith("." + "ab" * 32)
        body = joining(made["text"])
        joined = await house.nobody.json("POST", "/v1/join", 201, body)
        assert joined["certificate"] == f"n1/{REQUEST}"
        assert await house.nobody.json("POST", "/v1/join", 201, body) == joined
        other = {**body, "key": bus_key(SigningKey(b"x" * 32))}
        assert await reason(house.nobody.json("POST", "/v1/join", 403, other)) == "join-token-used"
        now_s = house.cluster.clock.now() // NS_PER_SECOND
        text = renewal_text(body["key"], REQUEST, now_s)
        renewal = {
            "key": body["key"],
            "request": REQUEST,
            "at_s": now_s,
            "signature": base64.urlsafe_b64encode(KEY.sign(text).signature).decode(),
        }
        await house.nobody.json("POST", "/v1/renew", 201, renewal)
        late = {**renewal, "at_s": now_s - 999}
        assert await reason(house.nobody.json("POST", "/v1/renew", 401, late)) == "clock-skew"
        forged = {**renewal, "at_s": now_s + 1}
        assert await reason(house.nobody.json("POST", "/v1/renew", 401, forged)) == "unauthorized"
        (member,) = (await house.op.get("/v1/members"))["members"]
        assert (member["name"], member["state"]) == ("n1", "joined")
        people, servers = house.gateway.people, {"SKEP_CLUSTER": "lab"}
        assert not people.is_removed("n2")  # Nodes of `skep up` join without a key.
        settings = msgspec.structs.replace(people._settings, environment=servers)
        monkeypatch.setattr(people, "_settings", settings)
        assert [people.is_removed(name) for name in ("n1", "n2")] == [False, True]
        await house.op.json("POST", "/v1/members/node/n1/remove", 200)
        assert await reason(house.nobody.json("POST", "/v1/renew", 403, renewal)) == "key-revoked"
        assert (await house.op.get("/v1/members"))["members"] == []
        assert people.is_removed("n1")


async def test_a_stranger_renews_nothing_and_asks_nobody(tmp_path: Path) -> None:
    """Whoever makes a key can sign by it; only keys that joined come to the access service."""
    async with opened(tmp_path) as house:
        house.access.deaf = True
        now_s, own = house.cluster.clock.now() // NS_PER_SECOND, SigningKey(b"y" * 32)
        text = renewal_text(bus_key(own), REQUEST, now_s)
        renewal = {
            "key": bus_key(own),
            "request": REQUEST,
            "at_s": now_s,
            "signature": base64.urlsafe_b64encode(own.sign(text).signature).decode(),
        }
        assert await reason(house.nobody.json("POST", "/v1/renew", 404, renewal)) == "unknown-node"


async def test_a_reason_that_is_no_text_is_written_down_all_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path) as house, asyncio.timeout(20.0):
        ada = await house.with_person("ada", nlp="viewer")
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(house.base).port)
        token = ada.headers["Authorization"]
        head = f"POST /v1/tokens HTTP/1.1\r\nHost: here\r\nAuthorization: {token}\r\n"
        head += "Connection: close\r\nContent-Length: 12\r\nSkep-Reason: a"
        writer.write(head.encode() + b'\xff\r\n\r\n{"name":"x"}')
        assert (await reader.read()).startswith(b"HTTP/1.1 201 ")
        writer.close()
        lines = (await ada.get("/v1/audit"))["lines"]
        assert lines[-1]["reason"] == "a?"


@pytest.fixture
def slow_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no attempt come back while a test runs, on however busy a machine."""
    monkeypatch.setattr(attempts, "OF_TOKEN", Bound(float(ATTEMPTS), 3600.0))


@pytest.mark.usefixtures("slow_attempts")
async def test_a_join_token_cannot_be_guessed(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        made = await house.op.json("POST", "/v1/join-tokens", 201, {})
        body = joining(made["text"])
        wrong = {**body, "secret": "A" * 43}
        unknown = {**body, "token": "a" * 12}
        texts = set()
        for number in range(2 * ATTEMPTS):
            answer = await house.nobody.json("POST", "/v1/join", 401, (wrong, unknown)[number % 2])
            texts.add(answer["error"]["text"])
        assert len(texts) == 1
        assert await reason(house.nobody.json("POST", "/v1/join", 429, unknown))
        # Now even the right one waits, from this address.
        answer = await house.nobody.json("POST", "/v1/join", 429, body)
        assert answer["error"]["reason"] == "too-many-attempts"
        assert answer["retry_after_s"] > 0


async def test_open_paths_take_little(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        huge = b"{" + b" " * SMALL_BYTES_MAX + b"}"
        for path in ("/v1/join", "/v1/login", "/v1/renew"):
            assert await reason(house.nobody.json("POST", path, 413, huge)) == "too-large"
            assert await reason(house.nobody.json("POST", path, 400, b"\xff{")) == "not-json"
            assert await reason(house.nobody.json("POST", path, 422, {"a": 1})) == "bad-value"
        made = await house.op.json("POST", "/v1/join-tokens", 201, {})
        for name in ("", "a.b", "../x", "a" * 64, "a\u202e", "*"):
            body = joining(made["text"], name)
            assert await reason(house.nobody.json("POST", "/v1/join", 422, body)) == "bad-value"
        body = joining(made["text"], request="-----BEGIN CERTIFICATE REQUEST-----")
        assert await reason(house.nobody.json("POST", "/v1/join", 422, body)) == "bad-value"
        body = joining(made["text"], hosts=["bank.example"])
        assert await reason(house.nobody.json("POST", "/v1/join", 403, body)) == "wrong-host"


@pytest.mark.usefixtures("slow_attempts")
async def test_wrong_secrets_do_not_keep_the_right_one_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada", nlp="viewer")
        await ada.get("/v1/whoami")
        right = secrets.parse(ada.headers["Authorization"][7:])
        assert right is not None
        wrong = house.client(secrets.text_of(secrets.Secret(right.id, "A" * 43)))
        for _ in range(ATTEMPTS):
            await wrong.get("/v1/whoami", 401)
        assert await reason(wrong.get("/v1/whoami", 429)) == "too-many-attempts"
        await ada.get("/v1/whoami")  # It was verified before, and is known.


async def test_without_people_there_are_none(tmp_path: Path) -> None:
    house = PeopleHouse(tmp_path)
    house.settings = type(house.settings)()
    await house.open()
    try:
        for path in ("/v1/people", "/v1/tokens", "/v1/audit", "/v1/members", "/v1/join-tokens"):
            assert await reason(house.op.get(path, 404)) == "no-people"
        body = joining("a" * 12 + "." + "b" * 43 + "." + "c" * 64)
        assert await reason(house.nobody.json("POST", "/v1/join", 404, body)) == "no-joins"
        assert await house.nobody.get("/v1/login") == {"people": False, "oidc": None}
        assert error(await house.op.json("POST", "/v1/logout", 400))[0] == "bad-value"
    finally:
        await house.close()


async def test_a_person_logs_out_of_one_device(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada")
        made = await ada.json("POST", "/v1/tokens", 201, {"name": "phone"})
        phone = house.client(made["text"])
        await phone.json("POST", "/v1/logout", 200)
        assert await reason(phone.get("/v1/whoami", 401)) == "token-revoked"
        await ada.get("/v1/whoami")


async def test_many_requests_at_once_verify_a_token_side_by_side(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        ada = await house.with_person("ada")
        told = await asyncio.gather(*(ada.get("/v1/whoami") for _ in range(20)))
        assert {each["person"] for each in told} == {"ada"}
