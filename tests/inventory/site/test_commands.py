"""docs/howto/site-checks.md to the letter: found, explained, proven, and broken ones named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from clusterprep.cli.commands.explain import all_names, page
from clusterprep.cli.commands.selftest import selftest
from clusterprep.inventory.load import load_inventory, load_schema
from clusterprep.model.extensions import Extensions
from clusterprep.survey import registry

ROOT = Path(__file__).resolve().parents[3]
FILES = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    page_text = (ROOT / "docs" / "howto" / "site-checks.md").read_text(encoding="utf-8")
    for name, content in FILES.findall(page_text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return tmp_path


def extensions(folder: Path) -> Extensions:
    found = load_inventory(folder / "inventory.yaml").extensions
    assert found.broken == ()
    return found


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterprep", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def report_of(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = ran(folder, "check", "inventory.yaml", *words, "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(report, load_schema("report"))
    return done.returncode, report


def test_the_declared_check_has_ten_lines(folder: Path) -> None:
    assert len((folder / "checks.d" / "scratch.yaml").read_text().splitlines()) == 10


def test_both_are_found_judged_and_in_the_report(folder: Path) -> None:
    code, report = report_of(folder, "--only", "site.")
    found = {finding["check"]: finding for finding in report["findings"]}
    assert sorted(found) == ["site.fans", "site.scratch", "ssh.reach"]
    scratch = found["site.scratch"]
    assert (code, scratch["verdict"], scratch["severity"]) == (1, "fail", "error")
    assert scratch["wanted"] == "one of lustre,gpfs"
    assert found["site.fans"]["verdict"] == "unknown"  # there is no such file
    assert found["site.fans"]["silenced"] == "the new fans come in spring"
    assert {page["title"] for page in report["site_checks"]} == {"The scratch file system", "Fans"}


def test_validate_lists_what_is_broken(folder: Path) -> None:
    assert ran(folder, "validate", "inventory.yaml").returncode == 0
    (folder / "checks.d" / "more.yaml").write_text(
        "- {name: site.typo, fil: /etc/hostname, expect: {equals: x}}\n"
        "- {name: site.scalar, file: /etc/hostname, expect: exists}\n"
    )
    (folder / "plugins").chmod(0o777)
    done = ran(folder, "validate", "inventory.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    for said in (
        "more.yaml:1: fil: unknown key (did you mean 'file'?)",
        "more.yaml:2: expect: expected one of same, equals,",
        "and exists, with its value, such as {exists: true}; seen 'exists'",
        "fans.py: its code is not run: every user may write to",
    ):
        assert said in done.stderr


def test_compare_leaves_out_what_moves(folder: Path) -> None:
    declared = folder / "checks.d" / "scratch.yaml"
    rows = (
        "- {name: site.load, command: [cat, /proc/self/stat], expect: {matches: '.*'}, "
        "moves: true}\n"
        "- {name: site.pid, command: [cat, /proc/self/stat], expect: {matches: '.*'}}\n"
    )
    declared.write_text(rows)
    runs = [report_of(folder, "--only", "site.load,site.pid")[1]["run"] for _ in range(2)]
    done = ran(folder, "compare", *runs, "--format", "json")
    changed = {row["fact"] for row in json.loads(done.stdout)["comparison"]["facts"]}
    assert changed == {"site.pid"}


def test_one_can_be_skipped(folder: Path) -> None:
    code, report = report_of(folder, "--only", "site.", "--skip", "site.scratch")
    assert code == 0
    assert sorted({finding["check"] for finding in report["findings"]}) == [
        "site.fans",
        "ssh.reach",
    ]


def test_the_page_of_a_check_stands_in_the_html_report(folder: Path) -> None:
    ran(folder, "check", "inventory.yaml", "--only", "site.", "--output", "report.html")
    text = (folder / "report.html").read_text()
    assert "Jobs write their checkpoints there" in text


def test_both_are_explained_and_listed(folder: Path) -> None:
    found = extensions(folder)
    declared = page("site.scratch", found)
    assert declared.startswith("site.scratch: The scratch file system\n\nWhy it matters\n  Jobs")
    assert "mount /scratch\n  on NODE" in declared
    assert "Hot GPUs lower their clocks" in page("site.fans", found)
    listed = all_names(found)
    assert "Checks of the site\n  site.fans     Fans\n  site.scratch  The scratch" in listed
    for name in registry.checks():
        assert f"\n  {name} " in listed


def test_explain_takes_the_inventory_that_is_there_and_says_so(folder: Path) -> None:
    done = ran(folder, "explain", "site.fans")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "site.fans: Fans")
    assert done.stderr == "clusterprep: with the checks of ./inventory.yaml\n"
    (folder / "inventory.yaml").write_text("nodes: 7\n")
    done = ran(folder, "explain", "mem.free")
    assert done.returncode == 0
    assert "without the checks of ./inventory.yaml: " in done.stderr
    assert ran(folder, "explain", "mem.free", "--inventory", "inventory.yaml").returncode == 2


def test_an_inventory_that_others_may_have_put_there_is_not_taken_unasked(folder: Path) -> None:
    """It may be a program, which ansible-inventory would run with the rights of this user."""
    (folder / "inventory.yaml").chmod(0o666)
    done = ran(folder, "explain", "mem.free")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (
        0,
        "mem.free: Memory for the job",
    )
    assert "without the checks of ./inventory.yaml: every user may write to " in done.stderr


def test_explain_wants_a_name_or_the_list(folder: Path) -> None:
    assert ran(folder, "explain").returncode == 2
    assert ran(folder, "explain", "mem.free", "--list").returncode == 2


def test_both_are_proven(folder: Path) -> None:
    found = extensions(folder)
    report = selftest({**found.checks, "mem.free": registry.checks()["mem.free"]}, found)
    verdicts = {finding.check: finding.verdict for finding in report.findings or ()}
    assert verdicts == {"mem.free": "pass", "site.fans": "pass", "site.scratch": "pass"}


PROOFS = [
    ("file: /etc/x\n  expect: {same: all}", "pass"),
    ("file: /etc/x\n  expect: {equals: a}", "pass"),
    ("file: /etc/x\n  expect: {exists: true}", "pass"),
    ("file: /etc/x\n  expect: {exists: false}", "pass"),
    ("file: /proc/meminfo\n  take: {json: a.1.b}\n  expect: {at_least: 5}", "pass"),
    ("command: [x, -y]\n  expect: {at_most: 1.5}", "pass"),
    ("command: [x, -y]\n  take: exit_code\n  expect: {equals: '0'}", "pass"),
    ("command: [x]\n  expect: {one_of: [a, b]}\n  when: {group: rack9}", "pass"),
    ("module: ib_core\n  expect: {exists: true}\n  when: {file: /etc/x, module: y}", "pass"),
    ("module: ib_core\n  take: {parameter: p}\n  expect: {equals: '1'}", "pass"),
    ("file: /etc/x\n  expect: {matches: 'a+'}\n  examples: {pass: [aa], fail: [b]}", "pass"),
    ("file: /etc/x\n  expect: {matches: 'a+'}", "fail no proof"),
    ("file: /etc/x\n  take: {regex: 'a'}\n  expect: {exists: true}", "fail no proof"),
    ("file: /etc/x\n  expect: {equals: a}\n  missing: skip", "pass"),
    ("file: /etc/x", "fail no proof"),
]


def test_a_declaration_proves_itself_or_asks_for_examples(folder: Path) -> None:
    rows = [f"- name: site.p{number}\n  {text}\n" for number, (text, _) in enumerate(PROOFS)]
    (folder / "checks.d" / "scratch.yaml").write_text("".join(rows))
    text = "nodes: [{name: n1}]\ngroups: {rack9: {nodes: n1}}\n"
    (folder / "inventory.yaml").write_text(text)
    found = load_inventory(folder / "inventory.yaml").extensions
    report = selftest(found.checks, found)
    verdicts = {}
    for finding in report.findings or ():
        why = " no proof" if finding.seen == "no proof" else ""
        verdicts[finding.check] = f"{finding.verdict}{why}"
    assert verdicts == {f"site.p{number}": said for number, (_, said) in enumerate(PROOFS)}


def test_broken_ones_are_named_and_the_run_is_not_called_healthy(folder: Path) -> None:
    (folder / "checks.d" / "scratch.yaml").write_text("- name: site.scratch\n  fiel: /x\n")
    (folder / "plugins" / "fans.py").write_text("1 / 0\n")
    code, report = report_of(folder, "--only", "site.")
    found = {finding["check"]: finding["verdict"] for finding in report["findings"]}
    assert (code, found) == (
        3,
        {"site.fans": "unknown", "site.scratch": "unknown", "ssh.reach": "pass"},
    )
    said = "\n".join(report["notices"])
    assert "checks.d/scratch.yaml:2: fiel: unknown key (did you mean 'file'?)" in said
    assert "plugins/fans.py:1: ZeroDivisionError: division by zero (site.fans is unknown)" in said
    code, report = report_of(folder, "--only", "mem.free")
    assert said == "\n".join(report["notices"])


def test_start_up_loads_nothing_of_it_without_site_checks(folder: Path) -> None:
    (folder / "checks.d" / "scratch.yaml").unlink()
    (folder / "checks.d").rmdir()
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}]\n")
    code = (
        "import sys; from clusterprep.inventory.load import load_inventory as load; "
        "load('inventory.yaml'); "
        "print(*[name for name in sys.modules if 'inventory.site' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "clusterprep.inventory.site",
        "clusterprep.inventory.site.presence",
    ]
