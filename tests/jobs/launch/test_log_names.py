"""Names of files on the controller: of the inventory's nodes and the plan's ranks alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.verify.frames import parse_frame
from tests.support.pasting import WORDS


@pytest.mark.parametrize("name", ["n1", "gpu-01.example.org", "_a", "a..b", "fd00::1"])
def test_a_nodes_log_is_in_the_folder(name: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(f"cluster: c\nnodes:\n  - {{name: {json.dumps(name)}, address: 10.0.0.1}}\n")
    (node,) = load_inventory(file).nodes
    logs = Logs(tmp_path / "logs")
    for path in (logs.path((node.name, None)), logs.path((node.name, 3))):
        assert path.parent == logs.folder
        assert path.suffix == ".log"


@pytest.mark.parametrize("word", [*WORDS, "../x", "/etc/x", "a/b", ".", "..", ".x", "-x"])
def test_no_node_of_an_inventory_is_called_so(word: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(f"cluster: c\nnodes:\n  - {{name: {json.dumps(word)}, address: 10.0.0.1}}\n")
    with pytest.raises(InputError):
        load_inventory(file)


@pytest.mark.parametrize("rank", [7, -1, 2.0, True, "0", "../x", [0], 10**30])
def test_lines_of_a_rank_that_the_node_does_not_run_open_no_file(rank: Any) -> None:
    with pytest.raises(ValueError, match="which is not there"):
        parse_frame({"what": "lines", "lines": ["x"], "rank": rank}, frozenset({0, 1, 2}))
