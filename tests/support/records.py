"""Changed copies of records of either kind."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from clusterprep.model.records import field_names


def is_record(value: object) -> bool:
    return field_names(type(value)) is not None


def changed_copy(value: Any, /, **fields: Any) -> Any:
    """Return a copy of a Struct or a dataclass in which these fields have other values."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **fields)
    return dataclasses.replace(value, **fields)
