"""`runtime:` of inventories: which node has which, with which interpreter, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Container, Node, Runtime
from clusterprep.model.runtimes import in_request, pasted_python, read_arguments

NODES = """
nodes:
  - {name: n1, address: 10.0.0.1}
  - {name: n2, address: 10.0.0.2, runtime: {venv: //opt//venv}, python: /usr/bin/python3.11}
  - {name: n3, address: 10.0.0.3}
groups: {other: {nodes: n3, runtime: {container: {engine: podman, image: "train:1"}}}}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return path


def test_a_node_wins_over_its_group_and_the_group_over_the_top(tmp_path: Path) -> None:
    top = "runtime: {modules: [cuda/12.4, nccl], conda: train}\n"
    nodes = load_inventory(written(tmp_path, top + NODES)).nodes
    assert [node.runtime for node in nodes] == [
        Runtime(modules=("cuda/12.4", "nccl"), conda="train"),
        Runtime(venv="/opt/venv"),
        Runtime(container=Container("podman", "train:1")),
    ]
    assert [node.python for node in nodes] == ["python3", "/usr/bin/python3.11", "python3"]


def test_without_a_runtime_a_node_is_as_before(tmp_path: Path) -> None:
    one, _, _ = load_inventory(written(tmp_path, NODES)).nodes
    assert (one.runtime, one.python) == (None, "/usr/bin/python3")
    assert (read_arguments(None), in_request(None)) == ((), {})


@pytest.mark.parametrize(
    "runtime",
    [
        "{}",
        "{conda: train, venv: /opt/venv}",
        "{container: {engine: podman, image: i}, modules: [cuda]}",
        "{container: {engine: rkt, image: i}}",
        "{container: {engine: podman}}",
        "{venv: relative}",
        "{venv: /opt/../etc}",
        "{activate: ~/env.sh}",
        "{conda: '-n'}",
        "{conda: 'a b'}",
        "{modules: []}",
        "{modules: ['--help']}",
        "{modules: ['cuda; touch /tmp/x']}",
        "{module: [cuda]}",
    ],
)
def test_what_is_no_runtime_is_refused(tmp_path: Path, runtime: str) -> None:
    with pytest.raises(InputError):
        load_inventory(written(tmp_path, f"runtime: {runtime}\n" + NODES))


@pytest.mark.parametrize(
    ("runtime", "python", "expected"),
    [
        (None, "/usr/bin/python3", "/usr/bin/python3"),
        (Runtime(venv="/opt/venv"), "python3", "/opt/venv/bin/python3"),
        (Runtime(conda="/opt/conda"), "python3", "/opt/conda/bin/python3"),
        (Runtime(conda="train"), "python3", "PYTHON"),
        (Runtime(modules=("python/3.12",)), "python3", "PYTHON"),
        (Runtime(modules=("cuda",)), "/sw/bin/python3", "/sw/bin/python3"),
        (Runtime(container=Container("podman", "i")), "/usr/bin/python3", "PYTHON"),
    ],
)
def test_a_line_to_paste_never_names_the_system_s_python_for_that_inside(
    runtime: Runtime | None, python: str, expected: str
) -> None:
    node = Node("n1", "10.0.0.1", 0, python=python, runtime=runtime)
    assert pasted_python(node) == expected


@pytest.mark.parametrize(
    ("runtime", "why"),
    [
        (
            "{conda: train, venv: /opt/venv}",
            "nodes[0].runtime.venv: conda and venv exclude each other; keep one",
        ),
        (
            "{container: {engine: podman, image: train}, modules: [cuda]}",
            "nodes[0].runtime.modules: container and modules exclude each other; keep one",
        ),
    ],
)
def test_what_excludes_each_other_is_named(tmp_path: Path, runtime: str, why: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"nodes:\n  - {{name: n1, runtime: {runtime}}}\n")
    with pytest.raises(InputError) as caught:
        load_inventory(path)
    assert why in str(caught.value)
