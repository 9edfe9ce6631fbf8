"""One line and an exit code that Nagios understands, whatever the command's own exit code is."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, Report
from clusterprep.reports import exit_code, render

from .situations import FOUR, SITUATIONS, report
from .three_fleets import FLEETS, healthy_fleet, one_odd_node

LINE = re.compile(r"CLUSTERPREP (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+ \|( \w+=[0-9.]+s?)+\n")
WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
WARNING = Finding("lim.nofile", "fail", "warning", FOUR, "few open files", "1024", "65536")


@pytest.mark.parametrize("name", SITUATIONS | FLEETS)
def test_nagios_output_is_one_line_with_figures_and_the_state_of_the_code(name: str) -> None:
    of = (SITUATIONS | FLEETS)[name]()
    found = LINE.fullmatch(render(of, "nagios"))
    assert found
    assert WORDS.index(found[1]) == exit_code(of, "nagios")


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (healthy_fleet(), 0),
        (report("check", findings=(WARNING,)), 1),
        (report("check", findings=(replace(WARNING, silenced="known"),)), 0),
        (report("check", findings=(replace(WARNING, verdict="unknown", reason="denied"),)), 0),
        (one_odd_node(), 2),
        (report("check", verdict="unknown", code=3), 3),
        (report("check", verdict="error", code=2, error={"code": 2, "message": "no file"}), 3),
        (report("apply", verdict="refused", code=4, error={"code": 4, "message": "locked"}), 3),
        (
            report(
                "apply",
                verdict="interrupted",
                code=130,
                error={"code": 130, "message": "interrupted"},
            ),
            3,
        ),
        (report("plan", code=5), 1),
    ],
)
def test_the_codes(of: Report, code: int) -> None:
    assert exit_code(of, "nagios") == code


def test_other_formats_leave_the_code_as_it_is() -> None:
    assert [exit_code(one_odd_node(), fmt) for fmt in ("json", "console", "html")] == [1, 1, 1]


def test_what_a_node_says_ends_neither_line_nor_text() -> None:
    bad = Finding("a.b", "fail", "error", ("n1",), "m", "x | errors=0\nOK\x1b[2J", "y" * 5000)
    text = render(report("check", verdict="fail", code=1, findings=(bad,) * 3), "nagios")
    assert LINE.fullmatch(text)
    assert len(text) < 1300
