"""What stands behind `--`: a script, a module or another program, with or without `python` or `torchrun` in front."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal

from clusterprep.errors import InputError
from clusterprep.runtime.lazy_dataclass import dataclass

_PYTHON = re.compile(r"(pypy|python)\d*(\.\d+)?")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
# Options of torchrun that take no value; all others do.
_FLAGS = frozenset({"-m", "--module", "--no-python", "--run-path", "--standalone"})
# What launch assigns: a second value would make nodes or ranks meet elsewhere, or not at all.
_OURS = frozenset(
    [
        "--nnodes",
        "--nproc-per-node",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--rdzv-conf",
        "--standalone",
    ]
)


@dataclass(frozen=True)
class Program:
    """What each rank runs. `options` are torchrun's own, from a command that began with torchrun."""

    kind: Literal["script", "module", "other"]
    words: tuple[str, ...]
    options: tuple[str, ...] = ()

    def argv(self, python: str) -> tuple[str, ...]:
        """As one process of the node whose job runs in `python`."""
        return (*self.begin(python), *self.words)

    def begin(self, python: str) -> tuple[str, ...]:
        """What stands before its words."""
        if self.kind == "other":
            return ()
        return (python, "-u", "-m") if self.kind == "module" else (python, "-u")


def program_of(words: Sequence[str]) -> Program:
    """InputError where nothing stands there, or what launch itself assigns."""
    if not words:
        raise InputError.of(
            "there is no command to launch",
            hint="clusterprep launch INVENTORY -- train.py --lr 1e-4",
        )
    first, rest = posixpath.basename(words[0]), list(words[1:])
    if first == "torchrun":
        return _of_torchrun(rest)
    if _PYTHON.fullmatch(first):
        return _of_python(list(words), rest)
    if words[0] == "-m":
        return _module(rest)
    return Program("script" if first.endswith(".py") else "other", tuple(words))


def _of_python(words: list[str], rest: list[str]) -> Program:
    """`python` is that of the inventory on each node, unless it is given options of its own."""
    while rest and rest[0] == "-u":
        rest = rest[1:]
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _TORCHRUN_MODULES:
        return _of_torchrun(rest[2:])
    if rest[:1] == ["-m"]:
        return _module(rest[1:])
    if rest and not rest[0].startswith("-"):
        return Program("script", tuple(rest))
    return Program("other", tuple(words))


def _of_torchrun(words: list[str]) -> Program:
    options: list[str] = []
    module = plain = False
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, given, _ = word.partition("=")
        name = name if name == "-m" else name.replace("_", "-")
        if name in _OURS:
            message = f"{name} is what launch assigns; leave it out"
            raise InputError.of(
                message, hint="--nproc-per-node and --master-port stand before the --"
            )
        module, plain = module or name in ("-m", "--module"), plain or name == "--no-python"
        if name not in _FLAGS:
            options += [word] if given else [word, *words[:1]]
            words = words if given else words[1:]
    if not words:
        raise InputError.of("torchrun is given nothing to run")
    return Program(
        "module" if module else "other" if plain else "script", tuple(words), tuple(options)
    )


def _module(rest: list[str]) -> Program:
    if not rest:
        raise InputError.of("-m is given no module")
    return Program("module", tuple(rest))
