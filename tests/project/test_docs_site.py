"""The documents: README is short, each page has its place on the site, and anchors exist."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.support import docs_site, pictures, readme

ROOT = docs_site.ROOT
PAGES = sorted(path.relative_to(docs_site.DOCS).as_posix() for path in docs_site.DOCS.rglob("*.md"))
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def placed() -> list[str]:
    """Return every page that the site's navigation names."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = yaml.safe_load(re.sub(r"!!python/\S+", "", text))  # a tag names a function
    found = []
    for section in config["nav"]:
        for below in section.values():
            found += [below] if isinstance(below, str) else below
    return found


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(words.strip().replace(" ", "-"))
    return found


def test_readme_is_read_in_minutes() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150


def test_every_page_stands_once_in_the_navigation() -> None:
    names = placed()
    assert sorted(name for name in names if not name.startswith("project/")) == PAGES
    project = [name.removeprefix("project/") for name in names if name.startswith("project/")]
    assert tuple(project) == docs_site.PROJECT


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_every_anchor_exists(name: str) -> None:
    page = ROOT / name
    for _, link, anchor in docs_site.LINK.findall(page.read_text(encoding="utf-8")):
        if anchor:
            assert anchor[1:] in anchors((page.parent / link).resolve()), f"{name}: {link}{anchor}"


@pytest.mark.parametrize(
    ("uri", "text", "expected"),
    [
        pytest.param(
            "howto/launch.md",
            "[verify.md](verify.md#limits)",
            "[verify](../howto/verify.md#limits)",
            id="page",
        ),
        pytest.param(
            "howto/extending.md",
            "[CONTRIBUTING.md](../../CONTRIBUTING.md)",
            "[CONTRIBUTING](../project/CONTRIBUTING.md)",
            id="page-at-the-top",
        ),
        pytest.param(
            "reference/report.md",
            "[the schema](../../schemas/report.schema.json)",
            "[the schema](../source/schemas/report.schema.json)",
            id="file",
        ),
        pytest.param(
            "howto/prolog.md",
            "[examples/slurm](../../examples/slurm)",
            "`examples/slurm`",
            id="folder",
        ),
        pytest.param(
            "project/SECURITY.md",
            "[x](docs/why/threat-model.md)",
            "[x](../why/threat-model.md)",
            id="from-the-top",
        ),
        pytest.param("index.md", "`a\\|b`", "`a|b`", id="bar-in-code"),
    ],
)
def test_links_lead_to_the_places_of_the_site(uri: str, text: str, expected: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
    assert docs_site.on_page_markdown(text, page, None, None) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://example.org/a.js"></script>'),
        ("b.html", '<link rel="stylesheet" href="//example.org/a.css">'),
        ("c.css", "@font-face { src: url('https://example.org/a.woff2') }"),
    ],
)
def test_a_site_that_loads_from_elsewhere_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "good.html").write_text('<img src="a.png"><a href="https://example.org/">x</a>')
    assert list(docs_site.loaded_from_elsewhere(tmp_path)) == []
    (tmp_path / name).write_text(text)
    (found,) = docs_site.loaded_from_elsewhere(tmp_path)
    assert found.startswith(f"{name} loads ")


def test_the_recording_is_of_the_run_that_is_shown_as_text() -> None:
    drawn = pictures.RECORDING.read_text(encoding="utf-8")
    assert not re.search(r"(?:href|src|url)\W*(?:https?:)?//", drawn), "a picture fetches nothing"
    picture = ET.fromstring(drawn)  # noqa: S314 - a file of this checkout
    elements = picture.iter("{http://www.w3.org/2000/svg}text")
    lines = ["".join(element.itertext()) for element in elements]
    _, first, second = "\n".join(lines).split("$ clusterprep apply inventory.yaml")
    shown = readme.run_shown(readme.TRY.read_text(encoding="utf-8")).split("\n", 1)[1]
    assert "".join(first.split()) == "".join(shown.split()), "`make docs` renews both"
    assert "PASS" in second
    assert "FAIL" not in second
