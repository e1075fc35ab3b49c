"""What keeps the runs of a launcher apart: an account, control groups, a view of their own.

    admit    the plan is checked, and the account chosen by the policy      (a refusal is one line)
    launch   folders, control groups and the process are made
    ended    the control groups go; with a job's last run here, its scratch space

Nothing that is asked for is skipped: what the machine lacks (`lacks`) is refused if the policy
requires it, and said at each start of the launcher and by `skep doctor` if it does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skep_services.agent import proc
from skep_services.agent.runner_enclosure import Enclosure
from skep_services.agent.runner_launch import NotStarted, not_written
from skep_services.agent.runner_log import RunLog
from skep_services.agent.runner_record import Known
from skep_services.launcher import folders, kernel, plans, policy
from skep_services.launcher.accounts import Account, Accounts, Reason, Refusal
from skep_services.launcher.execute import (
    Request,
    Spare,
    View,
    can,
    execute,
    made_checkpoints,
    reached,
)
from skep_services.launcher.folders import Folders, OthersError
from skep_services.launcher.groups import Groups
from skep_services.launcher.policy import FEATURES, Policy

ENTRIES_PER_LOOK = 2000
"""Files whose size is asked for between two looks at the other runs: some milliseconds."""

REMOVE = "/bin/rm"


class Apart(Enclosure):
    """The enclosure of a launcher with this policy."""

    def __init__(self, chosen: Policy, accounts: Accounts, groups: Groups, shared: Folders) -> None:
        super().__init__()
        self._policy, self._accounts = chosen, accounts
        self._groups, self._folders = groups, shared
        self.trusts_environments = not groups.tell
        self._runs: dict[str, dict[str, bool]] = {}  # tokens of living runs, by job
        self._admitted: Account | None = None
        self._spare: Spare | None = None
        self._over: list[tuple[int, str]] = []
        self._counting: tuple[str, Iterator[tuple[int, int]]] | None = None
        self._counted: list[str] = []
        self.lacks = self._lacking()

    def about(self) -> dict[str, Any]:
        """Return what an agent and an administrator have to know."""
        requires = list(self._policy.require)
        return {"folder": self._folders.root, "lacks": self.lacks, "requires": requires}

    def _lacking(self) -> dict[str, str]:
        """Return what is not to be had on this machine, by feature, and why."""
        lacks = {
            feature: FEATURES[feature] for feature, has in self._groups.features.items() if not has
        }
        place = self._folders.root
        for feature, wanted, view in (
            (policy.TMP, self._policy.private_tmp, View("", False, (place,))),
            (policy.PROCESSES, self._policy.hide_processes, View("", True, ())),
        ):
            trouble = can(view) if wanted else "the policy does not want it"
            if trouble:
                lacks[feature] = f"{FEATURES[feature]}: {trouble}"
            else:
                lacks.pop(feature, None)
        return lacks

    def missing(self) -> dict[str, str]:
        """Return what the policy requires and the machine lacks."""
        return {each: self.lacks[each] for each in self._policy.require if each in self.lacks}

    # --- before ---------------------------------------------------------------------------------

    def admit(self, plan: Mapping[str, Any]) -> Mapping[str, Any] | NotStarted:
        try:
            plans.check(plan, self._policy.device_nodes)
            for feature, why in self.missing().items():
                text = (
                    f"this node cannot keep jobs apart: {why} ({feature}); mend it, or take it out "
                    "of `require` in the launcher's policy"
                )
                raise Refusal(Reason.CANNOT_ISOLATE, text, of_node=True)
            if plan.get("files") and not self._has_scratch:
                text = "files of secrets need a /dev/shm of the job's own ([view] private_tmp)"
                raise Refusal(Reason.CANNOT_ISOLATE, text, of_node=True)
            account = self._accounts.of(plan["owner"], plan["vc"])
        except Refusal as refusal:
            said(f"refused: {str(plan.get('token'))[:64]!r}: {refusal}")
            return NotStarted(str(refusal), of_node=refusal.of_node)
        self._admitted = account
        return {"uid": account.uid, "job": plan["job"]}

    def open_log(self, path: str, bytes_max: int, about: Mapping[str, Any]) -> RunLog:
        if path == os.devnull:
            return RunLog(path, bytes_max)
        uid = about.get("uid", 0)
        try:
            return RunLog(path, bytes_max, lambda at, flags: self._folders.open_log(at, flags, uid))
        except OSError as error:
            said(f"refused: log {path[:200]!r}: {error.strerror}")
            raise

    def adopted(self, known: Known) -> None:
        self._runs.setdefault(known.about.get("job", ""), {})[known.token] = True

    def new_mark(self) -> int:
        return self._spare.mark if self._spare is not None else proc.random_mark()

    def prepare(self) -> None:
        """Make the copy that the next run will be, unless it waits already."""
        if self._spare is not None and self._spare.pid in self.helpers:
            return
        if self._spare is not None:
            # It has ended: something is wrong, and the next start will tell what.
            self._spare.close()
            self._spare = None
        mark = proc.random_mark()
        try:
            self._spare = Spare(mark, self._groups.make(mark))
        except OSError as error:
            said(f"nothing waits for the next run: {error.strerror} ({error.filename})")
            return
        self.helpers[self._spare.pid] = True

    def close(self) -> None:
        """Let what waits for the next run end, and take everything away that runs had."""
        self.clear()
        if self._spare is not None:
            self._spare.close()
            if self.helpers.pop(self._spare.pid, False):
                os.waitpid(self._spare.pid, 0)
            self._groups.remove(self._spare.mark)
            self._spare = None

    def _taken(self, mark: int) -> Spare | None:
        """Return what waits as the run of this number, which is no helper any more."""
        spare = self._spare
        if spare is None or spare.mark != mark:
            return None
        self._spare = None
        return spare if self.helpers.pop(spare.pid, False) else None

    # --- the start ------------------------------------------------------------------------------

    def launch(
        self, plan: Mapping[str, Any], known: Known, stdin: int, output: int
    ) -> int | NotStarted:
        account = self._admitted
        assert account is not None, "admit comes first"
        assert account.uid == known.about["uid"], "admit comes first"
        self.clear(plan["job"])
        self.adopted(known)
        try:
            view = self._view(plan, account)
            ours = self._checkpoints(plan, account)
            nodes = [plans.number_of(node) for node in (*plan["device_nodes"], *self._common(plan))]
            numbers = [each for each in nodes if each is not None]
            joins = self._groups.make(known.mark)
            self._groups.bound(known.mark, len(plan["device_nodes"]), numbers)
        except OthersError as error:
            text = (
                f"job {plan['job']} has folders of account {error.owner} on this node, and this "
                f"run is of account {account.uid}"
            )
            said(f"refused: {plan['token']}: {text}")
            return NotStarted(text)
        except OSError as error:
            return not_written(str(error.filename or self._folders.root), error)
        outcome = execute(
            Request(
                plan=plan,
                account=account,
                mark=known.mark,
                joins=joins,
                view=view,
                limits=self._policy.limits,
                umask=self._policy.umask,
                null=stdin,
                output=output,
                makes_checkpoints=bool(plan["checkpoints"]) and not ours,
            ),
            self._taken(known.mark),
        )
        if isinstance(outcome, NotStarted):
            said(f"not started: {plan['token']}: {outcome.detail}")
        return outcome

    def prepare_container(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Make what a container of a run needs; return how it is to be, or why it is not to be.

        The engine makes it, and the agent asks the engine: so this keeps persons apart, and not
        the agent from root.
        """
        about = self.admit(plan)
        if isinstance(about, NotStarted):
            return refusal(about)
        account = self._admitted
        assert account is not None, "it was admitted"
        workdir, limits = plan["workdir"], self._policy.limits
        try:
            ours = self._checkpoints(plan, account)
            self._folders.share_log(plan["log_path"], account.uid)
        except OthersError as error:
            text = f"job {plan['job']} has files of account {error.owner} on this node"
            return refusal(NotStarted(text))
        except OSError as error:
            return refusal(not_written(str(error.filename or plan["log_path"]), error))
        if plan["checkpoints"] and not ours:
            trouble = made_checkpoints(account, plan["checkpoints"])
            if trouble is not None:
                return refusal(NotStarted(*trouble))
        if not (ours and workdir == plan["checkpoints"]):
            workdir = reached(account, workdir)
            if not workdir:
                text = f"workdir {plan['workdir']} may not be entered by {account.name}"
                return refusal(NotStarted(text))
            if not any(workdir == each or workdir.startswith(each + "/") for each in self._allowed):
                text = (
                    f"workdir {workdir} is in none of {', '.join(self._allowed) or 'no folder'} "
                    "([view] workdirs of the launcher's policy)"
                )
                return refusal(NotStarted(text))
        return {
            "account": [account.uid, account.gid, list(account.groups)],
            "workdir": workdir,
            "pids": limits.pids,
            "memory": limits.memory,
            "shared_memory": limits.shared_memory,
        }

    @property
    def _allowed(self) -> tuple[str, ...]:
        return self._policy.workdirs

    def _common(self, plan: Mapping[str, Any]) -> Sequence[str]:
        return self._policy.device_common if plan["device_nodes"] else ()

    @property
    def _has_scratch(self) -> bool:
        return policy.TMP not in self.lacks and self._policy.private_tmp

    def _view(self, plan: Mapping[str, Any], account: Account) -> View:
        mounts = policy.TMP not in self.lacks
        scratch = ""
        if self._has_scratch:
            scratch = self._folders.provide_scratch(plan["job"], account)
            self._provide_memory(os.path.join(scratch, "shm"), account)
        hidden = (*self._policy.hidden, self._policy.state) if mounts else ()
        return View(scratch, policy.PROCESSES not in self.lacks, hidden)

    def _provide_memory(self, place: str, account: Account) -> None:
        if os.path.ismount(place):
            return
        size = self._policy.limits.shared_memory
        options = f"mode=0700,uid={account.uid},gid={account.gid}" + (
            f",size={size}" if size else ""
        )
        kernel.mount("none", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)

    def _checkpoints(self, plan: Mapping[str, Any], account: Account) -> bool:
        """Make the folder of a job's checkpoints where it is the launcher's; return whether so.

        Any other folder is made by the job's process, with the rights of its account.
        """
        above = os.path.join(self._folders.root, folders.CHECKPOINTS)
        if folders.inside(plan["checkpoints"], above) != [plan["job"]]:
            return False
        self._folders.provide_checkpoints(plan["job"], account)
        return True

    # --- while it lives -------------------------------------------------------------------------

    def mark_of(self, pid: int) -> int | None:
        if self.trusts_environments:
            return proc.mark(pid)
        # A process says its number itself, and may say another's; its group it cannot choose.
        try:
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                return self._groups.run_in(file.read())
        except OSError:
            return None

    def inside(self, known: Known) -> Sequence[int] | None:
        return self._groups.inside(known.mark)

    def kill(self, known: Known) -> bool:
        return self._groups.kill(known.mark)

    def group(self, known: Known) -> str:
        return self._groups.path(known.mark)

    def overdrawn(self) -> Sequence[tuple[str, str]]:
        limits = self._policy.limits
        if not (limits.scratch or limits.scratch_files):
            return ()
        if self._counting is None:
            if not self._counted:
                self._counted = sorted(self._runs)
            if not self._counted:
                return ()
            job = self._counted.pop()
            place = os.path.join(self._folders.root, folders.SCRATCH, job, "tmp")
            self._counting = job, folders.usage(place)
        job, found = self._counting
        for _ in range(ENTRIES_PER_LOOK):
            size, count = next(found, (-1, -1))
            if size < 0:
                self._counting = None
                return ()
            if limits.scratch and size > limits.scratch:
                why = f"scratch limit reached: /tmp holds more than {limits.scratch} bytes"
            elif limits.scratch_files and count > limits.scratch_files:
                why = f"scratch limit reached: /tmp holds more than {limits.scratch_files} files"
            else:
                continue
            self._counting = None
            return [(token, why) for token in self._runs.get(job, ())]
        return ()

    # --- after ----------------------------------------------------------------------------------

    def ended(self, known: Known) -> None:
        if self._groups.killed_for_memory(known.mark):
            self._tell_of_memory(known)
        job = known.about.get("job", "")
        living = self._runs.get(job, {})
        living.pop(known.token, None)
        if not living:
            self._runs.pop(job, None)
        # The kernel takes its time over mounts: the agent hears of the end first.
        self._over.append((known.mark, job))

    def clear(self, job: str | None = None) -> None:
        """Take away what runs had that have ended.

        Args:
            job: Only of this one, which is about to begin anew.
        """
        over = [each for each in self._over if job is None or each[1] == job]
        self._over = [each for each in self._over if each not in over]
        for mark, whose in over:
            self._groups.remove(mark)
            self.remove(folders.SCRATCH, whose)

    @property
    def is_clear(self) -> bool:
        """Return whether nothing is left to be taken away."""
        return not self._over

    def _tell_of_memory(self, known: Known) -> None:
        try:
            log = self.open_log(known.log, known.log_bytes_max, known.about)
        except OSError:
            return
        log.say(
            f"killed for memory: the job outgrew its {self._policy.limits.memory} bytes on this "
            "node ([limits] of the launcher's policy)"
        )
        log.close()

    def lives(self, job: str) -> bool:
        """Return whether a job has a run here."""
        return job in self._runs

    def remove(self, kind: str, job: str) -> None:
        """Remove a job's folder of a kind, unless the job lives here; another process does it."""
        if not folders.NAME.fullmatch(job) or job in self._runs:
            return
        place = os.path.join(self._folders.root, kind, job)
        if not os.path.lexists(place):
            return
        memory = os.path.join(place, "shm")
        if kind == folders.SCRATCH and os.path.ismount(memory):
            try:
                kernel.unmount(memory)
            except OSError as error:
                said(f"{memory} cannot be unmounted: {error.strerror}")
        # A later run of the job begins with another folder, however long this takes.
        aside = os.path.join(self._folders.root, kind, f".{job}.{os.urandom(4).hex()}")
        try:
            os.rename(place, aside)
        except OSError as error:
            said(f"{place} cannot be removed: {error.strerror}")
            return
        self._discard(aside)

    def _discard(self, place: str) -> None:
        try:
            pid = os.posix_spawn(REMOVE, [REMOVE, "-rf", "--one-file-system", "--", place], {})
        except OSError as error:
            # As when a job has all processes of the machine. The next launcher removes it.
            said(f"{place} is left for later: {error.strerror}")
            return
        self.helpers[pid] = True

    def sweep(self, before: float) -> list[str]:
        """Remove checkpoints that no job has written to since then (s since 1970); return whose."""
        gone = [
            job
            for job, at in self._folders.jobs_of(folders.CHECKPOINTS)
            if at < before and job not in self._runs
        ]
        for job in gone:
            self.remove(folders.CHECKPOINTS, job)
        return gone

    def sweep_scratch(self, marks: Mapping[int, object]) -> None:
        """Remove what runs left that ended while no launcher was there.

        Args:
            marks: The numbers of those that live.
        """
        self._groups.remove_unknown(marks)
        for job, _ in self._folders.jobs_of(folders.SCRATCH):
            self.remove(folders.SCRATCH, job)
        for kind in (folders.SCRATCH, folders.CHECKPOINTS, folders.LOGS):
            above = os.path.join(self._folders.root, kind)
            for name in os.listdir(above):
                if name.startswith("."):
                    self._discard(os.path.join(above, name))


def refusal(why: NotStarted) -> dict[str, Any]:
    """Return the answer that something is not started."""
    return {"not_started": why.detail, **({"fault": "node"} if why.of_node else {})}


def said(text: str) -> None:
    """Leave a word in the journal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
