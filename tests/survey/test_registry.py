"""A plug-in exists because its file exists, and two of one name are refused with both owners."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.inventory.demands import check_names
from clusterprep.survey import registry

PLUGIN = """\
from clusterprep.facts import Fact
{}
"""


@pytest.fixture
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """An empty package that can be imported under the name of its folder."""
    folder = tmp_path / f"plugins_of_{request.node.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def write(package: Path, **files: str) -> None:
    for name, body in files.items():
        (package / f"{name}.py").write_text(PLUGIN.format(body))


def test_a_file_is_enough(package: Path) -> None:
    write(
        package,
        a='ONE = Fact("a.one")\nTWO = Fact("a.two")',
        b='THREE = Fact("b.three")\nNOT_ONE = "Fact"',
    )
    assert list(registry.collect(Fact, package.name)) == ["a.one", "a.two", "b.three"]


def test_a_plug_in_that_another_file_imports_is_the_same_one(package: Path) -> None:
    write(package, a='ONE = Fact("a.one")', b=f"from {package.name}.a import ONE")
    assert list(registry.collect(Fact, package.name)) == ["a.one"]


def test_two_of_one_name_are_refused_with_both_owners(package: Path) -> None:
    write(package, a='ONE = Fact("same")', b='TWO = Fact("same")')
    with pytest.raises(
        TypeError, match=rf"same is defined in {package.name}\.a and in {package.name}\.b"
    ):
        registry.collect(Fact, package.name)


def test_two_of_one_name_in_one_file_are_refused_too(package: Path) -> None:
    write(package, a='ONE = Fact("same")\nTWO = Fact("same")')
    with pytest.raises(TypeError, match="same is defined in"):
        registry.collect(Fact, package.name)


def test_every_check_is_named_after_its_area_and_in_the_catalogue() -> None:
    assert registry.checks()
    for name, check in registry.checks().items():
        assert isinstance(check, Check)
        assert name == check.name
        assert name in check_names(), "`make format` adds it to clusterprep/data/check_names.json"
        assert name.count(".") == 1


def test_every_fact_that_a_check_needs_is_defined() -> None:
    assert {fact for check in registry.checks().values() for fact in check.facts} <= set(
        registry.facts()
    )


def test_every_check_has_its_page() -> None:
    for check in registry.checks().values():
        for text in (check.title, check.why, check.how, check.remedy):
            assert text.strip(), check.name
