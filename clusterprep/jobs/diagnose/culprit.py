"""Names what is to blame for a cause: ranks, hosts, interfaces. None if the log does not tell.

What all ranks, or most hosts, have in common is no culprit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from clusterprep.facts.kernel_log import address_of
from clusterprep.jobs.diagnose.launchers import hosts_of_tasks, unfolded
from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprit,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
)

MOST = 8  # names; if more are blamed, none is named
_SPAWNED = re.compile(
    r"-- Process (?P<number>\d+) terminated with the following error", re.IGNORECASE
)
# Lines of a traceback that torch.multiprocessing prints at most below «-- Process 3 terminated …».
_TRACEBACK = 100
# Names that every host has for itself.
_NO_HOSTS = frozenset({"localhost", "localhost.localdomain", "127.0.0.1", "::1"})
# What has the same name on many hosts.
_OF_A_HOST = frozenset({"interface", "HCA", "device"})
_PLURAL = {
    "rank": "ranks",
    "host": "hosts",
    "interface": "interfaces",
    "device": "devices",
    "port": "ports",
    "GPU": "GPUs",
    "HCA": "HCAs",
    "link": "links",
    "peer": "peers",
    "name": "names",
    "file": "files",
    "address": "addresses",
}


# ---------------------------------------------------------------- one line


def named(sign: Sign, match: re.Match[str], line: LogLine) -> Culprits:
    """Return the culprit of one line as ((kind, name),), or () if the line does not name it.

    Hosts that a launcher folds are a culprit each.
    """
    for template in sign.culprit.split("|"):
        if not template:
            continue
        text = filled(template, match, line)
        if text is None:
            continue
        kind, brace, _ = template.partition("{")
        kind = kind.strip()
        if not brace:  # «rank 0»: the last word is the name
            kind = kind.rpartition(" ")[0]
        name = text[len(kind) :].strip()
        if kind == "host":
            return tuple((kind, host) for host in unfolded(name))
        return ((kind, name),)
    return ()


def filled(template: str, match: re.Match[str], line: LogLine) -> str | None:
    """Return a template with what the line says in it, or None if something is missing.

    {pci} and {place} are the address of a GPU as Xids have it, so that one GPU has one name.
    """
    values = {name: value for name, value in match.groupdict().items() if value}
    for name in values.keys() & {"pci", "place"}:
        values[name] = address_of(values[name])
    host = line.host or hosts_of_tasks(line.message) or None
    for name, value in (("rank", line.rank), ("host", host), ("gpu", line.gpu)):
        if value is not None:
            values.setdefault(name, str(value))
    try:
        return template.format_map(values)
    except KeyError:
        return None


# ---------------------------------------------------------------- all lines of a cause


def worded(cause: Cause, evidence: Sequence[Evidence], log: LogFile) -> str | None:
    """Return all culprits of one cause in words, or None.

    These are the culprits of its weightiest signs, or of the next weightiest if those name none.
    """
    weights = sorted({e.weight for e in evidence}, reverse=True)
    for weight in weights:
        culprits: dict[Culprit, None] = {}  # each once, in order
        for e in evidence:
            if e.weight == weight:
                culprits.update(dict.fromkeys(e.culprits))
        if culprits:
            return _in_words(tuple(culprits), evidence, log)
    if cause.blames_host:
        weightiest = weights[0]
        lines = [e.line for e in evidence if e.weight == weightiest]
        writers = _writers(lines) or _only_host(log)
        if writers:
            return _in_words(writers, evidence, log)
    if not cause.blames_process:
        return None
    return _spawned(log, [e.line for e in evidence if e.weight == weights[0]])


def _writers(lines: Sequence[LogLine]) -> Culprits:
    """Return the hosts that wrote the lines, or the ranks if no host is known."""
    hosts: dict[Culprit, None] = {}  # each once, in order
    ranks: dict[Culprit, None] = {}
    for line in lines:
        if line.host:
            hosts["host", line.host] = None
        if line.rank is not None:
            ranks["rank", str(line.rank)] = None
    return tuple(hosts or ranks)


def _only_host(log: LogFile) -> Culprits:
    """Return the host that wrote all lines, where it is one and some lines do not say it."""
    if len(log.hosts) != 1:
        return ()
    (host,) = log.hosts
    return (("host", host),)


def _in_words(culprits: Culprits, evidence: Sequence[Evidence], log: LogFile) -> str | None:
    culprits = tuple(one for one in culprits if one[0] != "host" or one[1] not in _NO_HOSTS)
    if not culprits:
        return None
    kind = _commonest_kind(culprits)
    names = _separated([name for other, name in culprits if other == kind])
    if not names or len(names) > MOST or _are_all(kind, names, log):
        return None
    if kind == "peer":
        return _peer(names, evidence)
    listed = _listed(kind, names)
    if kind not in _OF_A_HOST or (len(names) == 1 and len(log.hosts) < 2):
        return listed
    return listed + _host_of(listed, evidence)


def _host_of(listed: str, evidence: Sequence[Evidence]) -> str:
    """Return « of n1» if the host n1 alone names these devices, else an empty text."""
    hosts = {e.line.host for e in evidence if e.culprits}
    host = hosts.pop() if len(hosts) == 1 else None
    if not host or host in _NO_HOSTS or host in listed.split():
        return ""
    return f" of {host}"


def _commonest_kind(culprits: Culprits) -> str:
    """Return the kind that most culprits have. A local rank says least, so it comes last."""
    counts = Counter(kind for kind, _ in culprits)
    del counts["local rank"]
    if not counts:
        return "local rank"
    return max(counts, key=lambda kind: counts[kind])


def _separated(names: Sequence[str]) -> list[str]:
    """Return each name once. «2, 5» and «2 and 5» are two names. Numbers are sorted."""
    unique: dict[str, None] = {}
    for name in names:
        parts = [name]
        if re.fullmatch(r"[\d, ]+", name):
            parts = name.split(",")
        elif re.fullmatch(r"\d+ and \d+", name):
            parts = name.split(" and ")
        stripped = [part.strip() for part in parts]
        unique.update(dict.fromkeys(stripped))
    unique.pop("", None)
    if all(name.isdigit() for name in unique):
        return sorted(unique, key=int)
    return list(unique)


def _are_all(kind: str, names: Sequence[str], log: LogFile) -> bool:
    """Whether these are all ranks or most hosts of the log. Then none of them is at fault."""
    if len(names) < 2:
        return False
    if kind == "host":
        # Hosts that only a launcher names are no share of those that wrote lines.
        return not log.hosts.isdisjoint(names) and len(names) * 2 > len(log.hosts)
    if kind not in {"rank", "ranks"}:
        return False
    if kind == "ranks" and len(names) == 2:
        return False  # a pair that differs, and each of the two may be the one at fault
    numbers = {int(name) for name in names if name.isdigit()}
    return bool(log.ranks) and numbers >= log.ranks


def _peer(names: Sequence[str], evidence: Sequence[Evidence]) -> str | None:
    if len(names) > 1:
        return None
    (peer,) = names
    hosts = {e.line.host for e in evidence if e.culprits and e.line.host}
    host = hosts.pop() if len(hosts) == 1 else None
    if not host or host == peer:
        return f"peer {peer}"
    return f"peer {peer} as seen from {host}"


def _listed(kind: str, names: Sequence[str]) -> str:
    """Return «ranks 2 and 5» of rank, «ranks 2 and 5 on GPU 1» of «rank {} on GPU 1»."""
    noun = kind.split(" ", maxsplit=1)[0]
    rest = kind[len(noun) :].strip()
    if len(names) > 1:
        noun = _PLURAL.get(noun, noun)
    elif noun == "ranks":
        noun = "rank"
    separator = " and " if len(names) == 2 else ", "
    listed = separator.join(names)
    if "{}" in rest:
        placed = rest.replace("{}", listed)
        return f"{noun} {placed}"
    parts = [part for part in (noun, rest, listed) if part]
    return " ".join(parts)


def _spawned(log: LogFile, lines: Sequence[LogLine]) -> str | None:
    """Return the process that failed, where torch.multiprocessing shows its traceback.

    The parent names the first process that it saw end. That is the culprit only if the lines of the
    cause are in the traceback of that process, and in that of no other one.
    """
    numbers: set[str] = set()
    has_lines = False
    for head in log.lines_with("terminated with the following error"):
        match = _SPAWNED.search(head.message)
        if match is None:
            continue
        numbers.add(match["number"])
        has_lines = has_lines or any(_is_below(line, head) for line in lines)
    if len(numbers) != 1 or not has_lines:
        return None
    return f"process {numbers.pop()}"


def _is_below(line: LogLine, head: LogLine) -> bool:
    """Whether a line may belong to the traceback that `head` announces."""
    if line.file != head.file:
        return False
    return head.number <= line.number <= head.number + _TRACEBACK
