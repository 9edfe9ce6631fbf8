"""Numbers as NCCL, torch and the plug-ins read them, which is seldom how people mean them."""

from __future__ import annotations

import re

from msgspec import Struct

# strtoll with base 0 (NCCL, src/misc/param.cc): white space, a sign, then hexadecimal, octal or
# decimal; what follows is ignored. A zero before an x that no hexadecimal digit follows is the
# number zero.
_STRTOLL = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")  # std::stoi, base 10 (torch, Utils.hpp)
# Digits of 64 bits in octal. Python raises ValueError for a number of thousands of digits.
_MOST_DIGITS = 22
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1

_BETWEEN = re.compile(r"(?<![\w.])(-?\d+)\.\.(-?\d+)(?![\w.])")
_AT_LEAST = re.compile(r">(=?) ?(-?\d+)")
_AT_MOST = re.compile(r"(?:^|[ ,])<= ?(\d+)$")
_CHOICE = re.compile(r"(?:^|, | or )(-?\d+)(?= |,|$)")


class Number(Struct, frozen=True):
    """What a reader makes of a text: the number, the text behind it, and if there was any digit."""

    value: int
    rest: str
    digits: bool
    octal: bool = False


def nccl_integer(text: str) -> Number | None:
    """Return the number that NCCL reads.

    None if the default holds: an empty text, or a number of more than 64 bits.
    """
    if not text:
        return None
    match = _STRTOLL.match(text)
    if match is None:
        return Number(0, text, digits=False)
    sign, hexadecimal, octal, decimal = match.groups()
    if hexadecimal:
        size = _bounded(hexadecimal, 16)
    elif octal:
        size = _bounded(octal, 8)
    else:
        size = _bounded(decimal, 10)
    if size is None:
        return None
    value = -size if sign == "-" else size
    if not _LOWEST <= value <= _HIGHEST:
        return None
    is_octal = octal is not None and len(octal) > 1
    return Number(value, text[match.end() :], digits=True, octal=is_octal)


def _bounded(text: str, base: int) -> int | None:
    """Return the number of a text of digits; None if it has too many digits for 64 bits."""
    digits = text.lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS:
        return None
    return int(digits, base)


def torch_integer(text: str) -> Number | None:
    """Return the number that std::stoi reads.

    None if it throws: then the process group cannot be made.
    """
    match = _STOI.match(text)
    if match is None:
        return None
    value = _bounded(match[1].lstrip("+-"), 10)
    if value is None:
        return None
    if match[1].startswith("-"):
        value = -value
    if not -(1 << 31) <= value < 1 << 31:
        return None
    return Number(value, text[match.end() :], digits=True)


class Range(Struct, frozen=True):
    """Numbers that make sense: between two ends (None: open), or one of those named."""

    low: int | None = None
    high: int | None = None
    named: frozenset[int] = frozenset()

    def holds(self, value: int) -> bool:
        """Return whether the range has this number. A range without any limit has all."""
        if value in self.named:
            return True
        if self.low is None and self.high is None:
            return not self.named
        if self.low is not None and value < self.low:
            return False
        return self.high is None or value <= self.high


# NCCL's own number for «not set» (NCCL_CONFIG_UNDEF and most defaults).
_UNDEFINED = -2


def range_of(allowed: str) -> Range:
    """Return the range that the registry describes in `allowed`.

    Examples of `allowed`: «1..16 (clamped …)», «>= 1», «0, 1, -2 auto», «0 or 1».
    """
    named = {int(number) for number in _CHOICE.findall(allowed)}
    below_zero = {number for number in named if number < 0}
    special = frozenset({_UNDEFINED, *below_zero})
    between = _BETWEEN.search(allowed)
    if between:
        return Range(int(between[1]), int(between[2]), special)
    at_least = _AT_LEAST.search(allowed)
    if at_least:
        low = int(at_least[2])
        if not at_least[1]:  # «> 1» instead of «>= 1»
            low += 1
        return Range(low, None, special)
    at_most = _AT_MOST.search(allowed)
    if at_most:
        return Range(None, int(at_most[1]))
    # One number alone («0 auto») has a meaning of its own and forbids no other.
    if len(named - below_zero) > 1:
        return Range(named=frozenset({*named, _UNDEFINED}))
    return Range()
