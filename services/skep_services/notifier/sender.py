"""Sends one message by Apprise, in a process of its own: `python -m skep_services.notifier.sender`.

Standard input is one JSON object with `url`, `title` and `body`, standard output one with
`trouble`: empty, or what Apprise says without anything of the URL. A process of its own can be
ended when a server does not answer, and its libraries are not in the process that follows the bus.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TextIO

from skep_services.notifier.settings import NOT_INSTALLED, apprise_of

TROUBLE_CHARS_MAX = 300
SECRET_CHARS_MIN = 4
"""Shorter pieces of a URL are words of any text."""


class _Last(logging.Handler):
    """Keeps the last warning, and what Apprise says of an exception below that level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._warning = self._exception = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        if record.levelno >= logging.WARNING:
            self._warning = record.getMessage()
        elif "xception" in record.getMessage():
            self._exception = record.getMessage()

    @property
    def text(self) -> str:
        """Return what is the matter."""
        return "; ".join(each for each in (self._warning, self._exception) if each)


def without(text: str, url: str) -> str:
    """Return a text in one line, without the pieces of a URL that may be secrets."""
    pieces = re.split(r"[^A-Za-z0-9._-]+", url.partition("://")[2])
    for piece in sorted(set(pieces), key=len, reverse=True):
        if len(piece) >= SECRET_CHARS_MIN:
            text = text.replace(piece, "***")
    return " ".join(text.split())[:TROUBLE_CHARS_MAX]


def send(url: str, title: str, body: str) -> str:
    """Send a message; return why it was not sent, or an empty text."""
    instantiate = apprise_of()
    if instantiate is None:
        return NOT_INSTALLED
    last = _Last()
    logger = logging.getLogger("apprise")
    logger.addHandler(last)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    target = instantiate(url)
    if target is None:
        return "Apprise does not know the target's URL"
    if target.notify(title=title, body=body):
        return ""
    return without(last.text, url) or "Apprise did not send it, and says nothing of why"


def main(source: TextIO, out: TextIO) -> int:
    """Send what standard input says."""
    asked = json.load(source)
    trouble = send(asked["url"], asked["title"], asked["body"])
    out.write(json.dumps({"trouble": trouble}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
