"""A container engine for this machine: the one that runs, or one started here.

    python -m tools.engine up [--install]      print nothing if all is well, else why not
    python -m tools.engine base [IMAGE]        print the base image to build on
    python -m tools.engine down                stop the engine, if `up` started it

Where the default base image is neither here nor to be pulled, one with the same Python is made from
Debian's packages. `--install` installs missing programs by apt-get, for machines of a CI.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "out" / "engine"
PID_PATH, LOG_PATH = FOLDER / "dockerd.pid", FOLDER / "dockerd.log"

BASE = "python:3.11-slim-bookworm"
MADE_BASE = "skep-base:bookworm"
"""What is made in place of BASE: Debian's Python has the same version there."""
SUITE, INCLUDED = "bookworm", "python3,ca-certificates"
NOT_NEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "var/log",
)

PACKAGES = {"docker": "docker.io", "dockerd": "docker.io", "iptables": "iptables"}
COMPOSE_PACKAGE, DEBOOTSTRAP_PACKAGE = "docker-compose", "debootstrap"
UP_WITHIN_S = 60.0
LOOK_EVERY_S = 0.2
PULL_WITHIN_S = 600.0
LOG_LINES_SHOWN = 15


class EngineError(Exception):
    """What is missing, and what would help."""


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"engine: {text}", file=sys.stderr, flush=True)


def compose_command() -> list[str]:
    """Return the words that run compose here. Raises EngineError."""
    if _runs("docker", "compose", "version"):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    text = "neither `docker compose` nor docker-compose is there: install the compose plugin, or"
    message = f"{text} the package {COMPOSE_PACKAGE}"
    raise EngineError(message)


def up(*, install: bool) -> None:
    """Return once an engine and compose can be used. Raises EngineError."""
    if not _runs("docker", "info"):
        _start(install=install)
    if install and not _has_compose():
        _install([COMPOSE_PACKAGE])
    compose_command()


def down() -> None:
    """Stop the engine that `up` started, if it did."""
    if not PID_PATH.exists():
        return
    pid = int(PID_PATH.read_text())
    PID_PATH.unlink()
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd":
            os.kill(pid, signal.SIGTERM)
            say("stopped")
    except (OSError, ProcessLookupError):
        pass  # It ended before.


def base(image: str, *, install: bool) -> str:
    """Return the image to build on for `image`: itself, or one made here. Raises EngineError."""
    if _runs("docker", "image", "inspect", image):
        return image
    if image == BASE and _runs("docker", "image", "inspect", MADE_BASE):
        return MADE_BASE
    say(f"pulling {image}")
    pulled = subprocess.run(
        ["docker", "pull", "--quiet", image],
        capture_output=True,
        text=True,
        check=False,
        timeout=PULL_WITHIN_S,
    )
    if pulled.returncode == 0:
        return image
    if image != BASE:
        text = f"the base image {image} is not here and cannot be pulled: {pulled.stderr.strip()}"
        message = f"{text}\n  name another with BASE_IMAGE=..., or leave it out"
        raise EngineError(message)
    say(f"{image} cannot be pulled; making {MADE_BASE} from Debian's packages (a minute)")
    _make_base(install=install)
    return MADE_BASE


def _start(*, install: bool) -> None:
    if os.environ.get("DOCKER_HOST"):
        text = f"DOCKER_HOST is {os.environ['DOCKER_HOST']}, and no engine answers there"
        raise EngineError(text)
    if os.geteuid() != 0:
        text = "no engine answers, and starting one needs root: start yours, or run this as root"
        message = f"{text} (is your user in the group `docker`?)"
        raise EngineError(message)
    lacking = sorted({package for name, package in PACKAGES.items() if not shutil.which(name)})
    if lacking and install:
        _install(lacking)
    elif lacking:
        text = f"no engine answers, and none can be started: apt-get install {' '.join(lacking)}"
        raise EngineError(text)
    if _runs("docker", "info"):
        return  # The package starts its own where there is a service manager.
    FOLDER.mkdir(parents=True, exist_ok=True)
    say(f"starting dockerd; its log: {LOG_PATH}")
    with LOG_PATH.open("wb") as log:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    PID_PATH.write_text(str(process.pid))
    deadline = time.monotonic() + UP_WITHIN_S
    while not _runs("docker", "info"):
        if process.poll() is not None or time.monotonic() > deadline:
            words = LOG_PATH.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise EngineError("dockerd does not come up; its last words:\n  " + "\n  ".join(words))
        time.sleep(LOOK_EVERY_S)


def _make_base(*, install: bool) -> None:
    if not shutil.which("debootstrap"):
        if not install:
            message = f"making a base image: apt-get install {DEBOOTSTRAP_PACKAGE}"
            raise EngineError(message)
        _install([DEBOOTSTRAP_PACKAGE])
    if os.geteuid() != 0:
        message = "making a base image needs root: name one with BASE_IMAGE=..."
        raise EngineError(message)
    with tempfile.TemporaryDirectory(prefix="skep-base-") as folder:
        root = Path(folder, "root")
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", SUITE, str(root)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            words = (made.stdout + made.stderr).splitlines()[-LOG_LINES_SHOWN:]
            raise EngineError("debootstrap failed:\n  " + "\n  ".join(words))
        for name in NOT_NEEDED:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            imported = subprocess.run(
                ["docker", "import", "-", MADE_BASE],
                stdin=tar.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
        if imported.returncode or tar.returncode:
            message = f"docker import failed: {imported.stderr.strip()}"
            raise EngineError(message)


def _install(packages: list[str]) -> None:
    if not shutil.which("apt-get"):
        message = f"there is no apt-get here to install {' '.join(packages)} with"
        raise EngineError(message)
    say(f"installing {' '.join(packages)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-qq", *words], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode:
            message = f"apt-get {' '.join(words)}: {done.stderr.strip()[-1000:]}"
            raise EngineError(message)


def _has_compose() -> bool:
    try:
        compose_command()
    except EngineError:
        return False
    return True


def _runs(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="A container engine for this machine.")
    parser.add_argument("what", choices=("up", "base", "down"))
    parser.add_argument("image", nargs="?", default=BASE)
    parser.add_argument("--install", action="store_true", help="install what is missing (apt-get)")
    given = parser.parse_args()
    try:
        if given.what == "down":
            down()
        else:
            up(install=given.install)
        if given.what == "base":
            print(base(given.image, install=given.install))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
