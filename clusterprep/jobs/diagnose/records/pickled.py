"""Decodes pickles of plain values. Nothing that a pickle asks to import or to call is done.

torch writes the dumps of its flight recorder as pickles. `pickle.load` would run whatever a file
says, and files come from anywhere. So the few operations that dumps need are done here: numbers,
texts, lists, tuples and dicts. All others are refused by name. Shared values stay shared, so memory
is bounded by the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

# A dump of 20,000 entries, ten times the default, has 3 million. So many lists take half a GiB.
MOST_OPERATIONS = 8_000_000
MOST_NESTED = 100  # open lists, tuples and dicts; a dump has 8
_NEWEST_PROTOCOL = 5
MOST_IN_LINE = 4_000  # characters of a number or text of protocol 0

_MARK = object()

# Operations that import, call or rebuild objects, by their code, as pickletools names them.
_REFUSED = {
    ord("c"): "GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}


class PickleError(ValueError):
    """The pickle is damaged, too large, or holds more than plain values."""


def loads(data: bytes) -> object:
    """Return the value of a pickle. Raises PickleError, which says what is wrong at which byte."""
    machine = _Machine(data)
    try:
        return machine.run()
    except (
        IndexError,
        UnicodeDecodeError,
        TypeError,
        ValueError,
        KeyError,
        OverflowError,
    ) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"damaged or cut off at byte {machine.position:,}") from error


class _Machine:
    """Does the operations of a pickle on a stack."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[object] = []
        self.marks: list[int] = []  # where in the stack the open lists and dicts begin
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        data = self.data
        size = len(data)
        operations = _OPERATIONS
        for _ in range(MOST_OPERATIONS):
            if self.position >= size:
                raise PickleError(f"cut off at byte {size:,}: its end is missing")
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                return self.stack.pop()
            operation = operations.get(code)
            if operation is None:
                self.refuse(code)
            else:
                operation(self)
        raise PickleError(f"has more than {MOST_OPERATIONS:,} operations")

    def refuse(self, code: int) -> None:
        place = f"at byte {self.position - 1:,}"
        name = _REFUSED.get(code)
        if name:
            raise PickleError(
                f"wants to import or call something ({name} {place}), so it is not read"
            )
        raise PickleError(f"is no plain pickle: unknown operation 0x{code:02x} {place}")

    # ------------------------------------------------------------ bytes

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise PickleError(f"cut off at byte {len(self.data):,}: its end is missing")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def byte(self) -> int:
        position = self.position
        self.position = position + 1
        return self.data[position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text_line(self) -> str:
        end = self.data.index(b"\n", self.position)
        if end - self.position > MOST_IN_LINE:
            raise PickleError(f"has a line too long at byte {self.position:,}")
        taken = self.take(end - self.position)
        self.position += 1
        return taken.decode("raw_unicode_escape")

    # ------------------------------------------------------------ the stack

    def mark(self) -> None:
        if len(self.marks) >= MOST_NESTED:
            raise PickleError(f"is nested more than {MOST_NESTED} deep at byte {self.position:,}")
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[object]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def append(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise PickleError(f"damaged at byte {self.position:,}: no list to append to")
        target.extend(values)

    def set_items(self, values: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise PickleError(f"damaged at byte {self.position:,}: no dict to put items into")
        target.update(self.items(values))

    def items(self, values: list[object]) -> Iterator[tuple[object, object]]:
        """Yield keys and values. Keys are texts or numbers: the hash of nested tuples is costly."""
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise PickleError(f"has a key that is no text at byte {self.position:,}")
            yield key, value

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


# ---------------------------------------------------------------- operations

_Operation = Callable[[_Machine], None]
_STOP = ord(".")


def _push(value: Callable[[_Machine], object]) -> _Operation:
    return lambda machine: machine.stack.append(value(machine))


def _tuple_of(size: int) -> _Operation:
    def make(machine: _Machine) -> None:
        if size > len(machine.stack):
            raise PickleError(f"damaged at byte {machine.position:,}: too few values for a tuple")
        values = tuple(machine.stack[-size:])
        del machine.stack[-size:]
        machine.stack.append(values)

    return make


def _text(width: int, encoding: str) -> _Operation:
    """Return an operation that reads a text, preceded by its size in so many bytes."""
    return _push(lambda m: m.take(m.number(width)).decode(encoding, "replace"))


def _bytes(width: int) -> _Operation:
    return _push(lambda m: m.take(m.number(width)))


def _long(width: int) -> _Operation:
    return _push(lambda m: int.from_bytes(m.take(m.number(width)), "little", signed=True))


def _decimal(machine: _Machine) -> None:
    """Push an integer in decimal. Protocol 0 writes True and False as 01 and 00."""
    digits = machine.text_line().rstrip("L")
    value: object = int(digits)
    if digits in {"00", "01"}:
        value = digits == "01"
    machine.stack.append(value)


def _double(machine: _Machine) -> object:
    (value,) = struct.unpack(">d", machine.take(8))
    return float(value)


def _one(machine: _Machine) -> list[object]:
    return [machine.stack.pop()]


def _pair(machine: _Machine) -> list[object]:
    value = machine.stack.pop()
    key = machine.stack.pop()
    return [key, value]


def _dict_since_mark(machine: _Machine) -> object:
    values = machine.since_mark()
    return dict(machine.items(values))


def _protocol(machine: _Machine) -> None:
    if machine.number(1) > _NEWEST_PROTOCOL:
        machine.refuse(0x80)


def _frame(machine: _Machine) -> None:
    machine.take(8)  # the size of a part that could be read at once


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _pop_since_mark(machine: _Machine) -> None:
    machine.since_mark()


_OPERATIONS: dict[int, _Operation] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): _Machine.mark,
    ord("0"): _pop,
    ord("1"): _pop_since_mark,
    ord("2"): _push(lambda m: m.stack[-1]),
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord("I"): _decimal,
    ord("L"): _decimal,
    ord("K"): _push(lambda m: m.byte()),
    ord("M"): _push(lambda m: m.number(2)),
    ord("J"): _push(lambda m: int.from_bytes(m.take(4), "little", signed=True)),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("F"): _push(lambda m: float(m.text_line())),
    ord("G"): _push(_double),
    ord("X"): _text(4, "utf-8"),
    0x8C: _text(1, "utf-8"),
    0x8D: _text(8, "utf-8"),
    ord("V"): _push(lambda m: m.text_line()),
    ord("S"): _push(lambda m: m.text_line().strip("'\"")),
    ord("T"): _text(4, "latin-1"),
    ord("U"): _text(1, "latin-1"),
    ord("B"): _bytes(4),
    ord("C"): _bytes(1),
    0x8E: _bytes(8),
    ord("]"): _push(lambda m: []),
    ord("}"): _push(lambda m: {}),
    ord(")"): _push(lambda m: ()),
    ord("l"): _push(_Machine.since_mark),
    ord("d"): _push(_dict_since_mark),
    ord("t"): _push(lambda m: tuple(m.since_mark())),
    0x85: _tuple_of(1),
    0x86: _tuple_of(2),
    0x87: _tuple_of(3),
    ord("a"): lambda m: m.append(_one(m)),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("s"): lambda m: m.set_items(_pair(m)),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("q"): lambda m: m.remember(m.byte()),
    ord("r"): lambda m: m.remember(m.number(4)),
    ord("p"): lambda m: m.remember(int(m.text_line())),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("h"): _push(lambda m: m.memo[m.byte()]),
    ord("j"): _push(lambda m: m.memo[m.number(4)]),
    ord("g"): _push(lambda m: m.memo[int(m.text_line())]),
}
