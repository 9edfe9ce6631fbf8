"""The registry of variables: who reads a name, what it takes, whether NCCL finds it in its own file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# importlib.resources would take ten milliseconds to import, for the archives in which we are not.
_DATA = Path(__file__).parent.parent.parent / "data"


@functools.cache
def registry() -> Mapping[str, Mapping[str, Any]]:
    """Every known variable by name, as data/nccl_variables.json describes it."""
    text = (_DATA / "nccl_variables.json").read_text(encoding="utf-8")
    return {entry["name"]: entry for entry in json.loads(text)["variables"]}


def of_nccl(name: str) -> bool:
    """Whether NCCL or a plug-in of it reads this name: a partition key is the number of a table's row, no secret."""
    entry = registry().get(name)
    return entry is not None and entry["owner"] in ("nccl", "ofi")


def nccl_reads(name: str) -> bool:
    """Whether a value in nccl.conf has an effect. Unknown NCCL_ names are NCCL's until it is known otherwise."""
    entry = registry().get(name)
    if entry is None:
        renamed = registry().get(f"TORCH_{name}")
        return name.startswith("NCCL_") and renamed is None
    return bool(entry["readable_from_conf_file"]) and name.startswith("NCCL_")
