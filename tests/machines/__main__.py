"""Records the fleets that `clusterprep selftest` plays: `python -m tests.machines`, as root."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from clusterprep.cli.commands.selftest import packed
from clusterprep.survey import registry
from tests import machines as fleets
from tests.machines.play import recording

DATA = Path(__file__).resolve().parents[2] / "clusterprep" / "data" / "fleets"


def wanted() -> list[str]:
    """The kinds that proofs of checks are about."""
    return sorted({check.proof.fleet for check in registry.checks().values() if check.proof})


def packed_recording(name: str) -> dict[str, Any]:
    return packed(recording(fleets.load(name)))


def write(name: str) -> None:
    kind = fleets.load(name)
    DATA.mkdir(exist_ok=True)
    sources = "".join(f"# {line}\n" for line in "\n".join(kind.source).splitlines())
    (DATA / f"{name}.yaml").write_text(
        sources + yaml.safe_dump(dict(kind.inventory), sort_keys=False)
    )
    text = json.dumps(packed_recording(name), sort_keys=True, separators=(",", ":"))
    (DATA / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    for name in sys.argv[1:] or wanted():
        write(name)
