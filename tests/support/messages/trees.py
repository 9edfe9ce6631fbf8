"""Reads the files of all versions: of a git directory by its tags, of folders by their names."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.messages.projects import Project

Version = tuple[int, ...]


def versions(project: Project, source: Path, wanted: Sequence[str] = ()) -> dict[Version, str]:
    """Return the name of each version, in order; `wanted` are tags or folders, or else all.

    A project without releases has dates: `2024.1.31=COMMIT`.
    """
    names = wanted or _names(source)
    by_version: dict[Version, str] = {}
    for word in names:
        label, _, name = word.rpartition("=")
        version = project.version(label or name)
        if version is not None:
            by_version[version] = name
    return dict(sorted(by_version.items()))


def _names(source: Path) -> list[str]:
    if (source / "objects").is_dir():
        return _git(source, "tag").decode().split()
    return [path.name for path in source.iterdir()]


def files(project: Project, source: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, identity and text of each file of one version that may have messages.

    Files of the same identity have the same text.
    """
    if (source / "objects").is_dir():
        yield from _of_git(project, source, name)
        return
    root = source / name
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if path.is_file() and project.wants(relative):
            text = path.read_text(encoding="utf-8", errors="replace")
            yield relative, text, text


def _of_git(project: Project, source: Path, name: str) -> Iterator[tuple[str, str, str]]:
    rows: list[tuple[str, str]] = []
    for row in _git(source, "ls-tree", "-r", "-z", name).decode().split("\0"):
        about, _, path = row.partition("\t")
        if path and about.split()[1] == "blob" and project.wants(path):
            rows.append((path, about.split()[2]))
    asked = "".join(f"{blob}\n" for _, blob in rows)
    answer = _git(source, "cat-file", "--batch", stdin=asked.encode())
    position = 0
    for path, blob in rows:
        end = answer.index(b"\n", position)
        size = int(answer[position:end].split()[2])
        text = answer[end + 1 : end + 1 + size].decode("utf-8", "replace")
        position = end + size + 2
        yield path, blob, text


def _git(source: Path, *words: str, stdin: bytes | None = None) -> bytes:
    command = ["git", f"--git-dir={source}", *words]
    return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout
