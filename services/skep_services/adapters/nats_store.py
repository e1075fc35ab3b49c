"""The folder of a bus server's streams, and moving it to the account that owns them now."""

from __future__ import annotations

import os
from pathlib import Path

from skep_services import durable
from skep_services.adapters.nats_access import GLOBAL_ACCOUNT, SERVICES_ACCOUNT

STREAMS = "streams"


class StoreError(Exception):
    """A store holds streams of two accounts; the text says what to do."""


def move_streams(store_dir: Path) -> bool:
    """Move the streams of a stopped server to the account of the services.

    The server names a folder after each account, and nothing inside the folder names the account:
    renaming it moves the streams whole. For a server that stands alone only; those of a cluster
    also agree among themselves on which account has which stream.

    Args:
        store_dir: The server's `store_dir`. No server may have it open.

    Returns:
        Whether there was anything to move.

    Raises:
        StoreError: Both accounts have streams.
        OSError: The folder cannot be renamed; it is then as it was.
    """
    accounts = store_dir / "jetstream"
    before, after = accounts / GLOBAL_ACCOUNT, accounts / SERVICES_ACCOUNT
    if not _streams(before):
        return False
    if _streams(after):
        text = (
            f"{before} and {after} both hold streams, and only one of them can be the cluster's: "
            f"{', '.join(_streams(before))}; and {', '.join(_streams(after))}. Nothing was changed."
            " Keep a copy of both, then remove the one that is not wanted"
        )
        raise StoreError(text)
    if after.exists():
        _remove_empty(after)
    os.rename(before, after)
    durable.sync_folder(str(accounts))
    return True


def _streams(account: Path) -> list[str]:
    folder = account / STREAMS
    return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


def _remove_empty(account: Path) -> None:
    for path in (account / STREAMS, account):
        if path.is_dir():
            path.rmdir()
