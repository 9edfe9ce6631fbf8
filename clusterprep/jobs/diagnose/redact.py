"""Replaces names, addresses, paths, users and secrets, so that a diagnosis can be posted.

The same name gets the same replacement everywhere: every n1 becomes host-1.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from clusterprep.jobs.diagnose.launchers import HOSTS, unfolded
from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis, LogLine

_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]{1,4}:){5})[0-9a-fA-F:]{4,39}(?:%\w+)?(?![\w:])"
)
_MAPPED = re.compile(r"(?<![\w:])::(?:ffff:)?(?:\d{1,3}\.){3}\d{1,3}", re.IGNORECASE)
# Addresses that mean something (loopback, docker's default, all hosts) and identify no host.
_WELL_KNOWN = re.compile(
    r"127\.|0\.0\.0\.0$|255\.|172\.17\.0\.1$|::1?$|fe80::$|(?:00:){5}00$|(?:ff:){5}ff$"
)
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
    r"(?<![\w/.-])(?P<host>[A-Za-z](?=[\w.-]*[\d-])[\w.-]*):(?P<path>/(?!/)[\w.@+/-]{2,})"
)
_USER = re.compile(
    r"\b(?P<user>[A-Za-z_][\w.-]{0,31})@(?=[\w-])"
    r"|\b(?P<key>USER|LOGNAME|user(?:name)?)[=:] ?(?P<value>[\w.-]+)"
)
_HOST_BY_CONTEXT = re.compile(
    rf"(?:\((?P<a>[A-Za-z][\w.-]*), ?\d+\)|srun: error: (?P<b>{HOSTS}):"
    r"|\bON (?P<c>[\w.\[\],-]+) CANCELLED|"
    r"[Hh]ost(?:name)? *[:=] *"
    r"(?P<d>[A-Za-z][\w.-]*)|node '(?P<e>[\w.-]+)')"
)
_MOST_HOSTS = 10_000  # of one list: all of them may stand by themselves in other lines
_FOLDED = re.compile(r"(?<![\w.-])[A-Za-z][\w.-]*(?:\[[\d,-]+\][\w.-]*)+")  # gpu[03-04]
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
# What may hold known names, and where one of its parts ends and another begins.
_WORD = re.compile(r"[\w.-]+")
_SEPARATORS = re.compile(r"([._-]+)")
_MOST_PLAIN_WORDS = 100_000  # words that are remembered as such
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
    """Replaces names in texts, and remembers by what it replaced each.

    `hosts` and what texts give away are known from the beginning, `know` adds names of other kinds.
    With `within` names are replaced within longer words too, as in «gpu1_rank0.log»: where a name
    that stays is worse than a word that is hard to read.
    """

    def __init__(self, hosts: Iterable[str], *, within: bool = False) -> None:
        self._replacements: dict[tuple[str, str], str] = {}  # by (kind, name)
        self._counts: Counter[str] = Counter()  # replacements by kind
        self._kinds: dict[str, str] = {}  # of known names
        self._beginnings: set[str] = set()  # the first part of each known name
        self._most_parts = 0  # of a known name
        self._plain_words: set[str] = set()  # words without a known name
        self._within = within
        self.know("host", sorted(set(hosts)))

    def know(self, kind: str, names: Iterable[str]) -> None:
        """Have these names replaced by `kind-1`, `kind-2` and so on, wherever they stand.

        Names that are known already keep their kind.
        """
        for name in names:
            if len(name) <= 1 or name in self._kinds or name.lower() in _ORDINARY_WORDS:
                continue
            if kind == "host" and _IPV4.fullmatch(name):
                continue
            self._kinds[name] = kind
            self._plain_words.clear()
            parts = _SEPARATORS.split(name)
            self._beginnings.add(parts[0])
            self._most_parts = max(self._most_parts, len(parts))

    def text(self, text: str) -> str:
        """Return the text with all names replaced, also those that it gives away itself."""
        self.learn(text)
        return self.replaced(text)

    def replaced(self, text: str) -> str:
        """Return the text with all names replaced that are known by now."""
        text = _SECRET.sub(self._secret, text)
        text = _STORE.sub(self._store, text)
        text = _EXPORT.sub(self._export, text)
        text = _PATH.sub(self._path, text)
        text = _USER.sub(self._user, text)
        for pattern in (_MAPPED, _IPV6, _IPV4):
            text = pattern.sub(self._address, text)
        text = _FOLDED.sub(self._folded, text)
        return _WORD.sub(self._word, text)

    def learn(self, text: str) -> None:
        """Remember the names of hosts that a text gives away, for this text and all others."""
        for pattern in (_HOST_BY_CONTEXT, _HOST_IN_MESSAGE):
            for match in pattern.finditer(text):
                names = [name for name in match.groups() if name]
                name = names[0].rstrip(".-")
                self.know("host", [name, *unfolded(name, _MOST_HOSTS), *_FOLDED.findall(name)])
        for match in _DOTTED.finditer(text):
            if "." in match[0]:
                self.know("host", _names_with_domain(match[0]))

    def _word(self, match: re.Match[str]) -> str:
        """Return a word such as «gpu1.lab:» without the names in it.

        Words are looked up, since to look for each of a thousand names would take minutes.
        """
        word = match[0]
        if word in self._kinds:
            return self.word(self._kinds[word], word)
        if word in self._plain_words:
            return word
        without_names = self._without_names(word)
        if without_names == word and len(self._plain_words) < _MOST_PLAIN_WORDS:
            self._plain_words.add(word)
        return without_names

    def _folded(self, match: re.Match[str]) -> str:
        """Return one word for a list of hosts such as «gpu[03-04]» that is known."""
        hosts = match[0]
        return self.word("host", hosts) if hosts in self._kinds else hosts

    def _without_names(self, word: str) -> str:
        """Return a longer word without the names in it."""
        parts = _SEPARATORS.split(word)  # name, separator, name, …
        if self._beginnings.isdisjoint(parts):
            return word
        if not self._within:
            length = self._known_length(parts, 0)
            if length and (length == len(parts) or parts[length].startswith(".")):
                return self._joined(parts[:length]) + "".join(parts[length:])
            return word
        texts = []
        place = 0
        while place < len(parts):
            length = self._known_length(parts, place) if place % 2 == 0 else 0
            texts.append(self._joined(parts[place : place + max(length, 1)]))
            place += max(length, 1)
        return "".join(texts)

    def _known_length(self, parts: Sequence[str], first: int) -> int:
        """Return how many parts from `first` on are the longest known name, 0 if none is."""
        if parts[first] not in self._beginnings:
            return 0
        most = min(self._most_parts, len(parts) - first)
        for end in range(first + most, first, -1):
            if "".join(parts[first:end]) in self._kinds:
                return end - first
        return 0

    def _joined(self, parts: Sequence[str]) -> str:
        text = "".join(parts)
        kind = self._kinds.get(text)
        return text if kind is None else self.word(kind, text)

    def knows(self, name: str) -> bool:
        """Return whether this very name is replaced wherever it stands."""
        return name in self._kinds

    def word(self, kind: str, name: str) -> str:
        """Return the word for a name, such as host-1; the same name has the same word."""
        replacement = self._replacements.get((kind, name))
        if replacement is None:
            self._counts[kind] += 1
            replacement = f"{kind}-{self._counts[kind]}"
            self._replacements[kind, name] = replacement
        return replacement

    def _secret(self, match: re.Match[str]) -> str:
        word = match["word"] or ""
        return word + self.word("secret", match[0].removeprefix(word))

    def _store(self, match: re.Match[str]) -> str:
        return f"{match['scheme']}://{self.word('url', match[0])}"

    def _export(self, match: re.Match[str]) -> str:
        host = self.word("host", match["host"])
        return f"{host}:/{self.word('path', match['path'])}"

    def _address(self, match: re.Match[str]) -> str:
        address = match[0]
        if _WELL_KNOWN.match(address):
            return address
        return self.word("addr", address)

    def _user(self, match: re.Match[str]) -> str:
        if match["user"]:
            user = self.word("user", match["user"])
            return f"{user}@"
        user = self.word("user", match["value"])
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
            folder = self.word("path", before)
            return f"/{folder}/site-packages/{after}"
        parent, file = posixpath.split(path.replace("\\", "/"))
        _, extension = posixpath.splitext(file)
        if extension not in _SOURCE:
            file = self.word("file", file)
        folder = self.word("path", parent)
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
