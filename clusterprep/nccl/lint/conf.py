"""nccl.conf, which looks like a shell file and is none (NCCL, src/misc/param.cc).

NCCL reports none of the faults that are found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from clusterprep.nccl.lint import Remark, Text, Versions
from clusterprep.nccl.variables.variables import registry
from clusterprep.remedies import NO_REMEDY, Remedy, sentence, shell_line

LONGEST = 1023  # bytes of a name or a value; more are cut off
LONGEST_LINE = 4095  # bytes
CURED = (2, 30)  # the first NCCL that takes carriage returns off

_SHELL_COMMAND = re.compile(r"(export|setenv|declare(?: -\w+)*|set)[ \t]+", re.IGNORECASE)
COMMENT = re.compile(r"[ \t]+#.*$")
DOLLAR = re.compile(r"\$[A-Za-z_{(]")
_LIKE_A_SETTING = re.compile(
    r"[ \t]*(?:export[ \t]+)?((?:OFI_)?NCCL_[A-Za-z0-9_]*)(?:[ \t:]|$)", re.IGNORECASE
)


class ConfSetting(Struct, frozen=True):
    """A line as its writer meant it, and its flaws."""

    name: str
    value: str
    written: str
    flaws: tuple[str, ...]  # keys of _FLAWS, in the order of the line

    @property
    def lost(self) -> bool:
        """Whether NCCL stores the value under another name than was meant."""
        return not _OF_NAMES.isdisjoint(self.flaws)


def parse_setting(line: str) -> ConfSetting | None:
    """Return the setting of a line; None for a comment, and for a line that has no `=`."""
    if "=" not in line or line.lstrip().startswith(("#", ";", "//")):
        return None
    raw_name, _, written = line.partition("=")
    name, name_flaws = _parse_name(raw_name)
    value, value_flaws = _parse_value(written)
    return ConfSetting(name, value, written, (*name_flaws, *value_flaws))


def _parse_name(text: str) -> tuple[str, list[str]]:
    """Return the name as it was meant, and the flaws before the `=`."""
    flaws = []
    name = text.lstrip()
    if name != text:
        flaws.append("leading")
    command = _SHELL_COMMAND.match(name)
    if command:
        flaws.append("word")
        name = name[command.end() :]
    if name != name.rstrip():
        flaws.append("before")
    return name.rstrip(), flaws


def _parse_value(text: str) -> tuple[str, list[str]]:
    """Return the value as it was meant, and the flaws behind the `=`."""
    flaws = []
    value = text.lstrip()
    if value != text:
        flaws.append("after")
    if COMMENT.search(value):
        flaws.append("comment")
        value = COMMENT.sub("", value)
    if value != value.rstrip():
        flaws.append("trailing")
        value = value.rstrip()
    if is_quoted(value):
        flaws.append("quotes")
        value = value[1:-1]
    if DOLLAR.search(value):
        flaws.append("dollar")
    return value, flaws


def is_quoted(value: str) -> bool:
    """Return whether a value stands between two equal quotes."""
    return len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"


# For each flaw what was seen, and what NCCL makes of it.
_FLAWS = {
    "leading": (
        "a blank before the name",
        "NCCL takes the blank for a part of the name, and no program reads that name",
    ),
    "word": (
        "a word before the name",
        "this file is no shell: NCCL takes the word for a part of the name",
    ),
    "before": (
        "a blank before the =",
        "NCCL takes the blank for a part of the name, and no program reads that name",
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
_OF_NAMES = frozenset({"leading", "word", "before"})
# strtoll skips white space before a number, and what follows the number.
_HARMLESS_FOR_NUMBERS = frozenset({"after", "comment", "trailing"})


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield what NCCL reads otherwise than it was meant in a file nccl.conf."""
    if text.dialect != "nccl.conf":
        return
    yield from _encoding(text, versions)
    for number, line in enumerate(text.lines, 1):
        setting = parse_setting(line)
        if setting is None:
            yield from _skipped(number, line)
        else:
            yield from _flaws(number, setting)
            yield from _length(number, line, setting)


def _encoding(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield remarks about a byte-order mark, and about carriage returns."""
    if text.mark and text.lines:
        message = "NCCL takes the mark for a part of the first line, which is lost"
        seen = "a byte-order mark (UTF-8) at the head of the file"
        wanted = "a file that starts with its first name"
        yield _remark(
            1,
            "",
            message,
            seen,
            wanted,
            shell_line("sed -i --follow-symlinks '1s/^\\xEF\\xBB\\xBF//' FILE"),
        )
    if text.returns and (versions.nccl is None or versions.nccl < CURED):
        message = (
            "before 2.30 NCCL keeps the carriage return as a part of the value: "
            "an interface of that name is not found"
        )
        seen = "a line that ends in CR LF, as Windows writes them"
        wanted = "lines that end in LF"
        yield _remark(
            text.returns,
            "",
            message,
            seen,
            wanted,
            shell_line("sed -i --follow-symlinks 's/\\r$//' FILE"),
        )


def _flaws(number: int, setting: ConfSetting) -> Iterator[Remark]:
    """Yield one remark about the first flaw of a line: one remedy cures all of them."""
    flaws = list(setting.flaws)
    if ignores_text_behind_numbers(setting.name):
        flaws = [flaw for flaw in flaws if flaw not in _HARMLESS_FOR_NUMBERS]
    if not flaws:
        return
    seen = ", ".join(_FLAWS[flaw][0] for flaw in flaws)
    message = _FLAWS[flaws[0]][1]
    value = setting.value
    if "dollar" in flaws:
        value = "value"
    wanted = f"{setting.name}={value}"
    yield _remark(
        number,
        setting.name,
        message,
        seen,
        wanted,
        sentence("write {line}", line=wanted),
    )


def ignores_text_behind_numbers(name: str) -> bool:
    """Return whether white space and a comment do no harm, as strtoll stops behind the digits."""
    entry = registry().get(name)
    return entry is not None and "strtoll" in (entry["on_invalid"] or "")


def _length(number: int, line: str, setting: ConfSetting) -> Iterator[Remark]:
    """Yield a remark about a name or value that is longer than NCCL reads."""
    size = max(len(setting.written.encode()), len(setting.name.encode()))
    if size > LONGEST or len(line.encode()) > LONGEST_LINE:
        message = "NCCL cuts it off without a word"
        wanted = f"at most {LONGEST} bytes"
        yield _remark(
            number,
            setting.name,
            message,
            f"{size} bytes",
            wanted,
        )


def _skipped(number: int, line: str) -> Iterator[Remark]:
    """Yield a remark about a line that looks like a setting and has no =."""
    match = _LIKE_A_SETTING.match(line)
    if match:
        name = match[1]
        wanted = f"{name}=value"
        message = "NCCL skips a line without ="
        yield _remark(
            number,
            name,
            message,
            "a line without =",
            wanted,
            sentence("write {line}", line=wanted),
        )


def _remark(
    line: int, name: str, message: str, seen: str, wanted: str, remedy: Remedy = NO_REMEDY
) -> Remark:
    return Remark(
        "env.nccl_conf",
        line,
        name,
        message,
        seen,
        wanted,
        remedy,
        severity="error",
    )
