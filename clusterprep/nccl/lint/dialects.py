"""What a dialect makes of a line otherwise than it was meant: environment files, and scripts of a shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.model import Severity
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.conf import COMMENT, DOLLAR, harmless

_OURS = r"(?:NCCL|TORCH_NCCL|TORCH_DISTRIBUTED|OFI_NCCL|GLOO|TP_SOCKET)_\w+"
_NAMES = re.compile(r"(?:NCCL|TORCH|OFI|GLOO|CUDA|MASTER|PET|TP)_\w*")
_INSIDE = re.compile(rf"(?<=[\s:$]){_OURS}$")  # ENV of a Dockerfile, $env: of PowerShell
_WITHOUT = re.compile(rf"\s*(?:export\s+)?({_OURS})(?:\s*:\s*|\s+)\S")
# In a shell: blanks before an =, or behind that of an export, which leaves the name without its value.
_APART = re.compile(rf"\s*(?:export\s+)?({_OURS})\s+=|\s*export\s+({_OURS})=\s+[^\s#;&|]")


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    if text.dialect in ("env-file", "environment"):
        yield from _marked(text)
        yield from _settings(text)
        yield from _skipped(text)
    elif text.dialect == "shell":
        yield from _marked(text)
        yield from _returns(text)
        yield from _blanks(text)


def _settings(text: Text) -> Iterator[Remark]:
    for entry in text.entries:
        if _NAMES.fullmatch(entry.name):
            line = text.lines[entry.line - 1]
            flaw = _flaw(line, entry.written) if text.dialect == "env-file" else _comment(entry)
            if flaw:
                wanted = f"{entry.name}={'value' if DOLLAR.search(entry.value) else entry.value}"
                yield _remark(entry.line, entry.name, flaw, line.strip(), wanted)
        elif found := _INSIDE.search(entry.name):
            message = (
                "what stands before the = is no name: docker refuses the line, and others skip it"
            )
            seen, wanted = text.lines[entry.line - 1].strip(), f"{found[0]}=value"
            yield _remark(entry.line, entry.name, message, seen, wanted, severity="error")


def _flaw(line: str, value: str) -> str:
    """Docker and systemd are not one dialect."""
    name = line.partition("=")[0]
    if line.lstrip().startswith("export "):
        return "docker refuses a name with a blank, and systemd skips the line: no export in an environment file"
    if name != name.rstrip():
        return "a blank before the =: docker refuses the line, and systemd skips it"
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return "docker's --env-file keeps the quotes as a part of the value; systemd takes them off"
    if COMMENT.search(value):
        return "no comment behind a value: it is a part of it"
    if DOLLAR.search(value):
        return "nothing is put in for a $ here: the text itself is the value"
    return ""


def _comment(entry: LintEntry) -> str:
    """For pam_env a # ends the value and leaves the blank before it; for systemd's environment.d all is value."""
    if COMMENT.search(entry.written) and not harmless(entry.name):
        return "no comment behind a value: pam_env leaves a blank of it in the value, systemd all of it"
    return ""


def _skipped(text: Text) -> Iterator[Remark]:
    """A name alone is docker's word for what it has itself."""
    for number, line in enumerate(text.lines, 1):
        if "=" not in line and (found := _WITHOUT.match(line)):
            message, wanted = "a line without = sets nothing", f"{found[1]}=value"
            yield _remark(number, found[1], message, line.strip(), wanted, severity="error")


def _marked(text: Text) -> Iterator[Remark]:
    """Docker takes a byte-order mark off; a shell, systemd and pam_env take it for a part of the first word."""
    if text.mark and text.lines:
        hurt = text.dialect == "shell" and any(entry.line == 1 for entry in text.entries)
        seen, wanted = (
            "a byte-order mark (UTF-8) at the head of the file",
            "a file that starts with its first word",
        )
        message = "the mark is taken for a part of the first word, and that line is lost"
        remedy = "sed -i '1s/^\\xEF\\xBB\\xBF//' FILE"
        yield _remark(1, "", message, seen, wanted, remedy, "error" if hurt else "warning")


def _returns(text: Text) -> Iterator[Remark]:
    """Other readers of lines take a carriage return off."""
    if text.returns:
        seen = "a line that ends in CR LF, as Windows writes them"
        message = "a shell keeps the carriage return as a part of the last word: no interface or level is called that"
        remedy = "sed -i 's/\\r$//' FILE"
        hurt = any(entry.line >= text.returns for entry in text.entries)
        yield _remark(
            text.returns,
            "",
            message,
            seen,
            "lines that end in LF",
            remedy,
            "error" if hurt else "warning",
        )


def _blanks(text: Text) -> Iterator[Remark]:
    for number, line in enumerate(text.lines, 1):
        if found := _APART.match(line):
            message = "a blank beside the =: the shell takes the parts for words of their own, and nothing is set"
            wanted = f"{found[1] or found[2]}=value"
            yield _remark(
                number, found[1] or found[2], message, line.strip(), wanted, severity="error"
            )
    for entry in text.entries:
        if entry.known and entry.value.endswith(",") and _NAMES.fullmatch(entry.name):
            message = (
                "the list ends in a comma: a blank behind it ends the value, and the rest is lost"
            )
            seen = text.lines[entry.line - 1].strip()
            yield _remark(
                entry.line,
                entry.name,
                message,
                seen,
                "the list without blanks",
                "take the blanks out",
            )


def _remark(
    line: int,
    name: str,
    message: str,
    seen: str,
    wanted: str,
    remedy: str = "",
    severity: Severity = "warning",
) -> Remark:
    return Remark(
        "env.no_effect", line, name, message, seen, wanted, remedy or f"write {wanted}", severity
    )
