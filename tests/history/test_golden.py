"""The look of earlier runs, byte for byte.

`python -m tests.history.regenerate` accepts a new one: read the diff.
"""

from __future__ import annotations

import json

import pytest

from clusterprep.reports import render
from tests.support.command import report_schema

from .regenerate import GOLDEN, wanted

FILES = wanted()


@pytest.mark.parametrize("file", FILES)
def test_a_report_looks_as_its_golden_file(file: str) -> None:
    report, fmt, verbose = FILES[file]
    assert render(report, fmt, verbose=verbose) == (GOLDEN / file).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(FILES)


@pytest.mark.parametrize("file", [file for file in FILES if file.endswith(".json")])
def test_json_validates(file: str) -> None:
    report_schema().validate(json.loads(render(FILES[file][0], "json")))
