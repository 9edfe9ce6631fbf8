"""What a declared check says of answers of nodes: each source, way to take a value, and meaning."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from clusterprep.checks import Check
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Because, Finding, Fleet, Inventory, Json, NodeSnapshot
from clusterprep.survey import registry
from clusterprep.survey.consequences import rules_of, with_causes
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import Queries, plan_queries
from tests.support.fleet import TODAY, by_node
from tests.support.pasting import WORDS, not_parsed, not_shown_safely, run_words

INVENTORY = """\
cluster: site
nodes: [{name: "n[1-4]", address: "10.0.0.[1-4]"}]
groups:
  storage: {nodes: "n[3-4]"}
"""
# /proc/meminfo of a machine with 8 huge pages of 1 GiB (Linux, Documentation/mm/hugetlbpage.rst
# has the names).
MEMINFO = "HugePages_Total:       8\nHugePages_Free:        8\nHugepagesize:    1048576 kB\n"


def site(folder: Path, declared: str, inventory: str = INVENTORY) -> Inventory:
    """The inventory in a folder, with one file of checks beside it."""
    (folder / "checks.d").mkdir(exist_ok=True)
    (folder / "checks.d" / "a.yaml").write_text(declared)
    (folder / "inventory.yaml").write_text(inventory)
    return load_inventory(folder / "inventory.yaml")


def judged(inventory: Inventory, name: str, *answers: Any) -> tuple[Finding, ...]:
    """The findings of a check where n1, n2, … give these raw answers, through the real queries.

    An answer is that of the first read; a list of answers is one for each read.
    """
    known = registry.of(inventory)
    check: Check = known.checks[name]
    plan = plan_queries([check], known.facts)
    queries = Queries(plan, inventory)
    seen = {}
    try:
        for node, answer in zip(inventory.nodes, answers, strict=False):
            sheet = queries.of(node)
            raw = answer if isinstance(answer, tuple) else (answer,)
            facts = queries.facts(sheet, raw[: len(sheet.reads)])
            seen[node.name] = NodeSnapshot(node.name, node.address, True, facts=facts)
        for node in inventory.nodes[len(answers) :]:
            seen[node.name] = NodeSnapshot(node.name, node.address, False, "timed_out")
    finally:
        queries.close()
    return judge(Fleet(inventory, seen), [check], TODAY)


def told(folder: Path, declared: str, *answers: Any, inventory: str = INVENTORY) -> dict[str, str]:
    loaded = site(folder, f"- name: site.thing\n{declared}", inventory)
    assert loaded.extensions.broken == ()
    return by_node(judged(loaded, "site.thing", *answers))


def text(content: str) -> Json:
    return ["ok", content]


def ran(out: str = "", code: int = 0, err: str = "") -> Json:
    return ["ok", {"code": code, "out": out, "err": err}]


MISSING = ["no", "missing", "/etc/thing"]
FILE = "  file: /etc/thing\n"
COMMAND = "  command: [thing, --version]\n"


@pytest.mark.parametrize(
    ("expect", "value", "expected"),
    [
        ("equals: '7'", "7\n", "pass"),
        ("equals: 2.10", "2.10", "pass"),
        ("equals: '7'", "8", "fail error"),
        ("at_least: 512", "512", "pass"),
        ("at_least: 512", "511", "fail error"),
        ("at_least: 9007199254740993", "9007199254740992", "fail error"),
        ("at_least: 1.5", "1.50", "pass"),
        ("at_least: 512", "n/a", "unknown error garbled"),
        ("at_least: 5.4", "5.15.0-91", "unknown error garbled"),
        ("at_most: 10", "10", "pass"),
        ("at_most: 10", "-1", "pass"),
        ("at_most: 10", "11", "fail error"),
        ("one_of: [lustre, gpfs]", "gpfs", "pass"),
        ("one_of: [lustre, gpfs]", "nfs", "fail error"),
        ("matches: '5[.]15[.].*'", "5.15.0-91-generic", "pass"),
        ("matches: '5[.]15'", "15.15.1", "fail error"),
        ("version: '>=5.15,<6'", "5.15.0", "pass"),
        ("version: '>=5.15,<6'", "5.4.0", "fail error"),
        ("exists: true", "", "pass"),
        ("exists: false", "x", "fail error"),
    ],
)
def test_what_a_value_means(tmp_path: Path, expect: str, value: str, expected: str) -> None:
    assert told(tmp_path, f"{FILE}  expect: {{{expect}}}", text(value)) == {"n1": expected}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("expect: {equals: '7'}", "fail error"),
        ("expect: {equals: '7'}\n  severity: warning", "fail warning"),
        ("expect: {equals: '7'}\n  missing: skip", "skip not_applicable"),
        ("expect: {equals: '7'}\n  missing: unknown", "unknown error no value"),
        ("expect: {same: all}", "fail error"),
        ("expect: {exists: true}", "fail error"),
        ("expect: {exists: false}", "pass"),
    ],
)
def test_a_file_that_is_not_there_is_an_answer(tmp_path: Path, more: str, expected: str) -> None:
    assert told(tmp_path, f"{FILE}  {more}", MISSING) == {"n1": expected}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["no", "denied", "/etc/thing"], "unknown error denied"),
        (["no", "hung", "no answer within 5 s"], "unknown error hung"),
        (["no", "truncated", "larger"], "unknown error truncated"),
        (["ok", 7], "unknown error garbled"),
        (["ok", {"out": "7"}], "unknown error garbled"),
        ("7", "unknown error garbled"),
        (None, "unknown error garbled"),
    ],
)
def test_what_is_no_answer_never_passes(tmp_path: Path, answer: Json, expected: str) -> None:
    assert told(tmp_path, f"{FILE}  expect: {{exists: false}}", answer) == {"n1": expected}


@pytest.mark.parametrize(
    ("take", "answer", "expected"),
    [
        ("{regex: 'HugePages_Total:\\s+(\\d+)'}", MEMINFO, "pass"),
        ("{regex: '^HugePages_Free: +(?P<value>[0-9]+)$'}", MEMINFO, "pass"),
        ("{regex: 'HugePages_Rsvd:\\s+(\\d+)'}", MEMINFO, "fail error"),
        ("{regex: '(x)?Total'}", MEMINFO, "fail error"),
        ("{json: pages.0.count}", '{"pages": [{"count": 8}]}', "pass"),
        ("{json: pages.1.count}", '{"pages": [{"count": 8}]}', "fail error"),
        ("{json: pages}", '{"pages": [8]}', "unknown error garbled"),
        ("{json: pages}", "{", "unknown error garbled"),
        ("{json: pages}", "[" * 100_000, "unknown error garbled"),
        ("text", "8", "pass"),
    ],
)
def test_how_a_value_is_taken(tmp_path: Path, take: str, answer: str, expected: str) -> None:
    declared = f"{FILE}  take: {take}\n  expect: {{at_least: 8}}"
    assert told(tmp_path, declared, text(answer)) == {"n1": expected}


@pytest.mark.parametrize(
    ("declared", "answer", "expected"),
    [
        ("expect: {equals: '7'}", ran("7\n"), "pass"),
        ("expect: {equals: '7'}", ran("7\n", 1, "no such\x1b[2J"), "unknown error failed"),
        ("expect: {equals: '7'}", ["no", "missing_tool", "thing"], "unknown error missing_tool"),
        ("take: exit_code\n  expect: {equals: '0'}", ran("x"), "pass"),
        ("take: exit_code\n  expect: {equals: '0'}", ran("x", 3), "fail error"),
        ("take: {json: a}\n  expect: {exists: true}", ran("{}"), "fail error"),
    ],
)
def test_what_a_command_says(tmp_path: Path, declared: str, answer: Json, expected: str) -> None:
    assert told(tmp_path, f"{COMMAND}  {declared}", answer) == {"n1": expected}


PEERMEM = {"/sys/module/nvidia_peermem/refcnt": "0", "/sys/module/nvidia_peermem/version": "550.54"}


@pytest.mark.parametrize(
    ("declared", "files", "expected"),
    [
        ("expect: {exists: true}", PEERMEM, "pass"),
        ("expect: {exists: true}", {}, "fail error"),
        ("take: version\n  expect: {version: '>=550'}", PEERMEM, "pass"),
        ("take: version\n  expect: {version: '>=570'}", PEERMEM, "fail error"),
        ("take: {parameter: mode}\n  expect: {equals: '1'}", PEERMEM, "fail error"),
        (
            "take: {parameter: mode}\n  expect: {equals: '1'}",
            {**PEERMEM, "/sys/module/nvidia_peermem/parameters/mode": "1\n"},
            "pass",
        ),
    ],
)
def test_kernel_modules(tmp_path: Path, declared: str, files: Json, expected: str) -> None:
    declared = f"  module: nvidia-peermem\n  {declared}"
    assert told(tmp_path, declared, ["ok", files]) == {"n1": expected}


# ---------------------------------------------------------------- several nodes


def test_a_majority_blames_the_others(tmp_path: Path) -> None:
    declared = f"{FILE}  expect: {{same: all}}\n  remedy: ssh {{node}} set {{seen}} {{wanted}}"
    inventory = site(tmp_path, f"- name: site.thing\n{declared}")
    found = judged(inventory, "site.thing", text("a"), text("a"), text("b"), text("a"))
    assert by_node(found) == {"n1": "pass", "n2": "pass", "n3": "fail error", "n4": "pass"}
    (bad,) = [finding for finding in found if finding.verdict == "fail"]
    assert (bad.seen, bad.remedy) == ("a on n[1-2,4]; b on n3", "ssh n3 set b a")


def test_machines_of_a_kind_are_compared_with_each_other(tmp_path: Path) -> None:
    inventory = INVENTORY.replace("n[3-4]}", "n[3-4], gpus: 8}").replace(
        'nodes: "n[3-4]"', 'nodes: "n[3-4]", gpus: 8'
    )
    answers = [text("a"), text("a"), text("b"), text("b")]
    same_kind = told(tmp_path, f"{FILE}  expect: {{same: kind}}", *answers, inventory=inventory)
    assert set(same_kind.values()) == {"pass"}
    all_of_them = told(tmp_path, f"{FILE}  expect: {{same: all}}", *answers, inventory=inventory)
    assert set(all_of_them.values()) == {"fail error"}


def test_one_node_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    found = told(tmp_path, f"{FILE}  expect: {{same: all}}", text("a"))
    assert found == {"n1": "unknown error fewer than two nodes have a value to compare"}


def test_long_values_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    answers = [text("x" * 5000 + end) for end in "aab"]
    found = told(tmp_path, f"{FILE}  expect: {{same: all}}", *answers)
    assert found == {"n1": "pass", "n2": "pass", "n3": "fail error"}


def test_values_that_look_alike_on_a_terminal_are_told_apart(tmp_path: Path) -> None:
    """A control letter is shown by its name, which another node may have written out."""
    inventory = site(tmp_path, f"- name: site.thing\n{FILE}  expect: {{same: all}}\n")
    found = by_node(judged(inventory, "site.thing", text("a\x01"), text("a\\x01"), text("a\x01")))
    assert found == {"n1": "pass", "n2": "fail error", "n3": "pass"}


def test_what_require_demands_wins_and_is_an_error(tmp_path: Path) -> None:
    declared = f"{FILE}  expect: {{at_least: 4}}\n  severity: warning"
    answers = [text("5"), text("6")]
    inventory = f"{INVENTORY}require: {{site.thing: 6}}\n"
    assert told(tmp_path, declared, *answers, inventory=inventory) == {
        "n1": "fail error",
        "n2": "pass",
    }


def test_a_check_follows_from_those_that_it_names(tmp_path: Path) -> None:
    declared = f"- name: site.thing\n{FILE}  expect: {{equals: '7'}}\n  follows: [fs.mount]"
    inventory = site(tmp_path, declared)
    found = judged(inventory, "site.thing", text("8"), text("8"))
    mount = Finding("fs.mount", "fail", "error", ("n2",), "/etc is not mounted")
    known = registry.of(inventory)
    linked = with_causes([mount, *found], rules_of(known.checks.values(), known.facts))
    because = {finding.nodes: finding.because for finding in linked if finding.check != "fs.mount"}
    assert because == {("n1",): (), ("n2",): (Because("fs.mount", ("n2",)),)}


def test_a_silence_is_shown_and_not_counted(tmp_path: Path) -> None:
    silenced = f"{INVENTORY}silence: [{{check: site.thing, nodes: n1, reason: known}}]\n"
    inventory = site(tmp_path, f"- name: site.thing\n{FILE}  expect: {{equals: '7'}}", silenced)
    found = judged(inventory, "site.thing", text("8"), text("8"))
    assert {finding.nodes: finding.silenced for finding in found} == {
        ("n1",): "known",
        ("n2",): None,
    }


@pytest.mark.parametrize(
    ("when", "conditions", "expected"),
    [
        ("group: storage", {}, {"n3": "pass"}),
        ("file: /etc/lustre", {"/etc/lustre": "x"}, {"n1": "pass", "n3": "pass"}),
        ("file: /etc/lustre", {}, {}),
        ("module: mlx5_core", {"/sys/module/mlx5_core/refcnt": "4"}, {"n1": "pass", "n3": "pass"}),
    ],
)
def test_nodes_that_a_check_is_not_about_are_skipped(
    tmp_path: Path, when: str, conditions: Json, expected: dict[str, str]
) -> None:
    declared = f"{FILE}  expect: {{equals: '7'}}\n  when: {{{when}}}"
    answer = (text("7"), ["ok", conditions])
    found = told(tmp_path, declared, answer, answer, answer)
    skipped = dict.fromkeys(("n1", "n2", "n3"), "skip not_applicable")
    passing = {"n2": "pass"} if "n1" in expected else {}
    assert found == {**skipped, **passing, **expected}


# ---------------------------------------------------------------- hostile answers


@pytest.mark.parametrize("word", WORDS)
def test_words_of_a_node_stay_words(tmp_path: Path, word: str) -> None:
    declared = (
        f"- name: site.thing\n{FILE}  expect: {{equals: '7'}}\n"
        "  remedy: ssh {node} repair {seen}   # was {seen}\n"
        f"- name: site.other\n{FILE}  expect: {{equals: '7'}}\n  advice: replace {{seen}}\n"
    )
    inventory = site(tmp_path, declared)
    for name in ("site.thing", "site.other"):
        for finding in judged(inventory, name, text(word)):
            line = str(finding.remedy)
            assert not_shown_safely([finding.seen, finding.message, line]) == []
            assert run_words([line]) == []
            if finding.remedy.is_command:
                assert not_parsed([line]) == []


def test_a_huge_answer_is_shown_short(tmp_path: Path) -> None:
    inventory = site(tmp_path, f"- name: site.thing\n{FILE}  expect: {{equals: '7'}}")
    (found,) = judged(inventory, "site.thing", text("\x1b" * (256 << 10)))
    assert len(found.seen) < 1500
    assert "262,144 characters, sha256" in found.seen


def test_an_expression_without_an_end_stops_no_node_and_no_other_check(tmp_path: Path) -> None:
    declared = (
        f"- name: site.thing\n{FILE}  take: {{regex: '(a|a?)+b'}}\n  expect: {{exists: true}}\n"
        f"- name: site.other\n{FILE}  expect: {{matches: '(a|a?)+b'}}\n"
    )
    inventory = site(tmp_path, declared)
    began = time.monotonic()
    bad = text("a" * 60)
    assert by_node(judged(inventory, "site.thing", bad, text("ab"), bad)) == {
        "n1": "unknown error timed_out",
        "n2": "pass",
        "n3": "unknown error timed_out",
    }
    assert by_node(judged(inventory, "site.other", bad)) == {"n1": "unknown error timed_out"}
    assert time.monotonic() - began < 30
