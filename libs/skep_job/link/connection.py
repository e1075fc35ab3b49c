"""One connection from a job to its agent."""

from __future__ import annotations

import os
import socket

from skep_job.link.descriptors import identity
from skep_job.link.frames import FrameError, FrameReader, encode

PATH_BYTES_MAX = 107
"""Longest path that fits in a `sockaddr_un`, which has 108 bytes with the final zero."""

WAIT_S = 2.0
"""How long a connect or a send may wait for the agent before the connection is given up."""

_READ_BYTES = 16 * 1024


class LinkLost(Exception):  # noqa: N818  a name for what happened, as the reporter tells it
    """The agent is away, or what it sent is no message; the link is of no more use."""


class Link:
    """A connected socket that carries whole messages."""

    def __init__(self, path: str, *, connect_s: float = WAIT_S, send_s: float = WAIT_S) -> None:
        """Connect to the agent.

        Args:
            path: The socket that the agent listens on; it may be of any length.
            connect_s: How long to wait for the agent (seconds).
            send_s: How long each `send` may take (seconds).

        Raises:
            LinkLost: The agent is away.
        """
        self._frames = FrameReader()
        self._send_s = send_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._identity = identity(self._socket.fileno())
        try:
            self._socket.settimeout(connect_s)
            _connect(self._socket, path)
        except OSError as error:
            self.drop()
            raise LinkLost(str(error)) from error

    def fileno(self) -> int:
        """Return the descriptor to poll for what the agent sends."""
        return self._socket.fileno()

    def send(self, message: dict[str, object]) -> None:
        """Send one message.

        Raises:
            LinkLost: The agent is gone or does not read, or the script closed the descriptor.
        """
        self._check_own()
        try:
            self._socket.settimeout(self._send_s)
            # Without MSG_NOSIGNAL a script that restored SIGPIPE's default action would be killed.
            self._socket.sendall(encode(message), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise LinkLost(str(error)) from error

    def receive(self) -> list[dict[str, object]]:
        """Return the messages that have arrived, without waiting.

        Raises:
            LinkLost: The agent is gone or sent what is no message, or the script closed the
                descriptor.
        """
        self._check_own()
        try:
            data = self._read()
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkLost(str(error)) from error
        if not data:
            reason = "the agent closed the connection"
            raise LinkLost(reason)
        try:
            return self._frames.feed(data)
        except FrameError as error:
            raise LinkLost(str(error)) from error

    def close(self) -> None:
        """Close the connection; what was sent still arrives."""
        if self._is_own():
            try:
                # Bytes left unread would reach the agent as a connection reset.
                self._read()
            except OSError:
                pass  # Nothing was left, or nobody is there.
        self.drop()

    def drop(self) -> None:
        """Close this process's descriptor and touch nothing that other processes share."""
        if self._is_own():
            self._socket.close()
        else:
            self._socket.detach()  # The number may be the script's by now.

    def _is_own(self) -> bool:
        """Return whether the descriptor is still open, and still this connection."""
        return self._identity is not None and identity(self._socket.fileno()) == self._identity

    def _check_own(self) -> None:
        if not self._is_own():
            reason = "the script closed the connection's descriptor"
            raise LinkLost(reason)

    def _read(self) -> bytes:
        self._socket.settimeout(0)  # With a timeout set, even MSG_DONTWAIT would wait for it.
        return self._socket.recv(_READ_BYTES)


def _connect(peer: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        peer.connect(path)
        return
    # The kernel takes the short way in through an open directory; the working directory is the
    # script's and stays untouched.
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        peer.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
