"""The launcher's decisions: policies, accounts, plans, groups, device filters; without root."""

from __future__ import annotations

import grp
import os
import pwd
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skep_services.adapters.docker_account import Confined, confined, host_config, with_files
from skep_services.agent import proc
from skep_services.cli.checks import FAIL, OK, WARN
from skep_services.cli.doctor_jobs import (
    check_environment,
    check_proc,
    isolation_of,
    launcher_checks,
)
from skep_services.launcher import accounts, device_filter, folders, groups, plans, policy, unit
from skep_services.launcher.accounts import Accounts, Refusal
from skep_services.launcher.namespaces import Init, Namespaces
from skep_services.launcher.policy import Policy, PolicyError
from skep_services.launcher.scratch import Scratch
from skep_services.ports import RunPlan

GIB = 2**30


def made(tmp_path: Path | None = None, **given: Any) -> Policy:
    chosen = policy.parsed(given, 16 * GIB)
    return chosen._replace(folder=str(tmp_path), private_tmp=False) if tmp_path else chosen


# --- the policy -----------------------------------------------------------------------------------


def test_an_empty_policy_is_a_careful_one() -> None:
    chosen = made()
    assert chosen.mode == policy.NAMES
    assert chosen.require == ("memory", "pids", "devices", "tmp", "processes")
    assert (chosen.limits.memory, chosen.limits.memory_of_all) == (
        16 * GIB * 90 // 100,
        16 * GIB * 95 // 100,
    )
    assert (chosen.limits.pids, chosen.limits.core, chosen.umask) == (4096, 0, 0o077)
    assert chosen.jobs == "/var/lib/skep-launcher/jobs"
    assert made(view={"pid_namespace": "require"}).require[-1] == policy.PID_NAMESPACE


@pytest.mark.parametrize(
    "given, why",
    [
        ({"agnet": "skep"}, "agnet: not known; is it misspelt?"),
        ({"limits": {"memroy": "1G"}}, "limits.memroy: not known"),
        ({"limits": {"memory": "lots"}}, "limits.memory is 'lots': it must be bytes"),
        ({"limits": {"pids": 1}}, "limits.pids is 1: it must be from 8"),
        ({"limits": {"pids": True}}, "limits.pids is True: it is of the wrong kind"),
        ({"accounts": {"mode": "root"}}, "accounts.mode is 'root': it must be one of names, dyn"),
        ({"accounts": {"persons": {"a b": "x"}}}, "accounts.persons has 'a b'"),
        ({"accounts": {"dynamic": {"first": 5}}}, "accounts.dynamic.first is 5: it must be from 1"),
        ({"accounts": {"dynamic": {"first": 2**31 - 1, "count": 9}}}, "beyond the largest uid"),
        ({"devices": {"nodes": ["/dev/nvidia["]}}, "devices.nodes has '/dev/nvidia['"),
        ({"devices": {"nodes": [".*"]}}, "it must begin with /dev/"),
        ({"view": {"pid_namespace": "yes"}}, "view.pid_namespace is 'yes': it must be one of auto"),
        ({"view": {"tmp_in": "memory"}}, "view.tmp_in is 'memory': say how much in limits.scratch"),
        ({"require": ["quota"]}, "require is 'quota': it must be one of memory, pids"),
        ({"folder": "/var/../etc"}, "folder is '/var/../etc': it must be a full path"),
        ({"folder": "/tmp/x"}, "jobs have a /tmp of their own"),
        ({"view": {"hidden": ["etc"]}}, "view.hidden is 'etc': it must be a full path"),
    ],
)
def test_what_a_policy_may_not_say(given: dict[str, Any], why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        made(**given)
    assert why in str(caught.value)


def test_a_policy_that_others_can_write_to(tmp_path: Path) -> None:
    path = tmp_path / "launcher.toml"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(PolicyError, match="must be root's"):
        policy.read(str(path))
    with pytest.raises(PolicyError, match="cannot be read"):
        policy.read(str(tmp_path / "none"))


# --- accounts -------------------------------------------------------------------------------------


def known(tmp_path: Path, **given: Any) -> Accounts:
    chosen = made(tmp_path, accounts=given)
    os.makedirs(chosen.state, exist_ok=True)
    return Accounts(chosen, agent_uid=4321, agent_gid=4322)


def refused(one: Accounts, person: str, vc: str = "nlp") -> str:
    with pytest.raises(Refusal) as caught:
        one.of(person, vc)
    return str(caught.value)


def test_numbers_are_given_once_and_for_ever(tmp_path: Path) -> None:
    given: dict[str, Any] = {"mode": "dynamic", "dynamic": {"first": 300_000, "count": 3}}
    one = known(tmp_path, **given)
    ada = one.of("ada", "nlp")
    assert (ada.uid, ada.gid, ada.groups) == (300_000, 300_000, ())
    assert one.of("bob", "nlp").uid == 300_001
    assert one.of("ada", "vision") == ada
    again = known(tmp_path, **given)
    assert again.of("", "nlp").uid == 300_002, "a VC's own jobs have a number too"
    assert again.of("ada", "nlp") == ada
    assert refused(again, "eve") == (
        "no-account: all 3 numbers of [accounts.dynamic] are given out: widen the range"
    )


def test_a_person_cannot_be_called_as_a_vc_is_kept(tmp_path: Path) -> None:
    one = known(tmp_path, mode="dynamic")
    assert refused(one, "vc:nlp").startswith("bad-name:")


def test_accounts_that_no_job_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = {"ada": (1500, 1500), "op": (1501, 0), "svc": (999, 999), "skep": (4321, 4321)}
    people |= {"zero": (0, 0), "nobody": (65534, 65534), "dock": (1502, 77)}
    people |= {"virt": (64055, 64055), "mia": (64056, 64056)}
    shells = {"virt": "/usr/sbin/nologin"}
    people |= {"al123": (1503, 1503), "friend": (1504, 4322)}

    def find(name: str) -> pwd.struct_passwd:
        uid, gid = people[name]
        return pwd.struct_passwd(
            (name, "x", uid, gid, "", f"/people/{name}", shells.get(name, "/bin/bash"))
        )

    def group(gid: int) -> grp.struct_group:
        return grp.struct_group(({77: "docker"}.get(gid, f"g{gid}"), "x", gid, []))

    monkeypatch.setattr(pwd, "getpwnam", find)
    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 0, 77, 2000, 4322])
    one = known(tmp_path, persons={"boss": "zero", "al": "al123"}, vcs={"nlp": "ada"})
    ada = one.of("ada", "nlp")
    assert ada == accounts.Account("ada", 1500, 1500, (1500, 2000), "/people/ada", "/bin/bash")
    assert one.of("", "nlp") == ada
    assert one.of("mia", "nlp").uid == 64056
    assert one.of("al", "nlp").name == "al123"
    for person, why in (
        ("op", "system-account: person op has the account op, whose group 0 no job may have"),
        ("dock", "system-account: person dock has the account dock, whose group 77 no job"),
        ("friend", "system-account: person friend has the account friend, whose group 4322 no job"),
        ("al123", "no-account: the account al123 is another person's in [accounts] persons"),
        ("svc", "system-account: person svc has the account svc (uid 999), which is the system"),
        ("skep", "system-account: person skep has the account skep, which is the agent's own"),
        ("boss", "system-account: person boss has the account zero (uid 0)"),
        ("nobody", "system-account: person nobody"),
        ("virt", "system-account: person virt has the account virt (uid 64055, no shell), which"),
        ("eve", "no-account: person eve has no account eve on this node"),
    ):
        assert refused(one, person).startswith(why)
    assert refused(one, "", "vision").startswith("no-account: a job of VC vision has no owner")
    by_vc = known(tmp_path, mode="vc", vcs={"nlp": "ada"})
    assert by_vc.of("eve", "nlp") == ada
    assert refused(by_vc, "eve", "vision").startswith("no-account: VC vision has no account")


def test_no_policy_gives_accounts_of_the_system() -> None:
    with pytest.raises(PolicyError, match=r"accounts\.uid_min is 1: it must be from 500"):
        policy.parsed({"accounts": {"uid_min": 1}}, 2**30)


# --- plans and paths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, parts",
    [
        ("/j/logs/j1/1/rank0.log", ["j1", "1", "rank0.log"]),
        ("/j/logs/j1/../x", None),
        ("/j/logs//x", None),
        ("/j/logs/.x", None),
        ("/j/logsx/y", None),
        ("/j/logs", None),
        ("/j/logs/a/b/c/d/e", None),
        ("/j/logs/a\n", None),
    ],
)
def test_what_is_in_a_folder(path: str, parts: list[str] | None) -> None:
    assert folders.inside(path, "/j/logs") == parts


def test_usage_counts_files_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "a" / "link").symlink_to("/usr")
    *_, (size, count) = folders.usage(str(tmp_path / "a"))
    assert count == 3
    assert 100_000 <= size < 200_000


def test_a_device_is_one_of_the_patterns() -> None:
    with pytest.raises(Refusal, match="bad-device"):
        plans._check_nodes(["/dev/null"], policy.GPU_NODES)
    with pytest.raises(Refusal, match="bad-device: /dev/nvidia999999 is no device"):
        plans._check_nodes(["/dev/nvidia999999"], policy.GPU_NODES)
    assert plans.number_of("/dev/null") == (1, 3)
    assert plans.number_of("/proc/self") is None


# --- control groups -------------------------------------------------------------------------------

HYBRID = """\
30 29 0:26 / /sys/fs/cgroup rw - tmpfs cgroup rw
31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


def test_where_the_hierarchies_are() -> None:
    found = groups.mounted(HYBRID)
    assert found.unified == "/sys/fs/cgroup/unified"
    assert found.legacy["cpu"] == "/sys/fs/cgroup/cpu"
    assert found.legacy["memory"] == "/sys/fs/cgroup/memory"


def test_limits_of_version_2_are_written(tmp_path: Path) -> None:
    """As the kernel has them, in plain files: what is written, and where."""
    root = tmp_path / "cgroup"
    for folder in (root, root / "jobs", root / "jobs" / "2a"):
        folder.mkdir()
        for name in ("cgroup.procs", "memory.max", "memory.oom.group", "pids.max", "cpu.weight"):
            (folder / name).touch()
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text("cpu memory pids")
    limits = made(limits={"memory_per_device": "1G", "pids": 99, "cpu_weight": 50}).limits
    one = groups.Groups(groups.Mounted(str(root), {}), "jobs", limits)
    assert one.features == {
        "memory": True,
        "pids": True,
        "cpu": True,
        "io": False,
        "devices": False,
        "tmp": False,
        "processes": False,
        "pid-namespace": False,
    }
    one.bound(0x2A, 2, [])
    written = {p.name: p.read_text() for p in (root / "jobs" / "2a").iterdir()}
    assert written["memory.max"] == str(2 * GIB)
    assert (written["memory.oom.group"], written["pids.max"], written["cpu.weight"]) == (
        "1",
        "99",
        "50",
    )
    assert (root / "jobs" / "memory.max").read_text() == str(16 * GIB * 95 // 100)


def test_a_program_that_filters_devices() -> None:
    assert device_filter.legacy_rules([(195, 0)])[-2:] == ["c 136:* rw", "c 195:0 rw"]
    code = device_filter.program([(195, 3)])
    assert len(code) % 8 == 0
    assert allowed(code, 2, 195, 3)
    assert allowed(code, 2, 136, 77), "any terminal"
    assert not allowed(code, 2, 195, 4), "another's device"
    assert not allowed(code, 1, 195, 3), "a disk of the same number"
    assert not allowed(code, 2, 1, 1), "the memory"


def allowed(code: bytes, kind: int, major: int, minor: int) -> bool:
    """Return what the kernel would make of a program: its few instructions, carried out."""
    import struct

    context = {0: kind | 0x60000, 4: major, 8: minor}
    registers = dict.fromkeys(range(11), 0)
    at = 0
    while True:
        operation, both, offset, value = struct.unpack_from("<BBhi", code, at * 8)
        at += 1
        match operation:
            case device_filter.LDX_W:
                registers[both & 15] = context[offset]
            case device_filter.AND_IMM:
                registers[both & 15] &= value
            case device_filter.JNE_IMM:
                at += offset if registers[both & 15] != value else 0
            case device_filter.MOV_IMM:
                registers[both & 15] = value
            case device_filter.EXIT:
                return bool(registers[0])
            case _:
                raise AssertionError(operation)


# --- the rest -------------------------------------------------------------------------------------


def test_the_unit_has_the_capabilities_and_leaves_jobs_alone() -> None:
    text = unit.text()
    assert "KillMode=process" in text
    assert "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE" in text
    assert "ProtectSystem=" not in text, "jobs inherit the launcher's mounts"
    assert "--config /etc/skep/launcher.toml" in text


def test_doctor_says_what_is_missing() -> None:
    lacks = {"memory": "no control group", "tmp": "no mounts"}
    found = {one.name: one for one in isolation_of(lacks, ["memory"], "/etc/x")}
    assert found["jobs apart: memory"].level == FAIL
    assert "take memory out of `require` in /etc/x" in found["jobs apart: memory"].todo
    assert found["jobs apart: tmp"].level == WARN
    assert found["jobs apart: pids"].level == OK


def test_doctor_looks_where_the_environment_is() -> None:
    assert check_environment("/opt/skep").level == OK
    found = check_environment("/tmp/venv")
    assert (found.level, found.text[:30]) == (FAIL, "/tmp/venv is not seen by jobs,")


def test_doctor_without_a_launcher(tmp_path: Path) -> None:
    (one,) = launcher_checks(str(tmp_path / "none"), "/etc/x")
    assert one.level == FAIL
    assert "systemctl status skep-launcher" in one.todo
    shown = tmp_path / "mountinfo"
    shown.write_text("22 1 0:20 / /proc rw - proc proc rw,hidepid=2\n")
    assert check_proc(str(shown)).level == (OK if os.geteuid() == 0 else WARN)


def plan(**given: Any) -> RunPlan:
    return RunPlan(
        token="j1.1.0",
        argv=("true",),
        env={},
        workdir="/w",
        log_path="/l",
        log_bytes_max=1,
        image="i",
        **given,
    )


@pytest.mark.parametrize("meets", [False, True])
def test_only_gangs_are_in_the_hosts_network(meets: bool) -> None:
    said = {
        "account": [5000, 5001, [5001, 6000]],
        "workdir": "/people/ada",
        "pids": 64,
        "memory": GIB,
        "shared_memory": 2 * GIB,
        "files": {"KEY": "/dev/shm/x/j1/KEY"},
    }
    given = confined(said, plan(meets=meets))
    assert given == Confined(
        uid=5000,
        gid=5001,
        groups=(5001, 6000),
        workdir="/people/ada",
        network="host" if meets else "bridge",
        pids=64,
        memory=GIB,
        shared_memory=2 * GIB,
        files={"KEY": "/dev/shm/x/j1/KEY"},
    )
    seen = with_files(plan(files={"KEY": b"secret"}), given)
    assert (seen.workdir, seen.env) == ("/people/ada", {"KEY": "/dev/shm/x/j1/KEY"})
    assert (seen.folders_to_read, seen.files) == (("/dev/shm/x/j1",), {})
    made_of = host_config(given, dict)
    assert made_of["cap_drop"] == ["ALL"]
    assert made_of["network_mode"] == given.network
    assert made_of["shm_size"] == (None if meets else 2 * GIB)
    assert (made_of["pids_limit"], made_of["mem_limit"], made_of["read_only"]) == (64, GIB, True)


# --- disks ----------------------------------------------------------------------------------------


def held(root: Path, **files: int) -> None:
    """Have jobs hold files of so many bytes in their /tmp."""
    for job, size in files.items():
        place = root / "scratch" / job / "tmp"
        place.mkdir(parents=True)
        (place / "file").write_bytes(b"x" * size)


def all_overdrawn(one: Scratch, jobs: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return what several looks at the disk find."""
    return [found for _ in range(4) if (found := one.overdrawn(jobs))]


def test_the_job_that_holds_most_of_a_full_disk_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(tmp_path, small=10_000, large=1_000_000)
    jobs = ("large", "small")
    free = 100

    def statvfs(place: str) -> SimpleNamespace:
        assert place == str(tmp_path)
        return SimpleNamespace(f_blocks=10_000, f_frsize=4096, f_bavail=free)

    monkeypatch.setattr("skep_services.launcher.scratch.os.statvfs", statvfs)
    one = Scratch(made(), str(tmp_path))
    found = all_overdrawn(one, jobs)
    assert {job for job, _ in found} == {"large"}
    assert found[0][1].startswith("disk-full: less than 5 % of the node's disk is free")
    assert all_overdrawn(Scratch(made(limits={"disk_free_percent": 0}), str(tmp_path)), jobs) == []
    assert all_overdrawn(one, ("small",)) == [], "it holds too little to have filled the disk"
    free = 5000
    assert all_overdrawn(one, jobs) == []


def test_scratch_is_bounded_by_bytes_and_by_files(tmp_path: Path) -> None:
    held(tmp_path, small=10_000, large=1_000_000)
    limits = {"scratch": "100K", "disk_free_percent": 0}
    one = Scratch(made(limits=limits), str(tmp_path))
    assert {*all_overdrawn(one, ("large", "small"))} == {
        ("large", "scratch-exceeded: /tmp holds more than 102400 bytes")
    }
    assert one.about() == "102400 bytes, counted now and then; disk not kept"
    in_memory = Scratch(made(limits=limits, view={"tmp_in": "memory"}), str(tmp_path))
    assert all_overdrawn(in_memory, ("large", "small")) == [], "the kernel keeps it"
    assert in_memory.about().startswith("102400 bytes in memory, kept by the kernel; ")


def test_a_namespace_that_is_told_to_end_is_no_jobs_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill takes its time: an init that is still there would be given to the next run."""
    ticks = proc.start_ticks(os.getpid())
    assert ticks is not None
    init, sent = Init(os.getpid(), ticks), []
    monkeypatch.setattr(proc, "send", lambda one, number: sent.append((one.pid, number)))
    one = Namespaces()
    one.give("j1", init)
    assert one.of("j1") == init
    one.end(init)
    assert sent == [(os.getpid(), signal.SIGKILL)]
    assert (one.of("j1"), one.lives(init)) == (None, False)
    one.keep({"j1": True})
    assert not one.lives(init), "it is there still"
