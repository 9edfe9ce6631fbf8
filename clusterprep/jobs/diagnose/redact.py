"""Replaces names, addresses, paths, users and secrets, so that a diagnosis can be posted.

The same name gets the same replacement everywhere: every n1 becomes host-1.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis, LogLine

_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){5})[0-9a-fA-F:]{4,39}(?:%\w+)?(?![\w:])"
)
_MAPPED = re.compile(r"(?<![\w:])::(?:ffff:)?(?:\d{1,3}\.){3}\d{1,3}", re.IGNORECASE)
# Addresses that mean something (loopback, docker's default) and identify no host.
_WELL_KNOWN = re.compile(r"127\.|0\.0\.0\.0$|255\.|172\.17\.0\.1$|::1?$|fe80::$")
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
_SOURCE = frozenset({".py", ".cpp", ".cu", ".cc"})  # a traceback without these names says nothing
# Tokens by the form that their issuers give them, and what stands behind such a word.
_SECRET = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|wandb_v\d_|xox[abp]-|AKIA|eyJ)[\w.-]{8,}"
    r"|(?P<word>(?:api[_-]?key|key|token|secret|passw(?:or)?d|credential)s?[\"']?\s*[=:]\s*[\"']?)"
    r"(?=[\w/+.-]*\d)[\w/+.=-]{8,}",
    re.IGNORECASE,
)
_STORE = re.compile(
    r"\b(?P<scheme>https?|s3|gs|gcs|abfss?|wasbs?|hdfs|ftp|ssh|git|oci)://[^\s\"'<>)\]]+",
    re.IGNORECASE,
)
_EXPORT = re.compile(
    r"(?<![\w/.])(?P<host>[A-Za-z](?=[\w.-]*[\d-])[\w.-]*):(?P<path>/(?!/)[\w.@+/-]{2,})"
)
_USER = re.compile(
    r"\b(?P<user>[A-Za-z_][\w.-]{0,31})@(?=[\w-])"
    r"|\b(?P<key>USER|LOGNAME|user(?:name)?)[=:] ?(?P<value>[\w.-]+)"
)
_HOST_BY_CONTEXT = re.compile(
    r"(?:\((?P<a>[A-Za-z][\w.-]*), ?\d+\)|srun: error: (?P<b>[\w.-]+):"
    r"|\bON (?P<c>[\w.\[\],-]+) CANCELLED|"
    r"[Hh]ost(?:name)? *[:=] *"
    r"(?P<d>[A-Za-z][\w.-]*)|node '(?P<e>[\w.-]+)')"
)
_NAME = r"(?P<{}>[A-Za-z][\w.-]*)"
_HOST_IN_MESSAGE = re.compile(
    "|".join(
        pattern.format(_NAME.format(f"name{number}"))
        for number, pattern in enumerate(
            (
                r"connect to host {} port \d",
                r"(?:^|[@ ]){}: Permission denied \(",
                r"\bhost={} was not reachable",
                r"can't (?:resolve|find) '?{}",
                r"\blookup {} on ",
                r"process on node {} was",
                r"connect to \[?{}\]?:\d",
                r"\brdzv[_-]endpoint['\"]?[ :=,]+['\"]?{}",
                r"\bmaster[_-]addr['\"]?[ :=,]+['\"]?{}",
                r"\bmain_process_ip[ =]{}",
                r"Remote host: +{}",
            )
        )
    )
)
# What may be a name with a domain. It is taken apart at its dots and not by the pattern, which
# would begin anew behind each dot and take quadratic time.
_DOTTED = re.compile(r"[\w.-]+")
_LABEL = re.compile(r"[A-Za-z0-9-]+")
_TOP_DOMAINS = frozenset(
    [
        "internal",
        "local",
        "lan",
        "corp",
        "cluster",
        "com",
        "org",
        "net",
        "edu",
        "io",
        "ai",
        "de",
        "cn",
        "gov",
    ]
)
_ORDINARY_WORDS = frozenset({"localhost", "worker", "kernel", "none"})


class Redactor:
    """Replaces names in texts, and remembers by what it replaced each."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._replacements: dict[tuple[str, str], str] = {}  # by (kind, name)
        self._counts: Counter[str] = Counter()  # replacements by kind
        self._hosts: list[str] = []  # the longest first, as one may be part of another
        for host in sorted(set(hosts)):
            self._learn_host(host)

    def text(self, text: str) -> str:
        """Return the text with all names replaced."""
        self.learn(text)
        text = _SECRET.sub(self._secret, text)
        text = _STORE.sub(self._store, text)
        text = _EXPORT.sub(self._export, text)
        text = _PATH.sub(self._path, text)
        text = _USER.sub(self._user, text)
        for pattern in (_MAPPED, _IPV6, _IPV4):
            text = pattern.sub(self._address, text)
        for host in self._hosts:
            pattern = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
            text = pattern.sub(self._host, text)
        return text

    def learn(self, text: str) -> None:
        """Remember the names of hosts that a text gives away, for this text and all others."""
        for pattern in (_HOST_BY_CONTEXT, _HOST_IN_MESSAGE):
            for match in pattern.finditer(text):
                names = [name for name in match.groups() if name]
                self._learn_host(names[0].rstrip(".-"))
        for match in _DOTTED.finditer(text):
            for host in _names_with_domain(match[0]):
                self._learn_host(host)

    def _learn_host(self, host: str) -> None:
        if len(host) <= 1 or host in self._hosts:
            return
        if _IPV4.fullmatch(host) or host.lower() in _ORDINARY_WORDS:
            return
        self._hosts.append(host)
        self._hosts.sort(key=lambda name: -len(name))

    def _replacement(self, kind: str, name: str) -> str:
        replacement = self._replacements.get((kind, name))
        if replacement is None:
            self._counts[kind] += 1
            replacement = f"{kind}-{self._counts[kind]}"
            self._replacements[kind, name] = replacement
        return replacement

    def _secret(self, match: re.Match[str]) -> str:
        word = match["word"] or ""
        return word + self._replacement("secret", match[0].removeprefix(word))

    def _store(self, match: re.Match[str]) -> str:
        return f"{match['scheme']}://{self._replacement('url', match[0])}"

    def _export(self, match: re.Match[str]) -> str:
        host = self._replacement("host", match["host"])
        return f"{host}:/{self._replacement('path', match['path'])}"

    def _host(self, match: re.Match[str]) -> str:
        return self._replacement("host", match[0])

    def _address(self, match: re.Match[str]) -> str:
        address = match[0]
        if _WELL_KNOWN.match(address):
            return address
        return self._replacement("addr", address)

    def _user(self, match: re.Match[str]) -> str:
        if match["user"]:
            user = self._replacement("user", match["user"])
            return f"{user}@"
        user = self._replacement("user", match["value"])
        return match[0].replace(match["value"], user)

    def _path(self, match: re.Match[str]) -> str:
        """Return a path with its private parts replaced.

        Paths of the system, what is below site-packages and names of source files stay.
        """
        path = match[0]
        if path.startswith(_SYSTEM) and "/home/" not in path:
            return path
        before, library, after = path.partition("site-packages/")
        if library:
            folder = self._replacement("path", before)
            return f"/{folder}/site-packages/{after}"
        parent, file = posixpath.split(path.replace("\\", "/"))
        _, extension = posixpath.splitext(file)
        if extension not in _SOURCE:
            file = self._replacement("file", file)
        folder = self._replacement("path", parent)
        return f"/{folder}/{file}"


def _names_with_domain(dotted: str) -> Iterator[str]:
    """Yield «gpu1.lab.internal» of a text without blanks such as «gpu1.lab.internal-x»."""
    labels: list[str] = []
    length = 0  # labels of the longest name so far
    for label in [*dotted.split("."), ""]:
        if _LABEL.fullmatch(label):
            labels.append(label)
            top, _, _ = label.partition("-")
            if len(labels) > 1 and top in _TOP_DOMAINS:
                length = len(labels)
            continue
        if length:
            top, _, _ = labels[length - 1].partition("-")
            yield ".".join([*labels[: length - 1], top]).lstrip("-")
        labels = []
        length = 0


def redacted(diagnosis: Diagnosis, hosts: Iterable[str]) -> Diagnosis:
    """Return the diagnosis without names of hosts, addresses, paths and users."""
    redactor = Redactor(hosts)
    lines = [line for found in diagnosis.causes for line in found.lines]
    lines += diagnosis.unexplained
    for line in lines:
        redactor.learn(line.text)
    change = redactor.text
    causes = tuple(_redacted_cause(found, change) for found in diagnosis.causes)
    unexplained = tuple(_redacted_line(line, change) for line in diagnosis.unexplained)
    notices = tuple(change(notice) for notice in diagnosis.notices)
    return replace(diagnosis, causes=causes, unexplained=unexplained, notices=notices)


def _redacted_cause(found: DiagnosedCause, change: Callable[[str], str]) -> DiagnosedCause:
    """Return a cause with `change` done to each of its texts that comes from the log."""
    culprit = None if found.culprit is None else change(found.culprit)
    message = change(found.message)
    lines = tuple(_redacted_line(line, change) for line in found.lines)
    live = tuple(change(answer) for answer in found.live)
    return replace(
        found,
        culprit=culprit,
        message=message,
        lines=lines,
        live=live,
    )


def _redacted_line(line: LogLine, change: Callable[[str], str]) -> LogLine:
    file = line.file
    if "/" in file:
        file = file.rpartition("/")[2]
    file = change(file)
    text = change(line.text)
    message = change(line.message)
    return replace(line, file=file, text=text, message=message)
