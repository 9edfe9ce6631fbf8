"""JUnit as the parser of CI tools reads it: failures match the exit code, names are stable."""

from __future__ import annotations

from collections import Counter

import junitparser
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from msgspec.structs import replace

from clusterprep.model import ChangeRow, Finding, Report
from clusterprep.reports import render

from .situations import FOUR, SITUATIONS, passes, reached, report
from .three_fleets import FLEETS, half_dead, one_odd_node

ALL = SITUATIONS | FLEETS


def suites(of: Report) -> list[junitparser.TestSuite]:
    return list(JUnitXml.fromstring(render(of, "junit").encode()))


def outcomes(of: Report) -> dict[str, str]:
    """Name of a test → what became of it."""
    words = {Failure: "failure", Error: "error", Skipped: "skipped"}
    return {case.name: words[type(case.result[0])] if case.result else "pass" for case in cases(of)}


def cases(of: Report) -> list[junitparser.TestCase]:
    return [case for suite in suites(of) for case in suite]


@pytest.mark.parametrize("name", ALL)
def test_what_fails_in_ci_is_what_the_exit_code_says(name: str) -> None:
    of = ALL[name]()
    seen = Counter(outcomes(of).values())
    assert bool(seen["failure"]) == (of.code == 1)
    assert of.code not in (2, 3) or seen["error"]
    assert of.code or not seen["error"]


@pytest.mark.parametrize("name", ALL)
def test_the_counts_are_those_of_the_tests_and_no_name_comes_twice(name: str) -> None:
    whole = JUnitXml.fromstring(render(ALL[name](), "junit").encode())
    told = (whole.tests, whole.failures, whole.errors, whole.skipped)
    whole.update_statistics()
    assert told == (whole.tests, whole.failures, whole.errors, whole.skipped)
    for suite in whole:
        names = [(case.classname, case.name) for case in suite]
        assert len(names) == len(set(names))


def test_what_counts_is_a_test_for_each_node_and_a_pass_one_for_all() -> None:
    seen = outcomes(one_odd_node())
    assert seen["eth.mtu"] == "pass"
    assert seen["eth.mtu [gpu05]"] == "failure"
    assert seen["lim.nofile (silenced)"] == "skipped"
    assert seen["gpu.nvml (warning)"] == "skipped"
    assert seen["stage bandwidth"] == "failure"
    assert outcomes(half_dead())["ssh.reach [gpu05]"] == "error"
    assert (
        outcomes(half_dead())[f"env {'/etc/profile.d/clusterprep-nccl.sh'} not-started"]
        == "skipped"
    )


def test_the_story_is_in_the_element() -> None:
    (bad,) = (case.result[0] for case in cases(one_odd_node()) if case.name == "eth.mtu [gpu05]")
    assert "seen: 1500 on gpu05" in bad.text
    assert "fix: ssh gpu05 sudo ip link set dev eth0 mtu 9000" in bad.text
    assert "wanted 9000" in bad.message


def test_a_warning_counts_with_strict() -> None:
    warned = report(
        "check", findings=(Finding("lim.nofile", "fail", "warning", FOUR[:1], "few", "1024"),)
    )
    assert outcomes(warned)["lim.nofile (warning)"] == "skipped"
    assert outcomes(replace(warned, strict=True, code=1))["lim.nofile [n1]"] == "failure"


def test_a_change_that_failed_is_a_failure_and_what_was_put_back_is_none() -> None:
    rows = (
        ChangeRow(
            FOUR[:1], "env", "/etc/nccl.conf", "update", "failed", detail="No space left on device"
        ),
        ChangeRow(FOUR[1:], "env", "/etc/nccl.conf", "update", "rolled-back"),
    )
    seen = outcomes(report("apply", changes=rows))
    assert (seen["env /etc/nccl.conf failed"], seen["env /etc/nccl.conf rolled-back"]) == (
        "failure",
        "skipped",
    )


def test_thousands_of_nodes_are_not_as_many_tests_for_each_check() -> None:
    names = tuple(f"n{number}" for number in range(10_000))
    found = outcomes(
        report(
            "check", nodes=reached(names), findings=(Finding("a.b", "fail", "error", names, "m"),)
        )
    )
    assert sum(word == "failure" for word in found.values()) == 1001
    assert found["a.b [9,000 more nodes]"] == "failure"


def test_passes_that_differ_are_one_test() -> None:
    of = report(
        "check",
        findings=(
            *passes(FOUR[:2], "os.release"),
            replace(passes(FOUR[2:], "os.release")[0], seen="12"),
        ),
    )
    (case,) = (case for case in cases(of) if case.name == "os.release")
    assert "nodes: n[1-2]" in case.system_out
    assert "seen: 12" in case.system_out
