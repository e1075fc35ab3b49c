"""The folder that jobs and agent share. Root owns every folder in it that has files of several.

    JOBS/sock/                        the agent's: its socket, which any job may connect to
    JOBS/lib/                         the agent's: what jobs import
    JOBS/logs/<job>/<attempt>/rankN.log    the account's, and to read for the agent's group
    JOBS/checkpoints/<job>/           the account's alone
    JOBS/copies/<job>/              the account's alone, in memory: copies of a gang's state
    JOBS/scratch/<job>/tmp, shm       the account's alone; /tmp and /dev/shm of the job
    JOBS/code/                        the agent's: snapshots of code, to read for who knows the name
    JOBS/work/<job>/<attempt>/        the account's, and to read for the agent: its code and outputs

Every path is walked by descriptors, from a folder that root owns, and a link on the way is an
error: neither the agent nor a job can make the launcher open another file than is named.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import struct
from collections.abc import Iterator

from skep_services.agent.runner_log import open_file
from skep_services.launcher.accounts import Account

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
DEPTH_MAX = 4
"""job, attempt and file, and one to spare."""

LOOKED_AT_MAX = 1000
"""Files of a job's checkpoints whose times are looked at; its folder's own time counts as well."""

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LOGS, CHECKPOINTS, SCRATCH, SOCK, LIB = "logs", "checkpoints", "scratch", "sock", "lib"
WORK, CODE, COPIES = "work", "code", "copies"

ACL_VERSION = 2
ACL_ENTRY = struct.Struct("<HHI")
ACL_ACCESS, ACL_DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NO_ID = 0xFFFFFFFF


class OthersError(OSError):
    """A folder or a file is there, and is of another account; `owner` is its number."""

    def __init__(self, owner: int) -> None:
        super().__init__(errno.EEXIST, "it is of another account")
        self.owner = owner


class Folders:
    """The shared folder `root`; `agent` are the numbers of the agent's account and group."""

    def __init__(self, root: str, agent: tuple[int, int]) -> None:
        """Make what is missing.

        Raises:
            OSError: It cannot be made.
        """
        self.root = root
        self._agent = agent
        os.makedirs(root, mode=0o711, exist_ok=True)
        os.chmod(root, 0o711)  # noqa: S103 - others may pass through, not look
        self._root = os.open(root, FOLDER)
        for name in (LOGS, CHECKPOINTS, SCRATCH, WORK, COPIES):
            os.close(_made(self._root, name, 0o711, (0, 0)))
        for name, mode in ((SOCK, 0o711), (LIB, 0o755), (CODE, 0o711)):
            os.close(_made(self._root, name, mode, agent))

    def open_log(self, path: str, flags: int, owner: int) -> int:
        """Return a descriptor of a log that is an account's, and that the agent may read.

        Args:
            path: The file, in JOBS/logs.
            flags: Those of `os.open`; the file is made and appended to.
            owner: The account's number.

        Raises:
            OthersError: It is a file of another account.
            OSError: It is elsewhere, or a link is on the way.
        """
        folder = self._folder_of(path)
        try:
            name = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
            wanted = flags | os.O_APPEND
            try:
                file = open_file(name, wanted | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                file = open_file(name, wanted)
                found = os.fstat(file).st_uid
                if found != owner:
                    os.close(file)
                    raise OthersError(found) from None
            else:
                os.fchown(file, owner, self._agent[1])
                os.fchmod(file, 0o640)
        finally:
            os.close(folder)
        return file

    def share_log(self, path: str, owner: int) -> None:
        """Make a log that the agent keeps within its bound: the launcher does not see its run.

        Raises:
            OSError: As for `open_log`.
        """
        file = self.open_log(path, os.O_WRONLY, owner)
        os.fchmod(file, 0o660)
        os.close(file)

    def _folder_of(self, path: str) -> int:
        """Return a descriptor of a log's folder, made if need be; the caller closes it.

        Raises:
            OSError: The path is not one of a log.
        """
        parts = inside(path, os.path.join(self.root, LOGS))
        if parts is None:
            raise OSError(errno.EACCES, f"it is not in {self.root}/{LOGS}")
        folder = _made(self._root, LOGS, 0o711, (0, 0))
        for part in parts[:-1]:
            try:
                within = _made(folder, part, 0o711, (0, 0))
            finally:
                os.close(folder)
            folder = within
        return folder

    def provide_checkpoints(self, job: str, account: Account) -> str:
        """Return the folder of a job's checkpoints, made if need be.

        Raises:
            OSError: It cannot be made, or is another account's.
        """
        self._own(CHECKPOINTS, job, account)
        return os.path.join(self.root, CHECKPOINTS, job)

    def provide_copies(self, job: str, account: Account) -> None:
        """Make the folder of copies of a job's state; raises as `provide_checkpoints`."""
        self._own(COPIES, job, account)

    def provide_work(self, job: str, account: Account) -> None:
        """Make the folder of a job's attempts, if need be: the account's, and the agent's to read.

        What the job makes in it can be read by the agent too, whatever the account's umask, if the
        file system has access control lists.

        Raises:
            OSError: It cannot be made, or is another account's.
        """
        self._own(WORK, job, account)
        place = os.path.join(self.root, WORK, job)
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for kind in (ACL_ACCESS, ACL_DEFAULT):
                os.setxattr(handle, kind, _readable_by(self._agent[0]))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        finally:
            os.close(handle)

    def provide_scratch(self, job: str, account: Account) -> str:
        """Return the folder that holds a job's `tmp` and `shm`, made if need be.

        Raises:
            OSError: It cannot be made, or is another account's.
        """
        above = _made(self._root, SCRATCH, 0o711, (0, 0))
        try:
            folder = _made(above, job, 0o711, (0, 0))
        finally:
            os.close(above)
        try:
            for name in ("tmp", "shm"):
                os.close(_made(folder, name, 0o700, (account.uid, account.gid)))
        finally:
            os.close(folder)
        return os.path.join(self.root, SCRATCH, job)

    def _own(self, kind: str, job: str, account: Account) -> None:
        above = _made(self._root, kind, 0o711, (0, 0))
        try:
            os.close(_made(above, job, 0o700, (account.uid, account.gid)))
        finally:
            os.close(above)

    def jobs_of(self, kind: str) -> list[tuple[str, float]]:
        """Return the jobs that have a folder of a kind, and when something there was written."""
        above = os.open(kind, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._root)
        try:
            names = [name for name in os.listdir(above) if NAME.fullmatch(name)]
            found = [(name, _latest(above, name)) for name in names]
        finally:
            os.close(above)
        return [(name, at) for name, at in found if at is not None]


def _readable_by(uid: int) -> bytes:
    """Return a list of who may do what: the owner all, one more account look and read."""
    entries = (
        (0x01, 7, NO_ID),  # the owner
        (0x02, 5, uid),
        (0x04, 0, NO_ID),  # its group
        (0x10, 5, NO_ID),  # what is the most for all but the owner
        (0x20, 0, NO_ID),  # others
    )
    packed = (ACL_ENTRY.pack(*entry) for entry in entries)
    return struct.pack("<I", ACL_VERSION) + b"".join(packed)


def inside(path: str, folder: str) -> list[str] | None:
    """Return the names that lead from a folder to a file in it; None: they do not, plainly."""
    if not path.startswith(folder + "/"):
        return None
    parts = path[len(folder) + 1 :].split("/")
    if len(parts) > DEPTH_MAX or not all(NAME.fullmatch(part) for part in parts):
        return None
    return parts


def usage(folder: str) -> Iterator[tuple[int, int]]:
    """Yield, file by file, the bytes and files that were found in a folder so far.

    It follows no link and leaves no file system; what vanishes meanwhile is passed over.
    """
    waiting = [folder]
    size = count = 0
    while waiting:
        try:
            # By descriptor: a name may become a link between two looks.
            handle = os.open(waiting.pop(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            at = os.readlink(f"/proc/self/fd/{handle}")
            with os.scandir(handle) as entries:
                for entry in entries:
                    try:
                        found = os.lstat(entry.name, dir_fd=handle)
                    except OSError:
                        continue
                    size += found.st_blocks * 512
                    count += 1
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(os.path.join(at, entry.name))
                    yield size, count
        except OSError:
            continue
        finally:
            os.close(handle)


def _made(above: int, name: str, mode: int, owner: tuple[int, int]) -> int:
    """Return a descriptor of a folder in another one; made with this owner, or found with it.

    Raises:
        OthersError: It is there, and is of another account.
        OSError: It cannot be made, or is a link.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        found = os.open(name, FOLDER, dir_fd=above)
        uid = os.fstat(found).st_uid
        if uid != owner[0]:
            os.close(found)
            raise OthersError(uid) from None
        return found
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        os.fchown(handle, *owner)
        os.fchmod(handle, mode)
        return os.open(name, FOLDER, dir_fd=above)
    finally:
        os.close(handle)


def _latest(above: int, name: str) -> float | None:
    """Return when a job's folder or a file in it was last written; None: it is gone."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    except OSError:
        return None
    try:
        times = [os.fstat(handle).st_mtime]
        # A job may have made millions: the other jobs must not wait for them.
        with os.scandir(handle) as entries:
            for entry in itertools.islice(entries, LOOKED_AT_MAX):
                try:
                    times.append(os.lstat(entry.name, dir_fd=handle).st_mtime)
                except OSError:
                    continue
    finally:
        os.close(handle)
    return max(times)
