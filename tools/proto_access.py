"""Examples of what is asked of people and nodes, and of the facts of the access service."""

from __future__ import annotations

from skep.units import Instant
from skep.wire import access
from skep.wire.facts import EpochBegan
from skep.wire.reasons import Reason
from skep.wire.roles import Role

AT = Instant(1_760_000_000_000_000_000)
LATER = Instant(AT + 90 * 24 * 3600 * 10**9)
TOKEN, OTHER = "a1b2c3d4e5f6", "f6e5d4c3b2a1"
KEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
HASH = "$argon2id$v=19$m=19456,t=2,p=1$pxAxPY9E3YalhkrXX5NVqQ$NXTwXTWAeEiJgoo8aHNPVw6gNkR1Am5"
REQUEST = "-----BEGIN CERTIFICATE REQUEST-----\nMIHd...\n-----END CERTIFICATE REQUEST-----\n"
CREDENTIALS = access.Credentials(
    certificate="-----BEGIN CERTIFICATE-----\nMIIB...\n-----END CERTIFICATE-----\n",
    authority="-----BEGIN CERTIFICATE-----\nMIIA...\n-----END CERTIFICATE-----\n",
    jwt="eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.e30.c2ln",
    bus=("tls://10.0.0.1:4222",),
    until=LATER,
)
ACTOR = access.Actor(name="ada", token=TOKEN, source="10.0.0.7", reason="a new colleague")
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
ISSUER, SUBJECT = "https://id.example.org", "248289761001"

WISHES: tuple[access.Wish, ...] = (
    access.AddPerson(person="ada", full_name="Ada L", oidc=True),
    access.BindPerson(person="ada", issuer=ISSUER, subject=SUBJECT),
    access.DisablePerson(person="ada"),
    access.EnablePerson(person="ada"),
    access.RemovePerson(person="ada"),
    access.GrantRole(person="ada", role=Role.SUBMITTER, vc="nlp"),
    access.RevokeRole(person="ada", vc="nlp"),
    access.SetGroupRoles(person="ada", roles={"nlp": Role.SUBMITTER}),
    access.MakeToken(token=TOKEN, person="ada", name="laptop", hash=HASH, expires_at=LATER),
    access.RevokeToken(token=TOKEN),
    access.LogIn(
        person="ada",
        issuer=ISSUER,
        subject=SUBJECT,
        digest=DIGEST,
        digest_until=LATER,
        token=OTHER,
        name="laptop",
        hash=HASH,
        expires_at=LATER,
        roles={"nlp": Role.MANAGER},
        add=True,
    ),
    access.MakeJoinToken(
        token=TOKEN, hash=HASH, expires_at=LATER, node="gpu-7", hosts=("gpu-7.example.org",)
    ),
    access.RevokeJoinToken(token=TOKEN),
    access.JoinNode(token=TOKEN, node="gpu-7", key=KEY, request=REQUEST, hosts=("gpu-7",)),
    access.RenewNode(key=KEY, request=REQUEST),
    access.RemoveNode(node="gpu-7"),
    access.TakeKey(person="ada", vc="nlp", key=KEY),
    access.NoteAction(action="cancel", target="j17", vc="nlp"),
    access.NoteRefusal(action="cancel", target="j17", why=Reason.NOT_ITS_OWNER, vc="nlp", missed=3),
)
ASKED = (
    access.AskAccess(actor=ACTOR, wish=WISHES[0]),
    access.AccessAnswer(
        accepted=False, reason=Reason.PERSON_EXISTS, text="there is a person ada already"
    ),
)
ACCESS_FACTS: tuple[access.AccessFact, ...] = (
    EpochBegan(epoch=1, owner="host-0c4e1f0a9b7d"),
    access.VcsHeard(vcs=("nlp", "vision")),
    access.PersonAdded(person="ada", at=AT, full_name="Ada L", oidc=True),
    access.PersonBound(person="ada", issuer=ISSUER, subject=SUBJECT),
    access.PersonDisabled(person="ada", at=AT),
    access.PersonEnabled(person="ada", at=AT),
    access.PersonRemoved(person="ada", at=AT),
    access.RoleGranted(person="ada", role=Role.SUBMITTER, vc="nlp"),
    access.RoleRevoked(person="ada", vc="nlp"),
    access.GroupRolesSet(person="ada", roles={"nlp": Role.MANAGER}),
    access.LoginUsed(digest=DIGEST, until=LATER),
    access.TokenMade(
        token=TOKEN, person="ada", name="laptop", hash=HASH, at=AT, expires_at=LATER, by=OTHER
    ),
    access.TokenRevoked(token=TOKEN, at=AT),
    access.TokensForgotten(tokens=(TOKEN,)),
    access.JoinTokenMade(
        token=TOKEN, kind=access.KeyKind.NODE, hash=HASH, at=AT, expires_at=LATER, node="gpu-7"
    ),
    access.JoinTokenRevoked(token=TOKEN, at=AT),
    access.JoinTokensForgotten(tokens=(TOKEN,)),
    access.KeyTaken(
        key=KEY, kind=access.KeyKind.NODE, name="gpu-7", at=AT, token=TOKEN, request=REQUEST
    ),
    access.KeyRenewed(key=KEY, request=REQUEST, at=AT),
    access.KeySigned(key=KEY, credentials=CREDENTIALS, at=AT),
    access.KeyDropped(key=KEY, at=AT),
    access.KeyRevoked(key=KEY, at=AT),
    access.Audited(
        at=AT,
        actor="ada",
        action="grant role",
        target="bob",
        outcome=access.Outcome.REFUSED,
        vc="vision",
        source="10.0.0.7",
        token=TOKEN,
        reason="a new colleague",
        why=Reason.NO_ROLE,
        missed=3,
    ),
)
