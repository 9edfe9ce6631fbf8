"""Every report, byte for byte; `python -m tests.reports.regenerate` accepts changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from clusterprep.reports import render

from .regenerate import GOLDEN, rendered, wanted
from .situations import SITUATIONS
from .three_fleets import FLEETS

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("file", wanted())
def test_a_report_looks_as_its_golden_file(file: str) -> None:
    assert rendered(file) == (GOLDEN / file).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(wanted())


@pytest.mark.parametrize("name", SITUATIONS | FLEETS)
def test_json_validates(name: str) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(render((SITUATIONS | FLEETS)[name](), "json")))


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("width", [40, 60, 80, 132, 400])
def test_fits_the_width_but_for_what_is_to_be_pasted(name: str, width: int) -> None:
    text = render(SITUATIONS[name](), "console", width=width)
    pasted = (
        "fix:",
        "more:",
        "read:",
        "logs ",
        "undo:",
        "then:",
        "add:",
        "run:",
        "all_reduce ",
        "size ",
    )
    assert [
        line
        for line in text.splitlines()
        if len(line) > width and not line.strip().startswith(pasted)
    ] == []


def test_five_hundred_nodes_fit_one_screen() -> None:
    assert len(render(SITUATIONS["many_nodes"](), "console", width=80).splitlines()) <= 60


def test_the_same_without_colours_but_for_the_escapes() -> None:
    for name in SITUATIONS:
        plain = render(SITUATIONS[name](), "console", width=80)
        coloured = render(SITUATIONS[name](), "console", color=True, width=80)
        assert "\x1b" not in plain
        assert "\x1b" in coloured
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("name", SITUATIONS)
def test_ascii_only(name: str) -> None:
    text = render(SITUATIONS[name](), "console", width=80, ascii_only=True)
    assert text.isascii()
    assert "?" not in text.replace('"require"?', "")
