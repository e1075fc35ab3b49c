"""What runs on a server and on a node, and what it is told: identities, peers, files, addresses."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from skep.wire import subjects
from skep_services.adapters import nats_access, nats_jwt
from skep_services.cli.checks import OK, WARN
from skep_services.cli.machines import sources_check
from skep_services.pki.certificates import describe_file
from skep_services.servers import bus, files, nodejoin, noderun, plan, setup, sources
from skep_services.servers.files import FilesError, Member, NodeFile, ServerFile

HOSTS = ("head-1", "10.0.0.1", "fd00::1")


def server_file(size: int, number: int = 1) -> ServerFile:
    """Return a server of a whole cluster."""
    members = [Member(name=f"server-{n}", hosts=(f"head-{n}",)) for n in range(1, size + 1)]
    members[number - 1] = Member(name=f"server-{number}", hosts=HOSTS)
    return ServerFile(cluster="lab", name=f"server-{number}", size=size, members=members)


def test_one_server_runs_one_of_each_service_without_peers(tmp_path: Path) -> None:
    made = plan.server_plan(server_file(1), str(tmp_path), "/nats-server")
    for child in made.services:
        assert child.env["SKEP_NATS_USER"] == child.name
        assert "SKEP_PEERS" not in child.env
    assert made.agents == ()


def test_three_servers_run_replicas_that_know_one_another(tmp_path: Path) -> None:
    made = plan.server_plan(server_file(3, 1), str(tmp_path), "/nats-server")
    told = {child.name: child.env for child in made.services}
    assert told["allocator"]["SKEP_NATS_USER"] == "allocator-1"
    assert told["allocator"]["SKEP_PEERS"] == "allocator-2,allocator-3"
    # Gateways, doors and vaults all work at the same time.
    assert told["gateway"]["SKEP_NATS_USER"] == "gateway-1"
    assert told["door"]["SKEP_NATS_USER"] == "door"
    for name in ("gateway", "door", "vault"):
        assert "SKEP_PEERS" not in told[name]


def test_services_ask_the_bus_of_their_own_machine_first(tmp_path: Path) -> None:
    file = server_file(3, 1)
    first, *others = plan.bus_urls(file).split(",")
    assert first == "tls://127.0.0.1:4222"
    assert others == ["tls://head-2:4222", "tls://head-3:4222"]
    made = plan.server_plan(file, str(tmp_path), "/nats-server")
    assert {child.env["SKEP_NATS_URL"] for child in made.services} == {plan.bus_urls(file)}


def test_what_systemd_tells_a_unit_is_not_for_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "SKEP_TOKEN"):
        monkeypatch.setenv(name, "x")
    made = plan.server_plan(server_file(1), str(tmp_path), "/nats-server")
    node = plan.node_plan(node_file(), str(tmp_path))
    for child in (*made.every(), node):
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "SKEP_TOKEN"} & set(child.env)


def node_file() -> NodeFile:
    """Return a node."""
    return NodeFile(cluster="lab", name="a", address="fd00::7", bus="tls://h:4222", gateways="")


def test_an_agent_is_told_all_that_it_needs(tmp_path: Path) -> None:
    told = plan.node_plan(node_file(), str(tmp_path)).env
    assert told["SKEP_NATS_USER"] == "node-a"
    assert told["SKEP_NATS_CREDS"] == files.creds_path(str(tmp_path), "node-a")
    assert (told["SKEP_NODE"], told["SKEP_ADDRESS"]) == ("a", "fd00::7")
    assert told["SKEP_PORTS"] == "20000-20499"
    assert "SKEP_LAUNCHER" not in told


def test_a_server_is_made_once_and_has_all_identities(tmp_path: Path) -> None:
    home, file = str(tmp_path / "home"), server_file(3, 1)
    shared = setup.create(home, file)
    made = setup.write_identities(home, file)
    assert sorted(made) == sorted(setup.identities_of(file))
    # What is there is in use, and stays.
    assert setup.write_identities(home, file) == []
    text = Path(files.creds_path(home, "allocator-1")).read_text(encoding="ascii")
    said = nats_jwt.claims_of(nats_jwt.read_credentials(text).token)
    keys = setup.bus_keys(home)
    assert said.iss == keys.public(nats_access.SERVICES_ACCOUNT)
    with pytest.raises(FilesError, match="has a server already"):
        setup.create(home, file)
    assert shared.operator not in repr(shared)


def test_identities_of_a_version_without_services_are_made_anew(tmp_path: Path) -> None:
    home, file = str(tmp_path / "home"), server_file(3, 1)
    setup.create(home, file)
    setup.write_identities(home, file)
    users = {user.name: user for user in nats_access.service_users(file.size)}
    keys, of_services = setup.bus_keys(home), (subjects.SERVED, subjects.LATE)
    for name in ("gateway-1", "searches-1", "allocator-1"):
        own = (*of_services, subjects.served(name))
        grants = nats_access.Grants(
            tuple(one for one in users[name].grants.publish if one not in own),
            tuple(one for one in users[name].grants.subscribe if one not in own),
        )
        assert grants != users[name].grants
        earlier = msgspec.structs.replace(users[name], grants=grants)
        text = keys.credentials(nats_access.SERVICES_ACCOUNT, earlier, issued_at_s=1)
        Path(files.creds_path(home, name)).write_text(text, encoding="ascii")
    made = setup.write_identities(home, file)
    assert sorted(made) == ["allocator-1", "gateway-1", "searches-1"]


def test_another_server_signs_as_the_first_one_does(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    shared = setup.create(one, server_file(3, 1))
    setup.take(two, server_file(3, 2), shared)
    assert setup.authority(one).fingerprint == setup.authority(two).fingerprint
    assert setup.bus_keys(one) == setup.bus_keys(two)
    assert setup.read_secrets(two) == shared
    assert bus.route_password(shared) == bus.route_password(setup.read_secrets(two))


def test_a_server_that_joins_gets_the_authority_of_now(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    setup.create(one, server_file(3, 1))
    before = setup.authority(one).fingerprint
    setup.authority(one).begin_change().switch_change()
    setup.take(two, server_file(3, 2), setup.read_secrets(one))
    assert setup.authority(two).fingerprint == setup.authority(one).fingerprint != before


def test_no_secret_of_a_server_can_be_read_by_others(tmp_path: Path) -> None:
    home, file = str(tmp_path / "home"), server_file(3, 1)
    shared = setup.create(home, file)
    setup.write_identities(home, file)
    bus.write_config(home, file, shared)
    for path in (tmp_path / "home").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_certificate_is_issued_anew_when_it_has_to_be(tmp_path: Path) -> None:
    home, file = str(tmp_path / "home"), server_file(1)
    setup.create(home, file)
    own = Path(files.tls_path(home, files.CERTIFICATE))
    assert describe_file(own)[0].name == "server-1"
    before = own.read_bytes()
    assert not setup.renew(home, file)
    assert own.read_bytes() == before
    assert setup.renew(home, file, force=True)
    assert own.read_bytes() != before
    own.write_bytes(b"damaged")
    assert setup.renew(home, file)


def test_the_bus_asks_for_certificates_and_routes_for_a_password(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    shared = setup.create(home, server_file(3, 1))
    text = bus.config(home, server_file(3, 1), shared)
    assert text.count("verify: true") == 2
    assert re.search(r'operator: "ey', text)
    assert "[fd00::1]" not in text  # Others are reached by their first host.
    assert "head-2:6222" in text
    assert bus.route_password(shared) in text
    alone = bus.config(home, server_file(1), shared)
    assert "cluster {" not in alone
    # The same on every server and for ever: a later token would count more.
    assert bus.config(home, server_file(3, 1), shared) == text


def test_hosts_of_a_server_are_its_certificates_too(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    setup.create(home, server_file(1))
    pem = Path(files.tls_path(home, files.CERTIFICATE)).read_bytes()
    found = x509.load_pem_x509_certificates(pem)[0].extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"head-1", "localhost"}
    addresses = {str(one) for one in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"10.0.0.1", "fd00::1", "127.0.0.1", "::1"}


def test_a_node_makes_its_keys_once(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    files.make_folders(home, "tls", "creds")
    key, pair = nodejoin.own_key(home), nodejoin.own_pair(home)
    assert nodejoin.own_pair(home) == pair
    assert nodejoin.own_key(home).private_numbers() == key.private_numbers()
    Path(files.tls_path(home, files.KEY)).write_bytes(b"damaged")
    with pytest.raises(FilesError, match="holds no key of a node"):
        nodejoin.own_key(home)


def test_people_come_to_the_bus_from_servers_only() -> None:
    hosts = [("head-1", "10.0.0.1", "fd00::1"), ("10.0.0.2",)]
    members = [Member(name=f"server-{n}", hosts=each) for n, each in enumerate(hosts, 1)]
    file = ServerFile(cluster="lab", name="server-1", size=2, members=members)
    found = sources.networks(file)
    assert found == ("127.0.0.0/8", "::1/128", "10.0.0.1/32", "fd00::1/128", "10.0.0.2/32")
    # Where a door comes from that has a name only is not known.
    assert sources.networks(server_file(3)) == ()
    assert sources_check(server_file(3), ()).level == WARN
    inner = msgspec.structs.replace(file, listen="192.168.0.1")
    assert sources.networks(inner) == ()


def test_an_address_that_another_server_sees_counts_too(tmp_path: Path) -> None:
    home, hosts = str(tmp_path), ("10.0.0.1", "10.0.0.2")
    members = [Member(name=f"server-{n}", hosts=(each,)) for n, each in enumerate(hosts, 1)]
    file = ServerFile(cluster="lab", name="server-1", size=2, members=members)
    sources.note(home, ["::ffff:192.168.7.2", "127.0.0.1", "head", "fd00::2"])
    sources.note(home, ["192.168.7.2"])
    assert sources.read(home) == ("192.168.7.2", "fd00::2")
    assert sources.networks(file, sources.read(home))[-2:] == ("192.168.7.2/32", "fd00::2/128")
    told = sources_check(file, sources.read(home))
    text = "people's programs come by the doors at 10.0.0.1, 10.0.0.2, 192.168.7.2, fd00::2"
    assert (told.level, told.text) == (OK, text)
    sources.note(home, [f"10.1.0.{number}" for number in range(100)])
    assert len(sources.read(home)) == sources.SEEN_MAX
    Path(sources.path_of(home)).write_text("{")
    assert sources.read(home) == ()


def test_a_node_renews_an_identity_that_allows_less_than_its_agent_does(tmp_path: Path) -> None:
    home, node = str(tmp_path / "node"), node_file()
    servers = str(tmp_path / "server")
    setup.create(servers, server_file(1))
    files.make_folders(home, "tls", "creds")
    files.write(files.node_path(home), node)
    own = Path(files.tls_path(servers, files.CERTIFICATE)).read_bytes()
    Path(files.tls_path(home, files.CERTIFICATE)).write_bytes(own)
    keys = setup.bus_keys(servers)
    now_s = int(time.time())
    (user,) = nats_access.node_account(node.name).users
    earlier = msgspec.structs.replace(
        user, grants=nats_access.Grants(user.grants.publish, user.grants.subscribe[:-1])
    )
    identity = nats_access.node_identity(node.name)
    for one, due in ((user, False), (earlier, True)):
        text = keys.credentials(
            identity, one, issued_at_s=now_s, expires_at_s=now_s + 90 * 24 * 3600
        )
        Path(files.creds_path(home, identity)).write_text(text, encoding="ascii")
        assert nodejoin.is_due(home, now_s) is due


def test_an_agent_starts_with_what_was_signed_for_it_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus refuses an agent of this version under an identity of an earlier one."""
    done: list[str] = []
    home = str(tmp_path)
    files.make_folders(home)
    files.write(files.node_path(home), node_file())

    class Agent:
        state, exit_code, pid = "stopped", 0, 1

        def __init__(self, made: object, *_: object) -> None:
            self.plan = made

        def start(self) -> None:
            done.append("start")

        async def wait_ready(self) -> bool:
            return False

        async def stop(self) -> None:
            done.append("stop")

    monkeypatch.setattr(noderun, "Child", Agent)
    monkeypatch.setattr(noderun, "refused", lambda *_: False)
    assert noderun.run(home, lambda _: done.append("renew")) == 0
    assert done == ["renew", "start", "stop"]
