"""Build the line that starts Python on a node, and the source that follows on its stdin.

Runs on the controller. The line is constant except for random nonces: no text of an inventory
enters it.

The agent and the first questions are sent in as few pieces as possible, because a far node pays for
each with a round trip: the questions follow the agent at once. docs/why/performance.md counts the
round trips.

A node at most 5 ms away also gets the agent compiled, because compiling took a host 8 ms of the 53
ms of a small check, and 40 of those of all checks. Compiled code is for one release of Python, so
the text is sent as well. Only the text is sent to a far node and through srun: there more bytes
cost more than compiling.

The agent gets only the parts that its command needs, see `_KINDS_OF_PART`. So `check` cannot write:
the code that writes is not on the node.

The files in `agent` are Python 3.6 without annotations, because they are sent as text to whatever
Python a node has. `make check` holds them to that with vermin. They avoid imports that cost time
(`agent/light.py`).
"""

from __future__ import annotations

import binascii
import functools
import marshal
import threading
import zlib
from collections.abc import Collection, Iterable, Sequence
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

# Reads nine digits and then that many bytes from stdin, unbuffered, and runs them only when all of
# them have arrived: a transfer that is cut does nothing. The source is compressed to a quarter of
# its size, because TCP begins with 14 KB and more would cost a distant node further round trips.
# The line has no single quote, backslash or newline, so that csh and fish pass it unchanged.
_LOADER = (
    "import binascii,os,zlib;"
    "g=lambda n:(lambda s:(any(iter(lambda:(s.append(os.read(0,n-sum(map(len,s)))) or not s[-1] "
    'or sum(map(len,s))>=n),True)),b"".join(s))[1])([]);'
    "n=int(g(9) or 0);z=g(n) if n else z;"
    "len(z)==n and exec((lambda s,_,c:zlib.decompress(binascii.a2b_base64(c))+s)"
    '(*z.partition(b"~")))'
)
# zlib's level for near nodes: what is sent is large, and better levels cost more than they save.
FAST_LEVEL = 1
# Bytes of both parcels together. Those of all checks have 300 KB, of which each 100 cost the
# controller half a millisecond over SSH; compiling costs the node 40 ms.
MAX_PARCELS = 512 << 10
MAGIC = MAGIC_NUMBER.hex()
MARSHAL_VERSION = 2  # a format of marshal that every Python 3 reads
NO_PYTHON = "clusterprep-no-python"
SHELL_RUNS = "clusterprep-shell"  # printed first, so that a login shell that runs nothing is known
# -I takes the working folder, PYTHON* variables and the user's packages off the path of modules: a
# file there would run as root. -S leaves out the site's start-up code, -B writes no files.
FLAGS = "-ISB"
# The agent and all that it starts work in /, where only root can put a file in the way.
_SHELL = (
    "cd /; for p in /usr/bin/python3 python3 /usr/libexec/platform-python; do "
    'command -v "$p" >/dev/null 2>&1 && exec "$p" ' + FLAGS + ' -c "$0"; done; echo ' + NO_PYTHON
)
# Without sudo and without doas the shell says that there is no sudo. doas ends with what is sent to
# its process group, as commands do at their end; so they get one of their own, as from sudo.
_BECOME = (
    "command -v sudo >/dev/null 2>&1 || "
    '{{ command -v doas >/dev/null 2>&1 && exec doas -n -- setsid -w "$@"; }}; exec {sudo} -- "$@"'
)
# The user that logged in, under the names by which sudo tells it: the agent knows it by these.
_OF_DOAS = (
    'e=os.environ;u="SUDO_USER" not in e and e.get("DOAS_USER");r=u and pwd.getpwnam(u);'
    "r and e.update(SUDO_USER=u,SUDO_UID=str(r.pw_uid),SUDO_GID=str(r.pw_gid));"
)
_DEFINE = """
import sys
def define(name, source):
    module = type(sys)(name)
    sys.modules[name] = module
    is_code = isinstance(source, type(define.__code__))
    exec(source if is_code else compile(source, name, "exec"), module.__dict__)
    return module
modules = [define(name, source) for name, source in PARTS]
"""
# A near node gets the agent twice, as text and compiled for the controller's own Python, and runs
# the one that its Python can: compiling costs it 8 to 30 ms, more than all that it does before it
# reads anything. Both parcels have to arrive completely.
_CHOOSE = """
import marshal, sys
import _frozen_importlib_external as importer
def parcel():
    n = int(g(9) or 0)
    data = g(n)
    return data if 0 < n == len(data) else sys.exit(1)
text, code = parcel(), parcel()
fits = code[:4] == getattr(importer, "MAGIC_NUMBER", 0)
PARTS = marshal.loads(zlib.decompress(code[4:] if fits else text))
"""


def command(become: str | None = None, ready: str | None = None, password: bool = False) -> str:
    """Return the shell line that starts Python on a node.

    `become` is the nonce that sudo prints as its prompt, `ready` the one that Python prints once it
    runs as root; both are None when the login user does the work itself. Without `password` sudo
    never asks, and uses its timestamp of an earlier password if there is one; with `password` it
    neither uses such a timestamp nor leaves one.
    """
    loader = _LOADER
    prefix = ""
    if become is not None:
        loader = f'import os,pwd;os.write(1,b"{ready} ");{_OF_DOAS}{_LOADER}'
        prefix = become_prefix(become if password else None)
    return f"echo {SHELL_RUNS}; exec {prefix}/bin/sh -c '{_SHELL}' '{loader}'"


def become_prefix(prompt: str | None) -> str:
    """Return the words before a command that is to run as root, for any login shell.

    sudo gets the password behind `prompt`, and asks for none without it. Where there is no sudo,
    doas does the same, but asks for a password on terminals alone: it never asks here.
    """
    sudo = "sudo -n" if prompt is None else f"sudo -k -S -p {prompt}"
    return f"/bin/sh -c '{_BECOME.format(sudo=sudo)}' clusterprep "


def relay_command(nonce: str) -> str:
    """Return the shell line of a task of a Slurm step, which first prints the name of its node."""
    return f'echo {nonce} at "$SLURMD_NODENAME"; {command()}'


INSIDE = "inside"  # the part that enters runtimes; it is sent where one is declared
# The modules of each part of the agent, in the order in which they must be loaded.
_MODULES_OF_PART = {
    "look": ("readers", "look"),
    "tools": ("tools",),
    "nvml": ("nvml",),
    "gpu_devices": ("gpu_devices",),
    "kernel_log": ("kernel_log",),
    "kernel_journal": ("kernel_log", "kernel_journal"),
    "tasks": ("tasks",),
    "storage": ("storage",),
    "firewall": ("firewall",),
    "system": ("system",),
    "devices": ("devices",),
    "hardware": ("hardware",),
    "slurm": ("slurm",),
    "sessions": ("launched", "pam", "shells"),
    "launch_limits": ("launched", "launch_limits"),
    "environment": ("container_env", "environment"),
    "readable": ("readable",),
    "nccl_address": ("nccl_address",),
    "inside": (
        "launched",
        "pam",
        "shells",
        "container_env",
        "environment",
        "processes",
        "containers",
        "crew",
        "inside",
    ),
    "surroundings": ("surroundings",),
    "endpoints": ("side_by_side", "proxies", "endpoints"),
    "shared": ("side_by_side", "shared"),
    "shared_marks": ("side_by_side", "shared", "shared_marks"),
    "ssh_mesh": ("ssh_mesh",),
    "dial": ("neighbour_table", "dial"),
    "journal": ("journal",),
    "results": ("results",),
    "targets": ("places", "targets"),
    "store": ("results", "places", "disk", "store"),
    "act": ("places", "disk", "act"),
    "steps": ("processes", "commands", "steps"),  # needs act
    "stream": ("stream",),
    "link_errors": ("devices", "link_errors"),
    "load_samples": ("devices", "nvml", "load_samples"),
    "job_look": (
        "processes",
        "sockets",
        "tcp_diag",
        "system_calls",
        "python_stacks",
        "job_stacks",
        "job_look",
    ),
    "ranks": ("nccl_lines", "processes", "sockets", "children", "ranks"),
    "job": ("processes", "children", "printed", "job"),
    "output": ("processes", "output"),
    "copying": ("places", "disk", "copying"),
}
_PROGRAM = ("sums", "collectives", "belongings", "trial")  # of a rank, in the job's own interpreter
# Kinds of reads that the part `look` does not know, by the part that knows them. Such a part is
# sent only where one of its kinds is asked for.
_KINDS_OF_PART = {
    "tools": ("command", "otherwise"),
    "nvml": ("nvml",),
    "gpu_devices": ("gpu_nodes", "nvml_libraries", "fabric_manager", "imex"),
    "kernel_log": ("kernel_log",),
    "kernel_journal": ("kernel_journal",),
    "tasks": ("tasks",),
    "storage": ("probe", "shm_segments"),
    "firewall": ("firewall",),
    "system": ("rights", "account", "kernels", "cpus", "governors", "interrupts"),
    "journal": ("journal",),
    "targets": ("target",),
    "results": ("results",),
    "devices": ("pci_tree", "rdma_tree", "rail_routes", "verbs"),
    "link_errors": ("link_errors",),
    "hardware": ("driver_libraries", "nvme"),
    "sessions": (
        "environment",
        "container_defaults",
        "nccl_address",
        "readable",
        "endpoints",
        "shared",
        "ssh_mesh",
    ),
    "launch_limits": ("launch_limits", "session_share"),
    "slurm": ("slurm_files", "slurm_state"),
    "environment": ("environment", "container_defaults"),
    "readable": ("readable",),
    "nccl_address": ("nccl_address",),
    "inside": (INSIDE, "shell_runtime"),
    "surroundings": ("surroundings",),
    "job_look": ("job",),
    "endpoints": ("endpoints",),
    "shared": ("shared",),
    "ssh_mesh": ("ssh_mesh",),
}


def kinds() -> tuple[str, ...]:
    """Return every kind of read that needs a part other than `look`."""
    names: dict[str, None] = {}
    for kinds_of_part in _KINDS_OF_PART.values():
        names.update(dict.fromkeys(kinds_of_part))
    return tuple(names)


def parts_for(kinds: Collection[str]) -> tuple[str, ...]:
    """Return the parts that an agent needs to answer reads of these kinds."""
    wanted = set(kinds)
    parts = ["look"]
    for part, kinds_of_part in _KINDS_OF_PART.items():
        if not wanted.isdisjoint(kinds_of_part):
            parts.append(part)
    return tuple(parts)


@functools.cache
def sources(part: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the source of each module of a part."""
    return _read(_MODULES_OF_PART[part])


@functools.cache
def rank_source() -> str:
    """Return the source of a rank, for the job's interpreter; it defines `main`, to be called."""
    modules = _read(_PROGRAM)
    return f"PARTS = {modules!r}{_DEFINE}main = modules[-1].main\n"


def surroundings_source() -> str:
    """Return the source that defines `look`, for the job's interpreter in a container."""
    ((_, source),) = _read(("surroundings",))
    return source


@functools.cache
def stress_source() -> str:
    """Return the source of a process of the stress tier; it defines `main`, to be called."""
    modules = _read(("stress",))
    return f"PARTS = {modules!r}{_DEFINE}main = modules[-1].main\n"


@functools.cache
def _read(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    folder = Path(__file__).parent / "agent"
    modules = []
    for name in names:
        source = (folder / f"{name}.py").read_text("utf-8")
        modules.append((f"clusterprep.remote.agent.{name}", source))
    return tuple(modules)


def payload(nonce: str, parts: Sequence[str], near: bool = False) -> bytes:
    """Return the bytes for the node's stdin, which `pieces` gives in two."""
    return b"".join(pieces(nonce, parts, near))


def pieces(nonce: str, parts: Sequence[str], near: bool = False) -> tuple[bytes, bytes]:
    """Return the bytes for the node's stdin: its own ones, and those that all nodes have alike.

    They are nine digits of length, the line that starts the agent, and the agent's source, packed.
    For a `near` node the source follows in two parcels, each of nine digits of length and as many
    bytes: first the text, then the code for one release of Python. Parcels of more than MAX_PARCELS
    bytes are not used, because sending them costs more than it saves.
    """
    start = (
        f'sys.modules["clusterprep.remote.agent.loop"].main({nonce!r}, define, modules)\n'.encode()
    )
    with _PACKING:
        length, source = _packed_agent(tuple(parts), near)
    return b"%09d%b~" % (len(start) + 1 + length, start), source


@functools.cache
def _packed_agent(parts: tuple[str, ...], near: bool) -> tuple[int, bytes]:
    """Return the length of the packed source, and that source with the parcels behind it."""
    parcels = _parcels(parts) if near else b""
    if 0 < len(parcels) <= MAX_PARCELS:
        choice = _choice()
        return len(choice), choice + parcels
    source = _source(parts)
    return len(source), source


# Held while the agent is packed. Nodes that log in at once all need it at the same moment: without
# the lock each of their threads packed it for itself, 7 ms for each of 32 nodes.
_PACKING = threading.Lock()


@functools.cache
def load_as_text(part: str) -> dict[str, object]:
    """Return the body of a `load` request that brings a further part to an agent, as text."""
    modules = [list(module) for module in sources(part)]
    return {"modules": modules}


@functools.cache
def load_as_code(part: str) -> dict[str, object]:
    """Return the body of a `load` request with code, for an agent whose Python has our MAGIC."""
    code = binascii.b2a_base64(_compiled(sources(part)), newline=False)
    return {"code": code.decode()}


def relay_payload(nonce: str) -> bytes:
    """Return the bytes for the stdin of a task of a Slurm step: its relay, packed."""
    start = f'sys.modules["clusterprep.remote.agent.relay"].main({nonce!r})\n'.encode()
    source = _packed(_text(_read(("light", "relay"))))
    length = len(start) + 1 + len(source)
    return b"%09d%b~%b" % (length, start, source)


@functools.cache
def _source(parts: tuple[str, ...]) -> bytes:
    """Return the packed source without its last line: the same for every node."""
    return _packed(_text(_modules(parts)))


@functools.cache
def _choice() -> bytes:
    return _packed(_CHOOSE + _DEFINE)


@functools.cache
def _parcels(parts: tuple[str, ...]) -> bytes:
    modules = _modules(parts)
    code = MAGIC_NUMBER + _compiled(modules)
    text = zlib.compress(marshal.dumps(modules, MARSHAL_VERSION), FAST_LEVEL)
    return b"%09d%b%09d%b" % (len(text), text, len(code), code)


def _compiled(modules: Iterable[tuple[str, str]]) -> bytes:
    codes = [(name, _code(name)) for name, _ in modules]
    return zlib.compress(marshal.dumps(codes), FAST_LEVEL)


def _code(name: str) -> object:
    """Return the code of one of our modules, from where this Python caches it."""
    spec = find_spec(name)
    return spec.loader.get_code(name)  # type: ignore[union-attr]


def _modules(parts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    modules = [*_read(("light", "loop"))]
    for part in parts:
        modules.extend(sources(part))
    return tuple(modules)


def _text(modules: tuple[tuple[str, str], ...]) -> str:
    return f"PARTS = {modules!r}{_DEFINE}"


def _packed(text: str) -> bytes:
    compressed = zlib.compress(text.encode(), 9)
    return binascii.b2a_base64(compressed, newline=False)
