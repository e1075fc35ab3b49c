"""The few calls of Linux that Python's library has not: namespaces, mounts, capabilities.

Standard library only. Every function raises OSError as the call fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
PR_SET_DUMPABLE = 4
CAPABILITY_VERSION = 0x20080522
CAPABILITIES_MAX = 64
EINVAL = 22
KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}
KEYCTL_JOIN_SESSION_KEYRING = 1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare_mounts() -> None:
    """Give this process mounts of its own, which nothing of outside sees any more."""
    _checked(_libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def unshare_processes() -> None:
    """Have what this process forks next be the first process of a new PID namespace."""
    _checked(_libc.unshare(CLONE_NEWPID), "unshare")


def enter_processes(namespace: int) -> None:
    """Have what this process forks next be in a PID namespace (a descriptor of it)."""
    _checked(_libc.setns(namespace, CLONE_NEWPID), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Attach a file system, a device or a folder at a place, as the system call does."""
    arguments = [each.encode() if each else None for each in (source, target, kind)]
    found = _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None)
    _checked(found, target)


def bind(source: str, target: str) -> None:
    """Show a folder at another place, without programs that change accounts, and devices."""
    mount(source, target, "", MS_BIND)
    mount(source, target, "", MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV)


def unmount(target: str) -> None:
    """Take a mount away, at once for all that comes later."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH | UMOUNT_NOFOLLOW), target)


def drop_all_capabilities() -> None:
    """Have this process, and what it executes, never again get what it has no more.

    The bounding, ambient and inheritable sets are emptied; the others go with the account.
    """
    for number in range(CAPABILITIES_MAX):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            if ctypes.get_errno() == EINVAL:
                break  # This kernel has no more.
            _checked(-1, "PR_CAPBSET_DROP")
    _checked(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "PR_CAP_AMBIENT")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, sets), "capget")
    sets[2] = sets[5] = 0
    _checked(_libc.capset(header, sets), "capset")


def leave_keyring() -> None:
    """Have this process, and what it executes, have a keyring of its own for its session.

    A process that has a keyring may read the keys in it, whatever its account: the keyring of the
    launcher, which systemd gives to each service, must not be that of all jobs.

    Raises:
        OSError: There is no room for another keyring, or it is not known how to ask here.
    """
    number = KEYCTL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "keyctl")
    if _libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        found = ctypes.get_errno()
        if found not in {errno.ENOSYS, errno.EPERM}:  # Then a job, too, can use no keys here.
            raise OSError(found, os.strerror(found), "keyctl")


def forbid_new_privileges() -> None:
    """Have no program that this process executes give it rights."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def _checked(found: int, what: str) -> None:
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
