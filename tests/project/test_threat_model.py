"""docs/why/threat-model.md: every answer has a test, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/why/threat-model.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
TEXT = PAGE.read_text()


def there(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED.findall(TEXT)}))
def test_every_test_that_it_names_exists(path: str) -> None:
    named = {test for where, test in NAMED.findall(TEXT) if where == path}
    assert named - there(ROOT / "tests" / path) == set()


def test_every_answer_names_a_test() -> None:
    rows = [
        line for line in TEXT.splitlines() if line.startswith("| ") and " answer | " not in line
    ]
    assert len(rows) >= 20
    assert [row for row in rows if not NAMED.search(row.split("|")[3])] == []


def test_each_thing_is_told_once() -> None:
    for section in TEXT.split("\n## "):
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
        told = [first for first in rows if first.strip() != "it might"]
        assert sorted(set(told)) == sorted(told)


def test_readme_and_policy_link_to_the_threat_model() -> None:
    readme, policy = (ROOT / "README.md").read_text(), (ROOT / "SECURITY.md").read_text()
    assert "](SECURITY.md)" in readme
    assert "](docs/why/threat-model.md)" in readme
    assert "](docs/why/threat-model.md)" in policy
    assert "](../../SECURITY.md)" in TEXT
