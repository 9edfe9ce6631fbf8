"""Nodes choose their names, facts and messages, which must reach the terminal as mere text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from clusterprep.model import NodeSnapshot, Report
from clusterprep.model.records import field_names
from clusterprep.remedies import Remedy, shell_line
from clusterprep.reports import render
from tests.support.records import changed_copy

from .situations import SITUATIONS, healthy_apply, report
from .test_golden import SCHEMA

WORDS = {
    "command",
    "verdict",
    "severity",
    "action",
    "outcome",
    "kind",
    "started",
    "mode",
    "ended",
}  # never a node's own
SECTIONS = (
    "healthy_apply",
    "unreachable",
    "wrong_input",
    "verify_culprit",
    "launch_culprit",
    "bisect_culprits",
    "command_failed",
)  # together they have every section
OURS = (
    "1",
    "2",
    "31",
    "32",
    "33",
    "35",
    "36",
    "1;31",
    "1;32",
    "1;33",
    "1;35",
    "1;36",
)  # styles of the page
HOSTILE = {
    "markup": "[red]x[/red] [link=http://evil]y[/link] :smile:",
    "escape": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x1b]8;;http://evil\x1b\\",
    "newline": "a\nPASS     all is well\r\n\tb\x0b\x0c\x85\u2028c",
    "direction": "abc\u202edef\u2066\u200b\ufeff",
    "surrogate": "bad\udcff byte \ud800",
    "null": "a\x00b",
    "long": "x" * 10_000,
    "many": "y z " * 2_500,
    "wide": "節点" * 300,
    "bracket": "n[1-",
    "closing": "]]]][/][/bold]",
    "empty": "",
}


def spoiled(value: Any, text: str, name: str = "") -> Any:
    """The same value with every free text in it replaced."""
    if isinstance(value, Remedy):
        return shell_line("fix {word}   # of {word}", word=text)
    if isinstance(value, str):
        return value if name in WORDS else text
    if isinstance(value, tuple):
        return tuple(spoiled(item, text, name) for item in value)
    if isinstance(value, dict):
        return {
            text if name == "facts" else key: spoiled(item, text) for key, item in value.items()
        }
    names = field_names(type(value))
    if names is not None:
        fields = {each: spoiled(getattr(value, each), text, each) for each in names}
        return changed_copy(value, **fields)
    return value


def allowed(char: str) -> bool:
    return char == "\n" or char.isprintable()


@pytest.mark.parametrize("situation", SECTIONS)
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("verbose", [0, 1])
def test_console_shows_only_text(situation: str, kind: str, verbose: int) -> None:
    text = render(
        spoiled(SITUATIONS[situation](), HOSTILE[kind]), "console", width=80, verbose=verbose
    )
    assert {char for char in text if not allowed(char)} == set()
    text.encode("utf-8")
    if situation != "command_failed":  # what a command printed stands there line by line
        assert not any(line.startswith("PASS     all is well") for line in text.splitlines())


@pytest.mark.parametrize("kind", HOSTILE)
def test_colour_comes_from_us_alone(kind: str) -> None:
    """The harmless report has as many escapes; no text becomes a style or a link."""
    text = render(
        spoiled(SITUATIONS["unreachable"](), HOSTILE[kind]), "console", color=True, width=80
    )
    assert "\x1b]" not in text
    assert "\x9b" not in text
    assert "\x07" not in text
    assert {part.split("m")[0] for part in text.split("\x1b[")[1:]} <= {"0", *OURS}


def test_markup_is_shown_as_it_is_written() -> None:
    text = render(spoiled(SITUATIONS["unreachable"](), HOSTILE["markup"]), "console", width=200)
    assert HOSTILE["markup"] in text


@pytest.mark.parametrize(("verbose", "longest"), [(0, 40_000), (2, 80_000)])
def test_long_fields_are_cut_and_say_so(verbose: int, longest: int) -> None:
    text = render(
        spoiled(SITUATIONS["unreachable"](), HOSTILE["long"]), "console", width=80, verbose=verbose
    )
    assert "(10,000 characters)" in text
    assert len(text) < longest  # of more than half a million


@pytest.mark.parametrize("situation", SECTIONS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_json_keeps_the_text_and_stays_ascii(situation: str, kind: str) -> None:
    text = render(spoiled(SITUATIONS[situation](), HOSTILE[kind]), "json")
    assert text.isascii()
    assert {char for char in text if not allowed(char)} == set()
    kept = json.loads(text)
    if kind != "surrogate":
        assert kept["cluster"] == HOSTILE[kind]
    json.dumps(kept, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_facts_validate(kind: str) -> None:
    nodes = (
        NodeSnapshot(
            "n1",
            HOSTILE[kind],
            reached=False,
            reason=HOSTILE[kind],
            facts={HOSTILE[kind]: HOSTILE[kind]},
        ),
    )
    Draft202012Validator(SCHEMA).validate(json.loads(render(report("check", nodes=nodes), "json")))


def test_a_message_of_many_lines_stays_beside_its_word() -> None:
    lines = "\n".join(f"PASS line {number}" for number in range(500))
    text = render(
        report("check", verdict="error", code=2, error={"code": 2, "message": lines}),
        "console",
        width=80,
    )
    assert len(text.splitlines()) < 60
    assert not any(line.startswith("PASS") for line in text.splitlines())


def test_a_diff_keeps_its_lines_and_nothing_else() -> None:
    base: Report = healthy_apply()
    changes = (replace((base.changes or ())[0], diff="@@ -1 +1 @@\n-a\x1b[2J\n+[bold]b\r\n"),)
    text = render(replace(base, changes=changes), "console", width=80)
    assert "    -a\N{REPLACEMENT CHARACTER}[2J\n    +[bold]b\n" in text
