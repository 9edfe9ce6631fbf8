"""Read ssh_config once, and look up the options of each node in it.

paramiko's reader has no Include and needs 40 ms a node for a file of 2000 hosts.

Only options that lead to a host or name keys have an effect. Those that forward, run commands on
this machine or make host keys easier (ForwardAgent, LocalCommand, StrictHostKeyChecking no) have
none, because their author did not think of root on all nodes. RevokedHostKeys, which refuses keys,
has one, and so have the files that UserKnownHostsFile names.
"""

from __future__ import annotations

import getpass
import glob
import os
import pwd
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct, field

from clusterprep.remote.transports.host_patterns import is_plain, matches
from clusterprep.remote.transports.local_addresses import is_on_network
from clusterprep.remote.transports.ssh_tokens import expand, expand_for_shell

USER_FILE = "~/.ssh/config"
SYSTEM_FILE = "/etc/ssh/ssh_config"
DEEPEST_INCLUDE = 16  # as in OpenSSH's readconf.c
EXEC_LIMIT = 10.0  # seconds for one `Match exec`
_REPEATED = {"identityfile", "certificatefile"}  # every value counts; of other options the first
# Options whose value is the rest of the line, quotes and all.
_RAW = {
    "proxycommand",
    "remotecommand",
    "localcommand",
    "knownhostscommand",
    "userknownhostsfile",
}
_WITHOUT_ARGUMENT = ("all", "canonical", "final")  # criteria of Match
# Criteria whose argument may follow a "=" instead of a blank.
_WITH_EQUALS = re.compile(
    r"(!*(?:host|originalhost|user|localuser|localnetwork|version|tagged|command|exec))=(.*)",
    re.DOTALL | re.IGNORECASE,
)
_LINE = re.compile(r"(\w+)\s*[=\s]\s*(.*)")


class HostBlock(Struct, frozen=True):
    """The condition of a `Host` line."""

    patterns: tuple[str, ...]
    # The names in lower case if no pattern has wildcards: looking them up is quicker.
    plain: frozenset[str] | None

    @classmethod
    def of(cls, patterns: tuple[str, ...]) -> HostBlock:
        plain = None
        if all(map(is_plain, patterns)):
            plain = frozenset(pattern.lower() for pattern in patterns)
        return cls(patterns, plain)

    def holds(self, lookup: Lookup) -> bool:
        if self.plain is not None:
            return lookup.name.lower() in self.plain
        return matches(lookup.name, self.patterns)


class MatchBlock(Struct, frozen=True):
    """The condition of a `Match` line: (criterion, argument) in order, `!` still in front."""

    criteria: tuple[tuple[str, str], ...]

    def holds(self, lookup: Lookup) -> bool:
        for criterion, argument in self.criteria:
            is_negated = criterion.startswith("!")
            is_met = lookup.meets(criterion.lstrip("!"), argument)
            # What is not known here holds neither plainly nor negated.
            if is_met is None or is_met == is_negated:
                return False
        return True


Condition = HostBlock | MatchBlock


class Section(Struct):
    """Options that count where every condition around them holds."""

    conditions: tuple[Condition, ...]
    options: list[tuple[str, str]] = field(default_factory=list)


class Lookup(Struct):
    """The options of one host, as far as the files were read."""

    name: str
    options: dict[str, list[str]]
    is_final: bool = False  # the second pass, for which `Match final` holds

    def first(self, option: str, default: str = "") -> str:
        return self.options.get(option, [default])[0]

    def meets(self, criterion: str, argument: str) -> bool | None:
        """Return whether one criterion of a Match line holds, None if that cannot be said here.

        `version` and `command` ask for OpenSSH's own release and for the line that we run.
        """
        if criterion == "exec":
            command = expand_for_shell(argument, tokens(self.name, self.options))
            return _succeeds(command)
        subject = self._subject(criterion)
        if subject is not None:
            return matches(subject, argument.split(","))
        if criterion == "localnetwork":
            return is_on_network(argument.split(","))
        if criterion == "tagged":
            tag = self.first("tag")
            return matches(tag, argument.split(",")) if tag else not argument
        if criterion in ("final", "canonical"):
            return self.is_final
        return True if criterion == "all" else None

    def _subject(self, criterion: str) -> str | None:
        """Return what the patterns of a criterion are compared with, None if it has no patterns."""
        if criterion == "host":
            return hostname(self.name, self.options)
        if criterion == "originalhost":
            return self.name
        if criterion == "user":
            return self.first("user", local_user())
        if criterion == "localuser":
            return local_user()
        if criterion == "sessiontype":
            return "exec"
        return None


class SshConfig:
    """The sections of one user file, and of the system's if that file is the user's default."""

    def __init__(self, sections: list[Section]) -> None:
        self._sections = sections
        self._has_final = any(map(_names_final, self._conditions()))

    @classmethod
    def from_path(cls, path: str) -> SshConfig:
        """Read `path`. Missing files have no options; lines that cannot be read are skipped."""
        sections = list(_Reader("~/.ssh").read(path))
        # `ssh -F` leaves out the system's file as well.
        if os.path.expanduser(path) == os.path.expanduser(USER_FILE):
            sections += _Reader("/etc/ssh").read(SYSTEM_FILE)
        return cls(sections)

    def names(self) -> list[str]:
        """Return the hosts that a Host line names without wildcards, in the order written."""
        hosts: dict[str, None] = {}
        for condition in self._conditions():
            if isinstance(condition, HostBlock):
                names = filter(is_plain, condition.patterns)
                hosts.update(dict.fromkeys(names))
        return list(hosts)

    def lookup(self, name: str, given: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the options of a host, in lower case, not expanded.

        `given` options (user, port, …) win, as those of ssh's command line do.
        """
        lookup = Lookup(name, {option: [value] for option, value in given.items()})
        self._read_into(lookup, given)
        if self._has_final:
            lookup.is_final = True
            self._read_into(lookup, given)
        return lookup.options

    def _read_into(self, lookup: Lookup, given: Mapping[str, str]) -> None:
        for section in self._sections:
            if all(condition.holds(lookup) for condition in section.conditions):
                _add_options(lookup.options, section.options, given)

    def _conditions(self) -> Iterator[Condition]:
        for section in self._sections:
            yield from section.conditions


def _names_final(condition: Condition) -> bool:
    """Return whether a condition needs the second pass, for `Match final`."""
    if isinstance(condition, HostBlock):
        return False
    criteria = [criterion.lstrip("!") for criterion, _ in condition.criteria]
    return "final" in criteria


def _add_options(
    into: dict[str, list[str]], options: list[tuple[str, str]], given: Mapping[str, str]
) -> None:
    """Add options of a section to those of a host. What the host has already is not replaced."""
    for option, value in options:
        values = into.setdefault(option, [])
        is_repeated = option in _REPEATED and option not in given
        if not values or (is_repeated and value not in values):
            values.append(value)


class _Reader:
    """Reads a file and those that it includes.

    An included file inherits the conditions of the block around the Include, and leaves them as
    they were.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.expanduser(folder)

    def read(
        self, path: str, around: tuple[Condition, ...] = (), depth: int = 0
    ) -> Iterator[Section]:
        """Yield the sections of a file, those of an included file in the place of its Include.

        `around` has the conditions of the block that includes this file, and `depth` is the number
        of files around it.
        """
        conditions = around
        section = Section(conditions)
        for keyword, value, arguments in _lines(path):
            if keyword in ("host", "match"):
                yield section
                conditions = (*around, _condition(keyword, arguments))
                section = Section(conditions)
            elif keyword == "include":
                yield section
                if depth < DEEPEST_INCLUDE:
                    for file in self._files(arguments):
                        yield from self.read(file, conditions, depth + 1)
                section = Section(conditions)
            else:
                section.options.append((keyword, value))
        yield section

    def _files(self, arguments: list[str]) -> list[str]:
        files: list[str] = []
        for argument in arguments:
            pattern = os.path.join(self._folder, os.path.expanduser(argument))
            files.extend(sorted(glob.glob(pattern)))
        return files


def _lines(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (keyword in lower case, value, arguments) of every line with an option."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        if not match:
            continue  # empty, a comment, or a keyword without a value
        keyword = match[1].lower()
        rest = match[2]
        is_raw = keyword in _RAW
        try:
            arguments = shlex.split(rest, comments=not is_raw)
        except ValueError:
            arguments = [rest] if is_raw else []
        if arguments:
            yield keyword, rest if is_raw else arguments[0], arguments


def _condition(keyword: str, arguments: list[str]) -> Condition:
    if keyword == "host":
        return HostBlock.of(tuple(arguments))
    return MatchBlock(_criteria(arguments))


def _criteria(arguments: list[str]) -> tuple[tuple[str, str], ...]:
    """Return (criterion, argument) for the words of a Match line; "" where it has no argument."""
    pairs = []
    remaining = iter(arguments)
    for word in remaining:
        joined = _WITH_EQUALS.fullmatch(word)
        if joined:
            pairs.append((joined[1].lower(), joined[2]))
            continue
        criterion = word.lower()
        if criterion.lstrip("!") in _WITHOUT_ARGUMENT:
            pairs.append((criterion, ""))
        else:
            pairs.append((criterion, next(remaining, "")))
    return tuple(pairs)


def hostname(name: str, options: Mapping[str, list[str]]) -> str:
    """Return the host to which ssh would connect for `name`."""
    pattern = options.get("hostname", [name])[0]
    return expand(pattern, {"h": name})


def tokens(name: str, options: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the %-tokens of ssh_config (TOKENS in its manual page) that need no session."""
    local_name = _local_name()
    return {
        "d": os.path.expanduser("~"),
        "h": hostname(name, options),
        "i": str(os.getuid()),
        "k": options.get("hostkeyalias", [name])[0],
        "L": local_name.split(".")[0],
        "l": local_name,
        "n": name,
        "p": options.get("port", ["22"])[0],
        "r": options.get("user", [local_user()])[0],
        "u": local_user(),
    }


@lru_cache(maxsize=1)
def local_user() -> str:
    """Return the user of this process, OpenSSH's default for the remote user.

    It is found by the user id, not by the environment.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return getpass.getuser()


@lru_cache(maxsize=1)
def _local_name() -> str:
    return socket.gethostname()


def _succeeds(command: str) -> bool:
    """Return whether a command of `Match exec` exits with 0 within EXEC_LIMIT."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=EXEC_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
