"""A member's connection to its coordinator, over TCP."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

from skep_ps.control import Control
from skep_ps.errors import Broken
from skep_ps.wire import Patience, Secret, Settings, admit

SECRET = Secret("a token of the job", "j1.1")
ROSTERS = 1000
"""More than can be sent before it is noticed that nobody is there any more."""


def test_last_words_are_heard_though_the_coordinator_still_sends() -> None:
    """As where another member is done at the same time: everybody is told, who says bye too."""
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def coordinate() -> None:
            connection, _ = listener.accept()
            channel = admit(connection, SECRET)
            assert channel is not None
            patience = Patience(30.0, "a message")
            heard.append(str(channel.receive(patience)["type"]))
            channel.send({"type": "welcome"})
            ends = select.poll()
            ends.register(connection, select.POLLRDHUP)
            assert ends.poll(30_000)
            with contextlib.suppress(Broken):
                for _ in range(ROSTERS):
                    channel.send({"type": "roster"})
                while True:
                    heard.append(str(channel.receive(patience)["type"]))
            channel.close()

        there = threading.Thread(target=coordinate)
        there.start()
        port = listener.getsockname()[1]
        welcome = threading.Event()
        control = Control(
            Settings("127.0.0.1", port, SECRET, 30.0, 5.0),
            hello=dict,
            take=lambda _: welcome.set(),
            down=heard.append,
        )
        control.start()
        assert welcome.wait(30)
        control.close("bye")
        there.join(30)
    assert heard == ["hello", "bye"]
