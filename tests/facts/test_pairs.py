"""Facts about pairs have no reads: the stage that dials brings them."""

from __future__ import annotations

import pytest

from clusterprep.facts.pairs import DIALS, LISTEN, Dial
from clusterprep.model import Inventory, Node

NODE = Node("n1", "10.0.0.1", 0)


@pytest.mark.parametrize("fact", [LISTEN, DIALS], ids=lambda fact: fact.name)
def test_facts_about_pairs_have_no_reads(fact):
    assert fact.stage == "pairs"
    assert fact.reads(NODE, Inventory("test", (NODE,))) == ()


def test_what_was_not_measured_is_none():
    dial = Dial("n1", "n2", "10.0.0.2", 29500, "refused")
    assert (dial.rtt, dial.packet, dial.carried, dial.path_mtu) == (None, None, None, None)
