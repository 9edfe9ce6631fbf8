"""Puts those who are to blame into words, or says nobody where the log does not show it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, LogLine, Sign

MOST = 8  # names; where more are blamed, nobody is
_SPAWNED = re.compile(
    r"-- Process (?P<number>\d+) terminated with the following error", re.IGNORECASE
)
_PLURAL = {
    **{
        word: f"{word}s"
        for word in [
            "rank",
            "host",
            "interface",
            "device",
            "port",
            "GPU",
            "HCA",
            "peer",
            "name",
            "file",
        ]
    },
    "address": "addresses",
}


def named(sign: Sign, found: re.Match[str], line: LogLine) -> tuple[tuple[str, str], ...]:
    """The culprit of one line: (kind, name), or nothing where the line does not say it."""
    for template in filter(None, sign.culprit.split("|")):
        text = filled(template, found, line)
        if text is not None:
            kind = template.split("{", maxsplit=1)[0].strip()
            kind = kind if "{" in template else kind.rpartition(" ")[0]
            return ((kind, text[len(kind) :].strip()),)
    return ()


def filled(template: str, found: re.Match[str], line: LogLine) -> str | None:
    """A template with what the line says, None where something is missing."""
    known = {name: value for name, value in found.groupdict().items() if value}
    for name in ("rank", "host", "gpu"):
        value = getattr(line, name)
        if value is not None:
            known.setdefault(name, str(value))
    try:
        return template.format_map(known)
    except KeyError:
        return None


def worded(cause: Cause, evidence: Sequence[Evidence], log: LogFile) -> str | None:
    """All culprits of one cause in words: those of its weightiest signs, or of the next where these name nobody."""
    weights = sorted({e.weight for e in evidence}, reverse=True)
    for weight in weights:
        pairs = list(
            dict.fromkeys(pair for e in evidence if e.weight == weight for pair in e.culprits)
        )
        if pairs:
            return _worded(pairs, evidence, log)
    lines = [e.line for e in evidence if e.weight == weights[0]]
    own = _of_lines(lines) if cause.of_host else ()
    return _worded(own, evidence, log) if own else _spawned(log)


def _of_lines(lines: Sequence[LogLine]) -> tuple[tuple[str, str], ...]:
    """The hosts whose lines these are, or the ranks where no host is told."""
    hosts = dict.fromkeys(("host", line.host) for line in lines if line.host)
    return tuple(
        hosts or dict.fromkeys(("rank", str(line.rank)) for line in lines if line.rank is not None)
    )


def _worded(
    pairs: Sequence[tuple[str, str]], evidence: Sequence[Evidence], log: LogFile
) -> str | None:
    kinds = [kind for kind, _ in pairs]
    kind = max(dict.fromkeys(kinds), key=lambda kind: (kind != "local rank", kinds.count(kind)))
    names = _split([name for k, name in pairs if k == kind])
    if not names or len(names) > MOST or _everybody(kind, names, log):
        return None
    if kind == "peer":
        return _peer(names, evidence)
    return _said(kind, names)


def _split(names: Sequence[str]) -> list[str]:
    """«2, 5» names two."""
    parts = [
        part
        for name in names
        for part in (name.split(",") if re.fullmatch(r"[\d, ]+", name) else [name])
    ]
    parts = [
        word
        for part in parts
        for word in (part.split(" and ") if re.fullmatch(r"\d+ and \d+", part) else [part])
    ]
    unique = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    return sorted(unique, key=int) if all(part.isdigit() for part in unique) else unique


def _everybody(kind: str, names: Sequence[str], log: LogFile) -> bool:
    """What all hosts or all ranks have is nobody's fault."""
    if len(names) < 2:
        return False
    if kind == "ranks":
        return len(names) > 2 and {int(name) for name in names if name.isdigit()} >= log.ranks
    if kind == "host":
        return len(names) * 2 > len(log.hosts)
    return kind == "rank" and {int(name) for name in names if name.isdigit()} >= log.ranks


def _peer(names: Sequence[str], evidence: Sequence[Evidence]) -> str | None:
    if len(names) > 1:
        return None
    hosts = {e.line.host for e in evidence if e.culprits}
    (host,) = hosts if len(hosts) == 1 else (None,)
    return f"peer {names[0]}" + (f" as seen from {host}" if host and host != names[0] else "")


def _said(kind: str, names: Sequence[str]) -> str:
    word = kind.split(" ", maxsplit=1)[0]
    many = len(names) > 1
    plural = (
        _PLURAL.get(word, word) if many else word.removesuffix("s") if word == "ranks" else word
    )
    listed = " and ".join(names) if len(names) == 2 else ", ".join(names)
    rest = kind[len(word) :].strip()
    if "{}" in rest:
        return f"{plural} {rest.replace('{}', listed)}"
    return " ".join(part for part in (plural, rest, listed) if part)


def _spawned(log: LogFile) -> str | None:
    """torch.multiprocessing says which of its processes failed."""
    numbers = {found["number"] for line in log.lines if (found := _SPAWNED.search(line.said))}
    return f"process {numbers.pop()}" if len(numbers) == 1 else None
