"""Lines that docker, systemd, pam_env or a shell read otherwise than they were meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.conf import COMMENT, DOLLAR, ignores_text_behind_numbers, is_quoted
from clusterprep.remedies import Remedy, sentence, shell_line

_JUDGED = r"(?:NCCL|TORCH_NCCL|TORCH_DISTRIBUTED|OFI_NCCL|GLOO|TP_SOCKET)_\w+"
_NAMES = re.compile(r"(?:NCCL|TORCH|OFI|GLOO|CUDA|MASTER|PET|TP)_\w*")
_INSIDE = re.compile(rf"(?<=[\s:$]){_JUDGED}$")  # ENV of a Dockerfile, $env: of PowerShell
_WITHOUT_EQUALS = re.compile(rf"\s*(?:export\s+)?({_JUDGED})(?:\s*:\s*|\s+)\S")
# In a shell: blanks before an =, or behind that of an export, which leaves the name without its
# value.
_APART = re.compile(rf"\s*(?:export\s+)?({_JUDGED})\s+=|\s*export\s+({_JUDGED})=\s+[^\s#;&|]")


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield what the readers of environment files and of shell scripts make of the lines."""
    if text.dialect in ("env-file", "environment"):
        yield from _byte_order_mark(text)
        yield from _settings(text)
        yield from _without_equals(text)
    elif text.dialect == "shell":
        yield from _byte_order_mark(text)
        yield from _returns(text)
        yield from _blanks(text)
        yield from _split_lists(text)


def _settings(text: Text) -> Iterator[Remark]:
    """Yield remarks about lines with an =."""
    for entry in text.entries:
        line = text.lines[entry.line - 1]
        if _NAMES.fullmatch(entry.name):
            yield from _flawed_value(text, entry, line)
            continue
        inside = _INSIDE.search(entry.name)
        if inside:
            message = (
                "what stands before the = is no name: docker refuses the line, and others skip it"
            )
            yield _not_as_meant(
                entry.line,
                entry.name,
                message,
                line.strip(),
                f"{inside[0]}=value",
            )


def _flawed_value(text: Text, entry: LintEntry, line: str) -> Iterator[Remark]:
    """Yield a remark about a value that a reader takes otherwise than it was meant."""
    if text.dialect == "env-file":
        flaw = _env_file_flaw(line, entry.written)
    else:
        flaw = _comment_flaw(entry)
    if not flaw:
        return
    value = entry.value
    if DOLLAR.search(value):
        value = "value"
    wanted = f"{entry.name}={value}"
    yield _remark(
        entry.line,
        entry.name,
        flaw,
        line.strip(),
        wanted,
        sentence("write {line}", line=wanted),
    )


def _env_file_flaw(line: str, value: str) -> str:
    """Return what docker and systemd make of a line, which differs; empty if it is fine."""
    name = line.partition("=")[0]
    if line.lstrip().startswith("export "):
        return (
            "docker refuses a name with a blank, and systemd skips the line: "
            "no export in an environment file"
        )
    if name != name.rstrip():
        return "a blank before the =: docker refuses the line, and systemd skips it"
    if is_quoted(value):
        return "docker's --env-file keeps the quotes as a part of the value; systemd takes them off"
    if COMMENT.search(value):
        return "no comment behind a value: it is a part of it"
    if DOLLAR.search(value):
        return "nothing is put in for a $ here: the text itself is the value"
    return ""


def _comment_flaw(entry: LintEntry) -> str:
    """Return what pam_env and systemd's environment.d make of a comment; empty if it is fine.

    For pam_env a # ends the value and leaves the blank before it. For systemd all is value.
    """
    if COMMENT.search(entry.written) and not ignores_text_behind_numbers(entry.name):
        return (
            "no comment behind a value: pam_env leaves a blank of it in the value, "
            "systemd all of it"
        )
    return ""


def _without_equals(text: Text) -> Iterator[Remark]:
    """Yield lines that name a variable and have no =.

    A name alone is fine: docker then passes the value that it has itself.
    """
    for number, line in enumerate(text.lines, 1):
        if "=" in line:
            continue
        match = _WITHOUT_EQUALS.match(line)
        if match:
            message = "a line without = sets nothing"
            yield _not_as_meant(
                number,
                match[1],
                message,
                line.strip(),
                f"{match[1]}=value",
            )


def _byte_order_mark(text: Text) -> Iterator[Remark]:
    """Yield a remark about a byte-order mark.

    Docker takes it off; a shell, systemd and pam_env take it for a part of the first word.
    """
    if not text.mark or not text.lines:
        return
    message = "the mark is taken for a part of the first word, and that line is lost"
    seen = "a byte-order mark (UTF-8) at the head of the file"
    wanted = "a file that starts with its first word"
    remedy = shell_line("sed -i --follow-symlinks '1s/^\\xEF\\xBB\\xBF//' FILE")
    yield _remark(
        1,
        "",
        message,
        seen,
        wanted,
        remedy,
    )


def _returns(text: Text) -> Iterator[Remark]:
    """Yield a remark about carriage returns, which readers other than a shell take off."""
    if not text.returns:
        return
    message = (
        "a shell keeps the carriage return as a part of the last word: "
        "no interface or level is called that"
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


def _blanks(text: Text) -> Iterator[Remark]:
    """Yield a remark for each line of a shell with a blank beside its =."""
    message = (
        "a blank beside the =: the shell takes the parts for words of their own, and nothing is set"
    )
    for number, line in enumerate(text.lines, 1):
        match = _APART.match(line)
        if match:
            name = match[1] or match[2]
            yield _not_as_meant(
                number,
                name,
                message,
                line.strip(),
                f"{name}=value",
            )


def _split_lists(text: Text) -> Iterator[Remark]:
    """Yield a remark for each list that a blank behind a comma cuts off."""
    message = "the list ends in a comma: a blank behind it ends the value, and the rest is lost"
    for entry in text.entries:
        if not entry.known or not entry.value.endswith(","):
            continue
        if _NAMES.fullmatch(entry.name):
            seen = text.lines[entry.line - 1].strip()
            wanted = "the list without blanks"
            yield _remark(
                entry.line,
                entry.name,
                message,
                seen,
                wanted,
                sentence("take the blanks out"),
            )


def _not_as_meant(line: int, name: str, message: str, seen: str, wanted: str) -> Remark:
    return _remark(
        line,
        name,
        message,
        seen,
        wanted,
        sentence("write {line}", line=wanted),
    )


def _remark(
    line: int,
    name: str,
    message: str,
    seen: str,
    wanted: str,
    remedy: Remedy,
) -> Remark:
    return Remark(
        "env.no_effect",
        line,
        name,
        message,
        seen,
        wanted,
        remedy,
    )
