"""ssh_config read once and asked per node: paramiko's reader has no Include and needs 40 ms a node for 2000 hosts."""

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
from dataclasses import dataclass, field
from functools import lru_cache

from clusterprep.remote.transports.host_patterns import is_plain, matches

USER_FILE = "~/.ssh/config"
SYSTEM_FILE = "/etc/ssh/ssh_config"
DEEPEST_INCLUDE = 16  # as in OpenSSH's readconf.c
EXEC_LIMIT = 10.0  # seconds for one `Match exec`
_REPEATED = {"identityfile", "certificatefile"}  # every value counts; of other options the first
_RAW = {
    "proxycommand",
    "remotecommand",
    "localcommand",
    "knownhostscommand",
}  # the rest of the line, quotes and all
_LINE = re.compile(r"(\w+)\s*[=\s]\s*(.*)")


@dataclass(frozen=True)
class HostIs:
    """The condition of a `Host` line."""

    patterns: tuple[str, ...]
    plain: frozenset[str] | None

    @classmethod
    def of(cls, patterns: tuple[str, ...]) -> HostIs:
        return cls(
            patterns,
            frozenset(p.lower() for p in patterns) if all(map(is_plain, patterns)) else None,
        )

    def holds(self, asked: Asked) -> bool:
        return (
            asked.name.lower() in self.plain
            if self.plain is not None
            else matches(asked.name, self.patterns)
        )


@dataclass(frozen=True)
class MatchBlock:
    """The condition of a `MatchBlock` line: (criterion, argument) in order, `!` still in front."""

    criteria: tuple[tuple[str, str], ...]

    def holds(self, asked: Asked) -> bool:
        return all(
            asked.meets(word.lstrip("!"), value) != word.startswith("!")
            for word, value in self.criteria
        )


@dataclass
class Section:
    """Options that count where every condition around them holds."""

    conditions: tuple[HostIs | MatchBlock, ...]
    options: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Asked:
    """One look-up: what is known of the host so far."""

    name: str
    options: dict[str, list[str]]
    final: bool = False

    def first(self, option: str, default: str = "") -> str:
        return self.options.get(option, [default])[0]

    def meets(self, criterion: str, value: str) -> bool:
        """One criterion of a Match line. Those that need a session or canonical names never hold here."""
        if criterion == "exec":
            return _succeeds(expand(value, tokens(self.name, self.options)))
        subject = {
            "host": hostname(self.name, self.options),
            "originalhost": self.name,
            "user": self.first("user", local_user()),
            "localuser": local_user(),
        }.get(criterion)
        if subject is not None:
            return matches(subject, value.split(","))
        return criterion == "all" or (criterion == "final" and self.final)


class SshConfig:
    """The sections of one user file, and of the system's when that file is the user's default one."""

    def __init__(self, sections: list[Section]) -> None:
        self._sections = sections
        conditions = (condition for section in sections for condition in section.conditions)
        criteria = (
            word
            for condition in conditions
            if isinstance(condition, MatchBlock)
            for word, _ in condition.criteria
        )
        self._twice = any(word.lstrip("!") == "final" for word in criteria)

    @classmethod
    def from_path(cls, path: str) -> SshConfig:
        """Read path; files that are missing say nothing, lines that cannot be read are passed over."""
        sections = list(_Reader("~/.ssh").read(path))
        if os.path.expanduser(path) == os.path.expanduser(
            USER_FILE
        ):  # `ssh -F` leaves the system's file out as well
            sections += _Reader("/etc/ssh").read(SYSTEM_FILE)
        return cls(sections)

    def names(self) -> list[str]:
        """Hosts that a Host line names outright, each once, in the order written."""
        conditions = (condition for section in self._sections for condition in section.conditions)
        hosts = (
            name
            for c in conditions
            if isinstance(c, HostIs)
            for name in c.patterns
            if is_plain(name)
        )
        return list(dict.fromkeys(hosts))

    def lookup(self, name: str, given: Mapping[str, str]) -> dict[str, list[str]]:
        """Options of name, lower-case, not expanded; what is given (user, port, …) wins, as on ssh's command line."""
        asked = Asked(name, {option: [value] for option, value in given.items()})
        for final in (False, True) if self._twice else (False,):
            asked.final = final
            for section in self._sections:
                if all(condition.holds(asked) for condition in section.conditions):
                    _take(asked.options, section.options, given)
        return asked.options


def _take(
    into: dict[str, list[str]], options: list[tuple[str, str]], given: Mapping[str, str]
) -> None:
    for option, value in options:
        values = into.setdefault(option, [])
        if not values or (option in _REPEATED and option not in given and value not in values):
            values.append(value)


class _Reader:
    """Follows Include, which inherits the conditions of the block it stands in and leaves them as they were."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.expanduser(folder)

    def read(
        self, path: str, around: tuple[HostIs | MatchBlock, ...] = (), depth: int = 0
    ) -> Iterator[Section]:
        conditions, section = around, Section(around)
        for keyword, value, words in _lines(path):
            if keyword in ("host", "match"):
                yield section
                conditions = (
                    *around,
                    HostIs.of(tuple(words)) if keyword == "host" else MatchBlock(_criteria(words)),
                )
                section = Section(conditions)
            elif keyword == "include":
                yield section
                for file in self._files(words) if depth < DEEPEST_INCLUDE else ():
                    yield from self.read(file, conditions, depth + 1)
                section = Section(conditions)
            else:
                section.options.append((keyword, value))
        yield section

    def _files(self, words: list[str]) -> list[str]:
        patterns = (os.path.join(self._folder, os.path.expanduser(word)) for word in words)
        return [file for pattern in patterns for file in sorted(glob.glob(pattern))]


def _lines(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """(keyword in lower case, value, words) of every line that says something."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        found = _LINE.fullmatch(line.strip())
        if not found:
            continue  # empty, a comment, or a keyword without a value
        keyword = found[1].lower()
        try:
            words = shlex.split(found[2], comments=keyword not in _RAW)
        except ValueError:
            words = [] if keyword not in _RAW else [found[2]]
        if words:
            yield keyword, found[2] if keyword in _RAW else words[0], words


def _criteria(words: list[str]) -> tuple[tuple[str, str], ...]:
    pairs, rest = [], iter(words)
    for word in rest:
        alone = word.lower().lstrip("!") in ("all", "canonical", "final")
        pairs.append((word.lower(), "" if alone else next(rest, "")))
    return tuple(pairs)


def hostname(name: str, options: Mapping[str, list[str]]) -> str:
    """Where ssh would connect to for name."""
    return expand(options.get("hostname", [name])[0], {"h": name})


def tokens(name: str, options: Mapping[str, list[str]]) -> dict[str, str]:
    """The %-tokens of ssh_config (TOKENS in its manual page) that have a meaning without a session."""
    local = _local_name()
    return {
        "d": os.path.expanduser("~"),
        "h": hostname(name, options),
        "i": str(os.getuid()),
        "k": options.get("hostkeyalias", [name])[0],
        "L": local.split(".")[0],
        "l": local,
        "n": name,
        "p": options.get("port", ["22"])[0],
        "r": options.get("user", [local_user()])[0],
        "u": local_user(),
    }


def expand(text: str, values: Mapping[str, str]) -> str:
    """Text with its %-tokens replaced; one that is not known stays as it is."""
    return re.sub(
        r"%(.)", lambda found: "%" if found[1] == "%" else values.get(found[1], found[0]), text
    )


@lru_cache(maxsize=1)
def local_user() -> str:
    """Who runs this: OpenSSH's default for the remote user. It asks the user id, not the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return getpass.getuser()


@lru_cache(maxsize=1)
def _local_name() -> str:
    return socket.gethostname()


def _succeeds(command: str) -> bool:
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
