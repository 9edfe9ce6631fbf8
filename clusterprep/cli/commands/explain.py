"""Render the page of a check, a variable or a cause, and a target file as apply would write it.

Pure.
"""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from clusterprep.changes.resources.env import format_of, refuse_unrepresentable
from clusterprep.checks import Check, known_bad
from clusterprep.cli.commands import time_limits
from clusterprep.cli.commands.time_limits import limit_lines
from clusterprep.errors import InputError, NotKnown
from clusterprep.facts import Fact
from clusterprep.facts.env_files import TARGETS, files_of
from clusterprep.inventory.demands import check_names
from clusterprep.jobs.diagnose.known import causes, command_that_finds
from clusterprep.jobs.diagnose.model import Cause
from clusterprep.jobs.live.causes import CAUSES as LIVE_CAUSES
from clusterprep.jobs.verify.pages import PAGES, TrialCheckPage
from clusterprep.model import EnvValue, Inventory, Report
from clusterprep.model.extensions import NO_EXTENSIONS, Extensions
from clusterprep.model.known_bad import KnownBad
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.variables.variables import registry as variables
from clusterprep.remedies import Remedy
from clusterprep.reports import select_format
from clusterprep.reports.page import QUIET
from clusterprep.survey import registry
from clusterprep.survey.cached import is_deep

Variable = Mapping[str, Any]  # an entry of the registry of variables

SCHEMA = 1  # of the JSON
FORMATS = ("console", "json")
WIDTH = 98  # columns of a page
LIST_WIDTH = 32  # columns of the names in a list of all of them
LABEL_WIDTH = 17  # columns of the left side of a variable's page

_DEEP = (
    "It runs code of the job's user: under --budget the findings that `check --deep --store` "
    "stored are shown instead (docs/howto/prolog.md)."
)
# Who may learn a fact, by Needs.who and Needs.partly.
_RIGHTS = {
    ("job_user", False): (
        "The job's user and root: {why}. To others it is denied; --become takes root's rights."
    ),
    ("root", False): "Root: {why}. To others it is denied; --become takes root's rights.",
    ("root", True): (
        "Any user who may log in, and all of it only root: {why}. --become takes root's rights."
    ),
}
_GRADES = {
    "fatal": "The job cannot go on.",
    "degraded": "The job runs, more slowly than it could.",
    "benign": "This is harmless.",
}
_READERS = {
    "nccl": "NCCL",
    "torch": "torch",
    "launcher": "torchrun and other launchers",
    "ofi": "aws-ofi-nccl, NCCL's plug-in for EFA",
    "cuda": "CUDA, the loader and container images",
    "other": "other libraries and tools around NCCL",
}
_BETWEEN_RANKS = {
    "job": "equal on all ranks of a job",
    "node": "equal on all ranks of a node",
    "recommended": "better equal",
    "free": "may differ",
    "identity": "differs by a rule of its own",
    "unknown": "not known",
}


def check_formats(fmt: str, files: Iterable[str]) -> None:
    """Raise InputError for a format in which a page cannot be shown."""
    for wanted in (fmt, *map(select_format, files)):
        if wanted not in FORMATS:
            hint = f"one of {', '.join(FORMATS)}; with --run any format"
            raise InputError.of(f"a page is not shown as '{wanted}'", key="--format", hint=hint)


def render(topic: str | None, extensions: Extensions, fmt: str, verbose: int = 0) -> str:
    """Return the page of a topic, or the list of all of them, as text or as JSON."""
    if fmt == "json":
        document: dict[str, Any] = {"schema": SCHEMA}
        if topic is None:
            document["topics"] = _topic_rows(extensions)
        else:
            text = page(topic, extensions)
            document.update(topic=topic, kind=_kind_of(topic, extensions), text=text)
        return json.dumps(document, indent=2) + "\n"
    text = all_names(extensions) if topic is None else page(topic, extensions)
    if verbose == QUIET:
        text = text.partition("\n")[0]
    return text + "\n"


def _topic_rows(extensions: Extensions) -> list[dict[str, str]]:
    """Return name, kind and title of every topic."""
    rows = []
    for kind, titles in _sections(extensions).items():
        for name, title in titles.items():
            rows.append({"name": name, "kind": kind, "title": title})
    return rows


def _kind_of(topic: str, extensions: Extensions) -> str:
    """Return the heading under which the list of all names has a topic."""
    sections = _sections(extensions)
    kinds = [kind for kind, titles in sections.items() if topic in titles]
    return kinds[0]


def page(topic: str, extensions: Extensions = NO_EXTENSIONS) -> str:
    """Return the page of a check, a bad version, a variable, a cause or the time limits.

    `extensions` has the checks of the site. Raises InputError with the nearest name for another
    topic.
    """
    known = registry.extended(extensions)
    if topic in known.checks:
        return _check_page(known.checks[topic], known.facts) + _listed_versions(topic)
    if topic in _bad_versions():
        return bad_version_page(_bad_versions()[topic])
    if topic in PAGES:
        return _check_page(PAGES[topic])
    if topic in variables():
        return _variable_page(topic)
    cause = causes().get(topic) or _live_causes().get(topic)
    if cause is not None:
        return cause_page(cause)
    if topic == time_limits.TOPIC:
        return time_limits.page()
    if topic in check_names():
        return f"{topic}: this check is not built yet; `check` answers SKIP for it"
    hint = _nearest_topic(topic, extensions.checks)
    raise InputError.of(f"nothing is known of {topic!r}", hint=hint)


def all_names(extensions: Extensions = NO_EXTENSIONS) -> str:
    """Return every topic of `explain` by kind, each on a line of its own with its title."""
    parts = []
    for heading, titles in _sections(extensions).items():
        if titles:
            width = min(max(map(len, titles)), LIST_WIDTH)
            lines = [f"  {name:<{width}}  {title}".rstrip() for name, title in titles.items()]
            parts.append("\n".join([heading, *lines]))
    return "\n\n".join(parts)


def _sections(extensions: Extensions) -> dict[str, Mapping[str, str]]:
    """Return the titles of all topics by name, under the heading of their kind."""
    live = {name: cause.title for name, cause in _live_causes().items()}
    bad = {name: f"{entry.component} {entry.versions}" for name, entry in _bad_versions().items()}
    built = registry.checks()
    planned = sorted(check_names() - built.keys() - PAGES.keys())
    return {
        "Checks": _titles(built),
        "Checks of the site": _titles(extensions.checks),
        "What verify finds": _titles(PAGES),
        "Checks that are not built yet": dict.fromkeys(planned, ""),
        "Variables": dict.fromkeys(sorted(variables()), ""),
        "Causes in logs": _titles(causes()),
        "Causes of a job that hangs": live,
        "Versions that are known to be bad": bad,
        "Time limits": {time_limits.TOPIC: ""},
    }


def _titles(topics: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of checks or causes by their names, in alphabetical order."""
    return {name: topics[name].title for name in sorted(topics)}


def _live_causes() -> dict[str, Cause]:
    """Return the causes that `diagnose --live` names, by name."""
    return {cause.name: cause for cause in LIVE_CAUSES}


def _nearest_topic(topic: str, site: Iterable[str] = ()) -> str:
    """Return the hint for an unknown topic."""
    if topic.upper() in variables():
        return f"did you mean {topic.upper()}?"
    lower = topic.lower()
    if lower in ("list", "all", "help"):
        return "--list has all names"
    if lower in registry.checks() or lower in causes():
        return f"did you mean {lower}?"
    topics = [*registry.checks(), *PAGES, *variables(), *causes(), *_live_causes()]
    topics.extend(site)
    topics.extend(_bad_versions())
    topics.append(time_limits.TOPIC)
    near = difflib.get_close_matches(topic, topics, 1, 0.5)
    if near:
        return f"did you mean {near[0]}?"
    return (
        "a check such as time.offset, or a variable such as NCCL_IB_HCA; --list has all names; "
        "a check of the site is explained with --inventory FILE"
    )  # ---------------------------------------------------------------- checks and causes


def _remedy(remedy: Remedy) -> str:
    note = f"\n  {remedy.note}" if remedy.note else ""
    return f"Remedy\n  {remedy}{note}"


def _check_page(check: Check | TrialCheckPage, facts: Mapping[str, Fact] | None = None) -> str:
    parts = [f"{check.name}: {check.title}"]
    parts.append(_paragraph("Why it matters", check.why))
    parts.append(_paragraph("How it is measured", check.how))
    parts.extend(_time_limits(check.name))
    if check.remedy:
        parts.append(_remedy(check.remedy))
    if isinstance(check, Check) and (check.facts or not check.source):
        parts.append(_paragraph("Who may know it", needed_rights(check, facts)))
    parts.append(severity_sentence(check))
    if check.follows:
        causes = ", ".join(check.follows)
        sentence = f"It may follow from {causes}: where one of them fails on the same node, it is "
        parts.append(textwrap.fill(f"{sentence}shown there and not counted.", WIDTH))
    if isinstance(check, Check) and is_deep(check, facts or registry.facts()):
        parts.append(_DEEP)
    return "\n\n".join(parts)


def severity_sentence(check: Check | TrialCheckPage) -> str:
    """Return how severe a failure is, as `explain` and docs/reference/checks.md say it."""
    if isinstance(check, Check) and check.grade:
        grade = check.grade
    else:
        grade = "an error" if check.severity == "error" else "a warning"
    sentence = f"A failure is {grade}."
    if check.severity == "warning":
        sentence += " What `require:` demands is always an error."
    return sentence


def needed_rights(check: Check, facts: Mapping[str, Fact] | None = None) -> str:
    """Return in sentences what rights the facts of a check need on a node."""
    facts = facts or registry.facts()
    sentences: dict[str, None] = {}
    for name in (*check.facts, *check.uses):
        needs = facts[name].needs
        template = _RIGHTS.get((needs.who, needs.partly))
        if template is not None:
            sentence = template.format(why=needs.why)
            sentences[sentence] = None
    return " ".join(sentences) or "Any user who may log in."


def cause_page(cause: Cause) -> str:
    """Return what `diagnose` knows of a cause."""
    message = textwrap.fill(cause.message, WIDTH)
    grade = _GRADES[cause.severity]
    parts = [f"{cause.name}: {cause.title}", f"{message} {grade}"]
    parts.append(_paragraph("What it looks like", cause.looks))
    examples = [f"  {sign.example}" for sign in cause.signs[:3]]
    if examples:
        lines = "\n".join(examples)
        parts.append(f"Lines such as\n{lines}")
    parts.append(_paragraph("What it is not", cause.unlike))
    parts.extend(_time_limits(cause.name))
    parts.append(_remedy(cause.remedy))
    if cause.check:
        parts.append(_found_before(cause.check, cause.finds or "it"))
    return "\n\n".join(parts)


def _time_limits(topic: str) -> list[str]:
    """Return the section of the time limits of a topic; none for a topic without any."""
    lines = limit_lines(topic)
    if not lines:
        return []
    listed = "\n".join(lines)
    return [f"Time limits that fire here\n{listed}\n  all with their sources: explain time-limits"]


def _found_before(check: str, finds: str) -> str:
    """Return which command finds a cause, or some of its reasons, before the job starts."""
    command = command_that_finds(check)
    if command.startswith("check"):
        option = command.removeprefix("check")
        return f"`clusterprep check --only {check}{option}` finds {finds} before the job starts."
    if command == "verify":
        return f"`clusterprep verify` looks for {finds} before the job starts ({check})."
    return f"A check that finds {finds} before the job starts, {check}, is not built yet."


def _paragraph(title: str, text: str) -> str:
    indented = textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return f"{title}\n{indented}"


# ---------------------------------------------------------------- bad versions


def _bad_versions() -> dict[str, KnownBad]:
    return {entry.id: entry for entry in known_bad.table()}


def _listed_versions(check: str) -> str:
    """Return the entries that a check compares with, a line each; nothing for other checks."""
    if check not in (known_bad.KNOWN_BAD.name, known_bad.SECURITY.name):
        return ""
    is_security = check == known_bad.SECURITY.name
    lines = []
    for entry in known_bad.table():
        if entry.is_security == is_security:
            lines.append(f"  {entry.id:<28} {entry.component} {entry.versions}")
    return "\n\nEntries\n" + "\n".join(lines)


def bad_version_page(entry: KnownBad) -> str:
    """Return what is known of a bad version."""
    name = known_bad.NAMES.get(entry.component, entry.component)
    parts = [f"{entry.id}: {name} {entry.versions} {known_bad.EFFECTS[entry.effect]}"]
    parts.append(_paragraph("How it shows", entry.symptom))
    if entry.when:
        lines = [f"  {condition} {wanted}" for condition, wanted in entry.when.items()]
        parts.append("Only where\n" + "\n".join(lines))
    parts.append(_paragraph("Mended in", entry.mended or "no version that is known"))
    if entry.workaround:
        parts.append(_paragraph("Until then", entry.workaround))
    parts.append(f"Source\n  {entry.source}")
    check = known_bad.SECURITY if entry.is_security else known_bad.KNOWN_BAD
    parts.append(f"`clusterprep check --only {check.name}` compares with it.")
    return "\n\n".join(parts)


# ---------------------------------------------------------------- variables


def _variable_page(name: str) -> str:
    variable = variables()[name]
    lines = [f"{name}: {variable['summary']}", ""]
    for label, value_of in _ROWS.items():
        value = value_of(variable)
        if value not in (None, "", "-"):
            lines.append(_row(label, str(value)))
    return "\n".join(lines)


def _reader(variable: Variable) -> str:
    return _READERS[variable["owner"]]


def _old_names(variable: Variable) -> str:
    return ", ".join(variable.get("aliases", ()))


def _earlier_defaults(variable: Variable) -> str:
    """Return the former defaults, each with the first version that had it; the last is today's."""
    history = variable["default_history"] or ()
    former = [f"{value} from {version}" for version, value in history[:-1]]
    return ", ".join(former)


def _since(variable: Variable) -> str:
    """Return «2.3.5 or earlier» for «<=2.3.5»."""
    version: str = variable["since"]
    if version.startswith("<="):
        return f"{version.removeprefix('<=')} or earlier"
    return version


def _between_ranks(variable: Variable) -> str:
    rule = _BETWEEN_RANKS[variable["uniformity"]]
    reason = variable["uniform_reason"] or ""
    return f"{rule}. {reason}".strip()


def _in_conf_file(variable: Variable) -> str:
    note = variable["conf_note"] or ""
    if variable["readable_from_conf_file"]:
        return f"works. {note}".strip()
    return f"no effect. {note}"


def _source(variable: Variable) -> str:
    source = str(variable["source"])
    if variable["verified"]:
        return source
    return f"{source} (the name was only seen, not read in source)"


# The rows of a variable's page, by label.
_ROWS: Mapping[str, Callable[[Variable], Any]] = {
    "read by": _reader,
    "kind": itemgetter("kind"),
    "values": itemgetter("allowed_values"),
    "default": itemgetter("default"),
    "defaults before": _earlier_defaults,
    "since": _since,
    "deprecated in": itemgetter("deprecated_in"),
    "removed in": itemgetter("removed_in"),
    "replaced by": itemgetter("replaced_by"),
    "old names": _old_names,
    "between ranks": _between_ranks,
    "in nccl.conf": _in_conf_file,
    "a wrong value": itemgetter("on_invalid"),
    "notes": itemgetter("notes"),
    "source": _source,
}


def _row(label: str, value: str) -> str:
    indent = " " * LABEL_WIDTH
    return textwrap.fill(f"{label:<{LABEL_WIDTH}}{value}", WIDTH, subsequent_indent=indent)


# ---------------------------------------------------------------- the environment


def target_text(
    inventory: Inventory, environment: Environment, target: str, node: str | None
) -> str:
    """Return what apply would write to a target that does not exist yet, on one node.

    Without `node` it is the first of the inventory. Raises NotKnown if its environment is not
    known.
    """
    name = node or inventory.nodes[0].name
    if name in environment.gaps:
        raise NotKnown(f"the environment of {name} cannot be derived: {environment.gaps[name]}")
    values = environment.of(name)
    if not values:
        raise NotKnown(f"the environment of {name} is not known: `clusterprep check` says why")
    refuse_unrepresentable(name, (target,), values)
    paths = files_of(target, inventory)
    if not paths:
        raise NotKnown("target systemd writes a drop-in for each of env_units, which names none")
    texts = []
    for path in paths:
        heading = f"# {path}\n" if len(paths) > 1 else ""
        texts.append(heading + format_of(path).write(values, None).decode())
    return "\n".join(texts)


def limited_to_node(report: Report, node: str) -> Report:
    """Return a report about the environment with the values of one node alone."""
    values: list[EnvValue] = []
    for value in report.env or ():
        if node not in value.nodes:
            continue
        values.append(replace(value, nodes=(node,)))
    return replace(report, env=tuple(values))


def check_choice(inventory: Inventory, target: str | None, node: str | None) -> None:
    """Raise InputError for a target or a node that does not exist, before any node is asked."""
    if target is not None and target not in TARGETS:
        targets = ", ".join(TARGETS)
        message = f"there is no target {target!r}"
        raise InputError.of(message, key="--target", hint=f"one of {targets}")
    if node is None:
        return
    names = [known.name for known in inventory.nodes]
    if node not in names:
        near = difflib.get_close_matches(node, names, 1)
        hint = f"did you mean {near[0]}?" if near else None
        raise InputError.of(f"there is no node {node!r}", key="--node", hint=hint)
