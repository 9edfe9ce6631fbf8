"""Pages of checks and variables, and a target as apply would write it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.changes.resources.env import format_of
from clusterprep.checks import known_bad
from clusterprep.cli.commands import explain
from clusterprep.cli.commands.explain import check_choice, limited_to_node, page, target_text
from clusterprep.errors import InputError, NotKnown
from clusterprep.facts.env_files import FILES
from clusterprep.inventory.demands import check_names
from clusterprep.jobs.diagnose.known import causes, command_that_finds
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import Absent, EnvValue, Report
from clusterprep.model.extensions import NO_EXTENSIONS
from clusterprep.nccl.environment import Environment, render
from clusterprep.nccl.variables.variables import registry as variables
from clusterprep.survey import registry
from clusterprep.survey.selection import matches
from tests.support.fleet import absent, healthy, with_facts


@pytest.mark.parametrize("name", registry.checks())
def test_a_checks_page_says_why_how_and_what_to_do(name: str) -> None:
    text, check = page(name), registry.checks()[name]
    assert text.startswith(f"{name}: {check.title}")
    for words in ("Why it matters", "How it is measured", "Remedy", check.remedy, check.severity):
        assert words in text


@pytest.mark.parametrize("name", PAGES)
def test_what_a_trial_judges_has_its_page_too(name: str) -> None:
    text, about = page(name), PAGES[name]
    for words in (
        f"{name}: {about.title}",
        "Why it matters",
        "How it is measured",
        about.remedy,
        about.severity,
    ):
        assert words in text
    assert (name in check_names(), name in registry.checks()) == (True, False)


@pytest.mark.parametrize(
    "name", [name for name, check in registry.checks().items() if check.wants is not str]
)
def test_a_checks_page_says_what_can_be_required(name: str) -> None:
    assert "`require: " in registry.checks()[name].how


@pytest.mark.parametrize(
    ("name", "deep"), [("torch.version", True), ("env.shadow", True), ("gpu.lost", False)]
)
def test_a_checks_page_says_what_a_budget_leaves_to_the_store(name: str, deep: bool) -> None:
    assert ("--budget" in page(name)) == deep


def test_a_checks_page_says_what_it_follows_from() -> None:
    text = " ".join(page("eth.path_mtu").split())
    assert "It may follow from eth.iface_choice, eth.mtu:" in text
    assert "may follow from" not in page("eth.iface_choice")


def test_every_variable_has_a_page_of_whole_lines() -> None:
    for name in variables():
        text = page(name)
        assert text.startswith(f"{name}: ")
        assert all(len(line) <= 98 for line in text.splitlines()[2:] if " " in line.strip())


def test_a_variables_page_says_who_reads_it_and_where() -> None:
    text = page("NCCL_SOCKET_IFNAME")
    for row in ("read by", "values", "between ranks", "in nccl.conf     works"):
        assert row in text
    assert "no effect" in page("GLOO_SOCKET_IFNAME")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (
            "NCCL_IB_HCA",
            [
                "read by          NCCL",
                "kind             hca-list",
                "since            2.3.5 or earlier",
            ],
        ),
        (
            "NCCL_BLOCKING_WAIT",
            ["deprecated in    2.2", "replaced by      TORCH_NCCL_BLOCKING_WAIT"],
        ),
        ("NCCL_TREE_THRESHOLD", ["removed in       2.5"]),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", ["old names        NCCL_ASYNC_ERROR_HANDLING"]),
        (
            "NCCL_BUFFSIZE",
            ["defaults before  4194304 from 2.3.5", "between ranks    equal on all ranks of a job"],
        ),
    ],
)
def test_a_variables_page_has_what_the_registry_knows(name: str, rows: list[str]) -> None:
    lines = page(name).splitlines()
    for row in rows:
        assert any(line.startswith(row) for line in lines), page(name)


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("time.ofset", "did you mean time.offset?"),
        ("nccl.transports", "did you mean nccl.transport?"),
        ("NCCL_SOKET_IFNAME", "did you mean NCCL_SOCKET_IFNAME?"),
        ("nccl_ib_hca", "did you mean NCCL_IB_HCA?"),
        ("TIME.OFFSET", "did you mean time.offset?"),
        ("list", "--list has all names"),
        (
            "x",
            (
                "a check such as time.offset, or a variable such as NCCL_IB_HCA; --list has all "
                "names; a check of the site is explained with --inventory FILE"
            ),
        ),
    ],
)
def test_another_topic_is_wrong_input_with_the_nearest_one(topic: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        page(topic)
    assert raised.value.problems[0].hint == hint


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize("target", [target for target in FILES if target != "container"])
def test_a_target_is_shown_as_apply_would_write_it(target: str) -> None:
    seen = healthy(2)
    environment = render(seen)
    (path,) = FILES[target]
    expected = format_of(path).write(environment.of("n2"), None).decode()
    assert target_text(seen.inventory, environment, target, "n2") == expected
    assert "NCCL_SOCKET_IFNAME=eth0" in expected


def test_a_target_of_several_files_names_each() -> None:
    seen = healthy(2)
    environment = render(seen)
    text = target_text(seen.inventory, environment, "container", "n1")
    assert [line for line in text.splitlines() if line.startswith("# /etc/")] == [
        "# /etc/containers/containers.conf.d/zz-clusterprep.conf",
        "# /etc/enroot/environ.d/zz-clusterprep.env",
    ]
    with pytest.raises(NotKnown, match="env_units"):
        target_text(seen.inventory, environment, "systemd", "n1")
    units = replace(seen.inventory, env_units=("job.service",))
    text = target_text(units, environment, "systemd", "n1")
    assert 'Environment="NCCL_SOCKET_IFNAME=eth0"' in text


def test_without_a_name_it_is_the_first_nodes() -> None:
    seen = healthy(2)
    environment = render(seen)
    assert target_text(seen.inventory, environment, "nccl.conf", None) == target_text(
        seen.inventory, environment, "nccl.conf", "n1"
    )


@pytest.mark.parametrize(
    ("target", "node", "words"),
    [
        pytest.param(
            "nccl.cnf",
            None,
            "--target: there is no target 'nccl.cnf' (one of profile.d, ",
            id="target",
        ),
        pytest.param(
            "nccl.conf", "n11", "--node: there is no node 'n11' (did you mean n1?)", id="node"
        ),
        pytest.param(None, "gpu", "--node: there is no node 'gpu'", id="nothing-near"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(
    target: str | None, node: str | None, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_choice(healthy(2).inventory, target, node)
    assert words in str(caught.value)


def test_no_file_is_shown_of_a_node_whose_environment_is_not_known() -> None:
    seen = with_facts(healthy(2), {("n2", "net.interfaces"): Absent("denied", "EACCES")})
    with pytest.raises(NotKnown, match="n2 cannot be derived: NCCL_SOCKET_IFNAME: denied"):
        target_text(seen.inventory, render(seen), "nccl.conf", "n2")
    lost = Environment(tuple(replace(v, nodes=("n1",)) for v in render(healthy(2)).values), {})
    with pytest.raises(NotKnown, match="n2 is not known"):
        target_text(seen.inventory, lost, "nccl.conf", "n2")


def test_the_values_of_one_node_alone() -> None:
    values = (EnvValue("A", "1", ("n1", "n2"), "why"), EnvValue("B", "2", ("n1",), "why"))
    report = Report("env", "r", "c", "now", 0.0, "pass", 0, env=values)
    assert [(v.name, v.nodes) for v in limited_to_node(report, "n2").env or ()] == [("A", ("n2",))]


def test_a_gap_of_another_node_does_not_matter() -> None:
    seen = with_facts(healthy(2), {("n2", "net.interfaces"): absent()})
    assert "NCCL_SOCKET_IFNAME=eth0" in target_text(seen.inventory, render(seen), "nccl.conf", "n1")


@pytest.mark.parametrize("name", causes())
def test_a_cause_promises_no_check_that_is_not_there(name: str) -> None:
    """What its page, the report of diagnose and the list of causes say finds it can be run."""
    check = causes()[name].check
    text = page(name)
    assert ("before the job starts" in text) == (check is not None)
    if check is None:
        return
    assert check in check_names()
    command = command_that_finds(check)
    assert (f"check --only {check}" in text) == (check in registry.checks())
    assert ("`clusterprep verify`" in text) == (check in PAGES)
    assert ("not built yet" in text) == (command == "")


@pytest.mark.parametrize("name", sorted(check_names() - registry.checks().keys() - PAGES.keys()))
def test_a_check_that_is_not_built_says_so(name: str) -> None:
    assert page(name) == f"{name}: this check is not built yet; `check` answers SKIP for it"


def pages() -> dict[str, str]:
    """Every text that tells people what to run."""
    texts = {name: page(name) for name in (*registry.checks(), *PAGES, *causes(), *variables())}
    folder = Path(__file__).parents[3]
    for path in (folder / "README.md", *(folder / "docs").rglob("*.md")):
        texts[path.name] = path.read_text(encoding="utf-8")
    return texts


def test_no_text_tells_to_run_a_check_that_is_not_there() -> None:
    wrong = []
    for place, text in pages().items():
        for listed in re.findall(r"--only[ =]([a-z_0-9.,]+)", text):
            for pattern in filter(None, listed.rstrip(".").split(",")):
                if not any(matches(pattern, name) for name in registry.checks()):
                    wrong.append((place, pattern))
    assert wrong == []


@pytest.mark.parametrize("entry", known_bad.table(), ids=lambda entry: entry.id)
def test_a_bad_version_has_its_page(entry: known_bad.KnownBad) -> None:
    text = page(entry.id)
    assert text.startswith(f"{entry.id}: ")
    assert f"Source\n  {entry.source}" in text
    assert (entry.mended or "no version that is known") in text
    check = "sw.security" if entry.is_security else "sw.known_bad"
    assert f"  {entry.id:<28} {entry.component} {entry.versions}" in page(check)


def test_a_misspelt_bad_version_gets_a_hint() -> None:
    with pytest.raises(InputError) as error:
        page("nccl-arm-proxy-wege")
    assert "did you mean nccl-arm-proxy-wedge?" in str(error.value)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("time.offset", "Checks"),
        ("nccl.hang", "What verify finds"),
        ("NCCL_IB_HCA", "Variables"),
        ("memlock_limit", "Causes in logs"),
        ("time-limits", "Time limits"),
    ],
)
def test_a_page_as_json(topic: str, kind: str) -> None:
    document = json.loads(explain.render(topic, NO_EXTENSIONS, "json"))
    assert document == {"schema": 1, "topic": topic, "kind": kind, "text": page(topic)}


def test_the_list_as_json_has_what_the_text_has() -> None:
    rows = json.loads(explain.render(None, NO_EXTENSIONS, "json"))["topics"]
    names = [row["name"] for row in rows]
    assert {*registry.checks(), *variables(), *causes()} <= set(names)
    for line in explain.all_names().splitlines():
        if line.startswith("  "):
            assert line.split()[0] in names


def test_every_topic_has_a_page_and_a_kind() -> None:
    for row in json.loads(explain.render(None, NO_EXTENSIONS, "json"))["topics"]:
        document = json.loads(explain.render(row["name"], NO_EXTENSIONS, "json"))
        assert document["kind"] == row["kind"]
