"""known_bad.yaml beside an inventory: what it adds, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory

GOOD = """\
- id: site-nccl-2.10
  component: nccl
  versions: 2.10
  when: {arch: aarch64, driver: ">=535"}
  effect: hang
  severity: error
  symptom: Hangs in our rack.
  mended: 2.20
  source: https://wiki.example/nccl
"""


def loaded(folder: Path, text: str) -> tuple[object, ...]:
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}]\n")
    (folder / "known_bad.yaml").write_text(text)
    return load_inventory(folder / "inventory.yaml").known_bad


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text)
    return [f"{problem.line}: {problem.message}" for problem in caught.value.problems]


def test_without_the_file_nothing_is_added(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("nodes: [{name: n1}]\n")
    assert load_inventory(tmp_path / "inventory.yaml").known_bad == ()


def test_versions_are_taken_as_written(tmp_path: Path) -> None:
    (entry,) = loaded(tmp_path, GOOD)
    assert (entry.versions, entry.mended) == ("2.10", "2.20")  # type: ignore[attr-defined]
    assert entry.when == {"arch": "aarch64", "driver": ">=535"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("component: nccl", "component: ncc", "2: expected a component: nccl, torch, driver"),
        ("versions: 2.10", "versions: new", "1: expected a version such as 2.6.0"),
        ('driver: ">=535"', 'driver: "535?"', "1: expected a version such as 2.6.0"),
        ("arch:", "archi:", "4: unknown key"),
        ("effect: hang\n", "", "1: the key 'effect' is missing"),
        ("https://wiki.example/nccl", "our wiki", "9: expected a link"),
    ],
)
def test_mistakes_have_their_line(tmp_path: Path, before: str, after: str, expected: str) -> None:
    if before.endswith("\n"):
        before = f"  {before}"
    found = problems(tmp_path, GOOD.replace(before, after))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_an_id_is_there_once(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD + GOOD) == ["10: 'site-nccl-2.10' is there twice"]


def test_a_mapping_is_no_list(tmp_path: Path) -> None:
    assert problems(tmp_path, "id: x\n") == [
        "1: expected a list of bad versions at the top, seen a mapping"
    ]
