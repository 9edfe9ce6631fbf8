"""The documents show what the tool does: the run of `make demo`, and the checks that exist."""

from __future__ import annotations

import re

import pytest

from clusterprep import reports
from clusterprep.changes.playbook.names import NAMES
from clusterprep.inventory.demands import check_names
from clusterprep.inventory.schema import load_schema
from tests.support import pictures, privileges_page, readme, resources_page, variables_page
from tests.support.lab.fixtures import require_lab

RENEW = "`make format` renews it"


@pytest.mark.hosts
@pytest.mark.timeout(240)
def test_the_demo_works_and_prints_the_run_that_is_shown() -> None:
    require_lab()
    shown = readme.demo()
    assert shown.returncode == 0, shown.stdout + shown.stderr
    top = readme.run_shown(readme.TRY.read_text()).split("\n", 2)[2]
    assert readme.shape(top) == readme.shape(readme.first_report(shown.stdout)), (
        "`make docs` renews the run"
    )


def test_the_table_and_the_page_have_all_checks() -> None:
    assert readme.rows_shown(readme.CHECKING.read_text()) == readme.rows(), RENEW
    assert readme.PAGE.read_text() == readme.checks_page(), RENEW
    assert readme.CAUSES.read_text() == readme.causes_page(), RENEW
    assert readme.RESOURCES.read_text() == resources_page.page(), RENEW
    assert readme.PRIVILEGES.read_text() == privileges_page.page(), RENEW
    assert readme.VARIABLES.read_text() == variables_page.page(), RENEW


def test_the_pictures_are_what_the_tool_prints_of_the_recorded_fleet() -> None:
    """Of the console its words: how they are drawn is rich's, and differs between releases."""
    seen = pictures.report()
    assert reports.render(seen, "svg") == pictures.FLEET.read_text(encoding="utf-8"), RENEW
    drawn = pictures.console(seen)
    assert pictures.words(drawn) == pictures.words(pictures.CONSOLE.read_text()), RENEW
    assert not re.search(r"(?:href|src|url)\W*(?:https?:)?//", drawn), "a picture fetches nothing"


def test_no_document_names_a_check_that_does_not_exist() -> None:
    areas = {name.split(".")[0] for name in check_names()}
    pages = [readme.README, *readme.ROOT.glob("*.md"), *(readme.ROOT / "docs").rglob("*.md")]
    pages.remove(readme.PRIVILEGES)  # it names facts, and is made from them
    named = {n for page in pages for n in re.findall(r"`([a-z]+\.[a-z_0-9]+)`", page.read_text())}
    keys = {f"ssh.{key}" for key in load_schema("inventory")["$defs"]["ssh"]["properties"]}
    assert {n for n in named if n.split(".")[0] in areas} - check_names() - keys - {
        "nccl.conf",
        "mem.available",  # CONTRIBUTING.md's example
        *NAMES,
    } == set()


def test_links_lead_somewhere() -> None:
    for page in [*readme.ROOT.glob("*.md"), *(readme.ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
