"""The fields of a record: a Struct, as ours are, or a dataclass, as a site may use. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec import Struct


def field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of a record's fields, or None for any other type."""
    if issubclass(kind, Struct):
        names: tuple[str, ...] = kind.__struct_fields__
        return names
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return None
