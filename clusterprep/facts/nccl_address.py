"""The address that the node's own NCCL would bind, in the environment of each launch path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from msgspec import Raw, Struct, field

from clusterprep.facts import JOB_USER, Fact, setup_seconds, user_of_job
from clusterprep.facts.parts import read_once, shared_text
from clusterprep.facts.torch import FINDER, nccl_version
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.model.runtimes import read_arguments

SESSIONS = {"ssh command", "login shell"}  # launch paths of every user that can log in
LIMIT = 30.0  # seconds for three shells and the starts of the job's interpreter

# Follows FINDER in the job's interpreter. ncclGetUniqueId needs no GPU or driver: it reads the conf
# files, chooses the interface, listens there and returns that address in the 128 bytes of the id
# (bootstrap.cc: magic, then a sockaddr). Its listener is a thread, which ends with the process. The
# conf files become the C environment, so getenv afterwards returns what NCCL saw. Debug output is
# turned on because it names the reasons, and must not go to a file.
#
# The results are printed last and on lines of their own, because NCCL's output comes in blocks that
# may end within a line. The texts in .rodata of the library (a few ms; the rest of the file is code
# for GPUs) show which of the variables that are set this NCCL knows. ncclParamDumpAll prints for
# typed parameters whether NCCL took what was set. The library exports it from 2.30.3 on, where
# nccl.h does not declare it yet, so it is asked for by name.
PROBE = r"""
NAMES = "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID", "NCCL_CONF_FILE"
OURS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP",
    "NCCL_DEBUG_FILE": "",
}
process_names = set(os.environb)
results = []
def report(key, value):
    if not isinstance(value, bytes):
        value = str(value).encode("utf-8", "surrogateescape")
    results.append(("\n%s %s %s\n" % (sys.argv[1], key, value.hex())).encode())
def conf_files(version):
    home = os.environ.get("HOME", "") if version >= 23000 else ""
    if not home:
        import pwd
        home = pwd.getpwuid(os.getuid()).pw_dir
    named = os.environ.get("NCCL_CONF_FILE", "") if version >= 22300 else ""
    return [named or home + "/.nccl.conf", "/etc/nccl.conf"]
def place(name, value, version):
    # where NCCL has a value from; "" where the line that sets the name has another value
    if name.encode() in process_names:
        return "environment"
    for path in conf_files(version):
        try:
            with open(path, "rb") as source:
                lines = source.read(1 << 20).split(b"\n")
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            key, sign, text = line.partition(b"=")
            if sign and key == name.encode():
                same = text[:1023].rstrip(b"\r") == value.rstrip(b"\r")
                return "%s:%d" % (path, number) if same else ""
    return ""
def set_names(libc):
    # of the C environment, which has those of the conf files too
    entries, names = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ"), []
    while entries[len(names)] is not None and len(names) < 65536:
        names.append(entries[len(names)].partition(b"=")[0])
    return sorted(set(name for name in names if name.startswith(b"NCCL_")))
def read_only_data(path):
    # the section .rodata of an ELF file, see elf(5)
    with open(path, "rb") as source:
        header = source.read(64)
        table_start = struct.unpack_from("<Q", header, 40)[0]
        size, count, names_index = struct.unpack_from("<HHH", header, 58)
        source.seek(table_start)
        table = source.read(size * count)
        sections = [
            struct.unpack_from("<I12xQQQ", table, size * index) for index in range(count)
        ]
        source.seek(sections[names_index][2])
        names = source.read(sections[names_index][3])
        for name, _, start, length in sections:
            if names[name:].startswith(b".rodata\0") and length < 64 << 20:
                source.seek(start)
                return source.read(length)
def taken(library, libc):
    # {name: set_by} of the dump, which goes to the standard output
    sys.stdout.flush()
    libc.fflush(None)
    dump, standard_output = os.memfd_create("parameters"), os.dup(1)
    os.dup2(dump, 1)
    library.ncclParamDumpAll()
    libc.fflush(None)
    os.dup2(standard_output, 1)
    with open(dump, "rb") as source:
        source.seek(0)
        lines = source.read(4 << 20).split(b"\n")
    parameters, name = {}, b""
    for line in lines:
        if line.startswith(b"NCCL_"):
            name = line.split(b" ")[0]
        before, sign, after = line.rpartition(b" set_by=")
        if sign and before.lstrip().startswith(b"Current value="):
            value = before.partition(b"=")[2].strip()
            parameters[name] = after.split(b" ")[0] + b" " + value
    return parameters
path = found["nccl_path"] or found["system_path"] or ""
report("library", path)
if path:
    import ctypes, struct
    os.environ.update(OURS)
    library, version = ctypes.CDLL(path), ctypes.c_int()
    unique_id = (ctypes.c_char * 128)()
    report("failed", library.ncclGetVersion(ctypes.byref(version)))
    report("version", version.value)
    report("result", library.ncclGetUniqueId(unique_id))
    report("id", unique_id.raw[:32].hex())
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    for name in NAMES:
        value = libc.getenv(name.encode())
        if value is not None:
            report("value:" + name, value)
            report("place:" + name, place(name, value, version.value))
    names = [name for name in set_names(libc) if name.decode("ascii", "replace") not in OURS]
    try:
        texts = read_only_data(path)
        report("reads", b" ".join(name for name in names if b"\0" + name + b"\0" in texts))
    except (OSError, ValueError, IndexError, TypeError, struct.error):
        pass
    can_dump = hasattr(library, "ncclParamDumpAll") and hasattr(os, "memfd_create")
    if version.value >= 23000 and can_dump:
        for name, value in sorted(taken(library, libc).items()):
            if name in names:
                report("taken:" + name.decode(), value)
    libc.fflush(None)
report("end", "")
for row in results:
    os.write(1, row)
os._exit(0)
"""


class Variable(Struct, frozen=True):
    """A variable as NCCL saw it.

    `place` is «environment» for that of the process, a line of a file (/etc/nccl.conf:3), or «»
    where it is unknown.
    """

    name: str
    value: str
    place: str

    def __str__(self) -> str:
        is_plain = self.value.isprintable() and " " not in self.value
        value = self.value if is_plain else repr(self.value)
        if not self.place:
            return f"{self.name}={value}"
        place = "the environment" if self.place == "environment" else self.place
        return f"{self.name}={value} of {place}"


class Taken(Struct, frozen=True):
    """The value of a typed parameter of NCCL; `by` is Default, or EnvPlugin for a variable."""

    by: str
    value: str


class BoundAddress(Struct, frozen=True):
    """NCCL's answer on one launch path.

    All fields are None without a library, and `address` where `result` is not 0.
    """

    library: str | None
    version: str | None = None
    result: int | None = None
    address: str | None = None
    interface: str | None = None  # as NCCL's own output names it
    variables: tuple[Variable, ...] = ()
    warning: str = ""  # NCCL's own text about a failure
    reads: tuple[str, ...] = ()  # of the names that are set, those that this library knows
    taken: Mapping[str, Taken] = field(default_factory=dict)  # typed parameters that are set

    def variable(self, name: str) -> Variable | None:
        """Return a variable that has a value, None where it is not set or empty."""
        for variable in self.variables:
            if variable.name == name and variable.value:
                return variable
        return None


# «Bootstrap : Using eth0:10.0.0.1<0>», from 2.22 on without the blank.
_USING = re.compile(
    r"NCCL INFO Bootstrap ?: Using (?P<interface>[^\s:]+):\[?(?P<address>[^\s<\]]+)\]?<\d+>"
)
Answers = Mapping[str, BoundAddress | Absent]


def parse_answers(*raw: Mapping[str, Mapping[str, Any]]) -> Answers | Absent:
    """Return NCCL's answer by launch path; a path that could not be tried keeps its reason."""
    if not raw:
        return Absent(
            "not_applicable", "the node is declared to have no GPUs, so no NCCL runs there"
        )
    answers = {path: _answer(fields) for path, fields in raw[0].items()}
    # Where the first path finds no library the agent tries no other one, and where jobs run in a
    # container that is the only path.
    is_alone = "a bare process" in answers or set(answers) == {"container"}
    is_complete = is_alone or answers.keys() >= SESSIONS
    if not is_complete and not _is_without_library(answers):
        raise ValueError("a session was not asked, though there is an NCCL")
    return answers


def _is_without_library(answers: Answers) -> bool:
    if len(answers) != 1:
        return False
    (answer,) = answers.values()
    return isinstance(answer, BoundAddress) and answer.library is None


@read_once  # the paths of a node answer the same, as a rule
def _answer(fields: Mapping[str, Any]) -> BoundAddress | Absent:
    """Return the answer of one launch path from the fields that PROBE reports."""
    if "no" in fields:
        return Absent(str(fields["no"]), str(fields["why"]))
    for text in fields.values():
        if not isinstance(text, str):
            raise ValueError("texts are expected")  # noqa: TRY004 - garbled
    library = fields["library"]
    if library == "":
        return BoundAddress(None)
    if fields["failed"] != "0":
        raise ValueError(f"{library} does not say its version")
    version = int(fields["version"])
    result = int(fields["result"])
    if version <= 0:
        raise ValueError(f"{version} is no version of NCCL")
    using = _USING.search(fields["log"])
    succeeded = result == 0
    return BoundAddress(
        library=shared_text(library),
        version=shared_text(nccl_version(version)),
        result=result,
        address=_bound_address(fields, using) if succeeded else None,
        interface=shared_text(using["interface"]) if using else None,
        variables=_variables(fields),
        warning="" if succeeded else _last_warning(fields["log"]),
        reads=tuple(fields.get("reads", "").split()),
        taken=_taken(fields),
    )


def _variables(fields: Mapping[str, str]) -> tuple[Variable, ...]:
    variables = []
    for key, value in fields.items():
        if key.startswith("value:"):
            name = key.removeprefix("value:")
            place = fields[f"place:{name}"]
            variables.append(_variable((name, value, place)))
    return tuple(variables)


@read_once
def _variable(parts: tuple[str, str, str]) -> Variable:
    return Variable(*parts)


def _taken(fields: Mapping[str, str]) -> dict[str, Taken]:
    parameters = {}
    for key, text in fields.items():
        if key.startswith("taken:"):
            set_by, _, value = text.partition(" ")
            parameters[key.removeprefix("taken:")] = Taken(set_by, value)
    return parameters


def _last_warning(log: str) -> str:
    warnings = re.findall(r"NCCL WARN (.*)", log)
    return warnings[-1].strip() if warnings else ""


def _bound_address(fields: Mapping[str, str], using: re.Match[str] | None) -> str:
    """Return the node's own address.

    With NCCL_COMM_ID the id holds the address of that variable on every node, and only NCCL's
    output has the node's.
    """
    address = _address_of_id(bytes.fromhex(fields["id"]))
    if not fields.get("value:NCCL_COMM_ID"):
        return address
    if using is None:
        raise ValueError("NCCL_COMM_ID is set, and NCCL did not print its own address")
    own_address, _, _zone = using["address"].partition("%")
    return str(ip_address(own_address))


def _address_of_id(start: bytes) -> str:
    """Return the address in the first 32 bytes of an id.

    They are magic (8 bytes), then struct sockaddr_in or sockaddr_in6 of a little-endian machine.
    """
    if len(start) != 32:
        raise ValueError("an id is longer")
    family = int.from_bytes(start[8:10], "little")
    if family == 2:  # AF_INET
        return str(ip_address(start[12:16]))
    if family == 10:  # AF_INET6
        return str(ip_address(start[16:32]))
    raise ValueError(f"address family {family}")


def _nccl_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    if node.gpus is not None and node.gpus.count == 0:
        return ()
    by_ssh = node.transport == "ssh"
    script = FINDER + PROBE
    arguments = (node.python, user_of_job(node), by_ssh, script, *read_arguments(node.runtime))
    return (Read("nccl_address", arguments, limit=LIMIT + setup_seconds(node)),)


ADDRESS = Fact(
    "nccl.address",
    _nccl_reads,
    parse_answers,
    deep=True,
    needs=JOB_USER,
    pieces=(dict[str, Raw],),
)
