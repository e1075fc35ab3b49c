"""A server's connections to other servers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from skep_ps.errors import Broken, RequestFailed
from skep_ps.placement import Placement
from skep_ps.wire import Channel, Late, Message, Patience, Settings, dial


class Peers:
    """One connection to each server that chunks or late pushes go to."""

    def __init__(self, where: Settings) -> None:
        self._settings = where
        self._channels: dict[int, tuple[threading.Lock, Channel]] = {}
        self._dialling = threading.Lock()

    def connect(self, server: int, placement: Placement) -> tuple[threading.Lock, Channel]:
        """Return the connection to a server, and the lock to hold while using it.

        Args:
            server: The id of the server.
            placement: It says where the server is.

        Raises:
            Broken: The server is away.
            Refused: The token or the attempt is not that of the job.
        """
        with self._dialling:
            if server not in self._channels:
                host, port = placement.servers[server]
                channel = dial(host, port, self._settings.secret)
                self._channels[server] = (threading.Lock(), channel)
            return self._channels[server]

    def ask(
        self,
        server: int,
        placement: Placement,
        header: Message,
        parts: Sequence[memoryview],
        into: Sequence[memoryview],
    ) -> Message:
        """Return the answer to a request, its payload in `into`.

        Args:
            server: The id of the server.
            placement: It says where the server is.
            header: The request.
            parts: Its payload.
            into: Where the payload of the answer belongs, which is overwritten.

        Raises:
            Broken: The server is away, or the connection failed.
            Refused: The token or the attempt is not that of the job.
            Late: There is no answer in time.
            RequestFailed: The answer is an error.
        """
        lock, channel = self.connect(server, placement)
        try:
            with lock:
                channel.send(header, parts)
                patience = Patience(self._settings.wait_s, f"server {server} answers")
                answer = channel.receive(patience)
                if answer["type"] == "error":
                    raise RequestFailed(answer["why"])
                channel.read_into(into, patience)
                return answer
        except (Broken, Late):
            self._channels.pop(server, None)
            channel.close()
            raise

    def close(self) -> None:
        """End every connection."""
        for _, channel in list(self._channels.values()):
            channel.close()
