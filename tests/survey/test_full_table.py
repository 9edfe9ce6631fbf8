"""64 hosts that a full table of neighbours kept apart, from what their agents answered.

The recording is of hosts in network namespaces of one Linux 6.18 with its default thresholds:
a letter for each dial in the order asked, `.` for one that opened and `t` for one that timed out,
and the table that each host's kernel told afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep import reports
from clusterprep.facts.network import Interface
from clusterprep.model import Finding, Fleet, Report
from clusterprep.survey import registry
from clusterprep.survey.consequences import rules_of, standing, with_causes
from clusterprep.survey.port_matrix import probe_pairs
from tests.support.fleet import eth, findings, fleet
from tests.survey.test_port_matrix import ROW, Agents

RECORDED = json.loads((Path(__file__).parent / "full_table.json").read_text())
MOST_LINES = 12  # on the console, for one finding about all hosts


def answer(row: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What an agent answered to its dials; what timed out did so again at every further try."""
    first = not body["sizes"]
    letters = row["dials"] if first else "t" * len(body["targets"]) * len(body["sizes"])
    table = {"most": 1024, "entries": row["entries"], "refused": row["refused"] if first else 0}
    return {
        "dials": [ROW if letter == "." else ["timed_out"] for letter in letters],
        "neighbours": table,
    }


def probed(interface: Callable[[int], Interface]) -> Fleet:
    """A fleet after the dials of the recording, each node with an interface of its number."""
    nodes = {}
    answers = {}
    for number, row in enumerate(RECORDED, 1):
        nodes[f"n{number}"] = {
            "net.interfaces": (interface(number),),
            "net.port_range": (32768, 60999),
        }
        answers[f"n{number}"] = lambda body, row=row: answer(row, body)
    agents = Agents(list(nodes), dial=answers)
    return probe_pairs(agents, fleet(**nodes), "n1")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def kept_apart() -> Fleet:
    return probed(lambda number: eth("eth0", f"10.77.0.{number}/16"))


def test_it_is_one_finding_that_names_the_cause(kept_apart: Fleet) -> None:
    (failed,) = findings(kept_apart, "net.ports")
    assert len(failed.nodes) == 64
    assert failed.message == (
        "the kernel's table of neighbours is full, so nodes cannot be reached: see net.neigh"
    )
    assert failed.seen == (
        "gc_thresh3 1024, no place 59,055 times while dialling; 3,192 of 4,095 dials fail"
    )
    assert failed.remedy == (
        "sysctl -w net.ipv4.neigh.default.gc_thresh1=512 net.ipv4.neigh.default.gc_thresh2=2050 "
        "net.ipv4.neigh.default.gc_thresh3=4100"
    )


def test_over_ipv6_it_is_the_table_of_ipv6_neighbours() -> None:
    seen = probed(lambda number: eth("eth0", ipv6=(f"fd00:77::{number:x}/64",)))
    (failed,) = findings(seen, "net.ports")
    assert failed.message == (
        "the kernel's table of IPv6 neighbours is full, so nodes cannot be reached: see net.neigh"
    )
    assert failed.remedy == (
        "sysctl -w net.ipv6.neigh.default.gc_thresh1=512 net.ipv6.neigh.default.gc_thresh2=2050 "
        "net.ipv6.neigh.default.gc_thresh3=4100"
    )


def test_on_the_console_it_has_few_lines(kept_apart: Fleet) -> None:
    found = findings(kept_apart, "net.ports")
    report = Report(
        "check", "20261128-212653-d9c4", "lab", "2026-11-28T21:26:53Z", 9.6, "fail", 1, (), found
    )
    text = reports.render(report, "console", color=False, width=80)
    lines = text[text.index("net.ports") :].split("\n\n", maxsplit=1)[0].splitlines()
    assert len(lines) <= MOST_LINES, text


def test_all_that_is_said_of_it_counts_once(kept_apart: Fleet) -> None:
    rules = rules_of(registry.checks().values(), registry.facts())
    names = ("net.ports", "eth.path_mtu", "net.latency")
    found = [one for name in names for one in findings(kept_apart, name)]
    troubles = [one for one in found if one.verdict in ("fail", "unknown")]
    (ports,) = standing(with_causes(troubles, rules))
    assert ports.check == "net.ports"
    full = Finding("net.neigh", "fail", "warning", ports.nodes, "the table is full")
    (table,) = standing(with_causes([*troubles, full], rules))
    assert (table.check, table.severity) == ("net.neigh", "error")


@pytest.mark.parametrize("check", ["eth.path_mtu", "net.latency"])
def test_no_other_check_of_the_connections_blames_a_host(kept_apart: Fleet, check: str) -> None:
    assert {finding.verdict for finding in findings(kept_apart, check)} <= {"pass", "unknown"}
