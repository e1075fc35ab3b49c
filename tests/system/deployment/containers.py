"""Machines for tests of deployments: containers with systemd, on a network of their own.

Each has control groups of its own, as a machine has: a namespace of them, mounted at its start.
It gets the capabilities that systemd and a launcher need and that this machine can give.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.system.deployment.bed import Done, until
from tools import engine, image

MADE = "skep-systemd:bookworm"
PACKAGES = "systemd systemd-sysv dbus python3 python3-venv iproute2 procps ca-certificates passwd"
SUBNET = "10.78.0.0/24"
COMMAND_WITHIN_S = 900.0
"""An installation on a busy machine takes minutes."""

CAPABILITIES = {
    "DAC_READ_SEARCH": 2,
    "LINUX_IMMUTABLE": 9,
    "NET_ADMIN": 12,
    "IPC_LOCK": 14,
    "IPC_OWNER": 15,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "LEASE": 28,
    "SYSLOG": 34,
}
"""Beside those that a container has anyway, with their numbers."""

GPU_MAJOR = 195
BOOT = f"""#!/bin/sh
set -e
umount -R -l /sys/fs/cgroup
if grep -q '^[1-9]' /proc/self/cgroup; then
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  sed 's/^[0-9]*:\\([^:]*\\):.*/\\1/' /proc/self/cgroup | while read -r one; do
    folder=${{one#name=}}; [ -n "$one" ] || folder=unified
    mkdir "/sys/fs/cgroup/$folder"
    case "$one" in
      "") mount -t cgroup2 cgroup2 "/sys/fs/cgroup/$folder" ;;
      name=*) mount -t cgroup -o "none,$one" cgroup "/sys/fs/cgroup/$folder" ;;
      *) mount -t cgroup -o "$one" cgroup "/sys/fs/cgroup/$folder" ;;
    esac
  done
else
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
[ -e /dev/nvidia0 ] || mknod -m 666 /dev/nvidia0 c {GPU_MAJOR} 0
exec /sbin/init
"""
"""What a machine begins with. The device has no driver: opening it tells whether one may."""

DOCKERFILE = f"""ARG BASE
FROM $BASE
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy \\
  --no-install-recommends {PACKAGES} && rm -rf /var/lib/apt/lists/*
COPY boot /boot/skep-boot
RUN chmod 755 /boot/skep-boot
STOPSIGNAL SIGRTMIN+3
CMD ["/boot/skep-boot"]
"""


def missing() -> str:
    """Return why machines cannot be made here; an empty text if they can."""
    try:
        done = subprocess.run(["docker", "info"], check=False, capture_output=True)
    except FileNotFoundError:
        return "there is no container engine (docker)"
    if done.returncode:
        return "no container engine answers (docker info)"
    if not _bounding() & 1 << CAPABILITIES["SYS_ADMIN"]:
        return "containers with systemd need CAP_SYS_ADMIN, which this machine cannot give"
    return ""


class Machine:
    """One machine.

    Args:
        prefix: What the container's name begins with.
        name: Its host name.
        image: What it is started from.
    """

    def __init__(self, prefix: str, name: str, image: str) -> None:
        self.name, self.container, self._image, self._net = name, f"{prefix}-{name}", image, prefix

    def start(self) -> None:
        """Make it, and return once systemd is up."""
        options = [
            *("--name", self.container, "--hostname", self.name),
            *("--network", self._net, "--network-alias", self.name),
            *("--cgroupns", "private", "--device-cgroup-rule", f"c {GPU_MAJOR}:* rwm"),
            *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec"),
            *("--volume", f"{image.WHEELS}:/wheels:ro"),
        ]
        for one in ("seccomp", "apparmor", "systempaths"):
            options += ["--security-opt", f"{one}=unconfined"]
        for name, number in CAPABILITIES.items():
            if _bounding() & 1 << number:
                options += ["--cap-add", name]
        docker("run", "--detach", *options, self._image)
        self.until_up()

    def until_up(self) -> None:
        """Return once systemd has started what it starts."""

        def is_up() -> bool:
            state = self.do("systemctl", "is-system-running").out.strip()
            return state in ("running", "degraded", "starting")

        until(is_up, f"{self.name} comes up")

    def reboot(self) -> None:
        """Stop it as a machine that is switched off in good order, and start it again."""
        docker("restart", "--time", "90", self.container)
        self.until_up()

    def put(self, path: str, content: str) -> None:
        """Write a file that everybody may read."""
        quoted = shlex.quote(path)
        done = self.do("sh", "-c", f"cat >{quoted} && chmod 644 {quoted}", text=content)
        assert done.code == 0, done.error

    def do(self, *words: str, env: Mapping[str, str] = {}, text: str = "") -> Done:
        """Return what a command comes to that root types on this machine."""
        began = time.monotonic()
        given = [f"--env={name}={value}" for name, value in env.items()]
        done = subprocess.run(
            ["docker", "exec", "--interactive", *given, self.container, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


class Containers:
    """Machines on a network of their own, gone at the end.

    Args:
        names: Their host names.
        made: The image they are started from; it may have Skep installed.
    """

    def __init__(self, names: Sequence[str], made: str) -> None:
        self.prefix = f"skep-units-{os.getpid()}"
        self.machines = {name: Machine(self.prefix, name, made) for name in names}

    def __enter__(self) -> Containers:
        docker("network", "create", "--subnet", SUBNET, self.prefix)
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            subprocess.run(
                ["docker", "rm", "--force", "--volumes", machine.container],
                check=False,
                capture_output=True,
            )
        subprocess.run(["docker", "network", "rm", self.prefix], check=False, capture_output=True)


def make_image(base: str) -> str:
    """Return an image with systemd and Python; made once. Raises EngineError."""
    known = subprocess.run(["docker", "image", "inspect", MADE], check=False, capture_output=True)
    if known.returncode == 0:
        return MADE
    with tempfile.TemporaryDirectory(prefix="skep-systemd-") as folder:
        Path(folder, "Dockerfile").write_text(DOCKERFILE, encoding="ascii")
        Path(folder, "boot").write_text(BOOT, encoding="ascii")
        given = engine.base(base, install=False)
        docker("build", "--network", "host", "--tag", MADE, "--build-arg", f"BASE={given}", folder)
    return MADE


def docker(*words: str) -> str:
    """Return what the engine says. Raises EngineError."""
    done = subprocess.run(["docker", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"docker {' '.join(words[:2])}: {done.stderr.strip()[-1000:]}"
        raise engine.EngineError(message)
    return done.stdout.strip()


def _bounding() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return int(line.split()[1], 16)
    return 0
