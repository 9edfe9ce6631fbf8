"""The HTML page as text: it loads nothing, texts of nodes are no markup, colours are readable."""

from __future__ import annotations

import functools
import re
from collections import Counter
from html.parser import HTMLParser
from importlib import resources
from itertools import product

import pytest
from msgspec.structs import replace

from clusterprep.model import Finding, Report
from clusterprep.model.history import Since, Turn
from clusterprep.reports import html_charts, html_pairs, render
from clusterprep.reports.html_nodes import Roster, grid_of

from .situations import FOUR, SITUATIONS, passes, reached, report
from .test_hostile import HOSTILE, allowed, spoiled
from .three_fleets import FLEETS, one_odd_node

ALL = SITUATIONS | FLEETS
MARKUP = {
    "image": "<img src=x onerror=alert(1)>",
    "attribute": "\" onmouseover=\"alert(1)\" x='y' onfocus='alert(1)",
    "script": '"></script><script>alert(1)</script>',
    "style": "</style><style>*{display:none}</style>",
    "comment": "<!-- --> ]]> <![CDATA[",
    "template": "{{ 7 * 7 }} {% include 'x' %} ${7*7}",
    "link": "javascript:alert(1)",
}


class Tags(HTMLParser):
    """Elements with the names of their attributes, and where links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[(tag, *sorted(name for name, _ in attrs))] += 1
        self.links |= {str(value) for name, value in attrs if name in ("href", "src")}


@functools.cache
def harmless() -> frozenset[tuple[str, ...]]:
    """What the pages are made of, and the unchanged line of a difference."""
    return frozenset(
        shape for other in ALL.values() for shape in Tags(render(other(), "html")).seen
    ) | {("span",)}


@pytest.mark.parametrize("kind", MARKUP | HOSTILE)
@pytest.mark.parametrize(
    "name", ["one_odd_node", "half_dead", "unreachable", "launch_culprit", "wrong_input"]
)
def test_what_nodes_say_is_no_markup(name: str, kind: str) -> None:
    """Only elements and attributes that the harmless pages have; links stay on the page."""
    text = render(spoiled(ALL[name](), (MARKUP | HOSTILE)[kind]), "html")
    found = Tags(text)
    assert set(found.seen) - harmless() == set()
    assert (found.seen["script",], found.seen["script", "id", "type"], found.seen["style",]) == (
        1,
        1,
        1,
    )
    assert all(link.startswith("#") for link in found.links)
    assert {char for char in text if not allowed(char)} == set()
    text.encode("utf-8")


def test_a_policy_names_the_one_script_and_the_one_style() -> None:
    text = render(one_odd_node(), "html")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "unsafe" not in policy
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert not re.search(r'\sstyle="|\son\w+="', text)
    assert "innerHTML" not in text
    assert not re.findall(r"https?://", text)


def test_ten_thousand_nodes_are_a_small_page() -> None:
    names = tuple(f"node{number:05}" for number in range(10_000))
    findings = [*passes(names, *(f"area{number}.check" for number in range(25)))]
    findings += [
        Finding("time.offset", "fail", "error", (name,), "m", f"+{name}") for name in names[::33]
    ]
    of = report("check", verdict="fail", code=1, nodes=reached(names, {}), findings=tuple(findings))
    grid = grid_of(of, Roster(of))
    assert grid is not None
    assert len(grid.rows) == 2
    text = render(of, "html")
    assert len(text) < 500_000
    assert "all but node[00000,00033,00066" in text
    assert "264 more values" in text


def test_the_grid_shows_the_worst_of_each_area() -> None:
    grid = grid_of(one_odd_node(), Roster(one_odd_node()))
    assert grid is not None
    rows = {row.name: dict(zip(grid.areas, row.cells, strict=True)) for row in grid.rows}
    assert list(rows) == [f"gpu{number:02}" for number in range(1, 9)]
    assert (rows["gpu05"]["eth"].word, rows["gpu05"]["eth"].check) == ("FAIL", "eth.mtu")
    assert rows["gpu01"]["eth"].word == "ok"
    assert rows["gpu01"]["lim"].word == "acc."
    assert rows["gpu07"]["gpu"].word == "unkn"
    assert rows["gpu01"]["gpu"].word == ""


def test_ranges_of_nodes_are_by_number() -> None:
    roster = Roster(report("check", nodes=reached(FOUR)))
    assert roster.ranges(("n4", "n1", "n2", "no-such-node")) == "0-1,3"
    assert roster.ranges(()) == ""


def test_a_missing_rank_has_a_lane_and_no_mark() -> None:
    verify = one_odd_node().verify
    assert verify is not None
    (chart,) = html_charts.arrivals(verify.stages, verify.ranks)
    lanes = {lane.name: lane for lane in chart.lanes}
    assert (lanes["gpu05"].missing, lanes["gpu05"].marks) == ("rank 8-9 missing", ())
    assert [mark.text for mark in lanes["gpu01"].marks] == [
        "rank 0: after 4 ms",
        "rank 1: after 7 ms",
    ]
    assert chart.left < lanes["gpu01"].marks[0].x < lanes["gpu08"].marks[0].x < chart.right


def test_the_chart_of_bandwidth_has_what_is_wanted_as_a_line() -> None:
    verify = one_odd_node().verify
    assert verify is not None
    without = html_charts.bandwidth(verify.collectives)
    chart = html_charts.bandwidth(verify.collectives, 40.0)
    assert chart is not None
    assert without is not None
    assert without.least is None
    assert chart.least is not None
    assert chart.least.text == "wanted at the largest size: 40"
    assert chart.top <= chart.least.at <= chart.bottom


def test_a_direction_that_is_slow_is_told_from_the_other() -> None:
    of = one_odd_node()
    speeds, trips = html_pairs.heats(of, Roster(of))
    levels = {spot.title.split(":")[0]: spot.level for spot in speeds.spots}
    assert levels["gpu01 → gpu05"] == 3
    assert levels["gpu05 → gpu01"] == 0
    assert levels["gpu05 → gpu07"] == levels["gpu07 → gpu05"] == 4
    assert speeds.worst[0][2] == "timed out"
    assert {spot.level for spot in trips.spots} == {0, 2, 4}


def test_pairs_of_a_report_that_was_kept_are_the_same() -> None:
    """There facts are what JSON makes of them."""
    of = one_odd_node()
    kept = tuple(
        replace(
            node,
            facts={
                "net.dials": [
                    {k: getattr(d, k) for k in ("dialer", "listener", "word", "rtt")} for d in dials
                ]
            },
        )
        for node in of.nodes or ()
        if (dials := node.facts["net.dials"])
    )
    again = replace(of, nodes=kept)
    assert html_pairs.heats(again, Roster(again)) == html_pairs.heats(of, Roster(of))


def test_a_garbled_dial_of_a_stored_report_is_left_out_of_the_map() -> None:
    of = one_odd_node()
    first, *others = of.nodes or ()
    dials = [*first.facts["net.dials"], "garbled"]
    spoiled_node = replace(first, facts={"net.dials": dials})
    again = replace(of, nodes=(spoiled_node, *others))
    assert html_pairs.heats(again, Roster(again)) == html_pairs.heats(of, Roster(of))


def test_many_nodes_share_the_rows_of_a_map() -> None:
    of: Report = ALL["many_nodes"]()
    names = [node.node for node in of.nodes or ()]
    deaf = names[100]
    nodes = tuple(
        replace(
            node,
            facts={
                "net.dials": [
                    {
                        "dialer": node.node,
                        "listener": o,
                        "word": "timed_out" if o == deaf else "ok",
                        "rtt": 0.001,
                    }
                    for o in [*names[::7], deaf]
                ]
            },
        )
        for node in of.nodes or ()
    )
    (heat,) = html_pairs.heats(replace(of, nodes=nodes), Roster(of))
    assert len(heat.names) == 40
    assert {spot.x for spot in heat.spots if spot.level} == {100 // 13}


def test_text_can_be_read_in_both_themes() -> None:
    """WCAG asks for 4.5 between text and what is behind it."""
    style = (
        resources.files("clusterprep")
        .joinpath("data/report/report.css")
        .read_text(encoding="utf-8")
    )
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        color = dict(re.findall(r"--([\w-]+): (#\w+);", theme))
        on = [*product(("ink", "dim", "link", "f", "w", "u", "p"), ("paper", "soft"))]
        on += [
            ("f", "f-soft"),
            ("w", "w-soft"),
            ("u", "u-soft"),
            ("paper", "f"),
            ("paper", "p"),
            ("paper", "u"),
        ]
        on += [*product(("ink",), ("h0", "h1", "h2", "h3")), ("paper", "h4")]
        assert [(a, b) for a, b in on if contrast(color[a], color[b]) < 4.5] == []


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(c * 2 for c in color[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_turned_since_an_earlier_run_is_told_on_top() -> None:
    new = tuple(Turn(f"area.check{number}", "fail", "error", ("gpu03",)) for number in range(30))
    since = Since(
        "20261120-080000-ab12",
        "2026-11-20T08:00:00Z",
        new,
        (Turn("eth.mtu", "pass", "error", ("gpu<05>",)),),
    )
    head = render(replace(one_odd_node(), since=since), "html").partition("</header>")[0]
    told = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", head))
    assert (
        "since run 20261120-080000-ab12 of 2026-11-20 08:00:00 UTC: "
        "30 new: area.check0 gpu03; area.check1" in told
    )
    assert "area.check19 gpu03; …, 1 fixed: eth.mtu gpu&lt;05&gt;" in told
    assert "area.check20" not in told
    assert "since run" not in render(one_odd_node(), "html")
