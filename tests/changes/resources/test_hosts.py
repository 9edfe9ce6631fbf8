"""Names in /etc/hosts: those of all nodes, the same everywhere, whatever installers wrote."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.file_plan import change_rows, plan_file_changes
from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.hosts import PATH, RESOURCE, block, without_other_meanings
from clusterprep.model import Fleet
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment
from tests.support.fleet import fleet

BEGIN, END = (
    b"# BEGIN clusterprep hosts: kept by clusterprep\n",
    b"# END clusterprep hosts: kept by clusterprep\n",
)
LOCAL = b"127.0.0.1\tlocalhost\n"


def named(**addresses: str) -> Fleet:
    return fleet(
        some={name: {"address": text} for name, text in addresses.items()},
        **{name: {} for name in addresses},
    )


def planned(seen: Fleet, content: bytes | None) -> Any:
    node = seen.inventory.nodes[0]
    (change,) = RESOURCE.plan(
        {}, PlanContext(seen, node, {PATH: FileState(PATH, content)}, {}, Environment((), {}))
    )
    return change


def test_every_node_of_the_inventory_has_its_line_on_top() -> None:
    seen = named(n1="10.0.0.1", n2="fd00::2")
    change = planned(seen, LOCAL)
    assert change.after == BEGIN + b"10.0.0.1\tn1\nfd00::2\tn2\n" + END + LOCAL
    assert planned(seen, change.after).action == "none"


def test_nodes_that_are_left_alone_have_theirs_in_the_order_of_the_file() -> None:
    seen = named(n1="10.0.0.1", n2="10.0.0.2", n3="10.0.0.3")
    first, second, third = seen.inventory.nodes
    limited = replace(
        seen, inventory=replace(seen.inventory, nodes=(second,), left_out=(third, first))
    )
    assert block(limited) == block(seen)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"127.0.1.1 n1\n", b""),
        (b"127.0.1.1\tn1.example N1  # installer\n", b"127.0.1.1\tn1.example # installer\n"),
        (b"10.0.0.1 n1 node-one\n", b"10.0.0.1 n1 node-one\n"),
        (b"::1 n1 localhost\n", b"::1\tlocalhost\n"),
        (b"# 127.0.1.1 n1\n", b"# 127.0.1.1 n1\n"),
        (b"127.0.1.1 n1\r\n", b""),
        (b"10.0.0.9 n10 n1x\n", b"10.0.0.9 n10 n1x\n"),
        (b"\xff n1\n", b""),
        (b"\n", b"\n"),
    ],
)
def test_a_name_of_ours_means_nothing_else(line: bytes, kept: bytes) -> None:
    assert without_other_meanings(line + LOCAL, {b"n1": b"10.0.0.1"}) == kept + LOCAL


def test_an_address_that_is_a_name_is_where_the_node_was_reached() -> None:
    seen = fleet(some={"n2": {"address": "n2.example"}}, n1={}, n2={"ssh.peer": "10.7.0.2"})
    assert planned(seen, None).after == BEGIN + b"10.0.0.1\tn1\n10.7.0.2\tn2\n" + END
    assert [fact.name for fact in RESOURCE.facts({}, seen.inventory)] == ["ssh.peer"]
    assert RESOURCE.facts({}, named(n1="10.0.0.1").inventory) == ()


def test_an_address_that_nobody_knows_in_numbers_is_a_gap() -> None:
    seen = fleet(some={"n2": {"address": "n2.example"}}, n1={}, n2={})
    with pytest.raises(NoPlan, match="the address of n2 is not known in numbers"):
        planned(seen, None)


def test_a_broken_block_is_left_alone() -> None:
    with pytest.raises(NoPlan, match="mend it by hand"):
        planned(named(n1="10.0.0.1"), BEGIN + LOCAL)


def calls(nodes: int, listed: int, own: bytes) -> int:
    """How many calls it takes to plan all nodes and to show it.

    `listed` of them stand in an older block.
    """
    addresses = {
        f"n{number}": f"10.0.{number >> 8}.{number & 255}" for number in range(1, nodes + 1)
    }
    lines = [f"{address}\t{name}\n".encode() for name, address in addresses.items()]
    older = BEGIN + b"".join(lines[:listed]) + END if listed else b""
    contents = {name: older + LOCAL + own.replace(b"NAME", name.encode()) for name in addresses}
    files = {
        name: {f"target:{PATH}": FileState(PATH, content)} for name, content in contents.items()
    }
    seen = fleet(some={name: {"address": text} for name, text in addresses.items()}, **files)
    steps, count = load_playbook("hosts").steps, itertools.count()
    sys.setprofile(lambda *_: next(count))
    try:
        planned, _ = plan_file_changes(seen, steps, Environment((), {}))
        shown = change_rows(planned, {}, {})
    finally:
        sys.setprofile(None)
    assert {row.action for row in shown} == {"update"}
    assert sum(len(row.nodes) for row in shown) == nodes
    return next(count)


@pytest.mark.parametrize("own", [b"127.0.1.1 NAME.example NAME\n", b"127.0.1.1 NAME.example\n"])
@pytest.mark.parametrize("missing", [0, 1], ids=["no-block-yet", "a-node-more"])
def test_lines_that_all_nodes_share_are_looked_at_once_and_not_for_each_node(
    missing: int, own: bytes
) -> None:
    """Ten thousand lines on each of ten thousand nodes are a hundred million.

    Comparing bytes is little beside them.
    """
    few, many = (calls(nodes, missing * (nodes - missing), own) for nodes in (100, 200))
    assert many / few < 2.1
