"""The Python, PyTorch, NCCL and NCCL plug-ins that the job's interpreter would load.

They are found without importing torch.
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, setup_seconds, user_of_job
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.model.runtimes import read_arguments
from clusterprep.remote.agent.readers import NO_START
from clusterprep.remote.bootstrap import surroundings_source

# Runs in the job's interpreter, as the job's user. torch/version.py is read as text. NCCL is asked
# for its version through its library file, which needs no GPU or driver. The file that torch gets
# is searched as ld.so(8) does it: what is loaded already (LD_PRELOAD), DT_RPATH of libtorch_cuda
# and of the interpreter, LD_LIBRARY_PATH, DT_RUNPATH, the cache, the default folders. Wheels have
# DT_RPATH, so LD_LIBRARY_PATH cannot replace their NCCL; conda's differ. FINDER ends there, for
# nccl_address, which loads the library itself.
#
# All modules that it imports are loaded before any script starts, or in C, which keeps a look at 64
# nodes cheap.
FINDER = r"""
import importlib.machinery, os, sys
NCCL, LIMIT = "libnccl.so.2", 64 << 20
def quoted(lines, name):
    for line in lines:
        if line.split("=")[0].split(":")[0].strip() == name:
            return line.split("=", 1)[1].strip().strip("'\"")
def number(data, at, size=8):
    return int.from_bytes(data[at:at + size], sys.byteorder)
def dynamic(path):
    # DT_NEEDED (1), DT_RPATH (15) and DT_RUNPATH (29) of a 64-bit ELF file, see elf(5)
    entries = {1: [], 15: [], 29: []}
    with open(path, "rb") as source:
        def piece(at, size):
            source.seek(at)
            return source.read(size)
        header = piece(0, 64)
        if header[:5] != b"\x7fELF\x02":
            return entries
        size = number(header, 54, 2)
        table = piece(number(header, 32), size * number(header, 56, 2))
        segments = [table[at:at + size] for at in range(0, len(table), size)]
        loads = []
        for segment in segments:
            if number(segment, 0, 4) == 1:  # PT_LOAD: address, offset in the file, length
                loads.append((number(segment, 16), number(segment, 8), number(segment, 32)))
        for segment in segments:
            if number(segment, 0, 4) != 2:  # PT_DYNAMIC
                continue
            data = piece(number(segment, 8), min(number(segment, 32), 1 << 16))
            starts = range(0, len(data) - 15, 16)
            rows = [(number(data, at), number(data, at + 8)) for at in starts]
            base = [value for tag, value in rows if tag == 5]  # DT_STRTAB, the table of names
            for start, offset, length in loads:
                if base and start <= base[0] < start + length:
                    for tag, value in rows:
                        if tag in entries:
                            # a piece of the table, which has megabytes in libtorch_cuda
                            name = piece(base[0] - start + offset + value, 4096)
                            entries[tag].append(name[:name.index(b"\0")].decode())
    return entries
def folders(texts, path):
    origin = os.path.dirname(os.path.realpath(path))
    paths = [path for text in texts for path in text.split(":") if path]
    return [path.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for path in paths]
def first(name, places):
    for place in places:
        if os.path.exists(os.path.join(place, name)):
            return os.path.normpath(os.path.join(place, name))
def cached(cache, name):
    # whole entries, or all that begin so where the name ends with *
    end = b"" if name.endswith("*") else b"\0"
    wanted = b"/" + name.rstrip("*").encode() + end
    paths, at = [], -1
    while True:
        at = cache.find(wanted, at + 1)
        if at < 0:
            return paths
        entry = cache[cache.rfind(b"\0", 0, at) + 1:cache.find(b"\0", at)]
        path = entry.decode("utf-8", "replace")
        if os.path.exists(path) and path not in paths:
            paths.append(path)
def mapped(name):
    try:
        for line in open("/proc/self/maps"):
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and os.path.basename(path[0]).startswith(name):
                return path[0]
    except OSError:
        pass
def nccl(path):
    import ctypes
    code = ctypes.c_int()
    try:
        return code.value if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0 else None
    except (OSError, AttributeError):
        return None
def plugin(path, limit):
    size, digest, networks, version = os.path.getsize(path), None, [], None
    if size <= limit:
        import hashlib
        with open(path, "rb") as source:
            data = source.read(limit)
        digest = hashlib.sha256(data).hexdigest()
        networks = [name for name in NETWORKS if b"\0" + name.encode() + b"\0" in data]
        version = ofi_version(data)
    found = {"path": path, "size": size, "sha256": digest}
    found.update(networks=networks, ofi=version)
    return found
def ofi_version(data):
    # of the line that aws-ofi-nccl prints first
    mark = b"Initializing aws-ofi-nccl "
    at = data.find(mark)
    if at >= 0:
        start = at + len(mark)
        return data[start:start + 40].split(b"\0")[0].decode("ascii", "replace")
def libfabric(path):
    import ctypes
    try:
        number = ctypes.CDLL(path).fi_version()
    except (OSError, AttributeError):
        return None
    return "%d.%d" % (number >> 16 & 0xffff, number & 0xffff)
def listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
try:
    with open("/etc/ld.so.cache", "rb") as source:
        cache = source.read(16 << 20)
except OSError:
    cache = b""
library_path = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
library_path = [path for path in library_path if path]
machine = os.uname()[4] + "-linux-gnu"
default = ["/lib/" + machine, "/usr/lib/" + machine, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
try:
    own = dynamic(os.path.realpath(sys.executable))
    own = [] if own[29] else folders(own[15], sys.executable)
except (OSError, ValueError):
    own = []
def system(name):
    return first(name, library_path) or (cached(cache, name) or [None])[0] or first(name, default)
found = {
    "python": sys.executable, "python_version": sys.version,
    "prefix": sys.prefix, "base_prefix": sys.base_prefix,
    "version": None, "cuda": None, "nccl": None, "where": None, "nccl_path": None,
    "wheel": None, "wheel_path": None, "system": None, "system_path": None,
    "libcuda": None, "plugins": [],
    "preload": os.environ.get("LD_PRELOAD"),
    "library_path": os.environ.get("LD_LIBRARY_PATH"),
    "net_plugin": os.environ.get("NCCL_NET_PLUGIN"),
    "tuner_plugin": os.environ.get("NCCL_TUNER_PLUGIN"),
}
before = mapped("libnccl.so")
spec = importlib.machinery.PathFinder.find_spec("torch")
if spec is not None and spec.origin:
    found["where"] = where = os.path.dirname(spec.origin)
    lines = open(os.path.join(where, "version.py")).read().splitlines()
    for key, name in (("version", "__version__"), ("cuda", "cuda")):
        value = quoted(lines, name)
        found[key] = None if value == "None" else value
    wheel = first(NCCL, [os.path.join(os.path.dirname(where), "nvidia", "nccl", "lib")])
    user = first("libtorch_cuda.so", [os.path.join(where, "lib")])
    path = wheel
    try:
        parts = dynamic(user) if user is not None else None
    except (OSError, ValueError):
        parts = None
    if parts is not None:
        if NCCL in parts[1]:
            # DT_RPATH counts only where there is no DT_RUNPATH
            rpath = [] if parts[29] else folders(parts[15], user) + own
            path = before or first(NCCL, rpath + library_path)
            path = path or first(NCCL, folders(parts[29], user)) or system(NCCL)
        else:
            path = None
    elif wheel and before:
        path = before
    found["nccl_path"], found["wheel_path"] = path, wheel
found["system_path"] = system(NCCL)
"""
LOOKUP = (
    FINDER
    + r"""
versions = {None: None}
for key, name in (("nccl", "nccl_path"), ("wheel", "wheel_path"), ("system", "system_path")):
    if found[name] not in versions:
        versions[found[name]] = nccl(found[name])
    found[key] = versions[found[name]]
libcuda = system("libcuda.so.1")
found["libcuda"] = os.path.realpath(libcuda) if libcuda else None
KINDS, paths = ("libnccl-net", "libnccl-tuner"), []
NETWORKS = ("AWS Libfabric", "Libfabric", "gIB", "GPUDirectTCPX_v7", "FasTrak", "SHARP")
for name in (found["net_plugin"] or "").split(","):
    for full in (name, "libnccl-net-%s.so" % name):
        if name:
            paths.append(full if "/" in full else first(full, own) or system(full) or "")
listings = [os.path.join(folder, name) for folder in own + library_path for name in listed(folder)]
paths += [path for path in listings if os.path.basename(path).startswith(KINDS) and ".so" in path]
paths += [path for kind in KINDS for path in cached(cache, kind + "*")]
paths += [os.path.join(folder, kind + ".so") for folder in default for kind in KINDS]
files, remaining = set(), LIMIT
for path in paths:
    real = os.path.realpath(path)
    if not path or real in files or not os.path.isfile(real):
        continue
    files.add(real)
    try:
        found["plugins"].append(plugin(path, remaining if len(files) <= 32 else 0))
        remaining -= os.path.getsize(path) if found["plugins"][-1]["sha256"] else 0
    except OSError:
        found["plugins"].append({"path": path, "size": None, "sha256": None})
found["libfabric"] = None
if any(one.get("ofi") for one in found["plugins"]):
    path = system("libfabric.so.1")
    found["libfabric"] = path and libfabric(path)
def text(value):
    if value is None or isinstance(value, int):
        return "null" if value is None else str(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(text(key) + ": " + text(item) for key, item in value.items()) + "}"
    quoted_text = ""
    for letter in value:
        code = ord(letter)
        if 0xd7ff < code < 0xe000 or code > 0xffff:
            code = 0xfffd
        plain = " " <= letter <= "~" and letter not in '"\\'
        quoted_text += letter if plain else "\\u%04x" % code
    return '"' + quoted_text + '"'
"""
)
PRINT = "print(text(found))\n"
SCRIPT = LOOKUP + PRINT
JOB_LIMIT = 15.0  # seconds; environments on network file systems are slow at first


class Torch(Struct, frozen=True):
    """The torch that the job's interpreter would import; fields are None where it has no such."""

    version: str | None  # None: no torch in this interpreter
    cuda: str | None  # the CUDA it was built for; None: a CPU build
    nccl: str | None  # of the library that torch would load, from any source
    where: str | None


class Libraries(Struct, frozen=True):
    """Files that could be libnccl.so.2 for a program of the job's user; None: there is none.

    A path without a version is a file that could not be loaded.
    """

    loaded: str | None  # the path that torch would load
    wheel: str | None  # the path beside torch
    wheel_version: str | None
    system: str | None  # the path that programs without an NCCL of their own load
    system_version: str | None
    preload: str | None = None  # LD_PRELOAD
    library_path: str | None = None  # LD_LIBRARY_PATH


class Plugin(Struct, frozen=True):
    """A plug-in that NCCL's loader would find.

    `size` in bytes, `sha256` None for one that was not read. `networks` has the names of networks
    in it that are known here, for NCCL_NET, and `ofi` the version of aws-ofi-nccl, if it is that.
    """

    path: str
    size: int | None
    sha256: str | None
    networks: tuple[str, ...] = ()
    ofi: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Plugins(Struct, frozen=True):
    """NCCL's plug-ins on a node, and the one that NCCL_NET_PLUGIN asks for.

    `libfabric` is the version, «1.22», of the library that aws-ofi-nccl would load, None where it
    is not there or not needed.
    """

    files: tuple[Plugin, ...]
    wanted: str | None = None
    libfabric: str | None = None


class Python(Struct, frozen=True):
    """The job's interpreter.

    `base` is where a virtual environment was made from, else equal to `prefix`.
    """

    executable: str
    version: str  # 3.11.7
    prefix: str
    base: str


class NotStarting(Struct, frozen=True):
    """A job's interpreter that is there and does not start; `words` are those of its loader."""

    words: str


def parse_torch(answer: dict[str, Any]) -> Torch:
    """Return the torch of the job's interpreter; its values are None where there is none."""
    if answer["where"] and not answer["version"]:
        raise ValueError("torch/version.py holds no version")
    nccl = _version(answer["nccl"])
    return Torch(answer["version"], answer["cuda"], nccl, answer["where"])


def parse_libraries(answer: dict[str, Any]) -> Libraries:
    """Return the NCCL libraries that the job's interpreter finds, and what decides about it."""
    return Libraries(
        loaded=_text(answer["nccl_path"]),
        wheel=_text(answer["wheel_path"]),
        wheel_version=_version(answer["wheel"]),
        system=_text(answer["system_path"]),
        system_version=_version(answer["system"]),
        preload=_text(answer["preload"]),
        library_path=_text(answer["library_path"]),
    )


def parse_plugins(answer: dict[str, Any]) -> Plugins:
    """Return the plug-ins that NCCL may load. Raises ValueError for one without a path."""
    plugins = []
    for row in answer["plugins"]:
        path = row["path"]
        if not isinstance(path, str) or not path:
            raise ValueError("a plug-in without a path")
        digest = _text(row["sha256"])
        networks = tuple(map(str, row.get("networks", ())))
        plugins.append(Plugin(path, row["size"], digest, networks, _text(row.get("ofi"))))
    libfabric = None
    if any(plugin.ofi for plugin in plugins):
        libfabric = _text(answer["libfabric"])
    return Plugins(tuple(plugins), _text(answer["net_plugin"]), libfabric)


def parse_python(answer: dict[str, Any] | Absent) -> Python | NotStarting | Absent:
    """Return the job's interpreter, or why it does not start.

    Raises ValueError if it does not say what it is.
    """
    if isinstance(answer, Absent):
        return NotStarting(answer.detail) if answer.reason == NO_START else answer
    texts = [answer[key] for key in ("python", "python_version", "prefix", "base_prefix")]
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError("the interpreter does not say what it is")
    executable, version_text, prefix, base = texts
    version = version_text.split()[0]  # «3.11.7 (main, …) [GCC 13.2.0]»
    return Python(executable, version, prefix, base)


def parse_libcuda(answer: dict[str, Any]) -> str | None:
    """Return the path of the driver's libcuda, None where there is none."""
    return _text(answer["libcuda"])


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r}")
    return value or None


def _version(code: object) -> str | None:
    if code is None:
        return None
    if not isinstance(code, int) or code <= 0:
        raise ValueError(f"{code!r} is no version of NCCL")
    return nccl_version(code)


def nccl_version(code: int) -> str:
    """Return NCCL_VERSION_CODE as text: 21805 is 2.18.5.

    Before 2.9 the minor had two digits fewer (nccl.h): 2708 is 2.7.8.
    """
    major, rest = divmod(code, 1000 if code < 10000 else 10000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def _interpreter_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the one run of the interpreter that brings all facts of this file."""
    return (interpreter_read(node),)


def interpreter_read(node: Node) -> Read:
    """Return the run of the job's interpreter; in a container it looks around as well.

    A start of a container takes half a second and more, so one brings all.
    """
    is_inside = node.runtime is not None and node.runtime.container is not None
    script = _in_container() if is_inside else SCRIPT
    arguments = (node.python, user_of_job(node), script, *read_arguments(node.runtime))
    return Read("job_python", arguments, limit=JOB_LIMIT + setup_seconds(node))


@functools.cache
def _in_container() -> str:
    return f"{LOOKUP}{surroundings_source()}\nfound['surroundings'] = look()\n{PRINT}"


TORCH = Fact("torch.build", _interpreter_reads, parse_torch, deep=True, needs=JOB_USER)
LIBRARIES = Fact("nccl.libraries", _interpreter_reads, parse_libraries, deep=True, needs=JOB_USER)
PLUGINS = Fact("nccl.plugins", _interpreter_reads, parse_plugins, deep=True, needs=JOB_USER)
PYTHON = Fact(
    "python.env", _interpreter_reads, parse_python, lenient=True, deep=True, needs=JOB_USER
)
# The real path of the libcuda.so.1 that would be loaded.
LIBCUDA = Fact("cuda.libcuda", _interpreter_reads, parse_libcuda, deep=True, needs=JOB_USER)
