"""Where a job may have notices sent: a target of the operator's, a mail address or a webhook."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import urlsplit

from skep.ids import is_token

TARGETS_MAX = 8
"""Targets of one job."""
TARGET_CHARS_MAX = 512
"""Characters of one: webhooks of chats have up to 200."""
HOST_CHARS_MAX = 253
MAIL = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}@"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.)+[A-Za-z]{2,63}",
    re.ASCII,
)
"""A plain address. Quotes, comments and lists are left out: they become part of a URL."""
PRINTED = re.compile(r"[!-~]+", re.ASCII)


class TargetKind(StrEnum):
    """What a target is."""

    NAME = "name"
    MAIL = "mail"
    WEBHOOK = "webhook"


def kind_of(target: str) -> TargetKind | None:
    """Return what a text names, or None: nothing that notices can be sent to."""
    if len(target) > TARGET_CHARS_MAX:
        return None
    if is_token(target):
        return TargetKind.NAME
    if MAIL.fullmatch(target):
        return TargetKind.MAIL
    return TargetKind.WEBHOOK if not webhook_trouble(target) else None


def webhook_trouble(url: str) -> str:
    """Return why a text is no URL of a webhook, or an empty text."""
    if not PRINTED.fullmatch(url):
        return "a URL has printable ASCII characters only"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"no URL: {error}"
    if parts.scheme not in ("http", "https"):
        return f"a webhook's URL begins with https:// or http://, not `{parts.scheme or url[:20]}`"
    if parts.username is not None or parts.password is not None:
        return "a webhook's URL has no user and password: name a target of the operator's"
    if not host or len(host) > HOST_CHARS_MAX or port == 0:
        return "a webhook's URL needs a host"
    return ""


def target_trouble(target: str) -> str:
    """Return why a text is no target of notices, in one line, or an empty text."""
    if kind_of(target) is not None:
        return ""
    if len(target) > TARGET_CHARS_MAX:
        return f"a target has at most {TARGET_CHARS_MAX} characters, and this has {len(target)}"
    if "://" in target:
        return webhook_trouble(target)
    shown = "".join(each if each.isprintable() else "?" for each in target[:60])
    return f"{shown!r} is no name of a target, no mail address and no https:// URL"


def shown(target: str) -> str:
    """Return a target as others than its job's owner may see it: of a URL its host alone."""
    if kind_of(target) is not TargetKind.WEBHOOK:
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.netloc}/..."
