"""Files of secrets for containers: in memory, and each to read for its account alone.

    /dev/shm/skep-launcher-ID/<token>/<variable>

The folders are root's, so an account can put nothing into them. A process makes such files itself,
in its own /dev/shm; a container cannot, because it has the files before its own program runs.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping

from skep_services.launcher.accounts import Account

MEMORY = "/dev/shm"  # noqa: S108 - the folder is root's, or it is not used


class SecretFiles:
    """The files of the containers of the launcher whose folder is `place`."""

    def __init__(self, place: str) -> None:
        name = hashlib.sha256(place.encode()).hexdigest()[:8]
        self.folder = os.path.join(MEMORY, f"skep-launcher-{name}")

    def make(self, token: str, account: Account, files: Mapping[str, str]) -> dict[str, str]:
        """Make the files of a run, and no others; return their paths by variable.

        Raises:
            OSError: They cannot be made, or somebody else has made the folder.
        """
        try:
            os.mkdir(self.folder, 0o711)
        except FileExistsError:
            found = os.lstat(self.folder)
            if found.st_uid != 0 or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
                text = "it is there and is not root's alone"
                raise OSError(errno.EPERM, text, self.folder) from None
        self.forget(token)
        above = os.path.join(self.folder, token)
        os.mkdir(above, 0o711)
        made = {}
        for name, content in files.items():
            made[name] = os.path.join(above, name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(made[name], flags, 0o400), "wb") as file:
                file.write(base64.b64decode(content))
                os.fchown(file.fileno(), account.uid, account.gid)
        return made

    def forget(self, token: str) -> None:
        """Remove the files of a run that is over."""
        shutil.rmtree(os.path.join(self.folder, token), ignore_errors=True)

    def keep_only(self, tokens: Iterable[str]) -> None:
        """Remove the files of all other runs."""
        kept = dict.fromkeys(tokens)
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            if name not in kept:
                self.forget(name)
