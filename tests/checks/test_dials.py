"""The dials of a fleet in order: which got through, who took part, and how much was tried."""

from __future__ import annotations

from clusterprep.checks import CheckContext
from clusterprep.checks.dials import dials_of, dials_of_fleet
from clusterprep.facts.pairs import Dial
from clusterprep.model import Fleet
from tests.support.fleet import absent, fleet


def dial(dialer: str, listener: str, word: str = "ok", port: int = 40000) -> Dial:
    return Dial(dialer, listener, "10.0.0.1", port, word)


GOOD = dial("n1", "n2")
SECOND_PORT = dial("n1", "n2", port=40001)
BAD = dial("n1", "n3", "timed_out")
BACK = dial("n2", "n1")


def dialled() -> Fleet:
    return fleet(
        n1={"net.dials": (GOOD, SECOND_PORT, BAD)},
        n2={"net.dials": (BACK,)},
        n3={"net.dials": ()},
        n4={"net.dials": absent("eth.iface_choice")},
    )


def test_dials_are_told_apart_by_whether_they_got_through() -> None:
    dials = dials_of_fleet(dialled())
    assert dials.all == (GOOD, SECOND_PORT, BAD, BACK)
    assert dials.failed == (BAD,)
    assert dials.connected.all == (GOOD, SECOND_PORT, BACK)


def test_a_node_takes_part_that_dialled_or_was_dialled() -> None:
    dials = dials_of_fleet(dialled())
    assert (dials.dialers, dials.listeners) == ({"n1", "n2"}, {"n1", "n2", "n3"})
    assert dials.ends == {"n1", "n2", "n3"}
    assert dials.connected.ends == {"n1", "n2"}


def test_a_pair_that_was_dialled_on_two_ports_is_one_pair() -> None:
    dials = dials_of_fleet(dialled())
    assert dials.describe_tried(4) == "3 of 12 directed pairs tried"
    assert dials.connected.describe_tried(4) == "2 of 12 directed pairs tried"


def test_a_check_sees_the_dials_of_its_own_nodes() -> None:
    seen = dialled()
    known = tuple(node for node in seen.reached if node.name != "n4")
    assert dials_of(CheckContext(seen, known, "net.ports")) is dials_of_fleet(seen)
    first = CheckContext(seen, known[:1], "net.ports")
    assert dials_of(first).all == (GOOD, SECOND_PORT, BAD)
