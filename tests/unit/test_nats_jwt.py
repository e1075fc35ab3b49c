"""Signed identities: keys and tokens as text, the rights in them, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path

import pytest

from skep_services.adapters import nats_keys
from skep_services.adapters.nats_access import (
    SERVICES_ACCOUNT,
    Account,
    Grants,
    User,
    accounts,
    new_passwords,
    person_account,
    system_account,
    vc_account,
    vc_of_identity,
)
from skep_services.adapters.nats_jwt import (
    EVERYBODY,
    KEY_BYTES,
    NO_LIMIT,
    Kind,
    Pair,
    TokenError,
    claims_of,
    credentials_text,
    read_credentials,
    read_public,
    read_seed,
    verify,
)
from skep_services.adapters.nats_keys import BusKeys
from skep_services.adapters.nats_login import CredentialsError, Login

NOW_S = 1_800_000_000
OPERATOR = Pair(Kind.OPERATOR, bytes(range(KEY_BYTES)))
KEYS = BusKeys(OPERATOR, b"s" * KEY_BYTES)
OTHER = BusKeys(Pair(Kind.OPERATOR, b"o" * KEY_BYTES), b"t" * KEY_BYTES)
USER = Pair(Kind.USER, b"u" * KEY_BYTES)
ANNA = person_account("ml", "anna")
TABLE = (*accounts(new_passwords(("n1",), ("ml",), 3), ("n1",), ("ml",), 3), ANNA, system_account())


def anna_token(keys: BusKeys = KEYS, expires_at_s: int = 0) -> str:
    return keys.user_token(
        ANNA.name, ANNA.users[0], USER.public, issued_at_s=NOW_S, expires_at_s=expires_at_s
    )


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, letter", [(Kind.OPERATOR, "O"), (Kind.ACCOUNT, "A")])
def test_a_key_says_what_it_is_for(kind: Kind, letter: str) -> None:
    pair = Pair(kind, b"k" * KEY_BYTES)
    assert pair.public[0] == letter
    assert pair.seed_text[:2] == f"S{letter}"
    assert read_seed(pair.seed_text) == pair
    assert len(read_public(pair.public, kind)) == KEY_BYTES
    with pytest.raises(TokenError, match="another kind"):
        read_public(pair.public, Kind.USER)


@pytest.mark.parametrize("text", ["", "SU", "!", USER.public, USER.seed_text[:-4] + "AAAA"])
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(TokenError, match="the seed"):
        read_seed(text)


def test_no_secret_is_in_what_is_printed() -> None:
    for one in (USER, KEYS, OPERATOR):
        text = f"{one} {one!r}"
        assert "seed" not in text
        assert str(USER.seed) not in text
        assert "sss" not in text


def test_servers_that_share_the_secret_agree_on_every_account() -> None:
    again = BusKeys(OPERATOR, b"s" * KEY_BYTES)
    names = [account.name for account in TABLE]
    assert [again.public(name) for name in names] == [KEYS.public(name) for name in names]
    assert len({KEYS.public(name) for name in names}) == len(names)
    assert not {OTHER.public(name) for name in names} & {KEYS.public(name) for name in names}


def test_keys_are_kept_where_no_other_user_reads(tmp_path: Path) -> None:
    made = nats_keys.create(tmp_path / "keys")
    assert nats_keys.read(tmp_path / "keys") == made
    nats_keys.write(tmp_path / "copy", made)
    assert nats_keys.read(tmp_path / "copy") == made
    for folder in ("keys", "copy"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        files = sorted((tmp_path / folder).iterdir())
        assert [file.name for file in files] == ["accounts.secret", "operator.seed"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    with pytest.raises(FileExistsError, match="keys of a cluster already"):
        nats_keys.create(tmp_path / "keys")


@pytest.mark.parametrize("name", ["operator.seed", "accounts.secret"])
@pytest.mark.parametrize("text", ["", "zz", USER.seed_text, "00" * 31])
def test_damaged_keys_are_refused(tmp_path: Path, name: str, text: str) -> None:
    nats_keys.write(tmp_path, KEYS)
    (tmp_path / name).write_text(text)
    with pytest.raises(TokenError, match=r"are damaged.*restore them"):
        nats_keys.read(tmp_path)


# --- the rights in tokens ------------------------------------------------------------------------


@pytest.mark.parametrize("account", TABLE, ids=lambda account: account.name)
def test_a_token_has_the_rights_of_the_table(account: Account) -> None:
    for user in account.users:
        token = KEYS.user_token(account.name, user, USER.public, issued_at_s=NOW_S)
        said = verify(token, KEYS.public(account.name), Kind.ACCOUNT, NOW_S)
        assert (said.type, said.name, said.sub) == ("user", user.name, USER.public)
        assert said.nats["pub"] == {"allow": list(user.grants.publish)}
        assert said.nats["sub"] == {"allow": list(user.grants.subscribe)}
        assert (said.nats["subs"], said.nats["payload"]) == (NO_LIMIT, NO_LIMIT)
    claims = verify(KEYS.account_token(account, NOW_S), OPERATOR.public, Kind.OPERATOR, NOW_S)
    assert (claims.sub, claims.type) == (KEYS.public(account.name), "account")
    limits = claims.nats["limits"]
    assert limits["conn"] == (account.connections_max or NO_LIMIT)
    assert limits["subs"] == (account.subscriptions_max or NO_LIMIT)
    assert limits["disk_storage"] == (NO_LIMIT if account.name == SERVICES_ACCOUNT else 0)
    assert limits["disallow_bearer"]
    assert [one["subject"] for one in claims.nats["imports"]] == [
        source["subject"] for tree in account.imports for source in tree.values()
    ]


def test_every_import_is_exported() -> None:
    """A server passes over, and says nothing of, an import that nobody exports."""
    claims = {one.name: claims_of(KEYS.account_token(one, NOW_S)) for one in TABLE}
    services = claims[SERVICES_ACCOUNT]
    for name, said in claims.items():
        for wanted in said.nats["imports"]:
            assert wanted["account"] == services.sub
            assert any(
                offered["type"] == wanted["type"] and covers(offered["subject"], wanted["subject"])
                for offered in services.nats["exports"]
            ), (name, wanted)
    assert services.nats["imports"] == [], "it stays as it is when others join"
    asked = [one for one in services.nats["exports"] if one["type"] == "service"]
    assert {one["response_threshold"] for one in asked} == {10_000_000_000}


def covers(pattern: str, subject: str) -> bool:
    """Return whether everything that `subject` stands for is of `pattern`."""
    wide, narrow = pattern.split("."), subject.split(".")
    for at, token in enumerate(wide):
        if token == ">":
            return len(narrow) > at
        if at >= len(narrow) or narrow[at] == ">" or token not in {"*", narrow[at]}:
            return False
    return len(wide) == len(narrow)


def test_a_right_to_nothing_is_no_right_to_everything() -> None:
    mute = User(name="mute", password="", grants=Grants((), ("a",)))
    said = claims_of(KEYS.user_token("SKEP", mute, USER.public, issued_at_s=NOW_S)).nats
    assert said["pub"] == {"deny": [">"]}
    assert said["sub"] == {"allow": ["a"]}


def test_a_user_may_be_bound_to_networks_and_a_time() -> None:
    token = KEYS.user_token(
        ANNA.name,
        ANNA.users[0],
        USER.public,
        issued_at_s=NOW_S,
        expires_at_s=NOW_S + 60,
        sources=("10.0.0.0/8",),
    )
    assert claims_of(token).nats["src"] == ["10.0.0.0/8"]
    with pytest.raises(TokenError, match="expired 0 s ago"):
        verify(token, KEYS.public(ANNA.name), Kind.ACCOUNT, NOW_S + 60)


def test_revoked_users_are_in_the_accounts_token() -> None:
    token = KEYS.account_token(ANNA, NOW_S, {USER.public: NOW_S, EVERYBODY: 7})
    assert claims_of(token).nats["revocations"] == {USER.public: NOW_S, EVERYBODY: 7}


def test_an_identity_says_whose_it_is() -> None:
    assert vc_of_identity("vc-ml.anna") == vc_of_identity("vc-ml") == "vc-ml"
    assert vc_of_identity("node-n1") == vc_of_identity("operator") == ""


# --- what is refused -----------------------------------------------------------------------------


def test_what_another_signed_is_refused() -> None:
    own = KEYS.public(ANNA.name)
    assert verify(anna_token(), own, Kind.ACCOUNT, NOW_S).name == "vc-ml.anna"
    with pytest.raises(TokenError, match=r"signed by .*, not "):
        verify(anna_token(OTHER), own, Kind.ACCOUNT, NOW_S)
    with pytest.raises(TokenError, match=r"signed by .*, not "):
        verify(OTHER.account_token(ANNA, NOW_S), OPERATOR.public, Kind.OPERATOR, NOW_S)


def test_a_changed_token_is_refused() -> None:
    header, body, signature = anna_token().split(".")
    tree = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    tree["nats"]["pub"] = {"allow": [">"]}
    forged = base64.urlsafe_b64encode(json.dumps(tree).encode()).decode().rstrip("=")
    for token in (f"{header}.{forged}.{signature}", f"{header}.{body}.{signature[:-8]}AAAAAAAA"):
        with pytest.raises(TokenError, match="its signature is wrong"):
            verify(token, KEYS.public(ANNA.name), Kind.ACCOUNT, NOW_S)


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "....", "e30.e30.e30", "!.!.!", "é.b.c"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenError, match="the token"):
        claims_of(text)


def test_a_token_is_not_believed_by_another_way_to_sign() -> None:
    none = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"none"}').decode().rstrip("=")
    body = anna_token().split(".")[1]
    with pytest.raises(TokenError, match="another way than ed25519-nkey"):
        verify(f"{none}.{body}.", KEYS.public(ANNA.name), Kind.ACCOUNT, NOW_S)


def test_a_token_is_for_a_users_key_only() -> None:
    with pytest.raises(TokenError, match="another kind"):
        KEYS.user_token(ANNA.name, ANNA.users[0], OPERATOR.public, issued_at_s=NOW_S)


# --- credentials files ---------------------------------------------------------------------------


def test_credentials_are_read_back() -> None:
    text = credentials_text(anna_token(), USER)
    read = read_credentials(text)
    assert (read.token, read.pair) == (anna_token(), USER)
    with pytest.raises(TokenError, match="USER NKEY SEED"):
        read_credentials(text[: text.index("SEED")])
    other = Pair(Kind.USER, b"x" * KEY_BYTES)
    with pytest.raises(TokenError, match="do not belong together"):
        read_credentials(credentials_text(anna_token(), other))


def test_a_login_uses_the_file_as_it_is_by_then(tmp_path: Path) -> None:
    path = tmp_path / "anna.creds"
    login = Login(path)
    with pytest.raises(CredentialsError, match=r"anna\.creds cannot be used: No such file"):
        login.read()
    path.write_text("half of it")
    with pytest.raises(CredentialsError, match=r"anna\.creds cannot be used: the credentials"):
        login.signature("nonce")
    path.write_text(credentials_text(anna_token(), USER))
    assert base64.b64decode(login.signature("nonce")) == USER.sign(b"nonce")
    assert login.token() == anna_token().encode()
    assert not login.is_renewed()
    os.utime(path, ns=(1, 1))
    assert not login.is_renewed(), "the same token once more"
    renewed = anna_token(expires_at_s=NOW_S + 5)
    path.write_text("half of it")
    assert not login.is_renewed()
    path.write_text(credentials_text(renewed, USER))
    assert login.is_renewed()
    login.read()
    assert login.token() == renewed.encode()
    assert not login.is_renewed()


def test_what_is_wrong_with_credentials_is_said(tmp_path: Path) -> None:
    path = tmp_path / "anna.creds"
    login = Login(path)
    path.write_text(credentials_text(anna_token(expires_at_s=1), USER))
    login.read()
    assert "expired" in login.trouble()
    path.write_text(credentials_text(anna_token(), USER))
    login.read()
    assert "are revoked, are for another cluster" in login.trouble()
    assert "are revoked: renew them" in login.trouble(revoked=True)


def test_a_vc_as_a_whole_has_other_rights_than_its_people() -> None:
    whole = {*vc_account("ml").users[0].grants.publish}
    assert not whole & {*ANNA.users[0].grants.publish}
