"""Which checks a look that is repeated has, by what facts say that they cost."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts import Fact
from clusterprep.facts.kernel_log import KernelLog
from clusterprep.inventory.local import local_inventory
from clusterprep.model import NOT_ASKED, Absent, Finding, Inventory, Node, Read
from clusterprep.survey import registry
from clusterprep.survey.answers import parse_fact
from clusterprep.survey.queries import plan_queries
from clusterprep.survey.watch.light_plan import (
    in_part,
    light_checks,
    light_fact,
    light_plan,
    without_partial_passes,
)
from tests.support.kernel_lines import ring_answer

NODE = Node("n1", "10.0.0.1", 0)
INVENTORY = Inventory("test", (NODE,))
KNOWN = registry.of(INVENTORY)
# Kinds of reads that start programs which are not ours.
PROGRAMS = {"command", "alone", "job_python", "environment"}
# Facts whose programs are worth their few milliseconds in every look, and why.
WORTH_IT = {"svc.states": "one systemctl, and only where the inventory requires services"}


def fact(*kinds: str, **about: Any) -> Fact:
    reads = tuple(Read(kind) for kind in kinds)
    return Fact("test.fact", lambda node, inventory: reads, **about)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        pytest.param(fact("file"), ["file"], id="cheap"),
        pytest.param(fact("file", deep=True), None, id="deep"),
        pytest.param(fact("command", costly=("command",)), None, id="costly"),
        pytest.param(fact("file", "command", costly=("command",)), None, id="needs-all-of-it"),
        pytest.param(
            fact("file", "command", costly=("command",), lenient=True), ["file"], id="lenient"
        ),
        pytest.param(fact("file", costly=("command",)), ["file"], id="costly-elsewhere"),
        pytest.param(fact(stage="clock"), [], id="clocks"),
        pytest.param(fact(stage="pairs"), None, id="pairs"),
    ],
)
def test_what_is_asked_of_a_fact(given: Fact, asked: list[str] | None) -> None:
    light = light_fact(given, INVENTORY)
    if asked is None:
        assert light is None
    else:
        assert light is not None
        assert [read.kind for read in light.reads(NODE, INVENTORY)] == asked


def test_reads_that_are_left_out_count_as_not_asked() -> None:
    given = fact(
        "first",
        "command",
        "last",
        costly=("command",),
        lenient=True,
        parse=lambda *answers: answers,
    )
    light = light_fact(given, INVENTORY)
    assert light is not None
    assert light.parse("a", "c") == ("a", NOT_ASKED, "c")


def test_the_kernels_log_is_its_ring() -> None:
    light = light_fact(KNOWN.facts["log.records"], INVENTORY)
    assert light is not None
    assert [read.kind for read in light.reads(NODE, INVENTORY)] == ["kernel_log"]
    log = parse_fact(light, [["ok", ring_answer("NVRM: Xid (PCI:0000:1b:00): 79, lost")]])
    assert isinstance(log, KernelLog)
    assert len(log.records) == 1


def test_a_value_of_the_wrong_type_is_garbled_as_in_any_look() -> None:
    def parse(first: Any, second: Any) -> int:
        return first  # type: ignore[no-any-return]

    given = fact("file", "command", costly=("command",), lenient=True, parse=parse)
    light = light_fact(given, INVENTORY)
    assert light is not None
    assert parse_fact(light, [["ok", 3]]) == 3
    garbled = parse_fact(light, [["ok", "three"]])
    assert isinstance(garbled, Absent)
    assert garbled.reason == "garbled"


def test_programs_are_started_by_costly_facts_alone() -> None:
    wrong = []
    for known in KNOWN.facts.values():
        kinds = {read.kind for read in known.reads(NODE, INVENTORY)}
        is_declared = known.deep or kinds & PROGRAMS <= set(known.costly)
        if not is_declared and known.name not in WORTH_IT:
            wrong.append(known.name)
    assert not wrong, "declare `costly`, or say in WORTH_IT why every look is worth it"


def test_what_a_watch_is_for_is_in_it_and_shells_are_not() -> None:
    inventory = local_inventory()
    names = {check.name for check in light_checks(KNOWN.checks.values(), KNOWN.facts, inventory)}
    assert names >= {
        *("time.offset", "eth.mtu", "net.firewall", "ib.counters", "pcie.aer", "nvl.errors"),
        *("gpu.xid", "gpu.ecc_unc", "log.kernel", "fs.space", "fs.ro", "proc.zombie", "shm.stale"),
    }
    assert names.isdisjoint({"env.shadow", "torch.version", "net.ports", "nv.pkg_hold", "rt.libs"})


def test_a_plan_asks_nothing_that_costs_too_much() -> None:
    checks = light_checks(KNOWN.checks.values(), KNOWN.facts, INVENTORY)
    plan = light_plan(plan_queries(checks, KNOWN.facts), INVENTORY)
    kinds = {read.kind for known in plan.facts for read in known.reads(NODE, INVENTORY)}
    assert kinds.isdisjoint({*PROGRAMS, "kernel_journal"})
    assert plan.stages == {"clock", "history"}


def test_checks_that_see_a_part_are_known() -> None:
    names = in_part(KNOWN.checks.values(), KNOWN.facts, INVENTORY)
    assert names >= {"log.kernel", "gpu.xid", "sw.security", "net.firewall"}
    assert names.isdisjoint({"eth.mtu", "time.offset", "ib.counters"})


def test_what_saw_a_part_and_found_nothing_is_no_pass() -> None:
    partial = Finding("net.ports", "pass", "error", ("n1",), "the port can be reached")
    whole = Finding("eth.mtu", "pass", "warning", ("n1",), "the MTU is that of the others")
    failed = Finding("net.ports", "fail", "error", ("n2",), "the port cannot be reached")
    kept = without_partial_passes((partial, whole, failed), {"net.ports"})
    assert kept == (whole, failed)
