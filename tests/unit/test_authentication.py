"""Tokens as text and hashes, where requests come from, and how often one may guess."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skep_services.access import secrets
from skep_services.attempts import ATTEMPT_S, ATTEMPTS, COUNTED_MAX, IN_ALL, STRANGER, Attempts
from skep_services.gateway.api import ApiError
from skep_services.gateway.authentication import Guesses, Proxies


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
    guesses = Guesses(Attempts(lambda: now[0]))
    for _ in range(ATTEMPTS):
        guesses.check("evil", "t1")
        guesses.failed("evil", "t1")
    with pytest.raises(ApiError) as refused:
        guesses.check("evil", "t1")
    assert refused.value.body["retry_after_s"] == pytest.approx(ATTEMPT_S)
    guesses.check("good", "t1")  # Its owner is elsewhere, and is not kept out.
    guesses.check("evil", "t2")  # So is an owner of another one behind the same address.
    now[0] = ATTEMPT_S
    guesses.check("evil", "t1")
    guesses.failed("evil", "t1")
    with pytest.raises(ApiError):
        guesses.check("evil", "t1")


def test_an_address_has_a_bound_over_all_tokens() -> None:
    attempts = Attempts(lambda: 0.0)
    tried = 0
    while attempts.wait_s("evil", f"t{tried}") == 0 and tried < 1000:
        attempts.failed("evil", f"t{tried}")
        tried += 1
    assert tried == 100
    assert attempts.wait_s("good", "t1") == 0
    for number in range(1000):
        attempts.failed("noisy", STRANGER)
        assert attempts.wait_s("noisy", f"t{number}") >= 0
    assert attempts.wait_s("noisy", STRANGER) > 0


def test_a_flood_from_everywhere_keeps_only_those_waiting_that_were_wrong() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    wrong = 0
    for number in range(2 * int(IN_ALL.most)):
        address = f"2001:db8:0:{number:x}::1"
        while attempts.wait_s(address, "t1") == 0:
            attempts.failed(address, "t1")
            wrong += 1
    assert wrong == int(IN_ALL.most) + 2 * int(IN_ALL.most) - int(IN_ALL.most) // ATTEMPTS
    assert attempts.wait_s("2001:db8:0:1::2", "t1") > ATTEMPT_S  # It is the same network.
    assert attempts.wait_s("192.0.2.1", "t1") == 0  # The owner of the token.
    now[0] = ATTEMPTS * ATTEMPT_S
    assert attempts.wait_s("2001:db8:0:1::1", "t1") == 0


def test_what_is_counted_of_guessers_is_bounded() -> None:
    attempts = Attempts(lambda: 0.0)
    for number in range(COUNTED_MAX + 100):
        attempts.failed(f"address {number}")
    assert len(attempts._left) == COUNTED_MAX
