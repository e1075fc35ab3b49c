"""A server and two nodes with certificates and signed identities, by the commands, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skep
from skep_services.adapters.nats_access import node_identity
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import free_port
from skep_services.ports import RefusedError
from skep_services.servers import files
from skep_services.servers.files import Ports
from skep_services.servers.meeting import own_tls
from tests.system.deployment import bed

MEET = Path(__file__).parents[1] / "system" / "deployment" / "meet.py"
SERVER, OTHER = "127.0.0.1", "127.0.0.9"
DEPLOYMENT = (sys.executable, "-m", "tests.system.deployment")
WITHIN_S = 180.0
STRANGER = 64_321
"""An account that no machine has."""


class Typed:
    """Commands of one machine, all of whose addresses are loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def skep(self, home: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Return what a command comes to."""
        return subprocess.run(
            [sys.executable, "-m", "skep_services", *words],
            env=self._environment(home),
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def good(self, home: str, *words: str) -> Any:
        """Return what a command that has to succeed says as JSON."""
        done = self.skep(home, *words, "--json")
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, home: str, *words: str) -> None:
        """Start what goes on, as systemd would."""
        with (self.folder / f"{home}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "skep_services", *words],
                env=self._environment(home),
                stdout=log,
                stderr=log,
            )
        self.running[home] = process

    def stop(self) -> None:
        """Stop everything, the latest first."""
        for home in reversed(list(self.running)):
            self.end(home)

    def end(self, home: str) -> None:
        """Stop what runs over one state folder, as systemd would."""
        process = self.running.pop(home)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        done = self.skep("server", "node", "ls", "--json")
        rows = json.loads(done.stdout or '{"nodes": []}').get("nodes", [])
        return {row["node"]: row["state"] for row in rows}

    def join(self, name: str) -> str:
        """Return the token and place for one node."""
        made = self.good("server", "node", "token", "--name", name)
        return f"{made['tokens'][0]}@{made['place']}"

    def _environment(self, home: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        return {**kept, "SKEP_HOME": str(self.folder / home)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """Yield a server and two nodes that are up."""
    typed = Typed(tmp_path_factory.mktemp("deployment"))
    parts = ",".join(f"{part}={free_port(SERVER)}" for part in Ports.__struct_fields__)
    typed.good(
        "server", "server", "init", "--name", "lab", "--host", SERVER, "--listen", SERVER,
        "--ports", parts, "--vc", "vision=4",
    )  # fmt: skip
    targets = typed.folder / "targets.toml"
    targets.write_text("[webhooks]\nallow = true\n", encoding="ascii")
    targets.chmod(0o600)
    typed.good("server", "server", "notify", str(targets))
    try:
        typed.start("server", "server", "run")
        bed.until(
            lambda: typed.skep("server", "server", "status").returncode == 0, "the server is up"
        )
        for number, name in enumerate(("a", "b")):
            first = 21_000 + 100 * number
            typed.good(
                name, "node", "join", typed.join(name), "--name", name, "--gpus", "2",
                "--address", SERVER, "--gang-ports", f"{first}-{first + 99}",
            )  # fmt: skip
            typed.start(name, "node", "run")
        bed.until(lambda: typed.nodes() == {"a": "up", "b": "up"}, "both nodes are up")
        yield typed
    finally:
        typed.stop()


@pytest.mark.slow
def test_a_server_with_a_file_of_targets_runs_the_notifier(cluster: Typed) -> None:
    said = cluster.good("server", "notify", "ls")
    assert (said["webhooks"], said["mail"], said["targets"]) == (True, False, [])


@pytest.mark.slow
def test_everything_is_encrypted_and_the_doctor_is_content(cluster: Typed) -> None:
    checks = {one["name"]: one for one in cluster.good("server", "doctor")["checks"]}
    assert checks["encryption"]["text"] == "on"
    assert checks["API"]["text"].startswith("https://")
    assert {one["level"] for name, one in checks.items() if "certificate" in name} == {"ok"}


@pytest.mark.slow
def test_an_operator_reaches_the_bus_of_a_server_and_sees_who_runs_what(cluster: Typed) -> None:
    assert cluster.good("server", "log", "check")["ok"]
    cluster.good("server", "log", "archive", "--older", "0")
    told = cluster.good("server", "node", "upgrade", "--check")
    assert [one["name"] for one in told["machines"]] == ["a", "b"]
    assert {one["version"] for one in told["machines"]} == {skep.__version__}


@pytest.mark.slow
def test_what_cannot_join_is_told_so_in_one_line(cluster: Typed) -> None:
    good = cluster.join("c")
    token, _, place = good.rpartition("@")
    wrong_ca = token[:-64] + "0" * 64
    used = cluster.join("d")
    identity, _, rest = token.partition(".")
    cases = [
        (good, ("--name", "a"), "the token is for the node c"),
        (f"{wrong_ca}@{place}", (), "wrong CA"),
        (f"{token}@{OTHER}:1", (), "cannot be reached"),
        (f"{identity}.{'x' * 30}.{rest.rpartition('.')[2]}@{place}", (), "secret is wrong"),
        ("nonsense", (), "write TOKEN@HOST"),
    ]
    for words, more, text in cases:
        done = cluster.skep("stranger", "node", "join", words, "--name", "c", *more)
        assert done.returncode != 0, words
        assert text in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert cluster.skep("d", "node", "join", used, "--name", "d").returncode == 0
    again = cluster.skep("e", "node", "join", used, "--name", "d")
    assert again.returncode == 1
    assert "has joined by this token" in again.stderr


@pytest.mark.slow
def test_certificates_are_renewed_and_a_gang_runs_on_both_nodes(cluster: Typed) -> None:
    def own(home: str) -> bytes:
        return (cluster.folder / home / "tls" / "own.pem").read_bytes()

    before = own("server"), own("a")
    cluster.good("server", "server", "rotate-certs")
    cluster.good("a", "node", "renew")
    log = cluster.folder / "server.log"
    bed.until(lambda: "certificate replaced" in log.read_text(), "the bus reads the certificate")
    assert own("server") != before[0]
    assert own("a") != before[1]
    done = cluster.skep(
        "server",
        "run",
        "--vc",
        "vision",
        "--workers",
        "4",
        "--gpus",
        "1",
        "--",
        sys.executable,
        str(MEET),
    )
    assert done.returncode == 0, done.stderr
    assert "of 4 met [1, 2, 3]" in done.stdout, "a gang on both nodes"


@pytest.mark.slow
def test_a_job_outlives_a_restart_of_its_nodes_unit(cluster: Typed) -> None:
    sign = cluster.folder / "go on"
    spec = cluster.folder / "waits.json"
    waits = f"until test -e '{sign}'; do sleep 0.1; done; echo went on"
    spec.write_text(json.dumps({"name": "waits", "vc": "vision", "command": ["sh", "-c", waits]}))
    (job,) = cluster.good("server", "submit", str(spec))["jobs"]
    name = job["job"]

    def shown() -> Any:
        return cluster.good("server", "show", name)

    bed.until(lambda: shown()["state"] == "running", "the job runs")
    for node in ("a", "b"):
        cluster.end(node)
        cluster.start(node, "node", "run")
    sign.touch()
    bed.until(lambda: shown()["state"] == "succeeded", "the job ends")
    assert shown()["attempt"] == 1


def _readable_by_all(path: str) -> bool:
    folders = [str(each) for each in Path(path).resolve().parents]
    return all(os.stat(folder).st_mode & 0o001 for folder in folders)


@pytest.mark.slow
@pytest.mark.needs("root")
def test_what_root_writes_belongs_to_the_account_of_the_folder() -> None:
    # Not below pytest's own folder, which other accounts may not pass through.
    with tempfile.TemporaryDirectory(prefix="skep-owner-") as place:
        os.chmod(place, 0o755)
        typed = Typed(Path(place))
        typed.good("server", "server", "init", "--servers", "3", "--host", SERVER)
        home = Path(place) / "server"
        for path in (home, *home.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        if not _readable_by_all(os.__file__):
            done = typed.skep("server", "server", "token")
            assert done.returncode == 1
            assert f"is of account {STRANGER}, which cannot read" in done.stderr
            return
        typed.good("server", "server", "token")
        typed.good("server", "server", "rotate-certs")
        assert {path.stat().st_uid for path in home.rglob("*")} == {STRANGER}
        assert home.joinpath("server-tokens.json").exists()


@pytest.mark.slow
def test_a_node_that_is_removed_is_cut_off_and_cannot_renew(cluster: Typed) -> None:
    cluster.good("x", "node", "join", cluster.join("x"), "--name", "x", "--address", SERVER,
                 "--gang-ports", "21900-21999")  # fmt: skip
    cluster.start("x", "node", "run")
    bed.until(lambda: cluster.nodes().get("x") == "up", "x is up")
    began = time.monotonic()
    cluster.good("server", "node", "remove", "x")
    log = cluster.folder / "x" / "agent" / "service.log"
    bed.until(lambda: '"event":"stopped"' in log.read_text(errors="replace"), "x is cut off")
    print(f"cut off {time.monotonic() - began:.2f} s after the command was typed")
    refused = cluster.skep("x", "node", "renew")
    assert refused.returncode == 1
    assert "of no node or server in the cluster" in refused.stderr
    # Its certificate is believed until it ends, and opens nothing: the bus refuses its identity.
    cluster.end("x")
    home = str(cluster.folder / "x")
    options = LinkOptions(
        servers=(files.read_node(home).bus,),
        identity=node_identity("x"),
        password="",
        credentials=Path(files.creds_path(home, node_identity("x"))),
        tls=own_tls(home),
    )
    with pytest.raises(RefusedError) as told:
        asyncio.run(Link.connect(options, on_fatal=print))
    print(f"refused: {told.value}")


@pytest.mark.slow
def test_one_server_stays_one(cluster: Typed) -> None:
    done = cluster.skep("server", "server", "token")
    assert done.returncode == 1
    assert "skep server init --servers 3" in done.stderr
    for verb in ("up", "down"):
        done = cluster.skep("server", verb)
        assert done.returncode == 1
        assert "is of a server" in done.stderr


@pytest.mark.nightly
@pytest.mark.needs("root", "namespaces")
def test_three_servers_and_two_nodes_of_namespaces(tmp_path: Path) -> None:
    if why := bed.missing():
        pytest.skip(why)
    done = subprocess.run(
        [*DEPLOYMENT, "--nodes", "2", "--short", "--folder", str(tmp_path)],
        cwd=bed.ROOT,
        capture_output=True,
        text=True,
        timeout=600.0,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
