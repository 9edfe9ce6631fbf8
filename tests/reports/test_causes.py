"""Every format shows and counts a cause once, with what follows from it below it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands.record import line_of
from clusterprep.model import Because, ChangeRow, Finding, LaunchResult, Report, Severity
from clusterprep.reports import render
from clusterprep.reports.blocks import follows_of, group_gaps, summarize, troubles

from .situations import FOUR, reached, report

MTU, PATH, BUSBW, LATENCY = "eth.mtu", "eth.path_mtu", "nccl.busbw_multi", "net.latency"


def one_fault() -> Report:
    """One node has another MTU, a warning, from which two failures and an unknown follow."""
    cause = (Because(MTU, ("n2",)),)
    findings = (
        Finding(PATH, "fail", "error", ("n2",), "too large", because=cause),
        Finding(MTU, "fail", "warning", ("n2",), "another MTU", "9000", "1500"),
        Finding(BUSBW, "fail", "error", ("n2",), "slow", because=(Because(PATH, ("n2",)),)),
        Finding(
            LATENCY,
            "unknown",
            "warning",
            ("n2",),
            "not measured",
            reason="hung",
            because=cause,
        ),
    )
    return report("check", verdict="fail", code=1, nodes=reached(FOUR, {}), findings=findings)


def one_missing_right() -> Report:
    """Three checks are open on all nodes for want of one right."""
    cause = (Because("gpu.xid", FOUR),)
    findings = (
        Finding("gpu.xid", "unknown", "error", FOUR, "not allowed", reason="denied"),
        Finding(
            "pcie.acs",
            "unknown",
            "warning",
            FOUR,
            "no",
            reason="denied",
            because=cause,
        ),
        Finding(
            "mem.errors",
            "unknown",
            "warning",
            FOUR,
            "neither",
            reason="denied",
            because=cause,
        ),
    )
    return report("check", verdict="unknown", code=3, nodes=reached(FOUR, {}), findings=findings)


def test_a_cause_is_counted_with_the_severity_of_its_consequences() -> None:
    (block,) = troubles(one_fault().findings or ())
    assert (block.check, block.severity) == (MTU, "error")
    assert [one.check for one in follows_of(block)] == [PATH, BUSBW, LATENCY]


def test_what_one_right_leaves_open_is_one_group() -> None:
    (group,) = group_gaps(troubles(one_missing_right().findings or ()))
    assert [block.check for block in group] == ["gpu.xid", "pcie.acs", "mem.errors"]
    assert follows_of(group[0]) == []


def test_the_console_has_the_consequences_in_one_line_below_the_cause() -> None:
    lines = render(one_fault(), "console", width=100).splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("FAIL     eth.mtu")]
    assert lines[head + 3] == f"{' ' * 9}causes: {PATH}, {BUSBW}; leaves open: {LATENCY}"
    assert not any(line.startswith(("WARN", "UNKNOWN")) for line in lines)
    assert "FAIL     1 error, 0 warnings, 0 unknown on 4 nodes" in lines


def test_the_console_tells_one_missing_right_once() -> None:
    text = render(one_missing_right(), "console", width=100)
    assert "left open: gpu.xid, pcie.acs, mem.errors" in text
    assert "0 errors, 0 warnings, 1 unknown on 4 nodes" in text


def test_what_to_do_next_is_about_the_cause() -> None:
    text = render(one_fault(), "console", width=100)
    assert f"clusterprep explain {MTU}" in text
    assert f"clusterprep explain {PATH}" not in text


def test_json_has_the_causes_and_own_severities() -> None:
    rows = json.loads(render(one_fault(), "json"))["findings"]
    by_check = {row["check"]: row for row in rows}
    assert by_check[PATH]["because"] == [{"check": MTU, "nodes": ["n2"]}]
    assert by_check[MTU]["severity"] == "warning"
    assert "because" not in by_check[MTU]


def test_junit_fails_for_the_cause_alone() -> None:
    text = render(one_fault(), "junit")
    assert text.count("<failure") == 1
    assert f'name="{MTU} [n2]"' in text
    assert f"follows from {MTU} on n2" in text
    assert 'tests="5" failures="1" errors="0" skipped="3"' in text


def test_prometheus_counts_the_cause_as_an_error_and_the_rest_as_caused() -> None:
    text = render(one_fault(), "prometheus")
    assert f'check="{MTU}",severity="error",verdict="fail"}} 1' in text
    assert f'check="{PATH}",severity="error",verdict="caused"}} 1' in text
    assert 'node="n2",severity="error",verdict="fail"} 1' in text
    assert 'severity="warning",verdict="unknown"' not in text


def test_nagios_counts_one_error() -> None:
    text = render(one_fault(), "nagios")
    assert "errors=1 warnings=0 unknown=0" in text
    assert PATH not in text


def test_markdown_names_the_consequences_below_the_cause() -> None:
    text = render(one_fault(), "markdown")
    assert f"from it follow: `{PATH}`, `{BUSBW}`, `{LATENCY}`" in text
    assert text.count("**FAIL**") == 1


def test_html_shows_a_tree_and_each_check_has_a_place() -> None:
    text = render(one_fault(), "html")
    assert text.count('class="tree"') == 2, "the slow all-reduce stands below the path"
    for check in (MTU, PATH, BUSBW, LATENCY):
        assert text.count(f'id="check-{check}"') == 1
    assert "1 error, 0 warnings, 0 unknown" in text


def test_html_has_checks_that_explain_each_other_on_different_nodes() -> None:
    def of(check: str, node: str, *causes: str) -> Finding:
        because = tuple(Because(cause, (node,)) for cause in causes)
        return Finding(check, "fail", "error", (node,), "wrong", because=because)

    findings = (
        of(MTU, "n1"),
        of(MTU, "n2"),
        of("a.one", "n1", "a.two"),
        of("a.two", "n1", MTU),
        of("a.two", "n2", "a.one"),
        of("a.one", "n2", MTU),
    )
    text = render(report("check", nodes=reached(FOUR, {}), findings=findings), "html")
    assert 'id="check-a.one"' in text
    assert 'id="check-a.two"' in text


@pytest.mark.parametrize(
    ("verdict", "severity", "strict", "counts"),
    [
        (
            "pass",
            "warning",
            False,
            "0 errors, 0 warnings, 1 unknown (at most a warning) on 4 nodes",
        ),
        ("unknown", "warning", True, "0 errors, 0 warnings, 1 unknown on 4 nodes"),
        ("unknown", "error", False, "0 errors, 0 warnings, 1 unknown on 4 nodes"),
    ],
)
def test_the_numbers_say_what_the_verdict_says(
    verdict: str, severity: Severity, strict: bool, counts: str
) -> None:
    finding = Finding("a.b", "unknown", severity, ("n2",), "no answer", reason="hung")
    of = report("check", verdict=verdict, strict=strict, nodes=reached(FOUR, {}))
    assert summarize(replace(of, findings=(finding,))) == counts


def test_what_failed_stands_first_where_no_finding_did() -> None:
    row = ChangeRow(("n1",), "file", "/etc/a", "create", "failed")
    of = report("apply", verdict="fail", code=1, findings=(), changes=(row, row))
    assert summarize(of) == "2 changes failed; 0 errors, 0 warnings, 0 unknown"
    failure = Finding("a.b", "fail", "error", ("n2",), "wrong")
    assert summarize(replace(of, findings=(failure,))) == "1 error, 0 warnings, 0 unknown"


def test_a_launch_that_failed_or_did_not_end_says_so() -> None:
    failed = LaunchResult("fail", "torchrun", 2, 1, "n1:29500")
    of = report("launch", verdict="fail", code=1, findings=(), launch=failed)
    assert summarize(of).startswith("launch failed; 0 errors")
    late = replace(of, verdict="unknown", launch=replace(failed, timed_out=True))
    assert summarize(late).startswith("launch ran out of time; 0 errors")


def test_the_history_counts_the_same() -> None:
    line = line_of(one_fault(), "cluster.yaml")
    assert (line.errors, line.warnings, line.unknown) == (1, 0, 0)
