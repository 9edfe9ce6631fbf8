"""What the project takes from others: bounds, and locked releases with hashes, which CI takes."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCKED = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
RUN = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
BUILD = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
DEV, TORCH, MCP = ([Requirement(text) for text in EXTRAS[name]] for name in ("dev", "torch", "mcp"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# What is installed by no hash, and why.
UNLOCKED = {
    "--no-deps --no-build-isolation -e .": "is this checkout",
    "$(or $(TORCH),torch)": (
        "what a build for GPUs brings along differs by build; and who names a build means it"
    ),
}

OTHER_RELEASES = (
    ROOT / "tests" / "support" / "bounds.py"
)  # its purpose is to install what is not locked


def locked(path: Path) -> Iterator[tuple[Requirement, list[str]]]:
    """The requirements of a file, with what stands behind each."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        wanted, *rest = re.split(r"\s(?=--)", line)
        yield Requirement(wanted.strip()), [word.strip() for word in rest]


def versions(name: str) -> dict[str, set[str]]:
    """The releases of each package; several where Pythons differ."""
    found: dict[str, set[str]] = {}
    for wanted, _ in locked(ROOT / "requirements" / name):
        (pin,) = wanted.specifier
        found.setdefault(canonicalize_name(wanted.name), set()).add(pin.version)
    return found


@pytest.mark.parametrize("wanted", [*RUN, *DEV, *TORCH, *MCP, *BUILD], ids=str)
def test_every_dependency_has_both_bounds(wanted: Requirement) -> None:
    kinds = sorted(bound.operator for bound in wanted.specifier)
    assert kinds in (["<", ">="], ["=="]), f"{wanted}: lowest and first release that may break us"


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.name)
def test_every_line_has_a_release_and_hashes_and_no_address(path: Path) -> None:
    rows = list(locked(path))
    assert rows
    for wanted, words in rows:
        assert [bound.operator for bound in wanted.specifier] == ["=="], wanted
        assert not wanted.url, wanted
        assert words, f"{wanted} has no hash"
        assert all(HASH.fullmatch(word) for word in words), (str(wanted), words)
    assert not re.search(r"://|--(extra-)?index|--find|-i ", path.read_text()), (
        "where it comes from is the machine's"
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("run.txt", RUN),
        ("dev.txt", [*RUN, *DEV, *BUILD]),
        ("torch.txt", TORCH),
        ("torch-cpu.txt", TORCH),
        ("mcp.txt", MCP),
    ],
    ids=["run", "dev", "torch", "torch-cpu", "mcp"],
)
def test_the_lock_has_every_dependency_within_its_bounds(
    name: str, wanted: list[Requirement]
) -> None:
    there = versions(name)
    lacking = [str(one) for one in wanted if canonicalize_name(one.name) not in there]
    outside = [
        f"{one}: {version}"
        for one in wanted
        for version in there.get(canonicalize_name(one.name), ())
        if not one.specifier.contains(version)
    ]
    assert (lacking, outside) == ([], []), "`make lock`"


def test_what_is_tested_is_what_is_locked_for_users() -> None:
    every = versions("dev.txt")
    assert {name: every.get(name) for name in versions("run.txt")} == versions("run.txt")
    for_cpus, torch = versions("torch-cpu.txt")["torch"], versions("torch.txt")["torch"]
    assert {version.partition("+")[0] for version in for_cpus} == torch


def test_extras_are_installed_beside_the_rest() -> None:
    """A package that several files have is of the same release in each."""
    rest = versions("dev.txt")
    shared = {name: found for name, found in versions("mcp.txt").items() if name in rest}
    assert len(shared) > 5
    assert {name: found - rest[name] for name, found in shared.items() if found - rest[name]} == {}


@pytest.mark.torch
def test_what_torch_needs_is_locked_with_the_rest() -> None:
    needed = [Requirement(text) for text in importlib.metadata.requires("torch") or ()]
    plain = {canonicalize_name(one.name) for one in needed if "extra" not in str(one.marker or "")}
    of_gpus = {name for name in plain if name.startswith(("nvidia", "cuda", "triton"))}
    assert plain - of_gpus - {*versions("dev.txt")} == set()


def test_nothing_is_installed_without_a_hash() -> None:
    """Neither by make nor by a test, but for what has its reason."""
    makefile = (ROOT / "Makefile").read_text()
    lines = [
        line.partition(" install ")[2] for line in makefile.splitlines() if "/pip install " in line
    ]
    assert len(lines) >= 5
    loose = [line for line in lines if not line.startswith("$(LOCKED)")]
    assert {line.removeprefix("--quiet ") for line in loose} == {*UNLOCKED}
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        text = path.read_text()
        if path not in (Path(__file__), OTHER_RELEASES) and re.search(r'pip"[^\n]*"install"', text):
            assert '"--require-hashes"' in text, (
                f"{path.relative_to(ROOT)} installs what is not locked"
            )
