"""Whether a part that fails today, or its slot, is at fault: as earlier runs tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.nvme import Disk, Health
from clusterprep.history.blame import MOST, TRIED, Fault, PastFaults, blame, blamed, faults
from clusterprep.history.database import NAME, Database
from clusterprep.history.encoding import encoded
from clusterprep.history.runs import Runs, packed
from clusterprep.model import Because, Finding, NodeSnapshot, Report
from clusterprep.model.history import PartPlace, RecordedRun

ECC = "gpu.ecc_unc"
Nodes = dict[str, list[str]]  # node → UUIDs in the order of their slots


def nvml(*uuids: str) -> Nvml:
    gpus = tuple(
        Gpu(index, "H100", uuid, f"00000000:{index + 1:02X}:00.0")
        for index, uuid in enumerate(uuids)
    )
    return Nvml("570.1", "12.8", gpus)


def failure(node: str, seen: str, check: str = ECC, **more: Any) -> Finding:
    return Finding(check, "fail", "error", (node,), "why", seen, **more)


def fault(uuid: str, node: str, slot: int, check: str = ECC) -> Fault:
    return Fault(check, ("gpu", uuid), PartPlace(node, f"0000:{slot:02x}:00.0"))


def facts(nodes: Nodes) -> dict[str, dict[str, Any]]:
    of_gpus = {name: json.loads(encoded(nvml(*uuids), 1 << 20)) for name, uuids in nodes.items()}
    return {"gpu.nvml": of_gpus, "rdma.devices": {}}


# ---------------------------------------------------------------- which parts a finding names


@pytest.mark.parametrize(
    ("finding", "uuids"),
    [
        pytest.param(failure("n1", "GPU 1: 2"), "b", id="one"),
        pytest.param(failure("n1", "GPU 0, 2: 2; GPU 1: 7"), "abc", id="several"),
        pytest.param(failure("n1", "all 3 GPUs: 2"), "", id="all-of-a-node"),
        pytest.param(failure("n1", "GPU 9: 2"), "", id="an-index-that-is-not-there"),
        pytest.param(failure("n1", "GPU 1: 2", silenced="known"), "", id="silenced"),
        pytest.param(failure("n1", "GPU 1: 2", fixed=True), "", id="fixed"),
        pytest.param(
            failure("n1", "GPU 1: 2", because=(Because("gpu.lost", ("n1",)),)), "", id="follows"
        ),
        pytest.param(failure("n1", "GPU 1: 2", check="gpu.clocks"), "", id="another-check"),
        pytest.param(failure("n9", "GPU 1: 2"), "", id="no-facts"),
        pytest.param(failure("n1", "Xid 79 on 0000:02:00: last 3 h ago", "gpu.xid"), "b", id="xid"),
        pytest.param(
            failure(
                "n1", "Xid 74 on 0000:01:00 (link 3), 0000:03:00: 4 times, last 1 h ago", "gpu.xid"
            ),
            "ac",
            id="xids",
        ),
        pytest.param(
            failure("n1", "Xid ? on «Xid on 0000:02:00: 79»: last 1 h ago", "gpu.xid"),
            "",
            id="a-quoted-line",
        ),
        pytest.param(
            failure("n1", "GPU 0000:02:00.0 x8 of x16; NIC 0000:41:00.0 x4 of x16", "pcie.width"),
            "b",
            id="a-link",
        ),
        pytest.param(
            failure("n1", "the bridge 0000:00:01.0 above 0000:02:00.0 fatal TLP 1", "pcie.aer"),
            "",
            id="a-bridge",
        ),
    ],
)
def test_the_parts_that_a_finding_names(finding: Finding, uuids: str) -> None:
    found = faults([finding], facts({"n1": ["a", "b", "c"]}))
    slots = {"a": 1, "b": 2, "c": 3}
    assert found == {fault(uuid, "n1", slots[uuid], finding.check) for uuid in uuids}


GUIDS = {"mlx5_0": "fe80::a", "mlx5_1": "fe80::b", "mlx5_10": "fe80::c"}
HEALTH = {"warning": 4, "used": 3, "media_errors": 12}


def more_facts(node: str) -> dict[str, dict[str, Any]]:
    """Return three RDMA cards and two disks of a node."""
    cards = []
    for slot, (name, address) in enumerate(GUIDS.items(), 1):
        gid = {"index": 0, "address": address}
        port = {"link_layer": "InfiniBand", "gids": [gid]}
        cards.append({"name": name, "pci": f"0000:a{slot}:00.0", "ports": [port]})
    disks = [
        {"name": name, "model": "PM9A3", "serial": serial, "state": "live", "health": HEALTH}
        for name, serial in (("nvme0", "S64A  "), ("nvme10", "S64B"))
    ]
    return {"rdma.devices": {node: cards}, "disk.nvme": {node: disks}}


@pytest.mark.parametrize(
    ("check", "seen", "guids"),
    [
        ("ib.state", "mlx5_0 DOWN, Disabled; mlx5_10 INIT, LinkUp", "ac"),
        ("ib.state", "mlx5_1:2 DOWN, Polling", "b"),
        ("ib.counters", "mlx5_0:1 symbol_error +90 in 10 min, 9 per hour where 1 are", "a"),
        ("ib.counters", "mlx5_9:1 symbol_error +90 in 10 min", ""),
        ("ib.downed", "mlx5_0:1 once in 1 h, mlx5_1:1 2 times in 1 h", "ab"),
        ("ib.rate", "mlx5_1 200 Gbit/s", "b"),
        ("ib.present", "mlx5_1 ", ""),
    ],
)
def test_ports_name_their_cards(check: str, seen: str, guids: str) -> None:
    found = faults([failure("n1", seen, check)], more_facts("n1"))
    assert {(one.check, one.part[1][-1]) for one in found} == {(check, guid) for guid in guids}
    assert {one.part[0] for one in found} <= {"rdma"}


@pytest.mark.parametrize(
    ("seen", "serials"),
    [
        ("nvme0 PM9A3, serial S64A: read only", {"S64A"}),
        ("nvme10 PM9A3, serial S64A: 93 % used", {"S64B"}),  # the fact counts, not the words
        ("dead: nvme10 PM9A3, serial S64B", {"S64B"}),
        ("nvme1 PM9A3, serial S64A: read only", set()),
        ("1 NVMe disk", set()),
    ],
)
def test_a_disk_is_named_by_its_device(seen: str, serials: set[str]) -> None:
    found = faults([failure("n1", seen, "disk.nvme")], more_facts("n1"))
    assert found == {Fault("disk.nvme", ("disk", one), PartPlace("n1", "")) for one in serials}


# ---------------------------------------------------------------- part or slot


def past(*found: Fault, day: str = "2026-11-20") -> PastFaults:
    return PastFaults(day, frozenset(found))


def test_the_same_part_elsewhere_blames_the_part() -> None:
    newer, older = past(fault("a", "n3", 4)), past(fault("a", "n2", 4), day="2026-11-01")
    (text,) = blame([fault("a", "n1", 1)], [newer, older])
    assert text == (
        "GPU a in n1 0000:01:00.0 fails gpu.ecc_unc, as it did in n3 0000:04:00.0 on 2026-11-20: "
        "the part is at fault, not the node"
    )


def test_in_another_slot_of_the_node_it_is_not_the_slot() -> None:
    (text,) = blame([fault("a", "n1", 1)], [past(fault("a", "n1", 2))])
    assert text.endswith("the part is at fault, not the slot")


def test_another_part_in_the_same_slot_blames_the_slot() -> None:
    (text,) = blame([fault("b", "n1", 1)], [past(fault("a", "n1", 1))])
    assert text == (
        "GPU b in n1 0000:01:00.0 fails gpu.ecc_unc, as GPU a did in this slot on 2026-11-20: "
        "look at slot, riser, cooling and power"
    )


def port_fault(guid: str, node: str) -> Fault:
    return Fault("ib.counters", ("rdma", guid), PartPlace(node, "0000:a1:00.0"))


def test_a_card_whose_link_is_bad_may_have_taken_its_cable_with_it() -> None:
    (text,) = blame([port_fault("0xa", "n1")], [past(port_fault("0xa", "n2"))])
    assert text == (
        "RDMA card 0xa in n1 0000:a1:00.0 fails ib.counters, as it did in n2 0000:a1:00.0 on "
        "2026-11-20: the part is at fault, not the node; or its cable, if that moved with it"
    )


def test_another_card_at_the_same_link_blames_the_link() -> None:
    (text,) = blame([port_fault("0xb", "n1")], [past(port_fault("0xa", "n1"))])
    assert text.endswith(
        "did in this slot on 2026-11-20: look at cable, transceiver and switch port"
    )


def test_a_disk_is_blamed_by_itself_and_its_slot_is_not_known() -> None:
    here, there = PartPlace("n1", ""), PartPlace("n2", "")
    old = past(
        Fault("disk.nvme", ("disk", "S1"), there),
        Fault("disk.nvme", ("disk", "S2"), here),
    )
    (text,) = blame([Fault("disk.nvme", ("disk", "S1"), here)], [old])
    assert text == (
        "disk S1 in n1 fails disk.nvme, as it did in n2 on 2026-11-20: "
        "the part is at fault, not the node"
    )


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param([], id="no-history"),
        pytest.param([past()], id="healthy"),
        pytest.param([past(fault("a", "n1", 1))], id="as-it-was"),
        pytest.param([past(fault("b", "n2", 1))], id="another-part-elsewhere"),
        pytest.param([past(fault("a", "n2", 1, "gpu.xid"))], id="another-check"),
    ],
)
def test_otherwise_nothing_is_said(earlier: list[PastFaults]) -> None:
    assert blame([fault("a", "n1", 1)], earlier) == ()


def test_two_parts_that_take_their_faults_with_them_blame_no_slot() -> None:
    today = [fault("a", "n1", 2), fault("b", "n1", 1)]
    texts = blame(today, [past(fault("a", "n1", 1), fault("b", "n1", 2))])
    assert [text.rpartition(": ")[2] for text in texts] == [
        "the part is at fault, not the slot",
        "the part is at fault, not the slot",
    ]


def test_many_faults_are_counted() -> None:
    today = [fault(f"g{number}", "n1", number) for number in range(MOST + 3)]
    before = past(*(fault(f"g{number}", "n2", number) for number in range(MOST + 3)))
    texts = blame(today, [before])
    assert len(texts) == MOST + 1
    assert texts[-1] == "3 more parts that fail failed before"


FAULTS = st.builds(fault, st.sampled_from("abc"), st.sampled_from(["n1", "n2"]), st.integers(1, 2))


@settings(max_examples=60)
@given(st.frozensets(FAULTS, max_size=3), st.lists(st.frozensets(FAULTS, max_size=3), max_size=3))
def test_a_sentence_is_said_exactly_where_history_has_the_reason(
    today: frozenset[Fault], histories: list[frozenset[Fault]]
) -> None:
    before = [old for history in histories for old in history]
    failing = {one.part for one in today}
    expected = 0
    for one in today:
        expected += any(old.part == one.part and old.place != one.place for old in before)
        expected += any(old.place == one.place and old.part not in failing for old in before)
    assert len(blame(today, [PastFaults("2026-11-20", one) for one in histories])) == expected


# ---------------------------------------------------------------- recorded runs


def report(name: str, nodes: Nodes, *findings: Finding) -> Report:
    seen = []
    for node, uuids in nodes.items():
        seen.append(NodeSnapshot(node, "", True, facts={"gpu.nvml": nvml(*uuids)}))
    started = f"2026-11-{name[-2:]}T09:30:00Z"
    return Report("check", name, "c", started, 1.0, "fail", 1, tuple(seen), findings)


def record(runs: Runs, written: Report) -> None:
    row = RecordedRun(
        written.run, "check", "c", "i.yaml", written.started, 1.0, "fail", 1, 2, 2, 1, 0, 0
    )
    runs.record(packed(written, row))


BEFORE = report("r-10", {"n1": ["a", "b"], "n2": ["c", "d"]}, failure("n1", "GPU 1: 2"))
TODAY = report("r-20", {"n1": ["a", "e"], "n2": ["b", "d"]}, failure("n2", "GPU 0: 1"))


def test_the_history_of_the_cluster_is_read(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert blamed(runs, TODAY) == ()
    record(runs, BEFORE)
    (text,) = blamed(runs, TODAY)
    assert text.startswith("GPU b in n2 0000:01:00.0 fails gpu.ecc_unc, as it did in n1 0000:02:")
    assert "on 2026-11-10: the part is at fault, not the node" in text


def test_disks_of_recorded_runs_are_known(tmp_path: Path) -> None:
    def with_disks(name: str, disks: dict[str, str], failing: str) -> Report:
        seen = []
        for node, serial in disks.items():
            disk = Disk("nvme0", "PM9A3", serial, "live", Health(4, 3, 12))
            seen.append(NodeSnapshot(node, "", True, facts={"disk.nvme": (disk,)}))
        finding = failure(failing, "nvme0 PM9A3, serial S1: read only", "disk.nvme")
        return replace(report(name, {}, finding), nodes=tuple(seen))

    runs = Runs(tmp_path)
    record(runs, with_disks("r-10", {"n1": "S1", "n2": "S2"}, "n1"))
    (text,) = blamed(runs, with_disks("r-20", {"n1": "S3", "n2": "S1"}, "n2"))
    assert text == (
        "disk S1 in n2 fails disk.nvme, as it did in n1 on 2026-11-10: "
        "the part is at fault, not the node"
    )


def test_a_uuid_on_two_nodes_blames_none(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    record(runs, BEFORE)
    same = report("r-20", {"n1": ["b"], "n2": ["b"]}, failure("n2", "GPU 0: 1"))
    assert blamed(runs, same) == ()


def test_only_the_newest_runs_are_read(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    record(runs, BEFORE)
    for number in range(TRIED):
        passed = Finding(ECC, "pass", "error", ("n1", "n2"), "")
        record(runs, report(f"r-11-{number:02}-11", {"n1": ["a"], "n2": ["b"]}, passed))
    assert blamed(runs, TODAY) == ()


@pytest.mark.parametrize(
    "damage",
    [
        "update fact set body = substr(body, 1, 9) where run = 'r-15'",
        "update run set report = substr(report, 1, 9) where run = 'r-15'",
        "update run set report = x'00ff' where run = 'r-15'",
        "update fact set body = x'' where run = 'r-15'",
        "delete from fact where run = 'r-15'",
    ],
)
def test_a_damaged_run_tells_nothing_and_hides_no_other(tmp_path: Path, damage: str) -> None:
    runs = Runs(tmp_path)
    record(runs, BEFORE)
    expected = blamed(runs, TODAY)
    other = report("r-15", {"n1": ["x", "b"], "n2": ["c", "d"]}, failure("n1", "GPU 1: 2"))
    record(runs, other)
    assert "2026-11-15" in blamed(runs, TODAY)[0]
    Database(tmp_path).write((damage, ()))
    assert (tmp_path / NAME).exists()
    assert blamed(runs, TODAY) == expected
