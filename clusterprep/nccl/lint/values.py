"""Numbers as NCCL, torch and the plug-ins read them, which is seldom how people mean them."""

from __future__ import annotations

import re

from clusterprep.runtime.lazy_dataclass import dataclass

# strtoll with base 0 (NCCL, src/misc/param.cc): white space, a sign, then hexadecimal, octal or decimal; what follows
# is ignored. A zero before an x that no hexadecimal digit follows is the number zero.
_STRTOLL = re.compile(r"[ \t\n\v\f\r]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")
_STOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")  # std::stoi, base 10 (torch, Utils.hpp)
_MOST_DIGITS = 22  # of 64 bits in octal
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1

_BETWEEN = re.compile(r"(?<![\w.])(-?\d+)\.\.(-?\d+)(?![\w.])")
_AT_LEAST = re.compile(r">(=?) ?(-?\d+)")
_AT_MOST = re.compile(r"(?:^|[ ,])<= ?(\d+)$")
_CHOICE = re.compile(r"(?:^|, | or )(-?\d+)(?= |,|$)")


@dataclass(frozen=True)
class Number:
    """What a reader makes of a text: the number, the text behind it, and whether there was any digit."""

    value: int
    rest: str
    digits: bool
    octal: bool = False


def nccl_integer(text: str) -> Number | None:
    """As NCCL reads it. None where the default holds: an empty text, or a number of more than 64 bits."""
    if not text:
        return None
    match = _STRTOLL.match(text)
    if match is None:
        return Number(0, text, digits=False)
    sign, hexadecimal, octal, decimal = match.groups()
    digits = (hexadecimal or octal or decimal).lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS:  # Python refuses to make a number of thousands of them
        return None
    size = int(digits, 16 if hexadecimal else 8 if octal else 10)
    value = -size if sign == "-" else size
    if not _LOWEST <= value <= _HIGHEST:
        return None
    return Number(
        value, text[match.end() :], digits=True, octal=octal is not None and len(octal) > 1
    )


def torch_integer(text: str) -> Number | None:
    """As std::stoi reads it. None where it throws, and the process group cannot be made."""
    match = _STOI.match(text)
    digits = match[1].lstrip("+-0") or "0" if match else ""
    value = int(digits) if match and len(digits) <= _MOST_DIGITS else 1 << 63
    value = -value if match and match[1].startswith("-") else value
    if match is None or not -(1 << 31) <= value < 1 << 31:
        return None
    return Number(value, text[match.end() :], digits=True)


@dataclass(frozen=True)
class Range:
    """Numbers that make sense: between two ends (None: open), or one of those named."""

    low: int | None = None
    high: int | None = None
    named: frozenset[int] = frozenset()

    def holds(self, value: int) -> bool:
        if value in self.named:
            return True
        if self.low is None and self.high is None:
            return not self.named
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def range_of(allowed: str) -> Range:
    """The range that the registry's words speak of: «1..16 (clamped …)», «>= 1», «0, 1, -2 auto», «0 or 1»."""
    named = {int(word) for word in _CHOICE.findall(allowed)}
    if between := _BETWEEN.search(allowed):
        # -2 is NCCL's own word for «not set» (NCCL_CONFIG_UNDEF and most defaults).
        return Range(int(between[1]), int(between[2]), frozenset(n for n in (*named, -2) if n < 0))
    if least := _AT_LEAST.search(allowed):
        low = int(least[2]) + (least[1] == "")
        return Range(low, None, frozenset({-2} | {n for n in named if n < 0}))
    if most := _AT_MOST.search(allowed):
        return Range(None, int(most[1]))
    # One number alone («0 auto») has a meaning of its own and forbids no other.
    return (
        Range(named=frozenset({*named, -2})) if len({n for n in named if n >= 0}) > 1 else Range()
    )
