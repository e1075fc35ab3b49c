"""`skep up --on slurm|kubernetes`: what is asked for wrongly is refused in one line."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from skep_services.cli import exits, up_on
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main

ON = ["--on", "slurm"]
PODS = ["--on", "kubernetes"]
IMAGE = [*PODS, "--image", "skep:1"]


@pytest.mark.parametrize(
    "words, text",
    [
        ([*ON, "--nodes", "0"], "--nodes 0: a number from 1 to 1000"),
        ([*ON, "--nodes-min", "9"], "--nodes-min 9: at most --nodes 2"),
        ([*ON, "--gpus", "auto"], "--gpus auto: a number from 1 to 64"),
        ([*ON, "--margin", "soon"], "--margin soon: a time such as 90s, 15m"),
        ([*ON, "--idle=-3"], "--idle -3: a time such as 90s, 15m"),
        ([*ON, "--vc", "team=4"], "--vc does not go with --on slurm"),
        ([*ON, "--secrets"], "--secrets does not go with --on slurm"),
        (["--partition", "gpu"], "--partition goes with --on slurm"),
        (["--nodes-min", "1"], "--nodes-min goes with --on slurm or --on kubernetes"),
        ([*ON, "--image", "skep:1"], "--image goes with --on kubernetes"),
        ([*PODS, "--partition", "gpu"], "--partition goes with --on slurm"),
        ([*PODS, "--people"], "--people does not go with --on kubernetes"),
        (PODS, "--image IMAGE: of the pods, as Kubernetes pulls it"),
        ([*PODS, "--margin", "30s"], "--margin 30s: a pod has 40 s to 3600 s to end"),
        (
            [*IMAGE, "--pool", "my-pool"],
            "--pool my-pool: 1 to 16 small letters and digits, a letter first",
        ),
        (
            [*IMAGE, "--checkpoints-claim", "A"],
            "--checkpoints-claim A: small letters, digits and dashes, at most 63",
        ),
        (
            [*IMAGE, "--namespace", "../kube-system"],
            "--namespace ../kube-system: small letters, digits and dashes, at most 63",
        ),
        (
            [*IMAGE, "--api-server", "https://10.0.0.1:6443"],
            "--api-server https://10.0.0.1:6443: what `kubectl proxy` says, such as "
            "http://127.0.0.1:8001",
        ),
        (
            [*IMAGE, "--api-server", "http://127.0.0.1:8001"],
            "--namespace NAME: where the pods are to be",
        ),
        ([*IMAGE, "--pod", "/no/file"], "--pod /no/file: No such file or directory"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--home", str(tmp_path), *words]) == exits.USAGE
    assert capsys.readouterr().err == f"skep up: {text}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "said, text",
    [
        ("[1]", "an object with keys of a pod, such as nodeSelector and tolerations"),
        (
            "hostNetwork: true",
            "'hostNetwork' cannot be said here (there are: affinity, annotations,",
        ),
        ("tolerations: {}", "tolerations: it is a list"),
        ("nodeSelector: gpu", "nodeSelector: it is an object"),
        ("volumes: [{name: join}]", "volumes: each has a name, and none of state, tmp, join,"),
        ("resources: {limits: {nvidia.com/gpu: 8}}", "resources.limits: an object without nvidia"),
        ("a: [", "no YAML: while parsing a flow node"),
        ("x" * 70_000, "at most 65536 bytes"),
    ],
)
def test_a_file_about_pods_says_no_more_than_it_may(
    said: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(said)
    assert main(["up", "--home", str(tmp_path), *IMAGE, "--pod", str(file)]) == exits.USAGE
    assert capsys.readouterr().err.startswith(f"skep up: --pod {file}: {text}")


def test_a_second_keeper_of_a_pool_is_refused(tmp_path: Path) -> None:
    """Two would ask for twice as many machines as the jobs need."""
    client = Client(Target("http://127.0.0.1:1", "t", str(tmp_path)))
    one, other = (Namespace(on="kubernetes", pool=name) for name in ("kube", "batch"))
    with up_on._alone(one, client), up_on._alone(other, client):
        words = "another `skep up --on kubernetes` keeps this pool"
        with pytest.raises(CommandError, match=words) as told, up_on._alone(one, client):
            pytest.fail("two keepers")
        assert (told.value.code, told.value.error["reason"]) == (exits.FAILED, "pool-kept")
    with up_on._alone(one, client):
        pass
