"""Expand the %-tokens of ssh_config, and keep a shell from taking a value for code.

ProxyCommand and `Match exec` are lines for /bin/sh, into which ssh_config lets names of users and
hosts be written unquoted. An inventory says such names, so they are held to what OpenSSH allows
(`ssh_valid_ruser` and `ssh_valid_hostname` in its readconf.c).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterprep.errors import Unreached
from clusterprep.remedies import sentence

# OpenSSH allows the last four in users, of which a shell makes other words.
_FORBIDDEN_IN_USER = frozenset("'`\";&<>|(){}" + "$*?[")
_FORBIDDEN_IN_HOST = frozenset("'`\"$\\;&<>|(){},")
# Tokens of users, and of the home folder; all others are names of hosts, or numbers.
_LIKE_USERS = frozenset("rud")
_TOKEN = re.compile(r"%(.)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace the %-tokens of a text. An unknown token stays as it is.

    >>> expand("%h.example, 100 %%", {"h": "n1"})
    'n1.example, 100 %'
    """

    def value_of(match: re.Match[str]) -> str:
        letter = match[1]
        return "%" if letter == "%" else values.get(letter, match[0])

    return _TOKEN.sub(value_of, text)


def expand_for_shell(line: str, values: Mapping[str, str]) -> str:
    """Replace the %-tokens of a line for /bin/sh.

    Raises Unreached if a value in it might be code there.
    """
    for letter in _TOKEN.findall(line):
        if letter not in values:
            continue
        value = values[letter]
        is_valid = is_valid_user(value) if letter in _LIKE_USERS else is_valid_host(value)
        if not is_valid:
            message = f"%{letter} is {value!r}, which a shell could take for code"
            remedy = sentence("see the line with %{letter} in ssh_config", letter=letter)
            raise Unreached("name_unknown", message, remedy)
    return expand(line, values)


def refuse_invalid(user: str, host: str) -> None:
    """Raise Unreached for a user or host that OpenSSH would not connect as or to."""
    if not is_valid_user(user):
        message = f"{user!r} is not the name of a user"
        remedy = sentence("see ssh.user in the inventory, User in ssh_config")
        raise Unreached("name_unknown", message, remedy)
    if not is_valid_host(host):
        message = f"{host!r} is not the name of a host"
        remedy = sentence("see HostName and ProxyJump in ssh_config")
        raise Unreached("name_unknown", message, remedy)


def is_valid_user(text: str) -> bool:
    """Return whether a shell takes the name of a user for words, and not for an option or code."""
    if text.startswith("-") or text.endswith("\\") or re.search(r"\s-", text):
        return False
    return _is_plain(text) and _FORBIDDEN_IN_USER.isdisjoint(text)


def is_valid_host(text: str) -> bool:
    """Return whether a shell takes the name of a host for one word, and not for an option."""
    if text.startswith("-") or re.search(r"\s", text):
        return False
    return _is_plain(text) and _FORBIDDEN_IN_HOST.isdisjoint(text)


def _is_plain(text: str) -> bool:
    """Return whether a text has no control characters."""
    return not any(letter < " " or letter == "\x7f" for letter in text)
