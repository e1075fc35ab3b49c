"""Build the web page of the gateway, or check that what is built is of these sources.

    python -m tools.web            build it with Node and npm, into the gateway's package
    python -m tools.web --check    exit 1 if the sources changed since it was built

What is built is kept in the repository, so that a user needs no Node. `site/sources.txt` has the
digest of the sources that it was built from. Where npm and its registry can be had, the check also
builds it anew, elsewhere, and compares the files.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "services" / "web"
SITE = ROOT / "services" / "skep_services" / "gateway" / "site"
DIGEST = "sources.txt"
LEFT_OUT = {"node_modules", "api.gen.ts", ".gitignore"}
API = ROOT / "proto" / "openapi.json"


def digest() -> str:
    """Return the digest of all sources: names and contents, and the API that they are typed by."""
    whole = hashlib.sha256()
    files = [path for path in SOURCES.rglob("*") if path.is_file()]
    for path in sorted([API, *(path for path in files if not LEFT_OUT & set(path.parts))]):
        whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def install() -> str:
    """Install what the build needs; return why it cannot be had, if so."""
    if shutil.which("npm") is None:
        return "there is no npm: install Node 20 or later"
    # The lock file says what is installed; scripts of packages are not run.
    done = npm("ci", "--ignore-scripts", "--no-audit", "--no-fund")
    return "" if done.returncode == 0 else f"npm ci failed: {done.stderr.strip()[-500:]}"


def build(out: Path) -> None:
    """Check types, and build into a folder; exit with what npm said if it fails."""
    done = npm("run", "build", SITE=str(out))
    if done.returncode:
        sys.exit(f"tools.web: {done.stdout}{done.stderr}")


def npm(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run npm in the folder of the sources; return what it said."""
    return subprocess.run(
        ["npm", *words],
        cwd=SOURCES,
        env={**os.environ, **more},
        check=False,
        capture_output=True,
        text=True,
    )


def different(one: Path, other: Path) -> list[str]:
    """Return the files that are not the same in two folders."""
    names = {
        path.relative_to(folder).as_posix()
        for folder in (one, other)
        for path in folder.rglob("*")
        if path.is_file() and path.name != DIGEST
    }
    _, wrong, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return sorted([*wrong, *missing])


def check() -> int:
    """Return 1, and say what to do, if what is built is not of these sources."""
    kept = SITE / DIGEST
    if not kept.exists() or kept.read_text().strip() != digest():
        print("tools.web: services/web or the API changed: run `make web`", file=sys.stderr)
        return 1
    if why := install():
        print(f"web: its sources are those that it was built from; not built anew, as {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        if wrong := different(SITE, Path(folder)):
            print(
                f"tools.web: built anew, {', '.join(wrong)} differ: run `make web`", file=sys.stderr
            )
            return 1
    return 0


def main() -> int:
    """Build, or check."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.web")
    parser.add_argument("--check", action="store_true", help="change nothing")
    if parser.parse_args().check:
        return check()
    if why := install():
        sys.exit(f"tools.web: {why}")
    build(SITE)
    (SITE / DIGEST).write_text(digest() + "\n")
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"web: {size / 1000:.0f} kB in {SITE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
