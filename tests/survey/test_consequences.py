"""A fault is one finding that counts; what follows from it says so, and hides nothing."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.cli.exit_codes import findings_code
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import Because, Finding, Severity, Verdict
from clusterprep.survey import registry
from clusterprep.survey.consequences import (
    RUNTIME,
    TOLD_BY_REASON,
    Rules,
    cause_trees,
    rules_of,
    standing,
    with_causes,
)

MTU, PATH, PORTS, FILTER = "eth.mtu", "eth.path_mtu", "net.ports", "net.firewall"
RULES = Rules(
    {PATH: (MTU, PORTS), PORTS: (FILTER,), FILTER: (PORTS,), "rt.env": ()},
    inside=frozenset({"rt.env"}),
    between=frozenset({PORTS}),
)


def failure(check: str, *nodes: str, severity: Severity = "error") -> Finding:
    return Finding(check, "fail", severity, nodes, f"{check} is wrong")


def unknown(
    check: str, *nodes: str, reason: str = "hung", message: str = "", severity: Severity = "error"
) -> Finding:
    message = message or f"{check} has no answer"
    return Finding(check, "unknown", severity, nodes, message, reason=reason)


def causes(findings: Sequence[Finding]) -> dict[tuple[str, tuple[str, ...]], tuple[str, ...]]:
    """Return by check and nodes the checks that a finding follows from."""
    return {(one.check, one.nodes): tuple(it.check for it in one.because) for one in findings}


# ---------------------------------------------------------------- what follows


def test_a_failure_follows_from_a_declared_cause_on_its_node() -> None:
    linked = with_causes([failure(PATH, "n2"), failure(MTU, "n2", "n3")], RULES)
    assert linked[0].because == (Because(MTU, ("n2",)),)
    assert linked[1].because == ()


def test_nothing_follows_from_a_cause_on_other_nodes() -> None:
    findings = (failure(PATH, "n2"), failure(MTU, "n3"))
    assert with_causes(findings, RULES) == findings


def test_only_the_nodes_of_the_cause_follow() -> None:
    linked = with_causes([failure(PATH, "n1", "n2"), failure(MTU, "n2")], RULES)
    assert causes(linked) == {(PATH, ("n1",)): (), (PATH, ("n2",)): (MTU,), (MTU, ("n2",)): ()}


def test_a_finding_about_a_pair_is_not_taken_apart() -> None:
    pair = failure(PORTS, "n1", "n2")
    assert with_causes([pair, failure(FILTER, "n2")], RULES)[0] == pair
    followed = with_causes([pair, failure(FILTER, "n1", "n2")], RULES)[0]
    assert followed.because == (Because(FILTER, ("n1", "n2")),)


def test_causes_are_followed_to_the_end_and_never_in_a_circle() -> None:
    findings = [failure(FILTER, "n1"), failure(PORTS, "n1"), failure(PATH, "n1")]
    linked = with_causes(findings, RULES)
    (tree,) = cause_trees(linked)
    # Each of the first two may explain the other one.
    assert tree.finding.check == PORTS
    assert {one.check for one in tree.consequences} == {FILTER, PATH}


def test_a_failure_does_not_follow_from_what_is_unknown() -> None:
    linked = with_causes([unknown(MTU, "n1"), failure(PATH, "n1")], RULES)
    assert linked[1].because == ()
    assert with_causes([failure(MTU, "n1"), unknown(PATH, "n1")], RULES)[1].because


def test_an_unknown_error_does_not_follow_from_a_failed_warning() -> None:
    warning = failure(MTU, "n1", severity="warning")
    assert with_causes([warning, unknown(PATH, "n1")], RULES)[1].because == ()
    open_warning = unknown(PATH, "n1", severity="warning")
    assert with_causes([warning, open_warning], RULES)[1].because


@pytest.mark.parametrize(
    "marks", [{"silenced": "known"}, {"fixed": True}, {"verdict": "pass"}, {"verdict": "skip"}]
)
def test_what_does_not_count_is_no_cause(marks: dict[str, str]) -> None:
    cause = replace(failure(MTU, "n2"), **marks)
    linked = with_causes([cause, failure(PATH, "n2")], RULES)
    assert linked[1].because == ()
    assert linked[1] in standing(linked)


def test_a_reason_that_names_a_check_is_its_cause() -> None:
    linked = with_causes([failure("a.one", "n1"), unknown("a.two", "n1", reason="a.one")], RULES)
    assert linked[1].because == (Because("a.one", ("n1",)),)


def test_a_reason_of_the_table_leads_to_the_check_that_says_why() -> None:
    for reason, checks in TOLD_BY_REASON.items():
        linked = with_causes([failure(checks[0], "n1"), unknown("a.b", "n1", reason=reason)], RULES)
        assert linked[1].because == (Because(checks[0], ("n1",)),), reason


def test_what_is_asked_inside_a_runtime_follows_from_it() -> None:
    entered = failure(RUNTIME, "n1")
    assert with_causes([entered, unknown("rt.env", "n1")], RULES)[1].because
    assert not with_causes([entered, failure("rt.env", "n1")], RULES)[1].because
    assert not with_causes([entered, unknown("cpu.model", "n1")], RULES)[1].because


# ---------------------------------------------------------------- one missing answer


def test_one_missing_right_is_one_finding_whatever_the_message_says() -> None:
    findings = [
        unknown("a.one", "n1", "n2", reason="denied", severity="warning"),
        unknown("a.two", "n1", "n2", reason="denied"),
        unknown("a.three", "n1", reason="denied", severity="warning"),
        unknown("a.four", "n3", reason="denied", severity="warning"),
    ]
    trees = cause_trees(with_causes(findings, RULES))
    assert [tree.finding.check for tree in trees] == ["a.two", "a.four"]
    assert {one.check for one in trees[0].consequences} == {"a.one", "a.three"}


def test_other_missing_answers_are_one_only_with_the_same_message() -> None:
    findings = [unknown("a.one", "n1"), unknown("a.two", "n1")]
    assert standing(with_causes(findings, RULES)) == tuple(findings)
    same = [unknown("a.one", "n1", message="no lspci"), unknown("a.two", "n1", message="no lspci")]
    assert standing(with_causes(same, RULES)) == tuple(same[:1])


def test_what_was_seen_and_is_unknown_is_no_missing_answer() -> None:
    same = [unknown("a.one", "n1", message="no lspci"), unknown("a.two", "n1", message="no lspci")]
    seen = [replace(finding, seen="two values") for finding in same]
    assert standing(with_causes(seen, RULES)) == tuple(seen)


# ---------------------------------------------------------------- what counts


def test_a_cause_counts_with_the_highest_severity_of_what_follows() -> None:
    findings = [failure(MTU, "n2", severity="warning"), failure(PATH, "n2")]
    linked = with_causes(findings, RULES)
    assert [one.severity for one in linked] == ["warning", "error"]
    assert standing(linked) == (failure(MTU, "n2"),)


def test_a_consequence_without_its_cause_stands_for_itself() -> None:
    alone = replace(failure(PATH, "n2"), because=(Because(MTU, ("n2",)),))
    assert standing([alone]) == (alone,)


def test_findings_that_name_each_other_both_stand() -> None:
    circle = [
        replace(failure(MTU, "n2"), because=(Because(PATH, ("n2",)),)),
        replace(failure(PATH, "n2"), because=(Because(MTU, ("n2",)),)),
    ]
    assert standing(circle)


CHECKS = ("a.one", "a.two", "a.three", "a.four")
NODES = ("n1", "n2", "n3")


@st.composite
def some_findings(draw: st.DrawFn) -> Finding:
    verdicts: tuple[Verdict, ...] = ("fail", "unknown", "pass")
    verdict = draw(st.sampled_from(verdicts))
    severities: tuple[Severity, ...] = ("error", "warning")
    nodes = draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1))
    reason = None
    if verdict == "unknown":
        reason = draw(st.sampled_from(("denied", "hung", "a.one", "gpu_lost")))
    return Finding(
        draw(st.sampled_from(CHECKS)),
        verdict,
        draw(st.sampled_from(severities)),
        tuple(nodes),
        draw(st.sampled_from(("one", "two"))),
        reason=reason,
        silenced=draw(st.sampled_from((None, None, "accepted"))),
        fixed=draw(st.booleans()),
    )


any_rules = st.builds(
    Rules,
    st.dictionaries(st.sampled_from(CHECKS), st.lists(st.sampled_from(CHECKS)).map(tuple)),
    st.frozensets(st.sampled_from(CHECKS)),
    st.frozensets(st.sampled_from(CHECKS)),
)


def cells(findings: Sequence[Finding]) -> list[tuple[object, ...]]:
    """Return all findings node by node, without what they follow from."""
    rows = []
    for one in findings:
        for node in one.nodes:
            rows.append((node, repr(replace(one, nodes=(), because=()))))
    return sorted(rows, key=repr)


@given(st.lists(some_findings(), max_size=8), any_rules)
def test_causes_change_neither_the_exit_code_nor_any_verdict(
    findings: list[Finding], rules: Rules
) -> None:
    linked = with_causes(findings, rules)
    assert cells(linked) == cells(findings)
    counted = standing(linked)
    for strict in (False, True):
        code = findings_code(findings, strict)
        assert findings_code(linked, strict) == code
        assert findings_code(counted, strict) == code


@given(st.lists(some_findings(), max_size=8), any_rules)
def test_each_consequence_has_a_cause_on_its_nodes(findings: list[Finding], rules: Rules) -> None:
    linked = with_causes(findings, rules)
    trees = cause_trees(linked)
    told = {one for tree in trees for one in tree.consequences}
    for one in linked:
        assert (one in told) == bool(one.because)
        for cause in one.because:
            assert cause.check != one.check
            assert set(cause.nodes) <= set(one.nodes)
            roots = [other for other in linked if other.check == cause.check]
            assert set(cause.nodes) <= {node for other in roots for node in other.nodes}


# ---------------------------------------------------------------- what checks declare


def test_a_packet_filter_explains_ports_and_ports_explain_rules_that_do_not_tell() -> None:
    rules = rules_of(registry.checks().values(), registry.facts())
    closed = [failure(FILTER, "n1", severity="warning"), failure(PORTS, "n1")]
    assert [one.check for one in standing(with_causes(closed, rules))] == [FILTER]
    doubt = unknown(FILTER, "n1", reason="the rules do not tell", severity="warning")
    assert standing(with_causes([doubt, closed[1]], rules)) == (closed[1],)


def test_declared_causes_go_in_no_circle() -> None:
    rules = rules_of(registry.checks().values(), registry.facts())
    follows = {**rules.follows, **{page.name: page.follows for page in PAGES.values()}}
    graphlib.TopologicalSorter(follows).prepare()


def test_every_declared_cause_is_a_check() -> None:
    names = {*registry.checks(), *PAGES}
    declared = {check.name: check.follows for check in registry.checks().values()}
    declared |= {page.name: page.follows for page in PAGES.values()}
    for name, follows in declared.items():
        assert names.issuperset(follows), name
        assert name not in follows, name
    for checks in TOLD_BY_REASON.values():
        assert names.issuperset(checks)


def test_our_rules_know_pairs_and_what_is_asked_inside() -> None:
    rules = rules_of(registry.checks().values(), registry.facts())
    assert {PATH, PORTS, "net.latency"} <= rules.between
    assert {"torch.version", "rt.env"} <= rules.inside
    assert MTU not in rules.between | rules.inside
    assert FILTER not in rules.between, "it judges each node by its own rules"
    assert "slurm.state" not in rules.inside
