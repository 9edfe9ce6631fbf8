"""Writes the golden files anew: `python -m tests.reports.regenerate`; read the diff before you keep it."""

from __future__ import annotations

from pathlib import Path

from clusterprep.reports import render

from .situations import SITUATIONS

GOLDEN = Path(__file__).parent / "golden"
KINDS = {".txt": ("console", 0), ".v.txt": ("console", 1), ".json": ("json", 0)}
TOO_LONG = {"many_nodes": (".v.txt", ".json")}  # half a megabyte that nobody would read


def wanted() -> dict[str, tuple[str, str, int]]:
    """File name -> situation, format, verbosity."""
    return {
        f"{name}{suffix}": (name, fmt, verbose)
        for name in SITUATIONS
        for suffix, (fmt, verbose) in KINDS.items()
        if suffix not in TOO_LONG.get(name, ())
    }


def rendered(file: str) -> str:
    """What the file should hold."""
    name, fmt, verbose = wanted()[file]
    return render(SITUATIONS[name](), fmt, color=False, verbose=verbose, width=80)


def main() -> None:
    """Write them all, and remove those that no situation makes any more."""
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        if old.name not in wanted():
            old.unlink()
    for file in wanted():
        (GOLDEN / file).write_text(rendered(file), encoding="utf-8")


if __name__ == "__main__":
    main()
