"""Python's stack of another process, read from its memory: it is not stopped, and does not notice.

Of its threads the most telling one is returned, innermost frame first: one that is in a collective,
else the main thread. What is read while it changes may be anything,
so each length is bounded and each text checked. Reading takes the rights of a debugger: the same
user where the kernel allows that (kernel.yama.ptrace_scope 0), or root.

OFFSETS are those of the structs in CPython's own headers, 64 bits, by offsetof: Include/cpython and
Include/internal of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and 3.13.0.
"""

import os
import re
import struct

MOST_FRAMES = 60
MOST_THREADS = 300
MOST_TABLE = 1 << 16  # bytes of a table of lines
COLLECTIVE = "/torch/distributed/distributed_c10d.py"
# Ray's workers run the training in a thread, and wait here in the main one.
WAITING_MAIN = "/ray/_private/workers/default_worker.py"
MOST_SYMBOLS = 1 << 20  # bytes of a table of symbols
LONGEST = 200  # characters of a name or path
# interpreters: in _PyRuntimeState; threads: in PyInterpreterState; native and frame: in
# PyThreadState, where 3.11 and 3.12 have `cframe` and within it `current`; code, previous and
# `instruction` (a pointer, before 3.11 a number): in a frame; filename, name, line, table of lines
# and the instructions themselves: in PyCodeObject; ascii, compact: sizes of the two kinds of text.
_OLD = {"interpreters": 32, "threads": 8, "native": None, "frame": 24, "current": None}
_OLD.update({"code": 32, "previous": 24, "filename": 104, "name": 112, "line": 40})
_OLD.update({"instruction": 104, "table": 120, "instructions": None})
_OLD.update({"ascii": 48, "compact": 72})
_NEW = {"interpreters": 40, "threads": 72, "native": 144, "frame": 56, "current": 0}
_NEW.update({"code": 0, "previous": 8, "filename": 112, "name": 128, "line": 68})
_NEW.update({"instruction": 56, "table": 136, "instructions": 192})
_NEW.update({"ascii": 40, "compact": 56})
OFFSETS = {
    (3, 8): _OLD,
    (3, 9): _OLD,
    (3, 10): dict(_OLD, instruction=96),
    (3, 11): dict(
        _NEW,
        threads=16,
        native=160,
        current=8,
        code=32,
        previous=48,
        line=72,
        instructions=184,
        ascii=48,
        compact=72,
    ),
    (3, 12): _NEW,
    (3, 13): dict(
        _NEW,
        interpreters=632,
        threads=7344,
        native=160,
        frame=72,
        current=None,
        instructions=200,
    ),
}
NEXT_THREAD = 8  # PyThreadState.next
# elf.h
ET_EXEC = 2
PT_LOAD, PT_DYNAMIC = 1, 2
DT_STRTAB, DT_SYMTAB = 5, 6
SYMBOL_BYTES = 24
# The file that has the interpreter, where that is not the program itself.
_LIBRARY = re.compile(r"/libpython3\.\d+[a-z]*\.so[^/]*$")
_VERSION = re.compile(r"python(3)\.(\d+)")


class Unreadable(Exception):
    """The stack cannot be read; says why."""


def read_stack(pid):
    """Return (tid, [[function, file, line], ...]) of the most telling thread, innermost first.

    `tid` is None where the thread is the main one, or its number is not known. Raises Unreadable.
    """
    try:
        memory = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
    except OSError as error:
        raise Unreadable(error.strerror or str(error))
    try:
        return telling(_Process(pid, memory).stacks())
    except (OSError, OverflowError, struct.error) as error:
        raise Unreadable("its memory cannot be read: %s" % error)
    finally:
        os.close(memory)


def telling(stacks):
    """Return the stack that says most of a rank; the first of [(tid, frames), ...] is the main one.

    FSDP and DDP call collectives in autograd's threads while the main thread waits for these.
    """
    main = stacks[0][1]
    if any(path.endswith(COLLECTIVE) for _, path, _ in main):
        return stacks[0]
    for stack in stacks[1:]:
        if any(path.endswith(COLLECTIVE) for _, path, _ in stack[1]):
            return stack
    if any(path.endswith(WAITING_MAIN) for _, path, _ in main):
        return max(stacks[1:] or stacks, key=lambda stack: len(stack[1]))
    return stacks[0]


class _Process(object):
    """The memory of a process, and where its interpreter keeps what."""

    def __init__(self, pid, memory):
        self.pid = pid
        self.memory = memory
        base, path = self._interpreter()
        symbols = self._symbols(base)
        self.runtime = symbols.get(b"_PyRuntime")
        if self.runtime is None:
            raise Unreadable("%s has no symbol _PyRuntime" % path)
        version = self._version(symbols, path)
        self.version = version
        self.at = OFFSETS.get(version)
        if self.at is None:
            raise Unreadable("the structs of Python %d.%d are not known here" % version)

    def bytes_at(self, address, size):
        """Return bytes of the memory. Raises OSError or Unreadable."""
        if not 0 < address < 1 << 63:
            raise Unreadable("a pointer leads nowhere")
        data = os.pread(self.memory, size, address)
        if len(data) != size:
            raise Unreadable("its memory ends early")
        return data

    def word(self, address):
        """Return the 8 bytes at an address as a number."""
        return struct.unpack("=Q", self.bytes_at(address, 8))[0]

    # ------------------------------------------------------------ where the interpreter is

    def _interpreter(self):
        """Return address and path of the mapped file that has the interpreter."""
        program = os.readlink("/proc/%d/exe" % self.pid)
        found = None
        with open("/proc/%d/maps" % self.pid, "rb") as maps:
            for line in maps:
                fields = line.decode("utf-8", "replace").rstrip("\n").split(None, 5)
                if len(fields) < 6 or int(fields[2], 16) != 0:
                    continue
                path = fields[5]
                start = int(fields[0].partition("-")[0], 16)
                if _LIBRARY.search(path):
                    return start, path
                if path == program and found is None:
                    found = (start, path)
        if found is None:
            raise Unreadable("it does not run Python")
        return found

    def _symbols(self, base):
        """Return the addresses of the symbols that are wanted, from the dynamic symbol table."""
        head = self.bytes_at(base, 64)
        if head[:5] != b"\x7fELF\x02":
            raise Unreadable("it is no program of 64 bits")
        kind = struct.unpack_from("=H", head, 16)[0]
        table = struct.unpack_from("=Q", head, 32)[0]
        size, count = struct.unpack_from("=HH", head, 54)
        slide = None
        dynamic = None
        for index in range(min(count, 64)):
            row = self.bytes_at(base + table + index * size, 56)
            segment = struct.unpack_from("=I", row)[0]
            address = struct.unpack_from("=Q", row, 16)[0]
            length = struct.unpack_from("=Q", row, 40)[0]
            if segment == PT_LOAD and slide is None:
                slide = 0 if kind == ET_EXEC else base - (address & ~0xFFF)
            elif segment == PT_DYNAMIC:
                dynamic = (address, length)
        if slide is None or dynamic is None:
            raise Unreadable("the program has no dynamic symbols")
        return self._wanted_symbols(slide, dynamic)

    def _wanted_symbols(self, slide, dynamic):
        address, length = dynamic
        tags = {}
        data = self.bytes_at(slide + address, min(length, 4096) & ~15)
        for start in range(0, len(data), 16):
            tag, value = struct.unpack_from("=QQ", data, start)
            tags.setdefault(tag, value)
        if DT_SYMTAB not in tags or DT_STRTAB not in tags:
            raise Unreadable("the program has no dynamic symbols")
        # The loader of glibc has made addresses of these two, that of musl has not.
        table = tags[DT_SYMTAB] if tags[DT_SYMTAB] >= slide else tags[DT_SYMTAB] + slide
        names = tags[DT_STRTAB] if tags[DT_STRTAB] >= slide else tags[DT_STRTAB] + slide
        if not 0 < names - table <= MOST_SYMBOLS:
            raise Unreadable("the table of symbols is elsewhere")
        rows = self.bytes_at(table, names - table)
        texts = os.pread(self.memory, MOST_SYMBOLS, names)  # up to where no memory is
        found = {}
        for start in range(0, len(rows) - SYMBOL_BYTES + 1, SYMBOL_BYTES):
            name_at = struct.unpack_from("=I", rows, start)[0]
            for name in (b"_PyRuntime", b"Py_Version"):
                if texts[name_at : name_at + len(name) + 1] == name + b"\0":
                    found[name] = slide + struct.unpack_from("=Q", rows, start + 8)[0]
        return found

    def _version(self, symbols, path):
        """Return (major, minor): from 3.11 on there is Py_Version, before that the file's name."""
        if b"Py_Version" in symbols:
            number = self.word(symbols[b"Py_Version"])
            return number >> 24 & 0xFF, number >> 16 & 0xFF
        match = _VERSION.search(path)
        if match is None:
            match = _VERSION.search(self._folder_of_modules())
        if match is None:
            raise Unreadable("its version of Python is not known")
        return int(match.group(1)), int(match.group(2))

    def _folder_of_modules(self):
        with open("/proc/%d/maps" % self.pid, "rb") as maps:
            for line in maps:
                if b"/lib-dynload/" in line:
                    return line.decode("utf-8", "replace")
        return ""

    # ------------------------------------------------------------ frames

    def stacks(self):
        """Return [(tid, frames), ...] of all threads that run Python, the main one first."""
        interpreter = self.word(self.runtime + self.at["interpreters"])
        thread = self.word(interpreter + self.at["threads"])
        inside = self.pid_inside()
        found = []
        for _ in range(MOST_THREADS):
            if not thread:
                break
            tid = None
            if self.at["native"] is not None:
                tid = self.word(thread + self.at["native"])
            frames = self._frames(thread)
            is_main = tid == inside
            if frames:
                # In a container its threads have other numbers than here.
                is_shown = not is_main and inside == self.pid
                found.append((is_main, (tid if is_shown else None, frames)))
            thread = self.word(thread + NEXT_THREAD)
        if not found:
            raise Unreadable("it runs no Python function")
        if self.at["native"] is None:  # the oldest is the last
            found.reverse()
        found.sort(key=lambda row: not row[0])
        return [stack for _, stack in found]

    def _frames(self, thread):
        """Return the frames of one thread; those that cannot be read are left out."""
        frame = self.word(thread + self.at["frame"])
        if frame and self.at["current"] is not None:
            frame = self.word(frame + self.at["current"])
        rows = []
        for _ in range(MOST_FRAMES):
            if not frame:
                break
            row = self._row(frame, self.word(frame + self.at["code"]))
            if row is not None:
                rows.append(row)
            frame = self.word(frame + self.at["previous"])
        return rows

    def pid_inside(self):
        """Return the number that the process has in its own namespace, as in a container."""
        with open("/proc/%d/status" % self.pid, "r") as lines:
            for line in lines:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
        return self.pid

    def _row(self, frame, code):
        """Return a frame, None for one that has no code of Python (3.12 has such at the bottom)."""
        try:
            path = self._text(self.word(code + self.at["filename"]))
            name = self._text(self.word(code + self.at["name"]))
            line = self._line(frame, code)
        except (Unreadable, OSError):
            return None
        if not path or not name or path == "<shim>" or not 0 <= line < 1 << 24:
            return None
        return [name, path, line]

    def _line(self, frame, code):
        """Return the line that a frame executes."""
        first = struct.unpack("=i", self.bytes_at(code + self.at["line"], 4))[0]
        table_at = self.word(code + self.at["table"])
        size = self.word(table_at + 16)
        if size > MOST_TABLE:
            return first
        table = self.bytes_at(table_at + 32, size) if size else b""
        instruction = frame + self.at["instruction"]
        if self.at["instructions"] is None:
            number = struct.unpack("=i", self.bytes_at(instruction, 4))[0]
            if self.version == (3, 10):
                return line_of_ranges(table, 2 * number, first)
            return line_of_steps(table, number, first)
        offset = self.word(instruction) - code - self.at["instructions"]
        return line_of_locations(table, offset, first)

    def _text(self, address):
        """Return a str of Python; of other letters than ASCII each becomes a question mark."""
        length = self.word(address + 16)
        state = struct.unpack("=I", self.bytes_at(address + 32, 4))[0]
        width = state >> 2 & 7
        is_compact = state >> 5 & 1
        is_ascii = state >> 6 & 1
        if width not in (1, 2, 4) or not is_compact or length > 1 << 16:
            raise Unreadable("no text where one should be")
        start = address + (self.at["ascii"] if is_ascii else self.at["compact"])
        kept = min(length, LONGEST)
        first = length - kept  # the end of a path says more than its beginning
        data = self.bytes_at(start + first * width, kept * width) if kept else b""
        codes = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width]
        text = data.decode(codes, "replace")
        return text.encode("ascii", "replace").decode("ascii")


# ---------------------------------------------------------------- tables of lines


def line_of_steps(table, offset, line):
    """Return the line of an instruction by co_lnotab of 3.8 and 3.9: pairs of steps."""
    address = 0
    for index in range(0, len(table) - 1, 2):
        address += table[index]
        if address > offset:
            break
        line += _signed(table[index + 1])
    return line


def line_of_ranges(table, offset, line):
    """Return the line of an instruction by co_linetable of 3.10: pairs of bytes and a step."""
    end = 0
    for index in range(0, len(table) - 1, 2):
        step = _signed(table[index + 1])
        end += table[index]
        if step != -128:  # no line
            line += step
        if end > offset:
            break
    return line


def _signed(byte):
    return byte - 256 if byte > 127 else byte


def line_of_locations(table, offset, line):
    """Return the line of an instruction by co_linetable since 3.11 (Objects/locations.md)."""
    end = 0
    index = 0
    while index < len(table):
        head = table[index]
        code = head >> 3 & 15
        index += 1
        end += 2 * ((head & 7) + 1)
        if code in (10, 11, 12):
            line += code - 10
        elif code in (13, 14):
            number, index = _number(table, index)
            line += -(number >> 1) if number & 1 else number >> 1
        while index < len(table) and not table[index] & 128:
            index += 1
        if end > offset:
            break
    return line


def _number(table, index):
    """Return a number of 6 bits a byte, the lowest first, and where it ends."""
    number = 0
    shift = 0
    while index < len(table):
        byte = table[index]
        index += 1
        number |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return number, index
