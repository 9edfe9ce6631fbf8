"""The registry of variables: who reads a name, its values, and whether nccl.conf may set it.

>>> is_read_by_nccl_or_plugin("NCCL_DEBUG")
True
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Not importlib.resources: its import takes ten milliseconds, and serves archives, which we do not
# support.
_DATA = Path(__file__).parent.parent.parent / "data"


@functools.cache
def registry() -> Mapping[str, Mapping[str, Any]]:
    """Return every known variable by name, as data/nccl_variables.json describes it.

    The keys of an entry are owner (nccl, torch, ofi, …), kind (bool, int, size, …), since,
    removed_in, on_invalid (how a value is read) and others. Texts are None where nothing is known.
    """
    text = (_DATA / "nccl_variables.json").read_text(encoding="utf-8")
    entries = json.loads(text)["variables"]
    return {entry["name"]: entry for entry in entries}


def is_read_by_nccl_or_plugin(name: str) -> bool:
    """Return whether NCCL or a plug-in of it reads this name.

    For such a name a «key» is no secret: a partition key is the number of a table's row.
    """
    entry = registry().get(name)
    return entry is not None and entry["owner"] in ("nccl", "ofi")


def conf_file_has_effect(name: str) -> bool:
    """Return whether a value in nccl.conf has an effect.

    An unknown NCCL_ name counts as NCCL's, unless it is known with TORCH_ in front.
    """
    if not name.startswith("NCCL_"):
        return False
    entry = registry().get(name)
    if entry is None:
        return f"TORCH_{name}" not in registry()
    return bool(entry["readable_from_conf_file"])
