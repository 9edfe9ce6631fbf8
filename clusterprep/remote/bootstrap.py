"""Builds the one line that starts Python on a node, and the source that follows on its stdin.

Runs on the controller. Nothing from an inventory enters the line: it is constant but for nonces of ours.
"""

from __future__ import annotations

import binascii
import functools
import marshal
import zlib
from collections.abc import Collection, Iterable, Sequence
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

# Reads nine digits and then that many bytes from stdin, unbuffered, and runs them only when all have come: a
# transfer that is cut does nothing. What it runs is packed, a quarter of its size, because a far node would otherwise
# be round trips away: TCP begins with 14 KB. No single quote, backslash or newline, so that csh and fish pass it
# unchanged.
_LOADER = (
    "import binascii,os,zlib;"
    "g=lambda n:(lambda s:(any(iter(lambda:(s.append(os.read(0,n-sum(map(len,s)))) or not s[-1] "
    'or sum(map(len,s))>=n),True)),b"".join(s))[1])([]);'
    "n=int(g(9) or 0);z=g(n) if n else z;"
    'len(z)==n and exec((lambda s,_,c:zlib.decompress(binascii.a2b_base64(c))+s)(*z.partition(b"~")))'
)
QUICK = (
    1  # zlib's level where what is sent is large, and near: better ones cost more than they save
)
MOST = 98304  # bytes of both parcels: 70 KB cost us nothing that could be measured, 155 KB more than the node saves
MAGIC = MAGIC_NUMBER.hex()
MARSHAL = 2  # a format of marshal that every Python 3 reads
NO_PYTHON = "clusterprep-no-python"
_SHELL = (
    "for p in /usr/bin/python3 python3 /usr/libexec/platform-python; do "
    'command -v "$p" >/dev/null 2>&1 && exec "$p" -EsSB -c "$0"; done; echo ' + NO_PYTHON
)
_DEFINE = """
import sys
def define(name, source):
    module = type(sys)(name)
    sys.modules[name] = module
    exec(source if isinstance(source, type(define.__code__)) else compile(source, name, "exec"), module.__dict__)
    return module
modules = [define(name, source) for name, source in PARTS]
"""
# A near node gets the agent twice, as text and compiled for the controller's own Python, and takes what its Python
# can: compiling costs it 8 to 30 ms, more than all that it does before it reads anything. Both have to be whole.
_CHOOSE = """
import marshal, sys
import _frozen_importlib_external as importer
def parcel():
    n = int(g(9) or 0)
    data = g(n)
    return data if 0 < n == len(data) else sys.exit(1)
text, code = parcel(), parcel()
PARTS = marshal.loads(zlib.decompress(code[4:] if code[:4] == getattr(importer, "MAGIC_NUMBER", 0) else text))
"""


def command(become: str | None = None, ready: str | None = None, password: bool = False) -> str:
    """The shell line for a node.

    `become` is the nonce that sudo prints as its prompt, `ready` the one that Python prints once it runs
    under sudo; both are None when the login user does the work itself. Without `password` sudo never asks, and takes
    what its own memory of an earlier password allows; with one it neither uses that memory nor leaves one.
    """
    loader = _LOADER
    prefix = ""
    if become is not None:
        loader = f'import os;os.write(1,b"{ready} ");' + _LOADER
        prefix = f"sudo -k -S -p {become} -- " if password else "sudo -n -- "
    return f"exec {prefix}/bin/sh -c '{_SHELL}' '{loader}'"


def relay_command(nonce: str) -> str:
    """The shell line of a task of a Slurm step, which first says where it is."""
    return f'echo {nonce} at "$SLURMD_NODENAME"; {command()}'


# What a part of the agent consists of, in the order in which it must be loaded.
_MODULES = {
    "look": ("readers", "look"),
    "nvml": ("nvml",),
    "gpu_devices": ("gpu_devices",),
    "kernel_log": ("kernel_log",),
    "tasks": ("tasks",),
    "storage": ("storage",),
    "firewall": ("firewall",),
    "system": ("system",),
    "devices": ("devices",),
    "sessions": ("launched", "shells"),
    "environment": ("environment",),
    "nccl_address": ("nccl_address",),
    "dial": ("dial",),
    "journal": ("journal",),
    "results": ("results",),
    "targets": ("places", "targets"),
    "store": ("results", "places", "disk", "store"),
    "act": ("places", "disk", "act"),
    "steps": ("processes", "commands", "steps"),  # needs act
    "stream": ("stream",),
    "ranks": ("nccl_lines", "processes", "sockets", "children", "ranks"),
    "job": ("processes", "children", "printed", "job"),
}
_PROGRAM = ("sums", "collectives", "belongings", "trial")  # of a rank, in the job's own interpreter
# Kinds of reads that the first part does not know, and the part that brings them: sent only where they are asked for.
_BRINGS = {
    "nvml": ("nvml",),
    "gpu_devices": ("gpu_nodes", "nvml_libraries", "fabric_manager"),
    "kernel_log": ("kernel_log",),
    "tasks": ("tasks",),
    "storage": ("probe", "shm_segments"),
    "firewall": ("firewall",),
    "system": ("rights", "account", "kernels", "cpus", "governors", "interrupts"),
    "journal": ("journal",),
    "targets": ("target",),
    "results": ("results",),
    "devices": ("pci_tree", "rdma_tree", "rail_routes", "verbs"),
    "sessions": ("environment", "nccl_address"),
    "environment": ("environment",),
    "nccl_address": ("nccl_address",),
}


def kinds() -> tuple[str, ...]:
    """Every kind of read that needs a part of its own."""
    return tuple(dict.fromkeys(kind for brought in _BRINGS.values() for kind in brought))


def parts_for(kinds: Collection[str]) -> tuple[str, ...]:
    """The reading parts of an agent that is to answer these kinds of reads."""
    return (
        "look",
        *(part for part, brought in _BRINGS.items() if not set(kinds).isdisjoint(brought)),
    )


@functools.cache
def sources(part: str) -> tuple[tuple[str, str], ...]:
    """The modules of a part, name and source."""
    return _read(_MODULES[part])


@functools.cache
def program() -> str:
    """The source of a rank, as text that the job's interpreter runs; `main` is then its entrance."""
    return f"PARTS = {_read(_PROGRAM)!r}{_DEFINE}main = modules[-1].main\n"


@functools.cache
def _read(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    folder = Path(__file__).parent / "agent"
    return tuple(
        (f"clusterprep.remote.agent.{name}", (folder / f"{name}.py").read_text("utf-8"))
        for name in names
    )


def payload(nonce: str, parts: Sequence[str], near: bool = False) -> bytes:
    """The bytes for the node's stdin: nine digits of length, the line that starts the agent, and its source, packed.

    For a `near` node the source is in two parcels behind that, nine digits of length and bytes each: first the text,
    then the code for one release of Python; but for what is so large that sending it costs us more than it saves there.
    """
    start = (
        f'sys.modules["clusterprep.remote.agent.loop"].main({nonce!r}, define, modules)\n'.encode()
    )
    parcels = _parcels(tuple(parts)) if near else b""
    if len(parcels) > MOST:
        parcels = b""
    source = _choice() if parcels else _source(tuple(parts))
    return b"%09d%b~%b%b" % (len(start) + 1 + len(source), start, source, parcels)


@functools.cache
def text(part: str) -> dict[str, object]:
    """The body of a request that brings a further part to an agent, as text."""
    return {"modules": [list(module) for module in sources(part)]}


@functools.cache
def compiled(part: str) -> dict[str, object]:
    """The same as code, for an agent whose Python has this one's MAGIC."""
    return {"code": binascii.b2a_base64(_compiled(sources(part)), newline=False).decode()}


def relay_payload(nonce: str) -> bytes:
    """The same for a task of a Slurm step."""
    start = f'sys.modules["clusterprep.remote.agent.relay"].main({nonce!r})\n'.encode()
    source = _packed(_text(_read(("light", "relay"))))
    return b"%09d%b~%b" % (len(start) + 1 + len(source), start, source)


@functools.cache
def _source(parts: tuple[str, ...]) -> bytes:
    """All but the last line, the same for every node: packed, as text."""
    return _packed(_text(_modules(parts)))


@functools.cache
def _choice() -> bytes:
    return _packed(_CHOOSE + _DEFINE)


@functools.cache
def _parcels(parts: tuple[str, ...]) -> bytes:
    modules = _modules(parts)
    code = MAGIC_NUMBER + _compiled(modules)
    text = zlib.compress(marshal.dumps(modules, MARSHAL), QUICK)
    return b"%09d%b%09d%b" % (len(text), text, len(code), code)


def _compiled(modules: Iterable[tuple[str, str]]) -> bytes:
    return zlib.compress(marshal.dumps([(name, _code(name)) for name, _ in modules]), QUICK)


def _code(name: str) -> object:
    """The code of a module of ours, from where this Python keeps it compiled."""
    spec = find_spec(name)
    return spec.loader.get_code(name)  # type: ignore[union-attr]


def _modules(parts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return (*_read(("light", "loop")), *(module for part in parts for module in sources(part)))


def _text(modules: tuple[tuple[str, str], ...]) -> str:
    return f"PARTS = {modules!r}{_DEFINE}"


def _packed(text: str) -> bytes:
    return binascii.b2a_base64(zlib.compress(text.encode(), 9), newline=False)
