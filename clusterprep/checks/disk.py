"""Judges local NVMe disks: as many as the peers have, and none worn or ill."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    parse_count,
    passed,
    skipped,
    uniform_by_kind,
    unknown,
)
from clusterprep.facts.nvme import Disk, Health
from clusterprep.model import Absent, Node
from clusterprep.model.units import pluralize
from clusterprep.remedies import sentence, shell_line

MOST_USED = 80  # percent of the life that the vendor promises
# Bits of the critical warning (NVM Express base specification, SMART / Health Information).
WARNINGS = {
    0x01: "spare capacity is low",
    0x02: "too hot or too cold",
    0x04: "unreliable because of media errors",
    0x08: "read only",
    0x10: "the backup of volatile memory failed",
    0x20: "the persistent memory region is unreliable",
}
LIVE = "live"
REPLACE = sentence("save what the disk holds, and replace it")
LOOK = shell_line("nvme list; lspci -d ::0108; dmesg | grep nvme")


def nvme(context: CheckContext) -> Iterable[Outcome]:
    """Judge the number of disks, then each disk."""
    yield from _judge_counts(context)
    for nodes in context.alike():
        disks: tuple[Disk, ...] = context.value(nodes[0], "disk.nvme")
        yield from about_all(nodes, _judge_disks(nodes[0], disks))


def _judge_counts(context: CheckContext) -> Iterable[Outcome]:
    """Compare the number with what is required, or with the other nodes of a kind."""
    counts: dict[str, str] = {}
    undeclared: set[str] = set()
    for nodes in context.alike():
        disks: tuple[Disk, ...] = context.value(nodes[0], "disk.nvme")
        counts.update(dict.fromkeys(names_of(nodes), _shown(len(disks))))
        wanted = context.wanted(nodes[0])
        if wanted is None:
            undeclared.update(names_of(nodes))
        else:
            yield from about_all(nodes, [_judge_required(nodes[0], len(disks), wanted)])
    if undeclared and set(counts.values()) == {_shown(0)}:
        message = "no node has an NVMe disk"
        yield Outcome("skip", tuple(sorted(undeclared)), message, reason="not_applicable")
    elif undeclared:
        what = "the number of NVMe disks"
        yield from uniform_by_kind(context, counts, what, LOOK, undeclared)


def _judge_required(node: Node, count: int, wanted: str) -> Outcome:
    seen = _shown(count)
    if count == parse_count(wanted):
        return passed(node, "there are as many NVMe disks as required", seen, wanted)
    message = "there are not as many NVMe disks as required"
    return failed(node, message, seen, wanted, LOOK)


def _shown(count: int) -> str:
    return pluralize(count, "NVMe disk")


def _judge_disks(node: Node, disks: Iterable[Disk]) -> Iterable[Outcome]:
    """Yield what is wrong with a disk, and how many did not say how they are, by the reason."""
    silent: dict[str, list[str]] = {}
    for disk in disks:
        if disk.state not in (None, LIVE):
            message = f"{disk.name} does not work"
            yield failed(node, message, f"{disk.state}: {_described(disk)}", LIVE, LOOK)
        elif isinstance(disk.health, Absent):
            silent.setdefault(disk.health.reason, []).append(disk.name)
        else:
            yield from _judge_health(node, disk, disk.health)
    for reason, names in silent.items():
        if reason == "missing_tool":
            message = "neither nvme nor smartctl is there to ask the disks"
            yield skipped(node, message, ", ".join(names), reason=reason)
        else:
            yield unknown(node, "the health of disks is not known", reason, ", ".join(names))


def _judge_health(node: Node, disk: Disk, health: Health) -> Iterable[Outcome]:
    if health.warning:
        meanings = [text for bit, text in WARNINGS.items() if health.warning & bit]
        seen = f"{_described(disk)}: {', '.join(meanings) or hex(health.warning)}"
        yield failed(node, f"{disk.name} warns of itself", seen, "no warning", REPLACE)
    if health.used >= MOST_USED:
        seen = f"{_described(disk)}: {health.used} % used"
        message = f"the life of {disk.name} ends soon"
        yield failed(node, message, seen, f"less than {MOST_USED} %", REPLACE)


def _described(disk: Disk) -> str:
    return f"{disk.name} {disk.model}, serial {disk.serial}"


def _ill(disks: tuple[Disk, ...]) -> tuple[Disk, ...]:
    return tuple(replace(disk, health=Health(0x04, 3, 12)) for disk in disks)


_SMART = (
    '{"critical_warning":0,"temperature":309,"avail_spare":100,"spare_thresh":10,"percent_used":3,'
    '"media_errors":0,"num_err_log_entries":0}\n'
)
CHECK = Check(
    "disk.nvme",
    facts=("disk.nvme",),
    judge=nvme,
    severity="warning",
    title="Local NVMe disks",
    why="A disk that is missing, read-only or worn out ends jobs that cache data or write "
    "checkpoints there, on that node alone.",
    how="/sys/class/nvme: as many controllers of the local bus as the other nodes of a kind, each "
    "live; `nvme smart-log` or `smartctl -A` of each: no critical warning, less than 80 % of its "
    "life used. `require: {disk.nvme: 8}` wants a number.",
    remedy=REPLACE,
    wants=parse_count,
    proof=Proof(
        "disk.nvme",
        _ill,
        machine={
            "answers": {
                "nvme": [
                    "ok",
                    {
                        "tool": "nvme",
                        "disks": {
                            f"nvme{number}": {
                                "model": "SAMSUNG MZQL23T8HCLS-00A07",
                                "serial": f"S64HNE0T00000{number}",
                                "firmware_rev": "GDC5902Q",
                                "state": LIVE,
                                "transport": "pcie",
                            }
                            for number in range(2)
                        },
                        "health": {
                            f"nvme{number}": ["ok", {"code": 0, "out": _SMART, "err": ""}]
                            for number in range(2)
                        },
                    },
                ]
            }
        },
    ),
)
