"""How a process logs in to the bus by a credentials file, and what is wrong when it may not.

The file is read anew for each login, so credentials that were renewed count from the next one on.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

from skep_services.adapters.nats_jwt import Credentials, TokenError, claims_of, read_credentials

RENEW = "renew them and start it again"


class CredentialsError(OSError):
    """A credentials file that cannot be used; the text says why.

    The client library takes it for a connection that failed, and tries again.
    """


class Login:
    """The login by the credentials file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._used: Credentials | None = None

    def read(self) -> Credentials:
        """Return what the file holds, and remember it as what is logged in with.

        Raises:
            CredentialsError: It cannot be read, or holds no credentials.
        """
        try:
            with self.path.open(encoding="utf-8") as file:
                self._stamp = _stamp(os.fstat(file.fileno()))
                self._used = read_credentials(file.read())
        except (OSError, UnicodeDecodeError, TokenError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            message = f"the credentials file {self.path} cannot be used: {why}"
            raise CredentialsError(message) from error
        return self._used

    def signature(self, nonce: str) -> bytes:
        """Return the answer to the server's nonce. The library asks for it before the token."""
        return base64.b64encode(self.read().pair.sign(nonce.encode()))

    def token(self) -> bytes:
        """Return the token that goes with the last signature."""
        used = self._used or self.read()
        return used.token.encode()

    def is_renewed(self) -> bool:
        """Return whether the file is another than the one that was logged in with last.

        A file that is not whole yet, or holds the same token, does not count.
        """
        try:
            stamp = _stamp(self.path.stat())
            if stamp == self._stamp or self._used is None:
                return False
            there = read_credentials(self.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, TokenError):
            return False
        self._stamp = stamp
        return there.token != self._used.token

    def trouble(self, *, revoked: bool = False) -> str:
        """Return what is wrong when the server refuses the credentials that were used last.

        Args:
            revoked: The server has said that they are; a refused login does not tell why.
        """
        if self._used is None:
            return f"its credentials file is {self.path}"
        claims = claims_of(self._used.token)
        late_s = int(time.time()) - claims.exp
        if claims.exp and late_s >= 0:
            return f"its credentials in {self.path} expired {late_s} s ago: {RENEW}"
        if revoked:
            return f"its credentials in {self.path} are revoked: {RENEW}"
        return (
            f"its credentials in {self.path} are revoked, are for another cluster, or may not be "
            f"used from here: {RENEW}"
        )


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino
