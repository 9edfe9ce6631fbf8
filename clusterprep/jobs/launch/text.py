"""Render a launch as text: a command line per node, a script for Slurm, or a hostfile."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.model.nodeset import fold

# How torchrun takes a program of each kind.
_KIND_OPTIONS = {"script": (), "module": ("-m",), "other": ("--no-python",)}


def text_of(plan: LaunchPlan, form: str, cluster: str) -> str:
    """Return the launch as `form`, which is torchrun, sbatch or hostfile.

    `cluster` is the name of the inventory; it names the Slurm job.
    """
    if form == "sbatch":
        return sbatch(plan, cluster)
    if form == "hostfile":
        return hostfile(plan)
    return torchrun(plan)


def torchrun(plan: LaunchPlan) -> str:
    """Return one line per node, or per rank of a direct launch.

    All have to be started within ten minutes: torchrun waits no longer.
    """
    parts: list[str] = []
    for share in plan.shares:
        if plan.wanted.direct:
            parts.extend(_rank_lines(plan, share))
        else:
            env = {
                **share.env,
                "NODE_RANK": str(share.position),
            }
            argv = _torchrun_argv(plan, share)
            parts.append(_line(plan, share.node.name, env, argv))
    return "\n".join(parts)


def _rank_lines(plan: LaunchPlan, share: Share) -> list[str]:
    lines: list[str] = []
    for rank in share.ranks:
        argv = plan.wanted.program.argv_of_rank(share.node.python, rank - share.first)
        env = plan.environment(rank)
        lines.append(_line(plan, f"{share.node.name} rank {rank}", env, argv))
    return lines


def _line(plan: LaunchPlan, title: str, env: Mapping[str, str], argv: Sequence[str]) -> str:
    words = ["env"]
    for name, value in sorted(env.items()):
        words.append(f"{name}={value}")
    words.extend(argv)
    command = shlex.join(words)
    if plan.wanted.folder:
        command = f"cd {shlex.quote(plan.wanted.folder)} && {command}"
    return f"# {title}\n{command}\n"


def hostfile(plan: LaunchPlan) -> str:
    """Return a hostfile as Open MPI and DeepSpeed read it."""
    rows: list[str] = []
    for share in plan.shares:
        node = share.node
        if node.address != node.name:
            rows.append(f"# {node.name}")
        rows.append(f"{node.address} slots={share.count}")
    rows.append("")
    return "\n".join(rows)


def sbatch(plan: LaunchPlan, cluster: str) -> str:
    """Return a script for Slurm, which gives the nodes.

    One task on each node starts torchrun; its node rank is Slurm's own number of the node.
    """
    common_env = _common_env(plan.shares)
    lines = ["#!/bin/bash"]
    lines.extend(_sbatch_options(plan, cluster))
    lines.extend(["", "set -euo pipefail"])
    for name, value in sorted(common_env.items()):
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    lines.append(f"export MASTER_PORT={plan.port}")
    task = _task_script(plan, common_env)
    lines.extend(["", f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(task)}", ""])
    return "\n".join(lines)


def _sbatch_options(plan: LaunchPlan, cluster: str) -> list[str]:
    job_name = cluster or "launch"
    names = [share.node.name for share in plan.shares]
    lines = [
        f"#SBATCH --job-name={shlex.quote(job_name)}",
        f"#SBATCH --nodes={len(names)}",
        f"#SBATCH --nodelist={fold(names)}",
        "#SBATCH --ntasks-per-node=1",
    ]
    if _has_gpus(plan):
        lines.append(f"#SBATCH --gpus-per-node={plan.nproc_per_node}")
    if plan.wanted.folder:
        lines.append(f"#SBATCH --chdir={plan.wanted.folder}")
    lines.append("# A task may use all of its node's processors: data loaders need them.")
    lines.append("#SBATCH --exclusive")
    return lines


def _task_script(plan: LaunchPlan, common_env: Mapping[str, str]) -> str:
    """Return what each task runs: the environment of its node, then torchrun."""
    lines = _exports_by_node(plan.shares, common_env)
    lines.append("export NODE_RANK=$SLURM_NODEID")
    command = " ".join(_slurm_words(plan))
    lines.append(f"exec {command}")
    return "\n".join(lines)


def _torchrun_argv(plan: LaunchPlan, share: Share) -> list[str]:
    argv = [share.node.python, "-m", "torch.distributed.run"]
    argv.extend(plan.torchrun_options(share))
    argv.extend(_program_words(plan))
    return argv


def _program_words(plan: LaunchPlan) -> list[str]:
    """Return the user's options of torchrun, and the program as torchrun takes it."""
    program = plan.wanted.program
    return [*program.options, *_KIND_OPTIONS[program.kind], *program.command]


def _slurm_words(plan: LaunchPlan) -> Sequence[str]:
    """Return torchrun's command for the shell; variables of Slurm stand for what Slurm decides."""
    share = plan.shares[0]
    return [
        shlex.quote(share.node.python),
        "-m torch.distributed.run",
        "--rdzv-backend=static",
        f"--nnodes={len(plan.shares)}",
        f"--nproc-per-node={share.count}",
        '--node-rank="$SLURM_NODEID"',
        '--master-addr="$MASTER_ADDR"',
        f"--master-port={plan.port}",
        shlex.join(_program_words(plan)),
    ]


def _common_env(shares: Sequence[Share]) -> Mapping[str, str]:
    """Return the variables that have the same value on all nodes."""
    common = dict(shares[0].env)
    for share in shares[1:]:
        for name, value in list(common.items()):
            if share.env.get(name) != value:
                del common[name]
    return common


def _exports_by_node(shares: Sequence[Share], common_env: Mapping[str, str]) -> list[str]:
    """Return a `case` statement that exports the variables in which nodes differ."""
    cases: list[str] = []
    for share in shares:
        assignments: list[str] = []
        for name, value in sorted(share.env.items()):
            if name not in common_env:
                assignments.append(f"{name}={shlex.quote(value)}")
        if assignments:
            node = shlex.quote(share.node.name)
            joined = " ".join(assignments)
            cases.append(f"  {node}) export {joined} ;;")
    if not cases:
        return []
    return ['case "$SLURMD_NODENAME" in', *cases, "esac"]


def _has_gpus(plan: LaunchPlan) -> bool:
    for share in plan.shares:
        gpus = share.node.gpus
        if gpus is None or gpus.count <= 0:
            return False
    return True
