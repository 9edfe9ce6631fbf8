"""What is asked of a node, each thing once, and what raw answers become."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.errors import ENDINGS, ClusterprepError, InputError
from clusterprep.facts import Fact, file
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.nccl.interfaces import FACTS
from clusterprep.survey import registry
from clusterprep.survey.queries import (
    Queries,
    QueryPlan,
    Selection,
    matches,
    plan_queries,
    select_checks,
)
from tests.support.asked import interpret, reads

NODE = Node("n1", "n1", 0)
INVENTORY = Inventory("test", (NODE,))
# A few stand for all, so that another check in their area changes nothing here.
NAMES = ("eth.iface_choice", "eth.mtu", "net.ports", "os.release", "time.daemon", "time.offset")
CHECKS = {name: registry.checks()[name] for name in NAMES}

# ---------------------------------------------------------------- selection


@pytest.mark.parametrize(
    ("word", "name", "takes"),
    [
        ("time.offset", "time.offset", True),
        ("time", "time.offset", True),
        ("time.", "time.offset", True),
        ("time.off", "time.offset", False),
        ("tim", "time.offset", False),
        ("offset", "time.offset", False),
        ("time.offset.", "time.offset", False),
        ("", "time.offset", False),
        (".", "time.offset", False),
    ],
)
def test_a_word_takes_a_check_or_a_whole_area(word: str, name: str, takes: bool) -> None:
    assert matches(word, name) is takes


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        pytest.param(Selection(), set(CHECKS), id="all"),
        pytest.param(Selection(only=("time.",)), {"time.offset", "time.daemon"}, id="an-area"),
        pytest.param(
            Selection(only=("time", "os.release")),
            {"time.offset", "time.daemon", "os.release"},
            id="two",
        ),
        pytest.param(
            Selection(skip=("time.offset",)), set(CHECKS) - {"time.offset"}, id="all-but-one"
        ),
        pytest.param(
            Selection(only=("time",), skip=("time.daemon",)), {"time.offset"}, id="an-area-but-one"
        ),
        pytest.param(
            Selection(tags=("eth",)), {"eth.mtu", "eth.iface_choice"}, id="a-tag-is-also-an-area"
        ),
        pytest.param(Selection(tags=("eth",), skip_tags=("eth",)), set(), id="a-tag-and-not"),
        pytest.param(Selection(only=("disk.nvme",)), set(), id="known-and-not-built"),
    ],
)
def test_a_selection_leaves_what_it_says(selection: Selection, expected: set[str]) -> None:
    assert {
        check.name for check in select_checks(CHECKS, selection, known=("disk.nvme",))
    } == expected


def test_every_wrong_word_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(InputError) as raised:
        select_checks(CHECKS, Selection(only=("time.ofset",), skip=("nonsense",)))
    assert [(p.message, p.hint) for p in raised.value.problems] == [
        ("there is no check 'time.ofset'", "did you mean time.offset?"),
        ("there is no check 'nonsense'", None),
    ]


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


# ---------------------------------------------------------------- what answers mean

TEXT = Fact("a.fact", file("/a"), lambda text: text.upper())
(READ,) = TEXT.reads(NODE, INVENTORY)


def understood(answers: dict[Read, Any], fact: Fact = TEXT) -> Any:
    return interpret(QueryPlan((), (fact,)), NODE, INVENTORY, answers)["a.fact"]


def test_an_answer_is_parsed() -> None:
    assert understood({READ: ["ok", "x"]}) == "X"


def test_a_missing_file_is_knowledge() -> None:
    assert understood({READ: ["no", "missing", "/a"]}, Fact("a.fact", file("/a"), lambda text: ("parsed", text))) == (
        "parsed", None
    )  # fmt: skip


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "truncated", "unknown_read"])
def test_any_other_missing_answer_is_its_reason(reason: str) -> None:
    assert understood({READ: ["no", reason, "why"]}) == Absent(reason, "why")
    assert understood({READ: ["no", reason]}) == Absent(reason)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        ["ok"],
        ["yes", "x"],
        "ok",
        {"ok": "x"},
        7,
        [None, None],
        ["OK", "x"],
        [["ok"], "x"],
    ],
)
def test_an_answer_of_another_shape_is_garbled(raw: object) -> None:
    assert understood({READ: raw}).reason == "garbled"


def test_no_answer_at_all_is_garbled() -> None:
    assert understood({}).reason == "garbled"


@pytest.mark.parametrize(
    "error", [ValueError, KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError]
)
def test_an_answer_that_cannot_be_understood_is_garbled_with_the_trouble(
    error: type[Exception],
) -> None:
    def parse(text: str) -> str:
        raise error("trouble")

    found = understood({READ: ["ok", "x"]}, Fact("a.fact", file("/a"), parse))
    assert found.reason == "garbled"
    assert error.__name__ in found.detail
    assert "trouble" in found.detail


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_signal_while_an_answer_is_parsed_is_no_fault_of_the_answer(
    ending: type[ClusterprepError],
) -> None:
    def parse(text: str) -> str:
        raise ending("--timeout of 2 s reached")

    for fact in (Fact("a.fact", file("/a"), parse), Fact("a.fact", file("/a"), str, narrow=parse)):
        with pytest.raises(ending):
            understood({READ: ["ok", "x"]}, fact)


def test_only_a_lenient_fact_sees_what_is_missing() -> None:
    two = (Read("file", ("/a",)), Read("file", ("/b",)))
    answers = {two[0]: ["no", "denied", "why"], two[1]: ["ok", "x"]}
    strict = Fact("a.fact", lambda node, inventory: two, lambda a, b: "parsed")
    lenient = Fact("a.fact", lambda node, inventory: two, lambda a, b: (a, b), lenient=True)
    assert understood(answers, strict) == Absent("denied", "why")
    assert understood(answers, lenient) == (Absent("denied", "why"), "x")


def test_an_answer_that_is_nested_too_deep_to_be_printed_is_garbled() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert understood({READ: ["ok", deep]}).reason == "garbled"


def test_what_nodes_answer_alike_is_parsed_once_and_shared() -> None:
    parsed: list[str] = []
    fact = Fact("a.fact", file("/a"), lambda text: (parsed.append(text), text)[1:])
    questions = Queries(QueryPlan((), (fact,)), INVENTORY)
    sheet = questions.of(NODE)
    first, same, other = (
        questions.facts(sheet, [["ok", text]])["a.fact"] for text in ("x", "x", "y")
    )
    assert first is same
    assert (first, other, parsed) == (("x",), ("y",), ["x", "y"])


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1), ([], {}), (None, False)]
)
def test_answers_that_only_look_alike_are_not_shared(one: object, other: object) -> None:
    questions = Queries(QueryPlan((), (Fact("a.fact", file("/a"), type),)), INVENTORY)
    sheet = questions.of(NODE)
    assert questions.facts(sheet, [["ok", [one]]]) is not None
    kinds = [questions.facts(sheet, [["ok", value]])["a.fact"] for value in (one, other)]
    assert kinds == [type(one), type(other)]


def test_a_part_of_an_answer_is_compared_and_parsed_as_that_part() -> None:
    parsed: list[object] = []

    def parse(part: object) -> object:
        parsed.append(part)
        return part

    fact = Fact("a.fact", file("/a"), parse, narrow=lambda answer: answer["part"])
    questions = Queries(QueryPlan((), (fact,)), INVENTORY)
    sheet = questions.of(NODE)
    for number in range(3):
        assert questions.facts(sheet, [["ok", {"part": "x", "rest": number}]]) == {"a.fact": "x"}
    assert questions.facts(sheet, [["ok", {"part": "y", "rest": 0}]]) == {"a.fact": "y"}
    assert parsed == ["x", "y"]
    without = questions.facts(sheet, [["ok", {"rest": 4}]])["a.fact"]
    assert without == {"rest": 4}, "an answer without that part is the parser's"


def test_facts_of_a_stage_are_left_to_it() -> None:
    plan = plan_queries([CHECKS["time.offset"]], registry.facts())
    assert interpret(plan, NODE, INVENTORY, {}) == {}


@pytest.mark.parametrize("only", ["eth.mtu", "net.ports", "eth.iface_choice"])
def test_whoever_asks_for_interfaces_gets_what_the_choice_among_them_stands_on(only: str) -> None:
    """Else `check --only eth.mtu` would judge another interface than the one that apply writes."""
    plan = plan_queries([CHECKS[only]], registry.facts())
    assert set(FACTS) <= {fact.name for fact in plan.facts}


def test_others_do_not_pay_for_it() -> None:
    assert not set(FACTS) & {
        fact.name for fact in plan_queries([CHECKS["os.release"]], registry.facts()).facts
    }
