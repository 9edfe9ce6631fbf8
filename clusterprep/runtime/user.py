"""The user of this process, as others are told of it."""

from __future__ import annotations

import getpass
import os
import socket

LONGEST = 80  # characters


def who_is_at_work() -> str:
    """Return USER@HOST, for a command that finds a node locked by this one."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without an account
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}"
    return "".join(letter for letter in name if letter.isprintable())[:LONGEST]
