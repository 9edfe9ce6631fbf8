"""Read `gpus:`: how many, of which model, which of them this job uses, and their NVLink domain."""

from __future__ import annotations

from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Gpus
from clusterprep.model.nodeset import expand


def read_gpus(document: Document, declared: int | dict[str, Any], place: Place) -> Gpus | None:
    """Return the GPUs, or None for a declaration that was complained about."""
    if not isinstance(declared, dict):
        return Gpus(int(declared))
    use = declared.get("use")
    domain = declared.get("nvlink_domain")
    if domain is True:
        domain = ""
    has_wrong_index = isinstance(use, list) and None in use
    if "count" not in declared or has_wrong_index:
        return None  # the schema has complained about this
    count = int(declared["count"])
    model = declared.get("model")
    if use is None:
        return Gpus(count, model, domain=domain)
    try:
        indices = _indices(use, count)
    except ValueError as error:
        document.complain((*place, "use"), str(error))
        return None
    return Gpus(count, model, indices, domain)


def _indices(use: str | int | list[int], count: int) -> tuple[int, ...]:
    """Return '6-9' or [6, 7] as device indices in the order written."""
    text = str(use)
    if isinstance(use, list):
        text = ",".join(str(index) for index in use)
    try:
        indices = tuple(map(int, expand(f"[{text}]")))
    except ValueError:
        raise ValueError(f"expected device indices such as 6-9 or 0,2; seen '{text}'") from None
    if len(set(indices)) < len(indices):
        raise ValueError(f"'{text}' names a device twice")
    if len(indices) > count:
        raise ValueError(f"'{text}' names {len(indices)} devices, but count is {count}")
    highest = max(indices)
    if highest >= count:
        numbers = f"{count} devices are numbered 0 to {count - 1}"
        raise ValueError(f"there is no device {highest}: {numbers}")
    return indices
