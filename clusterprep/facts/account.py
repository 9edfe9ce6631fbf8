"""Whose rights we have on a node, and who the job's user is there."""

from __future__ import annotations

from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Rights:
    """The user that looked. `sudo` is the exit code of `sudo -n true`; None where it was not asked or is not there."""

    uid: int
    user: str
    sudo: int | None = None


@dataclass(frozen=True)
class Account:
    """A user by numbers, which is all that a shared file system knows of it."""

    uid: int
    gid: int


def parse_rights(answer: dict[str, Any]) -> Rights:
    rights = Rights(answer["uid"], answer["user"], answer["sudo"])
    if (
        not isinstance(rights.uid, int)
        or not isinstance(rights.user, str)
        or not isinstance(rights.sudo, int | None)
    ):
        raise TypeError("rights of another shape")
    return rights


def parse_account(answer: dict[str, Any] | None) -> Account | None:
    """None for a user that the node does not know."""
    if answer is None:
        return None
    account = Account(answer["uid"], answer["gid"])
    if not (isinstance(account.uid, int) and isinstance(account.gid, int)):
        raise TypeError("user and group have no numbers")
    return account


RIGHTS = Fact("ssh.rights", lambda node, inventory: (Read("rights"),), parse_rights)
ACCOUNT = Fact(
    "user.account",
    lambda node, inventory: (Read("account", (node.job_user or node.ssh.user,)),),
    parse_account,
)
