"""The report of `clusterprep lint`: one finding for each rule that a line breaks. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

from clusterprep.cli.commands.report import new_report
from clusterprep.cli.exit_codes import findings_code, verdict_of
from clusterprep.errors import InputError
from clusterprep.model import Finding, Report
from clusterprep.model.nodeset import nearest
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.lint import DIALECTS, LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.read import dialect_of, read
from clusterprep.nccl.lint.rules import judge
from clusterprep.nccl.lint.together import hints

LARGEST = 1 << 20  # bytes; an environment is a page, and what is larger is something else
MOST = 500  # findings shown; a reader takes in no more
MOST_LINES = 10  # line numbers listed in a message
CHECKS = ("env.nccl_conf", "env.nccl_unknown", "env.deprecated", "env.no_effect", "env.nccl_debug")

# A name with what sets it in some language: =, :, a comma of a call, `name:` of YAML, ENV of a
# Dockerfile.
_NAME = r"(?:NCCL|TORCH_NCCL|OFI_NCCL|GLOO)_[A-Z0-9_]+"
_ASSIGNMENT = re.compile(rf"(?<![\w${{])({_NAME})[\"']?\s*[=:,]|(?:name:|ENV)\s+[\"']?({_NAME})")
_COMMENT_MARKS = ("#", ";", "//")
# Dialects in which $ or % in a value is replaced when the file is read.
_SUBSTITUTING = ("shell", "unit", "environment")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)*)(?:[-+.].*)?")
_READ_AS = {
    "nccl.conf": "nccl.conf, by NCCL's own rules",
    "shell": "a shell script",
    "env-file": "KEY=value lines, as docker --env-file and systemd's EnvironmentFile take them",
    "environment": "/etc/environment or environment.d, as pam_env and systemd take them",
    "unit": "a systemd unit",
}


def lint(
    name: str,
    content: bytes,
    now: datetime,
    *,
    dialect: str | None,
    nccl: str | None,
    torch: str | None,
    strict: bool,
) -> Report:
    """Return the report about the content of one file.

    `nccl` and `torch` are the versions that will read it, such as 2.21.5. Raises InputError for
    wrong versions, for an unknown dialect and for what is no text.
    """
    nccl_version = _version(nccl, "--nccl")
    torch_version = _version(torch, "--torch")
    versions = Versions(nccl_version, torch_version)
    decoded = _decoded(name, content)
    _refuse_unknown_dialect(dialect)
    text = read(decoded, dialect or dialect_of(name, decoded))
    remarks = judge(text, versions)
    findings = _findings(name, text, remarks[:MOST], _not_judged(text))
    notices = _notices(name, text, versions, remarks)
    return new_report(
        "lint",
        findings_code(findings, strict),
        started=now,
        findings=findings,
        notices=notices,
        strict=strict,
    )


def limited_to(report: Report, checks: Collection[str]) -> Report:
    """Return a report of `lint` with the findings of these checks alone, and their exit code."""
    findings = tuple(finding for finding in report.findings or () if finding.check in checks)
    code = findings_code(findings, report.strict)
    return replace(report, findings=findings, code=code, verdict=verdict_of(code))


# ---------------------------------------------------------------- input


def _decoded(name: str, content: bytes) -> str:
    """Return the content as text. Raises InputError for what cannot be an environment file."""
    if len(content) > LARGEST:
        raise InputError.of(f"larger than {LARGEST >> 20} MiB: no environment file", file=name)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "iconv -f UTF-16 -t UTF-8 FILE"
        raise InputError.of("UTF-16, which no reader of environments takes", file=name, hint=hint)
    if b"\0" in content:
        raise InputError.of("holds a zero byte: no text", file=name)
    return content.decode("utf-8", "replace")


def _refuse_unknown_dialect(dialect: str | None) -> None:
    if dialect is not None and dialect not in DIALECTS:
        dialects = ", ".join(DIALECTS)
        hint = nearest(dialect, DIALECTS) or f"one of {dialects}"
        raise InputError.of(f"'{dialect}' is no dialect", key="--dialect", hint=hint)


def _version(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return (2, 21, 5) for 2.21.5 or v2.21.5-1, (2, 6, 0) for 2.6.0+cu124. Raises InputError."""
    if text is None:
        return None
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError.of(f"'{text}' is no version", key=option, hint="such as 2.21.5")
    return leading_numbers(match[1])


# ---------------------------------------------------------------- findings


def _findings(
    name: str, text: Text, remarks: Iterable[Remark], not_judged: str
) -> tuple[Finding, ...]:
    """Return the failures, what could not be judged, and a pass for each other check."""
    findings = [_failure(name, remark) for remark in remarks]
    if not_judged:
        message, reason = f"{name}: {not_judged}", "the text does not say what programs will find"
        findings.append(
            Finding(
                "env.no_effect",
                "unknown",
                "warning",
                (),
                message,
                reason=reason,
            )
        )
    troubled = {finding.check for finding in findings}
    for check in CHECKS:
        if check in troubled or (check == "env.nccl_conf" and text.dialect != "nccl.conf"):
            continue
        passed = Finding(
            check,
            "pass",
            "warning",
            (),
            f"{name}: nothing to say",
        )
        findings.append(passed)
    return tuple(findings)


def _failure(name: str, remark: Remark) -> Finding:
    place = f"{name}:{remark.line}"
    message = f"{place}: {remark.message}"
    return Finding(
        check=remark.check,
        verdict="fail",
        severity=remark.severity,
        nodes=(),
        message=message,
        seen=remark.seen,
        wanted=remark.wanted,
        remedy=remark.remedy,
    )


def _not_judged(text: Text) -> str:
    """Return which lines were not judged, and why: they must not look as if they had passed."""
    parts: list[str] = []
    unread = _unread_lines(text)
    if unread:
        parts.append(
            f"{_line_list(unread)} cannot be judged, for this dialect takes no setting from there"
        )
    computed = [entry.line for entry in text.entries if _is_computed(text, entry)]
    if computed:
        parts.append(
            f"{_line_list(computed)} cannot be judged, for the value is made when it is read"
        )
    return "; ".join(parts)


def _unread_lines(text: Text) -> list[int]:
    """Return the lines that seem to set a variable although the dialect reads no setting there."""
    read_settings = {(entry.line, entry.name) for entry in text.entries}
    unread: list[int] = []
    start = 1  # first of the lines that backslashes join; entries have its number
    for number, line in enumerate(text.lines, 1):
        names = _assigned_names(line)
        if any((start, name) not in read_settings for name in names):
            unread.append(number)
        if not line.endswith("\\"):
            start = number + 1
    return unread


def _assigned_names(line: str) -> list[str]:
    """Return the variables that a line seems to set in some language; none for a comment."""
    if line.lstrip().startswith(_COMMENT_MARKS):
        return []
    return [first or second for first, second in _ASSIGNMENT.findall(line)]


def _is_computed(text: Text, entry: LintEntry) -> bool:
    """Return True for a variable of NCCL whose value is put together when the file is read."""
    if entry.known or text.dialect not in _SUBSTITUTING:
        return False
    return _ASSIGNMENT.match(f"{entry.name}=") is not None


def _line_list(numbers: Iterable[int]) -> str:
    """Return «line 3» or «lines 1, 4», and of many lines the first ones."""
    distinct = list(dict.fromkeys(numbers))
    first = distinct[:MOST_LINES]
    shown = ", ".join(map(str, first))
    more = len(distinct) - MOST_LINES
    suffix = f" and {more} more" if more > 0 else ""
    noun = "lines" if len(distinct) > 1 else "line"
    return f"{noun} {shown}{suffix}"


# ---------------------------------------------------------------- notices


def _notices(
    name: str, text: Text, versions: Versions, remarks: Sequence[Remark]
) -> tuple[str, ...]:
    count = len(text.entries)
    settings = "1 setting" if count == 1 else f"{count} settings"
    notices = [f"{name}: {settings}, read as {_READ_AS[text.dialect]}"]
    missing: list[str] = []
    if versions.nccl is None:
        missing.append("--nccl")
    if versions.torch is None:
        missing.append("--torch")
    if missing:
        without = " and ".join(missing)
        notices.append(f"which names the installed version reads is not judged without {without}")
    notices.extend(hints(text, versions))
    if len(remarks) > MOST:
        notices.append(f"{len(remarks) - MOST} more findings are left out")
    return tuple(notices)
