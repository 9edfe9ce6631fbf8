"""Check the shape of values that nodes send. Pure.

A node may be compromised, so its answers may have any shape.
"""

from __future__ import annotations

import functools
from typing import Any

LONGEST = 300  # characters of a node's own text in a message
LARGEST = 1 << 63
LONGEST_INTERFACE = 15  # IFNAMSIZ of linux/if.h, without the zero byte
LONGEST_DEVICE = 63  # IB_DEVICE_NAME_MAX of rdma/ib_verbs.h, likewise
_SEPARATORS = frozenset("/: ")  # that no name of a device has


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


def require_device_name(value: object, longest: int = LONGEST_INTERFACE) -> str:
    """Return `value` if it is the name of a device. Raises ValueError.

    As `dev_valid_name` of Linux, net/core/dev.c: no slash, colon or white space. The kernel would
    take any other byte; here a name is printable ASCII: others stand in no real cluster, and would
    act in what shells and terminals read.
    """
    name = require_text(value, longest)
    if not _is_device_name(name):
        raise ValueError(f"{name!r:.40} is not the name of a device")
    return name


@functools.lru_cache(maxsize=4096)  # nodes of a kind have devices of the same names
def _is_device_name(name: str) -> bool:
    is_plain = name.isascii() and name.isprintable() and name not in ("", ".", "..")
    return is_plain and _SEPARATORS.isdisjoint(name)


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def count_values(value: object) -> int:
    """Return how many values and keys a value of JSON has, itself included."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        count += 1
        if isinstance(one, dict):
            count += len(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return count


def shortened(value: object, longest: int = LONGEST) -> str:
    """Return `value` as text for a message, cut after `longest` characters."""
    text = value if isinstance(value, str) else str(value)
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters)"
