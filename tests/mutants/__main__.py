"""`python -m tests.mutants [--seed N] [--draw N] [--only TEXT] [--write]`: how many mutants the tests of the core find."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from tests.mutants import page
from tests.mutants.core import CORE, Module
from tests.mutants.drawing import Place, shares, shuffled
from tests.mutants.making import Source
from tests.mutants.trying import ROOT, Attempt, Trial, limit, workers

SEED = 1  # that of docs/mutants.md
DRAWN = 300
FOR_ALL = 600  # CPU seconds for the tests of a module without a mutant


def main() -> int:
    words = _words()
    modules = {module.path: module for part in CORE for module in part.modules if words.only in module.path}
    sources = {path: Source(path, (ROOT / path).read_text(encoding="utf-8")) for path in modules}
    there = {path: len(source.places) for path, source in sources.items()}
    drawn = draw(sources, shares(there, words.draw), words.seed)
    print(f"{len(drawn)} of {sum(there.values())} mutants of {len(modules)} modules, seed {words.seed}", flush=True)
    with workers(words.processes) as tries:
        limits = undisturbed(modules, tries)
        attempts = [
            Attempt(place.path, text, modules[place.path].tests, limits[place.path]) for place, text in drawn
        ]
        results = []
        for (place, text), trial in zip(drawn, tries(attempts), strict=True):
            results.append(page.Result(place, page.change(sources[place.path].text, text), trial.outcome))
            print(f"{trial.outcome:9} {trial.seconds:5.1f} s  {place.path}:{place.line} {place.function}  {trial.by[:90]}")
            print(results[-1].change, flush=True)
    table = page.table(results, there)
    print(table)
    if words.write:
        made_by = f"mutmut {version('mutmut')}"
        page.write(results, there, words.seed, made_by)
    return 0


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw (default: %(default)s, that of the page)")
    parser.add_argument("--draw", type=int, default=DRAWN, help="how many mutants (default: %(default)s)")
    parser.add_argument("--only", default="", help="of modules whose path has this text")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="renew docs/mutants.md")
    return parser.parse_args()


def draw(sources: dict[str, Source], wanted: dict[str, int], seed: int) -> list[tuple[Place, str]]:
    """So many mutants of each module that are programs of their own, in the order of the files."""
    drawn = []
    for path, count in wanted.items():
        order = shuffled(sources[path].places, seed)
        texts: dict[str, Place] = {}
        while len(texts) < count and (place := next(order, None)):
            text = sources[path].mutant(place)
            if text is not None:
                texts.setdefault(text, place)
        drawn += sorted(((place, text) for text, place in texts.items()), key=lambda pair: pair[0].number)
    return drawn


def undisturbed(modules, tries) -> dict[str, float]:
    """The CPU limit for each module, from its tests without a mutant, all of which must pass."""
    attempts = [Attempt(path, None, module.tests, FOR_ALL) for path, module in modules.items()]
    limits = {}
    for attempt, trial in zip(attempts, tries(attempts), strict=True):
        if trial.outcome != "alive":
            sys.exit(f"the tests of {attempt.path} fail without a mutant:\n{trial.said}")
        limits[attempt.path] = limit(trial.seconds)
        print(f"{trial.seconds:5.1f} s  {attempt.path}", flush=True)
    return limits


if __name__ == "__main__":
    sys.exit(main())
