"""What nodes were last given: remembered, forgotten on rollback, and held against a limited apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import Refused
from clusterprep.history import Given, refuse_clashes
from clusterprep.model import EnvValue
from clusterprep.render import Environment


def environment(nodes: tuple[str, ...], **values: str) -> Environment:
    return Environment(tuple(EnvValue(name, value, nodes, "why") for name, value in values.items()), {})


def test_the_newest_run_of_each_node_counts_and_a_rollback_is_forgotten(tmp_path: Path) -> None:
    given = Given(tmp_path)
    assert given.last("c") == {}
    assert not list(tmp_path.iterdir())
    given.remember("c", "run-1", environment(("a", "b"), NCCL_ALGO="Ring"), ("a", "b"))
    given.remember("c", "run-2", environment(("a",), NCCL_ALGO="Tree"), ("a",))
    assert given.last("c") == {"a": {"NCCL_ALGO": "Tree"}, "b": {"NCCL_ALGO": "Ring"}}
    given.forget("c", "run-2")
    assert given.last("c")["a"] == {"NCCL_ALGO": "Ring"}
    assert given.last("other") == {}


def test_a_job_wide_value_that_differs_is_refused_and_a_free_one_is_not() -> None:
    wanted = environment(("a",), NCCL_ALGO="Ring", NCCL_SOCKET_IFNAME="eth1")
    refuse_clashes(wanted, ["a"], {"b": {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth0"}})
    with pytest.raises(Refused, match="NCCL_ALGO=Tree"):
        refuse_clashes(wanted, ["a"], {"b": {"NCCL_ALGO": "Tree"}})
    with pytest.raises(Refused, match="lack"):
        refuse_clashes(wanted, ["a"], {"b": {}})
    refuse_clashes(wanted, ["a"], {})
