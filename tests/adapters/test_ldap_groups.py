"""Groups of a real directory: their members by name and by entry, and what is refused."""

from __future__ import annotations

import gc
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep_services.adapters.ldap_settings import DirectoryError, LdapSettings, read_settings
from tests.support import ports
from tests.support.embedded import until
from tests.tls_kit import LOOPBACK, Certificates

pytestmark = [
    # ldap3 2.9 uses names of pyasn1 and Python from before...
    pytest.mark.filterwarnings("ignore:(tag|type)Map is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:ssl.match_hostname:DeprecationWarning"),
    # ...and leaves the sockets of connections that failed to the collector of garbage.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
BASE = "dc=example,dc=org"
ADMIN = f"cn=admin,{BASE}"
CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCACertificateFile {ca}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
require authc
database mdb
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw secret
directory {folder}/db
maxsize 10485760
"""
ENTRIES = """\
dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
o: example
dc: example

dn: uid=ada,dc=example,dc=org
objectClass: inetOrgPerson
uid: ada
cn: Ada L
sn: L

dn: cn=ml-team,dc=example,dc=org
objectClass: posixGroup
cn: ml-team
gidNumber: 1
memberUid: ada
memberUid: bob

dn: cn=empty,dc=example,dc=org
objectClass: posixGroup
cn: empty
gidNumber: 2

dn: cn=leads,dc=example,dc=org
objectClass: groupOfNames
cn: leads
member: uid=ada,dc=example,dc=org
member: uid=gone,dc=example,dc=org
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LdapSettings]:
    """A slapd on loopback, which answers those that log in only."""
    folder = tmp_path_factory.mktemp("slapd")
    files = Certificates(folder).give("slapd", *LOOPBACK)
    config, port = folder / "slapd.conf", ports.free_port()
    (folder / "db").mkdir()
    paths = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    config.write_text(CONFIG.format(folder=folder, **paths))
    (folder / "entries.ldif").write_text(ENTRIES)
    (folder / "password").write_text("secret\n")
    load = ["slapadd", "-f", str(config), "-l", str(folder / "entries.ldif")]
    subprocess.run(load, check=True, capture_output=True)
    command = ["slapd", "-f", str(config), "-h", f"ldap://127.0.0.1:{port}", "-d", "0"]
    process = subprocess.Popen(command)

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "slapd listens")
        yield LdapSettings(
            server=f"ldap://127.0.0.1:{port}",
            base=BASE,
            groups={"ml-team": {}, "empty": {}},
            starttls=True,
            ca=str(files.ca),
            bind_dn=ADMIN,
            password_file=str(folder / "password"),
        )
    finally:
        process.terminate()
        process.wait()


def members(settings: LdapSettings, **changes: Any) -> dict[str, list[str]]:
    from skep_services.adapters.ldap_groups import read_members

    return read_members(msgspec.structs.replace(settings, **changes))


@pytest.mark.needs("slapd", "ldap3")
def test_members_are_read_by_name_and_by_entry(directory: LdapSettings) -> None:
    assert members(directory) == {"ml-team": ["ada", "bob"], "empty": []}
    # An entry that is gone is no member any more.
    assert members(directory, groups={"leads": {}}, member="member") == {"leads": ["ada"]}


@pytest.mark.needs("slapd", "ldap3")
@pytest.mark.parametrize(
    "changes, why",
    [
        ({"groups": {"ml-team": {}, "nobody": {}}}, "there are 0 groups nobody below"),
        ({"groups": {"*": {}}}, "there are 0 groups"),
        ({"base": "dc=elsewhere"}, "noSuchObject"),
        ({"bind_dn": "", "password_file": ""}, "authentication required"),
        ({"ca": ""}, "certificate verify failed"),
        ({"password_file": "/nowhere/password"}, "/nowhere/password"),
        ({"server": "ldap://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    directory: LdapSettings, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(DirectoryError) as refused:
        members(directory, **changes)
    text = str(refused.value)
    assert why in text
    assert text.isprintable()
    del refused
    gc.collect()


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"server": "ldap://ldap.example.org"}, "not encrypted"),
        ({"server": "https://ldap.example.org"}, "ldaps://HOST"),
        ({"groups": {"ml": {"nlp": "operator"}}}, "makes no operators"),
        ({"groups": {"ml": {"nlp": "king"}}}, "king"),
        ({"passwort": "x"}, "passwort"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    file = tmp_path / "groups.json"
    sound = {"server": "ldaps://ldap.example.org", "base": BASE, "groups": {}}
    file.write_bytes(msgspec.json.encode(sound))
    assert read_settings(str(file)).server == "ldaps://ldap.example.org"
    file.write_bytes(msgspec.json.encode({**sound, **changes}))
    with pytest.raises(DirectoryError, match=why):
        read_settings(str(file))
