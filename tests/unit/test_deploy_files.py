"""The files under `deploy/`: they parse, fit together, and name what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from skep_services.cli import joining, nodes, server
from skep_services.cli.main import parser_of
from skep_services.servers.files import NODE_HOME, SERVER_HOME, Ports
from skep_services.servers.units import LAUNCHER, NODE, SERVER

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.suffix in {".yml", ".yaml"})
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
    assert len(MANIFESTS) == 2


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
        claims = [claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]]
        volumes = {*claims, *(volume["name"] for volume in pod["volumes"])}
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_may_do_little(path: Path) -> None:
    for _, pod in templates(path):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["initContainers"], *pod["containers"]):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


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
