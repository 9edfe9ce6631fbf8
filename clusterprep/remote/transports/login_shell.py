"""Tell whether the login shell of a node ran our line, when no agent answers. Pure.

The line first prints a word (`bootstrap.SHELL_RUNS`). A node without it was reached and logged in
to, and then ran no shell (nologin, a forced command), or a start-up file ended the shell. A
restricted shell runs the first word, and not what follows.
"""

from __future__ import annotations

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remedies import noted, shell_line
from clusterprep.remote import bootstrap

LONGEST = 300  # characters of a node's own text in a message
_RESTRICTED = ": restricted"  # the words of bash, ksh and zsh when they are started so


def shell_trouble(node: Node, output: str, stderr: str) -> Unreached | None:
    """Return the error for a session that has ended because of its login shell, else None."""
    ran = bootstrap.SHELL_RUNS in output
    if ran and _RESTRICTED not in stderr:
        return None
    user = node.ssh.user
    account = "the login user" if user is None else user
    said = last_of(f"{output} {stderr}")
    # Without the node's name, so that equal words of many nodes are one sentence.
    words = f"it says: {said}" if said else "it says nothing"
    message = f"the login shell of {account} does not run our command; {words}"
    look = shell_line("getent passwd $USER")
    if user:
        look = shell_line("getent passwd {user}", user=user)
    remedy = noted(
        look,
        "on the node: is the shell nologin or restricted? else a forced command, or a start-up "
        "file that ends it",
    )
    return Unreached("denied", message, remedy)


def last_of(text: str) -> str:
    """Return the end of a node's text for a message, on one line and without our own word."""
    return " ".join(text.replace(bootstrap.SHELL_RUNS, " ").split())[-LONGEST:]
