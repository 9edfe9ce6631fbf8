"""Read the options of ssh in ansible_ssh_args, ansible_ssh_common_args and the like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

# Options that lead to a host or name keys, as ssh_config spells them. They have an effect here.
PASSED_ON = (
    "ProxyJump",
    "ProxyCommand",
    "IdentitiesOnly",
    "IdentityAgent",
    "CertificateFile",
    "HostKeyAlias",
    "RevokedHostKeys",
    "HashKnownHosts",
)
_SPELLING = {name.lower(): name for name in PASSED_ON}
# Options of ssh itself, of which the others take no value: «getopt» in OpenSSH's ssh.c.
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopPQRSWw")
_LETTERS = {"J": "proxyjump", "p": "port", "i": "identityfile", "l": "user", "F": "config"}
# What they say is done here in another way, or cannot matter to an answer.
_WITHOUT_EFFECT = re.compile(
    r"control(master|persist|path)|serveralive\w+|tcpkeepalive|connectionattempts|compression"
    r"|loglevel|preferredauthentications|\w+authentication|numberofpasswordprompts|batchmode"
    r"|checkhostip|requesttty|forward(agent|x11\w*)|gssapi\w+|addkeystoagent|updatehostkeys"
    r"|visualhostkey|verifyhostkeydns|ipqos|escapechar|addressfamily|canonical\w+|pubkey\w+"
)
_LENIENT = ("no", "off", "false")
_NOWHERE = ("/dev/null", "none")


class SshArguments(Struct):
    """Options by name, in lower case; of options with several values the first counts.

    `weakening` are those that would accept any host key, and `unread` those of other meaning.
    """

    options: dict[str, str] = field(default_factory=dict)
    identities: list[str] = field(default_factory=list)
    weakening: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        """Add one option; one that is there already stays as it is, as in ssh."""
        key = name.lower()
        if key == "identityfile":
            self.identities.append(value)
        elif _weakens(key, value):
            self.weakening.append(f"{name}={value}")
        elif key in _TAKEN or key in _SPELLING:
            self.options.setdefault(key, value)
        elif not _WITHOUT_EFFECT.fullmatch(key):
            self.unread.append(name)

    def passed_on(self) -> Mapping[str, str]:
        """Return the options of PASSED_ON that are there, as ssh_config spells them."""
        return {_SPELLING[key]: value for key, value in self.options.items() if key in _SPELLING}


_TAKEN = ("user", "port", "connecttimeout", "userknownhostsfile", "stricthostkeychecking", "config")


def _weakens(key: str, value: str) -> bool:
    """Return whether an option would let any machine pass for the node."""
    if key == "stricthostkeychecking":
        return value.lower() in _LENIENT
    return key in ("userknownhostsfile", "globalknownhostsfile") and value.lower() in _NOWHERE


def read_arguments(text: str, into: SshArguments) -> None:
    """Add the options of a text to those before it. Raises ValueError for an open quote."""
    for name, value in _options(shlex.split(text)):
        if name == "o":
            into.add(*_keyword(value))
        elif name in _LETTERS:
            into.add(_LETTERS[name], value)
        elif name in "LRDWwIm":
            into.unread.append(f"-{name}")


def _options(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (letter, value) of each option; words that belong to none are passed over."""
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-") or word == "--":
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _WITH_VALUE:
                yield letter, letters or next(remaining, "")
                break
            yield letter, ""


def _keyword(text: str) -> tuple[str, str]:
    """Return the name and the value of «Name=value» or «Name value»."""
    match = re.fullmatch(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)", text, re.DOTALL)
    if match is None:
        return text.strip(), ""
    value = match[2].strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return match[1], value[1:-1] if is_quoted else value
