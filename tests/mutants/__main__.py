"""`python -m tests.mutants [OPTIONS]`: how many mutants of the core its tests find."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from tests.mutants import page
from tests.mutants.alive import EQUIVALENT
from tests.mutants.core import CORE, Module
from tests.mutants.drawing import Place, shares, shuffled
from tests.mutants.making import Source
from tests.mutants.trying import ROOT, Attempt, Tries, limit, workers

SEED = 1  # that of docs/why/mutants.md
DRAWN = 300
FOR_ALL = 600  # CPU seconds for a file of tests without a mutant


def main() -> int:
    words = _words()
    every = [module for part in CORE for module in part.modules]
    modules = {module.path: module for module in every if words.only in module.path}
    sources = {path: Source(path, (ROOT / path).read_text(encoding="utf-8")) for path in modules}
    there = {path: len(source.places) for path, source in sources.items()}
    drawn = draw(sources, shares(there, words.draw), words.seed)
    print(f"{len(drawn)} of {sum(there.values())} mutants, seed {words.seed}", flush=True)
    with workers(words.processes) as tries:
        results = tried(drawn, sources, modules, tries)
    run = page.Run(words.seed, f"mutmut {version('mutmut')}", there, results)
    print(page.table(CORE, there, results))
    print(f"found: {page.found(results)}")
    if words.write and not words.only:
        write(run)
    return 0


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw (default: %(default)s)")
    parser.add_argument("--draw", type=int, default=DRAWN, help="how many (default: %(default)s)")
    parser.add_argument("--only", default="", help="of modules whose path has this text")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="renew docs/why/mutants.md")
    return parser.parse_args()


def draw(
    sources: Mapping[str, Source], wanted: Mapping[str, int], seed: int
) -> list[tuple[Place, str]]:
    """Draw so many mutants of each module, each another program, in the order of the source."""
    drawn = []
    for path, count in wanted.items():
        order = shuffled(sources[path].places, seed)
        texts: dict[str, Place] = {}
        while len(texts) < count and (place := next(order, None)):
            text = sources[path].mutant(place)
            if text is not None:
                texts.setdefault(text, place)
        mutants = [(place, text) for text, place in texts.items()]
        drawn += sorted(mutants, key=lambda mutant: mutant[0].number)
    return drawn


def tried(
    drawn: Sequence[tuple[Place, str]],
    sources: Mapping[str, Source],
    modules: Mapping[str, Module],
    tries: Tries,
) -> list[page.Result]:
    """Try all, and print how each ended."""
    needed = undisturbed(
        sorted({test for module in modules.values() for test in module.tests}), tries
    )
    attempts = []
    for place, text in drawn:
        tests = modules[place.path].tests
        seconds = sum(needed[test] for test in tests)
        attempts.append(Attempt(place.path, text, tests, limit(seconds)))
    results = []
    for (place, text), trial in zip(drawn, tries(attempts), strict=True):
        change = page.change(sources[place.path].text, text)
        results.append(page.Result(place, change, trial.outcome))
        where = f"{place.path}:{place.line} {place.function}"
        print(
            f"{trial.outcome:9} {trial.seconds:5.1f} s  {where}  {trial.by}\n{change}", flush=True
        )
    return results


def undisturbed(files: Sequence[str], tries: Tries) -> dict[str, float]:
    """Return the CPU seconds of each file of tests without a mutant, where all have to pass."""
    attempts = [Attempt("pyproject.toml", None, (file,), FOR_ALL) for file in files]
    needed = {}
    for file, trial in zip(files, tries(attempts), strict=True):
        if trial.outcome != "alive":
            sys.exit(f"{file} fails without a mutant:\n{trial.said}")
        needed[file] = trial.seconds
        print(f"{trial.seconds:5.1f} s  {file}", flush=True)
    return needed


def write(run: page.Run) -> None:
    """Renew the page, or by another seed than its own the line about another draw."""
    before = page.PAGE.read_text(encoding="utf-8") if page.PAGE.exists() else ""
    if run.seed == SEED:
        text = page.text(run, CORE, EQUIVALENT, page.other_draw(before))
    else:
        text = page.with_other_draw(before, run)
    page.PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
