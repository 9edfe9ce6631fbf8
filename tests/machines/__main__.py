"""Record the fleets that `clusterprep selftest` plays: `python -m tests.machines`.

`make format` does it too.
"""

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
    """Write the recording of a fleet where it differs from the one that is there."""
    kind = fleets.load(name)
    DATA.mkdir(exist_ok=True)
    sources = "".join(f"# {line}\n" for line in "\n".join(kind.source).splitlines())
    inventory = yaml.safe_dump(dict(kind.inventory), sort_keys=False)
    (DATA / f"{name}.yaml").write_text(sources + inventory)
    text = json.dumps(packed_recording(name), sort_keys=True, separators=(",", ":"))
    # The bytes of an equal recording differ between releases of zlib.
    place = DATA / f"{name}.json.gz"
    before = gzip.decompress(place.read_bytes()) if place.exists() else b""
    if text.encode() != before:
        place.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    for name in sys.argv[1:] or wanted():
        write(name)
