"""The files of `deploy/`: every command of Skep in them is one, and manifests are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from skep_services.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLE = DEPLOY / "ansible" / "roles" / "skep" / "tasks"
MANIFEST = DEPLOY / "kubernetes" / "skep.yaml"
QUOTED = re.compile(r"'([^']*)'")
KUBERNETES = "1.31"


def parsed(words: list[str]) -> Any:
    """Return the arguments as `skep` reads them."""
    command = main._command(words[0])
    return main.parser_of(words[0], command).parse_intermixed_args(words[1:])


def words_of(argv: Any) -> list[str]:
    """Return the words of an Ansible command: those of a list, or the texts of an expression."""
    if isinstance(argv, list):
        return [str(each) for each in argv]
    return QUOTED.findall(argv)


def ansible_commands() -> Iterator[tuple[str, list[str]]]:
    for path in sorted(ROLE.glob("*.yml")):
        for task in yaml.safe_load(path.read_text()):
            argv = task.get("ansible.builtin.command", {}).get("argv")
            if argv:
                yield task["name"], words_of(argv)


def test_each_command_of_the_role_is_one_of_skep() -> None:
    found = dict(ansible_commands())
    assert len(found) >= 6, found
    for name, words in found.items():
        options = [word for word in words if word.startswith("--")]
        verbs = [word for word in words if word in ("server", "node")]
        group = verbs[0]
        verb = words[words.index(group) + 1]
        known = main.parser_of(group, main._command(group)).format_help()
        assert all(option in known for option in options), (name, options)
        assert parsed([group, verb]).verb == verb, name


def test_each_command_of_the_manifest_is_one_of_skep() -> None:
    commands = re.findall(r"(?<![\w-])skep (?:server|node) [^;\n]*", MANIFEST.read_text())
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command.partition("||")[0])
        assert parsed(words[1:]).verb == words[2], command
    containers = [
        container["command"]
        for document in yaml.safe_load_all(MANIFEST.read_text())
        for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ())
    ]
    for command in containers:
        if command[0] == "skep":
            assert parsed(command[1:]).verb == command[2]


def test_the_manifest_is_valid_by_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        validate.validate(document, KUBERNETES, strict=True)


def test_the_ports_of_the_manifest_are_those_of_a_server() -> None:
    from skep_services.servers.files import Ports

    service = next(yaml.safe_load_all(MANIFEST.read_text()))
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    known = Ports()
    assert ports == {name: getattr(known, name) for name in ports}


def test_the_plays_name_tasks_that_are_there() -> None:
    included = [
        task["ansible.builtin.include_tasks"]
        for task in yaml.safe_load((ROLE / "main.yml").read_text())
        if "ansible.builtin.include_tasks" in task
    ]
    assert all((ROLE / name).is_file() for name in included)
    plays = yaml.safe_load((DEPLOY / "ansible" / "site.yml").read_text())
    groups = yaml.safe_load((DEPLOY / "ansible" / "inventory.example.yml").read_text())
    assert {play["hosts"] for play in plays} == set(groups["all"]["children"])
