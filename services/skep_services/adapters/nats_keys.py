"""The keys of a cluster's bus: two secrets in a folder, from which all keys of accounts follow.

- `operator.seed` signs accounts. Whoever has it can change every right on the bus.
- `accounts.secret` is what the keys of all accounts are derived from: the services', the system's,
  and each node's, VC's and person's. Whoever has it can make users of any account, and change none.

A key is `BLAKE2b(name, key=secret)`, a keyed hash: who sees one of them learns nothing of another or
of the secret. So servers that share two short files agree on every key, and a new node or VC adds
none to share. Keys of users are not derived: who logs in makes its own, and keeps the secret half.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from skep_services.adapters.nats_access import SYSTEM_ACCOUNT, Account, User
from skep_services.adapters.nats_jwt import (
    KEY_BYTES,
    Kind,
    Pair,
    TokenError,
    account_token,
    credentials_text,
    deletion_token,
    operator_token,
    read_seed,
    user_token,
)
from skep_services.adapters.nats_server import OperatorMode

OPERATOR_FILE = "operator.seed"
ACCOUNTS_FILE = "accounts.secret"
SECRET_MODE = 0o600
FOLDER_MODE = 0o700
DERIVED_FOR = b"skep account 1"
"""What the derivation is for; another number would give other keys."""


class BusKeys(msgspec.Struct, frozen=True):
    """The two secrets of a cluster's bus, and what they sign."""

    operator: Pair
    secret: bytes

    def __repr__(self) -> str:
        return f"BusKeys({self.operator.public})"

    def account(self, name: str) -> Pair:
        """Return the keys of the account of a name."""
        digest = hashlib.blake2b(
            name.encode(), key=self.secret, digest_size=KEY_BYTES, person=DERIVED_FOR
        )
        return Pair(Kind.ACCOUNT, digest.digest())

    def public(self, name: str) -> str:
        """Return the public key of the account of a name."""
        return self.account(name).public

    def operator_token(self, cluster: str, system_account: str, issued_at_s: int) -> str:
        """Return the token by which servers know the operator of `cluster`."""
        return operator_token(self.operator, cluster, self.public(system_account), issued_at_s)

    def operator_mode(
        self, cluster: str, resolver: Path, accounts: Sequence[Account], issued_at_s: int
    ) -> OperatorMode:
        """Return what a server of `cluster` is configured with.

        Args:
            cluster: The name of the cluster.
            resolver: The folder in which the server keeps accounts.
            accounts: Those that it begins with: the system's and the services'.
            issued_at_s: Seconds since 1970: the same on every server, and for ever. A token that
                was issued later counts more.
        """
        return OperatorMode(
            token=self.operator_token(cluster, SYSTEM_ACCOUNT, issued_at_s),
            system_account=self.public(SYSTEM_ACCOUNT),
            resolver=resolver,
            preload={
                self.public(one.name): self.account_token(one, issued_at_s) for one in accounts
            },
        )

    def account_token(
        self, account: Account, issued_at_s: int, revoked: Mapping[str, int] = {}
    ) -> str:
        """Return an account's token: `nats_jwt.account_token`."""
        return account_token(account, self.operator, self.public, issued_at_s, revoked)

    def user_token(
        self,
        account: str,
        user: User,
        public: str,
        *,
        issued_at_s: int,
        expires_at_s: int = 0,
        sources: Sequence[str] = (),
    ) -> str:
        """Return the token of a user of the account of a name: `nats_jwt.user_token`."""
        return user_token(
            user,
            self.account(account),
            public,
            issued_at_s=issued_at_s,
            expires_at_s=expires_at_s,
            sources=sources,
        )

    def credentials(
        self,
        account: str,
        user: User,
        *,
        issued_at_s: int,
        expires_at_s: int = 0,
        sources: Sequence[str] = (),
    ) -> str:
        """Return a credentials file with a new key, for a user that does not make its own."""
        pair = new_pair(Kind.USER)
        token = self.user_token(
            account,
            user,
            pair.public,
            issued_at_s=issued_at_s,
            expires_at_s=expires_at_s,
            sources=sources,
        )
        return credentials_text(token, pair)

    def deletion_token(self, accounts: Sequence[str], issued_at_s: int) -> str:
        """Return the order to the servers to forget the accounts of these names."""
        publics = [self.public(name) for name in accounts]
        return deletion_token(self.operator, publics, issued_at_s)


def new_pair(kind: Kind) -> Pair:
    """Return a random key pair."""
    return Pair(kind, secrets.token_bytes(KEY_BYTES))


def create(folder: Path) -> BusKeys:
    """Make the keys of a new cluster in `folder`, which no other user may read.

    Raises:
        FileExistsError: It holds keys already: whoever is logged in with them would be locked out.
        OSError: It cannot be written.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for name in (OPERATOR_FILE, ACCOUNTS_FILE):
        if (folder / name).exists():
            message = f"{folder / name}: it holds keys of a cluster already"
            raise FileExistsError(message)
    keys = BusKeys(new_pair(Kind.OPERATOR), secrets.token_bytes(KEY_BYTES))
    write(folder, keys)
    return keys


def write(folder: Path, keys: BusKeys) -> None:
    """Store keys in `folder`: a new server's copy, or a restored one.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    write_secret(folder / OPERATOR_FILE, keys.operator.seed_text + "\n")
    write_secret(folder / ACCOUNTS_FILE, keys.secret.hex() + "\n")


def read(folder: Path) -> BusKeys:
    """Return the keys in `folder`.

    Raises:
        OSError: They cannot be read.
        TokenError: They are damaged; the text says which file.
    """
    try:
        operator = read_seed((folder / OPERATOR_FILE).read_text(encoding="ascii"))
        secret = bytes.fromhex((folder / ACCOUNTS_FILE).read_text(encoding="ascii").strip())
    except (TokenError, ValueError) as error:
        message = f"the keys of the bus in {folder} are damaged ({error}): restore them"
        raise TokenError(message) from error
    if operator.kind is not Kind.OPERATOR or len(secret) != KEY_BYTES:
        message = f"the keys of the bus in {folder} are damaged: restore them from a backup"
        raise TokenError(message)
    return BusKeys(operator, secret)


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
