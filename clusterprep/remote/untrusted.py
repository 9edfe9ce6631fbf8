"""What a node says, taken as what was asked for: a node may be anybody's, and its answers of any shape. Pure."""

from __future__ import annotations

from typing import Any

LONGEST = 300  # characters of a node's own words in a message
LARGEST = 1 << 63


def require_integer(value: object, least: int = 0, most: int = LARGEST) -> int:
    """A whole number in these bounds; ValueError for all else, also for true, which Python takes for 1."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no number from {least} to {most}")
    return value


def require_number(value: object) -> float:
    """A number, whole or not, below 2 to the power of 63; ValueError for all else."""
    if type(value) not in (int, float) or not -LARGEST < value < LARGEST:  # type: ignore[operator]
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)  # type: ignore[arg-type]


def require_text(value: object, longest: int) -> str:
    """A text of so many characters at most; ValueError for all else."""
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError(f"{value!r:.40} is no text, or too long a one")
    return value


def as_list(value: object) -> list[Any]:
    """A list; whatever else came has no rows."""
    return value if isinstance(value, list) else []


def shortened(value: object, longest: int = LONGEST) -> str:
    """Anything as words for a message, cut where they are long."""
    said = value if isinstance(value, str) else str(value)
    return said if len(said) <= longest else f"{said[:longest]}… ({len(said):,} characters)"
