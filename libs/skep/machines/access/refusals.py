"""Why a request about people and nodes is refused, in one line each; and how many are noted."""

from __future__ import annotations

import shlex

import msgspec

from skep.access.people import JoinToken, People, Person, TokenOf
from skep.ids import is_token
from skep.units import Duration, Instant, after, seconds
from skep.wire.access import (
    Actor,
    JoinNode,
    LogIn,
    MakeJoinToken,
    MakeToken,
    NoteAction,
    NoteRefusal,
    RenewNode,
    RevokeJoinToken,
    RevokeToken,
    Wish,
)
from skep.wire.reasons import Reason

OPERATOR = "operator"
"""What the gateway calls the one with the operator's token of its file."""
RESERVED = frozenset(
    {
        "operator",
        "bootstrap",
        "door",
        "gateway",
        "access",
        "admission",
        "allocator",
        "introspector",
        "advisor",
        "searches",
        "trainer",
        "runner",
        "server",
        "servers",
        "system",
        "all",
        "any",
        "none",
        "me",
    }
)
"""No person has the name of an identity of the bus, or of a word that commands take."""
_SYSTEM_ACCOUNTS = """
nogroup nfsnobody messagebus dbus polkitd rpc rpcuser chrony ntp postfix tss www-data apache
root daemon bin sys sync games man lp mail news uucp proxy backup list irc gnats adm halt shutdown
operator ftp sshd sudo wheel docker podman lxd incus libvirt libvirt-qemu kvm qemu disk shadow
nginx mysql postgres redis mongodb munge slurm slurmdbd nslcd sssd ceph zookeeper kafka hdfs yarn
mapred nats prometheus grafana puppet ansible admin administrator vagrant ubuntu debian centos
fedora rocky almalinux ec2-user azureuser skep skep-agent skep-launcher
"""
SYSTEM_ACCOUNTS = frozenset(
    # tidy: allow word because an account of Unix is called so
    ["nobody", *_SYSTEM_ACCOUNTS.split()]
)
"""No person has the name of an account that systems make by themselves: on nodes that run jobs as
the account of the owner's name, its jobs would be that account."""
SYSTEM_BEGINNINGS = ("systemd-", "_")
RESERVED_BEGINNINGS = ("vc-", "node-", "server-", "gateway-")

REFUSALS_BURST = 20
"""Refusals of one actor that are noted at once, of more the number only: they cost it nothing, and
the log must not grow by them."""
REFUSAL_AGAIN = seconds(30.0)
"""Until one more of them is noted."""
REFUSED_MAX = 1_000
"""Actors whose refusals are counted; of more the earliest is forgotten."""


class Refusal(msgspec.Struct, frozen=True):
    """Why something is not done, and one line for the one that asked."""

    reason: Reason
    text: str


class Bucket(msgspec.Struct):
    """How many refusals of an actor may be noted, since when, and how many were not."""

    left: int
    at: Instant
    missed: int = 0


def count(buckets: dict[str, Bucket], author: str, now: Instant, others: int = 0) -> int | None:
    """Count a refusal.

    Args:
        buckets: Those of all actors; they are changed.
        author: The actor.
        now: The time.
        others: How many before it, of which only their number was told.

    Returns:
        None: it is not to be noted. Else how many before it were not.
    """
    bucket = buckets.get(author)
    if bucket is None:
        if len(buckets) >= REFUSED_MAX:
            del buckets[next(iter(buckets))]
        bucket = buckets[author] = Bucket(REFUSALS_BURST, now)
    more = max(0, now - bucket.at) // REFUSAL_AGAIN
    if more:
        bucket.left = min(REFUSALS_BURST, bucket.left + more)
        bucket.at = after(bucket.at, Duration(more * REFUSAL_AGAIN))
    if not bucket.left:
        bucket.missed += 1 + others
        return None
    bucket.left -= 1
    missed, bucket.missed = bucket.missed + others, 0
    return missed


def is_of_file(name: str) -> bool:
    """Return whether an actor is one of the gateway's file of tokens, and no person."""
    return name == OPERATOR or name.startswith("vc-")


def of_name(name: str) -> Refusal | None:
    """Return why no person may be called so."""
    folded = name.casefold()
    reserved = folded in RESERVED or folded in SYSTEM_ACCOUNTS
    begins = folded.startswith((*RESERVED_BEGINNINGS, *SYSTEM_BEGINNINGS))
    if is_token(name) and not reserved and not begins:
        return None
    text = f"{name} is a name of Skep's own or of the system: choose another one"
    return Refusal(Reason.NAME_RESERVED, text)


def of_node(name: str) -> Refusal | None:
    """Return why no node or server may be called so."""
    if is_token(name):
        return None
    text = f"{name!r} is no name for a node (letters, digits, _, -; 63 at most)"
    return Refusal(Reason.BAD_VALUE, text)


def no_person(name: str) -> Refusal:
    """Return the refusal for a person that is not known."""
    return Refusal(
        Reason.UNKNOWN_PERSON, f"there is no person {name}: an operator adds one by `skep user add`"
    )


def retired(name: str, before: str) -> Refusal:
    """Return the refusal for the name of a person that was removed."""
    text = f"{before} was removed, and its jobs and secrets stay with the name: choose another one"
    if name == before:
        text += f", or, if it is the same person, `skep user add {name} --again`"
    return Refusal(Reason.NAME_RETIRED, text)


def of_another(person: Person) -> Refusal:
    """Return the refusal for an account at the provider that is not this person's."""
    kind = "another account at the provider" if person.oidc else "a local account"
    return Refusal(Reason.LOGIN_OF_ANOTHER, f"{person.person} is {kind}")


def not_bound(wish: LogIn) -> Refusal:
    """Return the refusal for an account at the provider that is not known to be a person's."""
    subject = shlex.quote("".join(one for one in wish.subject if one.isprintable()))
    text = (
        f"no operator has said that this account at the provider is {wish.person}: "
        f"`skep user add {wish.person} --oidc`, then `skep user bind {wish.person} {subject}`"
    )
    return Refusal(Reason.LOGIN_NOT_BOUND, text)


def taken(token: str) -> Refusal:
    """Return the refusal for the id of a token that another one has."""
    return Refusal(Reason.BAD_VALUE, f"there is another token {token}: make one with a new id")


def of_life(now: Instant, expires_at: Instant, most: Duration) -> Refusal | None:
    """Return why a token that expires then is not made."""
    if expires_at <= now:
        return Refusal(Reason.TOKEN_EXPIRED, "a token must expire in the future")
    if expires_at > after(now, most):
        days = most // seconds(24 * 3600.0)
        return Refusal(Reason.EXPIRY_TOO_LATE, f"such a token is valid for {days} days at most")
    return None


def of_token(token: TokenOf, now: Instant) -> Refusal | None:
    """Return why a person's token is refused."""
    if token.revoked_at:
        text = f"the token {token.token} ({token.name}) was revoked: `skep login` gets another one"
        return Refusal(Reason.TOKEN_REVOKED, text)
    if token.expires_at <= now:
        text = f"the token {token.token} ({token.name}) has expired: `skep login` gets another one"
        return Refusal(Reason.TOKEN_EXPIRED, text)
    return None


def of_join_token(token: JoinToken, now: Instant) -> Refusal | None:
    """Return why nothing joins by a token."""
    if token.revoked_at:
        return Refusal(Reason.TOKEN_REVOKED, f"the join token {token.token} was revoked")
    if token.expires_at <= now:
        text = f"the join token {token.token} has expired: an operator makes another one"
        return Refusal(Reason.TOKEN_EXPIRED, text)
    return None


def allowed_hosts(host: str, token: JoinToken, wish: JoinNode, actor: Actor) -> bool:
    """Return whether the certificate of what joins may be for a host."""
    own = (wish.node, actor.source, *token.hosts)
    return host in own or host.startswith(f"{wish.node}.")


def target_of(wish: Wish, people: People) -> str:
    """Return what a request is about, as the audit log names it."""
    match wish:
        case NoteAction() | NoteRefusal():
            return wish.target
        case MakeToken():
            return f"{wish.person}/{wish.token}"
        case RevokeToken():
            token = people.tokens.get(wish.token)
            return f"{token.person}/{wish.token}" if token is not None else wish.token
        case MakeJoinToken():
            return f"{wish.node or '*'}/{wish.token}"
        case RevokeJoinToken():
            return wish.token
        case RenewNode():
            key = people.keys.get(wish.key)
            return key.name if key is not None else wish.key
        case _:
            name: str = getattr(wish, "person", "") or getattr(wish, "node", "")
            return name
