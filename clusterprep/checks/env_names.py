"""Names and values of the effective environment, judged by the rules of `clusterprep lint`, and NCCL's own files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import ModuleType

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.env import BASHRC, by_place, cure, holes, known, place, planted, said
from clusterprep.facts import Fact, file, under
from clusterprep.facts.environment import CONF, Paths, Row, Setting, in_effect
from clusterprep.facts.nccl_address import Answers, Bound
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Node
from clusterprep.model.secrets import REDACTED, redacted
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.lint import (
    LintEntry,
    Remark,
    Text,
    Versions,
    conf,
    names,
    numbers,
    together,
    words,
)
from clusterprep.nccl.lint.read import read
from clusterprep.nccl.variables.variables import of_nccl

MOST = 50  # remarks of one check about one node; whoever has more has one cause for them


def parse_etc(text: str | None) -> str | None:
    """The text without other people's secrets, as it is shown and kept; None: there is no such file."""
    if text is not None and "\0" in text:
        raise ValueError("a zero byte in a file of text")
    return text and redacted(text, spared=of_nccl)


def versions_of(torch: object) -> Versions:
    """What will read the environment; where torch is not known, rules that need a version stay silent."""
    if not isinstance(torch, Torch):
        return Versions()
    nccl, version = (leading_numbers(text or "") or None for text in (torch.nccl, torch.version))
    return Versions(nccl, version)


# ---------------------------------------------------------------- names and values


def remarks(
    paths: Paths, versions: Versions, families: Iterable[ModuleType]
) -> dict[tuple[Setting, Remark], None]:
    """What the rules say of each setting, once, whatever the number of launch paths that have it."""
    found: dict[tuple[Setting, Remark], None] = {}
    for path in known(paths):
        settings = list(in_effect(paths, path).values())
        entries = tuple(
            LintEntry(setting.name, setting.value, line) for line, setting in enumerate(settings, 1)
        )
        text = Text("nccl.conf" if path == "nccl" else "shell", (), entries)
        for family in families:
            for remark in family.judge(text, versions):
                found[settings[remark.line - 1], replace(remark, line=0)] = None
    return found


def _few(outcomes: list[Outcome]) -> list[Outcome]:
    """The first ones, of which the last says how many there are besides."""
    if len(outcomes) <= MOST:
        return outcomes
    more = f"{outcomes[MOST - 1].message} (and {len(outcomes) - MOST} more)"
    return [*outcomes[: MOST - 1], replace(outcomes[MOST - 1], message=more)]


Found = Mapping[tuple[Setting, Remark], None]
Amend = Callable[[Found, Paths, Mapping[str, Bound]], Found]


def _judged(
    check: str,
    *families: ModuleType,
    good: str,
    graded: bool = False,
    amend: Amend = lambda found, paths, answers: found,
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """A judge of the remarks of one check; `graded`: they bring their own severity.

    `amend` changes what the rules found by what the node's own NCCL says.
    """

    def judge(context: CheckContext) -> Iterable[Outcome]:
        yield from holes(context)
        for node in context.nodes:
            paths = context.value(node, "env.paths")
            where = by_place(paths)
            all_of = remarks(paths, versions_of(context.value(node, "torch.build")), families)
            mine = {row: None for row in all_of if row[1].check == check}
            bad = [
                Outcome(
                    "fail",
                    (node.name,),
                    f"{place(setting)}: {remark.message}",
                    said(setting, where[setting]),
                    remark.wanted,
                    cure(setting),
                    severity=remark.severity if graded else None,
                )
                for setting, remark in amend(mine, paths, _answers(context, node))
            ]
            yield from _few(bad)
            if not bad:
                yield Outcome("pass", (node.name,), good)

    return judge


def _answers(context: CheckContext, node: Node) -> Mapping[str, Bound]:
    """What the node's own NCCL says, on the launch paths on which it could be asked."""
    answers: Answers | Absent = context.value(node, "nccl.address")
    known = {} if isinstance(answers, Absent) else answers
    return {path: answer for path, answer in known.items() if isinstance(answer, Bound)}


def _strange(found: Found, paths: Paths, answers: Mapping[str, Bound]) -> Found:
    """Without the names that this NCCL reads: it may be newer than our list."""
    known = {name for answer in answers.values() for name in answer.reads}
    return {row: None for row in found if row[0].name not in known}


def _not_taken(found: Found, paths: Paths, answers: Mapping[str, Bound]) -> Found:
    """And settings whose value NCCL has seen and not taken, as it says itself from 2.30 on."""
    more = dict(found)
    told = {setting.name for setting, _ in found}
    for path, answer in answers.items():
        settings = in_effect(paths, path.partition(" (")[0])
        for name, taken in answer.taken.items():
            setting = settings.get(name)
            if (
                setting is not None
                and name not in told
                and taken.by == "Default"
                and taken.value != setting.value
            ):
                message = f"NCCL {answer.version} itself says that it did not take this value and uses {taken.value}"
                remark = Remark(
                    "env.no_effect",
                    0,
                    name,
                    message,
                    f"{name}={setting.value}",
                    "a value that NCCL takes",
                )
                more[setting, remark] = None
    return more


# ---------------------------------------------------------------- NCCL's own files


def conf_files(context: CheckContext) -> Iterable[Outcome]:
    for node in context.nodes:
        path = under(node, CONF)
        texts = {path: context.value(node, "env.etc_conf")}
        rows: Mapping[str, tuple[Row, ...]] = context.value(node, "env.conf_lines")
        texts.update({other: _text(lines) for other, lines in rows.items() if other != CONF})
        versions = versions_of(context.value(node, "torch.build"))
        bad = [
            o
            for name, text in texts.items()
            if text
            for o in _wrong_lines(node, name, text, versions)
        ]
        yield from _few(bad)
        if not bad:
            there = ", ".join(name for name, text in texts.items() if text is not None)
            seen = there or "none"
            yield Outcome("pass", (node.name,), "NCCL reads its files as they are meant", seen)


def _text(rows: Iterable[Row]) -> str:
    """Lines at their places; those that set nothing stayed on the node."""
    lines: dict[int, str] = {number: text for _, number, text in rows}
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))


def _wrong_lines(node: Node, path: str, text: str, versions: Versions) -> Iterable[Outcome]:
    for remark in conf.judge(read(text, "nccl.conf"), versions):
        message = f"{path}:{remark.line}: {remark.message}"
        yield Outcome(
            "fail", (node.name,), message, remark.seen, remark.wanted, _mend(path, remark)
        )


def _mend(path: str, remark: Remark) -> str:
    """The line put right; what cannot be known is left to the user's editor."""
    if remark.remedy.endswith(" FILE"):
        return f"{remark.remedy.removesuffix('FILE')}{shlex.quote(path)}"
    certain = not (
        remark.wanted.endswith("=value") or "\\" in remark.wanted or REDACTED in remark.wanted
    )
    if not (remark.remedy and certain):
        return f"sed -n {remark.line}p {shlex.quote(path)}   # {remark.wanted}"
    return f"sed -i {shlex.quote(f'{remark.line}c{chr(92)}{remark.wanted}')} {shlex.quote(path)}"


ETC_CONF = Fact("env.etc_conf", file(CONF, etc=True), parse_etc)
UNKNOWN = Check(
    "env.nccl_unknown",
    facts=("env.paths",),
    uses=("nccl.address",),
    judge=_judged(
        "env.nccl_unknown",
        names,
        good="every name is one that NCCL, torch or a plug-in reads",
        amend=_strange,
    ),
    severity="warning",
    title="Misspelt names",
    why="A misspelt name is ignored without a word: the job runs with NCCL's own choice, and everybody believes that "
    "the setting is tried and does not help.",
    how="Names of every launch path that start with NCCL_, TORCH_NCCL_ or OFI_NCCL_, or nearly so, against the names "
    "that releases of NCCL up to 2.32, torch up to 2.15 and aws-ofi-nccl read, and those in the libnccl of the node.",
    remedy="clusterprep lint FILE   # of the file that is named",
    proof=Proof(
        "env.paths", planted("login shell", Setting("NCCL_SOKET_IFNAME", "eth0", BASHRC, 3))
    ),
)
DEPRECATED = Check(
    "env.deprecated",
    facts=("env.paths", "torch.build"),
    judge=_judged("env.deprecated", names, good="no name is outdated", graded=True),
    severity="warning",
    title="Outdated names",
    why="A name that was removed has no effect any more, and nobody says so: that is an error. One that was renamed is "
    "still read, with a warning in the log of every rank, until it is removed too.",
    how="Names of every launch path against the releases of NCCL and torch that are installed: NCCL_BLOCKING_WAIT has "
    "been TORCH_NCCL_BLOCKING_WAIT since torch 2.2, NCCL_TREE_THRESHOLD is gone since NCCL 2.5.",
    remedy="clusterprep explain NCCL_BLOCKING_WAIT   # says the new name",
    proof=Proof("env.paths", planted("login shell", Setting("NCCL_ENABLE_TIMING", "1", BASHRC, 3))),
)
NO_EFFECT = Check(
    "env.no_effect",
    facts=("env.paths", "torch.build"),
    uses=("nccl.address",),
    judge=_judged(
        "env.no_effect",
        names,
        numbers,
        words,
        together,
        good="every setting does what it says",
        amend=_not_taken,
    ),
    severity="warning",
    title="Settings without their effect",
    why="NCCL_VERSION is a label of container images and chooses no NCCL. NCCL reads `true` as 0 and 4M as 4, cuts "
    "more than 64 sockets per connection, and does not find TORCH_ names in its own file. Each looks set and is not.",
    how="Names and values of every launch path, read as NCCL, torch and plug-ins read them: numbers by strtoll, words "
    "by their lists, ranges, names that came with a later release, and pairs that undo each other. From 2.30 the "
    "node's own NCCL says of some variables whether it took the value.",
    remedy="clusterprep lint FILE   # of the file that is named",
    proof=Proof(
        "env.paths", planted("login shell", Setting("NCCL_VERSION", "2.11.4-1", BASHRC, 3))
    ),
)
CONF_FILES = Check(
    "env.nccl_conf",
    facts=("env.etc_conf", "env.conf_lines"),
    judge=conf_files,
    severity="error",
    title="nccl.conf as NCCL reads it",
    why="nccl.conf looks like a shell file and is none: a blank before a name, the word export, quotes, a comment "
    "behind a value, a byte-order mark or, before NCCL 2.30, carriage returns spoil a setting without a word.",
    how="/etc/nccl.conf, ~/.nccl.conf of the job's user and the file in NCCL_CONF_FILE, line by line by NCCL's rules: "
    "NAME=value from the first column, # in the first column, values of at most 1023 bytes.",
    remedy="clusterprep lint /etc/nccl.conf",
    proof=Proof("env.etc_conf", lambda text: " NCCL_DEBUG=WARN\n"),
)
