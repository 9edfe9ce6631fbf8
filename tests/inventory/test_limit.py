"""`--limit`: nodes and groups by name, in the inventory's order, and nothing that is not there."""

from __future__ import annotations

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.limit import limit_to, limit_to_failed
from clusterprep.model import Gpus, Inventory, Node, Silence

NAMES = [*(f"gpu{number:02}" for number in range(1, 13)), "login"]
INVENTORY = Inventory(
    "test",
    tuple(Node(name, name, index) for index, name in enumerate(NAMES)),
    {"rack1": ("gpu01", "gpu02"), "rack2": ("gpu03",), "empty": ()},
    master_port=29600,
    silences=(Silence("pcie.acs", frozenset({"gpu01"}), "ticket"),),
    path="inventory.yaml",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("gpu03", ["gpu03"], id="one"),
        pytest.param("gpu[01-03]", ["gpu01", "gpu02", "gpu03"], id="range"),
        pytest.param("gpu[01,03]", ["gpu01", "gpu03"], id="list-in-brackets"),
        pytest.param("login,gpu[02,01]", ["gpu01", "gpu02", "login"], id="the-inventorys-order"),
        pytest.param("rack1", ["gpu01", "gpu02"], id="group"),
        pytest.param("rack2,login", ["gpu03", "login"], id="group-and-node"),
        pytest.param("gpu01,gpu01,rack1", ["gpu01", "gpu02"], id="named-twice"),
        pytest.param("gpu[01-12]!gpu[02-12]", ["gpu01"], id="all-but-some"),
        pytest.param(
            "gpu[01-12]!rack1,gpu02",
            [f"gpu{n:02}" for n in range(2, 13)],
            id="all-but-a-group-and-one-back",
        ),
        pytest.param("all", NAMES, id="all"),
        pytest.param(" gpu01 , gpu02 ", ["gpu01", "gpu02"], id="blanks"),
    ],
)
def test_only_the_nodes_named_are_left(text: str, expected: list[str]) -> None:
    assert [node.name for node in limit_to(INVENTORY, text).nodes] == expected


@pytest.mark.parametrize("text", ["rack1:rack2", "rack1:!gpu01", "rack1:&rack2", "all:!rack2"])
def test_a_pattern_of_ansible_is_told_in_our_words(text: str) -> None:
    with pytest.raises(InputError, match="a:!b and a:&b are a,b and a!b and a&b here"):
        limit_to(INVENTORY, text)


def test_everything_else_stays_and_nodes_keep_their_places() -> None:
    limited = limit_to(INVENTORY, "gpu[02-03]")
    assert (limited.master_port, limited.silences, limited.groups) == (
        29600,
        INVENTORY.silences,
        INVENTORY.groups,
    )
    assert [node.index for node in limited.nodes] == [1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("gpu13", "gpu13", id="no-such-node"),
        pytest.param("gpu[11-14]", "gpu[13-14]", id="a-range-that-goes-too-far"),
        pytest.param("gpu1", "gpu1", id="zeroes-matter"),
        pytest.param("rack9", "rack9", id="no-such-group"),
        pytest.param("", "empty", id="nothing"),
        pytest.param("gpu[01-", "gpu[01-", id="an-open-bracket"),
        pytest.param("gpu[3-1]", "backwards", id="backwards"),
        pytest.param("gpu01,,gpu02", "missing", id="a-comma-too-many"),
        pytest.param("gpu01&gpu02", "names no node", id="no-node-in-both"),
        pytest.param("empty", "names no node", id="an-empty-group"),
        pytest.param("gpu[1-9999999]", "more than", id="far-too-many"),
        pytest.param("@rack1", "@rack1", id="clustershells-groups-are-off"),
    ],
)
def test_what_is_not_there_is_wrong_input(text: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        limit_to(INVENTORY, text)
    (problem,) = raised.value.problems
    assert words in problem.message
    assert (problem.key, problem.file) == ("--limit", "inventory.yaml")


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(InputError, match="did you mean 'rack1'"):
        limit_to(INVENTORY, "rak1")


def test_what_failed_is_what_is_left_of_the_inventory() -> None:
    limited = limit_to_failed(INVENTORY, ["gpu03", "gone", "gpu01"], "run-1")
    assert [node.name for node in limited.nodes] == ["gpu01", "gpu03"]


@pytest.mark.parametrize("failed", [[], ["gone"]])
def test_where_nothing_failed_nothing_is_tried_again(failed: list[str]) -> None:
    with pytest.raises(InputError, match="no node failed in run run-1") as raised:
        limit_to_failed(INVENTORY, failed, "run-1")
    assert raised.value.problems[0].key == "--retry-failed"


# ---------------------------------------------------------------- beside others


def stock(*kinds: int | None) -> Inventory:
    """Return nodes n1, n2, … that declare so many GPUs."""
    nodes = []
    for at, gpus in enumerate(kinds, 1):
        declared = None if gpus is None else Gpus(gpus)
        nodes.append(Node(f"n{at}", f"n{at}", at - 1, gpus=declared))
    return Inventory("test", tuple(nodes))


@pytest.mark.parametrize(
    ("inventory", "failed", "expected"),
    [
        pytest.param(stock(*[None] * 9), "n4", "n1 n2 n4", id="one-against-two"),
        pytest.param(stock(*[None] * 9), "n2 n4", "n1 n2 n3 n4 n5", id="two-against-three"),
        pytest.param(stock(*[None] * 3), "n1 n2", "n1 n2 n3", id="as-many-as-there-are"),
        pytest.param(stock(8, 8, 4, 4, 4, 8), "n4", "n3 n4 n5", id="of-the-same-kind"),
        pytest.param(stock(8, 8, 4, 4, 4, 8, 8), "n1 n3", "n1 n2 n3 n4 n5 n6", id="for-each-kind"),
    ],
)
def test_a_node_that_failed_is_compared_with_a_majority_of_its_kind(
    inventory: Inventory, failed: str, expected: str
) -> None:
    limited = limit_to_failed(inventory, failed.split(), "run-1", peers=True)
    assert [node.name for node in limited.nodes] == expected.split()


def test_nodes_that_are_there_to_compare_with_are_said() -> None:
    limited = limit_to_failed(stock(None, None, None, None), ["n3"], "run-1", peers=True)
    assert limited.warnings == ("n3 failed in run run-1; n[1-2]: only to compare with",)
    alone = limit_to_failed(stock(None, None), ["n1", "n2"], "run-1", peers=True)
    assert (len(alone.nodes), alone.warnings) == (2, ())
