"""Which nodes may be one machine, what they share, and that they are never written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.model import EnvSetting, Gpus, Node
from clusterprep.model.colocation import (
    HOST_ID,
    largest_group,
    neighbours,
    one_machine,
    refuse_writing,
)
from tests.cli.test_main import run


def local(name: str, host_id: str | None = "", transport: str = "local", **fields: object) -> Node:
    """A node of this machine, with its name as host id unless told otherwise.

    None is no host id.
    """
    env = {} if host_id is None else {HOST_ID: EnvSetting(host_id or name, f"node {name}")}
    return Node(name, "127.0.0.1", 0, transport=transport, env=env, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "sharing", "one"),
    [
        pytest.param([local("a"), local("b")], "ab", True, id="two"),
        pytest.param([local(name) for name in "abcd"], "abcd", True, id="four"),
        pytest.param([local("a")], "", False, id="one-shares-with-none"),
        pytest.param([local("a"), local("b", "a")], "", False, id="one-host-id-for-both"),
        pytest.param([local("a"), local("b", None)], "", False, id="one-without"),
        pytest.param([local("a"), local("b", transport="ssh")], "", False, id="one-over-ssh"),
        pytest.param(
            [local("a"), local("b"), local("c", transport="ssh")],
            "ab",
            False,
            id="and-another-machine",
        ),
        pytest.param(
            [local("a"), local("b"), local("c", "b")],
            "",
            False,
            id="one-of-three-is-not-told-apart",
        ),
        pytest.param([], "", False, id="none"),
    ],
)
def test_local_nodes_with_host_ids_of_their_own_share_this_machine(
    nodes: list[Node], sharing: str, one: bool
) -> None:
    assert "".join(node.name for node in neighbours(nodes)) == sharing
    assert one_machine(nodes) is one


def test_an_empty_host_id_is_none() -> None:
    nodes = [
        local("a"),
        Node("b", "b", 1, transport="local", env={HOST_ID: EnvSetting("", "node b")}),
    ]
    assert neighbours(nodes) == ()


@pytest.mark.parametrize(
    ("uses", "visible", "most"),
    [
        pytest.param({"a": 1, "b": 1}, {}, 2, id="both-the-first"),
        pytest.param({"a": 1, "b": 1, "c": 1, "d": 1}, {}, 4, id="four"),
        pytest.param({"a": 1, "b": 1}, {"a": "0", "b": "1"}, 1, id="one-each"),
        pytest.param({"a": 2, "b": 1}, {"a": "0, 1", "b": "1"}, 2, id="one-of-two"),
        pytest.param({"a": 1, "b": 2}, {"b": "1,2"}, 1, id="the-first-and-two-others"),
        pytest.param({}, {}, 1, id="no-gpus"),
    ],
)
def test_how_many_nodes_share_a_gpu(
    uses: dict[str, int], visible: dict[str, str], most: int
) -> None:
    nodes = [local(name) for name in "abcd"]
    assert (
        largest_group(
            nodes, uses, {name: {"CUDA_VISIBLE_DEVICES": value} for name, value in visible.items()}
        )
        == most
    )


def test_nodes_of_other_machines_share_no_gpu() -> None:
    nodes = [local(name, transport="ssh", gpus=Gpus(1)) for name in "ab"]
    assert largest_group(nodes, {"a": 1, "b": 1}, {}) == 1


# ---------------------------------------------------------------- the inventory


SHARED = """\
cluster: one
transport: local
nodes:
  - {name: a, address: 127.0.0.1, env: {NCCL_HOSTID: a}}
  - {name: b, address: 127.0.0.1, env: {NCCL_HOSTID: b}}
"""
ELSEWHERE = "  - {name: c, address: 127.0.0.1, transport: ssh}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "inventory.yaml"
    path.write_text(text)
    return path


def test_nodes_of_one_machine_may_have_one_address(tmp_path: Path) -> None:
    inventory = load_inventory(written(tmp_path, SHARED))
    assert [node.address for node in inventory.nodes] == ["127.0.0.1"] * 2
    assert one_machine(inventory.nodes)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(SHARED.replace("NCCL_HOSTID: b", "NCCL_HOSTID: a"), 5, id="one-host-id"),
        pytest.param(SHARED.replace(", env: {NCCL_HOSTID: b}", ""), 5, id="no-host-id"),
        pytest.param(SHARED.replace("transport: local\n", "\n"), 5, id="over-ssh"),
        pytest.param(SHARED + ELSEWHERE, 5, id="an-address-of-another-machine-too"),
    ],
)
def test_other_nodes_may_not(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(InputError) as raised:
        load_inventory(written(tmp_path, text))
    first = raised.value.problems[0]
    assert (first.line, first.message) == (line, "duplicate address '127.0.0.1', first in line 4")


@pytest.mark.parametrize(
    "words",
    [("apply",), ("plan",), ("apply", "--dry-run"), ("rollback",), ("plan", "--limit", "a")],
)
def test_what_writes_refuses_them_before_anything_is_asked(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run(words[0], str(written(tmp_path, SHARED)), *words[1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "a,b are this one machine" in done.stderr
    assert "verify, check and env work with them" in done.stderr


def test_each_in_a_root_of_its_own_may_be_written_to() -> None:
    from clusterprep.model import Inventory

    refuse_writing(Inventory("one", (local("a", root="/srv/a"), local("b", root="/srv/b"))))
    with pytest.raises(InputError):
        refuse_writing(Inventory("one", (local("a", root="/srv/a"), local("b", root="/srv/a"))))
