"""The fleet as a picture: every node has its place, odd ones say why, texts are no markup."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, NodeGroup, Report
from clusterprep.reports import render
from clusterprep.reports.fleet_grid import GROUPS, TITLED, WIDTH, FleetGrid, layout
from clusterprep.reports.html_nodes import Roster
from tests.support.command import asked

from .situations import SITUATIONS, passes, reached, report
from .test_hostile import HOSTILE, allowed, spoiled
from .test_html_report import MARKUP, contrast
from .three_fleets import EIGHT, FLEETS, one_odd_node

ALL = SITUATIONS | FLEETS
SVG = "{http://www.w3.org/2000/svg}"
TEN_THOUSAND = tuple(f"node{number:05}" for number in range(10_000))


def fleet(names: tuple[str, ...], *findings: Finding, **values: object) -> Report:
    return report("check", nodes=reached(names, {}), findings=findings, **values)


def grid_of(of: Report) -> FleetGrid:
    grid = layout(of, Roster(of))
    assert grid is not None
    return grid


def fail(name: str, check: str = "eth.mtu", severity: str = "error") -> Finding:
    return Finding(check, "fail", severity, (name,), "differs", "1500", "9000")


def racks(names: tuple[str, ...], size: int) -> tuple[NodeGroup, ...]:
    starts = range(0, len(names), size)
    return tuple(NodeGroup(f"rack{at // size}", names[at : at + size]) for at in starts)


def drawn(of: Report) -> ET.Element:
    return ET.fromstring(render(of, "svg"))  # noqa: S314 - what we have just rendered


@pytest.mark.parametrize("name", ALL)
def test_every_report_is_a_picture_that_loads_nothing(name: str) -> None:
    text = render(ALL[name](), "svg")
    assert drawn(ALL[name]()).tag == f"{SVG}svg"
    assert "<script" not in text
    assert not re.search(r"\shref=|url\(|@import", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_odd_nodes_say_which_they_are_and_why() -> None:
    of = fleet(
        EIGHT,
        fail("gpu03"),
        fail("gpu03", "time.offset"),
        fail("gpu03", "kernel.version", "warning"),
        fail("gpu05", severity="warning"),
        Finding("ib.state", "unknown", "error", ("gpu06",), "m", reason="hung"),
        replace(fail("gpu07"), silenced="old switch"),
        replace(fail("gpu08"), fixed=True),
    )
    (block,) = grid_of(of).blocks
    assert block.note == "5/8 well"
    assert [(square.kind, square.title) for square in block.squares] == [
        ("f", "gpu03: FAIL eth.mtu, time.offset"),
        ("w", "gpu05: WARN eth.mtu"),
        ("u", "gpu06: UNKN ib.state"),
    ]


def test_a_node_that_was_not_reached_is_unknown() -> None:
    first, *others = reached(EIGHT, {})
    lost = replace(first, reached=False, reason="timed_out")
    (block,) = grid_of(report("check", nodes=(lost, *others), findings=())).blocks
    assert [square.title for square in block.squares] == ["gpu01: UNKN not reached"]


def test_each_group_is_a_block_and_no_square_is_on_another() -> None:
    of = fleet(EIGHT, *map(fail, EIGHT), groups=racks(EIGHT, 3))
    grid = grid_of(of)
    assert [block.label for block in grid.blocks] == ["rack0", "rack1", "rack2"]
    assert [len(block.squares) for block in grid.blocks] == [3, 3, 2]
    places = Counter((square.x, square.y) for block in grid.blocks for square in block.squares)
    assert len(places) == 8
    assert all(x + grid.side <= WIDTH and y + grid.side <= grid.height for x, y in places)


def test_a_node_of_several_groups_is_in_the_smallest() -> None:
    everything = NodeGroup("all", EIGHT)
    grid = grid_of(fleet(EIGHT, groups=(everything, NodeGroup("spare", EIGHT[6:]))))
    assert [(block.label, block.note) for block in grid.blocks] == [
        ("all", "6/6 well"),
        ("spare", "2/2 well"),
    ]


def test_a_node_of_no_group_is_among_others() -> None:
    grid = grid_of(fleet(EIGHT, groups=(NodeGroup("rack1", EIGHT[:6]),)))
    assert [(block.label, block.note) for block in grid.blocks] == [
        ("rack1", "6/6 well"),
        ("other nodes", "2/2 well"),
    ]


def test_many_groups_share_the_last_block() -> None:
    grid = grid_of(fleet(TEN_THOUSAND, groups=racks(TEN_THOUSAND, 8)))
    assert len(grid.blocks) == GROUPS + 1
    assert grid.blocks[-1].note == f"{10_000 - 8 * GROUPS:,}/{10_000 - 8 * GROUPS:,} well"


@pytest.mark.parametrize("size", [1, 8, 32, 500, 10_000])
def test_ten_thousand_nodes_are_a_small_picture(size: int) -> None:
    odd = (
        *passes(TEN_THOUSAND, "time.offset"),
        *(fail(name, "time.offset") for name in TEN_THOUSAND[::3]),
        Finding("gpu.xid", "fail", "warning", TEN_THOUSAND[1::3], "m"),
        Finding("ib.state", "unknown", "error", TEN_THOUSAND[2::3], "m"),
    )
    of = fleet(TEN_THOUSAND, *odd, groups=racks(TEN_THOUSAND, size))
    text = render(of, "svg")
    assert len(text) < 300_000
    assert text.count("<title>") == TITLED + 1
    assert grid_of(of).height < 12_000


@pytest.mark.parametrize("kind", MARKUP | HOSTILE)
@pytest.mark.parametrize("name", ["one_odd_node", "half_dead", "unreachable", "wrong_input"])
def test_what_nodes_say_is_no_markup(name: str, kind: str) -> None:
    harmless = {
        (element.tag, *sorted(element.keys()))
        for of in (*FLEETS.values(), *SITUATIONS.values())
        for element in drawn(of()).iter()
    }
    of = spoiled(ALL[name](), (MARKUP | HOSTILE)[kind])
    text = render(of, "svg")
    assert {(each.tag, *sorted(each.keys())) for each in drawn(of).iter()} <= harmless
    assert {char for char in text if not allowed(char)} == set()
    text.encode("utf-8")
    assert all(len(line) < 20_000 for line in text.splitlines())


def test_words_can_be_read_in_both_themes() -> None:
    light, dark = render(one_odd_node(), "svg").split("prefers-color-scheme")[:2]
    for style in (light, dark):
        (paper,) = re.findall(r"\.paper\{fill:(#\w+)\}", style)
        words = re.findall(r"text[.\w]*(?:,text\.\w)?\{[^}]*fill:(#\w+)", style)
        assert len(words) == 5
        assert [color for color in words if contrast(color, paper) < 4.5] == []


def test_a_report_without_nodes_says_what_it_knows() -> None:
    text = render(SITUATIONS["wrong_input"](), "svg")
    assert "ERROR: " in text
    assert 'class="well"' not in text


def test_the_groups_of_the_inventory_are_those_of_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [{"name": name, "address": "127.0.0.1"} for name in ("n1", "n2", "n3")]
    for node in nodes:
        node["env"] = {"NCCL_HOSTID": node["name"]}
    groups = {"rack1": {"nodes": "n[1-2]"}, "rack2": {"nodes": "n3"}}
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(json.dumps({"transport": "local", "nodes": nodes, "groups": groups}))
    words = ("check", str(inventory), "--only", "os.release", "--limit", "n[2-3]")
    code, text, _ = asked(capsys, *words, "--format", "json")
    assert code == 0
    assert json.loads(text)["groups"] == [
        {"name": "rack1", "nodes": ["n2"]},
        {"name": "rack2", "nodes": ["n3"]},
    ]
    _, picture, _ = asked(capsys, *words, "--format", "svg")
    assert ">rack1<" in picture
    assert ">rack2<" in picture
