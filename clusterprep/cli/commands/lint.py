"""The report of `clusterprep lint`: one finding for each rule that a line breaks. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from clusterprep.errors import InputError
from clusterprep.model import Finding, Report
from clusterprep.model.nodeset import nearest
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.lint import DIALECTS, Remark, Text, Versions
from clusterprep.nccl.lint.read import dialect_of, read
from clusterprep.nccl.lint.rules import judge
from clusterprep.nccl.lint.together import hints
from clusterprep.survey.judge import exit_code

LARGEST = 1 << 20  # bytes; an environment is a page, and what is larger is something else
MOST = 500  # findings that anybody reads
CHECKS = ("env.nccl_conf", "env.nccl_unknown", "env.deprecated", "env.no_effect", "env.nccl_debug")

# A name with what sets it in some language or other: =, :, a comma of a call, `name:` of YAML, ENV of a Dockerfile.
_NAME = r"(?:NCCL|TORCH_NCCL|OFI_NCCL|GLOO)_[A-Z0-9_]+"
_NAMED = re.compile(rf"(?<![\w${{])({_NAME})[\"']?\s*[=:,]|(?:name:|ENV)\s+[\"']?({_NAME})")
_MADE = ("shell", "unit", "environment")  # dialects in which a $ or % stands for something
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)*)(?:[-+.].*)?")


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
    """Judge the content of one file. InputError for what is no text, and for versions that are none."""
    versions = Versions(_version(nccl, "--nccl"), _version(torch, "--torch"))
    words = _decoded(name, content)
    text = read(words, _dialect(dialect) or dialect_of(name, words))
    remarks = judge(text, versions)
    findings = _findings(name, text, remarks[:MOST], _unread(text))
    code = exit_code(findings, strict)
    return Report(
        command="lint",
        run="",
        cluster="",
        started=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        seconds=0.0,
        verdict={0: "pass", 1: "fail"}.get(code, "unknown"),
        code=code,
        findings=findings,
        notices=(
            _said(name, text),
            *_unknown(versions),
            *hints(text, versions),
            *_left_out(remarks),
        ),
        strict=strict,
    )


def _left_out(remarks: tuple[Remark, ...]) -> tuple[str, ...]:
    return (f"{len(remarks) - MOST} more findings are left out",) if len(remarks) > MOST else ()


def _findings(
    name: str, text: Text, remarks: tuple[Remark, ...], unread: str
) -> tuple[Finding, ...]:
    """Failures, what nobody could judge, and a pass for each check that has nothing to say."""
    failed = [
        Finding(
            r.check,
            "fail",
            r.severity,
            (),
            f"{name}:{r.line}: {r.message}",
            r.seen,
            r.wanted,
            r.remedy,
        )
        for r in remarks
    ]
    said = {remark.check for remark in remarks}
    if unread:
        message, why = f"{name}: {unread}", "the text does not say what programs will find"
        failed.append(Finding("env.no_effect", "unknown", "warning", (), message, reason=why))
        said.add("env.no_effect")
    clean = [check for check in CHECKS if check not in said]
    if text.dialect != "nccl.conf" and "env.nccl_conf" in clean:
        clean.remove("env.nccl_conf")
    passed = [Finding(check, "pass", "warning", (), f"{name}: nothing to say") for check in clean]
    return (*failed, *passed)


def _decoded(name: str, content: bytes) -> str:
    if len(content) > LARGEST:
        raise InputError.of(f"larger than {LARGEST >> 20} MiB: no environment file", file=name)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "iconv -f UTF-16 -t UTF-8 FILE"
        raise InputError.of("UTF-16, which no reader of environments takes", file=name, hint=hint)
    if b"\0" in content:
        raise InputError.of("holds a zero byte: no text", file=name)
    return content.decode("utf-8", "replace")


def _dialect(word: str | None) -> str | None:
    if word is not None and word not in DIALECTS:
        hint = nearest(word, DIALECTS) or f"one of {', '.join(DIALECTS)}"
        raise InputError.of(f"'{word}' is no dialect", key="--dialect", hint=hint)
    return word


def _version(text: str | None, option: str) -> tuple[int, ...] | None:
    """(2, 21, 5) of 2.21.5, v2.21.5-1 or 2.6.0+cu124."""
    if text is None:
        return None
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError.of(f"'{text}' is no version", key=option, hint="such as 2.21.5")
    return leading_numbers(match[1])


def _said(name: str, text: Text) -> str:
    kind = {
        "nccl.conf": "nccl.conf, by NCCL's own rules",
        "shell": "a shell script",
        "env-file": "KEY=value lines, as docker --env-file and systemd's EnvironmentFile take them",
        "environment": "/etc/environment or environment.d, as pam_env and systemd take them",
        "unit": "a systemd unit",
    }[text.dialect]
    number = len(text.entries)
    return f"{name}: {number} setting{'' if number == 1 else 's'}, read as {kind}"


def _unread(text: Text) -> str:
    """Lines that were not judged, and why: what nobody looked at must not look as if it passed."""
    taken = {(entry.line, entry.name) for entry in text.entries}
    lines, start = [], 1
    for number, line in enumerate(text.lines, 1):
        names = [] if line.lstrip().startswith(("#", ";", "//")) else _NAMED.findall(line)
        if any((start, one or other) not in taken for one, other in names):
            lines.append(number)
        start = start if line.endswith("\\") else number + 1
    made = [
        e.line
        for e in text.entries
        if not e.known and text.dialect in _MADE and _NAMED.match(f"{e.name}=")
    ]
    parts = (
        [f"{_lines(lines)} cannot be judged, for this dialect takes no setting from there"]
        if lines
        else []
    )
    parts += (
        [f"{_lines(made)} cannot be judged, for the value is made when it is read"] if made else []
    )
    return "; ".join(parts)


def _lines(numbers: list[int]) -> str:
    """«line 3», «lines 1, 4», and of many the first ten."""
    shown = list(dict.fromkeys(numbers))
    more = f" and {len(shown) - 10} more" if len(shown) > 10 else ""
    return f"line{'s' if len(shown) > 1 else ''} {', '.join(map(str, shown[:10]))}{more}"


def _unknown(versions: Versions) -> tuple[str, ...]:
    missing = [
        option
        for option, known in (("--nccl", versions.nccl), ("--torch", versions.torch))
        if known is None
    ]
    if not missing:
        return ()
    return (
        f"which names the installed version reads is not judged without {' and '.join(missing)}",
    )
