"""The faults that were planted and found, as a table for people."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.faults.row import Stage
from tests.faults.seen import Seen

WIDTHS = (46, 9, 20, 8)
HEAD = ("fault", "mechanism", "check", "node")


def lines(found: Sequence[Seen]) -> list[str]:
    """As columns, real ones and those laid over counted apart."""
    rows = [_columns(HEAD, "seen")]
    rows += [
        _columns(_cells(one), one.text[:60]) for one in found if one.placed.row.verdict != "pass"
    ]
    return [*rows, "", *_counts(found)]


def _columns(cells: Sequence[str], last: str) -> str:
    return "  ".join(
        [*(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)), last]
    )


def _cells(one: Seen) -> tuple[str, str, str, str]:
    row = one.placed.row
    return row.name, row.mechanism, row.check, ",".join(one.nodes)


def _counts(found: Sequence[Seen]) -> list[str]:
    kinds = Counter(one.placed.row.mechanism for one in found if one.placed.row.verdict != "pass")
    decoys = [one.placed.row.name for one in found if one.placed.row.verdict == "pass"]
    said = [
        (
            f"{kinds.total()} faults: {kinds['real']} by the real mechanism, "
            f"{kinds['laid over']} laid over"
        )
    ]
    if kinds:
        said.append(_share_of_one(found))
    if decoys:
        names = "; ".join(decoys)
        said.append(f"{len(decoys)} that look like faults and are none: {names}")
    return said


def markdown(found: Sequence[Seen], stages: Iterable[Stage]) -> str:
    """The same for docs/why/faults.md."""
    text = [_HEADER, "", _share_of_one(found)]
    for title, kind in (("By the real mechanism", "real"), ("Laid over", "laid over")):
        rows = [
            one
            for one in found
            if one.placed.row.mechanism == kind and one.placed.row.verdict != "pass"
        ]
        text += [
            f"\n## {title}: {len(rows)}\n",
            "| fault | check | verdict | node | counts as | seen |",
            "|---|---|---|---|---|---|",
        ]
        text += [_row(one) for one in rows]
    decoys = [one.placed.row for one in found if one.placed.row.verdict == "pass"]
    text += [
        f"\n## What looks like a fault and is none: {len(decoys)}\n",
        "| what | the check that stays quiet |",
    ]
    text += ["|---|---|", *(f"| {row.name} | `{row.check}` |" for row in decoys)]
    known = [(stage.name, *item, why) for stage in stages for item, why in stage.known.items()]
    text += [
        "\n## What is said of healthy hosts\n",
        _HEALTHY,
        "",
        "| machines | check | verdict | why |",
        "|---|---|---|---|",
    ]
    text += [f"| {stage} | `{check}` | {verdict} | {why} |" for stage, check, verdict, why in known]
    return "\n".join(text) + "\n"


def _share_of_one(found: Sequence[Seen]) -> str:
    """For how many faults exactly one finding counts on their host."""
    ill = [one for one in found if one.placed.row.verdict != "pass"]
    alone = [one for one in ill if len(one.counted) == 1]
    share = len(alone) / max(1, len(ill))
    return (
        f"Of {len(ill)} faults {len(alone)} ({share:.1%}) are one finding that counts, on their "
        "host.\nWhat else is said there follows from it. The column «counts as» has that finding."
    )


def _row(one: Seen) -> str:
    row = one.placed.row
    counted = ", ".join(f"`{check}`" for check in one.counted)
    cells = [row.name, f"`{row.check}`", row.verdict, ", ".join(one.nodes), counted, _cell(one)]
    return f"| {' | '.join(cells)} |"


def _cell(one: Seen) -> str:
    also = "".join(f"; also `{check}`: {why}" for check, why in one.placed.row.also.items())
    # Of the kernel below all hosts the page shows the numbers, which tell the story, and not who
    # built it.
    text = one.text.replace(platform.release(), platform.release().partition("-")[0])
    text = text.replace("-" + (platform.release().partition("-")[2] or "-"), "")
    text = text.replace(sys.base_prefix, "PREFIX")  # where this machine happens to have its Python
    return text[:100].replace("|", "\\|").replace("\n", " ") + also


_HEALTHY = """\
Each kind of machine is also checked without a fault: no check fails, and only the checks in this
table are unknown. The load, the kernel's log and the time since boot are the machine's; each host
has its own files over them."""
_HEADER = """\
# Faults that were planted, and what found them

Written by `python -m tests.faults --write`, from real runs of `clusterprep check` on eight lab
hosts, with OpenSSH between them. Several faults were planted at once, on different hosts. Each was
found by the check named here, on the host that had it, and no check blamed another host.

*By the real mechanism* means that the host really had the fault: another MTU, a dropped port, a
lowered limit, a file system that does not answer. *Laid over* means that the fault was simulated,
because this machine has no such hardware: by a file over /proc, /sys or /dev, or by the description
for a stand-in of NVIDIA's management library."""
