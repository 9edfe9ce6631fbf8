"""Makes docs/reference/variables.md: one line for each variable, grouped by its reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.nccl.variables.variables import registry

HEAD = """# Every variable

Written by `make format` from the registry that `lint`, the checks of the environment and
`clusterprep explain NAME` use. `explain` also prints sources, earlier defaults and the effect of a
wrong value. {count} variables.

*Between ranks* says what a difference between ranks means: a fault (`job`: all ranks of a job must
agree, `node`: those of one node), `uneven` (allowed, but some ranks are slower), `free`, `own`
(meant to differ); empty if not established. *conf* says whether NCCL also reads it from
/etc/nccl.conf.
"""
OWNERS = {
    "nccl": "NCCL",
    "torch": "PyTorch",
    "launcher": "Launchers",
    "ofi": "aws-ofi-nccl",
    "cuda": "CUDA",
    "other": "Others",
}
BETWEEN = {
    "job": "job",
    "node": "node",
    "recommended": "uneven",
    "free": "free",
    "identity": "own",
    "unknown": "",
}
COLUMNS = """\
| name | what it does | values | default | since | between ranks | conf |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the page: a table for each reader."""
    entries = sorted(registry().values(), key=lambda entry: str(entry["name"]))
    parts = [HEAD.format(count=len(entries))]
    for owner, title in OWNERS.items():
        rows = "".join(_row(entry) for entry in entries if entry["owner"] == owner)
        parts.append(f"## {title}\n\n{COLUMNS}{rows}")
    return "\n".join(parts)


def _row(entry: Mapping[str, Any]) -> str:
    gone = f" Removed in {entry['removed_in']}." if entry["removed_in"] else ""
    instead = f" Use `{entry['replaced_by']}`." if entry["replaced_by"] else ""
    cells = (
        f"`{entry['name']}`",
        _cell(entry["summary"]) + gone + instead,
        _cell(entry["allowed_values"]),
        _cell(entry["default"]),
        _cell(entry["since"]),
        BETWEEN[entry["uniformity"]],
        "yes" if entry["readable_from_conf_file"] else "",
    )
    return "| " + " | ".join(cells) + " |\n"


def _cell(value: object) -> str:
    """Escape text so that a Markdown table shows it as it is."""
    text = "" if value in (None, "-") else " ".join(str(value).split())
    for letter in "\\|<*_`[":
        text = text.replace(letter, "\\" + letter)
    return text
