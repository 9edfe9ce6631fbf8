"""The HTML report in a real Chromium: no error, no request, working keys, no script of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.model import Report
from clusterprep.reports import render
from tests.support.browser import Browser, Page, found

from .situations import SITUATIONS
from .test_hostile import spoiled
from .three_fleets import FLEETS, half_dead, one_odd_node

pytestmark = pytest.mark.machine

ALL = SITUATIONS | FLEETS
HOSTILE = (
    "<img src=x onerror=window.ran=1>",
    '"><script>window.ran=1</script>',
    "</script><script>window.ran=1</script>",
    "' onmouseover='window.ran=1' x='",
)
SHOWN = (
    "[...document.querySelectorAll('{}')].filter(e => !e.hidden)"
    ".map(e => e.querySelector('.nodes').textContent)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """CI promises a Chromium; elsewhere its tests are skipped without one."""
    program = found()
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "there is no chromium: apt-get install chromium"
        )
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    page = browser.page()
    page.look()
    return page


def show(page: Page, folder: Path, report: Report) -> Path:
    path = folder / "report.html"
    path.write_text(render(report, "html"), encoding="utf-8")
    page.open(path)
    return path


@pytest.mark.parametrize("name", ALL)
def test_the_page_opens_without_errors_and_loads_nothing(
    page: Page, tmp_path: Path, name: str
) -> None:
    path = show(page, tmp_path, ALL[name]())
    assert page.complaints() == []
    assert page.requests() == [path.as_uri()]
    word = ALL[name]().verdict.upper()
    assert page.run("document.querySelector('h1').innerText").startswith(word)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_shown_and_does_not_run(page: Page, tmp_path: Path, text: str) -> None:
    show(page, tmp_path, spoiled(one_odd_node(), text))
    page.press("/")
    page.type(text.split(maxsplit=1)[0])
    assert page.run("typeof window.ran") == "undefined"
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert text in page.run("document.querySelector('.card h3').innerText")
    assert page.complaints() == []


def test_the_page_runs_no_script_but_its_own(page: Page, tmp_path: Path) -> None:
    """Markup that came through would be stopped by the policy, which says so in the console."""
    path = tmp_path / "spoiled.html"
    path.write_text(
        render(half_dead(), "html").replace(
            "</main>", f"{HOSTILE[0]}<script>window.ran=1</script></main>"
        )
    )
    page.open(path)
    assert page.run("typeof window.ran") == "undefined"
    assert len([words for words in page.complaints() if "Content Security Policy" in words]) >= 2


def test_the_filter_finds_nodes_checks_and_words(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, one_odd_node())
    page.press("/")
    assert page.run("document.activeElement.id") == "query"
    page.type("gpu05")
    assert page.run(SHOWN.format(".grid tr.item")) == ["gpu05"]
    assert set(page.run(SHOWN.format(".card.item"))) == {"gpu05"}
    assert "rows" in page.run("document.getElementById('shown').textContent")
    page.type(" mtu")
    assert page.run("document.querySelectorAll('.card.item:not([hidden])').length") == 1
    page.press("Escape")
    assert len(page.run(SHOWN.format(".grid tr.item"))) == 8
    page.run("document.querySelector('#state').value = 'uq'")
    page.run("document.querySelector('#state').dispatchEvent(new Event('input', {bubbles: true}))")
    assert page.run(SHOWN.format(".grid tr.item")) == ["gpu07", "gpu08"]


def test_a_node_is_found_among_those_that_share_a_row(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, ALL["many_nodes"]())
    page.press("/")
    page.type("node400")
    rows = page.run(
        "[...document.querySelectorAll('.grid tr.item:not([hidden])')].map(row => row.innerText)"
    )
    assert len(rows) == 1
    assert "among them node400" in rows[0]


def test_columns_are_sorted_by_keys(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, one_odd_node())
    page.run(
        "[...document.querySelectorAll('.grid .sort')].find(b => b.textContent === 'eth').focus()"
    )
    page.press("Enter")
    assert page.run(SHOWN.format(".grid tr.item"))[0] == "gpu05"
    assert page.run("document.querySelector('.grid [aria-sort]').textContent") == "eth"
    page.press("Enter")
    assert page.run(SHOWN.format(".grid tr.item"))[-1] == "gpu05"
    page.run("document.querySelector('.grid .sort').focus()")
    page.press("Enter")
    assert page.run(SHOWN.format(".grid tr.item")) == [f"gpu{number:02}" for number in range(1, 9)]


def test_everything_that_can_be_used_is_reached_by_tab(page: Page, tmp_path: Path) -> None:
    show(page, tmp_path, half_dead())
    wanted = page.run(
        "(() => { const all = [...document.querySelectorAll("
        "'a[href], button, input, select, summary, [tabindex]')]"
        ".filter(e => e.checkVisibility()); "
        "all.forEach((e, at) => { e.dataset.tab = at; }); return all.length; })()"
    )
    seen = set()
    for _ in range(wanted + 1):
        page.press("Tab")
        seen.add(page.run("document.activeElement.dataset.tab"))
    assert seen - {None} == {str(number) for number in range(wanted)}


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("width", [360, 1240])
def test_the_page_fits_phones_and_desks_in_both_themes(
    page: Page, tmp_path: Path, name: str, width: int
) -> None:
    """Wide tables move inside their own frames, and the page itself never sideways."""
    for dark in (False, True):
        page.look(width=width, dark=dark)
        show(page, tmp_path, ALL[name]())
        assert page.run("document.documentElement.scrollWidth") <= width
        assert (
            page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ) is not dark
    page.look()


def test_on_paper_everything_is_open_and_nothing_is_to_be_clicked(
    page: Page, tmp_path: Path
) -> None:
    show(page, tmp_path, one_odd_node())
    page.look(media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    assert not page.run(
        "[...document.querySelectorAll('form, .copy, nav')].some(e => e.checkVisibility())"
    )
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('details:not([open])').length") > 0
    page.look()
