"""Pages for people: what a check, a variable or a cause means, and a target file as apply would write it. Pure."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from clusterprep.changes.resources.env import TARGETS, refuse_unheld
from clusterprep.checks import Check
from clusterprep.errors import InputError, NotKnown
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Cause
from clusterprep.jobs.verify.pages import PAGES, BlamePage
from clusterprep.model import Inventory, Report
from clusterprep.nccl.environment import Environment
from clusterprep.nccl.variables.variables import registry as variables
from clusterprep.survey import registry
from clusterprep.survey.cached import is_deep

_WARNING = "A failure is a warning, and an error where `require:` names the check."

_DEEP = "It runs code of the job's user: under --budget it is told as `check --deep --store` kept it (docs/prolog.md)."


def page(topic: str) -> str:
    """The page of a check, a variable or a cause. Raises InputError with the nearest name for anything else."""
    if topic in registry.checks():
        return _check_page(registry.checks()[topic])
    if topic in PAGES:
        return _check_page(PAGES[topic])
    if topic in variables():
        return _variable_page(topic)
    if topic in causes():
        return cause_page(causes()[topic])
    if topic.upper() in variables() or topic.lower() in {*registry.checks(), *causes()}:
        hint = f"did you mean {topic.upper() if topic.upper() in variables() else topic.lower()}?"
        raise InputError.of(f"nothing is known of {topic!r}", hint=hint)
    near = difflib.get_close_matches(
        topic, [*registry.checks(), *PAGES, *variables(), *causes()], 1, 0.5
    )
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "a check such as time.offset, or a variable such as NCCL_IB_HCA"
    )
    raise InputError.of(f"nothing is known of {topic!r}", hint=hint)


def _check_page(check: Check | BlamePage) -> str:
    parts = [
        f"{check.name}: {check.title}",
        _part("Why it matters", check.why),
        _part("How it is measured", check.how),
        f"Remedy\n  {check.remedy}",
        _part("Who may know it", powers(check)) if isinstance(check, Check) else "",
        "A failure is an error." if check.severity == "error" else _WARNING,
        _DEEP if isinstance(check, Check) and is_deep(check, registry.facts()) else "",
    ]
    return "\n\n".join(part for part in parts if part)


def powers(check: Check) -> str:
    """What the facts of a check need on a node, in sentences."""
    needs = [registry.facts()[name].needs for name in (*check.facts, *check.uses)]
    told = [
        _POWERS[need.who, need.partly].format(why=need.why)
        for need in needs
        if need.who != "any_user"
    ]
    return " ".join(dict.fromkeys(told)) or "Whoever may log in."


_POWERS = {
    (
        "job_user",
        False,
    ): "The job's user and root: {why}. To others it is denied; --become takes root's rights.",
    ("root", False): "Root: {why}. To others it is denied; --become takes root's rights.",
    ("root", True): "Whoever may log in, and all of it root: {why}. --become takes root's rights.",
}

_GRADES = {
    "fatal": "The job cannot go on.",
    "degraded": "The job runs, more slowly than it could.",
    "benign": "This is harmless.",
}


def cause_page(cause: Cause) -> str:
    """What `diagnose` knows of a cause."""
    found = (
        f"`clusterprep check --only {cause.check}` finds it before the job starts."
        if cause.check
        else ""
    )
    examples = [f"  {sign.example}" for sign in cause.signs[:3]]
    parts = [
        f"{cause.name}: {cause.title}",
        f"{textwrap.fill(cause.message, 98)} {_GRADES[cause.severity]}",
        _part("What it looks like", cause.looks),
        *(["Lines such as\n" + "\n".join(examples)] if examples else []),
        _part("What it is not", cause.unlike),
        f"Remedy\n  {cause.remedy}",
        found,
    ]
    return "\n\n".join(part for part in parts if part)


_READERS = {
    "nccl": "NCCL",
    "torch": "torch",
    "launcher": "torchrun and other launchers",
    "ofi": "aws-ofi-nccl, NCCL's plug-in for EFA",
    "cuda": "CUDA, the loader and container images",
    "other": "other libraries and tools around NCCL",
}
_BETWEEN = {
    "job": "equal on all ranks of a job",
    "node": "equal on all ranks of a node",
    "recommended": "better equal",
    "free": "may differ",
    "identity": "differs by a rule of its own",
    "unknown": "not known",
}


def _variable_page(name: str) -> str:
    entry = variables()[name]
    rows = {
        "read by": _READERS[entry["owner"]],
        "kind": entry["kind"],
        "values": entry["allowed_values"],
        "default": entry["default"],
        "defaults before": _earlier(entry["default_history"]),
        "since": _since(entry["since"]),
        "deprecated in": entry["deprecated_in"],
        "removed in": entry["removed_in"],
        "replaced by": entry["replaced_by"],
        "old names": ", ".join(entry.get("aliases", ())),
        "between ranks": f"{_BETWEEN[entry['uniformity']]}. {entry['uniform_reason'] or ''}".strip(),
        "in nccl.conf": f"works. {entry['conf_note'] or ''}".strip()
        if entry["readable_from_conf_file"]
        else f"no effect. {entry['conf_note'] or ''}",
        "a wrong value": entry["on_invalid"],
        "notes": entry["notes"],
        "source": entry["source"]
        + ("" if entry["verified"] else " (the name was only seen, not read in source)"),
    }
    lines = [f"{name}: {entry['summary']}", ""]
    lines += [_row(key, str(value)) for key, value in rows.items() if value not in (None, "", "-")]
    return "\n".join(lines)


def _since(version: str) -> str:
    """«2.3.5 or earlier» of «<=2.3.5»."""
    return f"{version.removeprefix('<=')} or earlier" if version.startswith("<=") else version


def _earlier(history: Sequence[Sequence[str]] | None) -> str:
    """The defaults that this one had, each with the first version that had it; the last is today's."""
    return ", ".join(f"{value} from {version}" for version, value in (history or ())[:-1])


def _part(title: str, text: str) -> str:
    return f"{title}\n" + textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="  ")


def _row(key: str, value: str) -> str:
    return textwrap.fill(f"{key:<17}{value}", 98, subsequent_indent=" " * 17)


def target_text(
    inventory: Inventory, environment: Environment, target: str, node: str | None
) -> str:
    """What apply would write to a target that does not exist yet, on one node. Raises NotKnown where nothing is."""
    name = node or inventory.nodes[0].name
    if name in environment.gaps:
        raise NotKnown(f"the environment of {name} cannot be derived: {environment.gaps[name]}")
    values = environment.of(name)
    if not values:
        raise NotKnown(f"the environment of {name} is not known: `clusterprep check` says why")
    refuse_unheld(name, (target,), values)
    return TARGETS[target].write(values, None).decode()


def of_node(report: Report, node: str) -> Report:
    """A report about the environment with the values of one node alone."""
    return replace(
        report, env=tuple(replace(v, nodes=(node,)) for v in report.env or () if node in v.nodes)
    )


def check_choice(inventory: Inventory, target: str | None, node: str | None) -> None:
    """Raises InputError for a target or a node that there is not, before anybody is asked."""
    if target is not None and target not in TARGETS:
        raise InputError.of(
            f"there is no target {target!r}", key="--target", hint=f"one of {', '.join(TARGETS)}"
        )
    names = [n.name for n in inventory.nodes]
    if node is not None and node not in names:
        near = difflib.get_close_matches(node, names, 1)
        hint = f"did you mean {near[0]}?" if near else None
        raise InputError.of(f"there is no node {node!r}", key="--node", hint=hint)
