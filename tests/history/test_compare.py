"""What is new and fixed between two runs; differences of facts, environment and bandwidth."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.history.compare import best, compare, fact_changes, since, turns
from clusterprep.model import (
    Absent,
    Because,
    CollectiveResult,
    EnvValue,
    Finding,
    NodeSnapshot,
    Report,
    VerifyResult,
)
from clusterprep.model.history import EnvChange, FactChange, RecordedRun, SpeedChange, Turn

ALL = ("n1", "n2", "n3")


def run(name: str = "r1", command: str = "check", reached: int = 3) -> RecordedRun:
    return RecordedRun(
        name, command, "c", "i.yaml", "2026-11-21T09:30:00Z", 1.0, "pass", 0, 3, reached, 0, 0, 0
    )


def report(
    *findings: Finding, lost: tuple[str, ...] = (), nodes: tuple[str, ...] = ALL, **more: Any
) -> Report:
    seen = tuple(NodeSnapshot(name, "", name not in lost) for name in nodes)
    return Report("check", "r", "c", "2026-11-21T09:30:00Z", 1.0, "pass", 0, seen, findings, **more)


def said(verdict: str, *nodes: str, check: str = "eth.mtu", **more: Any) -> Finding:
    return Finding(check, verdict, more.pop("severity", "error"), nodes or ALL, "why", **more)  # type: ignore[arg-type]


WELL = said("pass")


@pytest.mark.parametrize(
    ("before", "after", "new", "fixed"),
    [
        pytest.param([WELL], [WELL], {}, {}, id="still-well"),
        pytest.param(
            [WELL], [said("fail", "n2"), said("pass", "n1", "n3")], {"fail": ("n2",)}, {}, id="new"
        ),
        pytest.param(
            [said("fail", "n2")], [said("fail", "n2", "n3")], {"fail": ("n3",)}, {}, id="spread"
        ),
        pytest.param(
            [said("fail", "n2")], [said("fail", "n2", seen="else")], {}, {}, id="fails-as-it-did"
        ),
        pytest.param(
            [said("fail", "n2", "n3")],
            [said("fail", "n3"), said("pass", "n1", "n2")],
            {},
            {"pass": ("n2",)},
            id="gone",
        ),
        pytest.param(
            [said("fail", "n2")], [said("skip", reason="x")], {}, {}, id="skipped-is-not-fixed"
        ),
        pytest.param([said("fail", "n2")], [], {}, {}, id="not-judged-any-more"),
        pytest.param([], [said("fail", "n2")], {}, {}, id="was-not-judged"),
        pytest.param(
            [WELL],
            [said("unknown", "n2", reason="hung")],
            {"unknown": ("n2",)},
            {},
            id="is-not-known",
        ),
        pytest.param(
            [said("unknown", "n2", reason="hung")],
            [said("fail", "n2")],
            {"fail": ("n2",)},
            {},
            id="known",
        ),
        pytest.param(
            [said("fail", "n2")], [said("unknown", "n2", reason="hung")], {}, {}, id="failed-before"
        ),
        pytest.param(
            [said("fail", "n2", silenced="x")],
            [said("fail", "n2")],
            {"fail": ("n2",)},
            {},
            id="lapsed",
        ),
        pytest.param([WELL], [said("fail", "n2", silenced="x")], {}, {}, id="silenced"),
        pytest.param(
            [said("fail", "n2", fixed=True), WELL], [WELL], {}, {}, id="that-run-mended-it"
        ),
        pytest.param([WELL], [said("fail", "n2", fixed=True), WELL], {}, {}, id="mended-at-once"),
    ],
)
def test_what_turned(
    before: list[Finding], after: list[Finding], new: dict[str, Any], fixed: dict[str, Any]
) -> None:
    found = turns(report(*before), after)
    assert [{turn.verdict: turn.nodes for turn in part} for part in found] == [new, fixed]


def test_what_follows_from_another_finding_did_not_turn() -> None:
    well = (said("pass", "n1", "n2"), said("pass", "n1", "n2", check="eth.path_mtu"))
    cause = (Because("eth.mtu", ("n2",)),)
    ill = (
        said("fail", "n2"),
        said("pass", "n1"),
        said("fail", "n2", check="eth.path_mtu", because=cause),
        said("pass", "n1", check="eth.path_mtu"),
    )
    (new,), nothing = turns(report(*well), ill)
    assert (new.check, nothing) == ("eth.mtu", ())
    nothing, (fixed,) = turns(report(*ill), well)
    assert (fixed.check, nothing) == ("eth.mtu", ())
    still = (replace(ill[2], because=()), *well[:1])
    assert turns(report(*ill), still)[0] == (), "it failed before too"


def test_of_a_node_that_was_not_reached_only_its_absence_is_told() -> None:
    before = report(
        said("pass", "n1", "n2"), said("unknown", "n3", check="ssh.reach", reason="x"), lost=("n3",)
    )
    back = [said("fail", "n3"), said("pass", check="ssh.reach")]
    assert turns(before, back) == ((), (Turn("ssh.reach", "pass", "error", ("n3",)),))
    refused = [said("fail", "n3", check="ssh.reach")]
    assert turns(before, refused) == ((Turn("ssh.reach", "fail", "error", ("n3",)),), ())
    gone = turns(
        report(said("pass", check="ssh.reach")),
        [said("unknown", "n1", check="ssh.reach", reason="x")],
    )
    assert gone == ((Turn("ssh.reach", "unknown", "error", ("n1",)),), ())


def test_errors_come_first() -> None:
    before = report(*(said("pass", check=check) for check in ("a.a", "b.b", "c.c")))
    now = [
        said("fail", check="a.a", severity="warning"),
        said("unknown", check="b.b"),
        said("fail", check="c.c"),
    ]
    told = since(run("r0"), before, now)
    assert [(turn.check, turn.severity) for turn in told.new] == [
        ("c.c", "error"),
        ("b.b", "error"),
        ("a.a", "warning"),
    ]
    assert (told.run, told.started) == ("r0", "2026-11-21T09:30:00Z")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param([(run("new"), "ab"), (run("old"), "ab")], "new", id="newest"),
        pytest.param([(run("some"), "a"), (run("all"), "abc")], "all", id="that-judged-the-same"),
        pytest.param(
            [(run("few", reached=1), "ab"), (run("all"), "ab")], "all", id="as-many-nodes"
        ),
        pytest.param([(run("few", reached=1), "ab")], "few", id="else-what-there-is"),
        pytest.param(
            [(run("verify", "verify"), "b"), (run("less"), "a")], "less", id="else-the-same-command"
        ),
        pytest.param([(run("other", "verify"), "z"), (run("nothing"), "")], None, id="none"),
    ],
)
def test_with_which_run_it_is_compared(
    runs: list[tuple[RecordedRun, str]], expected: str | None
) -> None:
    found = best([(one, frozenset(checks)) for one, checks in runs], "check", frozenset("ab"), 3)
    assert (found.run if found else None) == expected


# ---------------------------------------------------------------- two runs


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("6.8", "6.8", []),
        ("6.8", "6.9", [("", "6.8", "6.9")]),
        ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, [("b.c", 2, 3)]),
        ({"a": 1}, {"a": 1, "b": 2}, [("b", None, 2)]),
        ([{"mtu": 1500}, {"mtu": 9000}], [{"mtu": 1500}, {"mtu": 1500}], [("[1].mtu", 9000, 1500)]),
        ([1, 2], [1, 3], [("", [1, 2], [1, 3])]),
        ([{"a": 1}], [], [("", [{"a": 1}], [])]),
        (Absent("hung", "x"), Absent("hung", "y"), []),
        (Absent("hung"), 5, [("", {"absent": "hung"}, 5)]),
        ({"a": 1}, Absent("hung"), [("", {"a": 1}, {"absent": "hung"})]),
    ],
)
def test_parts_of_facts_that_differ(
    old: Any, new: Any, expected: list[tuple[str, Any, Any]]
) -> None:
    found = list(fact_changes("f", {"n1": old, "n9": 1}, {"n1": new, "n8": 2}))
    assert found == [FactChange("f", key, was, now, ("n1",)) for key, was, now in expected]


def test_equal_differences_are_one_row_and_long_ones_are_cut() -> None:
    old, new = {"v": "5" * 900}, {"v": "6" * 900}
    (row,) = fact_changes(
        "f", dict.fromkeys(ALL, old), {"n1": new, "n2": {"v": "6" * 900}, "n3": old}
    )
    assert row.nodes == ("n1", "n2")
    assert row.after.endswith("… (902 characters)")
    many = list(
        fact_changes("f", {"n1": {}}, {"n1": {str(number): number for number in range(1000)}})
    )
    assert len(many) < 50


def test_environment_and_bandwidth_of_what_both_have() -> None:
    old = report(
        env=(EnvValue("A", "1", ALL, ""), EnvValue("B", "x", ALL, "")), verify=trial(1.0), nodes=ALL
    )
    env = (
        EnvValue("A", "1", ("n1",), ""),
        EnvValue("A", "2", ("n2", "n3", "n4"), ""),
        EnvValue("C", "y", ("n3",), ""),
    )
    new = report(env=env, verify=trial(0.5), nodes=("n2", "n3", "n4"))
    found = compare((run("a"), old), (run("b"), new), ())
    assert set(found.env) == {
        EnvChange("A", "1", "2", ("n2", "n3")),
        EnvChange("B", "x", None, ("n1", "n2", "n3")),
        EnvChange("C", None, "y", ("n3",)),
    }
    assert found.speeds == (SpeedChange("all_reduce", "float32", 1 << 20, 1.0, 0.5),)
    assert (found.came, found.went) == (("n4",), ("n1",))


def test_trials_of_other_sizes_are_not_compared() -> None:
    other = report(verify=trial(1.0, world_size=4))
    assert compare((run(), report(verify=trial(1.0))), (run(), other), ()).speeds == ()


def trial(speed: float, world_size: int = 6) -> VerifyResult:
    rows = tuple(
        CollectiveResult("all_reduce", size, 0.1, speed, speed, 0) for size in (8, 1 << 20)
    )
    return VerifyResult("pass", "gloo", world_size, 2, "10.0.0.1:29500", collectives=rows)
