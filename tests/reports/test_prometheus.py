"""The textfile as Prometheus' own parser reads it, with few series for a fleet of any size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from clusterprep.model import Finding, Report
from clusterprep.reports import prometheus, render

from .situations import FOUR, SITUATIONS, reached, report
from .three_fleets import FLEETS, one_odd_node

ALL = SITUATIONS | FLEETS
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "report.md"


def samples(of: Report) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) → value; a series that comes twice spoils the file for node_exporter."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in parsed(render(of, "prometheus")):
        assert family.documentation
        assert family.type == "gauge"
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(of: Report, name: str, **labels: str) -> float:
    always = {"cluster": of.cluster, "command": of.command}
    return samples(of)[f"clusterprep_{name}", frozenset({**always, **labels}.items())]


@pytest.mark.parametrize("name", ALL)
def test_the_parser_reads_it_and_the_run_is_told(name: str) -> None:
    of = ALL[name]()
    assert value(of, "run_exit_code") == of.code
    assert value(of, "run_verdict", verdict=of.verdict) == 1
    assert value(of, "run_start_timestamp_seconds") == 1795253400


def test_what_was_found_is_counted() -> None:
    of = one_odd_node()
    assert value(of, "nodes", state="reached") == 8
    assert value(of, "check_nodes", check="eth.mtu", severity="error", verdict="fail") == 1
    assert value(of, "check_nodes", check="eth.mtu", severity="error", verdict="pass") == 7
    assert value(of, "check_nodes", check="lim.nofile", severity="warning", verdict="silenced") == 2
    # It follows from eth.mtu.
    assert value(of, "check_nodes", check="nccl.hang", severity="error", verdict="caused") == 1
    assert value(of, "node_checks", node="gpu05", severity="error", verdict="fail") == 2
    assert value(of, "verify_passed", backend="nccl") == 0
    assert value(of, "verify_missing_ranks") == 2
    assert value(of, "verify_culprits", kind="node") == 1
    rate = value(
        of, "verify_busbw_bytes_per_second", op="all_reduce", dtype="float32", bytes="1024"
    )
    assert rate == pytest.approx(0.15e9)


def test_ten_thousand_bad_nodes_are_no_explosion() -> None:
    names = tuple(f"n{number}" for number in range(10_000))
    findings = tuple(
        Finding(f"a.c{number}", "fail", "error", names[:: number + 1], "m", str(number))
        for number in range(40)
    )
    of = report("check", nodes=reached(names, {}), findings=findings)
    assert len(samples(of)) < 300
    assert value(of, "nodes_left_out") == 10_000 - prometheus.MOST_NODES
    assert value(of, "node_checks", node="n0", severity="error", verdict="fail") == 40, (
        "the worst are named"
    )


def test_labels_are_escaped_and_names_that_look_alike_are_one_series() -> None:
    strange = ('a"b', "c\\d", "e\nf", "g\x1bh", "g\x07h")
    of = report(
        "check", cluster='x"} 1\nevil 2', findings=(Finding("a.b", "fail", "error", strange, "m"),)
    )
    nodes = {
        dict(labels)["node"] for name, labels in samples(of) if name == "clusterprep_node_checks"
    }
    assert nodes == {'a"b', "c\\d", "e f", "g\N{REPLACEMENT CHARACTER}h"}
    assert not any(name == "evil" for name, _ in samples(of))


def test_the_page_lists_every_metric() -> None:
    told = set(re.findall(r"`clusterprep_(\w+)`", DOCS.read_text()))
    made = {metric.name for of in ALL.values() for metric in prometheus.metrics(of())}
    assert told == made


def test_no_two_help_texts_differ_by_what_was_found() -> None:
    """node_exporter wants one text for a name in all files of its folder."""
    helps = {
        (metric.name, metric.help) for of in ALL.values() for metric in prometheus.metrics(of())
    }
    assert len(helps) == len({name for name, _ in helps})
    assert (
        len(samples(report("validate"))) == len(samples(report("check", nodes=reached(FOUR)))) - 2
    )
