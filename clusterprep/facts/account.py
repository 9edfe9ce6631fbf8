"""The rights of the login user on a node, and the account of the job's user there."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, user_of_job
from clusterprep.model import Inventory, Node, Read


class Rights(Struct, frozen=True):
    """The login user.

    `sudo` is the exit code of `sudo -n true`, None where it was not run or is not installed.
    """

    uid: int
    user: str
    sudo: int | None = None


class Account(Struct, frozen=True):
    """A user by its numbers, which is all that a shared file system knows of it."""

    uid: int
    gid: int


def parse_rights(answer: dict[str, Any]) -> Rights:
    """Return the login user. Raises TypeError for a value of another type."""
    rights = Rights(answer["uid"], answer["user"], answer["sudo"])
    if not isinstance(rights.uid, int):
        raise TypeError("the user id is no number")
    if not isinstance(rights.user, str):
        raise TypeError("the user's name is no text")
    if not isinstance(rights.sudo, int | None):
        raise TypeError("the exit code of sudo is no number")
    return rights


def parse_account(answer: dict[str, Any] | None) -> Account | None:
    """Return the user's numbers, None for a user that the node does not know."""
    if answer is None:
        return None
    account = Account(answer["uid"], answer["gid"])
    if not (isinstance(account.uid, int) and isinstance(account.gid, int)):
        raise TypeError("user and group have no numbers")
    return account


def _account_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("account", (user_of_job(node),)),)


RIGHTS = Fact("ssh.rights", lambda node, inventory: (Read("rights"),), parse_rights)
ACCOUNT = Fact("user.account", _account_reads, parse_account)
