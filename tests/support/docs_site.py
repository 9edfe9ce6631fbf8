"""The site of docs/: what MkDocs needs to be told while it builds, and what is looked at after.

MkDocs imports this file for `on_files` and `on_page_markdown`. Pages link to files of the checkout
as they lie there; those that are pages become pages of the site, other files lie under `source/`.

`python -m tests.support.docs_site build/site` looks at a site that was built.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages of the checkout that lie outside of docs/.
PROJECT = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
)
# The text, the path and the anchor of a link to a file.
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
# Attributes by which a page loads something. A link that is followed by a click loads nothing.
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
ELSEWHERE = re.compile(r"(?:https?:)?//")


# ---------------------------------------------------------------- while MkDocs builds


def on_files(files: Any, config: Any) -> Any:
    """Add the pages at the top of the checkout, and the files that pages link to."""
    from mkdocs.structure.files import File

    for name in PROJECT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place(ROOT / name), content=text))
    for path in sorted(linked_files()):
        files.append(File.generated(config, place(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the text of a page with links as they are on the site."""
    uri = page.file.src_uri
    folder = (DOCS / uri).parent
    if uri.startswith("project/"):
        folder = (ROOT / uri.removeprefix("project/")).parent
    up = "../" * uri.count("/")

    def moved(match: re.Match[str]) -> str:
        text, link, anchor = match.groups()
        path = (folder / link).resolve()
        if path.is_dir():
            return f"`{text}`"  # a site has no page of a folder
        # A page of a site has no file name.
        text = text.removesuffix(".md")
        return f"[{text}]({up}{place(path)}{anchor or ''})"

    text = LINK.sub(moved, markdown)
    # Tables on GitHub need a backslash before a bar inside code, where Python-Markdown prints it.
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), text)


def place(path: Path) -> str:
    """Return where a file of the checkout is on the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if name in PROJECT:
        return f"project/{name}"
    if name == "README.md":
        return "index.md"
    return f"source/{name}"


def linked_files() -> set[Path]:
    """Return the files outside of docs/ that pages link to, and that are no pages themselves."""
    found = set()
    for page in [*DOCS.rglob("*.md"), *(ROOT / name for name in PROJECT)]:
        for link in LINK.finditer(page.read_text(encoding="utf-8")):
            path = (page.parent / link[2]).resolve()
            if path.is_file() and place(path).startswith("source/"):
                found.add(path)
    return found


# ---------------------------------------------------------------- after it was built


class _Loaded(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADING.get(tag, ""))
        if address:
            self.addresses.append(address)


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """Yield what pages and styles of a site load that is not of the site."""
    for path in sorted(site.rglob("*.html")):
        parser = _Loaded()
        parser.feed(path.read_text(encoding="utf-8"))
        for address in parser.addresses:
            if ELSEWHERE.match(address):
                yield f"{path.relative_to(site)} loads {address}"
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        for address in re.findall(r"url\(\s*[\"']?([^)\"']+)", text):
            if ELSEWHERE.match(address):
                yield f"{path.relative_to(site)} loads {address}"


def main(site: Path) -> None:
    """End with 1 and a line for each fault, or say how many pages there are."""
    faults = list(loaded_from_elsewhere(site))
    if faults:
        sys.exit("\n".join(faults))
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages in {site}; look at them: python3 -m http.server -d {site}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
