"""The address that the node's own NCCL would bind, in the environment of each way to start a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from clusterprep.facts import JOB_USER, Fact
from clusterprep.facts.torch import FINDER, nccl_version
from clusterprep.model import Absent, Inventory, Node, Read

SESSIONS = {"ssh command", "login shell"}  # of everybody who can log in
LIMIT = 30.0  # seconds for three shells and the starts of the job's interpreter

# Follows FINDER in the job's interpreter. ncclGetUniqueId needs no GPU or driver: it reads the conf files, chooses the
# interface, listens there and answers with that address in the 128 bytes of the id (bootstrap.cc: magic, then a
# sockaddr). The conf files become the C environment, so getenv afterwards tells what NCCL saw. Its listener is a
# thread, which ends with the process. What is said comes last and on lines of its own, for NCCL's output is written in
# blocks that may end within a line. Debug output is turned on for its reasons, and kept from making a file.
# Which of the names that are set this NCCL knows is told by the texts of its .rodata (a few ms; the rest of the file is
# code for GPUs), and from 2.30 on ncclParamDumpAll (nccl.h) says of typed parameters whether it took what was set.
PROBE = r"""
NAMES = "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "NCCL_CONF_FILE"
OURS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP", "NCCL_DEBUG_FILE": ""}
given, rows = set(os.environb), []
def say(key, text):
    text = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    rows.append(("\n%s %s %s\n" % (sys.argv[1], key, text.hex())).encode())
def conf_files(version):
    home = os.environ.get("HOME", "") if version >= 23000 else ""
    if not home:
        import pwd
        home = pwd.getpwuid(os.getuid()).pw_dir
    named = os.environ.get("NCCL_CONF_FILE", "") if version >= 22300 else ""
    return [named or home + "/.nccl.conf", "/etc/nccl.conf"]
def place(name, value, version):
    # where NCCL has a value from; nothing where no line gives just this one
    if name.encode() in given:
        return "environment"
    for path in conf_files(version):
        try:
            with open(path, "rb") as source:
                lines = source.read(1 << 20).split(b"\n")
        except OSError:
            continue
        for at, line in enumerate(lines, 1):
            key, sign, text = line.partition(b"=")
            if sign and key == name.encode():
                return "%s:%d" % (path, at) if text[:1023].rstrip(b"\r") == value.rstrip(b"\r") else ""
    return ""
def set_names(libc):
    # of the C environment, which has those of the conf files too
    entries, found = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), []
    while entries[len(found)] is not None and len(found) < 65536:
        found.append(entries[len(found)].partition(b"=")[0])
    return sorted(set(name for name in found if name.startswith(b"NCCL_")))
def texts(path):
    with open(path, "rb") as source:
        head = source.read(64)
        at, (size, count, names) = struct.unpack_from("<Q", head, 40)[0], struct.unpack_from("<HHH", head, 58)
        source.seek(at)
        table = source.read(size * count)
        parts = [struct.unpack_from("<I12xQQQ", table, size * number) for number in range(count)]
        source.seek(parts[names][2])
        words = source.read(parts[names][3])
        for name, _, start, length in parts:
            if words[name:].startswith(b".rodata\0") and length < 64 << 20:
                source.seek(start)
                return source.read(length)
def taken(library, libc):
    # {name: set_by} of the dump, which goes to the standard output
    sys.stdout.flush()
    libc.fflush(None)
    sheet, out = os.memfd_create("parameters"), os.dup(1)
    os.dup2(sheet, 1)
    library.ncclParamDumpAll()
    libc.fflush(None)
    os.dup2(out, 1)
    with open(sheet, "rb") as source:
        source.seek(0)
        lines, found, name = source.read(4 << 20).split(b"\n"), {}, b""
    for line in lines:
        name = line.split(b" ")[0] if line.startswith(b"NCCL_") else name
        before, sign, word = line.rpartition(b" set_by=")
        if sign and before.lstrip().startswith(b"Current value="):
            found[name] = word.split(b" ")[0] + b" " + before.partition(b"=")[2].strip()
    return found
path = found["nccl_path"] or found["system_path"] or ""
say("library", path)
if path:
    import ctypes, struct
    os.environ.update(OURS)
    library, version, answer = ctypes.CDLL(path), ctypes.c_int(), (ctypes.c_char * 128)()
    say("failed", library.ncclGetVersion(ctypes.byref(version)))
    say("version", version.value)
    say("result", library.ncclGetUniqueId(answer))
    say("id", answer.raw[:32].hex())
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    for name in NAMES:
        value = libc.getenv(name.encode())
        if value is not None:
            say("value:" + name, value)
            say("place:" + name, place(name, value, version.value))
    set_here = [name for name in set_names(libc) if name.decode("ascii", "replace") not in OURS]
    try:
        known = texts(path)
        say("reads", b" ".join(name for name in set_here if b"\0" + name + b"\0" in known))
    except (OSError, ValueError, IndexError, TypeError, struct.error):
        pass
    if version.value >= 23000 and hasattr(library, "ncclParamDumpAll") and hasattr(os, "memfd_create"):
        for name, said in sorted(taken(library, libc).items()):
            if name in set_here:
                say("taken:" + name.decode(), said)
    libc.fflush(None)
say("end", "")
for row in rows:
    os.write(1, row)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable as NCCL saw it: from the process environment, a line of a file (/etc/nccl.conf:3), or unknown («»)."""

    name: str
    value: str
    place: str

    def __str__(self) -> str:
        value = (
            self.value if self.value.isprintable() and " " not in self.value else repr(self.value)
        )
        where = "the environment" if self.place == "environment" else self.place
        return f"{self.name}={value} of {where}" if where else f"{self.name}={value}"


@dataclass(frozen=True)
class Taken:
    """What a typed parameter of NCCL's has in the end: who gave it (Default; EnvPlugin for a variable), its value."""

    by: str
    value: str


@dataclass(frozen=True, slots=True)
class Bound:
    """NCCL's answer on one launch path; all None without a library, no address where `result` is not 0."""

    library: str | None
    version: str | None = None
    result: int | None = None
    address: str | None = None
    interface: str | None = None  # as NCCL's own output names it
    variables: tuple[Variable, ...] = ()
    warning: str = ""  # what NCCL said of a failure
    reads: tuple[str, ...] = ()  # of the names that are set, those that this library knows
    taken: Mapping[str, Taken] = field(default_factory=dict)  # typed parameters that are set

    def variable(self, name: str) -> Variable | None:
        return next((v for v in self.variables if v.name == name and v.value), None)


# «Bootstrap : Using eth0:10.0.0.1<0>», from 2.22 on without the blank.
_USING = re.compile(
    r"NCCL INFO Bootstrap ?: Using (?P<interface>[^\s:]+):\[?(?P<address>[^\s<\]]+)\]?<\d+>"
)
Answers = Mapping[str, Bound | Absent]


def parse_answers(*raw: Mapping[str, Mapping[str, Any]]) -> Answers | Absent:
    """By launch path; a path that could not be tried keeps its reason."""
    if not raw:
        return Absent(
            "not_applicable", "the node is declared to have no GPUs, so no NCCL runs there"
        )
    answers = {path: _answer(said) for path, said in raw[0].items()}
    nowhere = len(answers) == 1 and all(
        isinstance(a, Bound) and a.library is None for a in answers.values()
    )
    if not (nowhere or "a bare process" in answers or answers.keys() >= SESSIONS):
        raise ValueError("a session was not asked, though there is an NCCL")
    return answers


def _answer(said: Mapping[str, Any]) -> Bound | Absent:
    if "no" in said:
        return Absent(str(said["no"]), str(said["why"]))
    if not all(isinstance(text, str) for text in said.values()):
        raise ValueError("texts are expected")
    if said["library"] == "":
        return Bound(None)
    if said["failed"] != "0":
        raise ValueError(f"{said['library']} does not say its version")
    code, result = int(said["version"]), int(said["result"])
    if code <= 0:
        raise ValueError(f"{code} is no version of NCCL")
    using = _USING.search(said["log"])
    warnings = re.findall(r"NCCL WARN (.*)", said["log"])
    names = [key[6:] for key in said if key.startswith("value:")]
    return Bound(
        said["library"],
        nccl_version(code),
        result,
        _bound(said, using) if result == 0 else None,
        using["interface"] if using else None,
        tuple(Variable(name, said[f"value:{name}"], said[f"place:{name}"]) for name in names),
        warnings[-1].strip() if warnings and result else "",
        tuple(said.get("reads", "").split()),
        {
            key[6:]: Taken(*text.partition(" ")[::2])
            for key, text in said.items()
            if key.startswith("taken:")
        },
    )


def _bound(said: Mapping[str, str], using: re.Match[str] | None) -> str:
    """The node's own address. With NCCL_COMM_ID the id holds that one on every node, and only NCCL's output ours."""
    address = _address(bytes.fromhex(said["id"]))
    if not said.get("value:NCCL_COMM_ID"):
        return address
    if using is None:
        raise ValueError("NCCL_COMM_ID is set, and NCCL did not print its own address")
    return str(ip_address(using["address"].partition("%")[0]))


def _address(start: bytes) -> str:
    """Of the first 32 bytes of an id: magic (8), then struct sockaddr_in or sockaddr_in6 of a little-endian machine."""
    if len(start) != 32:
        raise ValueError("an id is longer")
    family = int.from_bytes(start[8:10], "little")
    if family not in (2, 10):
        raise ValueError(f"address family {family}")
    return str(ip_address(start[12:16] if family == 2 else start[16:32]))


def _asked(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    if node.gpus is not None and node.gpus.count == 0:
        return ()
    who = node.job_user or node.ssh.user
    return (
        Read(
            "nccl_address", (node.python, who, node.transport == "ssh", FINDER + PROBE), limit=LIMIT
        ),
    )


ADDRESS = Fact("nccl.address", _asked, parse_answers, deep=True, needs=JOB_USER)
