"""Parse the command after `--`: a script, a module or another program.

`python` and `torchrun` may stand in front of it.

>>> program_of(["torchrun", "train.py", "--lr", "1"])
Program(kind='script', command=('train.py', '--lr', '1'), options=())
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from clusterprep.errors import InputError

_PYTHON = re.compile(r"(pypy|python)\d*(\.\d+)?")
_LEGACY_MODULE = "torch.distributed.launch"
_TORCHRUN_MODULES = ("torch.distributed.run", _LEGACY_MODULE)
# Options of torchrun that take no value; all others do. The first three say what is run, and the
# plan says that again; torch.distributed.launch alone takes --use-env, as torchrun always does.
_REPLACED_FLAGS = frozenset({"-m", "--module", "--no-python", "--use-env"})
_PASSED_FLAGS = frozenset({"--virtual-local-rank"})
LOCAL_RANK = "--local-rank=${local_rank}"
"""What torch.distributed.launch gives each rank unless --use-env is set; torchrun fills it in."""
# Options that launch sets: with a second value nodes or ranks would meet elsewhere, or not at all.
_ASSIGNED = frozenset(
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


class Program(Struct, frozen=True):
    """The program of each rank.

    `command` is its name and its arguments. `options` are torchrun's own, from a command that began
    with torchrun.
    """

    kind: Literal["script", "module", "other"]
    command: tuple[str, ...]
    options: tuple[str, ...] = ()

    def argv(self, python: str) -> tuple[str, ...]:
        """Return the arguments of one process, on a node whose interpreter is `python`."""
        return (*self.interpreter(python), *self.command)

    def argv_of_rank(self, python: str, local_rank: int) -> tuple[str, ...]:
        """Return the arguments of one process that is started without torchrun."""
        filled = LOCAL_RANK.replace("${local_rank}", str(local_rank))
        return tuple(filled if word == LOCAL_RANK else word for word in self.argv(python))

    def interpreter(self, python: str) -> tuple[str, ...]:
        """Return the interpreter and its options; empty for a program that needs none."""
        if self.kind == "other":
            return ()
        if self.kind == "module":
            return (python, "-u", "-m")
        return (python, "-u")


def program_of(words: Sequence[str]) -> Program:
    """Return the program that a command starts.

    Raises InputError if it is empty, or has an option that launch itself assigns or cannot use.
    """
    if not words:
        raise InputError.of(
            "there is no command to launch",
            hint="clusterprep launch INVENTORY -- train.py --lr 1e-4",
        )
    name = posixpath.basename(words[0])
    arguments = list(words[1:])
    if name == "torchrun":
        return _parse_torchrun(arguments)
    if _PYTHON.fullmatch(name):
        return _parse_python(list(words))
    if words[0] == "-m":
        return _module(arguments)
    kind: Literal["script", "other"] = "other"
    if name.endswith(".py"):
        kind = "script"
    return Program(kind, tuple(words))


def _parse_python(command: list[str]) -> Program:
    """Parse a command that begins with `python`.

    Each node's own `python` of the inventory replaces it, unless it has options besides -u and -m.
    """
    arguments = command[1:]
    while arguments and arguments[0] == "-u":
        arguments.pop(0)
    if not arguments:
        return Program("other", tuple(command))
    if arguments[0] == "-m":
        module = arguments[1:]
        if module and module[0] in _TORCHRUN_MODULES:
            return _parse_torchrun(module[1:], legacy=module[0] == _LEGACY_MODULE)
        return _module(module)
    if arguments[0].startswith("-"):
        return Program("other", tuple(command))
    return Program("script", tuple(arguments))


def _parse_torchrun(arguments: Sequence[str], *, legacy: bool = False) -> Program:
    """Parse what follows `torchrun`: its own options, then the program and its arguments.

    `legacy` is torch.distributed.launch, which tells each rank its number on the node as an
    argument unless it is given --use-env. Raises InputError for an option that launch assigns or
    cannot use, and if no program follows.
    """
    remaining = list(arguments)
    options: list[str] = []
    flags: set[str] = set()
    while remaining and remaining[0].startswith("-"):
        argument = remaining.pop(0)
        name, equals, _ = argument.partition("=")
        name = name.replace("_", "-")  # torchrun takes --nproc_per_node too
        _refuse_option(name)
        if name in _REPLACED_FLAGS:
            flags.add(name)
            continue
        options.append(argument)
        value_follows = not equals and name not in _PASSED_FLAGS
        if value_follows and remaining:
            options.append(remaining.pop(0))
    if not remaining:
        raise InputError.of("torchrun is given nothing to run")
    kind = _kind_of(flags)
    if legacy and "--use-env" not in flags:
        if kind == "other":
            message = "torch.distributed.launch takes --no-python only with --use-env"
            raise InputError.of(message, hint="add --use-env, or use torchrun")
        remaining.insert(1, LOCAL_RANK)
    return Program(kind, tuple(remaining), tuple(options))


def _refuse_option(option: str) -> None:
    """Raise InputError for an option of torchrun with which launch cannot start the ranks."""
    if option == "--run-path":
        # It takes precedence over --no-python, with which launch has torchrun start each rank.
        raise InputError.of(
            "with --run-path launch could not follow the ranks",
            hint="leave it out: each rank then runs the script in a new interpreter",
        )
    if option in _ASSIGNED:
        raise InputError.of(
            f"{option} is what launch assigns; leave it out",
            hint="--nproc-per-node and --master-port stand before the --",
        )


def _kind_of(flags: set[str]) -> Literal["script", "module", "other"]:
    if "-m" in flags or "--module" in flags:
        return "module"
    if "--no-python" in flags:
        return "other"
    return "script"


def _module(command: list[str]) -> Program:
    if not command:
        raise InputError.of("-m is given no module")
    return Program("module", tuple(command))
