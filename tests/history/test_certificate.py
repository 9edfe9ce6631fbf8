"""What a certificate says, and how another day's answers are compared with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from clusterprep.errors import InputError
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.nvme import Disk
from clusterprep.history.certificate import (
    FACTS,
    certificate_text,
    parse_certificate,
    with_certified,
)
from clusterprep.model import (
    Absent,
    Acceptance,
    Finding,
    Fleet,
    Inventory,
    Node,
    NodeSnapshot,
    Report,
    VerifyResult,
)
from clusterprep.survey import registry
from clusterprep.survey.judge import judge

NAMES = ("n1", "n2")


def gpus(*uuids: str) -> Nvml:
    each = [Gpu(number, "H100", uuid, f"{number}:00.0") for number, uuid in enumerate(uuids)]
    return Nvml("580.1", "13.0", tuple(each))


def snapshots(**further: Mapping[str, Any]) -> dict[str, NodeSnapshot]:
    """Return both nodes with two GPUs each, and with the facts that `further` has by node."""
    found = {}
    for name in NAMES:
        facts = {"gpu.nvml": gpus(f"GPU-{name}-a", f"GPU-{name}-b"), "kernel.release": "6.1.0"}
        found[name] = NodeSnapshot(name, name, True, facts={**facts, **further.get(name, {})})
    return found


def fleet(**further: Mapping[str, Any]) -> Fleet:
    nodes = tuple(Node(name, name, number) for number, name in enumerate(NAMES))
    return Fleet(Inventory("demo", nodes), snapshots(**further))


def certificate(**further: Mapping[str, Any]) -> dict[str, Any]:
    verify = VerifyResult("pass", "nccl", 4, 2, "n1:1", acceptance=Acceptance(60, 61.5, 12))
    report = Report(
        command="verify",
        run="r1",
        cluster="demo",
        started="2026-11-29T00:00:00Z",
        seconds=70,
        verdict="pass",
        code=0,
        nodes=tuple(snapshots(**further).values()),
        verify=verify,
    )
    return parse_certificate(certificate_text(report).encode(), "c.json")


def certified_findings(certified: dict[str, Any] | None, today: Fleet) -> list[Finding]:
    compared = with_certified(today, certified)
    return list(judge(compared, [registry.checks()["host.certified"]], date.max))


def failed(certified: dict[str, Any], today: Fleet) -> list[tuple[tuple[str, ...], str]]:
    found = certified_findings(certified, today)
    return [(one.nodes, one.seen) for one in found if one.verdict == "fail"]


def test_the_facts_of_a_certificate_are_facts() -> None:
    assert set(FACTS) <= set(registry.facts())
    assert not [name for name in FACTS if registry.facts()[name].moves]


def test_the_same_fleet_passes_as_a_whole() -> None:
    (finding,) = certified_findings(certificate(), fleet())
    assert (finding.verdict, finding.nodes) == ("pass", NAMES)
    assert finding.message == "as certified on 2026-11-29T00:00:00Z"


def test_a_swapped_gpu_is_named_with_both_numbers() -> None:
    today = fleet(n2={"gpu.nvml": gpus("GPU-n2-a", "GPU-other")})
    assert failed(certificate(), today) == [(("n2",), 'gpu.nvml gpus[1].uuid is "GPU-other"')]


def test_equal_changes_of_nodes_are_one_finding() -> None:
    new = {"kernel.release": "6.1.9"}
    assert failed(certificate(), fleet(n1=new, n2=new)) == [(NAMES, 'kernel.release is "6.1.9"')]


def test_of_a_disk_only_what_it_is_counts() -> None:
    def disks(used: str) -> Mapping[str, Any]:
        return {"disk.nvme": (Disk("nvme0", "P5800X", "S1", used, Absent("missing_tool")),)}

    assert failed(certificate(n1=disks("live")), fleet(n1=disks("dead"))) == []


def test_what_is_not_told_today_is_unknown() -> None:
    today = fleet(n1={"gpu.nvml": Absent("hung", "NVML did not answer")})
    found = certified_findings(certificate(), today)
    assert [(one.verdict, one.nodes) for one in found] == [("unknown", ("n1",)), ("pass", ("n2",))]


def test_a_node_of_which_nothing_was_certified_does_not_pass() -> None:
    certified = certificate()
    certified["nodes"]["n1"] = {"gpu.nvml": {"absent": "denied", "detail": ""}}
    found = certified_findings(certified, fleet())
    assert [(one.verdict, one.nodes) for one in found] == [("unknown", ("n1",)), ("pass", ("n2",))]


def test_without_a_certificate_it_is_skipped() -> None:
    (finding,) = certified_findings(None, fleet())
    assert (finding.verdict, finding.nodes) == ("skip", NAMES)


def test_a_node_that_is_new_is_unknown() -> None:
    certified = certificate()
    del certified["nodes"]["n1"]
    found = certified_findings(certified, fleet())
    assert [(one.verdict, one.nodes) for one in found] == [("unknown", ("n1",)), ("pass", ("n2",))]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", "it is no certificate"),
        (json.dumps({"kind": "clusterprep certificate"}).encode(), "it has version None"),
        (json.dumps({"kind": "clusterprep certificate", "version": 1}).encode(), "has no nodes"),
    ],
)
def test_another_file_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_certificate(data, "c.json")
