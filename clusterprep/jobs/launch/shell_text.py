"""Pieces of shell that several forms of a printed launch have in common. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import LOCAL_RANK
from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.model.nodeset import fold

OPTION = "--print"
# How torchrun and programs with its options take a program of each kind.
TORCHRUN_KINDS: Mapping[str, tuple[str, ...]] = {
    "script": (),
    "module": ("-m",),
    "other": ("--no-python",),
}
_END = "END_OF_FILE"


# ---------------------------------------------------------------- the environment


def common_env(shares: Sequence[Share]) -> dict[str, str]:
    """Return the variables that have the same value on all nodes, sorted by name."""
    common = dict(shares[0].env)
    for share in shares[1:]:
        for name, value in list(common.items()):
            if share.env.get(name) != value:
                del common[name]
    return dict(sorted(common.items()))


def own_env(share: Share, common: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a node that are not common to all, sorted by name."""
    own = {}
    for name, value in sorted(share.env.items()):
        if name not in common:
            own[name] = value
    return own


def assignments(env: Mapping[str, str]) -> str:
    """Return the variables as words of a shell: `A=1 B='a b'`."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())


def exports(env: Mapping[str, str]) -> list[str]:
    """Return a line of a shell for each variable."""
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items()]


# ---------------------------------------------------------------- words


def program_words(plan: LaunchPlan) -> list[str]:
    """Return the user's options of torchrun, and the program as torchrun takes it."""
    program = plan.wanted.program
    return [*program.options, *TORCHRUN_KINDS[program.kind], *program.command]


def command_without_rank(plan: LaunchPlan) -> list[str]:
    """Return the program's words without the one that torchrun would replace by the local rank."""
    return [word for word in plan.wanted.program.command if word != LOCAL_RANK]


def here_document(path: str, lines: Iterable[str]) -> list[str]:
    """Return shell lines that write these lines to a file, as they are."""
    return [f"cat > {path} <<'{_END}'", *lines, _END]


def script_head(plan: LaunchPlan, comment: str) -> list[str]:
    """Return the first lines of a script, up to the folder in which it works."""
    lines = ["#!/bin/bash", f"# {comment}", "set -euo pipefail"]
    if plan.wanted.folder:
        lines.append(f"cd {shlex.quote(plan.wanted.folder)}")
    return lines


def names_of(plan: LaunchPlan) -> str:
    return fold(share.node.name for share in plan.shares)


def node_script(plan: LaunchPlan, comment: str) -> list[str]:
    """Return the first lines of a script that is run on every node, with the node's environment.

    Its argument is the name of the node; without one it is the name of the host. It sets NODE_RANK
    and, not exported, `python`.
    """
    lines = script_head(plan, comment)
    common = common_env(plan.shares)
    lines.append('case "${1:-$(hostname -s)}" in')
    for share in plan.shares:
        env = {"NODE_RANK": str(share.position), **own_env(share, common)}
        python = shlex.quote(share.node.python)
        name = shlex.quote(share.node.name)
        lines.append(f"  {name}) python={python}; export {assignments(env)} ;;")
    usage = f"usage: bash $0 NODE, one of {names_of(plan)}"
    lines.append(f'  *) echo "{usage}" >&2; exit 2 ;;')
    lines.append("esac")
    lines.extend(exports(common))
    return lines


# ---------------------------------------------------------------- what a program cannot take


def refuse_torchrun_options(plan: LaunchPlan, program: str) -> None:
    """Raise InputError for a command with options of torchrun, which `program` does not have."""
    options = plan.wanted.program.options
    if options:
        message = f"{program} has no such options of torchrun: {shlex.join(options)}"
        raise InputError.of(message, key=OPTION, hint="leave them out")


def refuse_uneven(plan: LaunchPlan, program: str) -> None:
    """Raise InputError if nodes start different numbers of processes, which needs one number."""
    if plan.even:
        return
    nodes_by_count: dict[int, list[str]] = {}
    for share in plan.shares:
        nodes_by_count.setdefault(share.count, []).append(share.node.name)
    counts = [f"{count} on {fold(nodes)}" for count, nodes in nodes_by_count.items()]
    message = f"{program} starts the same number of processes on all nodes: {'; '.join(counts)}"
    hint = "--nproc-per-node N, or `nproc_per_node:` of the inventory"
    raise InputError.of(message, key=OPTION, hint=hint)
