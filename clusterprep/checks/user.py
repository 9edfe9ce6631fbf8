"""The job's user: the same numbers everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, kinds
from clusterprep.facts.account import Account
from clusterprep.model import Node

EXPECTED = "expected a user id such as 1000, or user and group id such as 1000:1000"


def uid(context: CheckContext) -> Iterable[Outcome]:
    """User and group id of the job's user, as declared or equal on all nodes that have the same user."""
    for part in kinds(context, of=_user):
        accounts: dict[str, Account | None] = part.values("user.account")
        known = {name: account for name, account in accounts.items() if account is not None}
        without = [node for node in part.nodes if node.name not in known]
        yield from (_nobody(node, next(iter(known.values()), None)) for node in without)
        texts = {name: f"uid {account.uid}, gid {account.gid}" for name, account in known.items()}
        yield from (
            as_wanted(part, texts, _is, "the job's user", exempt=len(without)) if known else ()
        )


def _user(node: Node) -> str | None:
    return node.job_user or node.ssh.user


def _nobody(node: Node, elsewhere: Account | None) -> Outcome:
    user = _user(node) or "the login's user"
    cure = (
        f"useradd --uid {elsewhere.uid} {user}   # on {node.name}"
        if elsewhere
        else f"useradd {user}   # everywhere"
    )
    return Outcome(
        "fail",
        (node.name,),
        f"there is no user {user}",
        "no such user",
        "a user with equal ids",
        cure,
    )


def _is(seen: str, wanted: str) -> bool:
    user, _, group = wanted.partition(":")
    words = seen.replace(",", "").split()
    return words[1] == user and (not group or words[3] == group)


def parse_ids(text: str) -> tuple[int, ...]:
    """The numbers of what `require: user.uid` asks for."""
    parts = text.strip().split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{EXPECTED}; seen '{text}'")
    return tuple(int(part) for part in parts)


UID = Check(
    "user.uid",
    facts=("user.account",),
    judge=uid,
    severity="warning",
    title="The job's user has the same ids",
    why="A shared file system knows numbers, not names: where the same user has another number, ranks of that node "
    "cannot read the data or write the checkpoint, often after hours.",
    how="User and group id of the job's user (`job_user:`, else the login's) from /etc/passwd or the directory "
    'service; equal on all nodes, or as `require: {user.uid: "1000:1000"}` says.',
    remedy="usermod -u UID USER && groupmod -g GID GROUP   # and chown what the user owns; or use a directory service",
    wants=parse_ids,
    proof=Proof("user.account", lambda account: Account(account.uid + 1, account.gid)),
)
