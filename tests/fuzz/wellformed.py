"""What every report format promises whatever a node says.

There is a function for each format, which raises AssertionError.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from html.parser import HTMLParser

from prometheus_client.parser import text_string_to_metric_families

from clusterprep.model import Report
from clusterprep.reports import render
from tests.support.command import report_schema

OURS = {"\n"}
VOID = {"meta", "br", "hr", "img", "input", "link", "col", "wbr"}
IMPLIED = {
    "tr",
    "td",
    "th",
    "tbody",
    "thead",
    "p",
    "li",
    "dt",
    "dd",
    "option",
}  # ends that HTML lets one leave out


def only_text(text: str) -> None:
    """Nothing that a terminal, an editor or a reader would obey."""
    assert {char for char in text if not char.isprintable() and char not in OURS} == set()
    text.encode("utf-8")


def as_json(text: str) -> None:
    only_text(text)
    assert text.isascii()
    report_schema().validate(json.loads(text, parse_constant=_no_number))


def _no_number(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def as_xml(text: str) -> None:
    ET.fromstring(text)  # noqa: S314 - our own report
    text.encode("utf-8")


def as_metrics(text: str) -> None:
    only_text(text)
    seen = set()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("clusterprep_")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in seen
            seen.add(key)


class _Page(HTMLParser):
    """Which elements stand in which, and what they carry."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert not {name for name in names if name.startswith("on")}, f"<{tag}> has a handler"
        links = [
            value
            for name, value in attrs
            if name in ("href", "src", "action", "formaction", "data")
        ]
        assert all(link is None or link.startswith("#") for link in links), (
            f"<{tag}> leads away: {links}"
        )
        self.scripts += tag == "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in IMPLIED:
            self.open.pop()
        assert self.open, f"</{tag}> ends nothing"
        assert self.open[-1] == tag, f"</{tag}> in <{self.open[-1]}>"
        self.open.pop()


def as_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    page.close()
    assert page.scripts <= 2  # ours, and its data
    assert [tag for tag in page.open if tag not in IMPLIED] == []
    text.encode("utf-8")


FORMATS: Mapping[str, Callable[[str], None]] = {
    "json": as_json,
    "console": only_text,
    "html": as_page,
    "prometheus": as_metrics,
    "junit": as_xml,
    "markdown": only_text,
    "nagios": only_text,
}


def checked(report: Report, fmt: str) -> str:
    """The report in a format, which is well-formed."""
    text = render(report, fmt)
    FORMATS[fmt](text)
    return text
