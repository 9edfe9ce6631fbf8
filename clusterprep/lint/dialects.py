"""What the readers of an environment file disagree about: docker, systemd and pam_env are not one dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.lint import Remark, Text, Versions
from clusterprep.lint.conf import COMMENT, DOLLAR

_NAMES = re.compile(r"(?:NCCL|TORCH|OFI|GLOO|CUDA|MASTER|PET|TP)_\w*")


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    if text.dialect != "env-file":
        return
    for entry in text.entries:
        if not _NAMES.fullmatch(entry.name):
            continue
        line = text.lines[entry.line - 1]
        if flaw := _flaw(line, entry.written):
            message, wanted = flaw, f"{entry.name}={entry.value}"
            yield Remark("env.no_effect", entry.line, entry.name, message, line.strip(), wanted, f"write {wanted}")


def _flaw(line: str, value: str) -> str:
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
