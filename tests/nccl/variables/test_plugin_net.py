"""NCCL_NET names the plug-in's network where every node has one fabric and one plug-in for it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.plugin_net import derive
from tests.checks.test_fabric import CASSINI, NONE, ofi, tree
from tests.support.fleet import absent, env, fleet


def derived(*plugins: Any, pci: Any = None, **options: Any) -> list[tuple[str, str | None]]:
    facts = {
        f"n{number}": {"pci.tree": tree() if pci is None else pci, "nccl.plugins": found}
        for number, found in enumerate(plugins, 1)
    }
    return [(d.name, d.value) for d in derive(Basis(fleet(**options, **facts), Choice()))]


PINNED = [("NCCL_NET", "Libfabric")]


def test_all_nodes_with_the_plugin() -> None:
    assert derived(ofi("1.14.0"), ofi("1.16.3")) == PINNED
    assert derived(ofi("1.19.2"), pci=tree(4, CASSINI)) == PINNED


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(NONE, id="no-plug-in"),
        pytest.param(ofi(None), id="another-plug-in"),
        pytest.param(ofi("1.9.1-aws"), id="a-name-with-a-blank"),
        pytest.param(ofi("git-6e504db"), id="no-version"),
        pytest.param(absent("hung"), id="not-known"),
    ],
)
def test_one_node_without_leaves_it_to_nccl(second: Any) -> None:
    assert derived(ofi("1.14.0"), second) == []


def test_what_is_declared_is_left_alone() -> None:
    assert derived(ofi("1.14.0"), each={"env": env(NCCL_NET="OFI")}) == []
    assert derived(ofi("1.14.0"), each={"env": env(NCCL_NET_PLUGIN="none")}) == []


def test_other_fabrics_are_left_to_nccl() -> None:
    assert derived(ofi("1.14.0"), pci=tree(0)) == []
