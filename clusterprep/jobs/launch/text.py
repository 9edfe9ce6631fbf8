"""A launch as text: what to type on each node, a script for Slurm, or a hostfile of MPI and DeepSpeed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from clusterprep.jobs.launch.plan import LaunchPlan, Share
from clusterprep.model.nodeset import fold

FORMS = ("torchrun", "sbatch", "hostfile")


def text_of(plan: LaunchPlan, form: str, cluster: str) -> str:
    return {"torchrun": torchrun, "sbatch": sbatch, "hostfile": hostfile}[form](plan, cluster)


def torchrun(plan: LaunchPlan, cluster: str) -> str:
    """One line for each node, or for each rank; all of them within ten minutes, as torchrun waits no longer."""
    parts = []
    for share in plan.shares:
        node = share.node
        if plan.wanted.direct:
            argv = plan.wanted.program.argv(node.python)
            parts += [
                _line(plan, f"{node.name} rank {rank}", plan.environment(rank), argv)
                for rank in share.ranks
            ]
        else:
            env = {**share.env, "NODE_RANK": str(share.position)}
            parts.append(_line(plan, node.name, env, _run(plan, share)))
    return "\n".join(parts)


def _line(plan: LaunchPlan, name: str, env: Mapping[str, str], argv: Sequence[str]) -> str:
    given = [f"{variable}={value}" for variable, value in sorted(env.items())]
    folder = f"cd {shlex.quote(plan.wanted.folder)} && " if plan.wanted.folder else ""
    return f"# {name}\n{folder}{shlex.join(['env', *given, *argv])}\n"


def hostfile(plan: LaunchPlan, cluster: str) -> str:
    """As Open MPI and DeepSpeed read it."""
    rows = []
    for share in plan.shares:
        node = share.node
        rows += [f"# {node.name}"] if node.address != node.name else []
        rows.append(f"{node.address} slots={share.count}")
    return "\n".join([*rows, ""])


def sbatch(plan: LaunchPlan, cluster: str) -> str:
    """Slurm gives the nodes; one task on each starts torchrun, whose node rank is Slurm's own number of the node."""
    names = [share.node.name for share in plan.shares]
    alike = _alike(plan.shares)
    gpus = [f"#SBATCH --gpus-per-node={plan.nproc_per_node}"] if _with_gpus(plan) else []
    inner = [
        *_own_lines(plan.shares, alike),
        "export NODE_RANK=$SLURM_NODEID",
        f"exec {' '.join(_in_slurm(plan))}",
    ]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={shlex.quote(cluster or 'launch')}",
        f"#SBATCH --nodes={len(names)}",
        f"#SBATCH --nodelist={fold(names)}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        *([f"#SBATCH --chdir={plan.wanted.folder}"] if plan.wanted.folder else []),
        "# A task may use all of its node's processors: data loaders need them.",
        "#SBATCH --exclusive",
        "",
        "set -euo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(alike.items())),
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_PORT={plan.port}",
        "",
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(chr(10).join(inner))}",
        "",
    ]
    return "\n".join(lines)


def _run(plan: LaunchPlan, share: Share) -> list[str]:
    words = (*plan.torchrun(share), *plan.wanted.program.options)
    return [share.node.python, "-m", "torch.distributed.run", *words, *_worker(plan)]


def _worker(plan: LaunchPlan) -> list[str]:
    """The program as torchrun takes it."""
    program = plan.wanted.program
    flag = {"script": [], "module": ["-m"], "other": ["--no-python"]}[program.kind]
    return [*flag, *program.words]


def _in_slurm(plan: LaunchPlan) -> Sequence[str]:
    """Words of a shell line: what Slurm decides is left to its variables."""
    share, program = plan.shares[0], plan.wanted.program
    fixed = (
        "--rdzv-backend=static",
        f"--nnodes={len(plan.shares)}",
        f"--nproc-per-node={share.count}",
    )
    place = (
        '--node-rank="$SLURM_NODEID"',
        '--master-addr="$MASTER_ADDR"',
        f"--master-port={plan.port}",
    )
    rest = [*program.options, *_worker(plan)]
    return [
        shlex.quote(share.node.python),
        "-m torch.distributed.run",
        *fixed,
        *place,
        shlex.join(rest),
    ]


def _alike(shares: Sequence[Share]) -> Mapping[str, str]:
    """What all nodes are given alike."""
    first, *others = [share.env for share in shares]
    return {
        name: value
        for name, value in first.items()
        if all(env.get(name) == value for env in others)
    }


def _own_lines(shares: Sequence[Share], alike: Mapping[str, str]) -> list[str]:
    """What each node is given by itself."""
    lines = []
    for share in shares:
        mine = [f"{n}={shlex.quote(v)}" for n, v in sorted(share.env.items()) if n not in alike]
        if mine:
            lines.append(f"  {shlex.quote(share.node.name)}) export {' '.join(mine)} ;;")
    return ['case "$SLURMD_NODENAME" in', *lines, "esac"] if lines else []


def _with_gpus(plan: LaunchPlan) -> bool:
    return all(share.node.gpus is not None and share.node.gpus.count > 0 for share in plan.shares)
