"""Hold a running gateway against its own OpenAPI document, by Schemathesis.

    python -m tests.system.contract                     a cluster of its own on this machine
    python -m tests.system.contract --api URL --token T  another gateway: it is changed
    python -m tests.system.contract --examples 50       more random requests for each route

Schemathesis (extra `contract`) makes requests from the document: its examples, what is at the
bounds of every schema and beyond, and random ones. An answer that the document does not have is a
failure. It prints JSON, and returns 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded

HERE = Path(__file__).parent
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
REQUEST_S = 30.0


def contract(
    api: str, token: str, examples: int, seed: int, only: str = "", more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return what Schemathesis found at a gateway.

    Args:
        api: The gateway's address.
        token: An operator's token.
        examples: Random requests for each route; 0: only the phases that are not random.
        seed: Of the random requests.
        only: A pattern of the paths that are asked; empty: all.
        more: Further arguments of Schemathesis.
    """
    phases = "examples,coverage,fuzzing" if examples else "examples,coverage"
    command = [
        str(SCHEMATHESIS),
        f"--config-file={HERE / 'schemathesis.toml'}",
        "run",
        f"{api}/v1/openapi.json",
        "--no-color",
        f"--header=Authorization: Bearer {token}",
        f"--phases={phases}",
        f"--max-examples={max(1, examples)}",
        f"--seed={seed}",
        f"--request-timeout={REQUEST_S:.0f}",
        *((f"--include-path-regex={only}",) if only else ()),
        *more,
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.system.contract.hooks"}
    with tempfile.TemporaryDirectory() as folder:  # It keeps what it found where it is started.
        path = os.pathsep.join([str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command,
            env={**environment, "PYTHONPATH": path},
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
    cases = re.search(r"^  (\d+) generated", done.stdout, re.MULTILINE)
    failures = re.findall(r"^- (ST\d+ .+)$", done.stdout, re.MULTILINE)
    return {
        "generated": int(cases[1]) if cases else 0,
        "failures": failures,
        "ok": done.returncode == 0 and cases is not None,
        "output": "" if done.returncode == 0 else done.stdout + done.stderr,
    }


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--api", help="the gateway (default: a cluster of its own)")
    parser.add_argument("--token", default="", help="an operator's token")
    parser.add_argument("--examples", type=int, default=10, help="random requests for each route")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a pattern of the paths that are asked")
    options = parser.parse_args()
    asked = (options.examples, options.seed, options.only)
    if options.api:
        found = contract(options.api, options.token, *asked)
    else:
        with tempfile.TemporaryDirectory() as folder:
            cluster = Embedded(Path(folder))
            try:
                cluster.up("--nodes", "1", "--gpus", "2", "--port", "0", "--secrets")
                gateway = cluster.about["gateway"]
                found = contract(gateway["url"], gateway["tokens"]["operator"], *asked)
            finally:
                cluster.down()
    print(found.pop("output"), file=sys.stderr)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
