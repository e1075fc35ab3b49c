"""Two nodes of Ray on loopback, in processes of their own, for tests and benchmarks.

    python -m tests.support.ray_cluster PORT [CPUS]     until standard input ends

Prints the address of the head once both nodes are there; PORT is that of Ray's client. Nothing is
reported to Ray's makers, there is no dashboard, and nothing listens beyond loopback: Ray binds
there alone where it believes that no other machine may join.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
STORE_BYTES = 80_000_000
ROOT = Path(__file__).resolve().parents[2]


class RayCluster:
    """A head and one more node with `cpus` processors each."""

    def __init__(self, port: int, cpus: int = 1) -> None:
        """Start it; raises RuntimeError if it does not start."""
        began = time.monotonic()
        self.folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        found = [str(ROOT / "libs"), str(ROOT / "services"), str(ROOT)]
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(found),
            "RAY_TMPDIR": self.folder.name,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster", str(port), str(cpus)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        self.client = f"ray://127.0.0.1:{port}"
        self.took_s = time.monotonic() - began
        if not self.address:
            self.down()
            text = f"no Ray cluster began; its words are in {self.folder.name}"
            raise RuntimeError(text)

    def down(self) -> None:
        """End both nodes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.folder.cleanup()


def main(arguments: list[str]) -> None:
    """Hold the cluster until standard input ends."""
    import ray
    from ray.cluster_utils import Cluster

    port, cpus = map(int, arguments)
    # Ray writes the address of the head beside, whatever folder it is given.
    Path(os.environ["RAY_TMPDIR"], "ray").mkdir(exist_ok=True)
    node: dict[str, Any] = {
        "num_cpus": cpus,
        "object_store_memory": STORE_BYTES,
        "node_ip_address": "127.0.0.1",
        "include_log_monitor": False,
    }
    head = {**node, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**node)
    cluster.wait_for_nodes()
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
