"""Let atheris look for input that breaks a promise, and keep what does.

    python -m tests.fuzz TARGET [SECONDS]

A finding lies in tests/fuzz/findings/TARGET/ under the digest of its bytes: rename it after what it
shows. The corpus grows in .fuzz/TARGET, which is no part of the project.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import atheris

import clusterprep
from tests.fuzz.plays import FINDINGS, LONGEST, TARGETS

ROOT = Path(__file__).parents[2]
MEMORY = 4096  # MiB; more is a finding
NOT_HERE = (
    "clusterprep.remote.agent.",
    "clusterprep.guard",
    "clusterprep.__main__",
)  # runs on nodes, or at once
SLOW = 20  # seconds that one input may take; more is a finding


def main(name: str, seconds: str = "600", *more: str) -> None:
    if name not in TARGETS:
        sys.exit(f"{name!r} is no target: {', '.join(TARGETS)}")
    with atheris.instrument_imports(include=["clusterprep"]):
        for module in pkgutil.walk_packages(clusterprep.__path__, "clusterprep."):
            if not module.name.startswith(NOT_HERE):
                import_module(module.name)  # also what is only imported when it is first needed
        target = import_module(f"tests.fuzz.{name}")
    corpus, kept = (
        Path(os.environ.get("CLUSTERPREP_FUZZ_CORPUS", ROOT / ".fuzz")) / name,
        FINDINGS / name,
    )
    seeds = corpus.with_name(f"{name}.seeds")
    for folder in (corpus, kept, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (seeds / f"{number:04}").write_bytes(seed)
    with tempfile.NamedTemporaryFile("w", suffix=".dict", encoding="ascii") as words:
        words.writelines(f'"{_escaped(word)}"\n' for word in target.DICTIONARY)
        words.flush()
        options = [
            f"-max_total_time={seconds}",
            f"-artifact_prefix={kept}/",
            f"-dict={words.name}",
            f"-max_len={LONGEST}",
            f"-rss_limit_mb={MEMORY}",
            f"-timeout={SLOW}",
            "-print_final_stats=1",
            *more,
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus), str(seeds), str(kept)], target.one)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(*sys.argv[1:])
