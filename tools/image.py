"""Build the image of every service, from wheels gathered here and without a network.

    python -m tools.image [--base IMAGE] [--tag TAG] [--extras train] [--python 3.11]

The wheels are kept in build/image, so only the first build fetches them. `--extras train` adds
PyTorch for agents whose jobs need it; the services do not.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
import sys
from pathlib import Path

from tools import engine

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / "build" / "image"
STAMP = WHEELS / ".fetched"
PYTHON = "3.11"
"""Of the base image: wheels are chosen for it, whichever Python runs this."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
TAG = "skep:local"
LOG_LINES_SHOWN = 25


def gather(extras: str, python: str) -> None:
    """Put the wheels of Skep and everything it needs into build/image. Raises EngineError."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    for old in WHEELS.glob("skep-*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(WHEELS), str(ROOT)], "building the wheel")
    (wheel,) = WHEELS.glob("skep-*.whl")
    wanted = "\n".join((extras, python, (ROOT / "pyproject.toml").read_text()))
    stamp = hashlib.sha256(wanted.encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == stamp:
        return
    for old in WHEELS.glob("*.whl"):
        if old != wheel:
            old.unlink()
    machine = platform.machine()
    platforms = [f"--platform={one}_{machine}" for one in PLATFORMS]
    what = f"{wheel}[{extras}]" if extras else str(wheel)
    _run(
        [
            *pip,
            "download",
            "--only-binary=:all:",
            f"--python-version={python}",
            "--implementation=cp",
            *platforms,
            f"--dest={WHEELS}",
            what,
            "pip",
        ],
        "fetching wheels",
    )
    STAMP.write_text(stamp)


def build(base: str, tag: str, extras: str) -> None:
    """Build the image from what was gathered. Raises EngineError."""
    command = [
        "docker",
        "build",
        "--network=none",
        "--file",
        str(ROOT / "compose" / "Dockerfile"),
        "--build-arg",
        f"BASE_IMAGE={base}",
        "--tag",
        tag,
    ]
    if extras:
        command += ["--build-arg", f"EXTRAS=[{extras}]"]
    _run([*command, str(WHEELS)], f"building {tag} on {base}")


def _run(command: list[str], what: str) -> None:
    engine.say(what)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        words = "\n  ".join(done.stdout.splitlines()[-LOG_LINES_SHOWN:])
        message = f"{what} failed:\n  {words}"
        raise engine.EngineError(message)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Build the image of every service.")
    parser.add_argument("--base", default=engine.BASE)
    parser.add_argument("--tag", default=TAG)
    parser.add_argument("--extras", default="", help="such as train")
    parser.add_argument("--python", default=PYTHON, help="of the base image")
    parser.add_argument("--install", action="store_true", help="install what is missing (apt-get)")
    given = parser.parse_args()
    try:
        engine.up(install=given.install)
        base = engine.base(given.base, install=given.install)
        gather(given.extras, given.python)
        build(base, given.tag, given.extras)
    except engine.EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
