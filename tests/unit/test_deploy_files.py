"""The files under `deploy/`: they parse, fit together, and name what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from skep_services.cli import joining, nodes, server, up
from skep_services.cli.main import parser_of
from skep_services.pools import kubernetes_pod
from skep_services.servers.files import NODE_HOME, SERVER_HOME, Ports
from skep_services.servers.units import LAUNCHER, NODE, SERVER

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/skep"
FILES = sorted(
    path
    for path in DEPLOY.rglob("*")
    if path.suffix in {".yml", ".yaml"} and path.parent.name != "templates"
)
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SKEP = re.compile(r"(?:skep \}\}|/bin/skep|skep_services) (server|node) ([a-z-]+)")
KUBERNETES = "1.31"
OPTION = re.compile(r"--[a-z-]+")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def test_there_are_files_to_check() -> None:
    assert len(FILES) >= 8
    assert len(MANIFESTS) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_they_parse(path: Path) -> None:
    assert all(document for document in documents(path))


def test_units_have_the_names_that_are_installed() -> None:
    named = {
        word
        for path in FILES
        for text in strings(documents(path))
        for word in re.findall(r"skep-[a-z]+\.service", text)
    }
    assert named == {SERVER, NODE, LAUNCHER}


def test_folders_are_the_defaults() -> None:
    (defaults,) = documents(DEPLOY / "ansible/roles/skep/defaults/main.yml")
    assert (defaults["skep_server_home"], defaults["skep_node_home"]) == (SERVER_HOME, NODE_HOME)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_and_their_options_exist(path: Path) -> None:
    verbs = {"server": server.VERBS, "node": ("ls", "drain", "undrain", *joining.VERBS)}
    known = {
        name: parser_of(name, command).format_help()
        for name, command in (
            ("server", server.COMMANDS["server"]),
            ("node", nodes.COMMANDS["node"]),
        )
    }
    for text in strings(documents(path)):
        for part, verb in SKEP.findall(text):
            assert verb in verbs[part], text
            for option in OPTION.findall(text):
                assert option in known[part], (option, text)


# --- Kubernetes -----------------------------------------------------------------------------------


def templates(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for one in documents(path):
        if one["kind"] == "StatefulSet":
            yield one, one["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_say_what_they_are(path: Path) -> None:
    for one in documents(path):
        assert {"apiVersion", "kind", "metadata"} <= set(one)
        assert one["metadata"]["name"].startswith("skep")
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "skep"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_selectors_and_volumes_fit(path: Path) -> None:
    services = {one["metadata"]["name"]: one for one in documents(path) if one["kind"] == "Service"}
    for one, pod in templates(path):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"] == labels
        assert services[one["spec"]["serviceName"]]["spec"]["selector"] == labels
        claims = one["spec"].get("volumeClaimTemplates", ())
        names = [claim["metadata"]["name"] for claim in claims]
        volumes = {*names, *(volume["name"] for volume in pod["volumes"])}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def may_do_little(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_may_do_little(path: Path) -> None:
    for one, pod in templates(path):
        may_do_little(pod)
        # Only what creates pods has an account of Kubernetes.
        keeper = one["metadata"]["name"] == "skep-pool"
        assert pod["automountServiceAccountToken"] is keeper


def test_ports_are_the_servers() -> None:
    (path,) = (path for path in MANIFESTS if path.name == "skep-server.yaml")
    wanted = {name: getattr(Ports(), name) for name in ("gateway", "bus", "door")}
    (service,) = (one for one in documents(path) if one["kind"] == "Service")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == wanted
    for _, pod in templates(path):
        ports = pod["containers"][0]["ports"]
        assert {port["name"]: port["containerPort"] for port in ports} == wanted


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_valid_by_the_schemas_of_kubernetes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(path):
        validate.validate(document, KUBERNETES, strict=True)


# --- pools of nodes -------------------------------------------------------------------------------


def pool_pod() -> dict[str, Any]:
    """Return the pod of a node that has everything it can have."""
    said = {
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "resources": {"limits": {"memory": "64Gi"}},
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "annotations": {"team": "nlp"},
    }
    extra = kubernetes_pod.check(said)
    wanted = kubernetes_pod.Wanted("kube", "skep:1", "cuda", 4, "a100", 120, "claim", extra)
    return kubernetes_pod.pod("kube-bcdfghjk", wanted)


def test_pods_of_nodes_may_do_little_and_say_what_they_need() -> None:
    pod = pool_pod()["spec"]
    may_do_little(pod)
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 4}
    assert pod["nodeSelector"] == {"gpu": "a100"}


def test_pods_of_nodes_and_their_secrets_are_valid_by_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    wanted = kubernetes_pod.Wanted("kube", "skep:1", "cpu", 4, "", 120, "", {})
    bare = kubernetes_pod.pod("kube-bcdfghjk", wanted)
    secret = kubernetes_pod.secret("kube-bcdfghjk", "uid-1", wanted, "token@skep")
    for document in (pool_pod(), bare, secret):
        validate.validate(document, KUBERNETES, strict=True)


def test_the_keeper_is_started_as_its_command_can_be() -> None:
    (path,) = (path for path in MANIFESTS if path.name == "skep-pool.yaml")
    help_text = parser_of("up", up.COMMANDS["up"]).format_help()
    ((one, pod),) = templates(path)
    assert one["spec"]["replicas"] == 1
    for option in pod["containers"][0]["args"]:
        assert option.partition("=")[0] in help_text
    (said,) = (one["data"]["pod.yaml"] for one in documents(path) if one["kind"] == "ConfigMap")
    kubernetes_pod.check(yaml.safe_load(said))


def test_the_values_of_the_chart_fit_their_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (values,) = documents(CHART / "values.yaml")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    for wrong in ({**values, "pools": {}}, {**values, "image": ""}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_chart_makes_what_the_manifests_say() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk renders the chart")
    with helm.Chart.load(CHART) as chart:
        rendered = chart.render({}, name="skep", namespace="skep")
        without = chart.render({"pool": {"enabled": False}}, name="skep", namespace="skep")
    made = {_place(one): one for text in rendered.values() for one in yaml.safe_load_all(text)}
    wanted = {
        _place(one): one
        for path in MANIFESTS
        if path.name != "skep-node.yaml"
        for one in documents(path)
        if one["kind"] != "Namespace"
    }
    for one in (made, wanted):
        config = one["ConfigMap", "skep-pool"]
        config["data"]["pod.yaml"] = yaml.safe_load(config["data"]["pod.yaml"])
    assert made == wanted
    assert not any("skep-pool" in text for text in without.values())


def _place(one: dict[str, Any]) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]
