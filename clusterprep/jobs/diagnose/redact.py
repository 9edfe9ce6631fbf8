"""Replaces names, addresses, paths and users, each by the same word everywhere, so that a diagnosis can be posted."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from clusterprep.jobs.diagnose.model import Diagnosis, LogLine

_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){5})[0-9a-fA-F:]{4,39}(?:%\w+)?(?![\w:])"
)
_MAPPED = re.compile(r"(?<![\w:])::(?:ffff:)?(?:\d{1,3}\.){3}\d{1,3}", re.IGNORECASE)
_TELLING = re.compile(
    r"127\.|0\.0\.0\.0$|255\.|172\.17\.0\.1$|::1?$|fe80::$"
)  # these mean something, and name nobody
_PATH = re.compile(
    r"(?<![\w.:/<])(?:~[/\\]|[A-Za-z]:\\|[/\\])(?:[\w.@+ -]*?[\w.@+-][/\\])+[\w.@+-]*"
)
_SYSTEM = (
    "/dev",
    "/proc",
    "/sys",
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/run",
    "/var/lib",
    "/var/run",
    "/opt/conda",
)
_SOURCE = frozenset({".py", ".cpp", ".cu", ".cc"})  # a traceback without them says nothing
_USER = re.compile(
    r"\b(?P<user>[A-Za-z_][\w-]{0,31})@(?=[\w-])|\b(?P<key>USER|LOGNAME|user(?:name)?)[=:] ?(?P<value>[\w.-]+)"
)
_NAMED = re.compile(
    r"(?:\((?P<a>[A-Za-z][\w.-]*), ?\d+\)|srun: error: (?P<b>[\w.-]+):|\bON (?P<c>[\w.\[\],-]+) CANCELLED|"
    r"[Hh]ost(?:name)? *[:=] *"
    r"(?P<d>[A-Za-z][\w.-]*)|node '(?P<e>[\w.-]+)')"
)
_DOMAIN = re.compile(
    r"\b(?:[A-Za-z0-9-]+\.)+(?:internal|local|lan|corp|cluster|com|org|net|edu|io|ai|de|cn|gov)\b"
)


class Redactor:
    """Remembers what it replaced by what."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._words: dict[tuple[str, str], str] = {}
        self._hosts: list[str] = []
        for host in sorted(set(hosts), key=lambda name: (-len(name), name)):
            self._learn(host)

    def text(self, text: str) -> str:
        self.learn(text)
        text = _PATH.sub(self._path, text)
        text = _USER.sub(self._user, text)
        text = _MAPPED.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        text = _IPV4.sub(lambda found: self._address(found[0]), text)
        for host in self._hosts:
            text = re.sub(
                rf"(?<![\w.-]){re.escape(host)}(?![\w-])",
                lambda found: self._word("host", found[0]),
                text,
            )
        return text

    def learn(self, text: str) -> None:
        """Remember the names of hosts that a text gives away, for this text and all others."""
        for found in _NAMED.finditer(text):
            self._learn(next(name for name in found.groups() if name))
        for found in _DOMAIN.finditer(text):
            self._learn(found[0])

    def _learn(self, host: str) -> None:
        plain = (
            _IPV4.fullmatch(host)
            or host in self._hosts
            or host.lower() in {"localhost", "worker", "kernel", "none"}
        )
        if not plain and len(host) > 1:
            self._hosts.append(host)
            self._hosts.sort(key=lambda name: -len(name))

    def _word(self, kind: str, value: str) -> str:
        known = self._words.get((kind, value))
        if known is None:
            number = 1 + sum(other == kind for other, _ in self._words)
            known = self._words[kind, value] = f"{kind}-{number}"
        return known

    def _address(self, address: str) -> str:
        return address if _TELLING.match(address) else self._word("addr", address)

    def _user(self, found: re.Match[str]) -> str:
        if found["user"]:
            return f"{self._word('user', found['user'])}@"
        return found[0].replace(found["value"], self._word("user", found["value"]))

    def _path(self, found: re.Match[str]) -> str:
        path = found[0]
        if path.startswith(_SYSTEM) and "/home/" not in path:
            return path
        head, library, tail = path.partition("site-packages/")
        if library:
            return f"/{self._word('path', head)}/site-packages/{tail}"
        folder, file = posixpath.split(path.replace("\\", "/"))
        name = file if posixpath.splitext(file)[1] in _SOURCE else self._word("file", file)
        return f"/{self._word('path', folder)}/{name}"


def redacted(diagnosis: Diagnosis, hosts: Iterable[str]) -> Diagnosis:
    """The same without names of hosts, addresses, paths and users."""
    redactor = Redactor(hosts)
    for line in (
        *(line for found in diagnosis.causes for line in found.lines),
        *diagnosis.unexplained,
    ):
        redactor.learn(line.text)
    change = redactor.text
    causes = tuple(
        replace(
            found,
            culprit=None if found.culprit is None else change(found.culprit),
            message=change(found.message),
            lines=tuple(_line(line, change) for line in found.lines),
            live=tuple(change(said) for said in found.live),
        )
        for found in diagnosis.causes
    )
    left = tuple(_line(line, change) for line in diagnosis.unexplained)
    notices = tuple(change(notice) for notice in diagnosis.notices)
    return replace(diagnosis, causes=causes, unexplained=left, notices=notices)


def _line(line: LogLine, change: Callable[[str], str]) -> LogLine:
    file = line.file if line.file == "-" or "/" not in line.file else line.file.rpartition("/")[2]
    return replace(line, file=change(file), text=change(line.text), said=change(line.said))
