"""Declared GPUs: how many, of which model, and which of them this job uses."""

from __future__ import annotations

from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Gpus
from clusterprep.model.nodeset import expand


def read_gpus(document: Document, declared: int | dict[str, Any], place: Place) -> Gpus | None:
    """None where the declaration cannot be used."""
    if not isinstance(declared, dict):
        return Gpus(int(declared))
    use = declared.get("use")
    if "count" not in declared or (isinstance(use, list) and None in use):
        return None  # the schema has complained about this
    count = int(declared["count"])
    try:
        indices = None if use is None else _indices(use, count)
    except ValueError as error:
        document.complain((*place, "use"), str(error))
        return None
    return Gpus(count, declared.get("model"), indices)


def _indices(use: str | int | list[int], count: int) -> tuple[int, ...]:
    """'6-9' or [6, 7] as device indices in the order written."""
    written = ",".join(str(index) for index in use) if isinstance(use, list) else str(use)
    try:
        indices = tuple(int(index) for index in expand(f"[{written}]"))
    except ValueError:
        raise ValueError(f"expected device indices such as 6-9 or 0,2; seen '{written}'") from None
    if len(set(indices)) < len(indices):
        raise ValueError(f"'{written}' names a device twice")
    if len(indices) > count:
        raise ValueError(f"'{written}' names {len(indices)} devices, but count is {count}")
    if max(indices) >= count:
        raise ValueError(
            f"there is no device {max(indices)}: {count} devices are numbered 0 to {count - 1}"
        )
    return indices
