"""What keeps the runs of a launcher apart: an account, control groups, a view of their own.

    admit    the plan is checked, and the account chosen by the policy      (a refusal is one line)
    launch   folders, control groups and the process are made
    ended    the control groups go; with a job's last run here, its scratch space

Nothing that is asked for is skipped: what the machine lacks (`lacks`) is refused if the policy
requires it, and said at each start of the launcher and by `skep doctor` if it does not.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from skep_services.agent import proc
from skep_services.agent.runner_enclosure import Enclosure
from skep_services.agent.runner_ends import Ends
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
from skep_services.launcher.namespaces import INIT, Init, Namespaces
from skep_services.launcher.policy import FEATURES, Policy
from skep_services.launcher.scratch import Scratch
from skep_services.launcher.secret_files import SecretFiles
from skep_services.launcher.volumes import Shown

REMOVE = "/bin/rm"
TERMINAL_MODE = 0o600
"""Of the terminal of a session: its account's alone."""
OWN_PROCESSES = View("", False, (), True)
NO_NAMESPACE = FEATURES[policy.PID_NAMESPACE]


class Apart(Enclosure):
    """The enclosure of a launcher with this policy."""

    def __init__(self, chosen: Policy, accounts: Accounts, groups: Groups, shared: Folders) -> None:
        super().__init__()
        self._policy, self._accounts = chosen, accounts
        self._groups, self._folders = groups, shared
        self.trusts_environments = not groups.tell
        self._runs: dict[str, dict[str, bool]] = {}  # tokens of living runs, by job
        self._admitted: Account | None = None
        self._spares: dict[bool, Spare] = {}  # by whether it has a PID namespace of its own
        self._chosen: Spare | None = None
        self._namespaces = Namespaces()
        self._over: list[tuple[int, str]] = []
        self._scratch = Scratch(chosen, shared.root)
        self._secrets = SecretFiles(shared.root)
        self.lacks = self._lacking()

    def about(self) -> dict[str, Any]:
        """Return what an agent and an administrator have to know."""
        requires = list(self._policy.require)
        return {
            "folder": self._folders.root,
            "lacks": self.lacks,
            "requires": requires,
            "scratch": self._scratch.about(),
            "copies": self._copies_bytes,
        }

    def _lacking(self) -> dict[str, str]:
        """Return what is not to be had on this machine, by feature, and why."""
        lacks = {
            feature: FEATURES[feature] for feature, has in self._groups.features.items() if not has
        }
        place = self._folders.root
        for feature, wanted, view in (
            (policy.TMP, self._policy.private_tmp, View("", False, (place,))),
            (policy.PROCESSES, self._policy.hide_processes, View("", True, ())),
            (policy.PID_NAMESPACE, self._policy.pid_namespace != policy.OFF, OWN_PROCESSES),
        ):
            trouble = can(view) if wanted else "the policy does not want it"
            if trouble:
                lacks[feature] = f"{FEATURES[feature]}: {trouble}"
            else:
                lacks.pop(feature, None)
        if not os.access(INIT[0], os.X_OK):
            lacks.setdefault(policy.PID_NAMESPACE, f"{NO_NAMESPACE}: there is no {INIT[0]}")
        if not self._groups.lists:
            # What outlives a run's main process is its init's child then, and not the launcher's.
            lacks.setdefault(policy.PID_NAMESPACE, f"{NO_NAMESPACE}: no control group lists a run")
        return lacks

    def missing(self) -> dict[str, str]:
        """Return what the policy requires and the machine lacks."""
        return {each: self.lacks[each] for each in self._policy.require if each in self.lacks}

    # --- before ---------------------------------------------------------------------------------

    def admit(self, plan: Mapping[str, Any]) -> Mapping[str, Any] | NotStarted:
        about = self._judged(plan)
        if isinstance(about, NotStarted):
            return about
        if plan.get("files") and not self._has_scratch:
            text = "files of secrets need a /dev/shm of the job's own ([view] private_tmp)"
            return NotStarted(f"{Reason.CANNOT_ISOLATE}: {text}", of_node=True)
        self._chosen = self._spares.get(False)
        if policy.PID_NAMESPACE in self.lacks:
            return about
        try:
            return {**about, "init": self._init_of(plan["job"])}
        except OSError as error:
            return not_written("a PID namespace", error)._replace(of_node=True)

    def _judged(self, plan: Mapping[str, Any]) -> Mapping[str, Any] | NotStarted:
        try:
            plans.check(plan, self._policy.device_nodes)
            for feature, why in self.missing().items():
                text = (
                    f"this node cannot keep jobs apart: {why} ({feature}); mend it, or take it out "
                    "of `require` in the launcher's policy"
                )
                raise Refusal(Reason.CANNOT_ISOLATE, text, of_node=True)
            account = self._accounts.of(plan["owner"], plan["vc"])
            shown = self._volumes(plan)
        except Refusal as refusal:
            said(f"refused: {str(plan.get('token'))[:64]!r}: {refusal}")
            return NotStarted(str(refusal), of_node=refusal.of_node)
        self._admitted = account
        whose = {"owner": plan["owner"], "vc": plan["vc"]}
        seen = {"volumes": shown} if shown else {}
        return {"uid": account.uid, "job": plan["job"], **whose, **seen}

    def _volumes(self, plan: Mapping[str, Any]) -> list[Shown]:
        """Return the volumes that a run gets, by the policy alone.

        Raises:
            Refusal: The policy has no such volume, or not for this VC in this mode.
        """
        shown: list[Shown] = []
        for name, place, mode in plan.get("volumes", ()):
            known = self._policy.volumes.get(name)
            if known is None:
                text = f"the launcher's policy on this node has no volume {name} ([volumes])"
                raise Refusal(Reason.NO_VOLUME, text, of_node=True)
            may = known.vcs.get(plan["vc"], "") if known.vcs else known.mode
            if may not in (policy.WRITE, mode):
                text = (
                    f"VC {plan['vc'] or '?'} may not have volume {name} as {mode!r} on this node "
                    "([volumes] of the launcher's policy)"
                )
                raise Refusal(Reason.NO_VOLUME, text, of_node=True)
            if place != known.path and plans.is_system(place):
                text = f"volume {name} cannot be at {place}: that is the system's"
                raise Refusal(Reason.BAD_PLAN, text)
            shown.append((name, known.path, place, mode, known.mounted))
        if shown and policy.TMP in self.lacks:
            text = f"no mounts of a job's own, so no volumes: {self.lacks[policy.TMP]}"
            raise Refusal(Reason.CANNOT_ISOLATE, text, of_node=True)
        return shown

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
        job = known.about.get("job", "")
        self._runs.setdefault(job, {})[known.token] = True
        if "init" in known.about:
            self._namespaces.adopt(job, Init(*known.about["init"]), self.helpers)

    def leaves_to_init(self, known: Known) -> bool:
        return "init" in known.about

    def new_mark(self) -> int:
        return self._chosen.mark if self._chosen is not None else proc.random_mark()

    def prepare(self) -> None:
        """Make the copies that the next runs will be, unless they wait already.

        One is in a PID namespace of its own, for a job that has none; the other one is not.
        """
        for owns in (False, True) if policy.PID_NAMESPACE not in self.lacks else (False,):
            spare = self._spares.get(owns)
            if spare is not None and spare.pid in self.helpers:
                continue
            if spare is not None:
                # It has ended: something is wrong, and the next start will tell what.
                self._drop(self._spares.pop(owns))
            try:
                spare = self._spares[owns] = self._copied(owns=owns)
            except OSError as error:
                said(f"nothing waits for the next run: {error.strerror} ({error.filename})")
                continue
            self.helpers[spare.pid] = True

    def _copied(self, *, owns: bool) -> Spare:
        """Return a copy that waits, in a namespace of its own or in the launcher's.

        Raises:
            OSError: It cannot be made.
        """
        mark = proc.random_mark()
        joins = self._groups.make(mark)
        if not owns:
            return Spare(mark, joins)
        init, spare = self._namespaces.make(self.helpers, lambda: Spare(mark, joins))
        spare.init = init
        return spare

    def close(self) -> None:
        """Let what waits for the next runs end, and take everything away that runs had."""
        self.clear()
        for spare in self._spares.values():
            self._drop(spare)
        self._spares.clear()

    def _drop(self, spare: Spare) -> None:
        spare.close()
        if self.helpers.pop(spare.pid, False):
            os.waitpid(spare.pid, 0)
        if spare.init is not None:
            self._namespaces.end(spare.init)
        self._groups.remove(spare.mark)

    def _init_of(self, job: str) -> Init:
        """Return the init of a job's namespace, and choose the copy that its run will be.

        Raises:
            OSError: There can be no namespace.
        """
        init = self._namespaces.of(job)
        if init is None:
            own = self._spares.get(True)
            if own is not None and own.init is not None and self._namespaces.lives(own.init):
                self._chosen, init = own, own.init
            else:
                init, _ = self._namespaces.make(self.helpers, lambda: None)
            self._namespaces.give(job, init)
        return init

    def _taken(self, mark: int) -> Spare | None:
        """Return what waits as the run of this number, which is no helper any more."""
        spare, self._chosen = self._chosen, None
        if spare is None or spare.mark != mark:
            return None
        del self._spares[spare.init is not None]
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
        namespace = -1
        try:
            if "init" in known.about:
                namespace = self._namespaces.open(Init(*known.about["init"]))
            view = self._view(plan, account, known)
            self._work(plan, account)
            ours = self._checkpoints(plan, account)
            self._copies(plan, account)
            nodes = [plans.number_of(node) for node in (*plan["device_nodes"], *self._common(plan))]
            numbers = [each for each in nodes if each is not None]
            joins = self._groups.make(known.mark)
            self._groups.bound(known.mark, len(plan["device_nodes"]), numbers)
        except OthersError as error:
            _close(namespace)
            text = (
                f"job {plan['job']} has folders of account {error.owner} on this node, and this "
                f"run is of account {account.uid}"
            )
            said(f"refused: {plan['token']}: {text}")
            return NotStarted(text)
        except OSError as error:
            _close(namespace)
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
                namespace=namespace,
            ),
            self._taken(known.mark),
        )
        _close(namespace)
        if isinstance(outcome, NotStarted):
            said(f"not started: {plan['token']}: {outcome.detail}")
        return outcome

    def enter(self, plan: Mapping[str, Any], known: Known, ends: Ends) -> int | NotStarted:
        job = str(known.about.get("job", ""))
        if "owner" not in known.about:
            return NotStarted(
                "it was started by an earlier version, which did not note whose it is"
            )
        try:
            account = self._accounts.of(known.about["owner"], known.about["vc"])
        except Refusal as refusal:
            return NotStarted(str(refusal))
        if account.uid != known.about["uid"]:
            return NotStarted(
                f"its processes are of account {known.about['uid']}, not {account.uid}"
            )
        if ends.terminal:
            os.fchown(ends.stdin, account.uid, account.gid)
            os.fchmod(ends.stdin, TERMINAL_MODE)
        whole = {"script": "", "files": {}, "checkpoints": "", "job": job, **plan}
        namespace = -1
        if "init" in known.about:
            namespace = self._namespaces.open(Init(*known.about["init"]))
        try:
            outcome = execute(
                Request(
                    plan=whole,
                    account=account,
                    mark=known.mark,
                    joins=self._groups.make(known.mark),
                    view=self._view(whole, account, known),
                    limits=self._policy.limits,
                    umask=self._policy.umask,
                    null=ends.stdin,
                    output=ends.output,
                    makes_checkpoints=False,
                    namespace=namespace,
                    errors=ends.errors,
                    terminal=ends.terminal,
                )
            )
        finally:
            _close(namespace)
        return outcome

    def prepare_container(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Make what a container of a run needs; return how it is to be, or why it is not to be.

        The engine makes it, and the agent asks the engine: so this keeps persons apart, and not
        the agent from root.
        """
        about = self._judged(plan)
        if isinstance(about, NotStarted):
            return refusal(about)
        account = self._admitted
        assert account is not None, "it was admitted"
        workdir, limits = plan["workdir"], self._policy.limits
        try:
            inside_work = self._work(plan, account)
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
        shown = about.get("volumes", [])
        in_volume = any(f"{workdir}/".startswith(f"{each[2]}/") for each in shown)
        if not (ours and workdir == plan["checkpoints"]) and not in_volume:
            workdir = reached(account, workdir)
            if not workdir:
                text = f"workdir {plan['workdir']} may not be entered by {account.name}"
                return refusal(NotStarted(text))
            allowed = (*self._allowed, *([inside_work] if inside_work else ()))
            if not any(workdir == each or workdir.startswith(each + "/") for each in allowed):
                text = (
                    f"workdir {workdir} is in none of {', '.join(self._allowed) or 'no folder'} "
                    "([view] workdirs of the launcher's policy)"
                )
                return refusal(NotStarted(text))
        try:
            files = self._secrets.make(plan["token"], account, plan.get("files", {}))
        except OSError as error:
            return refusal(not_written(str(error.filename or self._secrets.folder), error))
        return {
            "files": files,
            "volumes": [each[:4] for each in shown],
            "account": [account.uid, account.gid, list(account.groups)],
            "workdir": workdir,
            "pids": limits.pids,
            "memory": limits.memory,
            "shared_memory": limits.shared_memory,
        }

    def remove_files(self, token: str) -> None:
        """Remove the files of secrets of a container."""
        if folders.NAME.fullmatch(token):
            self._secrets.forget(token)

    def keep_files(self, tokens: Sequence[str]) -> None:
        """Remove the files of secrets of all containers but those of these runs."""
        self._secrets.keep_only(tokens)

    @property
    def _allowed(self) -> tuple[str, ...]:
        return self._policy.workdirs

    def _common(self, plan: Mapping[str, Any]) -> Sequence[str]:
        return self._policy.device_common if plan["device_nodes"] else ()

    @property
    def _has_scratch(self) -> bool:
        return policy.TMP not in self.lacks and self._policy.private_tmp

    def _view(self, plan: Mapping[str, Any], account: Account, known: Known) -> View:
        mounts = policy.TMP not in self.lacks
        scratch = ""
        if self._has_scratch:
            scratch = self._folders.provide_scratch(plan["job"], account)
            limits = self._policy.limits
            self._provide_memory(os.path.join(scratch, "shm"), account, limits.shared_memory, 0)
            if self._policy.tmp_in == policy.RAM:
                place = os.path.join(scratch, "tmp")
                self._provide_memory(place, account, limits.scratch, limits.scratch_files)
        hidden = (*self._policy.hidden, self._policy.state) if mounts else ()
        hides, owns = (each not in self.lacks for each in (policy.PROCESSES, policy.PID_NAMESPACE))
        paths = tuple(one.path for one in self._policy.volumes.values()) if mounts else ()
        shown = tuple(tuple(each) for each in known.about.get("volumes", ()))
        return View(scratch, hides, hidden, owns, paths, shown)

    def _provide_memory(self, place: str, account: Account, size: int, files: int) -> None:
        if os.path.ismount(place):
            return
        options = f"mode=0700,uid={account.uid},gid={account.gid}"
        options += (f",size={size}" if size else "") + (f",nr_inodes={files}" if files else "")
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

    @property
    def _copies_bytes(self) -> int:
        """Return the bytes that copies of all jobs' state may take in memory; 0: none."""
        return self._policy.limits.copies if policy.TMP not in self.lacks else 0

    def _copies(self, plan: Mapping[str, Any], account: Account) -> None:
        """Make the folder in memory for copies of a job's state, if it wants one.

        It is of one file system for all jobs, so that the kernel keeps them to the bound together.
        A run that cannot have it begins without.
        """
        size = self._copies_bytes
        if not plan.get("copies") or not size:
            return
        place = os.path.join(self._folders.root, folders.COPIES)
        try:
            if not os.path.ismount(place):
                flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
                kernel.mount("none", place, "tmpfs", flags, f"mode=0711,size={size}")
            self._folders.provide_copies(plan["job"], account)
        except OSError as error:
            said(f"{plan['token']} keeps no copies in memory: {place}: {error.strerror}")

    def copies(self) -> list[str]:
        """Return the jobs with copies of their state in this node's memory."""
        return [job for job, _ in self._folders.jobs_of(folders.COPIES)]

    def _work(self, plan: Mapping[str, Any], account: Account) -> str:
        """Make the folder of a job's attempts if the plan names one in it; return it, or nothing.

        Raises:
            OSError: It cannot be made, or the plan names another place.
        """
        if not plan.get("work"):
            return ""
        above = os.path.join(self._folders.root, folders.WORK)
        parts = folders.inside(plan["work"], above)
        if parts is None or len(parts) != 2 or parts[0] != plan["job"]:
            raise OSError(errno.EACCES, f"it is not in {above}/{plan['job']}", plan["work"])
        self._folders.provide_work(plan["job"], account)
        return os.path.join(os.path.realpath(above), plan["job"])

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
        found = self._scratch.overdrawn(self._runs)
        return [(token, found[1]) for token in self._runs.get(found[0], ())] if found else ()

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
        if job is None:
            self._namespaces.keep(self._runs)

    @property
    def is_clear(self) -> bool:
        """Return whether nothing is left to be taken away."""
        return not self._over

    def _tell_of_memory(self, known: Known) -> None:
        known.exceeded = (
            f"{Reason.MEMORY_EXCEEDED}: the job outgrew its {self._policy.limits.memory} bytes on "
            "this node ([limits] of the launcher's policy)"
        )
        try:
            log = self.open_log(known.log, known.log_bytes_max, known.about)
            log.say(known.exceeded)
        except OSError:
            return  # The end tells it too.
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
        for name in ("tmp", "shm") if kind == folders.SCRATCH else ():
            memory = os.path.join(place, name)
            if os.path.ismount(memory):
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
        every = folders.SCRATCH, folders.CHECKPOINTS, folders.LOGS, folders.WORK, folders.COPIES
        for kind in every:
            above = os.path.join(self._folders.root, kind)
            for name in os.listdir(above):
                if name.startswith("."):
                    self._discard(os.path.join(above, name))


def refusal(why: NotStarted) -> dict[str, Any]:
    """Return the answer that something is not started."""
    return {"not_started": why.detail, **({"fault": "node"} if why.of_node else {})}


def _close(namespace: int) -> None:
    if namespace >= 0:
        os.close(namespace)


def said(text: str) -> None:
    """Leave a word in the journal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
