"""Every promise of every target over its seeds, all earlier findings, and mutations of both.

What is made is made by atheris where it is installed, which is steered by the code that it reaches.
Elsewhere, and so in most checkouts, as atheris has no wheel for some machines, by a generator with
a fixed seed: alike wherever it runs. `make fuzz` takes the time that finding something new takes.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.plays import FINDINGS, TARGETS, found, mutants, target

SEEDS = 120  # of each target are played, evenly taken; all of them by `make fuzz`
NEW = 100  # inputs for each target, which take it a second of a processor at most
ROOT = Path(__file__).parents[2]
FOUND = [
    pytest.param(name, path, id=f"{name}/{path.name}") for name in TARGETS for path in found(name)
]


@pytest.mark.parametrize(("name", "path"), FOUND)
def test_what_was_found_once_is_mended(name: str, path: Path) -> None:
    target(name).one(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_keep_every_promise(name: str) -> None:
    seeds = list(target(name).seeds())
    for seed in seeds[:: 1 + len(seeds) // SEEDS]:
        target(name).one(seed)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is not None, reason="atheris is here, and plays instead"
)
@pytest.mark.parametrize("name", TARGETS)
def test_what_is_made_of_them_does_too(name: str) -> None:
    module = target(name)
    seeds = [*module.seeds(), *(path.read_bytes() for path in found(name))]
    for data in islice(mutants(seeds, module.DICTIONARY, seed=1), NEW):
        module.one(data)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: make fuzz"
)
@pytest.mark.parametrize("name", TARGETS)
def test_atheris_finds_nothing_at_once(name: str, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "tests.fuzz",
        name,
        "20",
        "-runs=500",
        "-seed=1",
        f"-artifact_prefix={tmp_path}/",
    ]
    environment = {**os.environ, "CLUSTERPREP_FUZZ_CORPUS": str(tmp_path / "corpus")}
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_finding_has_a_target() -> None:
    assert {path.name for path in FINDINGS.iterdir()} <= set(TARGETS)
