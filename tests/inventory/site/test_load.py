"""What a site adds beside its inventory: found, or refused with the reason; never just gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from clusterprep.inventory.site.names import names_in
from clusterprep.inventory.site.trust import Distrusted, trusted_path
from clusterprep.model import Fleet, Inventory, NodeSnapshot
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import Queries, plan_queries
from tests.support.fleet import TODAY, by_node

INVENTORY = "nodes: [{name: n1, address: 10.0.0.1}]\ngroups: {storage: {nodes: n1}}\n"
GOOD = "- name: site.good\n  file: /etc/good\n  expect: {exists: true}\n"
PYTHON = """\
from clusterprep.checks import Check, CheckContext, Proof, each, failed, passed
from clusterprep.facts import Fact, file
from clusterprep.remedies import sentence


def judge(context, node, text):
    return passed(node, "fine", text) if text == "7" else failed(node, "not fine", text)


FACT = Fact("site.fans", file("/sys/fans"), lambda text: (text or "").strip())
CHECK = Check(
    "site.fans",
    facts=("site.fans",),
    judge=each(judge, "site.fans"),
    severity="warning",
    title="Fans",
    why="Hot nodes are slow.",
    how="/sys/fans",
    remedy=sentence("call the site"),
    proof=Proof("site.fans", lambda text: "6", machine={"files": {"/sys/fans": "7"}}),
)
"""


def site(
    folder: Path, files: dict[str, str], inventory: str = INVENTORY, plugins: str = ""
) -> Inventory:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if plugins:
        inventory += f"plugins: [{plugins}]\n"
    (folder / "inventory.yaml").write_text(inventory)
    return load_inventory(folder / "inventory.yaml")


def broken(inventory: Inventory, folder: Path) -> list[str]:
    """What is broken, without the folder of the test."""
    return [str(one).replace(f"{folder}/", "") for one in inventory.extensions.broken]


def verdicts(inventory: Inventory, answers: dict[str, str]) -> dict[str, str]:
    """What every check of the site says of n1, which has these files."""
    known = registry.of(inventory)
    checks = list(inventory.extensions.checks.values())
    queries = Queries(plan_queries(checks, known.facts), inventory)
    (node,) = inventory.nodes
    sheet = queries.of(node)
    raw = []
    for read in sheet.reads:
        text = answers.get(str(read.args[0]))
        raw.append(["no", "missing", ""] if text is None else ["ok", text])
    try:
        facts = queries.facts(sheet, raw)
    finally:
        queries.close()
    seen = {"n1": NodeSnapshot("n1", node.address, True, facts=facts)}
    found = judge(Fleet(inventory, seen), checks, TODAY)
    return {finding.check: by_node([finding])["n1"] for finding in found}


# ---------------------------------------------------------------- broken declarations

SHAPES = [
    ("- name: site.a\n", "1: the key 'expect' is missing (site.a is unknown)"),
    (
        "- name: site.a\n  file: /x\n  expect: {equal: 7}\n",
        "3: expect.equal: unknown key (did you mean 'equals'?) (site.a is unknown)",
    ),
    (
        "- name: site.a\n  expect: {equals: 7}\n",
        (
            "1: a check reads one of file, command and module; this one has none of them "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  command: [x]\n  expect: {equals: 7}\n",
        (
            "1: a check reads one of file, command and module; this one has file and command "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: x\n  expect: {equals: 7}\n",
        "2: file: expected the absolute path of a file; seen 'x' (site.a is unknown)",
    ),
    (
        "- name: site.a\n  command: uname -r\n  expect: {equals: 7}\n",
        (
            "2: command: expected a list of a program and its arguments; seen 'uname -r' "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  take: {regex: '('}\n  expect: {equals: 7}\n",
        (
            "3: take.regex: not a regular expression: missing ), "
            "unterminated subpattern at position 0 "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  take: version\n  expect: {equals: 7}\n",
        (
            "3: take: of a file can be taken: text, regex: …, json: …; seen version "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  expect: {at_least: many}\n",
        "3: expect.at_least: expected a number such as 512 or 1.5; seen 'many' (site.a is unknown)",
    ),
    (
        "- name: site.a\n  file: /x\n  expect: {version: new}\n",
        (
            "3: expect.version: expected a version such as 2.6.0 or conditions such as >=2.6,<3; "
            "seen 'new' (site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  command: [x]\n  expect: {exists: true}\n",
        (
            "3: expect: what a command prints is always there; expected another meaning "
            "(site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  limit: 5m\n  expect: {equals: 7}\n",
        "3: limit: expected at most 60 s; seen '5m' (site.a is unknown)",
    ),
    (
        "- name: site.a\n  file: /x\n  expect: {equals: 7}\n  remedy: awk '{print $1}'\n",
        (
            "4: remedy: the field {print $1} is not one of {node}, {seen}, {wanted}; "
            "a brace that is "
            "no field is written twice: {{ (site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  expect: {equals: 7}\n  remedy: echo }\n",
        (
            "4: remedy: Single '}' encountered in format string; "
            "a brace that is no field is written "
            "twice: {{ (site.a is unknown)"
        ),
    ),
    (
        (
            "- name: site.a\n  file: /x\n  expect: {equals: 7}\n"
            "  examples: {pass: ['7', '8'], fail: ['9']}\n"
        ),
        "4: examples.pass[1]: with this example the check says fail (site.a is unknown)",
    ),
    (
        (
            "- name: site.a\n  file: /x\n  take: {json: a}\n  expect: {equals: 7}\n"
            "  examples: {pass: ['{'], fail: ['{}']}\n"
        ),
        (
            "5: examples.pass[0]: nothing can be taken from this example: Expecting property name "
            "enclosed in double quotes: line 1 column 2 (char 1) (site.a is unknown)"
        ),
    ),
    (
        "- name: site.a\n  file: /x\n  expect: {equals: 7}\n  when: {group: gpus}\n",
        "1: when.group: the inventory has no group 'gpus' (site.a is unknown)",
    ),
    (
        "- name: Site.A\n  file: /x\n  expect: {equals: 7}\n",
        (
            "1: name: expected a name such as site.scratch, of lower-case letters, digits and _; "
            "seen 'Site.A' (site.bad is unknown)"
        ),
    ),
    ("- just words\n", None),
    ("name: site.a\nfile: /x\n", None),
    (
        "- name: site.a\n\tfile: /x\n",
        (
            "2: not YAML: while scanning a plain scalar, found a tab character that violates "
            "indentation (YAML is indented with spaces, never with tabs) (site.a is unknown)"
        ),
    ),
    ("", None),
]


@pytest.mark.parametrize(("declared", "expected"), SHAPES, ids=range(len(SHAPES)))
def test_a_broken_check_is_named_and_stops_no_other(
    tmp_path: Path, declared: str, expected: str | None
) -> None:
    inventory = site(tmp_path, {"checks.d/bad.yaml": declared, "checks.d/good.yaml": GOOD})
    (said,) = broken(inventory, tmp_path)
    assert said.startswith("checks.d/bad.yaml:1: " if expected is None else "checks.d/bad.yaml:")
    if expected is not None:
        assert said == f"checks.d/bad.yaml:{expected}"
    assert any(said in warning.replace(f"{tmp_path}/", "") for warning in inventory.warnings)
    found = verdicts(inventory, {"/etc/good": "x"})
    assert found.pop("site.good") == "pass"
    assert list(found.values()) == ["unknown error broken"]


def test_a_file_that_is_no_yaml_leaves_all_of_its_checks_unknown(tmp_path: Path) -> None:
    declared = f"{GOOD}- name: site.b\n  file: [\n- name: 'site.c'\n"
    inventory = site(tmp_path, {"checks.d/a.yaml": declared})
    assert verdicts(inventory, {}) == dict.fromkeys(
        ("site.b", "site.c", "site.good"), "unknown error broken"
    )


def test_what_is_required_of_a_broken_check_is_no_mistake(tmp_path: Path) -> None:
    declared = "- name: site.a\n  expect: {equals: 7}\n"
    required = f"{INVENTORY}require: {{site.a: 7}}\nsilence: [{{check: site.a, reason: known}}]\n"
    assert site(tmp_path, {"checks.d/a.yaml": declared}, required).nodes[0].require == {
        "site.a": "7"
    }


def test_what_require_cannot_demand_is_a_mistake_of_the_inventory(tmp_path: Path) -> None:
    declared = "- name: site.a\n  file: /x\n  expect: {at_least: 7}\n"
    with pytest.raises(InputError, match=r"expected a number such as 512 or 1\.5; seen 'many'"):
        site(tmp_path, {"checks.d/a.yaml": declared}, f"{INVENTORY}require: {{site.a: many}}\n")
    with pytest.raises(InputError, match=r"no such check.*site\.a"):
        site(tmp_path, {"checks.d/a.yaml": declared}, f"{INVENTORY}require: {{site.aa: 7}}\n")


# ---------------------------------------------------------------- names


def test_a_name_of_ours_is_refused_with_both_files(tmp_path: Path) -> None:
    inventory = site(
        tmp_path,
        {"checks.d/a.yaml": GOOD.replace("site.good", "mem.free")},
    )
    (said,) = broken(inventory, tmp_path)
    assert said == (
        "checks.d/a.yaml:1: mem.free is a check of clusterprep (clusterprep/checks/mem_free.py); "
        "give it another name (site.free is unknown)"
    )
    assert registry.of(inventory).checks["mem.free"] is registry.checks()["mem.free"]


def test_two_checks_of_one_name_are_refused_with_both_files(tmp_path: Path) -> None:
    inventory = site(
        tmp_path,
        {
            "checks.d/a.yaml": GOOD,
            "checks.d/b.yaml": GOOD,
            "mine/fans.py": PYTHON.replace("site.fans", "site.good"),
        },
        plugins="mine",
    )
    assert broken(inventory, tmp_path)[0] == (
        "checks.d/b.yaml:1: site.good is also declared in checks.d/a.yaml:1; "
        "give it another name (site.good_2 is unknown)"
    )
    assert sorted(inventory.extensions.checks) == [
        "site.good",
        "site.good_2",
        "site.good_3",
        "site.good_4",
    ]


def test_planned_names_and_short_names_are_ours_too(tmp_path: Path) -> None:
    declared = GOOD.replace("site.good", "net.ib_bw")
    (said,) = broken(site(tmp_path, {"checks.d/a.yaml": declared}), tmp_path)
    assert "net.ib_bw is a check of clusterprep" in said


# ---------------------------------------------------------------- Python


def test_a_python_file_with_the_recipe_of_contributing_is_a_check(tmp_path: Path) -> None:
    inventory = site(tmp_path, {"mine/fans.py": PYTHON, "mine/test_fans.py": "1/0"}, plugins="mine")
    assert broken(inventory, tmp_path) == []
    assert verdicts(inventory, {"/sys/fans": "7"}) == {"site.fans": "pass"}
    assert verdicts(inventory, {"/sys/fans": "6"}) == {"site.fans": "fail warning"}
    assert not list((tmp_path / "mine").glob("__pycache__"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{PYTHON}\n1 / 0\n", "mine/fans.py:23: ZeroDivisionError: division by zero"),
        (f"{PYTHON}\nimport sys\nsys.exit(0)\n", "mine/fans.py:24: SystemExit: 0"),
        (f"{PYTHON}\ndef (\n", "mine/fans.py:23: SyntaxError: invalid syntax (site.fans"),
        (f"{PYTHON}\nimport no_such_module\n", "mine/fans.py:23: ModuleNotFoundError: No module"),
        (
            PYTHON.replace('facts=("site.fans",)', 'facts=("site.none",)'),
            "mine/fans.py: it needs the fact site.none, which no file defines",
        ),
    ],
)
def test_a_file_that_raises_is_named_and_stops_nothing_else(
    tmp_path: Path, content: str, expected: str
) -> None:
    inventory = site(tmp_path, {"mine/fans.py": content, "checks.d/a.yaml": GOOD}, plugins="mine")
    (said,) = broken(inventory, tmp_path)
    assert said.startswith(expected)
    assert verdicts(inventory, {"/etc/good": "x"}) == {
        "site.fans": "unknown error broken",
        "site.good": "pass",
    }


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (("lambda text: (text", "lambda text: 1 / 0 and (text"), "unknown warning garbled"),
        (('file("/sys/fans")', "lambda node, inventory: 1 / 0"), "unknown warning garbled"),
        (('file("/sys/fans")', "lambda node, inventory: [{}]"), "unknown warning garbled"),
        (("return passed", "return 1 / 0 or passed"), "unknown warning a bug in mine/fans.py"),
        (
            ('how="/sys/fans"', 'how="", grave=lambda fleet, node: 1 / 0'),
            "unknown error garbled",
        ),
    ],
)
def test_what_its_functions_raise_is_unknown(
    tmp_path: Path, bad: tuple[str, str], expected: str
) -> None:
    content = PYTHON.replace(*bad)
    if "grave" in bad[1]:
        content = content.replace("(text or", "1 / 0 and (text or")
    inventory = site(tmp_path, {"mine/fans.py": content, "checks.d/a.yaml": GOOD}, plugins="mine")
    found = verdicts(inventory, {"/sys/fans": "7", "/etc/good": "x"})
    assert found["site.good"] == "pass"
    assert found["site.fans"].replace(f"{tmp_path}/", "") == expected


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"inventory.yaml:3: plugins\[0\]: there is no folder"):
        site(tmp_path, {}, plugins="mine")


def test_facts_may_be_shared_by_files_of_the_site(tmp_path: Path) -> None:
    other = PYTHON.partition("FACT = ")[0] + "CHECK = Check" + PYTHON.partition("CHECK = Check")[2]
    other = other.replace('    "site.fans",\n    facts', '    "site.more",\n    facts')
    inventory = site(tmp_path, {"mine/a.py": other, "mine/fans.py": PYTHON}, plugins="mine")
    assert broken(inventory, tmp_path) == []
    assert verdicts(inventory, {"/sys/fans": "7"}) == {"site.fans": "pass", "site.more": "pass"}


def test_large_answers_of_a_plug_in_are_parsed(tmp_path: Path) -> None:
    """The process that parses large answers cannot import the file."""
    content = PYTHON.replace('lambda text: (text or "").strip()', "shorten").replace(
        "FACT =", "def shorten(text):\n    return text[:1]\n\n\nFACT ="
    )
    inventory = site(tmp_path, {"mine/fans.py": content}, plugins="mine")
    assert verdicts(inventory, {"/sys/fans": "7" * 200_000}) == {"site.fans": "pass"}


# ---------------------------------------------------------------- installed packages

SHOWS = """\
from clusterprep.inventory.local import local_inventory
inventory = local_inventory()
print(*inventory.extensions.checks, *inventory.warnings, sep="\\n")
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PYTHON, ["site.fans"]),
        (
            "1 / 0",
            [
                "site.fans",
                (
                    "a site check cannot be used: acme-checks (entry point fans = acme_fans): "
                    "ZeroDivisionError: division by zero (site.fans is unknown)"
                ),
            ],
        ),
    ],
)
def test_an_installed_package_offers_checks(
    tmp_path: Path, content: str, expected: list[str]
) -> None:
    (tmp_path / "acme_fans.py").write_text(content)
    info = tmp_path / "acme_checks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-checks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clusterprep.checks]\nfans = acme_fans\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", SHOWS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == expected


WRONG_FIELDS = [
    ('remedy=sentence("call the site")', 'remedy="call the site"', "remedy: expected what shell_"),
    ('title="Fans"', "title=None", "title: expected a text; seen None"),
    ('why="Hot nodes are slow."', "why=7", "why: expected a text; seen 7"),
    ('severity="warning"', 'severity="huge"', "severity: expected error or warning; seen 'huge'"),
    ('facts=("site.fans",)', "facts=None", "facts: expected a tuple of texts; seen None"),
    ('facts=("site.fans",)', 'facts=("site.fans")', "facts: expected a tuple of texts; seen 'site"),
    ('judge=each(judge, "site.fans")', "judge=7", "judge: expected a function; seen 7"),
    ('how="/sys/fans"', 'how="", uses=None', "uses: expected a tuple of texts; seen None"),
    ('how="/sys/fans"', 'how="", follows="a.b"', "follows: expected a tuple of texts; seen 'a"),
    ('how="/sys/fans"', 'how="", tags=7', "tags: expected a tuple of texts; seen 7"),
    ('how="/sys/fans"', 'how="", wants=None', "wants: expected a function; seen None"),
    ('how="/sys/fans"', 'how="", grave=None', "grave: expected a function; seen None"),
    ("proof=Proof(", "proof=tuple(", ""),
]


@pytest.mark.parametrize(("right", "wrong", "expected"), WRONG_FIELDS)
def test_a_field_that_no_report_could_show_is_named_when_the_file_is_read(
    tmp_path: Path, right: str, wrong: str, expected: str
) -> None:
    content = PYTHON.replace(right, wrong)
    assert content != PYTHON
    inventory = site(tmp_path, {"mine/fans.py": content, "checks.d/a.yaml": GOOD}, plugins="mine")
    (said,) = broken(inventory, tmp_path)
    assert said.startswith(f"mine/fans.py: {expected}" if expected else "mine/fans.py:")
    assert verdicts(inventory, {"/etc/good": "x"}) == {
        "site.fans": "unknown error broken",
        "site.good": "pass",
    }


WRONG_OUTCOMES = [
    "7",
    "'pass'",
    "replace(passed(node, 'fine'), verdict='good')",
    "replace(passed(node, 'fine'), nodes=None)",
    "replace(passed(node, 'fine'), message=None)",
    "replace(failed(node, 'bad'), remedy='rm -rf /')",
    "replace(failed(node, 'bad'), severity='huge')",
    "replace(failed(node, 'bad'), seen=7)",
    "exit(0)",
]


@pytest.mark.parametrize("outcome", WRONG_OUTCOMES)
def test_what_is_no_outcome_is_unknown_and_ends_no_command(tmp_path: Path, outcome: str) -> None:
    content = PYTHON.replace("def judge", "from dataclasses import replace\n\ndef judge")
    content = content.replace("return passed", f"return {outcome}\n    return passed")
    inventory = site(tmp_path, {"mine/fans.py": content, "checks.d/a.yaml": GOOD}, plugins="mine")
    found = verdicts(inventory, {"/sys/fans": "7", "/etc/good": "x"})
    assert found["site.good"] == "pass"
    assert found["site.fans"].startswith("unknown ")


# ---------------------------------------------------------------- files that are none, or never end


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_pipe_is_not_waited_for(tmp_path: Path, mode: int) -> None:
    site(tmp_path, {"checks.d/a.yaml": GOOD, "mine/fans.py": PYTHON}, plugins="mine")
    for place in ("checks.d/b.yaml", "mine/pipe.py"):
        os.mkfifo(tmp_path / place)
        (tmp_path / place).chmod(mode)
    inventory = load_inventory(tmp_path / "inventory.yaml")
    assert len(broken(inventory, tmp_path)) == 2
    assert verdicts(inventory, {"/etc/good": "x", "/sys/fans": "7"}) == {
        "site.good": "pass",
        "site.b": "unknown error broken",
        "site.fans": "pass",
        "site.pipe": "unknown error broken",
    }


def test_names_are_found_in_a_file_of_another_user_in_time_that_grows_with_its_length(
    tmp_path: Path,
) -> None:
    place = tmp_path / "a.yaml"
    place.write_text("\n" * 999_000 + GOOD + "-   name:   'site.b'\n")
    assert names_in(place) == ["site.good", "site.b"]


def test_an_example_over_which_an_expression_finds_no_end_is_named(tmp_path: Path) -> None:
    endless = (
        "- name: site.endless\n  file: /x\n  take: {regex: '^(a+)+$'}\n  expect: {equals: a}\n"
        f"  examples: {{pass: [a], fail: [{'a' * 60}!]}}\n"
    )
    inventory = site(tmp_path, {"checks.d/a.yaml": endless + GOOD})
    (said,) = broken(inventory, tmp_path)
    assert said.startswith("checks.d/a.yaml:5: examples.fail[0]: the expression takes too long")
    assert verdicts(inventory, {"/etc/good": "x"}) == {
        "site.endless": "unknown error broken",
        "site.good": "pass",
    }


# ---------------------------------------------------------------- whose files are used


@pytest.mark.parametrize("place", ["mine/fans.py", "mine", "."])
def test_code_that_every_user_may_change_is_not_run(tmp_path: Path, place: str) -> None:
    marker = tmp_path.parent / f"{tmp_path.name}.ran"
    content = f"open({str(marker)!r}, 'w')\n{PYTHON}"
    site(tmp_path, {"mine/fans.py": PYTHON}, plugins="mine")
    (tmp_path / "mine" / "fans.py").write_text(content)
    (tmp_path / place).chmod(0o777)
    inventory = load_inventory(tmp_path / "inventory.yaml")
    (said,) = broken(inventory, tmp_path)
    assert said.startswith("mine/fans.py: its code is not run: every user may write to ")
    assert said.endswith("(site.fans is unknown)")
    assert not marker.exists()
    assert verdicts(inventory, {}) == {"site.fans": "unknown error broken"}


def test_declarations_that_every_user_may_change_are_not_used(tmp_path: Path) -> None:
    """What they run may run as root on every node."""
    site(tmp_path, {"checks.d/a.yaml": GOOD})
    (tmp_path / "checks.d").chmod(0o1777)
    inventory = load_inventory(tmp_path / "inventory.yaml")
    (said,) = broken(inventory, tmp_path)
    assert said.startswith("checks.d/a.yaml: it is not used: every user may write to ")
    assert verdicts(inventory, {}) == {"site.good": "unknown error broken"}


def test_a_folder_like_tmp_may_be_on_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "tmp" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "tmp").chmod(0o1777)
    trusted_path(folder)
    with pytest.raises(Distrusted, match="every user may write"):
        trusted_path(tmp_path / "tmp")


def test_a_link_leads_to_what_has_to_be_trusted(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "a.py").touch()
    (tmp_path / "link.py").symlink_to("shared/a.py")
    trusted_path(tmp_path / "link.py")
    shared.chmod(0o777)
    with pytest.raises(Distrusted, match=f"every user may write to {shared}; chmod o-w"):
        trusted_path(tmp_path / "link.py")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(Distrusted, match="more than 40 links"):
        trusted_path(tmp_path / "round")


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another group")
@pytest.mark.parametrize("place", ["mine/a.py", "mine", "."])
def test_a_group_that_may_write_is_another_user(tmp_path: Path, place: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").touch()
    os.chown(tmp_path / place, 0, 12345)
    trusted_path(tmp_path / "mine" / "a.py")
    (tmp_path / place).chmod(0o775)
    with pytest.raises(Distrusted, match=r"group 12345 may write to .*; chmod g-w"):
        trusted_path(tmp_path / "mine" / "a.py")
    os.chown(tmp_path / place, 0, 0)
    trusted_path(tmp_path / "mine" / "a.py")


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("place", ["mine/a.py", "mine"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").touch()
    os.chown(tmp_path / place, 12345, 12345)
    with pytest.raises(Distrusted, match="belongs to user 12345, neither to root nor to user 0"):
        trusted_path(tmp_path / "mine" / "a.py")
