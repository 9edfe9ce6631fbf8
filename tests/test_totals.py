"""The totals of several runs, and the rule that tests on lab hosts carry their marker."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.totals import summed


def item(fixtures: tuple[str, ...], marked: bool) -> Any:
    marker = pytest.mark.hosts if marked else None
    return SimpleNamespace(
        nodeid="tests/test_x.py::test_it",
        fixturenames=fixtures,
        get_closest_marker=lambda name: marker if name == "hosts" else None,
    )


def test_totals_are_added_up() -> None:
    runs = [{"passed": 11000, "failed": 0, "skipped": 2}, {"passed": 900, "failed": 1, "skipped": 0}]
    text = "".join(json.dumps(run) + "\n" for run in runs)
    assert summed(text) == "11900 passed, 1 failed, 2 skipped"


def test_a_test_that_uses_hosts_without_the_marker_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"pytest\.mark\.hosts:\n  tests/test_x\.py::test_it"):
        pytest_collection_modifyitems([item(("lab4",), marked=False)])


@pytest.mark.parametrize(("fixtures", "marked"), [(("lab4",), True), (("tmp_path",), False)])
def test_other_tests_are_not(fixtures: tuple[str, ...], marked: bool) -> None:
    pytest_collection_modifyitems([item(fixtures, marked)])
