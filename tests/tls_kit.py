"""Certificates for tests: authorities whose clocks may be wrong, and what they issue into files."""

from __future__ import annotations

import time
from pathlib import Path

from skep_services import durable
from skep_services.pki.authority import Authority
from skep_services.pki.files import TlsFiles

DAY_S = 86_400
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Certificates:
    """An authority below a folder, and the files of those that it issued certificates to.

    Args:
        folder: Where all of it is.
        ahead_days: How far the authority's clock is ahead of this machine's.
    """

    def __init__(self, folder: Path, ahead_days: float = 0.0) -> None:
        self.folder = folder
        self._clock = lambda: time.time() + ahead_days * DAY_S
        self.authority = Authority.create(folder / "pki", "lab", self._clock)
        self._given: dict[str, TlsFiles] = {}

    def give(self, name: str, *hosts: str, days: float = 100.0) -> TlsFiles:
        """Issue a certificate; what had that name before is replaced."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        files = TlsFiles(ca=place / "ca.pem", certificate=place / "cert.pem", key=place / "key.pem")
        self.authority.issue(name, hosts, days).write(place / "cert.pem", place / "key.pem")
        self._given[name] = files
        self.trust(name)
        return files

    def trust(self, *names: str) -> None:
        """Have some, or all, believe whom the authority says."""
        for name in names or tuple(self._given):
            durable.write(str(self.folder / name / "ca.pem"), self.authority.trust)

    def aged(self, days: float) -> Certificates:
        """Return the same authority as it was before, or will be after, so many days."""
        other = Certificates.__new__(Certificates)
        other.folder, other._given = self.folder, self._given
        other._clock = lambda: time.time() - days * DAY_S
        other.authority = Authority.read(self.folder / "pki", other._clock)
        return other
