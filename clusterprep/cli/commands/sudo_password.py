"""Which passwords are refused before any node is asked, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.errors import InputError
from clusterprep.model import Node
from clusterprep.model.nodeset import fold
from clusterprep.remote.transports.link import Password
from clusterprep.remote.transports.sudo import SudoPassword

# Bytes of a password: SUDO_CONV_REPL_MAX of sudo before 1.8.28. The rest of a longer one would
# become input of the command.
MOST = 255


def password_of_all(text: str, key: str) -> Password:
    """Return a function that gives this password for each node, or None if it is empty.

    `key` names for the user where it comes from. Raises InputError for one that sudo cannot take.
    """
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MOST:
        raise InputError.of(f"no sudo takes a password of more than {MOST} bytes", key=key)
    secret = SudoPassword(text) if text else None
    return lambda node: secret


def refuse_through_slurm(nodes: Iterable[Node], key: str) -> None:
    """Raise InputError if one of the nodes would get the password through Slurm.

    srun gives its input to all tasks of a step, which run as the user who started it. So each
    process of that user, on each node of the step, could read the password.
    """
    names = [node.name for node in nodes if node.ssh.become and node.transport == "slurm"]
    if names:
        message = (
            f"no password for sudo goes to {fold(names)} through Slurm: your processes on all "
            "nodes of the step could read it"
        )
        hint = "NOPASSWD in sudoers, or `transport: ssh`, or --limit to other nodes"
        raise InputError.of(message, key=key, hint=hint)
