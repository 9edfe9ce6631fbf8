"""Names and values of the effective environment, by the rules of `clusterprep lint`, and nccl.conf.

The rules see each launch path as a file with one setting per line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import ModuleType

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
)
from clusterprep.checks.env import (
    BASHRC,
    describe_setting,
    escape_for_sed,
    known_settings,
    place,
    removal_command,
    removal_fix,
    settings_by_place,
    unread_paths,
    with_settings,
)
from clusterprep.facts import Fact, file, under
from clusterprep.facts.environment import CONF, Paths, Row, Setting, in_effect
from clusterprep.facts.nccl_address import Answers, BoundAddress, Taken
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Inventory, Node
from clusterprep.model.fact_columns import Part
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
from clusterprep.nccl.variables.variables import is_read_by_nccl_or_plugin
from clusterprep.remedies import Remedy, placed, shell_line

MAX_FAILURES = 50  # of one check about one node; more of them have one cause

Remarks = Mapping[tuple[Setting, Remark], None]
"""An ordered set of settings with the remarks about them."""

Amend = Callable[[Remarks, Paths, Mapping[str, BoundAddress]], Remarks]
"""Changes remarks by what the node's own NCCL answers, by launch path."""


def parse_etc(text: str | None) -> str | None:
    """Return the text of nccl.conf without secrets, as it is shown and stored; None: no such file.

    Raises ValueError for a file that is no text.
    """
    if text is None:
        return None
    if "\0" in text:
        raise ValueError("a zero byte in a file of text")
    return redacted(text, spared=is_read_by_nccl_or_plugin)


def versions_of(torch: object) -> Versions:
    """Return the versions of the readers of the environment.

    Where torch is not known they are None, and rules that need a version do not apply.
    """
    if not isinstance(torch, Torch):
        return Versions()
    return Versions(_numbers(torch.nccl), _numbers(torch.version))


def _numbers(version: str | None) -> tuple[int, ...] | None:
    return leading_numbers(version or "") or None


# ---------------------------------------------------------------- names and values


def remarks(
    paths: Paths, versions: Versions, families: Iterable[ModuleType]
) -> dict[tuple[Setting, Remark], None]:
    """Return what the rules say about each setting, once, however many launch paths have it."""
    collected: dict[tuple[Setting, Remark], None] = {}
    for path in known_settings(paths):
        settings = list(in_effect(paths, path).values())
        text = _as_text(path, settings)
        for family in families:
            for remark in family.judge(text, versions):
                setting = settings[remark.line - 1]
                collected[setting, replace(remark, line=0)] = None
    return collected


def _as_text(path: str, settings: Iterable[Setting]) -> Text:
    """Return the settings of a launch path as a file with one setting per line."""
    entries = []
    for line, setting in enumerate(settings, 1):
        entries.append(LintEntry(setting.name, setting.value, line))
    dialect = "nccl.conf" if path == "nccl" else "shell"
    return Text(dialect, (), tuple(entries))


def _limit(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the first outcomes; the last of them says how many more there are."""
    surplus = len(outcomes) - MAX_FAILURES
    if surplus <= 0:
        return outcomes
    last = outcomes[MAX_FAILURES - 1]
    last = replace(last, message=f"{last.message} (and {surplus} more)")
    return [*outcomes[: MAX_FAILURES - 1], last]


def _keep_all(remarks: Remarks, paths: Paths, answers: Mapping[str, BoundAddress]) -> Remarks:
    return remarks


def _judge_of(
    check: str,
    *families: ModuleType,
    good: str,
    graded: bool = False,
    amend: Amend = _keep_all,
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """Return a judge that fails nodes for the remarks that belong to a check.

    With `graded` each remark has its own severity. `amend` changes the remarks of the rules by what
    the node's own NCCL answers.
    """

    def judge(context: CheckContext) -> Iterable[Outcome]:
        yield from unread_paths(context)
        for nodes in context.alike("env.paths", "torch.build", parts=[_ANSWERED]):
            node = nodes[0]
            paths: Paths = context.value(node, "env.paths")
            versions = versions_of(context.value(node, "torch.build"))
            of_check = _of_check(check, remarks(paths, versions, families))
            amended = amend(of_check, paths, _answers(context, node))
            failures = _failures(node, paths, amended, graded, context.inventory)
            outcomes = _limit(failures) or [passed(node, good)]
            yield from about_all(nodes, outcomes)

    return judge


def _of_check(check: str, remarks: Remarks) -> Remarks:
    of_check: dict[tuple[Setting, Remark], None] = {}
    for setting, remark in remarks:
        if remark.check == check:
            of_check[setting, remark] = None
    return of_check


def _failures(
    node: Node, paths: Paths, remarks: Remarks, graded: bool, inventory: Inventory
) -> list[Outcome]:
    """Return a failure for each remark; with `graded` it has the remark's own severity."""
    launch_paths = settings_by_place(paths)
    failures = []
    for setting, remark in remarks:
        message = f"{place(setting)}: {remark.message}"
        seen = describe_setting(setting, launch_paths[setting])
        severity = remark.severity if graded else None
        failures.append(
            failed(
                node,
                message,
                seen,
                remark.wanted,
                removal_command(setting, inventory),
                severity,
                removal_fix(setting, inventory),
            )
        )
    return failures


def _answers(context: CheckContext, node: Node) -> dict[str, BoundAddress]:
    """Return what the node's own NCCL says, on the launch paths on which it could be asked."""
    answers: Answers | Absent = context.value(node, "nccl.address")
    if isinstance(answers, Absent):
        return {}
    return {path: answer for path, answer in answers.items() if isinstance(answer, BoundAddress)}


def _amending(answers: Answers) -> Hashable:
    """Return what amends remarks of NCCL's answers, which have the node's own address besides."""
    parts = []
    for path, answer in answers.items():
        if isinstance(answer, BoundAddress):
            parts.append((path, answer.version, answer.reads, tuple(answer.taken.items())))
    return tuple(parts)


_ANSWERED = Part("nccl.address", _amending)


def _without_known(remarks: Remarks, paths: Paths, answers: Mapping[str, BoundAddress]) -> Remarks:
    """Remove names that the node's NCCL reads: it may be newer than our list."""
    known_names: set[str] = set()
    for answer in answers.values():
        known_names.update(answer.reads)
    unknown: dict[tuple[Setting, Remark], None] = {}
    for setting, remark in remarks:
        if setting.name not in known_names:
            unknown[setting, remark] = None
    return unknown


def _with_rejected(remarks: Remarks, paths: Paths, answers: Mapping[str, BoundAddress]) -> Remarks:
    """Add settings whose value NCCL rejected, as it says itself from 2.30 on."""
    amended = dict(remarks)
    names_with_remark = {setting.name for setting, _ in remarks}
    for path, answer in answers.items():
        settings = in_effect(paths, path.partition(" (")[0])
        for name, taken in answer.taken.items():
            setting = settings.get(name)
            if setting is None or name in names_with_remark:
                continue
            if taken.by == "Default" and taken.value != setting.value:
                amended[setting, _remark_on_rejected(answer, setting, taken)] = None
    return amended


def _remark_on_rejected(answer: BoundAddress, setting: Setting, taken: Taken) -> Remark:
    """Return the remark about a value that NCCL says it did not take."""
    message = (
        f"NCCL {answer.version} itself says that it did not take this value and uses {taken.value}"
    )
    seen = f"{setting.name}={setting.value}"
    return Remark(
        "env.no_effect",
        0,
        setting.name,
        message,
        seen,
        "a value that NCCL takes",
    )


# ---------------------------------------------------------------- NCCL's own files


def conf_files(context: CheckContext) -> Iterable[Outcome]:
    """Judge that NCCL reads its own files as they are meant."""
    for nodes in context.alike("env.etc_conf", "env.conf_lines", "torch.build"):
        node = nodes[0]
        texts = _texts(context, node)
        versions = versions_of(context.value(node, "torch.build"))
        failures: list[Outcome] = []
        for path, text in texts.items():
            if text:
                failures.extend(_wrong_lines(node, path, text, versions))
        yield from about_all(nodes, _limit(failures))
        if not failures:
            existing = ", ".join(path for path, text in texts.items() if text is not None)
            message = "NCCL reads its files as they are meant"
            yield from about_all(nodes, [passed(node, message, existing or "none")])


def _texts(context: CheckContext, node: Node) -> dict[str, str | None]:
    """Return NCCL's files of a node, by path; None: no such file."""
    texts: dict[str, str | None] = {under(node, CONF): context.value(node, "env.etc_conf")}
    rows_of_files: Mapping[str, tuple[Row, ...]] = context.value(node, "env.conf_lines")
    for path, rows in rows_of_files.items():
        if path != CONF:
            texts[path] = _join_rows(rows)
    return texts


def _join_rows(rows: Iterable[Row]) -> str:
    """Return lines at their numbers, with empty lines for those that were not sent.

    Lines that set nothing stay on the node.
    """
    lines = {number: text for _, number, text in rows}
    last = max(lines, default=0)
    return "\n".join(lines.get(number, "") for number in range(1, last + 1))


def _wrong_lines(node: Node, path: str, text: str, versions: Versions) -> Iterable[Outcome]:
    """Yield a failure for each line of a file of NCCL's that is not read as it was meant."""
    for remark in conf.judge(read(text, "nccl.conf"), versions):
        message = f"{path}:{remark.line}: {remark.message}"
        remedy = _correcting_command(path, text, remark)
        yield failed(
            node,
            message,
            remark.seen,
            remark.wanted,
            remedy,
        )


def _correcting_command(path: str, text: str, remark: Remark) -> Remedy:
    """Return a command that corrects a line, or shows it where the right value is not known.

    The line is found by its text and never by its number: pasted twice, after another fix or on
    another node, the command changes no other line.
    """
    if remark.remedy.endswith(" FILE"):
        return placed(remark.remedy, FILE=path)
    line = text.split("\n")[remark.line - 1].removesuffix("\r")
    if not remark.remedy or not _is_certain(remark.wanted) or REDACTED in line:
        return shell_line(
            "sed -n {number}p {file}   # {wanted}",
            number=remark.line,
            file=path,
            wanted=remark.wanted,
        )
    replacement = re.sub(r"[\\&/]", r"\\\g<0>", remark.wanted)
    return shell_line(
        "sed -i --follow-symlinks -E {script} {file}",
        script=f"s/^{escape_for_sed(line)}$/{replacement}/",
        file=path,
    )


def _is_certain(line: str) -> bool:
    """Return whether a line can be written as it is: sed reads a backslash itself."""
    if line.endswith("=value") or REDACTED in line:
        return False
    return "\\" not in line


ETC_CONF = Fact("env.etc_conf", file(CONF, etc=True), parse_etc)
UNKNOWN = Check(
    "env.nccl_unknown",
    facts=("env.paths",),
    uses=("nccl.address",),
    judge=_judge_of(
        "env.nccl_unknown",
        names,
        good="every name is one that NCCL, torch or a plug-in reads",
        amend=_without_known,
    ),
    severity="warning",
    title="Misspelt names",
    why="A misspelt name is ignored without a word: the job runs with NCCL's own choice, and "
    "it looks as if the setting did not help.",
    how="Names of every launch path that start with NCCL_, TORCH_NCCL_ or OFI_NCCL_, or nearly "
    "so, against the names that releases of NCCL up to 2.32, torch up to 2.15 and aws-ofi-nccl "
    "read, and those in the libnccl of the node.",
    remedy=shell_line("clusterprep lint FILE   # of the file that is named"),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_SOKET_IFNAME", "eth0", BASHRC, 3))
    ),
)
DEPRECATED = Check(
    "env.deprecated",
    facts=("env.paths", "torch.build"),
    judge=_judge_of("env.deprecated", names, good="no name is outdated", graded=True),
    severity="warning",
    grade="an error where the name was removed, else a warning",
    title="Outdated names",
    why="A name that was removed has no effect any more, without a warning: that is an error. "
    "One that was renamed is still read, with a warning in the log of every rank, until it is "
    "removed too.",
    how="Names of every launch path against the releases of NCCL and torch that are installed: "
    "NCCL_BLOCKING_WAIT has been TORCH_NCCL_BLOCKING_WAIT since torch 2.2, NCCL_TREE_THRESHOLD is "
    "gone since NCCL 2.5.",
    remedy=shell_line("clusterprep explain NCCL_BLOCKING_WAIT   # says the new name"),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_ENABLE_TIMING", "1", BASHRC, 3))
    ),
)
NO_EFFECT = Check(
    "env.no_effect",
    facts=("env.paths", "torch.build"),
    uses=("nccl.address",),
    judge=_judge_of(
        "env.no_effect",
        names,
        numbers,
        words,
        together,
        good="every setting does what it says",
        amend=_with_rejected,
    ),
    severity="warning",
    title="Settings without their effect",
    why="NCCL_VERSION is a label of container images and chooses no NCCL. NCCL reads `true` as 0 "
    "and 4M as 4, cuts more than 64 sockets per connection, and does not find TORCH_ names in its "
    "own file. Each looks set and is not.",
    how="Names and values of every launch path, read as NCCL, torch and plug-ins read them: "
    "numbers by strtoll, words by their lists, ranges, names that came with a later release, and "
    "pairs that undo each other. From 2.30 the node's own NCCL says of some variables whether it "
    "took the value.",
    remedy=shell_line("clusterprep lint FILE   # of the file that is named"),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NCCL_VERSION", "2.11.4-1", BASHRC, 3))
    ),
)
CONF_FILES = Check(
    "env.nccl_conf",
    facts=("env.etc_conf", "env.conf_lines"),
    judge=conf_files,
    severity="error",
    title="nccl.conf as NCCL reads it",
    why="nccl.conf looks like a shell file and is none: a blank before a name, the word export, "
    "quotes, a comment behind a value, a byte-order mark or, before NCCL 2.30, carriage returns "
    "spoil a setting without a word.",
    how="/etc/nccl.conf, ~/.nccl.conf of the job's user and the file in NCCL_CONF_FILE, line by "
    "line by NCCL's rules: NAME=value from the first column, # in the first column, values of at "
    "most 1023 bytes.",
    remedy=shell_line("clusterprep lint /etc/nccl.conf"),
    proof=Proof("env.etc_conf", lambda text: " NCCL_DEBUG=WARN\n"),
)
