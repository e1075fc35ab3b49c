"""Which Unix account a person's jobs have on this node. The policy says it, never the agent.

    names      the account of the person's name, or the one that the policy names for them
    dynamic    a number of a range, the same for ever on this node: STATE/uids.json
    vc         the account of the VC's name, or the one that the policy names for it

A job of nobody in particular is its VC's. A dynamic number is never given to another person, even
after the first is gone: files of theirs may lie about.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
from enum import StrEnum
from typing import Any, NamedTuple

from skep_services.launcher import policy
from skep_services.launcher.policy import Policy

NOBODY = 65534
SYSTEM_HIGH = range(60_000, 65_536)
"""Systems give some of their own accounts such numbers (Debian's policy, systemd); so do some
directories to people, who have a shell."""
NO_SHELLS = ("nologin", "false")
TABLE_FILE = "uids.json"


class Account(NamedTuple):
    """A Unix account that a job runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str = "/bin/sh"


class Reason(StrEnum):
    """Why a run may not start, or was ended: stable words, which come first in the text."""

    BAD_PLAN = "bad-plan"
    BAD_NAME = "bad-name"
    BAD_DEVICE = "bad-device"
    NO_ACCOUNT = "no-account"
    SYSTEM_ACCOUNT = "system-account"
    CANNOT_ISOLATE = "cannot-isolate"
    NO_VOLUME = "no-volume"

    MEMORY_EXCEEDED = "memory-exceeded"
    SCRATCH_EXCEEDED = "scratch-exceeded"
    DISK_FULL = "disk-full"


class Refusal(Exception):  # noqa: N818  a name for what happened
    """A run may not start.

    Attributes:
        reason: Why.
        of_node: Another node may take the job.
    """

    def __init__(self, reason: Reason, text: str, *, of_node: bool = False) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason, self.of_node = reason, of_node


class Accounts:
    """The accounts of one node."""

    def __init__(self, chosen: Policy, agent_uid: int, agent_gid: int) -> None:
        """Read the numbers that were given out.

        Args:
            chosen: The policy.
            agent_uid: The number of the agent's account.
            agent_gid: That of its group, which may read the logs of everybody.

        Raises:
            OSError: The table cannot be read.
            ValueError: The table is damaged; nothing else than root may mend it.
        """
        self._policy, self._agent_uid, self._agent_gid = chosen, agent_uid, agent_gid
        self._path = os.path.join(chosen.state, TABLE_FILE)
        self._given: dict[str, int] = {}
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8") as file:
                self._given = {str(key): int(uid) for key, uid in json.load(file).items()}

    def of(self, person: str, vc: str) -> Account:
        """Return the account for a job of a person in a VC.

        Args:
            person: Whose job it is; empty: the VC's.
            vc: Its VC.

        Raises:
            Refusal: There is none, or none that jobs may have.
        """
        for kind, name in (("person", person), ("VC", vc)):
            if name and not policy.PERSON.fullmatch(name):
                text = f"{name!r} is no name of a {kind}"
                raise Refusal(Reason.BAD_NAME, text)
        if self._policy.mode == policy.DYNAMIC:
            return self._dynamic(person or f"vc:{vc}")
        if person and self._policy.mode == policy.NAMES:
            return self._named(self._name_of(person), f"person {person}")
        named = self._policy.vcs.get(vc)
        if named is None and self._policy.mode == policy.NAMES:
            text = (
                f"a job of VC {vc or '?'} has no owner, and [accounts.vcs] of the launcher names "
                "no account for it: submit as a person, or name one"
            )
            raise Refusal(Reason.NO_ACCOUNT, text, of_node=True)
        return self._named(named or vc, f"VC {vc}")

    def _name_of(self, person: str) -> str:
        """Return the name of a person's account.

        Raises:
            Refusal: It would be the one that the policy names for another person.
        """
        persons = self._policy.persons
        if person not in persons and person in persons.values():
            text = (
                f"the account {person} is another person's in [accounts] persons of the launcher's "
                f"policy: name one for person {person} there too"
            )
            raise Refusal(Reason.NO_ACCOUNT, text, of_node=True)
        return persons.get(person, person)

    def _named(self, name: str, whose: str) -> Account:
        try:
            found = pwd.getpwnam(name)
        except (KeyError, ValueError):
            text = (
                f"{whose} has no account {name} on this node: make it (useradd {name}), or name "
                "another in [accounts] of the launcher's policy"
            )
            raise Refusal(Reason.NO_ACCOUNT, text, of_node=True) from None
        self._check(found.pw_uid, name, whose)
        if found.pw_uid in SYSTEM_HIGH and os.path.basename(found.pw_shell) in NO_SHELLS:
            text = (
                f"{whose} has the account {name} (uid {found.pw_uid}, no shell), which is the "
                "system's: no job may have it"
            )
            raise Refusal(Reason.SYSTEM_ACCOUNT, text, of_node=True)
        if found.pw_gid == 0 or self._is_denied(found.pw_gid):
            text = f"{whose} has the account {name}, whose group {found.pw_gid} no job may have"
            raise Refusal(Reason.SYSTEM_ACCOUNT, text, of_node=True)
        groups = os.getgrouplist(name, found.pw_gid)
        kept = tuple(each for each in groups if each != 0 and not self._is_denied(each))
        shell = found.pw_shell or "/bin/sh"
        return Account(name, found.pw_uid, found.pw_gid, kept, found.pw_dir, shell)

    def _check(self, uid: int, name: str, whose: str) -> None:
        """Refuse what is no person's account.

        Raises:
            Refusal: It is root's, the system's or the agent's.
        """
        if uid == self._agent_uid:
            text = f"{whose} has the account {name}, which is the agent's own"
            raise Refusal(Reason.SYSTEM_ACCOUNT, text, of_node=True)
        if uid < self._policy.uid_min or uid == NOBODY:
            text = (
                f"{whose} has the account {name} (uid {uid}), which is the system's: jobs get uids "
                f"from {self._policy.uid_min}"
            )
            raise Refusal(Reason.SYSTEM_ACCOUNT, text, of_node=True)

    def _is_denied(self, gid: int) -> bool:
        if gid == self._agent_gid:
            return True
        try:
            return grp.getgrgid(gid).gr_name in self._policy.groups_denied
        except KeyError:
            return False

    def _dynamic(self, key: str) -> Account:
        uid = self._given.get(key)
        if uid is None:
            uid = self._next()
            self._given[key] = uid
            try:
                _write(self._path, self._given)
            except OSError as error:
                del self._given[key]
                text = f"{self._path} cannot be written: {error.strerror}"
                raise Refusal(Reason.NO_ACCOUNT, text, of_node=True) from error
        self._check(uid, key, f"person {key}")
        return Account(f"skep-{uid}", uid, uid, (), "")

    def _next(self) -> int:
        """Return a number that nobody has had.

        Raises:
            Refusal: There is none left.
        """
        first, count = self._policy.dynamic_first, self._policy.dynamic_count
        begin = max((uid + 1 for uid in self._given.values()), default=first)
        for uid in range(max(begin, first), first + count):
            if not _is_known(uid):
                return uid
        text = f"all {count} numbers of [accounts.dynamic] are given out: widen the range"
        raise Refusal(Reason.NO_ACCOUNT, text, of_node=True)


def _is_known(number: int) -> bool:
    for find in (pwd.getpwuid, grp.getgrgid):
        try:
            find(number)
        except KeyError:
            continue
        return True
    return False


def _write(path: str, given: dict[str, Any]) -> None:
    """Replace the table; a number that was told must not be forgotten, so it is synced.

    Raises:
        OSError: It cannot be written.
    """
    aside = path + ".tmp"
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        text = json.dumps(given).encode()
        if os.write(file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), aside)
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(aside, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
