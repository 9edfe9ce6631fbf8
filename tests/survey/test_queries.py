"""What is asked of a node, each thing once, and which answers nodes share."""

from __future__ import annotations

import pytest

from clusterprep.facts import Fact, file
from clusterprep.model import Inventory, Node, Read
from clusterprep.nccl.interfaces import FACTS
from clusterprep.survey import registry
from clusterprep.survey.queries import Queries, QueryPlan, plan_queries
from tests.support.asked import interpret, reads

NODE = Node("n1", "n1", 0)
INVENTORY = Inventory("test", (NODE,))
# A few stand for all, so that another check in their area changes nothing here.
NAMES = ("eth.iface_choice", "eth.mtu", "net.ports", "os.release", "time.daemon", "time.offset")
CHECKS = {name: registry.checks()[name] for name in NAMES}

# ---------------------------------------------------------------- what is asked


def test_each_thing_is_looked_at_once() -> None:
    everything = plan_queries(tuple(registry.checks().values()), registry.facts())
    asked = reads(everything, NODE, INVENTORY)
    assert len(asked) == len(set(asked))
    assert Read("file", ("/proc/sys/kernel/hostname",)) in asked
    assert len(everything.facts) == len({fact.name for fact in everything.facts})


def test_a_plan_asks_for_nothing_that_no_check_needs() -> None:
    plan = plan_queries([CHECKS["os.release"]], registry.facts())
    assert reads(plan, NODE, INVENTORY) == (Read("file", ("/etc/os-release",)),)
    assert plan.stages == frozenset()


def test_extra_facts_come_along_once() -> None:
    extra = [registry.facts()[name] for name in ("os.release", "host.machine_id")]
    plan = plan_queries([CHECKS["os.release"]], registry.facts(), extra)
    assert [fact.name for fact in plan.facts] == ["os.release", "host.machine_id"]


def test_stages_bring_what_no_read_can() -> None:
    assert plan_queries([CHECKS["time.offset"]], registry.facts()).stages == {"clock"}
    assert plan_queries([CHECKS["net.ports"]], registry.facts()).stages == {"pairs"}


def test_configuration_is_read_below_the_nodes_root_and_the_kernel_is_not() -> None:
    node = Node("n1", "n1", 0, root="/srv/image/")
    inventory = Inventory("test", (node,))
    plan = plan_queries(
        (), registry.facts(), [registry.facts()[name] for name in ("os.release", "kernel.release")]
    )
    assert {read.args[0] for read in reads(plan, node, inventory)} == {
        "/srv/image/etc/os-release", "/proc/sys/kernel/osrelease"
    }  # fmt: skip


# ---------------------------------------------------------------- what answers are shared


def test_what_nodes_answer_alike_is_parsed_once_and_shared() -> None:
    parsed: list[str] = []
    fact = Fact("a.fact", file("/a"), lambda text: (parsed.append(text), text)[1:])
    queries = Queries(QueryPlan((), (fact,)), INVENTORY)
    sheet = queries.of(NODE)
    first, same, other = (
        queries.facts(sheet, [["ok", text]])["a.fact"] for text in ("x", "x", "y")
    )
    assert first is same
    assert (first, other, parsed) == (("x",), ("y",), ["x", "y"])


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([], {}), (None, False)]
)
def test_answers_that_only_look_alike_are_not_shared(one: object, other: object) -> None:
    queries = Queries(QueryPlan((), (Fact("a.fact", file("/a"), type),)), INVENTORY)
    sheet = queries.of(NODE)
    assert queries.facts(sheet, [["ok", [one]]]) is not None
    kinds = [queries.facts(sheet, [["ok", value]])["a.fact"] for value in (one, other)]
    assert kinds == [type(one), type(other)]


def test_a_part_of_an_answer_is_compared_and_parsed_as_that_part() -> None:
    parsed: list[object] = []

    def parse(part: object) -> object:
        parsed.append(part)
        return part

    fact = Fact("a.fact", file("/a"), parse, narrow=lambda answer: answer["part"])
    queries = Queries(QueryPlan((), (fact,)), INVENTORY)
    sheet = queries.of(NODE)
    for number in range(3):
        assert queries.facts(sheet, [["ok", {"part": "x", "rest": number}]]) == {"a.fact": "x"}
    assert queries.facts(sheet, [["ok", {"part": "y", "rest": 0}]]) == {"a.fact": "y"}
    assert parsed == ["x", "y"]
    without = queries.facts(sheet, [["ok", {"rest": 4}]])["a.fact"]
    assert without == {"rest": 4}, "an answer without that part is the parser's"


def test_facts_of_a_stage_are_left_to_it() -> None:
    plan = plan_queries([CHECKS["time.offset"]], registry.facts())
    assert interpret(plan, NODE, INVENTORY, {}) == {}


@pytest.mark.parametrize("only", ["eth.mtu", "net.ports", "eth.iface_choice"])
def test_a_check_of_interfaces_asks_for_all_facts_that_the_choice_among_them_needs(
    only: str,
) -> None:
    """Else `check --only eth.mtu` would judge another interface than the one that apply writes."""
    plan = plan_queries([CHECKS[only]], registry.facts())
    assert set(FACTS) <= {fact.name for fact in plan.facts}


def test_other_checks_do_not_ask_for_them() -> None:
    assert not set(FACTS) & {
        fact.name for fact in plan_queries([CHECKS["os.release"]], registry.facts()).facts
    }
