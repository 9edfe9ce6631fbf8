"""Where parts are in a run, and which of them moved, came or went between two."""

from __future__ import annotations

import json
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.nvme import Disk, Health
from clusterprep.facts.rdma import Gid, Port, RdmaDevice
from clusterprep.history.compare import fact_changes
from clusterprep.history.encoding import encoded
from clusterprep.history.parts import (
    Parts,
    moves,
    parts_of,
    slot_of,
    with_common_parts,
    without_swaps,
)
from clusterprep.model import Absent
from clusterprep.model.history import PartMove, PartPlace

Placed = dict[tuple[str, int], str]  # node and number of the slot → UUID

UUIDS = st.sampled_from([f"GPU-{letter}" for letter in "abcdefgh"])
SEATS = [(node, slot) for node in ("n1", "n2", "n3") for slot in range(3)]


def kept(value: Any) -> Any:
    """A fact as the history gives it back."""
    return json.loads(encoded(value, 1 << 20))


def nvml(gpus: dict[int, str], lost: tuple[str, ...] = ()) -> Nvml:
    rows = (
        Gpu(index, "H100", uuid, f"00000000:{slot:02X}:00.0")
        for index, (slot, uuid) in enumerate(gpus.items())
    )
    return Nvml("570.1", "12.8", tuple(rows), lost)


def parts(**gpus: Nvml) -> Parts:
    return parts_of({"gpu.nvml": {node: kept(value) for node, value in gpus.items()}})


def card(*addresses: str, link_layer: str = "Ethernet", pci: str | None = "0000:1c:00.0") -> Any:
    gids = tuple(
        Gid(index, IPv6Address(text), "RoCE v2", None) for index, text in enumerate(addresses)
    )
    port = Port(1, "ACTIVE", "LinkUp", link_layer, 400.0, 7, gids)
    return RdmaDevice("mlx5_0", pci, "28.1", "MT_0001", "MT4129", (), (port,))


# ---------------------------------------------------------------- what a part is known by


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_a_slot_is_written_as_the_kernel_does(text: str, slot: str) -> None:
    assert slot_of(text) == slot


@pytest.mark.parametrize(
    ("device", "guid"),
    [
        pytest.param(
            card("fe80::b83f:d203:0012:3456", link_layer="InfiniBand"),
            "0xb83fd20300123456",
            id="infiniband",
        ),
        pytest.param(
            card("fec0:0:0:7:b83f:d203:12:3456", link_layer="InfiniBand"),
            "0xb83fd20300123456",
            id="another-subnet-prefix",
        ),
        pytest.param(
            card("::ffff:10.0.0.1", "fe80::ba3f:d2ff:fe12:3456"), "0xba3fd2fffe123456", id="roce"
        ),
        pytest.param(card("fe80::b83f:d2ff:fe12:3456"), None, id="a-mac-that-software-chose"),
        pytest.param(card("fe80::1:2"), None, id="an-address-that-is-not-made-of-a-mac"),
        pytest.param(card("::ffff:10.0.0.1"), None, id="a-port-that-is-down"),
        pytest.param(card("fe80::", link_layer="InfiniBand"), None, id="a-guid-of-zero"),
    ],
)
def test_a_card_is_known_by_the_guid_of_its_port(device: RdmaDevice, guid: str | None) -> None:
    seen = parts_of({"rdma.devices": {"n1": kept((device,))}})
    expected = {} if guid is None else {("rdma", guid): PartPlace("n1", "0000:1c:00.0")}
    assert seen.places == expected
    assert (("rdma", "n1") in seen.whole) == (guid is not None)


def test_a_card_without_hardware_is_no_part() -> None:
    device = card("fe80::ba3f:d2ff:fe12:3456", pci=None)
    seen = parts_of({"rdma.devices": {"n1": kept((device,))}})
    assert seen == Parts({}, frozenset({("rdma", "n1")}), frozenset())


def test_a_disk_is_known_by_its_serial_number() -> None:
    health = Absent("missing_tool", "")
    disks = (Disk("nvme0", "PM9A3", "S64HNE0R  ", "live", health),)
    assert parts_of({"disk.nvme": {"n1": kept(disks)}}).places == {
        ("disk", "S64HNE0R"): PartPlace("n1", "")
    }


def test_what_is_in_two_places_is_no_name_of_a_part() -> None:
    seen = parts(n1=nvml({1: "GPU-0"}), n2=nvml({1: "GPU-0", 2: "GPU-b"}))
    assert seen.places == {("gpu", "GPU-b"): PartPlace("n2", "0000:02:00.0")}
    assert seen.shared == {("gpu", "GPU-0")}


# ---------------------------------------------------------------- two runs


def test_moved_new_and_gone() -> None:
    before = parts(n1=nvml({1: "GPU-a", 2: "GPU-b"}), n2=nvml({1: "GPU-c"}))
    after = parts(n1=nvml({1: "GPU-c", 2: "GPU-b"}), n2=nvml({1: "GPU-d"}))
    first, second = PartPlace("n1", "0000:01:00.0"), PartPlace("n2", "0000:01:00.0")
    assert moves(before, after) == (
        PartMove("gpu", "GPU-a", first, None),
        PartMove("gpu", "GPU-c", second, first),
        PartMove("gpu", "GPU-d", None, second),
    )


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(parts(n1=nvml({2: "GPU-b"}, lost=("GPU 0: lost",))), id="a-gpu-is-lost"),
        pytest.param(parts_of({"gpu.nvml": {"n1": None}}), id="no-driver"),
        pytest.param(parts_of({"gpu.nvml": {"n1": Absent("hung", "")}}), id="not-known"),
        pytest.param(parts_of({"gpu.nvml": {}}), id="not-reached"),
        pytest.param(parts_of({}), id="not-asked"),
        pytest.param(
            parts(n1=nvml({2: "GPU-b"}), n2=nvml({1: "GPU-a"}), n3=nvml({1: "GPU-a"})),
            id="in-two-places",
        ),
    ],
)
def test_a_part_is_not_gone_where_that_is_not_known(after: Parts) -> None:
    before = parts(n1=nvml({1: "GPU-a", 2: "GPU-b"}))
    assert moves(before, after) == ()
    assert moves(after, before) == ()


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(SEATS), UUIDS), st.dictionaries(st.sampled_from(SEATS), UUIDS)
)
def test_moves_are_what_differs(before: Placed, after: Placed) -> None:
    """Each part that has one place in a run, and none twice in either, is told if it differs."""
    seen = moves(_run(before), _run(after))
    expected = set()
    for uuid in {*before.values(), *after.values()}:
        old = [seat for seat, name in before.items() if name == uuid]
        new = [seat for seat, name in after.items() if name == uuid]
        if old != new and len(old) <= 1 and len(new) <= 1:
            expected.add((uuid, *(_place(seats) for seats in (old, new))))
    assert {(move.part, move.before, move.after) for move in seen} == expected
    backwards = moves(_run(after), _run(before))
    assert {(m.part, m.after, m.before) for m in backwards} == expected


def _run(placed: Placed) -> Parts:
    nodes: dict[str, dict[int, str]] = {"n1": {}, "n2": {}, "n3": {}}
    for (node, slot), uuid in placed.items():
        nodes[node][slot] = uuid
    return parts(**{node: nvml(gpus) for node, gpus in nodes.items()})


def _place(seats: list[tuple[str, int]]) -> PartPlace | None:
    return PartPlace(seats[0][0], f"0000:{seats[0][1]:02x}:00.0") if seats else None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=100),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpus", "uuid", "pci", "ports", "gids", "address", "serial", "lost"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(JSON, st.sampled_from(["gpu.nvml", "rdma.devices", "disk.nvme"]))
def test_what_is_not_as_expected_changes_nothing_for_other_nodes(value: Any, fact: str) -> None:
    sane = {"n1": kept(nvml({1: "GPU-a"}))}
    facts = {"gpu.nvml": sane}
    facts.setdefault(fact, {})["n2"] = value
    seen = parts_of(facts)
    assert seen.places[("gpu", "GPU-a")] == PartPlace("n1", "0000:01:00.0")
    assert ("gpu", "n1") in seen.whole


def test_a_gid_that_is_no_address_and_a_long_name_are_no_parts() -> None:
    device = kept((card("fe80::ba3f:d2ff:fe12:3456"),))
    device[0]["ports"][0]["gids"][0]["address"] = "fe80::no"
    facts = {
        "rdma.devices": {"n1": device},
        "disk.nvme": {"n1": [{"serial": "S" * 81}, {"serial": " "}]},
    }
    assert parts_of(facts) == Parts({}, frozenset(), frozenset())


# ---------------------------------------------------------------- parts among the changed facts


def changed(fact: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What `compare` shows of a fact that differs, besides the moves of parts."""
    old, new = ({node: kept(value) for node, value in side.items()} for side in (before, after))
    moved = moves(parts_of({fact: old}), parts_of({fact: new}))
    changes = fact_changes(fact, *with_common_parts(fact, old, new, moved))
    return [change.key for change in without_swaps(changes, moved)]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param({"n1": nvml({1: "GPU-c", 2: "GPU-b"}), "n2": nvml({1: "GPU-a"})}, id="moved"),
        pytest.param({"n1": nvml({1: "GPU-b", 2: "GPU-a"}), "n2": nvml({1: "GPU-c"})}, id="within"),
        pytest.param({"n1": nvml({1: "GPU-d", 2: "GPU-b"}), "n2": nvml({1: "GPU-c"})}, id="new"),
    ],
)
def test_a_swap_of_gpus_is_no_changed_fact_besides(after: dict[str, Any]) -> None:
    before = {"n1": nvml({1: "GPU-a", 2: "GPU-b"}), "n2": nvml({1: "GPU-c"})}
    assert changed("gpu.nvml", before, after) == []


def test_a_swap_of_cards_is_no_changed_fact_besides() -> None:
    one, other = "fe80::b83f:d203:0012:3456", "fe80::b83f:d203:0012:9999"
    before = {"n1": (card(one, link_layer="InfiniBand"),)}
    after = {"n1": (replace(card(other, link_layer="InfiniBand"), firmware="28.2"),)}
    assert changed("rdma.devices", before, after) == ["[0].firmware"]


def test_what_no_move_tells_stays_a_changed_fact() -> None:
    before = {"n1": nvml({1: "GPU-a"}), "n2": nvml({1: "GPU-0"}), "n3": nvml({1: "GPU-0"})}
    after = {**before, "n2": nvml({1: "GPU-b"})}
    assert changed("gpu.nvml", before, after) == ["gpus[0].uuid"], "two had the name of one"
    moved = replace(nvml({1: "GPU-a"}), driver="580.1")
    assert changed("gpu.nvml", before, {**before, "n1": moved}) == ["driver"]


EIGHT = {slot: f"GPU-{slot}" for slot in range(1, 9)}
SEVEN = {slot: uuid for slot, uuid in EIGHT.items() if slot != 3}


@pytest.mark.parametrize(
    ("after", "keys"),
    [
        pytest.param(nvml(SEVEN), [], id="gone"),
        pytest.param(nvml(SEVEN, lost=("0000:03:00.0: GPU is lost",)), ["lost"], id="lost"),
        pytest.param(
            nvml({slot: EIGHT[slot] for slot in (1, 2)}, lost=("0000:03:00.0: GPU is lost",)),
            ["gpus", "lost"],
            id="lost-and-others-gone",
        ),
        pytest.param(replace(nvml(SEVEN), driver="580.1"), ["driver"], id="gone-and-updated"),
        # NVML may not show one: whether it is gone is not known, and no move tells it.
        pytest.param(replace(nvml(SEVEN), denied=(2,)), ["gpus", "denied"], id="not-shown"),
        pytest.param(nvml({**SEVEN, 3: "", 9: ""}), ["gpus"], id="without-a-name"),
    ],
)
def test_a_gpu_that_is_gone_is_told_once(after: Nvml, keys: list[str]) -> None:
    assert changed("gpu.nvml", {"n1": nvml(EIGHT)}, {"n1": after}) == keys


def test_a_gpu_that_came_back_is_told_once() -> None:
    assert changed("gpu.nvml", {"n1": nvml(SEVEN)}, {"n1": nvml(EIGHT)}) == []


def test_of_a_disk_that_is_gone_only_the_others_are_compared() -> None:
    health = Health(0, 3, 0)
    disks = [Disk(f"nvme{n}", "PM9A3", f"S{n}", "live", health) for n in range(3)]
    worn = replace(disks[2], state="dead")
    assert changed("disk.nvme", {"n1": tuple(disks)}, {"n1": (disks[0], worn)}) == ["[1].state"]


def test_a_list_that_is_not_as_expected_is_shown_as_it_is() -> None:
    old, new = {"n1": {"gpus": [{"uuid": "a"}], "lost": 3}}, {"n1": {"gpus": [7, 8], "lost": []}}
    assert with_common_parts("gpu.nvml", old, new, ()) == (old, new)
