"""Three runs over the same eight nodes, for comparing.

All well, one odd node, half of them dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from clusterprep.cli.commands.record import line_of
from clusterprep.cli.exit_codes import findings_code
from clusterprep.facts.nvme import Disk, Health
from clusterprep.model import (
    Absent,
    CollectiveResult,
    EnvValue,
    Fleet,
    NodeSnapshot,
    Report,
    VerifyResult,
)
from clusterprep.model.history import RecordedRun
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from tests.support.fleet import TODAY, healthy, nvml, silent, with_facts

CHECKS = (
    "ssh.reach",
    "kernel.version",
    "os.release",
    "torch.version",
    "nv.driver",
    "gpu.count",
    "eth.mtu",
)
NAMES = ("20261121-093000-0001", "20261121-094000-0002", "20261121-100000-0003")
VERDICTS = {0: "pass", 1: "fail", 3: "unknown"}


def all_well() -> Report:
    """Eight nodes that are alike."""
    return _report(healthy(8), NAMES[0], "2026-11-21T09:30:00Z", 1.38)


def one_odd() -> Report:
    """n3 came back from a repair with another kernel, and the first nodes have another driver.

    It is slower, too.
    """
    odd = {("n3", "kernel.release"): "5.15.0-91-generic", ("n3", "os.release"): "ubuntu 20.04"}
    odd |= {(f"n{number}", "nv.driver"): "550.90.07" for number in (1, 2)}
    return _report(
        with_facts(healthy(8), odd), NAMES[1], "2026-11-21T09:40:00Z", 0.69, debug="INFO"
    )


def with_serials() -> Report:
    """Four nodes whose GPUs and disks have numbers of their own."""
    return _report(_of_parts({}), NAMES[0], "2026-11-21T09:30:00Z", 1.38)


def swapped() -> Report:
    """GPU 3 of n2 is in n4 now, in whose place another came; n2 has another disk."""
    parts = {("n4", 3): "GPU-n2-3", ("n2", 3): "GPU-new", ("n2", "disk"): "S64HNE0NEW"}
    return _report(_of_parts(parts), NAMES[1], "2026-11-21T09:40:00Z", 1.38)


def _of_parts(swaps: Mapping[tuple[str, int | str], str]) -> Fleet:
    """Four nodes with GPUs and a disk; `swaps` has what is in a place instead of the first one."""
    facts: dict[tuple[str, str], Any] = {}
    fleet = healthy(4)
    for name in fleet.snapshots:
        gpus = []
        for gpu in nvml().gpus:
            uuid = swaps.get((name, gpu.index), f"GPU-{name}-{gpu.index}")
            gpus.append(replace(gpu, uuid=uuid))
        facts[name, "gpu.nvml"] = replace(nvml(), gpus=tuple(gpus))
        serial = swaps.get((name, "disk"), f"S64HNE0{name.upper()}")
        disk = Disk("nvme0", "SAMSUNG MZQL21T9HCJR", serial, "live", Health(0, 3, 0))
        facts[name, "disk.nvme"] = (disk,)
    return with_facts(fleet, facts)


def half_dead() -> Report:
    """n5 to n8 give no answer; on n1 the driver hangs; n3 is well again."""
    fleet = with_facts(healthy(8), {("n1", "nv.driver"): Absent("hung", "no answer within 5 s")})
    lost = {f"n{number}": silent(f"n{number}") for number in range(5, 9)}
    return _report(
        replace(fleet, snapshots={**fleet.snapshots, **lost}),
        NAMES[2],
        "2026-11-21T10:00:00Z",
        None,
    )


FLEETS = (all_well, one_odd, half_dead)


def line(report: Report) -> RecordedRun:
    return replace(line_of(report, "cluster.yaml"), tool="0.1.0", size=12_345)


def _report(
    fleet: Fleet, name: str, started: str, speed: float | None, debug: str = "WARN"
) -> Report:
    findings = judge(fleet, [registry.checks()[check] for check in CHECKS], TODAY)
    code = findings_code(findings)
    nodes = tuple(fleet.snapshots.values())
    return Report(
        "apply",
        name,
        "test",
        started,
        3.25,
        VERDICTS[code],
        code,
        nodes,
        findings,
        env=_env(nodes, debug),
        verify=None if speed is None else _trial(speed),
        held_by=tuple(node.node for node in nodes if not node.reached),
    )


def _env(nodes: tuple[NodeSnapshot, ...], debug: str) -> tuple[EnvValue, ...]:
    names = tuple(node.node for node in nodes if node.reached)
    return (
        EnvValue("NCCL_SOCKET_IFNAME", "eth0", names, "it reaches all"),
        EnvValue("NCCL_DEBUG", debug, names, "declared", True),
    )


def _trial(speed: float) -> VerifyResult:
    rows = tuple(
        CollectiveResult("all_reduce", size, 0.1, speed, speed, 0)
        for size in (8, 1 << 20, 64 << 20)
    )
    return VerifyResult("pass", "gloo", 64, 8, "10.0.0.1:29500", collectives=rows)
