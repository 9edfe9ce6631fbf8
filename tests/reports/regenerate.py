"""Write the golden files anew: `python -m tests.reports.regenerate`. Read the diff afterwards."""

from __future__ import annotations

import re
from pathlib import Path

from clusterprep.reports import SUFFIXES, render

from .situations import SITUATIONS
from .three_fleets import FLEETS

GOLDEN = Path(__file__).parent / "golden"
KINDS = {".txt": ("console", 0), ".v.txt": ("console", 1), ".json": ("json", 0)}
EVERY = {suffix: (fmt, 0) for fmt, suffix in SUFFIXES.items()}
TOO_LONG = {"many_nodes": (".v.txt", ".json")}  # half a megabyte is too long to read
# Equal in all pages: style and script, which have their hashes in the policy, and the release.
OURS = re.compile(
    r"(?<=<style>).*?(?=</style>)|(?<=<script>).*?(?=</script>)|sha256-[\w+/=]+", re.DOTALL
)
RELEASE = re.compile(r"(?<=<footer class=\"dim\">clusterprep )\S+(?=\. )")


def wanted() -> dict[str, tuple[str, str, int]]:
    """File name -> situation, format, verbosity. The three fleets have every format."""
    return {
        f"{name}{suffix}": (name, fmt, verbose)
        for names, kinds in ((SITUATIONS, KINDS), (FLEETS, EVERY))
        for name in names
        for suffix, (fmt, verbose) in kinds.items()
        if suffix not in TOO_LONG.get(name, ())
    }


def rendered(file: str) -> str:
    """What the file should hold."""
    name, fmt, verbose = wanted()[file]
    text = render((SITUATIONS | FLEETS)[name](), fmt, color=False, verbose=verbose, width=80)
    return RELEASE.sub("0", OURS.sub("", text)) if fmt == "html" else text


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
