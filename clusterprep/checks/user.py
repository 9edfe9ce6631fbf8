"""Judges the job's user: its ids should be equal on all nodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, failed, kinds
from clusterprep.facts.account import Account
from clusterprep.model import Node
from clusterprep.remedies import Remedy, sentence, shell_line

SAME_IDS = sentence("give the user the same numbers on all nodes, or use a directory service")
EXPECTED = "expected a user id such as 1000, or user and group id such as 1000:1000"


def uid(context: CheckContext) -> Iterable[Outcome]:
    """Compare user and group id with what is declared, or between nodes with the same user."""
    for part in kinds(context, _user):
        accounts: dict[str, Account] = {}
        without: list[Node] = []
        for node in part.nodes:
            account: Account | None = part.value(node, "user.account")
            if account is None:
                without.append(node)
            else:
                accounts[node.name] = account
        example = next(iter(accounts.values()), None)
        for node in without:
            yield _missing_user(node, example)
        user = _user(part.nodes[0]) if part.nodes else None
        if accounts:
            texts = {name: _describe(account) for name, account in accounts.items()}
            what = "the job's user"
            yield from as_wanted(
                part,
                texts,
                _has_ids,
                what,
                exempt=len(without),
                cure=functools.partial(_change_ids, user),
            )


def _user(node: Node) -> str | None:
    return node.job_user or node.ssh.user


def _change_ids(user: str | None, ids: str) -> Remedy:
    """Return the command that gives the user these ids: «uid 1000, gid 1000», 1000:1000 or 1000."""
    numbers = re.findall(r"\d+", ids)
    if user is None or not numbers:
        return SAME_IDS
    if len(numbers) == 1:
        return shell_line(
            "usermod -u {uid} {user}   # and chown what the user owns", uid=numbers[0], user=user
        )
    return shell_line(
        "usermod -u {uid} -g {gid} {user}"
        "   # and chown what the user owns; a group with this number has to be there",
        uid=numbers[0],
        gid=numbers[1],
        user=user,
    )


def _missing_user(node: Node, example: Account | None) -> Outcome:
    """Return the failure of a node without the user; `example` is the account of another node."""
    user = _user(node)
    if user is None:
        cure = sentence("add the login's user everywhere")
    elif example is None:
        cure = shell_line("useradd {user}   # everywhere", user=user)
    else:
        cure = shell_line(
            "useradd --uid {uid} {user}   # on {node}", uid=example.uid, user=user, node=node.name
        )
    message = f"there is no user {user or 'of the login'}"
    return failed(
        node,
        message,
        "no such user",
        "a user with equal ids",
        cure,
    )


def _describe(account: Account) -> str:
    return f"uid {account.uid}, gid {account.gid}"


def _has_ids(seen: str, wanted: str) -> bool:
    """Return whether a text of `_describe` has the ids of «1000» or «1000:1000»."""
    wanted_uid, _, wanted_gid = wanted.partition(":")
    uid, gid = seen.removeprefix("uid ").split(", gid ")
    if uid != wanted_uid:
        return False
    return not wanted_gid or gid == wanted_gid


def parse_ids(text: str) -> tuple[int, ...]:
    """Return the numbers in `require: user.uid`. Raises ValueError for other text."""
    parts = text.strip().split(":")
    are_numbers = all(part.isascii() and part.isdigit() for part in parts)
    if len(parts) > 2 or not are_numbers:
        raise ValueError(f"{EXPECTED}; seen '{text}'")
    return tuple(map(int, parts))


UID = Check(
    "user.uid",
    facts=("user.account",),
    judge=uid,
    severity="warning",
    title="The job's user has the same ids",
    why="A shared file system knows numbers, not names: where the same user has another number, "
    "ranks of that node cannot read the data or write the checkpoint, often after hours.",
    how="User and group id of the job's user (`job_user:`, else the login's) from /etc/passwd or "
    'the directory service; equal on all nodes, or as `require: {user.uid: "1000:1000"}` says.',
    remedy=SAME_IDS,
    wants=parse_ids,
    proof=Proof("user.account", lambda account: Account(account.uid + 1, account.gid)),
)
