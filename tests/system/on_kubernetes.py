"""Nodes in pods: a real cluster of Skep's, and an API server and kubelets that are played here.

    python -m tests.system.on_kubernetes

A pod is a process: its container's command, with the paths of its volumes in a folder. What is real
is the server, the agents, their joins, the jobs and `skep up --on kubernetes`. What is not is
Kubernetes. Prints JSON, and returns 1 if something was not as it should be. It takes three minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from skep_services.pools import kubernetes_pod
from tests.support.kube_api import KubeApi
from tests.support.ports import free_port
from tests.system.on_slurm import STEPS, Lab, is_up, until, write_long_job

GRACE_S = 60
LOOK_EVERY_S = 0.2


class Kubelets(threading.Thread):
    """Finds a machine for every pod, runs it as a process, and ends it when it is told to end."""

    def __init__(self, api: KubeApi, folder: Path) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ending: dict[str, threading.Thread] = {}
        self._over = threading.Event()

    def stop(self) -> None:
        """End everything that still runs."""
        self._over.set()
        self.join()
        for process in self._running.values():
            process.kill()
            process.wait()

    def run(self) -> None:
        """Look at all pods, again and again."""
        while not self._over.wait(LOOK_EVERY_S):
            for name, pod in list(self._api.pods.items()):
                self._look(name, pod)

    def _look(self, name: str, pod: dict[str, Any]) -> None:
        process = self._running.get(name)
        if pod["metadata"].get("deletionTimestamp"):
            if name not in self._ending:
                self._ending[name] = threading.Thread(target=self._end, args=(name, pod))
                self._ending[name].start()
        elif not pod["spec"].get("nodeName"):
            self._api.schedule(name)
        elif process is None and name in self._api.secrets:
            self._start(name, pod)
        elif process is not None and process.poll() is not None:
            said = (self._folder / f"{name}.log").read_text().splitlines()[-1:]
            self._api.status(name, phase="Failed", message="".join(said))

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        token = self._folder / name / "join" / kubernetes_pod.TOKEN
        token.parent.mkdir(parents=True)
        token.write_text(self._api.secrets[name]["stringData"][kubernetes_pod.TOKEN])
        (self._folder / "checkpoints").mkdir(exist_ok=True)
        words = pod["spec"]["containers"][0]["command"]
        command = [*self._here(name, words), "--address", "127.0.0.1"]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._running[name] = process
        self._api.status(name, phase="Running")

    def _end(self, name: str, pod: dict[str, Any]) -> None:
        deadline = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
        process = self._running.get(name)
        if process is not None:
            first = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            subprocess.run(self._here(name, first), check=True)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(max(2.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._api.gone(name)

    def _here(self, name: str, words: list[str]) -> list[str]:
        places = {
            "python": sys.executable,
            kubernetes_pod.HOME: str(self._folder / name / "state"),
            f"{kubernetes_pod.JOIN}/{kubernetes_pod.TOKEN}": str(
                self._folder / name / "join" / kubernetes_pod.TOKEN
            ),
            kubernetes_pod.CHECKPOINTS: str(self._folder / "checkpoints"),
        }
        return [places.get(word, word) for word in words]


def main() -> int:
    """Run it all; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, KubeApi() as api:
        kubelets = Kubelets(api, Path(folder))
        kubelets.start()
        try:
            found = run(Lab(Path(folder, "home")), Path(folder), api)
        finally:
            kubelets.stop()
    print(json.dumps(found))
    return 0 if all(found["held"].values()) else 1


def run(lab: Lab, folder: Path, api: KubeApi) -> dict[str, Any]:
    """Return what was seen, and which promises held."""
    write_long_job(folder)
    parts = ("gateway", "bus", "door", "routes", "servers")
    ports = [word for part in parts for word in ("--ports", f"{part}={free_port()}")]
    here = ["--host", "127.0.0.1", "--listen", "127.0.0.1", "--vc", "team=8"]
    lab.skep("server", "init", "--name", "lab", *here, *ports)
    pool = ["up", "--on", "kubernetes", "--api-server", api.url, "--namespace", api.namespace]
    pool += ["--image", "skep:test", "--nodes", "2", "--nodes-min", "1", "--gpus", "4"]
    pool += ["--device", "cpu", "--margin", f"{GRACE_S}s", "--idle", "15s"]
    pool += ["--checkpoints-claim", "checkpoints"]

    def nodes() -> list[dict[str, Any]]:
        try:
            listed: list[dict[str, Any]] = lab.json("node", "ls")["nodes"]
        except RuntimeError:
            return []  # The gateway is not up yet.
        return [node for node in listed if node["state"] == "up"]

    with lab.keeping(folder / "server.log", "server", "run"):
        until(lambda: is_up(lab), "the server is up")
        wishes = ("run", "-d", "--vc", "team", "--gpus", "4")
        known = keepers_own(lab)
        with lab.keeping(folder / "pool1.log", *pool, environment=known) as keeper:
            until(nodes, "a node has joined")
            short = [lab.skep(*wishes, "--", "sleep", "15").strip() for _ in range(2)]
            grown = until(lambda: len(found := nodes()) > 1 and found, "a second node has joined")
            os.kill(keeper.pid, signal.SIGKILL)
        with lab.keeping(folder / "pool2.log", *pool, environment=known) as keeper:
            lab.skep("wait", "-q", *short)
            shrunk = until(lambda: len(found := nodes()) == 1 and found, "one is handed back")
            job = lab.skep(*wishes, "--name", "long", "--", "long.py").strip()
            first = until(lambda: [each for each in nodes() if each["jobs"]], "it runs")
            api.evict(first[0]["node"], GRACE_S)
            lab.skep("wait", "-q", job)
            shown = lab.json("show", job)
            alive = keeper.poll() is None
        stayed = list(api.pods)
        back = lab.skep(*pool, "--hand-back", "--json").splitlines()
        until(lambda: not api.pods, "the last pod has ended")
        left = until(lambda: not nodes() and [True], "the cluster has no node")
    attempts = shown["attempts"]
    told = [(folder / f"pool{each}.log").read_text().splitlines() for each in (1, 2)]
    return {
        "grown_to": len(grown),
        "shrunk_to": len(shrunk),
        "pods": len(api.created),
        "attempts": [(each["place"], each["outcome"], each["steps"]) for each in attempts],
        "told": [*told, back],
        "held": {
            "the job ended well": shown["state"] == "succeeded",
            "it outlived an eviction": len({each["place"] for each in attempts}) > 1,
            "it did no mini-batch twice": attempts[-1]["steps"] == STEPS,
            "the keeper stayed": alive,
            "pods stayed when it stopped": len(stayed) >= 1,
            "three pods were enough": len(api.created) == 3,
            "nothing is left": bool(left) and not (api.pods or api.secrets),
        },
    }


def keepers_own(lab: Lab) -> dict[str, str]:
    """Return the environment of a keeper that is a person of its own, as the manifests have it."""
    lab.skep("user", "add", "pool-keeper")
    lab.skep("role", "grant", "pool-keeper", "operator", "--reason", "creates nodes")
    token = lab.json("token", "create", "keeper", "--person", "pool-keeper", "--days", "365")
    cluster = json.loads((lab.home / "cluster.json").read_text())
    environment = {key: each for key, each in lab.environment.items() if key != "SKEP_HOME"}
    return environment | {
        "SKEP_API": cluster["gateway"]["url"],
        "SKEP_TOKEN": token["text"],
        "SKEP_CA": str(lab.home / "tls" / "ca.pem"),
    }


if __name__ == "__main__":
    sys.exit(main())
