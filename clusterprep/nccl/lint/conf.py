"""nccl.conf, which looks like a shell file and is none (NCCL, src/misc/param.cc): what goes wrong without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.model import Severity
from clusterprep.nccl.lint import Remark, Text, Versions
from clusterprep.nccl.variables.variables import registry
from clusterprep.runtime.lazy_dataclass import dataclass

LONGEST = 1023  # bytes of a name or a value; more are cut off
LONGEST_LINE = 4095  # bytes
CURED = (2, 30)  # takes carriage returns off

_WORD = re.compile(r"(export|setenv|declare(?: -\w+)*|set)[ \t]+", re.IGNORECASE)
COMMENT = re.compile(r"[ \t]+#.*$")
DOLLAR = re.compile(r"\$[A-Za-z_{(]")
_LIKE_A_SETTING = re.compile(
    r"[ \t]*(?:export[ \t]+)?((?:OFI_)?NCCL_[A-Za-z0-9_]*)(?:[ \t:]|$)", re.IGNORECASE
)


@dataclass(frozen=True)
class Meant:
    """A line as its writer meant it, and what stands in its way."""

    name: str
    value: str
    written: str
    flaws: tuple[str, ...]  # keys of _FLAWS

    @property
    def lost(self) -> bool:
        """NCCL stores it under another name than was meant."""
        return bool({"leading", "word", "before"} & set(self.flaws))


def meant(line: str) -> Meant | None:
    """None for a comment, and for a line that NCCL skips because it has no `=`."""
    if "=" not in line or line.lstrip().startswith(("#", ";", "//")):
        return None
    name, _, written = line.partition("=")
    flaws = ["leading"] if name != name.lstrip() else []
    name = name.lstrip()
    if word := _WORD.match(name):
        flaws.append("word")
        name = name[word.end() :]
    if name != name.rstrip():
        flaws.append("before")
    value = written
    if value != value.lstrip():
        flaws.append("after")
        value = value.lstrip()
    if COMMENT.search(value):
        flaws.append("comment")
        value = COMMENT.sub("", value)
    if value != value.rstrip():
        flaws.append("trailing")
        value = value.rstrip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        flaws.append("quotes")
        value = value[1:-1]
    if DOLLAR.search(value):
        flaws.append("dollar")
    return Meant(name.rstrip(), value, written, tuple(flaws))


# What was seen, and what NCCL makes of it.
_FLAWS = {
    "leading": (
        "a blank before the name",
        "NCCL takes the blank for a part of the name, and nobody reads that name",
    ),
    "word": (
        "a word before the name",
        "this file is no shell: NCCL takes the word for a part of the name",
    ),
    "before": (
        "a blank before the =",
        "NCCL takes the blank for a part of the name, and nobody reads that name",
    ),
    "after": ("a blank after the =", "NCCL keeps the blank as a part of the value"),
    "comment": (
        "a comment behind the value",
        "only a # in the first column starts a comment: this one is value",
    ),
    "trailing": ("a blank behind the value", "NCCL keeps the blank as a part of the value"),
    "quotes": (
        "quotes around the value",
        "this file is no shell: the quotes are a part of the value",
    ),
    "dollar": ("a $ in the value", "this file is no shell: nothing is put in for the variable"),
}
# White space around a number, and what follows it, is skipped by strtoll.
_HARMLESS_FOR_NUMBERS = frozenset({"after", "comment", "trailing"})


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    if text.dialect != "nccl.conf":
        return
    yield from _encoding(text, versions)
    for number, line in enumerate(text.lines, 1):
        setting = meant(line)
        if setting is None:
            yield from _skipped(number, line)
            continue
        yield from _flaws(number, setting)
        yield from _length(number, line, setting)


def _encoding(text: Text, versions: Versions) -> Iterator[Remark]:
    if text.mark and text.lines:
        seen, wanted = (
            "a byte-order mark (UTF-8) at the head of the file",
            "a file that starts with its first name",
        )
        message = "NCCL takes the mark for a part of the first line, which is lost"
        yield _remark(1, "", message, seen, wanted, "sed -i '1s/^\\xEF\\xBB\\xBF//' FILE")
    if text.returns and (versions.nccl is None or versions.nccl < CURED):
        seen = "a line that ends in CR LF, as Windows writes them"
        message = "before 2.30 NCCL keeps the carriage return as a part of the value: an interface of that name is not found"
        yield _remark(
            text.returns, "", message, seen, "lines that end in LF", "sed -i 's/\\r$//' FILE"
        )


def _flaws(number: int, setting: Meant) -> Iterator[Remark]:
    """The worst flaw of a line: one cure cures all of them."""
    numeric = harmless(setting.name)
    flaws = [flaw for flaw in setting.flaws if not (numeric and flaw in _HARMLESS_FOR_NUMBERS)]
    if flaws:
        seen, message = _FLAWS[flaws[0]]
        if len(flaws) > 1:
            seen = ", ".join(_FLAWS[flaw][0] for flaw in flaws)
        line = f"{setting.name}={'value' if 'dollar' in flaws else setting.value}"
        yield _remark(number, setting.name, message, seen, line, f"write {line}")


def harmless(name: str) -> bool:
    """Whether white space and what follows a number do no harm: the reader of this name takes digits and stops."""
    entry = registry().get(name)
    return entry is not None and "strtoll" in (entry["on_invalid"] or "")


def _length(number: int, line: str, setting: Meant) -> Iterator[Remark]:
    long = max(len(setting.written.encode()), len(setting.name.encode()))
    if long > LONGEST or len(line.encode()) > LONGEST_LINE:
        seen = f"{long} bytes"
        yield _remark(
            number,
            setting.name,
            "NCCL cuts it off without a word",
            seen,
            f"at most {LONGEST} bytes",
        )


def _skipped(number: int, line: str) -> Iterator[Remark]:
    if found := _LIKE_A_SETTING.match(line):
        seen, wanted = "a line without =", f"{found[1]}=value"
        yield _remark(
            number, found[1], "NCCL skips a line without =", seen, wanted, f"write {wanted}"
        )


def _remark(line: int, name: str, message: str, seen: str, wanted: str, remedy: str = "") -> Remark:
    severity: Severity = "error"
    return Remark("env.nccl_conf", line, name, message, seen, wanted, remedy, severity)
