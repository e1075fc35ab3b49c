"""Tokens as text and hashes, where requests come from, and how often one may guess."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skep_services.access import secrets
from skep_services.gateway.api import ApiError
from skep_services.gateway.authentication import ATTEMPT_S, ATTEMPTS, COUNTED_MAX, Attempts, Proxies


def test_a_token_is_its_text_and_nothing_else() -> None:
    token = secrets.new()
    text = secrets.text_of(token)
    assert secrets.parse(text) == token
    assert len(token.secret) >= 43  # 256 bits.
    for wrong in ("", "skep_", text[:-30], text + "!", f" {text}", text.upper(), text + "\n", "op"):
        assert secrets.parse(wrong) != token, wrong


def test_a_hash_is_of_one_id_and_one_secret() -> None:
    token, other = secrets.new(), secrets.new()
    kept = secrets.hashed(token)
    assert kept.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert token.secret not in kept
    assert secrets.fits(token, kept)
    assert not secrets.fits(other, kept)
    assert not secrets.fits(secrets.Secret(other.id, token.secret), kept)
    assert not secrets.fits(secrets.Secret(token.id, "x" * 10_000), kept)
    assert not secrets.fits(token, "no hash")
    assert not secrets.fits(token, "")


@pytest.mark.parametrize(
    "peer, forwarded, source",
    [
        ("10.0.0.5", "", "10.0.0.5"),
        ("192.0.2.9", "10.0.0.7", "192.0.2.9"),  # A stranger may say what it wants.
        ("10.1.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.1.0.1", "203.0.113.1, 192.0.2.7", "192.0.2.7"),  # The first one is hearsay.
        ("10.1.0.1", "192.0.2.7, 10.1.0.2", "192.0.2.7"),
        ("10.1.0.1", "evil", "10.1.0.1"),
        ("10.1.0.1", "192.0.2.7, ", "10.1.0.1"),
        ("10.1.0.1", "2001:db8::7", "2001:db8::7"),
        ("fd00::1", "192.0.2.7", "192.0.2.7"),
    ],
)
def test_only_a_load_balancer_says_where_a_request_comes_from(
    peer: str, forwarded: str, source: str
) -> None:
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    request: Any = SimpleNamespace(remote=peer, headers=headers)
    assert Proxies("10.1.0.0/24, fd00::1").source(request) == source
    assert Proxies("").source(request) == peer


def test_a_guesser_waits_and_others_do_not() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(ATTEMPTS):
        attempts.check("evil", "t1")
        attempts.failed("evil", "t1")
    with pytest.raises(ApiError) as refused:
        attempts.check("evil", "t2")
    assert refused.value.body["retry_after_s"] == pytest.approx(ATTEMPT_S)
    with pytest.raises(ApiError):
        attempts.check("good", "t1")  # The token is guarded from everywhere.
    attempts.check("good", "t2")
    now[0] = ATTEMPT_S
    attempts.check("evil", "t1")
    attempts.failed("evil", "t1")
    with pytest.raises(ApiError):
        attempts.check("evil")


def test_what_is_counted_of_guessers_is_bounded() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(COUNTED_MAX + 100):
        attempts.failed(f"address {number}")
    assert len(attempts._left) == COUNTED_MAX
