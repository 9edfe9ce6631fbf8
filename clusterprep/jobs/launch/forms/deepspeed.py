"""DeepSpeed: one command over ssh where that carries all values, else a script for every node.

Over ssh DeepSpeed writes values and arguments into a shell line, each of its versions with other
quotes, and its environment file has the same values for all nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from clusterprep.errors import InputError
from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.jobs.launch.shell_text import (
    command_without_rank,
    common_env,
    here_document,
    names_of,
    node_script,
    refuse_torchrun_options,
    script_head,
)

# What needs no quotes in a shell; pdsh replaces % too.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]*")
_KINDS = {"script": (), "module": ("--module",), "other": ("--no_python",)}


def render(plan: LaunchPlan, cluster: str) -> str:
    """Return the script. Raises InputError for options of torchrun."""
    refuse_torchrun_options(plan, "DeepSpeed")
    lines = _over_ssh(plan) if _fits_one_command(plan) else _on_every_node(plan)
    return "\n".join([*lines, ""])


def _fits_one_command(plan: LaunchPlan) -> bool:
    """Return whether DeepSpeed can start all nodes and give them their environment."""
    if len(plan.shares) < 2:
        return False  # it reads no environment file then
    first = plan.shares[0]
    for share in plan.shares:
        if share.env != first.env or share.node.python != first.node.python:
            return False
    words = [*first.env.values(), *command_without_rank(plan)]
    return all(_PLAIN.fullmatch(word) for word in words)


def _over_ssh(plan: LaunchPlan) -> list[str]:
    first = plan.shares[0]
    lines = script_head(
        plan,
        f"DeepSpeed on {names_of(plan)}, {plan.world_size} processes: run it on "
        f"{first.node.name}, which needs pdsh and ssh to all of them",
    )
    lines.extend(_files(plan))
    env = [f"{name}={value}" for name, value in common_env(plan.shares).items()]
    # DeepSpeed takes this file for the .deepspeed_env of the current folder.
    lines.extend(here_document('"$folder/deepspeed_env"', env))
    lines.append('export DS_ENV_FILE="$folder/deepspeed_env"')
    lines.append(f"python={shlex.quote(first.node.python)}")
    lines.append(_command(plan, ["--launcher", "pdsh"]))
    return lines


def _on_every_node(plan: LaunchPlan) -> list[str]:
    lines = node_script(
        plan,
        f"DeepSpeed on {names_of(plan)}, {plan.world_size} processes: "
        "run it on every node within ten minutes, bash FILE NODE",
    )
    lines.extend(_files(plan))
    lines.append(_command(plan, ["--no_ssh", "--node_rank", '"$NODE_RANK"']))
    return lines


def _files(plan: LaunchPlan) -> list[str]:
    rows = [f"{share.node.address} slots={_slots(share)}" for share in plan.shares]
    return [
        "folder=$(mktemp -d)",
        """trap 'rm -r "$folder"' EXIT""",
        *here_document('"$folder/hostfile"', rows),
    ]


def _command(plan: LaunchPlan, options: Iterable[str]) -> str:
    program = plan.wanted.program
    words = ['"$python" -m deepspeed.launcher.runner --hostfile "$folder/hostfile"', *options]
    words.append(f"--master_addr {shlex.quote(plan.address)} --master_port {plan.port}")
    if any(_devices(share) for share in plan.shares):
        words.append(f"--include {shlex.quote(_include(plan))}")
    words.extend(_KINDS[program.kind])
    words.append(shlex.join(command_without_rank(plan)))
    return " ".join(words)


# ---------------------------------------------------------------- devices


def _devices(share: Share) -> tuple[int, ...]:
    """Return the devices that the inventory declares for the job, if it does."""
    gpus = share.node.gpus
    if gpus is None or gpus.use is None:
        return ()
    return gpus.use[: share.count]


def _slots(share: Share) -> int:
    """Return the slots of a node: DeepSpeed takes them for its devices, counted from 0."""
    devices = _devices(share)
    return max(devices) + 1 if devices else share.count


def _include(plan: LaunchPlan) -> str:
    """Return which devices of which node are used: `10.0.0.1:6,7@10.0.0.2:6,7`.

    Raises InputError for an IPv6 address, as DeepSpeed takes what is behind its first colon for
    devices.
    """
    parts = []
    for share in plan.shares:
        if ":" in share.node.address:
            raise InputError.of(
                f"DeepSpeed cannot read devices behind the IPv6 address {share.node.address} of "
                f"{share.node.name}: give the node a host name as its address, or print torchrun"
            )
        devices = _devices(share) or range(share.count)
        parts.append(f"{share.node.address}:{','.join(map(str, devices))}")
    return "@".join(parts)
