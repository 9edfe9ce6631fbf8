"""Check the shape of values that nodes send. Pure.

A node may be compromised, so its answers may have any shape.
"""

from __future__ import annotations

from typing import Any

LONGEST = 300  # characters of a node's own text in a message
LARGEST = 1 << 63


def require_integer(value: object, least: int = 0, most: int = LARGEST) -> int:
    """Return `value` if it is an integer from `least` to `most`. Raises ValueError otherwise.

    Booleans are refused too, although Python takes True for 1.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no number from {least} to {most}")
    return value


def require_number(value: object) -> float:
    """Return an integer or float as a float. Raises ValueError for 2**63 and more, and others."""
    is_number = type(value) in (int, float)
    if not is_number or not -LARGEST < value < LARGEST:  # type: ignore[operator]
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)  # type: ignore[arg-type]


def require_text(value: object, longest: int) -> str:
    """Return `value` if it is a string of at most `longest` characters. Raises ValueError."""
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{value!r:.40} is not a text of at most {longest} characters")
    return value


def require_device_name(value: object, longest: int = 64) -> str:
    """Return `value` if the kernel could have given this name. Raises ValueError.

    The kernel itself would take any byte but blanks and slashes. Here a name is printable ASCII:
    others stand in no real cluster, and in files that shells and terminals read they would act.
    """
    name = require_text(value, longest)
    is_plain = name.isascii() and name.isprintable() and " " not in name and "/" not in name
    if not name or not is_plain:
        raise ValueError(f"{name!r:.80} is not the name of a device")
    return name


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def shortened(value: object, longest: int = LONGEST) -> str:
    """Return `value` as text for a message, cut after `longest` characters."""
    text = value if isinstance(value, str) else str(value)
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters)"
