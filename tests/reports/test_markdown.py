"""Markdown in which texts of nodes are text only, under a strict reading of what may be markup."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from markdown_it import MarkdownIt

from clusterprep.model import EnvValue, Finding, Report
from clusterprep.remedies import shell_line
from clusterprep.reports import markdown, render
from clusterprep.reports.markdown import LARGEST, cell, code, inline

from .situations import FOUR, SITUATIONS, report
from .test_hostile import spoiled
from .three_fleets import FLEETS, one_odd_node

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</summary></details><script>alert(1)</script>",
    "@everyone look at #1 and org/repo#2",
    "[x](http://evil) ![y](http://evil/y.png) http://evil www.evil.example",
    "`` ` ``` ~~~ ````",
    "a | b \\| c \\\\| d",
    "**bold** _it_ # head\n- item\n1. one\n> quote",
    "```\n</details>\n```",
    "- item",
    "1. one",
    "===",
    "---",
    ":tada: &lt; &#64;",
    "see http://evil.example now",
    "see www.evil.example now",
    ":tada: GH-12",
    "\x1b[31m \u202e",
    " `",
)
SPAN = re.compile(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)")


def without_code(text: str) -> str:
    """Return what remains without blocks, spans and cells of code, as CommonMark reads them."""
    lines, fence = [], ""
    for line in text.split("\n"):
        found = re.match(r" *(`{3,})", line)
        if fence:
            fence = "" if line.strip() == fence else fence
        elif found and "`" not in line.strip()[len(found[1]) :]:
            fence = found[1]
        else:
            lines.append(line)
    assert not fence, "a fence stays open"
    return "\n".join(SPAN.sub("", re.sub(r"<code>[\w &#;]*</code>", "", line)) for line in lines)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "name", ["one_odd_node", "half_dead", "healthy_fleet", "launch_culprit", "wrong_input"]
)
def test_words_of_nodes_are_no_markup(name: str, text: str) -> None:
    whole = spoiled((SITUATIONS | FLEETS)[name](), text)
    left = without_code(render(whole, "markdown"))
    assert set(re.findall(r"</?[a-z]+>", left)) <= {
        "<details>",
        "</details>",
        "<summary>",
        "</summary>",
    }
    assert "<" not in re.sub(r"</?(details|summary)>", "", left)
    assert not re.search(r"[@\[\]!~`\\&\x1b\u202e]|://|www\.|#\d|:tada:|GH-\d", left)
    assert left.count("<details>") == left.count("</details>")
    assert not re.search(r"^ *(===|---)", left, re.MULTILINE)


def shapes(text: str) -> Counter[str]:
    """Return how often each kind of element occurs, by a CommonMark parser; HTML by its text."""
    every = MarkdownIt("commonmark").enable("table").parse(text)
    flat = [inner for token in every for inner in (token, *(token.children or ()))]
    return Counter(
        word
        for token in flat
        if not token.type.startswith(("code", "text", "inline", "softbreak"))
        for word in (
            re.findall("<[^>]*>?", token.content) if token.type.startswith("html") else [token.type]
        )
    )


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "name", ["one_odd_node", "half_dead", "healthy_fleet", "launch_culprit", "wrong_input"]
)
def test_a_parser_finds_the_same_elements_whatever_nodes_say(name: str, text: str) -> None:
    """No link, no picture, no HTML but ours; one word in all places only makes for fewer rows."""
    harmless = shapes(render(spoiled((SITUATIONS | FLEETS)[name](), "a word"), "markdown"))
    found = shapes(render(spoiled((SITUATIONS | FLEETS)[name](), text), "markdown"))
    extra = {
        shape: number
        for shape, number in (found - harmless).items()
        if shape not in ("<code>", "</code>")
    }
    assert extra == {}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_stays_one_cell(text: str) -> None:
    row = f"| {cell(text)} | x |"
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "\\" not in row


def test_a_span_has_a_fence_that_is_not_inside() -> None:
    for text in HOSTILE:
        found = SPAN.fullmatch(code(text))
        assert found
        assert found[1] not in re.findall("`+", found[2])


@pytest.mark.parametrize(
    "text", ["mtu 1500 on gpu[01-02]", "all ranks", "mlx5_0 is down", "≤ 50 ms", ""]
)
def test_plain_words_stay_plain(text: str) -> None:
    assert inline(text) == (text if "[" not in text else f"`{text}`")


def test_markdown_fits_into_a_comment() -> None:
    names = tuple(f"node-{number * 7}-x" for number in range(300))
    findings = tuple(
        Finding(
            f"a.c{number}",
            "fail",
            "error",
            names[number:],
            "m " * 200,
            "s " * 200,
            "w " * 200,
            shell_line("{words}", words=["r"] * 200),
        )
        for number in range(150)
    )
    env = tuple(EnvValue(f"NAME_{number}", "v" * 200, FOUR, "w" * 200) for number in range(400))
    text = render(report("check", verdict="fail", code=1, findings=findings, env=env), "markdown")
    assert len(text) < 65_536
    assert "and" not in text[LARGEST:] or "--output report.html" in text
    assert text.count("<details>") == text.count("</details>")


def test_trouble_comes_first_and_the_rest_is_folded() -> None:
    text = render(one_odd_node(), "markdown")
    assert text.startswith("## FAIL: clusterprep verify `demo`\n")
    assert text.index("`eth.mtu` on `gpu05`") < text.index("<details>")
    assert "  ```sh\n  ssh gpu05 sudo ip link set dev eth0 mtu 9000\n  ```" in text
    assert markdown.LABELS["fail", "error"] in text


def test_an_empty_report_has_its_head() -> None:
    of: Report = report("validate")
    assert render(of, "markdown").startswith("## PASS: clusterprep validate `demo`")
