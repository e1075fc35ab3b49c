"""Decides which process may speak for a rank on the node's socket.

A process has to show two things. The first is the rank's secret, which its environment names:
HMAC-SHA256 of the run's name under a random key of this node. Nothing is stored per rank, and a
rank that outlives its agent is known to the next one. The second is that the process belongs to
the run: the kernel names the process that connected (SO_PEERCRED), and it, or one of the processes
above it, must be the main process of the run or be in that process's session.

Without a launcher, jobs of one node run as the same user as the agent. A hostile one that is no
container can therefore read the key and other jobs' environments, but it cannot become a descendant
of another job's main process. With one, each run has an account, and a process that speaks for it
must have that account too.

Where the agent runs in a container of its own, the processes of other containers have no number
here. A run whose main process cannot be seen from here is then known by its secret alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from skep_services import durable
from skep_services.agent import proc
from skep_services.ports import RunStarted

SECRET_VARIABLE = "SKEP_RANK_SECRET"  # noqa: S105 - a name, not a secret
KEY_FILE = "rank-key"
KEY_BYTES = 32
START_WITHIN_S = 30.0
"""How long a hello waits for the runtime to say which process it started. A process takes
milliseconds, a container seconds; a process that is refused says hello again."""

_CREDENTIALS = struct.Struct("iII")


class Peer(NamedTuple):
    """The process at the other end of a Unix socket; `pid` is 0 where it has no number here."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected, as the kernel noted it then."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid, uid)


def node_key(state: Path) -> bytes:
    """Return the random key of a state folder, made once (0600).

    Raises:
        OSError: The key can be neither read nor made.
    """
    path = state / KEY_FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        # Ranks that run know secrets of the lost key: they train on, and are not heard again.
        key = secrets.token_bytes(KEY_BYTES)
        durable.write(str(path), key)
    return key


class RankAccess:
    """The runs that live on this node, as far as the runtime has told, and their secrets."""

    def __init__(self, key: bytes, uid: int | None = None) -> None:
        """Derive secrets from a key; let in processes of one user, and of root.

        Args:
            key: The key of this node.
            uid: The user's number; None: the agent's own.
        """
        self._key = key
        self._uids = (os.geteuid() if uid is None else uid, 0)
        self.any_account = False
        """Whether runs have accounts of their own: then a user is known only once its run is."""
        self._mains: dict[str, RunStarted] = {}
        self._tokens: dict[int, str] = {}  # by the main process's pid
        self._starting: dict[str, asyncio.Event] = {}
        self._listed = asyncio.Event()

    def secret(self, token: str) -> str:
        """Return the secret of a run."""
        text = b"skep rank " + token.encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    # --- what the runtime tells ------------------------------------------------------------------

    def starting(self, token: str) -> None:
        """Note that a run is being started: its processes may connect before that is answered."""
        self._starting.setdefault(token, asyncio.Event())

    def began(self, run: RunStarted) -> None:
        """Note a run's main process."""
        self.gone(run.token)
        self._mains[run.token] = run
        if run.pid > 0:
            self._tokens[run.pid] = run.token

    def gone(self, token: str) -> None:
        """Forget a run, or that it is being started."""
        waiting = self._starting.pop(token, None)
        if waiting is not None:
            waiting.set()
        run = self._mains.pop(token, None)
        if run is not None and self._tokens.get(run.pid) == token:
            del self._tokens[run.pid]

    def listed(self, runs: Iterable[RunStarted]) -> None:
        """Note the runs that an earlier agent left. Until then no hello is judged."""
        for run in runs:
            self.began(run)
        self._listed.set()

    def pid_of(self, token: str) -> int:
        """Return the main process of a run; 0 if it is not known, or has ended."""
        run = self._mains.get(token)
        return run.pid if run is not None and self._sees(token) else 0

    # --- what is asked ---------------------------------------------------------------------------

    def lets_in(self, peer: Peer) -> bool:
        """Return whether processes of this user may connect at all."""
        if peer.uid in self._uids:
            return True
        if not self.any_account:
            return False
        soon = bool(self._starting) or not self._listed.is_set()
        return soon or any(run.uid == peer.uid for run in self._mains.values())

    def run_of(self, peer: Peer) -> str:
        """Return the run whose main process is this process or above it, else an empty text."""
        for one in proc.lineage(peer.pid):
            token = self._tokens.get(one.pid)
            if token is not None and self._mains[token].start_ticks == one.ticks:
                return token
            token = self._tokens.get(one.sid)
            if token is not None and self._sees(token):
                return token
        return ""

    async def settled(self, token: str) -> None:
        """Return once it is known which process a run began with, or START_WITHIN_S passed."""
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await self._listed.wait()
                starting = self._starting.get(token)
                if starting is not None:
                    await starting.wait()
        except TimeoutError:
            pass  # Then it is not known, and the hello is refused.

    def refusal(self, peer: Peer, token: str, said: str) -> str:
        """Return why a process may not speak for a run, or an empty text if it may.

        Args:
            peer: The process.
            token: The name of the run.
            said: The secret that the process showed.
        """
        if not hmac.compare_digest(self.secret(token).encode(), said.encode()):
            return f"{SECRET_VARIABLE} is not the secret of run {token}"
        if token not in self._mains:
            return f"run {token} does not live on this node"
        uid = self._mains[token].uid
        if uid >= 0 and peer.uid != uid:
            return f"process {peer.pid} is of user {peer.uid}, and run {token} of user {uid}"
        if peer.pid == 0 and not self._sees(token):
            return ""
        if self.run_of(peer) != token:
            return (
                f"process {peer.pid} is not of run {token}: only its main process, and what that "
                "started and did not detach, may speak for it"
            )
        return ""

    def _sees(self, token: str) -> bool:
        """Return whether the main process of a run is alive and has a number here."""
        run = self._mains[token]
        one = proc.process(run.pid) if run.pid > 0 else None
        return one is not None and one.ticks == run.start_ticks
